//! `tidegate analyze`: what a run was like, from its Parquet files alone.
//!
//! One file is in memory at a time, and what is kept of it does not grow with the number of files: sums, the few longest and
//! most surprising rollouts, and a line each for at most [`MAX_PROMPTS`] prompts. A run that is still being written may be
//! read: what is sealed is whole.

mod collect;
mod kept;
mod lag;
mod report;
mod sums;
mod text;

pub use kept::MAX_PROMPTS;
pub use report::{Interval, LagRow, Report, RunReport};

use crate::error::{Error, Result};
use crate::jobs::Output;
use crate::store::layout::LogFile;
use crate::store::{RunFolder, StepFile, read_step};
use collect::{Collector, Source};
use std::io::Write;
use std::path::{Path, PathBuf};

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
    Ok(Report { runs: runs.iter().map(|run| report_run(run, skip_bad)).collect::<Result<_>>()? })
}

fn report_run(run: &Path, skip_bad: SkipBad) -> Result<RunReport> {
    let files = files(run)?;
    let mut collector = Collector::new(run);
    for (index, (path, source)) in files.iter().enumerate() {
        match read_step(path).and_then(|file| named(file, path)) {
            Ok(file) => collector.file(file, *source, index, files.len()),
            Err(error @ (Error::File { .. } | Error::Column { .. })) if skip_bad == SkipBad::Yes => {
                collector.skip(path, &error)
            }
            Err(error) => return Err(error),
        }
    }
    Ok(collector.finish())
}

/// A file must be of the step that its name says: a copy under another name would count twice.
fn named(file: StepFile, path: &Path) -> Result<StepFile> {
    let name = path.file_name().and_then(|name| LogFile::from_name(&name.to_string_lossy()));
    match name {
        Some(LogFile::Step(step) | LogFile::Tail(step)) if step != file.footer.step => {
            Err(Error::file(path, format!("its footer says that it is of step {}", file.footer.step)))
        }
        _ => Ok(file),
    }
}

/// Files of the log in step order, and which of their rows count.
fn files(run: &Path) -> Result<Vec<(PathBuf, Source)>> {
    if run.is_file() {
        return Ok(vec![(run.to_owned(), Source::Current)]);
    }
    let folder = RunFolder::view(run)?;
    let tail = folder.tail()?;
    let source = |file| match file {
        LogFile::Step(_) => Source::Current,
        LogFile::Tail(_) if Some(file) == tail => Source::Current,
        LogFile::Tail(_) => Source::Superseded,
    };
    Ok(folder.log_files()?.into_iter().map(|file| (folder.log_file(file), source(file))).collect())
}

#[cfg(test)]
mod tests;
