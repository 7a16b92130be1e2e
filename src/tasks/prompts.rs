//! Rows of a data set become prompts. A row is a JSON object, whatever file it came from.
//!
//! | what | where it is looked for |
//! |---|---|
//! | prompt | the column `prompt` (`data.prompt`): text, or a list of messages `{"role": .., "content": ..}` |
//! | answer | `data.answer`; else the first that is not null of `answer`, `ground_truth`, `reward_model.ground_truth` (verl), `solution` (TRL): text, a number, `true` or `false` |
//! | task | `task`, else `data_source` (verl), else `data.task` |
//! | completion | `completion`: text, or a list of messages (TRL); for supervised pairs only |
//! | meta | all other columns, as a JSON object |
//!
//! Messages become text by the model's chat template; without one, by joining their contents with newlines.

use super::item::Item;
use super::spec::{DataSpec, PromptAs};
use super::template::ChatTemplate;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::fmt;

/// One row of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub place: Place,
    pub fields: Map<String, Value>,
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
const ANSWERS: [&str; 4] = ["answer", "ground_truth", "reward_model.ground_truth", "solution"];

const PROMPT_SHAPES: &str = "text or a list of messages {\"role\": .., \"content\": ..}";

/// The items of `rows`, numbered from 0. Errors among the rows pass through.
///
/// # Errors
/// An item each: a row without a prompt (or completion, where it is needed), a null, an empty text, a wrong type, or messages
/// that the template refuses; the file, the column, the row, what was found and what would be right are named.
pub fn rows_to_items<'a>(
    rows: impl Iterator<Item = Result<Row>> + 'a,
    spec: &'a DataSpec,
    template: Option<&'a ChatTemplate>,
    purpose: Use,
) -> impl Iterator<Item = Result<Item>> + 'a {
    rows.enumerate().map(move |(id, row)| {
        let Row { place, fields } = row?;
        let reader = Reader { spec, template, purpose };
        reader
            .item(id as u64, fields)
            .map_err(|Refused { column, reason }| Error::column(&spec.file, column, format!("{place}: {reason}")))
    })
}

struct Reader<'a> {
    spec: &'a DataSpec,
    template: Option<&'a ChatTemplate>,
    purpose: Use,
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
        let meta = if fields.is_empty() { String::new() } else { Value::Object(fields).to_string() };
        Ok(Item { id, task, text, answer, completion, meta })
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
                PromptAs::User => self.rendered(column, &self.conversation(&text))?,
            },
            Value::Array(messages) => {
                check_messages(column, &messages)?;
                self.rendered(column, &messages)?
            }
            other => return refuse(column, format!("found {}, expected {PROMPT_SHAPES}", described(&other))),
        };
        if text.is_empty() { refuse(column, "its messages have no content") } else { Ok(text) }
    }

    fn conversation(&self, text: &str) -> Vec<Value> {
        let system = self.spec.system.iter().map(|system| json!({"role": "system", "content": system}));
        system.chain([json!({"role": "user", "content": text})]).collect()
    }

    fn rendered(&self, column: &str, messages: &[Value]) -> Result<String, Refused> {
        match self.template {
            Some(template) => template.render(messages).or_else(|e| refuse(column, e.to_string())),
            None => Ok(contents(messages)),
        }
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
                check_messages(column, &messages)?;
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

fn check_messages(column: &str, messages: &[Value]) -> Result<(), Refused> {
    if messages.is_empty() {
        return refuse(column, "the list of messages is empty");
    }
    for (i, message) in messages.iter().enumerate() {
        for key in ["role", "content"] {
            match message.get(key) {
                Some(Value::String(_)) => {}
                Some(other) => {
                    return refuse(column, format!("message {}: {key}: found {}, expected text", i + 1, described(other)));
                }
                None => return refuse(column, format!("message {}: found {} without {key}", i + 1, described(message))),
            }
        }
    }
    Ok(())
}

fn contents(messages: &[Value]) -> String {
    let contents: Vec<&str> = messages.iter().filter_map(|message| message.get("content")?.as_str()).collect();
    contents.join("\n")
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
