//! Conversations in a row of a data set: what a message must have, and how a list of them is told to a template.

use super::prompts::described;
use super::template::Ordered;
use serde_json::{Map, Value};

const TOOLS: &str = "a list of objects (JSON schemas), or such a list as text";

/// What is wrong with a list of messages, if anything: each has a role and a content, both text. A message that calls tools may have
/// no content.
pub(super) fn wrong(messages: &[Value]) -> Option<String> {
    if messages.is_empty() {
        return Some("the list of messages is empty".to_owned());
    }
    messages.iter().enumerate().find_map(|(i, message)| {
        let calls = message.get("tool_calls").is_some_and(|calls| calls.as_array().is_some_and(|list| !list.is_empty()));
        ["role", "content"].into_iter().find_map(|key| match message.get(key) {
            Some(Value::String(_)) => None,
            Some(Value::Null) | None if calls && key == "content" => None,
            Some(other) => Some(format!("message {}: {key}: found {}, expected text", i + 1, described(other))),
            None => Some(format!("message {}: found {} without {key}", i + 1, described(message))),
        })
    })
}

/// The contents alone, for models without a template.
pub(super) fn contents(messages: &[Value]) -> String {
    let contents: Vec<&str> = messages.iter().filter_map(|message| message.get("content")?.as_str()).collect();
    contents.join("\n")
}

/// A list of a row with the keys of its objects in the row's own order, where `text`, the row's, is known.
pub(super) fn ordered(list: &[Value], column: &str, text: Option<&str>) -> Ordered {
    text.and_then(|text| Ordered::column(text, column)).unwrap_or_else(|| Ordered::from(list))
}

/// The tools in the column `column` of a row; None without it, or where it is null.
///
/// # Errors
/// What was found, and what would be right.
pub(super) fn tools(fields: &Map<String, Value>, column: &str, text: Option<&str>) -> Result<Option<Ordered>, String> {
    let schemas = |list: &Value| list.as_array().is_some_and(|list| list.iter().all(Value::is_object));
    match fields.get(column) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) if list.iter().all(Value::is_object) => Ok(Some(ordered(list, column, text))),
        Some(Value::String(json)) if serde_json::from_str(json).is_ok_and(|list| schemas(&list)) => {
            serde_json::from_str(json).map(Some).map_err(|e| e.to_string())
        }
        Some(other) => Err(format!("found {}, expected {TOOLS}", described(other))),
    }
}
