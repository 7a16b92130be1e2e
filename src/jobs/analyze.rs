//! `tidegate analyze`: what a run was like, from its Parquet files alone.
//!
//! A few rows are in memory at a time, on each of a few threads, and what is kept of them does not grow with the number of steps:
//! sums, the few longest and most surprising rollouts, and a line each for at most [`MAX_PROMPTS`] prompts. A run that is still being written may be
//! read: what is sealed is whole. Compacted or not, the report is the same but for the number of files.

mod collect;
mod kept;
mod lag;
mod report;
mod sizes;
mod sums;
mod text;
mod values;

pub use kept::MAX_PROMPTS;
pub use report::{Interval, LagRow, Report, RunReport};

use crate::error::{Error, Result};
use crate::jobs::Output;
use crate::store::{LogReader, Part, RunFolder, Viewed, scan};
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
    let report = report(&options.runs, options.skip_bad)?;
    let text = match options.output {
        Output::Text => text::render(&report),
        Output::Json => serde_json::to_string_pretty(&report).map_err(|e| Error::file("stdout", e))? + "\n",
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Error::file("stdout", e))
}

/// The report that [`analyze`] writes.
///
/// # Errors
/// As [`analyze`].
pub fn report(runs: &[PathBuf], skip_bad: SkipBad) -> Result<Report> {
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN).min(MAX_THREADS);
    Ok(Report { runs: runs.iter().map(|run| report_run(run, skip_bad, threads)).collect::<Result<_>>()? })
}

fn report_run(run: &Path, skip_bad: SkipBad, threads: NonZeroUsize) -> Result<RunReport> {
    let mut collector = Collector::new(run);
    let log = match open(run) {
        Err(error @ (Error::File { .. } | Error::Column { .. })) if skip_bad == SkipBad::Yes && run.is_file() => {
            collector.skip(run, &error);
            return Ok(collector.finish());
        }
        log => log?,
    };
    let sources: Vec<Source> = log.parts().into_iter().map(|part| source(&log, part)).collect();
    let bars = Mutex::new(Bars::default());
    let lock = || bars.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = || lock().clone();
    let read = |bars: &mut Bars, index: usize, part: &mut Viewed<'_>| Summed::read(part, sources[index], index, bars);
    scan(&log, threads, begin, read, |index, path, summed| {
        match summed {
            _ if collector.gave_up(path) => {}
            Ok(summed) => {
                summed.raise(&mut lock(), index);
                collector.part(summed, index, sources.len());
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
fn open(run: &Path) -> Result<LogReader> {
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
