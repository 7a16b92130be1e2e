//! Files of older writers and of other tools: read with defaults and a note, or refused by file and column.

use super::{assert_viewed, small_step, write_small};
use crate::error::{Error, Result};
use crate::store::StepFile;
use crate::store::schema::schema;
use crate::store::{LogReader, encode::encode, read_json_rows, read_step};
use arrow::array::{ArrayRef, Int32Array, NullArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Rollout, Status};

/// The rows of `small_step` as columns that a test may change.
struct Table(Vec<(String, ArrayRef)>);

impl Table {
    fn new() -> Self {
        let batch = encode(&small_step(1).rollouts).unwrap();
        Table(schema().fields().iter().map(|f| f.name().clone()).zip(batch.columns().iter().cloned()).collect())
    }

    fn column(&mut self, name: &str) -> &mut ArrayRef {
        &mut self.0.iter_mut().find(|(n, _)| n == name).unwrap().1
    }

    fn cast(mut self, name: &str, to: &DataType) -> Self {
        let column = self.column(name);
        *column = cast(column, to).unwrap();
        self
    }

    fn without(mut self, names: &[&str]) -> Self {
        self.0.retain(|(name, _)| !names.contains(&name.as_str()));
        self
    }

    fn batch(self) -> RecordBatch {
        let fields: Vec<_> = self.0.iter().map(|(n, a)| Field::new(n, a.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), self.0.into_iter().map(|(_, a)| a).collect()).unwrap()
    }

    fn read(self) -> Result<StepFile> {
        self.read_with(&[])
    }

    fn read_with(self, footer: &[(&str, &str)]) -> Result<StepFile> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("step-00000001.parquet");
        write(&path, &self.batch(), 4, footer);
        let read = read_step(&path);
        if read.is_ok() {
            assert_viewed(&mut LogReader::of_file(&path).unwrap());
        }
        read
    }
}

fn write(path: &Path, batch: &RecordBatch, rows: usize, footer: &[(&str, &str)]) {
    let pairs = footer.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), (*value).to_owned())).collect();
    let properties = WriterProperties::builder().set_key_value_metadata(Some(pairs)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    if rows > 0 {
        writer.write(&batch.slice(0, rows)).unwrap();
    }
    writer.close().unwrap();
}

fn list(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", element, true)))
}

#[test]
fn other_widths_lists_and_orders_are_read() {
    let large = DataType::LargeList(Arc::new(Field::new("item", DataType::Int64, true)));
    let mut table = Table::new()
        .cast("group", &DataType::Int32)
        .cast("step", &DataType::UInt16)
        .cast("reward", &DataType::Float64)
        .cast("prompt_text", &DataType::LargeUtf8)
        .cast("status", &DataType::Utf8View)
        .cast("task", &DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)))
        .cast("version", &large)
        .cast("tokens", &list(DataType::UInt64))
        .cast("mask", &DataType::LargeList(Arc::new(Field::new("item", DataType::Boolean, true))))
        .cast("logp_behavior", &list(DataType::Float64));
    table.0.reverse();
    let file = table.read().unwrap();
    assert_eq!(file.rollouts, small_step(1).rollouts);
    assert_eq!(file.notes, ["the footer says nothing of the run"]);
    assert_eq!(file.footer.step, 1, "by the file's name");
}

#[test]
fn unknown_columns_are_passed_over() {
    let mut table = Table::new();
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a"; 4]));
    table.0.insert(0, ("of_tomorrow".to_owned(), words));
    assert_eq!(table.read().unwrap().rollouts, small_step(1).rollouts);
}

#[test]
fn what_an_older_file_lacks_gets_its_default_and_a_note() {
    let lacking =
        ["value", "meta", "oldest", "reward_parts", "mask", "stop", "reward_error", "reward_shaped", "logp_reference"];
    let mut table = Table::new().without(&lacking);
    *table.column("answer") = Arc::new(NullArray::new(4));
    let file = table.read_with(&[("tidegate.schema_version", "0"), ("tidegate.spec", "a = 1")]).unwrap();
    let row = &file.rollouts[0];
    let whole = &small_step(1).rollouts[0];
    let expected = Rollout {
        group: row.group.clone(),
        value: Vec::new(),
        mask: Vec::new(),
        reward_parts: Vec::new(),
        reward_shaped: None,
        logp_reference: Vec::new(),
        stop: Default::default(),
        ..whole.clone()
    };
    assert_eq!(row, &expected);
    assert_eq!((row.group.oldest, &*row.group.prompt.meta, &*row.group.prompt.answer), (0, "", ""));
    assert_eq!(file.rollouts[2].reward_error, None);
    assert_eq!(file.footer.info.spec, "a = 1");
    assert_eq!(file.notes.len(), lacking.len() + 1, "{:?}", file.notes);
    assert!(file.notes.contains(&"column value is missing: its default is taken".to_owned()), "{:?}", file.notes);
}

#[test]
fn a_file_without_row_groups_has_no_rows_and_its_columns_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, &Table::new().batch(), 0, &[]);
    assert_eq!(read_step(&path).unwrap().rollouts, []);
    write(&path, &Table::new().cast("step", &DataType::Utf8).batch(), 0, &[]);
    assert!(read_step(&path).is_err());
}

#[test]
fn incompatible_types_are_refused_by_file_and_column() {
    let cases = [
        ("step", DataType::Utf8, "is Utf8, expected an integer"),
        ("group", DataType::Float64, "is Float64, expected an integer"),
        ("version", list(DataType::Utf8), "expected a list of integers"),
        ("tokens", list(DataType::Float32), "expected a list of integers"),
        ("logp_current", list(DataType::Int32), "expected a list of floats"),
        ("mask", list(DataType::Int8), "expected a list of booleans"),
        ("status", DataType::Binary, "is Binary, expected text"),
    ];
    for (column, to, reason) in cases {
        let error = Table::new().cast(column, &to).read().unwrap_err();
        assert!(matches!(&error, Error::Column { column: named, .. } if named == column), "{error}");
        let text = error.to_string();
        assert!(text.contains("step-00000001.parquet") && text.contains(reason), "{text}");
    }
    let error = Table::new().without(&["tokens"]).read().unwrap_err().to_string();
    assert!(error.contains("column tokens: is missing") && error.contains("no file of a rollout log"), "{error}");
}

#[test]
fn values_that_no_field_holds_are_refused_by_file_and_column() {
    let mut table = Table::new();
    *table.column("group") = Arc::new(Int32Array::from(vec![7, 7, -8, 9]));
    let error = table.read().unwrap_err().to_string();
    assert!(error.contains("column group: row 2") && error.contains("-8 is out of range"), "{error}");
    let mut table = Table::new();
    *table.column("due") = Arc::new(Int32Array::from(vec![Some(3), None, Some(3), Some(3)]));
    assert!(table.read().unwrap_err().to_string().contains("column due: row 1"));
    let mut table = Table::new();
    *table.column("status") = Arc::new(StringArray::from(vec!["trained", "lost", "waiting", "waiting"]));
    let error = table.read().unwrap_err().to_string();
    assert!(error.contains("column status: row 1") && error.contains("\"lost\""), "{error}");
}

#[test]
fn a_newer_schema_and_a_footer_that_makes_no_sense_are_refused() {
    let newer = Table::new().read_with(&[("tidegate.schema_version", "2")]).unwrap_err().to_string();
    assert!(newer.contains("schema version 2 is newer than 1"), "{newer}");
    let odd = Table::new().read_with(&[("tidegate.step", "many")]).unwrap_err().to_string();
    assert!(odd.contains("tidegate.step in the footer is \"many\""), "{odd}");
    let metrics = Table::new().read_with(&[("tidegate.metrics", "{")]).unwrap_err().to_string();
    assert!(metrics.contains("tidegate.metrics in the footer"), "{metrics}");
}

#[test]
fn rows_as_json_keep_their_nesting() {
    let (_dir, path) = write_small();
    let rows: Vec<_> = read_json_rows(&path).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0]["status"], Status::Trained.to_string());
    assert_eq!(rows[0]["completion_text"], "5\0\u{fffd}");
    assert_eq!(rows[0]["tokens"], serde_json::json!([1, 2, 49151]));
    assert_eq!(rows[0]["reward_parts"][1], serde_json::json!({"name": "format", "value": -0.5}));
    assert_eq!(rows[2]["reward"], serde_json::Value::Null);
}
