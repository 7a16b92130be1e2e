//! What a file of the log says about itself, in the key-values of its footer.
//!
//! | key | value |
//! |---|---|
//! | `tidegate.schema_version` | [`SCHEMA_VERSION`] of the writer |
//! | `tidegate.step` | the step that the file seals |
//! | `tidegate.spec` | the text of the run's `spec.toml` |
//! | `tidegate.model`, `tidegate.tokenizer` | hashes of what the run started from |
//! | `tidegate.critic`, `tidegate.reference` | of other models that it was given, if it was |
//! | `tidegate.learner_threads` | how many threads the learner had: results repeat bit for bit only with as many |
//! | `tidegate.metrics` | the step's [`Metrics`] as a JSON object; `"NaN"`, `"inf"`, `"-inf"` where a number is not finite |
//! | `tidegate.data` | length and BLAKE3 of everything before the footer |
//! | `tidegate.seal` | BLAKE3 of the footer itself, with this value as zeros |
//!
//! A merged file has, in place of `tidegate.step` and `tidegate.metrics`:
//!
//! | key | value |
//! |---|---|
//! | `tidegate.steps` | `1-40`: the first and the last of its steps |
//! | `tidegate.rows` | how many rows each of them has, in their order, which is that of the rows |
//! | `tidegate.metrics.00000042` | the metrics of step 42 |

use super::schema::SCHEMA_VERSION;
use super::seal::{DataSeal, SEAL, UNSEALED};
use crate::error::{Error, Result};
use parquet::file::metadata::{FileMetaData, KeyValue};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::str::FromStr;
use tidegate_operators::record::{Metrics, Step};

const PREFIX: &str = "tidegate.";
const STEP: &str = "tidegate.step";
const STEPS: &str = "tidegate.steps";
const ROWS: &str = "tidegate.rows";
const METRICS: &str = "tidegate.metrics";
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
    /// Hashes of the models that it was given for a critic and for a reference policy; empty where it was given none.
    pub critic: String,
    pub reference: String,
    /// Threads of the learner.
    pub learner_threads: u32,
}

/// What the log says of one step besides its rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footer {
    pub schema_version: u32,
    /// The step that was sealed; of a tail, the step that would have come.
    pub step: Step,
    pub info: FooterInfo,
    /// None for a tail, and for files that do not say.
    pub metrics: Option<Metrics>,
}

/// The footer of one file: of one step, of a tail or of several steps in a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FileFooter {
    pub(super) schema_version: u32,
    pub(super) info: FooterInfo,
    /// The step; in a merged file the first one.
    pub(super) first: Step,
    /// How many rows each step has. They stand in the file in this order.
    pub(super) rows: Vec<u64>,
    /// Metrics of each step, as JSON; None for a tail, and where the file does not say.
    pub(super) metrics: Vec<Option<String>>,
}

impl FileFooter {
    /// Of a file with one step, or of a tail.
    ///
    /// # Errors
    /// Metrics with a counter above `i64::MAX`.
    pub(super) fn of_one(footer: &Footer, rows: u64) -> Result<Self, String> {
        let metrics = footer.metrics.as_ref().map(metrics_to_json).transpose()?;
        Ok(FileFooter {
            schema_version: footer.schema_version,
            info: footer.info.clone(),
            first: footer.step,
            rows: vec![rows],
            metrics: vec![metrics],
        })
    }

    /// The steps of the file; of a tail, the one that would have come.
    pub(super) fn steps(&self) -> RangeInclusive<Step> {
        self.first..=self.first + (self.rows.len() as Step).saturating_sub(1)
    }

    /// Where in the file the rows of a step are.
    pub(super) fn rows_of(&self, step: Step) -> Range<u64> {
        let index = usize::try_from(step.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.rows.len());
        let start = self.rows[..index].iter().sum();
        start..start + self.rows.get(index).unwrap_or(&0)
    }

    /// What is said of one of the steps.
    ///
    /// # Errors
    /// Metrics that cannot be read.
    pub(super) fn of(&self, path: &Path, step: Step) -> Result<Footer> {
        let index = usize::try_from(step.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let json = self.metrics.get(index).and_then(Option::as_deref);
        let metrics = json.map(metrics_from_json).transpose();
        let metrics = metrics.map_err(|e| Error::file(path, format!("{METRICS} in the footer, step {step}: {e}")))?;
        Ok(Footer { schema_version: self.schema_version, step, info: self.info.clone(), metrics })
    }

    /// The key-values to write, with the place of the seal.
    pub(super) fn to_pairs(&self, data: &DataSeal) -> Vec<KeyValue> {
        let mut pairs = BTreeMap::from([
            ("tidegate.schema_version".to_owned(), self.schema_version.to_string()),
            ("tidegate.spec".to_owned(), self.info.spec.clone()),
            ("tidegate.model".to_owned(), self.info.model.clone()),
            ("tidegate.tokenizer".to_owned(), self.info.tokenizer.clone()),
            ("tidegate.learner_threads".to_owned(), self.info.learner_threads.to_string()),
            (DATA.to_owned(), data.to_text()),
        ]);
        for (key, given) in [("tidegate.critic", &self.info.critic), ("tidegate.reference", &self.info.reference)] {
            if !given.is_empty() {
                pairs.insert(key.to_owned(), given.clone());
            }
        }
        let merged = self.rows.len() > 1;
        if merged {
            pairs.insert(STEPS.to_owned(), format!("{}-{}", self.first, self.steps().end()));
            let rows = self.rows.iter().fold(String::new(), |mut text, rows| {
                let space = if text.is_empty() { "" } else { " " };
                let _ = write!(text, "{space}{rows}");
                text
            });
            pairs.insert(ROWS.to_owned(), rows);
        } else {
            pairs.insert(STEP.to_owned(), self.first.to_string());
        }
        for (step, json) in self.steps().zip(&self.metrics) {
            let key = if merged { metrics_key(step) } else { METRICS.to_owned() };
            pairs.extend(json.clone().map(|json| (key, json)));
        }
        pairs.insert(SEAL.to_owned(), UNSEALED.to_owned());
        pairs.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect()
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
        let mut pairs = Pairs { path, of: BTreeMap::new() };
        for pair in file.key_value_metadata().into_iter().flatten().filter(|pair| pair.key.starts_with(PREFIX)) {
            pairs.of.insert(pair.key.clone(), pair.value.clone().unwrap_or_default());
        }
        let schema_version = pairs.parse("tidegate.schema_version")?.unwrap_or(0);
        if schema_version > SCHEMA_VERSION {
            let reason =
                format!("schema version {schema_version} is newer than {SCHEMA_VERSION}, the newest this program reads");
            return Err(Error::file(path, reason));
        }
        if pairs.of.is_empty() {
            notes.push("the footer says nothing of the run".to_owned());
        }
        let mut text = |key| pairs.of.remove(key).unwrap_or_default();
        let [spec, model, tokenizer] = ["tidegate.spec", "tidegate.model", "tidegate.tokenizer"].map(&mut text);
        let [critic, reference] = ["tidegate.critic", "tidegate.reference"].map(&mut text);
        let learner_threads = pairs.parse("tidegate.learner_threads")?.unwrap_or(0);
        let info = FooterInfo { spec, model, tokenizer, critic, reference, learner_threads };
        let data = pairs.of.get(DATA).and_then(|text| DataSeal::from_text(text));
        let rows_in_file = u64::try_from(file.num_rows()).unwrap_or(0);
        let (first, rows, metrics) = match pairs.of.remove(STEPS) {
            Some(steps) => pairs.merged(&steps, rows_in_file)?,
            None => (pairs.parse(STEP)?.unwrap_or(step), vec![rows_in_file], vec![pairs.of.remove(METRICS)]),
        };
        Ok((FileFooter { schema_version, info, first, rows, metrics }, data))
    }
}

fn metrics_key(step: Step) -> String {
    format!("{METRICS}.{step:08}")
}

/// The key-values of a footer that are being read.
struct Pairs<'a> {
    path: &'a Path,
    of: BTreeMap<String, String>,
}

/// First step, rows and metrics of each.
type Parts = (Step, Vec<u64>, Vec<Option<String>>);

impl Pairs<'_> {
    fn parse<T: FromStr>(&self, key: &str) -> Result<Option<T>> {
        self.of.get(key).map(|value| value.parse().map_err(|_| self.refused(key, value, "a number"))).transpose()
    }

    fn refused(&self, key: &str, value: &str, expected: &str) -> Error {
        Error::file(self.path, format!("{key} in the footer is {value:?}, expected {expected}"))
    }

    fn merged(&mut self, steps: &str, rows_in_file: u64) -> Result<Parts> {
        let range = steps.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        let (first, last): (Step, Step) =
            range.filter(|(first, last)| first <= last).ok_or_else(|| self.refused(STEPS, steps, "FIRST-LAST"))?;
        let text = self.of.remove(ROWS).unwrap_or_default();
        let rows: Vec<u64> = text.split(' ').map_while(|number| number.parse().ok()).collect();
        let sum = rows.iter().try_fold(0u64, |sum, rows| sum.checked_add(*rows));
        if (rows.len() as u64).checked_sub(1) != Some(last - first) || sum != Some(rows_in_file) {
            let expected = format!("a number for each step from {first} to {last}, {rows_in_file} in all");
            return Err(self.refused(ROWS, &text, &expected));
        }
        let metrics = (first..=last).map(|step| self.of.remove(&metrics_key(step))).collect();
        Ok((first, rows, metrics))
    }
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
        assert_eq!((read.step, read.loss, read.left_out, read.skipped), (7, 1.0, 0, false), "older ones do not say");
        assert!(read.ess.is_nan());
        for bad in ["", "[]", r#"{"step": "many"}"#, r#"{"step": 1.5}"#] {
            assert!(metrics_from_json(bad).is_err(), "{bad}");
        }
    }
}
