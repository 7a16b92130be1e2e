//! JSON Lines: one object a line.

use super::prompts::{Place, Row};
use crate::error::{Error, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The rows of a file, read as they are asked for. Empty lines are skipped, and counted in the line numbers.
///
/// # Errors
/// A file that cannot be opened; then, a row each, a line that is not UTF-8, not JSON, or not an object.
pub fn rows(path: &Path) -> Result<impl Iterator<Item = Result<Row>>> {
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    let path = path.to_path_buf();
    let lines = BufReader::new(file).split(b'\n').enumerate();
    Ok(lines.filter_map(move |(index, line)| {
        let line_number = index as u64 + 1;
        let refuse = |reason: String| Error::file(&path, format!("line {line_number}: {reason}"));
        match line.map_err(|e| refuse(e.to_string())) {
            Ok(bytes) => match object(&bytes, index == 0) {
                Ok(fields) => fields.map(|fields| Ok(Row { place: Place::Line(line_number), fields })),
                Err(reason) => Some(Err(refuse(reason))),
            },
            Err(error) => Some(Err(error)),
        }
    }))
}

type Object = serde_json::Map<String, Value>;

/// The object of a line; `None` for an empty line.
fn object(bytes: &[u8], first: bool) -> Result<Option<Object>, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("byte {} is not UTF-8", e.valid_up_to() + 1))?;
    let text = if first { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
    if text.trim().is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(Some(fields)),
        Ok(other) => Err(format!("found {}, expected a JSON object on each line", super::prompts::described(&other))),
        Err(e) => Err(format!("not JSON at column {}: {}", e.column(), reason(&e))),
    }
}

/// serde_json's words without their " at line 1 column 2": the line is the file's, not the text's.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(reason, _)| reason.into())
}
