//! Rows of any Parquet file as JSON objects: how prompt files are read, whatever their columns are.

use super::file::open;
use super::guard::guarded;
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

pub(super) fn to_rows(batch: &RecordBatch) -> Result<Vec<Row>, String> {
    let mut lines = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut lines);
    writer.write(batch).and_then(|()| writer.finish()).map_err(|e| e.to_string())?;
    drop(writer);
    let row = |line: &[u8]| serde_json::from_slice(line).map_err(|e| e.to_string());
    lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StructArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use arrow::json::ReaderBuilder;
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    use serde_json::json;
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    fn text(name: &str) -> Field {
        Field::new(name, DataType::Utf8, true)
    }

    fn structure(name: &str, fields: Vec<Field>) -> Field {
        Field::new(name, DataType::Struct(fields.into()), true)
    }

    #[test]
    fn a_prompt_file_with_chat_messages_keeps_its_nesting() {
        let message = structure("element", vec![text("role"), text("content")]);
        let fields = vec![
            text("data_source"),
            Field::new("prompt", DataType::List(Arc::new(message)), true),
            structure("reward_model", vec![text("ground_truth"), text("style")]),
            structure("extra_info", vec![Field::new("index", DataType::Int64, true), text("split")]),
        ];
        let schema = Arc::new(Schema::new(fields));
        let row = json!({
            "data_source": "gsm8k",
            "prompt": [{"role": "system", "content": "Think.\n\u{0}\u{1f600}"}, {"role": "user", "content": "2+3?"}],
            "reward_model": {"ground_truth": "5", "style": "rule"},
            "extra_info": {"index": 9_007_199_254_740_993i64, "split": null},
        });
        let mut decoder = ReaderBuilder::new(schema.clone()).build_decoder().unwrap();
        decoder.decode(row.to_string().as_bytes()).unwrap();
        let batch = decoder.flush().unwrap().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.parquet");
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), schema, None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let rows: Vec<_> = read_json_rows(&path).unwrap().map(|row| Value::Object(row.unwrap())).collect();
        assert_eq!(rows, [row]);
    }

    #[test]
    fn rows_before_a_damaged_page_are_given_and_the_error_ends_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("numbers.parquet");
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4096));
        let batch = RecordBatch::from(StructArray::from(vec![(Arc::new(Field::new("n", DataType::Int64, false)), numbers)]));
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1024)).build();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let middle = fs::metadata(&path).unwrap().len() / 2;
        File::options().write(true).open(&path).unwrap().write_all_at(&[0xff; 2000], middle - 1000).unwrap();
        let rows: Vec<_> = read_json_rows(&path).unwrap().collect();
        assert!(rows.len() > 1000 && rows.len() < 4096, "{}", rows.len());
        assert_eq!(rows[1000].as_ref().unwrap()["n"], 1000);
        let error = rows.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(error.contains("numbers.parquet"), "{error}");
        assert_eq!(rows.iter().filter(|row| row.is_err()).count(), 1);
    }
}
