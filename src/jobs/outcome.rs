//! `summary.json`: what a run came to, kept in its folder for those who read it later.

use crate::durable::write_sealed;
use crate::error::{Error, Result};
use crate::jobs::emulation::Emulation;
use crate::jobs::eval::Evaluation;
use crate::jobs::summary::Summary;
use crate::store::RunFolder;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is written: the summary as `run --json` prints it, and the model in a few words.
#[derive(Serialize)]
struct Written<'a> {
    model: &'a str,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// What is read again. Keys that an older file lacks have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Told {
    pub model: String,
    pub training_s: f64,
    pub before: Option<Answers>,
    pub after: Option<Answers>,
    pub generators: Vec<Busy>,
    /// Of accelerators that are emulated.
    pub emulation: Option<Emulation>,
}

/// Held-out success, sampled and greedy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Answers {
    pub sampled: Evaluation,
    pub greedy: Evaluation,
}

/// What a generator did with its time, as shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Busy {
    pub worker: usize,
    pub sampled: f64,
    pub idle: f64,
}

fn path(run: &Path) -> PathBuf {
    run.join("summary.json")
}

/// Keeps what a run came to. One that was gone on with keeps the answers from before its first part.
///
/// # Errors
/// A disk that refuses.
pub fn write(folder: &RunFolder, summary: &Summary, model: &str) -> Result<()> {
    let path = path(folder.path());
    let failed = |e: serde_json::Error| Error::file(&path, e);
    let mut written = serde_json::to_value(Written { model, summary }).map_err(failed)?;
    if summary.before.is_none()
        && let Some(before) = read(folder.path()).and_then(|told| told.before)
    {
        written["before"] = serde_json::to_value(before).map_err(failed)?;
    }
    let text = serde_json::to_string_pretty(&written).map_err(failed)?;
    write_sealed(&path, |file| writeln!(file, "{text}"))
}

/// What a run's folder tells of it: None where it tells nothing, or nothing that can be read.
pub fn read(run: &Path) -> Option<Told> {
    serde_json::from_str(&fs::read_to_string(path(run)).ok()?).ok()
}
