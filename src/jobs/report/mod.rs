//! Pages with pictures: of a run, of several side by side, and of what else has one (an experiment, a plan) and says what it shows. One HTML
//! file each, which needs no network.
//!
//! * `runs` reads logs once: `sums` and `series` what pictures show, `picks` which rollouts; then again the little that
//!   is shown as it is, `shown` and `timeline`;
//! * `story` says it in sentences, `differences` what sets runs apart;
//! * `page` writes the file, of the scripts and styles in `assets/`.

mod differences;
mod page;
mod picks;
mod ratios;
mod runs;
pub mod series;
mod shown;
pub mod story;
mod sums;
mod timeline;

pub use differences::Differences;
pub use runs::RunData;

use crate::durable::check_place;
use crate::error::{Error, Result};
use crate::jobs::analyze::{Report, RunReport, SkipBad};
use crate::jobs::say;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Runs that one page can tell apart by colour.
pub const MOST_RUNS: usize = 8;

/// What a page shows.
#[derive(Debug, Default, Serialize)]
pub struct Data {
    pub title: String,
    /// What made it.
    pub made_by: String,
    pub runs: Vec<RunData>,
    /// Of two runs or more.
    pub differences: Option<Differences>,
    /// Null where it shows none.
    pub experiment: Value,
    pub plan: Value,
}

/// Reads runs and writes a page of them, one beside the other. Gives the report that [`analyze`](crate::jobs::analyze::report) would.
///
/// # Errors
/// As [`analyze`](crate::jobs::analyze::analyze); more than [`MOST_RUNS`] runs; a disk that refuses.
pub fn write_runs(runs: &[PathBuf], skip_bad: SkipBad, file: &Path) -> Result<Report> {
    if runs.len() > MOST_RUNS {
        return Err(Error::config(
            "--html",
            file.display(),
            format!("a page compares {MOST_RUNS} runs at most, not {}", runs.len()),
        ));
    }
    check_place(file)?;
    let names = runs::names(runs);
    let room = shown::TOKENS / runs.len().max(1);
    let read = |(run, name): (&PathBuf, String)| runs::read(run, name, skip_bad, room);
    let all: Vec<(RunData, RunReport)> = runs.iter().zip(names).map(read).collect::<Result<_>>()?;
    let (runs, reports): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = names.join(" and ");
    let differences = (runs.len() > 1).then(|| Differences::of(&runs, &reports));
    write(file, &Data { title, made_by: made_by(), runs, differences, ..Data::default() })?;
    Ok(Report { runs: reports })
}

/// What a page may show in place of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Its table, and curves with means and deviations over seeds.
    Experiment,
    /// Its layouts, and curves that say when a pipeline pays.
    Plan,
}

/// Writes a page of something else than runs.
///
/// # Errors
/// A disk that refuses.
pub fn write_other(file: &Path, title: String, other: Other, shown: &impl Serialize) -> Result<()> {
    let shown = serde_json::to_value(shown).map_err(|e| Error::file(file, e))?;
    let mut data = Data { title, made_by: made_by(), ..Data::default() };
    match other {
        Other::Experiment => data.experiment = shown,
        Other::Plan => data.plan = shown,
    }
    write(file, &data)
}

fn write(file: &Path, data: &Data) -> Result<()> {
    page::write(file, data)?;
    let bytes = std::fs::metadata(file).map_or(0, |found| found.len());
    say(format_args!("page      {} ({:.1} MB; open it in a browser)", file.display(), bytes as f64 / 1e6));
    Ok(())
}

fn made_by() -> String {
    format!("tidegate {}", env!("CARGO_PKG_VERSION"))
}
