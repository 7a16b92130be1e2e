//! One file of the log, open: its footer, and its rows by step, a batch of them in memory at a time.

use super::decode::{Decoder, check};
use super::encodings::Floats;
use super::footer::FileFooter;
use super::guard::guarded;
use super::layout::LogFile;
use super::pages;
use super::positioned::Positioned;
use super::reader::StepFile;
use super::seal::{DataSeal, verify_footer};
use super::view::{Row, VIEWED, View};
use crate::error::{Error, Result};
use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_operators::record::Step;

/// Tokens that are in memory at once, more or less, and the most and the fewest rows that they may be in.
pub(super) const TOKENS_AT_ONCE: usize = 1 << 16;
pub(super) const ROWS_AT_ONCE: usize = 1 << 12;
const FEWEST_AT_ONCE: usize = 16;

/// A file whose footer was read and, where it has one, whose footer's seal holds. It stays readable when its name is gone.
pub(super) struct OpenFile {
    path: PathBuf,
    file: Positioned,
    metadata: ArrowReaderMetadata,
    footer: Arc<FileFooter>,
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
    /// Those of a [`Row`].
    Viewed,
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
        let (file, footer) = (Positioned(Arc::new(file)), Arc::new(footer));
        Ok(OpenFile { path: path.to_owned(), file, metadata, footer, sealed, unchecked, notes, cursor: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn footer(&self) -> &FileFooter {
        &self.footer
    }

    /// The same open file once more, for another thread.
    pub(super) fn share(&self) -> Self {
        OpenFile {
            path: self.path.clone(),
            file: self.file.clone(),
            metadata: self.metadata.clone(),
            footer: Arc::clone(&self.footer),
            sealed: self.sealed,
            unchecked: self.unchecked.clone(),
            notes: self.notes.clone(),
            cursor: None,
        }
    }

    /// Whether this program wrote it, and nobody has since, as far as the footer shows it.
    pub(super) fn sealed(&self) -> bool {
        self.sealed
    }

    /// What its log-probabilities are like.
    pub(super) fn floats(&self) -> Floats {
        Floats::of_file(self.metadata.metadata())
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
            seal.verify(&self.path, &self.file.0)?;
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

    /// Hands on the rows of one step, each with its place in it. Cheapest in the order of the file. Gives what the file lacks.
    ///
    /// # Errors
    /// A damaged file; a column or value that is not the log's; what `take` returned.
    pub(super) fn view(&mut self, step: Step, mut take: impl FnMut(usize, Row<'_>) -> Result<()>) -> Result<Vec<String>> {
        let mut notes = self.notes.clone();
        check(&self.path, self.metadata.schema(), &mut notes)?;
        let path = self.path.clone();
        let (first, mut place) = (self.footer.rows_of(step).start, 0);
        self.rows(step, Columns::Viewed, |batch| {
            let view = View::new(&path, first + place as u64, batch)?;
            view.rows().zip(place..).try_for_each(|(row, place)| take(place, row))?;
            place += batch.num_rows();
            Ok(())
        })?;
        Ok(notes)
    }

    /// The text of a completion, by its row's place in the step; empty where the file has none.
    ///
    /// # Errors
    /// A damaged file.
    pub(super) fn completion(&self, step: Step, place: usize) -> Result<String> {
        let Some((index, _)) = self.metadata.schema().column_with_name("completion_text") else { return Ok(String::new()) };
        let row = self.footer.rows_of(step).start + place as u64;
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), [index]);
        let builder = self.builder(row, self.metadata.clone())?.with_projection(mask).with_batch_size(1).with_limit(1);
        let mut batches = guarded(&self.path, || builder.build())?;
        let batch = guarded(&self.path, || batches.next().transpose())?;
        let batch = batch.ok_or_else(|| Error::file(&self.path, format!("damaged: no row {row}")))?;
        let texts = cast(batch.column(0), &DataType::Utf8);
        let texts = texts.map_err(|e| Error::column(&self.path, "completion_text", e.to_string()))?;
        let texts = texts.as_string::<i32>();
        Ok(texts.iter().next().flatten().unwrap_or_default().to_owned())
    }

    /// Runs of steps whose rows begin in the same row groups, with some rows each: they can be read apart.
    pub(super) fn segments(&self, rows: u64) -> Vec<RangeInclusive<Step>> {
        let mut ends = self.metadata.metadata().row_groups().iter().scan(0, |end, group| {
            *end += u64::try_from(group.num_rows()).unwrap_or(0);
            Some(*end)
        });
        let mut segments: Vec<RangeInclusive<Step>> = Vec::new();
        let (mut start, mut end) = (0, 0);
        for step in self.footer.steps() {
            match segments.last_mut() {
                Some(last) if start < end => *last = *last.start()..=step,
                _ => {
                    segments.push(step..=step);
                    let enough = start + rows;
                    end = ends.by_ref().find(|end| *end >= enough).unwrap_or(u64::MAX);
                }
            }
            start = self.footer.rows_of(step).end;
        }
        segments
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
        let metadata = match columns {
            Columns::Viewed => self.texts_in_place()?,
            Columns::Known | Columns::All => self.metadata.clone(),
        };
        let builder = self.builder(row, metadata)?.with_batch_size(self.rows_at_once());
        let schema = self.metadata.schema();
        let known = || check(&self.path, schema, &mut Vec::new());
        let mask = match columns {
            Columns::Known => ProjectionMask::roots(self.metadata.parquet_schema(), known()?),
            Columns::Viewed => {
                let viewed = known()?.into_iter().filter(|index| VIEWED.contains(&schema.field(*index).name().as_str()));
                ProjectionMask::roots(self.metadata.parquet_schema(), viewed)
            }
            Columns::All => ProjectionMask::all(),
        };
        let builder = builder.with_projection(mask);
        let batches = guarded(&self.path, || builder.build())?;
        Ok(Cursor { columns, batches, row, rest: None })
    }

    /// A reader of the rows from `row` on.
    fn builder(&self, row: u64, metadata: ArrowReaderMetadata) -> Result<ParquetRecordBatchReaderBuilder<Positioned>> {
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
        if !self.sealed {
            pages::check(&self.path, &self.file.0, self.metadata.metadata(), groups.clone())?;
        }
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.clone(), metadata);
        let builder = builder.with_row_groups(groups.collect());
        // An offset of 0 would still be a selection of rows, which is read more slowly.
        Ok(if offset == 0 { builder } else { builder.with_offset(offset) })
    }

    /// As many rows as have about so many tokens: a few long ones, or many short ones.
    fn rows_at_once(&self) -> usize {
        let groups = self.metadata.metadata().row_groups();
        let lists = groups.iter().flat_map(|group| group.columns().iter().map(|column| (column, group.num_rows())));
        let tokens = lists.filter(|(column, _)| column.column_path().parts().first().is_some_and(|name| name == "tokens"));
        // What a damaged file claims of itself changes how much is read at once, and nothing else.
        let sum = |(values, rows): (u64, u64), (v, r): (i64, i64)| {
            (values.saturating_add(u64::try_from(v).unwrap_or(0)), rows.saturating_add(u64::try_from(r).unwrap_or(0)))
        };
        let (values, rows) = tokens.map(|(column, rows)| (column.num_values(), rows)).fold((0, 0), sum);
        let a_row = usize::try_from(values.div_ceil(rows.max(1))).unwrap_or(usize::MAX);
        (TOKENS_AT_ONCE / a_row.max(1)).clamp(FEWEST_AT_ONCE, ROWS_AT_ONCE)
    }

    /// The metadata with texts as views of the pages that they stand in: one of a dictionary is not copied for each row.
    fn texts_in_place(&self) -> Result<ArrowReaderMetadata> {
        let in_place = |field: &Arc<Field>| match field.data_type() {
            DataType::Utf8 => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
            _ => Arc::clone(field),
        };
        let schema = self.metadata.schema();
        let fields: Vec<_> = schema.fields().iter().map(in_place).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        let options = ArrowReaderOptions::new().with_schema(schema);
        guarded(&self.path, || ArrowReaderMetadata::try_new(Arc::clone(self.metadata.metadata()), options))
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
