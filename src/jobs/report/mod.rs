//! Pages with pictures: of a run, of several side by side, of an experiment, of a plan. One HTML file each, which needs no network.
//!
//! * `runs` reads logs once: `sums` and `series` what pictures show, `picks` which rollouts; then again the little that
//!   is shown as it is, `shown` and `timeline`;
//! * `story` says it in sentences, `differences` what sets runs apart; `settings` means and bands over the seeds of an experiment, `divergences`
//!   those of a KL experiment, `plans` a plan;
//! * `page` writes the file, of the scripts and styles in `assets/`.

mod differences;
mod divergences;
mod page;
mod picks;
mod plans;
mod ratios;
mod runs;
mod series;
mod settings;
mod shown;
mod story;
mod sums;
mod timeline;

pub use differences::Differences;
pub use plans::PlanData;
pub use runs::RunData;
pub use settings::ExperimentData;

use crate::durable::check_place;
use crate::error::{Error, Result};
use crate::jobs::analyze::{Report, RunReport, SkipBad};
use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::Results;
use crate::jobs::{plan, say};
use crate::kernel::capacity::Job;
use serde::Serialize;
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
    pub experiment: Option<ExperimentData>,
    pub plan: Option<PlanData>,
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

/// Writes a page of an experiment: its table, and curves with means and deviations over seeds.
///
/// # Errors
/// A disk that refuses.
pub fn write_experiment(name: &str, design: &Design, cells: &[Cell], results: &Results, file: &Path) -> Result<()> {
    let experiment = ExperimentData::of(design, cells, results);
    let data = Data { title: name.to_owned(), made_by: made_by(), experiment: Some(experiment), ..Data::default() };
    write(file, &data)
}

/// Writes a page of a plan for a job: its layouts, and curves that say when a pipeline pays.
///
/// # Errors
/// A disk that refuses.
pub fn write_plan(report: &plan::Report, job: &Job, file: &Path) -> Result<()> {
    let title = format!("Plan for {} accelerators", report.accelerators);
    let plan = Some(PlanData::of(report, job));
    write(file, &Data { title, made_by: made_by(), plan, ..Data::default() })
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
