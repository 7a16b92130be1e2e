//! What a file of the log says about itself, in the key-values of its footer.
//!
//! | key | value |
//! |---|---|
//! | `tidegate.schema_version` | [`SCHEMA_VERSION`] of the writer |
//! | `tidegate.step` | the step that the file seals |
//! | `tidegate.spec` | the text of the run's `spec.toml` |
//! | `tidegate.model`, `tidegate.tokenizer` | hashes of what the run started from |
//! | `tidegate.learner_threads` | how many threads the learner had: results repeat bit for bit only with as many |
//! | `tidegate.metrics` | the step's [`Metrics`] as a JSON object; `"NaN"`, `"inf"`, `"-inf"` where a number is not finite |
//! | `tidegate.data` | length and BLAKE3 of everything before the footer |
//! | `tidegate.seal` | BLAKE3 of the footer itself, with this value as zeros |

use super::schema::SCHEMA_VERSION;
use super::seal::{DataSeal, SEAL, UNSEALED};
use crate::error::{Error, Result};
use parquet::file::metadata::{FileMetaData, KeyValue};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_operators::record::{Metrics, Step};

const PREFIX: &str = "tidegate.";
const DATA: &str = "tidegate.data";

/// What a run knows of itself, the same in all its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FooterInfo {
    /// Text of `spec.toml`.
    pub spec: String,
    /// Hash of the model that the run started from.
    pub model: String,
    /// Hash of the tokenizer.
    pub tokenizer: String,
    /// Threads of the learner.
    pub learner_threads: u32,
}

/// The footer of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footer {
    pub schema_version: u32,
    /// The step that the file seals; of a tail, the step that would have come.
    pub step: Step,
    pub info: FooterInfo,
    /// None for a tail, and for files that do not say.
    pub metrics: Option<Metrics>,
}

impl Footer {
    /// The key-values to write, with the place of the seal.
    ///
    /// # Errors
    /// Metrics with a counter above `i64::MAX`.
    pub(super) fn to_pairs(&self, data: &DataSeal) -> Result<Vec<KeyValue>, String> {
        let mut pairs = BTreeMap::from([
            ("tidegate.schema_version".to_owned(), self.schema_version.to_string()),
            ("tidegate.step".to_owned(), self.step.to_string()),
            ("tidegate.spec".to_owned(), self.info.spec.clone()),
            ("tidegate.model".to_owned(), self.info.model.clone()),
            ("tidegate.tokenizer".to_owned(), self.info.tokenizer.clone()),
            ("tidegate.learner_threads".to_owned(), self.info.learner_threads.to_string()),
            (DATA.to_owned(), data.to_text()),
        ]);
        if let Some(metrics) = &self.metrics {
            pairs.insert("tidegate.metrics".to_owned(), metrics_to_json(metrics)?);
        }
        pairs.insert(SEAL.to_owned(), UNSEALED.to_owned());
        Ok(pairs.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect())
    }

    /// Reads a footer back. `step` is the file's by its name, `notes` takes what was missing.
    ///
    /// # Errors
    /// A value that is not what it must be, a schema version that is newer than ours.
    pub(super) fn from_file(
        path: &Path,
        step: Step,
        file: &FileMetaData,
        notes: &mut Vec<String>,
    ) -> Result<(Self, Option<DataSeal>)> {
        let mut pairs = BTreeMap::new();
        for pair in file.key_value_metadata().into_iter().flatten().filter(|pair| pair.key.starts_with(PREFIX)) {
            pairs.insert(pair.key.clone(), pair.value.clone().unwrap_or_default());
        }
        let schema_version = parse(path, &pairs, "tidegate.schema_version")?.unwrap_or(0);
        if schema_version > SCHEMA_VERSION {
            let reason =
                format!("schema version {schema_version} is newer than {SCHEMA_VERSION}, the newest this program reads");
            return Err(Error::file(path, reason));
        }
        if pairs.is_empty() {
            notes.push("the footer says nothing of the run".to_owned());
        }
        let text = |key| pairs.get(key).cloned().unwrap_or_default();
        let info = FooterInfo {
            spec: text("tidegate.spec"),
            model: text("tidegate.model"),
            tokenizer: text("tidegate.tokenizer"),
            learner_threads: parse(path, &pairs, "tidegate.learner_threads")?.unwrap_or(0),
        };
        let step = parse(path, &pairs, "tidegate.step")?.unwrap_or(step);
        let metrics = pairs.get("tidegate.metrics").map(|json| metrics_from_json(json)).transpose();
        let metrics = metrics.map_err(|e| Error::file(path, format!("tidegate.metrics in the footer: {e}")))?;
        let data = pairs.get(DATA).and_then(|text| DataSeal::from_text(text));
        Ok((Footer { schema_version, step, info, metrics }, data))
    }
}

fn parse<T: std::str::FromStr>(path: &Path, pairs: &BTreeMap<String, String>, key: &str) -> Result<Option<T>> {
    let refused = |value: &String| Error::file(path, format!("{key} in the footer is {value:?}, expected a number"));
    pairs.get(key).map(|value| value.parse().map_err(|_| refused(value))).transpose()
}

/// The fields of a step's metrics, by name. TOML's values and not JSON's, since JSON has no NaN.
pub(super) fn metrics_fields(metrics: &Metrics) -> Result<toml::Table, String> {
    toml::Table::try_from(metrics).map_err(|e| e.to_string())
}

fn metrics_to_json(metrics: &Metrics) -> Result<String, String> {
    let mut object = Map::new();
    for (key, value) in metrics_fields(metrics)? {
        let value = match value {
            toml::Value::Float(x) if !x.is_finite() => Value::String(x.to_string()),
            other => serde_json::to_value(other).map_err(|e| e.to_string())?,
        };
        object.insert(key, value);
    }
    Ok(Value::Object(object).to_string())
}

fn metrics_from_json(json: &str) -> Result<Metrics, String> {
    let object: Map<String, Value> = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let mut fields = toml::Table::new();
    for (key, value) in object {
        let value = match value {
            Value::Null => toml::Value::Float(f64::NAN),
            // No metric is a text: this is a number that JSON cannot write.
            Value::String(text) => toml::Value::Float(text.parse().map_err(|e| format!("{key} = {text:?}: {e}"))?),
            other => toml::Value::try_from(other).map_err(|e| format!("{key}: {e}"))?,
        };
        fields.insert(key, value);
    }
    fields.try_into().map_err(|e: toml::de::Error| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_come_back_also_where_they_are_not_finite() {
        let metrics = Metrics {
            step: 42,
            tokens: i64::MAX as u64,
            loss: 0.1 + 0.2,
            entropy: f64::INFINITY,
            ess: 1.0,
            lr: f64::NEG_INFINITY,
            finished_ns: -5,
            skipped: true,
            weights: vec![("a.weight".to_owned(), "00ff".to_owned()), ("b\0".to_owned(), String::new())],
            ..Metrics::default()
        };
        assert_eq!(metrics_from_json(&metrics_to_json(&metrics).unwrap()).unwrap(), metrics);
        let odd = Metrics { grad_norm: f64::NAN, ..Metrics::default() };
        assert!(metrics_from_json(&metrics_to_json(&odd).unwrap()).unwrap().grad_norm.is_nan());
        assert!(metrics_to_json(&Metrics { tokens: u64::MAX, ..Metrics::default() }).is_err());
    }

    #[test]
    fn metrics_of_other_writers_are_read_and_nonsense_is_not() {
        let read = metrics_from_json(r#"{"step": 7, "loss": 1, "ess": null, "of_tomorrow": [1, 2]}"#).unwrap();
        assert_eq!((read.step, read.loss), (7, 1.0));
        assert!(read.ess.is_nan());
        for bad in ["", "[]", r#"{"step": "many"}"#, r#"{"step": 1.5}"#] {
            assert!(metrics_from_json(bad).is_err(), "{bad}");
        }
    }
}
