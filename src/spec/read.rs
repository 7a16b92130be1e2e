//! Reading a specification: TOML, with `--set` assignments laid over it, refused by key where a key does not exist.

use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::path::Path;

/// The text of a specification.
///
/// # Errors
/// A file that cannot be read.
pub fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::config("SPEC", path.display(), e.to_string()))
}

/// Reads any specification: TOML, with `--set` assignments laid over it, refused by key where a key does not exist.
///
/// # Errors
/// TOML that cannot be parsed, a key that does not exist (the nearest is named), a value that is not one of the allowed.
pub fn read<S: Serialize + DeserializeOwned + Default>(text: &str, name: &str, sets: &[String]) -> Result<S> {
    let mut table = text.parse::<toml::Table>().map_err(|e| Error::config("SPEC", name, no_toml(&e, text)))?;
    for set in sets {
        assign(&mut table, set)?;
    }
    let known = toml::Table::try_from(S::default()).map_err(|e| Error::config("SPEC", name, e.to_string()))?;
    refuse_unknown(&table, &known, "")?;
    toml::Value::Table(table.clone()).try_into().map_err(|e| explain(&e, &table))
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
const CHECKED_LATER: [&str; 5] = ["data", "eval.data", "reward", "learn.loss", "learn.aggregation"];

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
            let nearest = names.iter().max_by(|a, b| strsim::jaro(a, key).total_cmp(&strsim::jaro(b, key)));
            let hint = nearest.map_or_else(String::new, |n| format!("did you mean {prefix}{n}? "));
            let names: Vec<&str> = names.into_iter().collect();
            return Err(Error::config(full, short(value), format!("no such key; {hint}allowed: {}", names.join(", "))));
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

fn short(value: &toml::Value) -> String {
    let text = value.to_string().replace('\n', " ");
    if text.chars().count() > 60 { text.chars().take(57).chain("...".chars()).collect() } else { text }
}

/// toml's message ends with "in `key`"; the value stands in the table.
fn explain(error: &toml::de::Error, table: &toml::Table) -> Error {
    let text = error.to_string();
    let key = text.rsplit_once("in `").and_then(|(_, rest)| rest.split('`').next()).unwrap_or("spec").to_owned();
    let value = lookup(table, &key).map_or_else(|| "?".into(), |v| short(&v));
    Error::config(key, value, error.message().trim())
}

/// The value of a key; of a key of a list of tables (`task.kind`), the values of all.
fn lookup(table: &toml::Table, key: &str) -> Option<toml::Value> {
    key.split('.').try_fold(toml::Value::Table(table.clone()), |at, part| match at {
        toml::Value::Array(tables) => {
            Some(toml::Value::Array(tables.iter().filter_map(|table| table.get(part).cloned()).collect()))
        }
        at => at.get(part).cloned(),
    })
}

/// toml's message on one line, with the place.
fn no_toml(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, column) = (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
    format!("no TOML at line {line}, column {column}: {}", error.message().trim().replace('\n', "; "))
}
