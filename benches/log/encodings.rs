//! Each column of some files of a log by itself, in every encoding that may serve it: bytes a rollout, and nanoseconds a rollout to
//! write and to read it, the least of three rounds. From this come the encodings of the writer.
//!
//! Split bytes (`BYTE_STREAM_SPLIT`) of integers are left out: DuckDB reads them from 2.0 on only.

use crate::{Done, timed};
use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::fs::File;
use std::sync::Arc;

/// Rows of a row group, as the writer has them.
const ROWS: usize = 8192;
const ROUNDS: usize = 3;

pub fn table(files: &[&str]) -> Done {
    let (schema, columns) = columns(files)?;
    println!("| column | encoding | zstd | bytes | write, ns | read, ns |\n|---|---|---|---|---|---|");
    for (field, column) in schema.fields().iter().zip(&columns) {
        for (name, encoding) in candidates(field.data_type()) {
            for level in [1, 3] {
                let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![Arc::clone(field)])), vec![Arc::clone(column)])?;
                let mut best = [f64::INFINITY; 3];
                for _ in 0..ROUNDS {
                    let now = measure(&batch, encoding, level)?;
                    best = std::array::from_fn(|i| best[i].min(now[i]));
                }
                let [bytes, write, read] = best.map(|x| x / column.len() as f64);
                println!("| `{}` | {name} | {level} | {bytes:.2} | {write:.0} | {read:.0} |", field.name());
            }
        }
    }
    Ok(())
}

/// All rows of the files.
fn columns(files: &[&str]) -> Done<(Arc<Schema>, Vec<ArrayRef>)> {
    let mut batches = Vec::new();
    for file in files {
        for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?.with_batch_size(ROWS).build()? {
            batches.push(batch?);
        }
    }
    let schema = batches.first().ok_or("the files have no rows")?.schema();
    let column = |index| concat(&batches.iter().map(|batch| batch.column(index).as_ref()).collect::<Vec<_>>());
    let columns = (0..schema.fields().len()).map(column).collect::<Result<Vec<_>, _>>()?;
    Ok((schema, columns))
}

/// None: a dictionary.
fn candidates(of: &DataType) -> Vec<(&'static str, Option<Encoding>)> {
    let further: &[(&str, Encoding)] = match of {
        DataType::List(element) => return candidates(element.data_type()),
        DataType::Float32 => &[("split", Encoding::BYTE_STREAM_SPLIT)],
        DataType::Utf8 => &[("lengths", Encoding::DELTA_LENGTH_BYTE_ARRAY), ("prefixes", Encoding::DELTA_BYTE_ARRAY)],
        DataType::Int32 | DataType::Int64 => &[("differences", Encoding::DELTA_BINARY_PACKED)],
        DataType::Boolean => return vec![("plain", Some(Encoding::PLAIN)), ("runs", Some(Encoding::RLE))],
        _ => &[],
    };
    let further = further.iter().map(|(name, encoding)| (*name, Some(*encoding)));
    [("dictionary", None), ("plain", Some(Encoding::PLAIN))].into_iter().chain(further).collect()
}

/// Bytes, nanoseconds to write, nanoseconds to read.
fn measure(batch: &RecordBatch, encoding: Option<Encoding>, level: i32) -> Done<[f64; 3]> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(level)?))
        .set_max_row_group_row_count(Some(ROWS))
        .set_offset_index_disabled(true)
        .set_dictionary_enabled(encoding.is_none());
    let properties = match encoding {
        Some(encoding) => properties.set_encoding(encoding),
        None => properties,
    };
    let properties = properties.build();
    let (file, write) = timed(|| -> Done<(Vec<u8>, i64)> {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
        writer.write(batch)?;
        writer.flush()?;
        let pages = writer.flushed_row_groups().iter().map(|group| group.compressed_size()).sum();
        Ok((writer.into_inner()?, pages))
    });
    let (file, bytes) = file?;
    let file = bytes::Bytes::from(file);
    let (rows, read) = timed(|| -> Done<usize> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(256).build()?;
        Ok(reader.map(|batch| batch.map(|batch| batch.num_rows())).sum::<Result<usize, _>>()?)
    });
    assert_eq!(rows?, batch.num_rows());
    Ok([bytes as f64, write, read])
}
