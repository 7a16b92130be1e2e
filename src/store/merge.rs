//! Files of the log in a row, as one: which may be one, and the writing of it.

use super::compact::Limits;
use super::encodings::{Floats, ROWS_A_GROUP, properties};
use super::file::OpenFile;
use super::footer::{FileFooter, FooterInfo};
use super::layout::{LogFile, MOST_STEPS};
use super::seal::{Hashed, seal_footer};
use super::writer::finish;
use crate::error::{Error, Result};
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_operators::record::Step;

/// What files must share to be one: then a merged file says of each of its steps what the step's own file said.
#[derive(Debug, PartialEq)]
pub(super) struct Kind {
    schema_version: u32,
    info: FooterInfo,
    columns: SchemaRef,
}

/// A whole, sealed file that may be merged.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) file: LogFile,
    pub(super) first: Step,
    pub(super) last: Step,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Of the metrics in the footer, which a reader has in memory.
    pub(super) metrics_bytes: u64,
    pub(super) kind: Arc<Kind>,
    floats: Floats,
}

impl Source {
    /// Looks a file over, as far as its footer shows it. `known` is what another file is like. None for a file that this program did not
    /// write: nothing says that it is whole.
    ///
    /// # Errors
    /// A damaged file.
    pub(super) fn of(file: LogFile, path: &Path, known: Option<&Arc<Kind>>) -> Result<Option<Self>> {
        let open = OpenFile::open(path)?;
        if !open.sealed() {
            return Ok(None);
        }
        let footer = open.footer();
        let (first, last) = footer.steps().into_inner();
        let kind = Kind { schema_version: footer.schema_version, info: footer.info.clone(), columns: open.schema().clone() };
        let kind = known.filter(|known| ***known == kind).cloned().unwrap_or_else(|| Arc::new(kind));
        let metrics_bytes = footer.metrics.iter().flatten().map(|json| json.len() as u64).sum();
        let rows = footer.rows.iter().sum();
        let bytes = path.metadata().map_err(|e| Error::file(path, e))?.len();
        Ok(Some(Source { file, first, last, rows, bytes, metrics_bytes, kind, floats: open.floats() }))
    }
}

/// Whether the rows of a file are those that were sealed.
///
/// # Errors
/// They are not.
pub(super) fn whole(path: &Path) -> Result<()> {
    OpenFile::open(path)?.verify()
}

/// Splits sources, which are in the order of their steps, into those that become one file each. What stays alone stays as it is.
pub(super) fn plan(sources: &[Source], limits: &Limits) -> Vec<Vec<Source>> {
    let mut chunks: Vec<Vec<Source>> = Vec::new();
    for source in sources {
        match chunks.last_mut().filter(|chunk| fits(chunk, source, limits)) {
            Some(chunk) => chunk.push(source.clone()),
            None => chunks.push(vec![source.clone()]),
        }
    }
    chunks.retain(|chunk| chunk.len() > 1);
    chunks
}

fn fits(chunk: &[Source], next: &Source, limits: &Limits) -> bool {
    let Some((first, last)) = chunk.first().zip(chunk.last()) else { return true };
    let sum = |of: fn(&Source) -> u64| chunk.iter().map(of).sum::<u64>() + of(next);
    next.first == last.last + 1
        && next.kind == first.kind
        && next.last - first.first < MOST_STEPS
        && sum(|s| s.rows) <= limits.rows
        && sum(|s| s.bytes) <= limits.bytes
        && sum(|s| s.metrics_bytes) <= limits.metrics_bytes
}

/// Writes the rows of files in a row into one file in `folder`, durable and sealed; one row group is in memory. A row group ends
/// where a step does, unless the step alone is larger. Gives the file that was made.
///
/// # Errors
/// A source that is gone or damaged, a disk that refuses.
pub(super) fn merge(folder: &Path, sources: &[(Source, PathBuf)]) -> Result<LogFile> {
    let (first, last) = (sources[0].0.first, sources[sources.len() - 1].0.last);
    let kind = &sources[0].0.kind;
    let merged = LogFile::Merged { first, last };
    // As most of the rows have them.
    let repeat = sources.iter().filter(|(source, _)| source.floats == Floats::Repeat).map(|(source, _)| source.rows);
    let all: u64 = sources.iter().map(|(source, _)| source.rows).sum();
    let floats = if repeat.sum::<u64>() * 2 > all { Floats::Repeat } else { Floats::Differ };
    let path = folder.join(merged.name());
    let failed = |e: &dyn ToString| Error::file(&path, e.to_string());
    let mut options = File::options();
    let mut file = options.read(true).write(true).create_new(true).open(&path).map_err(|e| failed(&e))?;
    let made = ArrowWriter::try_new(Hashed::new(&mut file), kind.columns.clone(), Some(properties(floats)));
    let mut writer = made.map_err(|e| failed(&e))?;
    let info = kind.info.clone();
    let mut footer = FileFooter { schema_version: kind.schema_version, info, first, ..FileFooter::default() };
    for (_, path) in sources {
        let mut source = OpenFile::open(path)?;
        let rows = source.footer().rows.clone();
        for (step, rows) in source.footer().steps().zip(&rows) {
            let waiting = writer.in_progress_rows() as u64;
            if waiting > 0 && waiting + rows > ROWS_A_GROUP as u64 {
                writer.flush().map_err(|e| failed(&e))?;
            }
            source.batches(step, |batch| writer.write(batch).map_err(|e| failed(&e)))?;
        }
        footer.rows.extend(rows);
        footer.metrics.extend(source.footer().metrics.iter().cloned());
    }
    finish(writer, &footer).map_err(|e| failed(&e))?;
    seal_footer(&mut file).and_then(|()| file.sync_all()).map_err(|e| failed(&e))?;
    // What it replaces is removed for good: it must read back as what was meant to be written.
    let mut made = OpenFile::open(&path)?;
    made.verify()?;
    match *made.footer() == footer && made.schema() == &kind.columns {
        true => Ok(merged),
        false => Err(failed(&"does not read back as it was written")),
    }
}
