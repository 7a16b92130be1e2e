//! One file of the log, open: its footer, and its rows by step, a batch of them in memory at a time.

use super::decode::{Decoder, check};
use super::footer::FileFooter;
use super::guard::guarded;
use super::layout::LogFile;
use super::pages;
use super::reader::StepFile;
use super::seal::{DataSeal, verify_footer};
use crate::error::{Error, Result};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use std::fs::File;
use std::path::{Path, PathBuf};
use tidegate_operators::record::Step;

/// Rows that are in memory at once.
const ROWS_AT_ONCE: usize = 256;

/// A file whose footer was read and, where it has one, whose footer's seal holds. It stays readable when its name is gone.
pub(super) struct OpenFile {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    footer: FileFooter,
    /// Whether this program wrote it, and nobody has since.
    sealed: bool,
    /// The seal of its rows, until it was checked.
    unchecked: Option<DataSeal>,
    notes: Vec<String>,
    cursor: Option<Cursor>,
}

/// Which columns of a file are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Columns {
    /// Those of a rollout.
    Known,
    /// Those that this program does not know as well.
    All,
}

/// Where the reading of a file has come to, so that the next step goes on from there.
struct Cursor {
    columns: Columns,
    batches: ParquetRecordBatchReader,
    /// The row of the file that comes next.
    row: u64,
    /// What of the last batch is of later steps.
    rest: Option<RecordBatch>,
}

impl OpenFile {
    /// Opens a file of the log.
    ///
    /// # Errors
    /// One that is missing, damaged as far as its footer shows it, no Parquet file, or of other steps than its name says.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = LogFile::from_path(path);
        let by_name = name.map_or(0, |name| match name {
            LogFile::Step(step) | LogFile::Tail(step) | LogFile::Merged { first: step, .. } => step,
        });
        let (file, metadata, sealed) = open(path)?;
        let mut notes = Vec::new();
        let (footer, seal) = FileFooter::from_file(path, by_name, metadata.metadata().file_metadata(), &mut notes)?;
        let expected = name.map(|name| if let LogFile::Tail(step) = name { step..=step } else { name.steps() });
        if expected.is_some_and(|steps| steps != footer.steps()) {
            // A copy under another name would count twice.
            let (first, last) = footer.steps().into_inner();
            let steps = if first == last { format!("step {first}") } else { format!("steps {first} to {last}") };
            return Err(Error::file(path, format!("its footer says that it is of {steps}")));
        }
        let unchecked = seal.filter(|_| sealed);
        let sealed = unchecked.is_some();
        Ok(OpenFile { path: path.to_owned(), file, metadata, footer, sealed, unchecked, notes, cursor: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn footer(&self) -> &FileFooter {
        &self.footer
    }

    /// Whether this program wrote it, and nobody has since, as far as the footer shows it.
    pub(super) fn sealed(&self) -> bool {
        self.sealed
    }

    /// Its columns, unknown ones too.
    pub(super) fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// Checks the seal of the rows, once.
    ///
    /// # Errors
    /// A damaged file.
    pub(super) fn verify(&mut self) -> Result<()> {
        if let Some(seal) = &self.unchecked {
            seal.verify(&self.path, &mut self.file)?;
        }
        self.unchecked = None;
        Ok(())
    }

    /// The rows of one step and what the footer says of it. Cheapest in the order of the file.
    ///
    /// # Errors
    /// A damaged file; a column or value that is not the log's.
    pub(super) fn step(&mut self, step: Step) -> Result<StepFile> {
        let footer = self.footer.of(&self.path, step)?;
        let mut notes = self.notes.clone();
        check(&self.path, self.metadata.schema(), &mut notes)?;
        let path = self.path.clone();
        let mut decoder = Decoder::new(&path, self.footer.rows_of(step).start);
        self.rows(step, Columns::Known, |batch| decoder.decode(batch))?;
        Ok(StepFile { rollouts: decoder.rollouts, path, footer, notes })
    }

    /// Hands on the rows of one step with all their columns, a few at a time. Cheapest in the order of the file.
    ///
    /// # Errors
    /// A damaged file; what `take` returned.
    pub(super) fn batches(&mut self, step: Step, take: impl FnMut(&RecordBatch) -> Result<()>) -> Result<()> {
        self.rows(step, Columns::All, take)
    }

    fn rows(&mut self, step: Step, columns: Columns, take: impl FnMut(&RecordBatch) -> Result<()>) -> Result<()> {
        self.verify()?;
        let range = self.footer.rows_of(step);
        if range.is_empty() {
            return Ok(());
        }
        let here = self.cursor.take().filter(|cursor| (cursor.columns, cursor.row) == (columns, range.start));
        let mut cursor = match here {
            Some(cursor) => cursor,
            None => self.cursor_at(range.start, columns)?,
        };
        cursor.take_rows(&self.path, range.end - range.start, take)?;
        self.cursor = Some(cursor);
        Ok(())
    }

    fn cursor_at(&self, row: u64, columns: Columns) -> Result<Cursor> {
        // Row groups before the row are not touched.
        let mut skipped = 0;
        let groups = self.metadata.metadata().row_groups().iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0));
        let first = groups.take_while(|rows| {
            let before = skipped + rows <= row;
            skipped += if before { *rows } else { 0 };
            before
        });
        let groups = first.count()..self.metadata.metadata().num_row_groups();
        let offset = usize::try_from(row - skipped).unwrap_or(usize::MAX);
        let mask = match columns {
            Columns::Known => {
                let known = check(&self.path, self.metadata.schema(), &mut Vec::new())?;
                ProjectionMask::roots(self.metadata.parquet_schema(), known)
            }
            Columns::All => ProjectionMask::all(),
        };
        if !self.sealed {
            pages::check(&self.path, &self.file, self.metadata.metadata(), groups.clone())?;
        }
        let file = self.file.try_clone().map_err(|e| Error::file(&self.path, e))?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        let builder = builder.with_projection(mask).with_batch_size(ROWS_AT_ONCE).with_row_groups(groups.collect());
        // An offset of 0 would still be a selection of rows, which is read more slowly.
        let builder = if offset == 0 { builder } else { builder.with_offset(offset) };
        let batches = guarded(&self.path, || builder.build())?;
        Ok(Cursor { columns, batches, row, rest: None })
    }
}

impl Cursor {
    fn take_rows(&mut self, path: &Path, rows: u64, mut take: impl FnMut(&RecordBatch) -> Result<()>) -> Result<()> {
        let mut left = usize::try_from(rows).unwrap_or(usize::MAX);
        self.row += rows;
        while left > 0 {
            let batch = match self.rest.take() {
                Some(batch) => batch,
                None => guarded(path, || self.batches.next().transpose())?
                    .ok_or_else(|| Error::file(path, format!("damaged: {left} rows fewer than its footer says")))?,
            };
            let now = left.min(batch.num_rows());
            if now < batch.num_rows() {
                self.rest = Some(batch.slice(now, batch.num_rows() - now));
            }
            take(&if now < batch.num_rows() { batch.slice(0, now) } else { batch })?;
            left -= now;
        }
        Ok(())
    }
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
