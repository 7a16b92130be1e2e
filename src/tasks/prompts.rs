//! Rows of a data set become prompts. A row is a JSON object, whatever file it came from.
//!
//! | what | where it is looked for |
//! |---|---|
//! | prompt | the column `prompt` (`data.prompt`): text, or a list of messages `{"role": .., "content": ..}` |
//! | answer | `data.answer`; else the first that is not null of `answer`, `ground_truth`, `reward_model.ground_truth` (verl), `solution` (TRL): text, a number, `true` or `false` |
//! | task | `task`, else `data_source` (verl), else `data.task` |
//! | completion | `completion`: text, or a list of messages (TRL); for supervised pairs only |
//! | most tokens of an answer | `max_tokens`: a number from 1, where it is below `generate.max_tokens` |
//! | tools | `tools` (`data.tools`): a list of JSON schemas, or that as text; for the chat template of messages |
//! | meta | all other columns, as a JSON object |
//!
//! Messages become text by the model's chat template; without one, by joining their contents with newlines.

use super::item::Item;
use super::messages::{self, contents};
use super::spec::{DataSpec, PromptAs};
use super::table::{Spread, Table, Unread};
use super::template::{Chat, ChatTemplate, Next, Ordered};
use crate::error::Error;
use serde_json::{Map, Value, json};
use std::fmt;

/// One row of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub place: Place,
    pub fields: Map<String, Value>,
    /// The row as JSON text with its keys in their own order, which templates show; None where that is not known.
    pub text: Option<String>,
}

/// Where a row stands in its file, from 1: errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Line of a JSON Lines file.
    Line(u64),
    /// Row of a Parquet file.
    Row(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// What rows are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Prompts that the policy answers.
    Rollouts,
    /// Pairs of prompt and completion that it learns from: `completion` must be there.
    Pairs,
}

/// The answers' columns where the spec names none, in the order they are tried.
pub const ANSWERS: [&str; 4] = ["answer", "ground_truth", "reward_model.ground_truth", "solution"];

const PROMPT_SHAPES: &str = "text or a list of messages {\"role\": .., \"content\": ..}";

/// The rows of a data file as items.
pub struct Items {
    table: Box<dyn Table>,
    spec: DataSpec,
    template: Option<ChatTemplate>,
    purpose: Use,
}

impl Items {
    /// Items of `table`, the rows of `spec.file`.
    pub fn new(table: Box<dyn Table>, spec: DataSpec, template: Option<ChatTemplate>, purpose: Use) -> Items {
        Items { table, spec, template, purpose }
    }

    pub fn spec(&self) -> &DataSpec {
        &self.spec
    }

    pub fn rows(&self) -> u64 {
        self.table.rows()
    }

    pub fn spread(&self) -> Spread {
        self.table.spread()
    }

    /// The item of the row `id`, from 0.
    ///
    /// # Errors
    /// What the table says; a row without a prompt (or completion, where it is needed), a null, an empty text, a wrong type, or
    /// messages that the template refuses: the file, the column, the row, what was found and what would be right are named.
    pub fn item(&mut self, id: u64) -> Result<Item, Unread> {
        let Row { place, fields, text } = self.table.row(id)?;
        let (template, text) = (self.template.as_ref(), text.as_deref());
        let reader = Reader { spec: &self.spec, template, purpose: self.purpose, text };
        reader.item(id, fields).map_err(|Refused { column, reason }| {
            Unread::Row(Error::column(&self.spec.file, column, format!("{place}: {reason}")))
        })
    }
}

struct Reader<'a> {
    spec: &'a DataSpec,
    template: Option<&'a ChatTemplate>,
    purpose: Use,
    /// Of the row, see [`Row::text`].
    text: Option<&'a str>,
}

/// A column that cannot be used, and why.
struct Refused {
    column: String,
    reason: String,
}

fn refuse<T>(column: &str, reason: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { column: column.into(), reason: reason.into() })
}

impl Reader<'_> {
    fn item(&self, id: u64, mut fields: Map<String, Value>) -> Result<Item, Refused> {
        let text = self.prompt(&mut fields)?;
        let answer = self.answer(&mut fields)?;
        let task = self.task(&mut fields)?;
        let completion = self.completion(&mut fields)?;
        let max_tokens = max_tokens(&mut fields)?;
        let meta = if fields.is_empty() { String::new() } else { Value::Object(fields).to_string() };
        Ok(Item { id, task, text, answer, completion, max_tokens, meta, refused: None, size: 0, bin: id })
    }

    fn prompt(&self, fields: &mut Map<String, Value>) -> Result<String, Refused> {
        let column = self.spec.prompt.as_str();
        let Some(value) = fields.remove(column) else {
            let found = fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return refuse(
                column,
                format!("missing; the row has {found}: set data.prompt to the one that holds the prompt"),
            );
        };
        let text = match value {
            Value::String(text) if text.is_empty() => return refuse(column, format!("empty, expected {PROMPT_SHAPES}")),
            Value::String(text) => match self.spec.prompt_as {
                PromptAs::Text => text,
                PromptAs::User => self.rendered(column, Ordered::from(self.conversation(&text).as_slice()), fields)?,
            },
            Value::Array(messages) => {
                self.checked(column, &messages)?;
                match self.template {
                    Some(_) => self.rendered(column, messages::ordered(&messages, column, self.text), fields)?,
                    None => contents(&messages),
                }
            }
            other => return refuse(column, format!("found {}, expected {PROMPT_SHAPES}", described(&other))),
        };
        if text.is_empty() { refuse(column, "its messages have no content") } else { Ok(text) }
    }

    fn conversation(&self, text: &str) -> Vec<Value> {
        let system = self.spec.system.iter().map(|system| json!({"role": "system", "content": system}));
        system.chain([json!({"role": "user", "content": text})]).collect()
    }

    fn checked(&self, column: &str, messages: &[Value]) -> Result<(), Refused> {
        messages::wrong(messages).map_or(Ok(()), |reason| refuse(column, reason))
    }

    fn rendered(&self, column: &str, messages: Ordered, fields: &Map<String, Value>) -> Result<String, Refused> {
        let tools = messages::tools(fields, &self.spec.tools, self.text).or_else(|e| refuse(&self.spec.tools, e))?;
        let rendered = |template: &ChatTemplate| template.render(&Chat { messages, tools }, Next::Answer);
        self.template.map_or(Ok(String::new()), rendered).or_else(|e| refuse(column, e.to_string()))
    }

    fn answer(&self, fields: &mut Map<String, Value>) -> Result<String, Refused> {
        if let Some(column) = &self.spec.answer {
            return match take(fields, column) {
                Some(value) => answer_text(column, &value),
                None => refuse(column, "missing; data.answer names it: expected text or a number"),
            };
        }
        let mut null = None;
        for column in ANSWERS {
            match take(fields, column) {
                Some(Value::Null) => null = null.or(Some(column)),
                Some(value) => return answer_text(column, &value),
                None => {}
            }
        }
        // A row without any such column has no answer to compare with: that is for the reward to judge.
        match null {
            Some(column) => refuse(column, "null, expected text or a number"),
            None => Ok(String::new()),
        }
    }

    fn task(&self, fields: &mut Map<String, Value>) -> Result<String, Refused> {
        for column in ["task", "data_source"] {
            match fields.remove(column) {
                Some(Value::String(task)) => return Ok(task),
                Some(Value::Null) | None => {}
                Some(other) => {
                    return refuse(column, format!("found {}, expected the task's name as text", described(&other)));
                }
            }
        }
        Ok(self.spec.task.clone())
    }

    fn completion(&self, fields: &mut Map<String, Value>) -> Result<String, Refused> {
        let column = "completion";
        let expected = "expected text or a list of messages";
        let text = match fields.remove(column) {
            Some(Value::String(text)) => text,
            Some(Value::Array(messages)) => {
                self.checked(column, &messages)?;
                contents(&messages)
            }
            Some(Value::Null) | None => String::new(),
            Some(other) => return refuse(column, format!("found {}, {expected}", described(&other))),
        };
        match self.purpose {
            Use::Pairs if text.is_empty() => refuse(column, format!("missing, null or empty, {expected} to learn from")),
            Use::Pairs | Use::Rollouts => Ok(text),
        }
    }
}

/// The value of a column, or of what lies inside it (dots). A top-level column leaves the row: the rest is metadata.
fn take(fields: &mut Map<String, Value>, column: &str) -> Option<Value> {
    if let Some(value) = fields.remove(column) {
        return Some(value);
    }
    let (outer, inner) = column.split_once('.')?;
    let pointer = format!("/{}", inner.replace('.', "/"));
    fields.get(outer)?.pointer(&pointer).cloned()
}

fn answer_text(column: &str, value: &Value) -> Result<String, Refused> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(number) => match number.as_f64() {
            // Above 2^53 JSON numbers lose digits.
            Some(value) if number.is_f64() && value.abs() > 9_007_199_254_740_992.0 => {
                refuse(column, format!("the number {number} has lost digits: write it as text"))
            }
            _ => Ok(number.to_string()),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => {
            refuse(column, format!("found {}, expected text or a number", described(value)))
        }
    }
}

/// The row's own limit on the tokens of an answer.
fn max_tokens(fields: &mut Map<String, Value>) -> Result<Option<u32>, Refused> {
    let column = "max_tokens";
    match fields.remove(column) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0) {
            Some(limit) => Ok(Some(limit)),
            None => refuse(column, format!("found {}, expected a whole number from 1", described(&value))),
        },
    }
}

/// A value in the words of an error message: its type, and the value itself where it is short.
pub fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(fields) => {
            format!("an object with {}", fields.keys().take(8).cloned().collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> DataSpec {
        DataSpec::new("some/file.jsonl")
    }

    struct Memory(Vec<Map<String, Value>>);

    impl Table for Memory {
        fn rows(&self) -> u64 {
            self.0.len() as u64
        }

        fn spread(&self) -> Spread {
            Spread::Even
        }

        fn row(&mut self, index: u64) -> Result<Row, Unread> {
            Ok(Row { place: Place::Line(index + 1), fields: self.0[index as usize].clone(), text: None })
        }
    }

    fn read_with(spec: &DataSpec, template: Option<ChatTemplate>, purpose: Use, rows: &[Value]) -> Vec<Result<Item, Error>> {
        let rows: Vec<_> = rows.iter().map(|row| row.as_object().cloned().unwrap()).collect();
        let count = rows.len() as u64;
        let mut items = Items::new(Box::new(Memory(rows)), spec.clone(), template, purpose);
        (0..count).map(|id| items.item(id).map_err(Error::from)).collect()
    }

    fn item(spec: &DataSpec, row: Value) -> Item {
        read_with(spec, None, Use::Rollouts, &[row]).remove(0).unwrap()
    }

    fn refused(spec: &DataSpec, row: Value) -> String {
        read_with(spec, None, Use::Rollouts, &[json!({"prompt": "fine"}), row]).remove(1).unwrap_err().to_string()
    }

    #[test]
    fn plain_rows() {
        let found = item(&spec(), json!({"prompt": "1+1=", "answer": "2", "task": "sums", "level": 3, "max_tokens": 5}));
        let expected = Item {
            id: 0,
            task: "sums".into(),
            text: "1+1=".into(),
            answer: "2".into(),
            completion: String::new(),
            max_tokens: Some(5),
            meta: r#"{"level":3}"#.into(),
            refused: None,
            size: 0,
            bin: 0,
        };
        assert_eq!(found, expected);
        let bare = item(&spec(), json!({"prompt": "1+1="}));
        assert_eq!([bare.task.as_str(), &bare.answer, &bare.meta], ["data", "", ""]);
    }

    #[test]
    fn verl_rows() {
        let row = json!({
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train", "index": 17},
        });
        let found = item(&spec(), row);
        assert_eq!([found.text.as_str(), &found.answer, &found.task], ["Think.\n1+1?", "2", "openai/gsm8k"]);
        let meta: Value = serde_json::from_str(&found.meta).unwrap();
        assert_eq!(meta["extra_info"]["index"], 17);
        assert_eq!(meta["reward_model"]["style"], "rule");
        assert_eq!(meta.as_object().unwrap().len(), 3);
    }

    #[test]
    fn trl_rows() {
        for column in ["solution", "answer", "ground_truth"] {
            let found = item(&spec(), json!({"prompt": [{"role": "user", "content": "1+1?"}], column: 2, "hint": null}));
            assert_eq!([found.answer.as_str(), &found.meta], ["2", r#"{"hint":null}"#], "{column}");
        }
        let both = item(&spec(), json!({"prompt": "1+1?", "answer": "2", "solution": "Count."}));
        assert_eq!([both.answer.as_str(), &both.meta], ["2", r#"{"solution":"Count."}"#]);
        let one = item(&spec(), json!({"prompt": "1+1?", "answer": null, "solution": "2"}));
        assert_eq!(one.answer, "2");
    }

    #[test]
    fn named_columns() {
        let named = DataSpec { prompt: "question".into(), answer: Some("labels.final".into()), ..spec() };
        let found = item(&named, json!({"question": "1+1?", "answer": "Two.", "labels": {"final": 2.5}}));
        assert_eq!([found.text.as_str(), &found.answer], ["1+1?", "2.5"]);
        let message = refused(&named, json!({"question": "1+1?", "labels": {}}));
        let expected =
            "some/file.jsonl: column labels.final: line 2: missing; data.answer names it: expected text or a number";
        assert_eq!(message, expected);
    }

    /// Hard case 13: two rows with the same text are two prompts.
    #[test]
    fn equal_rows_are_two_prompts() {
        let row = json!({"prompt": "1+1=", "answer": "2"});
        let items: Vec<Item> =
            read_with(&spec(), None, Use::Rollouts, &[row.clone(), row]).into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!([items[0].id, items[1].id], [0, 1]);
        assert_eq!(items[0].text, items[1].text);
    }

    #[test]
    fn a_wrong_row_is_refused_by_file_column_and_line() {
        let cases = [
            (json!({"question": "?", "id": 1}), "prompt: line 2: missing; the row has id, question: set data.prompt"),
            (json!({"prompt": null}), "prompt: line 2: found null, expected text or a list of messages"),
            (json!({"prompt": 7}), "prompt: line 2: found the number 7, expected text"),
            (json!({"prompt": ""}), "prompt: line 2: empty, expected text"),
            (json!({"prompt": []}), "prompt: line 2: the list of messages is empty"),
            (json!({"prompt": ["hello"]}), "prompt: line 2: message 1: found the text \"hello\" without role"),
            (
                json!({"prompt": [{"role": "user", "content": [{"type": "text"}]}]}),
                "prompt: line 2: message 1: content: found a list of 1, expected text",
            ),
            (json!({"prompt": [{"role": "user", "content": ""}]}), "prompt: line 2: its messages have no content"),
            (json!({"prompt": "?", "answer": null}), "answer: line 2: null, expected text or a number"),
            (json!({"prompt": "?", "answer": ["2"]}), "answer: line 2: found a list of 1, expected text or a number"),
            (
                json!({"prompt": "?", "answer": 12_345_678_901_234_567_890_123.0}),
                "answer: line 2: the number 1.2345678901234568e+22 has lost digits: write it as text",
            ),
            (
                json!({"prompt": "?", "max_tokens": 0}),
                "max_tokens: line 2: found the number 0, expected a whole number from 1",
            ),
            (json!({"prompt": "?", "max_tokens": 1.5}), "max_tokens: line 2: found the number 1.5, expected a whole"),
            (json!({"prompt": "?", "task": 1}), "task: line 2: found the number 1, expected the task's name"),
            (json!({"prompt": "?", "completion": 1}), "completion: line 2: found the number 1, expected text"),
        ];
        for (row, expected) in cases {
            let message = refused(&spec(), row);
            assert!(message.starts_with(&format!("some/file.jsonl: column {expected}")), "{message}");
        }
    }

    #[test]
    fn pairs_need_a_completion() {
        let chat = json!([{"role": "assistant", "content": "2"}]);
        let rows = [
            json!({"prompt": "1+1=", "completion": "2"}),
            json!({"prompt": [{"role": "user", "content": "1+1="}], "completion": chat}),
            json!({"prompt": "1+1="}),
            json!({"prompt": "1+1=", "completion": null}),
        ];
        let items = read_with(&spec(), None, Use::Pairs, &rows);
        for item in &items[..2] {
            let item = item.as_ref().unwrap();
            assert_eq!([item.text.as_str(), &item.completion], ["1+1=", "2"]);
        }
        for (item, line) in items[2..].iter().zip([3, 4]) {
            let message = item.as_ref().unwrap_err().to_string();
            let expected = format!("some/file.jsonl: column completion: line {line}: missing, null or empty, expected text");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    #[test]
    fn the_template_turns_messages_into_text() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\
            {% if messages[0].content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}<assistant>";
        let template = || ChatTemplate::new(source, "", "").ok();
        let user = DataSpec { prompt_as: PromptAs::User, system: Some("Be short.".into()), ..spec() };
        let text = |spec: &DataSpec, row: Value| read_with(spec, template(), Use::Rollouts, &[row]).remove(0);
        let row = json!({"prompt": [{"role": "user", "content": "1+1?"}]});
        assert_eq!(text(&spec(), row).unwrap().text, "<user>1+1?\n<assistant>");
        let row = json!({"prompt": "1+1?"});
        assert_eq!(text(&spec(), row.clone()).unwrap().text, "1+1?");
        assert_eq!(text(&user, row).unwrap().text, "<system>Be short.\n<user>1+1?\n<assistant>");
        let message = text(&spec(), json!({"prompt": [{"role": "user", "content": "bad"}]})).unwrap_err().to_string();
        assert_eq!(message, "some/file.jsonl: column prompt: line 1: chat template, line 2: no bad words");
    }
    /// Catches tools that do not reach the template, in another order than the row's, or that leave the metadata.
    #[test]
    fn tools_of_a_row_are_shown_to_the_template() {
        let source = "{% for tool in tools or [] %}{{ tool | tojson }} {% endfor %}{{ messages[-1].tool_calls | tojson }}";
        let chat = r#"[{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"b": 1, "a": 2}}]}]"#;
        let read = |spec: &DataSpec, tools: &str| {
            let text = format!(r#"{{"prompt": {chat}, "tools": {tools}, "level": 1}}"#);
            let fields = serde_json::from_str(&text).unwrap();
            let template = ChatTemplate::new(source, "", "").ok();
            let reader = Reader { spec, template: template.as_ref(), purpose: Use::Rollouts, text: Some(&text) };
            reader.item(0, fields).map_err(|refused| format!("{}: {}", refused.column, refused.reason))
        };
        let calls = r#"[{"name": "f", "arguments": {"b": 1, "a": 2}}]"#;
        for tools in [r#"[{"z": {"y": 1, "x": []}}, {"b": 2}]"#, r#""[{\"z\": {\"y\":1, \"x\":[]}}, {\"b\": 2}]""#] {
            let item = read(&spec(), tools).unwrap();
            assert_eq!(item.text, format!(r#"{{"z": {{"y": 1, "x": []}}}} {{"b": 2}} {calls}"#));
            assert!(item.meta.contains("\"tools\":"), "{}", item.meta);
        }
        assert_eq!(read(&spec(), "null").unwrap().text, calls);
        assert_eq!(read(&DataSpec { tools: String::new(), ..spec() }, "[1]").unwrap().text, calls);
        for tools in ["[1]", "{}", "\"search\"", "\"[2]\""] {
            let message = read(&spec(), tools).err().unwrap();
            assert!(message.starts_with("tools: found ") && message.ends_with("such a list as text"), "{message}");
        }
        let user = DataSpec { prompt_as: PromptAs::User, ..spec() };
        let template = ChatTemplate::new("{{ tools | tojson }}", "", "").ok();
        let row = json!({"prompt": "1+1?", "tools": [{"name": "add"}]});
        assert_eq!(read_with(&user, template, Use::Rollouts, &[row]).remove(0).unwrap().text, r#"[{"name": "add"}]"#);
    }
}
