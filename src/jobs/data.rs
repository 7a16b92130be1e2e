//! Where a job's prompts come from: generated tasks, or a file with the model's chat template.

use crate::engine::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::store;
use crate::tasks::generated::Mix;
use crate::tasks::item::Item;
use crate::tasks::jsonl;
use crate::tasks::prompts::{Place, Row, Use, rows_to_items};
use crate::tasks::reward::Reward;
use crate::tasks::source::{Cursor, Prompts, Source};
use crate::tasks::spec::{DataSpec, Format, TaskSpec};
use crate::tasks::template::ChatTemplate;
use std::path::Path;

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
    /// A file or a row that is not as the specification says; rows of which `rule` can judge none.
    pub fn training(&self, seed: u64, rule: Option<&Reward>) -> Result<Prompts> {
        let source = match self.file {
            None => Source::Generated { mix: Mix::new(self.tasks)?, seed },
            Some(data) => {
                let items = self.items(data)?;
                rule.map_or(Ok(()), |rule| self.judged(&items, rule))?;
                Source::rows(items, data, seed)?
            }
        };
        Ok(source.from_cursor(Cursor::default()))
    }

    /// At most `prompts` held-out prompts: those of `file`, or of the generated tasks; none for a file of prompts alone.
    ///
    /// # Errors
    /// As [`training`](Data::training).
    pub fn held_out(&self, file: Option<&DataSpec>, prompts: usize) -> Result<Vec<Item>> {
        if let Some(data) = file {
            let mut items = self.items(data)?;
            items.truncate(prompts);
            return Ok(items);
        }
        if self.file.is_some() || self.tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mix = Mix::new(self.tasks)?;
        Ok((0..prompts as u64).map(|index| mix.held_out(index)).collect())
    }

    /// Rollouts of a prompt that cannot be judged are discarded; if all are, the run would never come to its first step.
    fn judged(&self, items: &[Item], reward: &Reward) -> Result<()> {
        let why = |item: &Item| reward.score(&item.clone().into_prompt(0, Vec::new()), "").err();
        match (self.purpose, items.iter().map(why).collect::<Option<Vec<_>>>()) {
            (Use::Rollouts, Some(reasons)) if !reasons.is_empty() => {
                let why = reasons.first().map_or_else(String::new, |why| format!(": {why}"));
                Err(Error::config("reward", format!("{} prompts", items.len()), format!("can judge none of them{why}")))
            }
            _ => Ok(()),
        }
    }

    fn items(&self, data: &DataSpec) -> Result<Vec<Item>> {
        let template = template(self.model)?;
        let rows: Box<dyn Iterator<Item = Result<Row>>> = match data.format()? {
            Format::Parquet => Box::new(
                store::read_json_rows(&data.file)?
                    .zip(1..)
                    .map(|(fields, row)| Ok(Row { place: Place::Row(row), fields: fields? })),
            ),
            Format::JsonLines => Box::new(jsonl::rows(&data.file)?),
        };
        rows_to_items(rows, data, template.as_ref(), self.purpose).collect()
    }
}

/// The chat template of a model folder: `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`.
fn template(model: &Path) -> Result<Option<ChatTemplate>> {
    let config: serde_json::Value = match std::fs::read_to_string(model.join("tokenizer_config.json")) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| Error::file(model.join("tokenizer_config.json"), e))?,
        Err(_) => serde_json::Value::Null,
    };
    // A special token is text, or an object with its text in `content`.
    let token = |key: &str| {
        let value = &config[key];
        value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
    };
    let text = match std::fs::read_to_string(model.join("chat_template.jinja")) {
        Ok(text) => Some(text),
        Err(_) => config["chat_template"].as_str().map(str::to_owned),
    };
    text.map(|text| ChatTemplate::new(&text, &token("bos_token"), &token("eos_token"))).transpose()
}

/// An item as the record that is admitted.
///
/// # Errors
/// A text that the tokenizer refuses.
pub fn prompt(epoch: u32, item: Item, tokenizer: &Tokenizer) -> Result<tidegate_operators::record::Prompt> {
    let tokens = tokenizer.encode(&item.text)?;
    Ok(item.into_prompt(epoch, tokens))
}
