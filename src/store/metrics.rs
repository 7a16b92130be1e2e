//! `metrics.parquet`: one row a step, derived from the footers of the log.

use super::footer::metrics_fields;
use super::layout::RunFolder;
use super::reader::metrics;
use super::seal::CREATED_BY;
use crate::durable::write_sealed;
use crate::error::{Error, Result};
use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::Schema;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::sync::Arc;
use tidegate_operators::record::Metrics;
use toml::Value;

/// Writes `metrics.parquet` anew: the columns are the numeric fields of [`Metrics`], `step` first, and a row is a sealed step.
///
/// # Errors
/// A step file whose footer cannot be read, or a disk that refuses.
pub fn write_metrics(folder: &RunFolder) -> Result<()> {
    let path = folder.metrics();
    let rows = metrics(folder)?.iter().map(metrics_fields).collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(|e| Error::file(&path, e))?;
    let batch = table(&rows).map_err(|e| Error::file(&path, e))?;
    let properties = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()));
    write_sealed(&path, |file| {
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()))?;
        writer.write(&batch)?;
        writer.close().map(|_| ())
    })
}

fn table(rows: &[toml::Table]) -> Result<RecordBatch, String> {
    let fields = metrics_fields(&Metrics::default())?;
    let mut names: Vec<&String> = fields.keys().collect();
    names.sort_by_key(|name| (*name != "step", (*name).clone()));
    let mut columns: Vec<(&String, ArrayRef)> = Vec::new();
    for name in names {
        let cells = || rows.iter().map(|row| row.get(name));
        let array: ArrayRef = match fields[name] {
            Value::Integer(_) => Arc::new(cells().map(|v| v?.as_integer()).collect::<Int64Array>()),
            Value::Float(_) => Arc::new(cells().map(|v| v?.as_float()).collect::<Float64Array>()),
            Value::Boolean(_) => Arc::new(cells().map(|v| v?.as_bool()).collect::<BooleanArray>()),
            _ => continue,
        };
        columns.push((name, array));
    }
    let batch = RecordBatch::try_from_iter(columns).map_err(|e| e.to_string())?;
    // Derived from the cells, a column without a hole would be called not null in one run and nullable in the next.
    let nullable = batch.schema().fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    batch.with_schema(Arc::new(Schema::new(nullable))).map_err(|e| e.to_string())
}
