//! Rows of any Parquet file as JSON objects: how prompt files are read, whatever their columns are.

use super::guard::guarded;
use super::reader::open;
use crate::error::Result;
use arrow::array::RecordBatch;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::vec;

/// Rows that are held at once.
const ROWS_AT_ONCE: usize = 256;

/// A row of a file: column names to values.
pub type Row = Map<String, Value>;

/// The rows of a Parquet file in order, a few at a time. Structs become objects, lists arrays, maps objects, times ISO 8601
/// text, bytes hexadecimal text; null and NaN become null.
///
/// # Errors
/// A file that is missing, damaged or holds a type that JSON cannot say; later ones end the rows.
pub fn read_json_rows(path: &Path) -> Result<Box<dyn Iterator<Item = Result<Row>>>> {
    let (file, metadata, _) = open(path)?;
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata).with_batch_size(ROWS_AT_ONCE);
    let batches = guarded(path, || builder.build())?;
    Ok(Box::new(JsonRows { path: path.to_owned(), batches: Some(batches), rows: Vec::new().into_iter() }))
}

struct JsonRows {
    path: PathBuf,
    /// None after the end or an error.
    batches: Option<ParquetRecordBatchReader>,
    rows: vec::IntoIter<Row>,
}

impl JsonRows {
    fn next_batch(&mut self) -> Result<Option<Vec<Row>>> {
        let Some(batches) = &mut self.batches else { return Ok(None) };
        let batch = guarded(&self.path, || batches.next().transpose())?;
        batch.map(|batch| guarded(&self.path, || to_rows(&batch))).transpose()
    }
}

impl Iterator for JsonRows {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok(row));
            }
            match self.next_batch() {
                Ok(Some(rows)) => self.rows = rows.into_iter(),
                Ok(None) => return None,
                Err(error) => {
                    self.batches = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

fn to_rows(batch: &RecordBatch) -> Result<Vec<Row>, String> {
    let mut lines = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut lines);
    writer.write(batch).and_then(|()| writer.finish()).map_err(|e| e.to_string())?;
    drop(writer);
    let row = |line: &[u8]| serde_json::from_slice(line).map_err(|e| e.to_string());
    lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(row).collect()
}
