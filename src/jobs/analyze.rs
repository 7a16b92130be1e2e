//! `tidegate analyze`: what a run was like, from its Parquet files alone.
//!
//! A few rows are in memory at a time, on each of a few threads, and what is kept of them does not grow with the number of steps:
//! sums, the few longest and most surprising rollouts, and a line each for at most [`MAX_PROMPTS`] prompts. A run that is still being written may be
//! read: what is sealed is whole. Compacted or not, the report is the same but for the number of files.

mod collect;
mod kept;
mod lag;
mod limits;
mod report;
mod sizes;
mod sums;
mod text;
mod values;

pub use kept::MAX_PROMPTS;
pub(crate) use kept::{logp_mean, readable};
pub(crate) use lag::{Lags, MAX_LAG_TOLD};
pub(crate) use limits::LagLimits;
pub use report::{Interval, LagRow, Report, RunReport, Solved};

use crate::error::{Error, Result};
use crate::jobs::Output;
use crate::store::view::Row;
use crate::store::{Footer, LogReader, Part, RunFolder, Viewed, scan};
use collect::{Bars, Collector, Source, Summed};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

/// Threads that read a log: beyond these the disk is what takes time, and each has some tens of megabytes in memory.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(15);

/// What becomes of a damaged file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SkipBad {
    /// It is named and the command fails.
    #[default]
    No,
    /// It is named, left out and counted.
    Yes,
}

/// What to analyse, and how to say it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders of runs, or single files of a rollout log.
    pub runs: Vec<PathBuf>,
    pub skip_bad: SkipBad,
    pub output: Output,
}

/// Analyses the runs and writes the report.
///
/// # Errors
/// A folder that holds no run; a file that is damaged or no rollout log, unless such are skipped; an `out` that refuses.
pub fn analyze(options: &Options, out: &mut dyn Write) -> Result<()> {
    let text = told(&report(&options.runs, options.skip_bad)?, options.output)?;
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Error::file("stdout", e))
}

/// A report as it is printed, with a newline at its end.
///
/// # Errors
/// None that is known: JSON that cannot be made.
pub fn told(report: &Report, output: Output) -> Result<String> {
    match output {
        Output::Text => Ok(text::render(report)),
        Output::Json => Ok(serde_json::to_string_pretty(report).map_err(|e| Error::file("stdout", e))? + "\n"),
    }
}

/// The report that [`analyze`] writes.
///
/// # Errors
/// As [`analyze`].
pub fn report(runs: &[PathBuf], skip_bad: SkipBad) -> Result<Report> {
    let threads = threads();
    let report = |run: &PathBuf| report_beside(run, skip_bad, threads, |_, ()| {});
    Ok(Report { runs: runs.iter().map(report).collect::<Result<_>>()? })
}

/// How many threads read a log.
pub(crate) fn threads() -> NonZeroUsize {
    available_parallelism().unwrap_or(NonZeroUsize::MIN).min(MAX_THREADS)
}

/// What else is made of a part's rows, while they are read once: see [`report_beside`].
pub(crate) trait Beside: Default + Send {
    /// Of the part at `place`, of which the footer says this.
    fn begin(&mut self, place: Place, footer: &Footer);

    /// Each row that counts, and where it stands in the part.
    fn row(&mut self, at: usize, row: &Row<'_>);
}

impl Beside for () {
    fn begin(&mut self, _: Place, _: &Footer) {}

    fn row(&mut self, _: usize, _: &Row<'_>) {}
}

/// Where a part stands in a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The `index`-th of `count` parts.
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) part: Part,
}

/// The report of one run; what is made beside it of each part goes to `take`, in the order of the log.
///
/// # Errors
/// As [`analyze`].
pub(crate) fn report_beside<B: Beside>(
    run: &Path,
    skip_bad: SkipBad,
    threads: NonZeroUsize,
    mut take: impl FnMut(Place, B),
) -> Result<RunReport> {
    let mut collector = Collector::new(run);
    let log = match open(run) {
        Err(error @ (Error::File { .. } | Error::Column { .. })) if skip_bad == SkipBad::Yes && run.is_file() => {
            collector.skip(run, &error);
            return Ok(collector.finish());
        }
        log => log?,
    };
    collector.gaps(&log);
    let parts = log.parts();
    let sources: Vec<Source> = parts.iter().map(|part| source(&log, *part)).collect();
    let place = |index: usize| Place { index, count: parts.len(), part: parts[index] };
    let bars = Mutex::new(Bars::default());
    let lock = || bars.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = || lock().clone();
    let read =
        |bars: &mut Bars, index: usize, part: &mut Viewed<'_>| Summed::read::<B>(part, sources[index], place(index), bars);
    scan(&log, threads, begin, read, |index, path, summed| {
        match summed {
            _ if collector.gave_up(path) => {}
            Ok((summed, beside)) => {
                summed.raise(&mut lock(), index);
                collector.part(summed, index, parts.len());
                take(place(index), beside);
            }
            Err(error @ (Error::File { .. } | Error::Column { .. })) if skip_bad == SkipBad::Yes => {
                collector.skip(path, &error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    Ok(collector.finish())
}

/// The log of a run, or a single file of one.
pub(crate) fn open(run: &Path) -> Result<LogReader> {
    if run.is_file() { LogReader::of_file(run) } else { LogReader::open(&RunFolder::view(run)?) }
}

/// Which of a part's rows count.
fn source(log: &LogReader, part: Part) -> Source {
    match part {
        Part::Tail(step) if Some(step) != log.newest_tail() => Source::Superseded,
        Part::Step(_) | Part::Tail(_) => Source::Current,
    }
}

#[cfg(test)]
mod tests;
