//! Reading a specification: TOML, with `--set` assignments laid over it, refused by key where a key does not exist.

use super::explain::{explain, no_such_key, short};
use crate::engine::text_file;
use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::path::Path;

/// Most bytes of a specification: some hundred times what anyone writes.
const LARGEST: u64 = 1 << 20;

/// The text of a specification.
///
/// # Errors
/// A file that cannot be read, is larger than 1 MiB, or is no text.
pub fn text_of(path: &Path) -> Result<String> {
    text_file::read(path, LARGEST).map_err(|e| match e {
        Error::File { path, reason } => Error::config("SPEC", path.display(), reason),
        other => other,
    })
}

/// Reads any specification: TOML, with `--set` assignments laid over it, refused by key where a key does not exist.
///
/// # Errors
/// TOML that cannot be parsed, a key that does not exist (the nearest is named), a value that is not one of the allowed.
pub fn read<S: Serialize + DeserializeOwned + Default>(text: &str, name: &str, sets: &[String]) -> Result<S> {
    laid_over(parsed(text, name)?, name, sets)
}

/// The TOML of a specification.
pub(super) fn parsed(text: &str, name: &str) -> Result<toml::Table> {
    text.parse::<toml::Table>().map_err(|e| Error::config("SPEC", name, no_toml(&e, text)))
}

/// What a table makes with `sets` laid over it.
pub(super) fn laid_over<S>(mut table: toml::Table, name: &str, sets: &[String]) -> Result<S>
where
    S: Serialize + DeserializeOwned + Default,
{
    for set in sets {
        assign(&mut table, set)?;
    }
    let known = toml::Table::try_from(S::default()).map_err(|e| Error::config("SPEC", name, e.to_string()))?;
    refuse_unknown(&table, &known, "")?;
    let made = |table: toml::Table| toml::Value::Table(table).try_into::<S>();
    let spec = made(table.clone()).map_err(|e| explain(&e, &table, |table| made(table).err()))?;
    let written = toml::Table::try_from(&spec).map_err(|e| Error::config("SPEC", name, e.to_string()))?;
    refuse_ineffective(&toml::Value::Table(table), &toml::Value::Table(written), "")?;
    Ok(spec)
}

/// Names the first key that was taken and means nothing: what was made of the table is written out without it.
fn refuse_ineffective(given: &toml::Value, written: &toml::Value, path: &str) -> Result<()> {
    match (given, written) {
        (toml::Value::Table(given), toml::Value::Table(written)) => given.iter().try_for_each(|(key, value)| {
            let full = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let Some(written_value) = written.get(key) else {
                let kind =
                    written.get("kind").map_or_else(String::new, |kind| format!(" with {path}.kind = {}", short(kind)));
                let names: Vec<&str> = written.keys().map(String::as_str).collect();
                let reason = format!("means nothing{kind}; allowed: {}", names.join(", "));
                return Err(Error::config(full, short(value), reason));
            };
            refuse_ineffective(value, written_value, &full)
        }),
        (toml::Value::Array(given), toml::Value::Array(written)) => {
            let mut pairs = given.iter().zip(written).enumerate();
            pairs.try_for_each(|(i, (given, written))| refuse_ineffective(given, written, &format!("{path}[{i}]")))
        }
        _ => Ok(()),
    }
}

/// `a.b.c=value`, the value in TOML; what is no TOML is a string.
fn assign(table: &mut toml::Table, set: &str) -> Result<()> {
    let Some((key, text)) = set.split_once('=') else {
        return Err(Error::config("--set", set, "expected key=value, for example schedule.max_lag=8"));
    };
    let (key, text) = (key.trim(), text.trim());
    let value = format!("v = {text}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("v"));
    let value = value.unwrap_or_else(|| toml::Value::String(text.to_owned()));
    let mut at = table;
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or(key);
    for part in parts {
        let entry = at.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = entry.as_table_mut().ok_or_else(|| Error::config("--set", set, format!("{part} is not a table of keys")))?;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

/// Keys whose tables have one shape or another (or are absent by default): serde checks what is in them.
const CHECKED_LATER: [&str; 7] =
    ["data", "emulation", "eval.data", "reward", "schedule.steps", "learn.loss", "learn.aggregation"];

/// Names the first key that no spec has, with the nearest one that exists.
fn refuse_unknown(given: &toml::Table, known: &toml::Table, prefix: &str) -> Result<()> {
    for (key, value) in given {
        let full = format!("{prefix}{key}");
        if CHECKED_LATER.contains(&full.as_str()) {
            continue;
        }
        let Some(expected) = known.get(key) else {
            // Those that are absent by default are keys too.
            let later = CHECKED_LATER.iter().filter_map(|name| name.strip_prefix(prefix)).filter(|name| !name.contains('.'));
            let names: BTreeSet<&str> = known.keys().map(String::as_str).chain(later).collect();
            // At the top, where it was forgotten which table the key is in.
            let mut places = known.iter().filter(|(_, keys)| prefix.is_empty() && keys.get(key).is_some());
            if let Some((place, _)) = places.next() {
                return Err(Error::config(full, short(value), format!("no such key; did you mean {place}.{key}?")));
            }
            return Err(no_such_key(prefix, key, value, &names.into_iter().collect::<Vec<_>>()));
        };
        match (value, expected) {
            (toml::Value::Table(given), toml::Value::Table(known)) => refuse_unknown(given, known, &format!("{full}."))?,
            (_, toml::Value::Table(known)) => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                return Err(Error::config(full, short(value), format!("a table of keys: {}", names.join(", "))));
            }
            _ => {}
        }
    }
    Ok(())
}

/// toml's message on one line, with the place.
fn no_toml(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, column) = (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
    format!("no TOML at line {line}, column {column}: {}", error.message().trim().replace('\n', "; "))
}
