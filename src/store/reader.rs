//! Reading the rollout log: files of this writer, of older ones, and of other tools that rewrote them.
//!
//! Columns are found by name; their order, further columns and narrower or wider number types do not matter. What an older
//! file lacks gets its default and a note. What cannot be read is refused by file and column, and a damaged file by name: no
//! file makes this module panic.

use super::decode::{Decoder, check};
use super::footer::Footer;
use super::guard::guarded;
use super::layout::{LogFile, RunFolder};
use super::seal::verify_footer;
use crate::error::{Error, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tidegate_operators::record::{Rollout, SealedStep, Step};

/// Rows that are turned into rollouts at once.
const ROWS_AT_ONCE: usize = 256;

/// One file of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    pub path: PathBuf,
    pub footer: Footer,
    /// In the order of the file: the batch, then what was discarded.
    pub rollouts: Vec<Rollout>,
    /// What the file lacked, a sentence each; empty for a file of this writer.
    pub notes: Vec<String>,
}

impl StepFile {
    /// What was sealed.
    pub fn into_sealed(self) -> SealedStep {
        SealedStep { step: self.footer.step, rollouts: self.rollouts, metrics: self.footer.metrics }
    }
}

/// Reads a step file or a tail.
///
/// # Errors
/// [`Error::File`] for one that is missing, damaged or no Parquet file; [`Error::Column`] for one whose columns are not the log's.
pub fn read_step(path: &Path) -> Result<StepFile> {
    let (mut file, metadata, sealed) = open(path)?;
    let mut notes = Vec::new();
    let (footer, data) = Footer::from_file(path, step_of(path), metadata.metadata().file_metadata(), &mut notes)?;
    if let Some(data) = data.filter(|_| sealed) {
        data.verify(path, &mut file)?;
    }
    let columns = check(path, metadata.schema(), &mut notes)?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), columns);
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    let build = || builder.with_projection(mask).with_batch_size(ROWS_AT_ONCE).build();
    let mut batches = guarded(path, build)?;
    let mut decoder = Decoder::new(path);
    while let Some(batch) = guarded(path, || batches.next().transpose())? {
        decoder.decode(&batch)?;
    }
    Ok(StepFile { path: path.to_owned(), footer, rollouts: decoder.rollouts, notes })
}

/// Reads a file's footer only.
///
/// # Errors
/// As [`read_step`], as far as the footer shows it.
pub fn read_footer(path: &Path) -> Result<Footer> {
    let (_, metadata, _) = open(path)?;
    Ok(Footer::from_file(path, step_of(path), metadata.metadata().file_metadata(), &mut Vec::new())?.0)
}

/// Those of the run's sealed steps that are wanted, in order, one file in memory at a time. The tail is not among them.
///
/// # Errors
/// A folder that cannot be listed; each item as [`read_step`].
pub fn steps(folder: &RunFolder, wanted: RangeInclusive<Step>) -> Result<impl Iterator<Item = Result<StepFile>> + use<>> {
    let steps = folder.sealed_steps()?.into_iter().filter(|step| wanted.contains(step));
    let paths: Vec<_> = steps.map(|step| folder.log_file(LogFile::Step(step))).collect();
    Ok(paths.into_iter().map(|path| read_step(&path)))
}

/// Opens a Parquet file and reads its metadata. Types are taken from the Parquet schema alone: the Arrow schema that a writer
/// may embed adds only names for the same thing (`large_list`, `string_view`). Says too whether the footer's seal holds.
pub(super) fn open(path: &Path) -> Result<(File, ArrowReaderMetadata, bool)> {
    let mut file = File::open(path).map_err(|e| Error::file(path, e))?;
    let sealed = verify_footer(path, &mut file)?;
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = guarded(path, || ArrowReaderMetadata::load(&file, options))?;
    Ok((file, metadata, sealed))
}

fn step_of(path: &Path) -> Step {
    let name = path.file_name().map(|name| name.to_string_lossy());
    match name.and_then(|name| LogFile::from_name(&name)) {
        Some(LogFile::Step(step) | LogFile::Tail(step)) => step,
        None => 0,
    }
}
