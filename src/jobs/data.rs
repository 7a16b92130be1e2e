//! Where a job's prompts come from: generated tasks, or a file with the model's chat template.

use crate::engine::text_file;
use crate::error::{Error, Result};
use crate::jobs::say;
use crate::store::RowTable;
use crate::tasks::generated::Mix;
use crate::tasks::item::Item;
use crate::tasks::jsonl::JsonLines;
use crate::tasks::prompts::{ANSWERS, Items, Place, Row, Use};
use crate::tasks::reward::Reward;
use crate::tasks::source::{Prompts, Source};
use crate::tasks::spec::{DataSpec, Format, TaskSpec};
use crate::tasks::table::{Spread, Table, Unread};
use crate::tasks::template::ChatTemplate;
use serde_json::Value;
use std::path::Path;

/// How many rows of a file are checked before anything begins; those behind them when they are read.
const CHECKED: u64 = 10_000;

/// Most bytes of a tokenizer's configuration and of a chat template: those in use are a thousandth of it.
const LARGEST_CONFIG: u64 = 16 << 20;

/// What a job reads its prompts from: the parts of its specification that say so.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    pub file: Option<&'a DataSpec>,
    pub tasks: &'a [TaskSpec],
    /// The model's folder, for its chat template.
    pub model: &'a Path,
    pub purpose: Use,
}

impl Data<'_> {
    /// The training prompts, in the order of `seed`.
    ///
    /// # Errors
    /// A file, or one of its first rows, that is not as the specification says; rows of which `rule` can judge none.
    pub fn training(&self, seed: u64, rule: Option<&Reward>) -> Result<Prompts> {
        let source = match self.file {
            None => Source::Generated { mix: Mix::new(self.tasks)?, seed },
            Some(data) => {
                let mut items = self.items(data)?;
                let checked = first(&mut items, CHECKED)?;
                rule.map_or(Ok(()), |rule| self.judged(&checked, items.rows(), rule))?;
                Source::rows(items, seed)?
            }
        };
        Ok(source.from(0))
    }

    /// At most `prompts` held-out prompts: those of `file`, or of the generated tasks; none for a file of prompts alone.
    ///
    /// # Errors
    /// As [`training`](Data::training).
    pub fn held_out(&self, file: Option<&DataSpec>, prompts: usize) -> Result<Vec<Item>> {
        if let Some(data) = file {
            return first(&mut self.items(data)?, prompts as u64);
        }
        if self.file.is_some() || self.tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mix = Mix::new(self.tasks)?;
        Ok((0..prompts as u64).map(|index| mix.held_out(index)).collect())
    }

    /// At most `prompts` prompts to be evaluated on, as [`held_out`](Data::held_out): at least one, and some that `rule` can judge.
    ///
    /// # Errors
    /// As [`training`](Data::training); a file without rows.
    pub fn evaluation(&self, file: Option<&DataSpec>, prompts: usize, rule: Option<&Reward>) -> Result<Vec<Item>> {
        let items = self.held_out(file, prompts)?;
        if let (Some(data), true) = (file, items.is_empty()) {
            return Err(Error::file(&data.file, "it has no rows; at least one prompt is needed"));
        }
        rule.map_or(Ok(()), |rule| self.judged(&items, items.len() as u64, rule))?;
        Ok(items)
    }

    /// Rollouts of a prompt that cannot be judged are discarded; if all are, the run would never come to its first step.
    fn judged(&self, items: &[Item], rows: u64, reward: &Reward) -> Result<()> {
        let why = |item: &Item| reward.score(&item.clone().into_prompt(0, Vec::new()), "").err();
        match (self.purpose, items.iter().map(why).collect::<Option<Vec<_>>>()) {
            (Use::Rollouts, Some(reasons)) if !reasons.is_empty() => {
                let why = reasons.first().map_or_else(String::new, |why| format!(": {why}"));
                if items.len() as u64 == rows {
                    return Err(Error::config("reward", format!("{rows} prompts"), format!("can judge none of them{why}")));
                }
                say(format_args!("note      the reward can judge none of the first {} prompts{why}", items.len()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn items(&self, data: &DataSpec) -> Result<Items> {
        let template = template(self.model)?;
        let table: Box<dyn Table> = match data.format()? {
            Format::Parquet => Box::new(Rows(parquet(data)?)),
            Format::JsonLines => Box::new(JsonLines::open(&data.file)?),
        };
        Ok(Items::new(table, data.clone(), template, self.purpose))
    }
}

fn first(items: &mut Items, count: u64) -> Result<Vec<Item>> {
    (0..items.rows().min(count)).map(|row| items.item(row).map_err(Error::from)).collect()
}

/// A Parquet file whose prompts and answers have a text.
fn parquet(data: &DataSpec) -> Result<RowTable> {
    let rows = RowTable::open(&data.file)?;
    let root = |column: &str| column.split('.').next().unwrap_or_default().to_owned();
    let answer = match &data.answer {
        Some(answer) => Some(root(answer)),
        None => ANSWERS.into_iter().map(root).find(|column| rows.has(column)),
    };
    match [Some(data.prompt.clone()), answer].into_iter().flatten().find(|column| rows.holds_bytes(column)) {
        Some(column) => Err(Error::column(&data.file, column, "it holds bytes, expected text: write it as strings (UTF-8)")),
        None => Ok(rows),
    }
}

/// The rows of a Parquet file for those who know no Parquet.
struct Rows(RowTable);

impl Table for Rows {
    fn rows(&self) -> u64 {
        self.0.rows()
    }

    fn spread(&self) -> Spread {
        self.0.blocks().map_or(Spread::Even, |blocks| Spread::Blocks { rows: blocks.rows, kept: blocks.kept })
    }

    fn row(&mut self, index: u64) -> Result<Row, Unread> {
        let fields = self.0.row(index).map_err(Unread::Row)?;
        Ok(Row { place: Place::Row(index + 1), fields, text: None })
    }
}

/// The chat template of a model folder: `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`.
fn template(model: &Path) -> Result<Option<ChatTemplate>> {
    let path = model.join("tokenizer_config.json");
    let config: Value = match text_file::read_if_there(&path, LARGEST_CONFIG)? {
        Some(text) => serde_json::from_str(&text).map_err(|e| Error::file(&path, e))?,
        None => Value::Null,
    };
    // A special token is text, or an object with its text in `content`.
    let token = |key: &str| {
        let value = &config[key];
        value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
    };
    let text = match text_file::read_if_there(&model.join("chat_template.jinja"), LARGEST_CONFIG)? {
        Some(text) => Some(text),
        None => default_template(&config["chat_template"]).map_err(|found| {
            Error::file(&path, format!("chat_template = {found}: expected text, or a list with one \"default\""))
        })?,
    };
    text.map(|text| ChatTemplate::new(&text, &token("bos_token"), &token("eos_token"))).transpose()
}

/// One template, or the one of several that is named `default`.
fn default_template(value: &Value) -> Result<Option<String>, String> {
    let named = |list: &[Value]| list.iter().find(|one| one["name"] == "default").map(|one| one["template"].clone());
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(list) => match named(list) {
            Some(Value::String(text)) => Ok(Some(text)),
            _ => Err(format!("a list of {}", list.len())),
        },
        other => Err(crate::tasks::prompts::described(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::spec::{Order, RewardSpec};
    use crate::tasks::template::{Chat, Next};
    use serde_json::json;
    use std::fs;
    use std::path::PathBuf;
    use tempfile::TempDir;

    fn written(name: &str, text: &str) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn training(data: &DataSpec, reward: &RewardSpec) -> Result<Vec<(u32, Item)>> {
        let model = Path::new("no/model");
        let reward = Reward::new(reward).unwrap();
        Data { file: Some(data), tasks: &[], model, purpose: Use::Rollouts }.training(1, Some(&reward))?.collect()
    }

    fn lines(count: u64, wrong: u64) -> String {
        let line = |n| if n == wrong { "{\"prompt\": null}\n".to_owned() } else { format!("{{\"prompt\": \"{n}\"}}\n") };
        (1..=count).map(line).collect()
    }

    /// Catches a wrong row that ends a run of days: behind those that are checked before it begins, it is one prompt's fault.
    #[test]
    fn wrong_rows_are_refused_before_the_start_or_skipped_after_it() {
        let exact = RewardSpec::Exact { after: None };
        for (wrong, order) in [(1, Order::File), (CHECKED, Order::Shuffled)] {
            let (_dir, file) = written("p.jsonl", &lines(CHECKED + 5, wrong));
            let error = training(&DataSpec { epochs: 1, order, ..DataSpec::new(file) }, &exact).unwrap_err().to_string();
            assert!(error.contains(&format!("p.jsonl: column prompt: line {wrong}: found null, expected text")), "{error}");
        }
        let (_dir, file) = written("p.jsonl", &lines(CHECKED + 5, CHECKED + 1));
        let found = training(&DataSpec { epochs: 1, ..DataSpec::new(file) }, &exact).unwrap();
        assert_eq!(found.len() as u64, CHECKED + 5);
        let refused: Vec<_> = found.into_iter().filter(|(_, item)| item.refused.is_some()).collect();
        assert_eq!((refused.len(), refused[0].1.id), (1, CHECKED));
        assert!(refused[0].1.refused.as_ref().unwrap().contains("column prompt: line 10001: found null"), "{refused:?}");
    }

    /// Catches the model's template being left out because it is not text, not there, or one of several.
    #[test]
    fn the_template_of_a_folder_is_found_or_its_file_is_named() {
        let says = |config: &serde_json::Value, jinja: Option<&[u8]>| -> Result<String> {
            let (dir, _) = written("tokenizer_config.json", &config.to_string());
            jinja.into_iter().for_each(|text| fs::write(dir.path().join("chat_template.jinja"), text).unwrap());
            let template = template(dir.path())?;
            Ok(template
                .map_or_else(|| "none".to_owned(), |template| template.render(&Chat::default(), Next::Answer).unwrap()))
        };
        assert_eq!(says(&json!({}), None).unwrap(), "none");
        assert_eq!(
            says(&json!({"chat_template": "a{{ eos_token }}", "eos_token": {"content": "</s>"}}), None).unwrap(),
            "a</s>"
        );
        assert_eq!(says(&json!({"chat_template": "a"}), Some(b"b")).unwrap(), "b");
        let several = json!([{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]);
        assert_eq!(says(&json!({"chat_template": several}), None).unwrap(), "d");
        for (config, jinja, message) in [
            (
                json!({"chat_template": [{"name": "tool", "template": "t"}]}),
                None,
                "chat_template = a list of 1: expected text",
            ),
            (json!({"chat_template": 7}), None, "chat_template = the number 7: expected text"),
            (json!({}), Some(&b"\xFF"[..]), "chat_template.jinja: byte 1 is not UTF-8"),
            (json!({}), Some(b"{% if %}"), "chat template, line 1: "),
        ] {
            let error = says(&config, jinja).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
