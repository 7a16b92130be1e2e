//! The headers of a Parquet file's pages, looked at before Parquet's reader takes memory for what they say.
//!
//! A header is a Thrift struct in the compact protocol (`PageHeader` of the Parquet format). Only its sizes are of interest here:
//! what else is wrong with a page its reader says.

use crate::error::{Error, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// A page of no more bytes, or values, than this is always taken: writers before this one have counted wrongly.
const ALWAYS: u64 = 1 << 20;

/// Deepest nesting of what is passed over.
const DEPTH: u32 = 16;

/// Compares what the pages of some row groups say of themselves with what the footer says of their columns.
///
/// # Errors
/// A page that says it is larger than its column, or has more values; a header that makes no sense.
pub(super) fn check(path: &Path, file: &File, metadata: &ParquetMetaData, groups: Range<usize>) -> Result<()> {
    let columns = metadata.row_groups()[groups].iter().flat_map(|group| group.columns());
    for column in columns {
        let refuse = |e: &dyn ToString| Error::column(path, column.column_path().string(), e.to_string());
        check_column(file, column).map_err(|e| refuse(&e))?;
    }
    Ok(())
}

fn check_column(file: &File, column: &ColumnChunkMetaData) -> io::Result<()> {
    let known = |number: i64| u64::try_from(number).map_err(|_| wrong("a number below 0 in the footer"));
    let start = known(column.dictionary_page_offset().unwrap_or(column.data_page_offset()))?;
    let end = start.saturating_add(known(column.compressed_size())?);
    let (bytes, values) = (known(column.uncompressed_size())?.max(ALWAYS), known(column.num_values())?.max(ALWAYS));
    let mut headers = Headers { reader: BufReader::with_capacity(512, file), at: start };
    headers.reader.seek(SeekFrom::Start(start))?;
    while headers.at < end {
        let page = headers.page()?;
        // Each entry of a dictionary has a byte at least.
        let most = if page.dictionary { bytes } else { values };
        if page.uncompressed > bytes || page.values > most {
            let what = format!("{} bytes and {} values", page.uncompressed, page.values);
            return Err(wrong(format!("a page of {what} in a column of {bytes} and {values}")));
        }
        headers.pass_over(page.compressed)?;
    }
    Ok(())
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged: {}", what.into()))
}

/// Sizes of a page, bytes; how many values it has.
#[derive(Default)]
struct Page {
    uncompressed: u64,
    compressed: u64,
    values: u64,
    dictionary: bool,
}

/// Types of Thrift's compact protocol.
mod kind {
    pub const STOP: u8 = 0;
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const STRUCT: u8 = 12;
}

struct Headers<'a> {
    reader: BufReader<&'a File>,
    /// Bytes of the file that were read or passed over.
    at: u64,
}

impl Headers<'_> {
    fn page(&mut self) -> io::Result<Page> {
        let mut page = Page::default();
        let mut id = 0;
        loop {
            match self.field(&mut id)? {
                (_, kind::STOP) => return Ok(page),
                (2, kind::I32) => page.uncompressed = self.size()?,
                (3, kind::I32) => page.compressed = self.size()?,
                // The headers of data, of dictionaries, and of data of the second version: values come first in each.
                (which @ (5 | 7 | 8), kind::STRUCT) => {
                    page.dictionary = which == 7;
                    page.values = self.values()?;
                }
                (_, other) => self.value(other, 0)?,
            }
        }
    }

    fn values(&mut self) -> io::Result<u64> {
        let (mut values, mut id) = (0, 0);
        loop {
            match self.field(&mut id)? {
                (_, kind::STOP) => return Ok(values),
                (1, kind::I32) => values = self.size()?,
                (_, other) => self.value(other, 0)?,
            }
        }
    }

    /// The number and type of the field that comes next; `id` is the number of the one before.
    fn field(&mut self, id: &mut i64) -> io::Result<(i64, u8)> {
        let byte = self.byte()?;
        let (delta, kind) = (i64::from(byte >> 4), byte & 0xf);
        if kind != kind::STOP {
            *id = if delta == 0 { self.signed()? } else { id.saturating_add(delta) };
        }
        Ok((*id, kind))
    }

    /// Passes over a value.
    fn value(&mut self, kind: u8, depth: u32) -> io::Result<()> {
        if depth > DEPTH {
            return Err(wrong("a page header that is nested too deeply"));
        }
        match kind {
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.byte().map(drop),
            kind::I16 | kind::I32 | kind::I64 => self.unsigned().map(drop),
            kind::DOUBLE => self.pass_over(8),
            kind::BINARY => {
                let length = self.unsigned()?;
                self.pass_over(length)
            }
            kind::LIST | kind::SET => {
                let byte = self.byte()?;
                let count = if byte >> 4 == 0xf { self.unsigned()? } else { u64::from(byte >> 4) };
                // A truth value of a list has a byte of its own.
                let element = if matches!(byte & 0xf, kind::TRUE | kind::FALSE) { kind::BYTE } else { byte & 0xf };
                (0..count).try_for_each(|_| self.value(element, depth + 1))
            }
            kind::STRUCT => {
                let mut id = 0;
                loop {
                    match self.field(&mut id)?.1 {
                        kind::STOP => return Ok(()),
                        other => self.value(other, depth + 1)?,
                    }
                }
            }
            _ => Err(wrong("a page header that makes no sense")),
        }
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.reader.read_exact(&mut byte).map_err(|_| wrong("a page header that is cut"))?;
        self.at += 1;
        Ok(byte[0])
    }

    fn unsigned(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("a number without an end"))
    }

    fn signed(&mut self) -> io::Result<i64> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// A number of bytes or values, which the format holds in 32 bits.
    fn size(&mut self) -> io::Result<u64> {
        u64::try_from(self.signed()? as i32).map_err(|_| wrong("a size below 0"))
    }

    fn pass_over(&mut self, bytes: u64) -> io::Result<()> {
        let far = i64::try_from(bytes).map_err(|_| wrong("a length without sense"))?;
        self.reader.seek_relative(far)?;
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
    use arrow::datatypes::Int64Type;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
    use parquet::basic::{Compression, GzipLevel, ZstdLevel};
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use std::sync::Arc;

    fn checked(path: &Path) -> Result<()> {
        let file = File::open(path).unwrap();
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).unwrap();
        let metadata = metadata.metadata();
        check(path, &file, metadata, 0..metadata.num_row_groups())
    }

    fn written(path: &Path, compression: Compression, version: WriterVersion) {
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter((0..5000).map(|i| (i % 7 > 0).then(|| format!("text {}", i % 50)))));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
        let lists = (0..5000).map(|i| Some((0..i % 4).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        let batch = RecordBatch::try_from_iter([("texts", texts), ("numbers", numbers), ("lists", lists)]).unwrap();
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_writer_version(version)
            .set_data_page_row_count_limit(700)
            .set_write_batch_size(100)
            .set_max_row_group_row_count(Some(2000));
        let mut writer =
            ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    /// Catches a right file that is refused, whatever writes it.
    #[test]
    fn right_pages_pass() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for compression in [
                Compression::UNCOMPRESSED,
                Compression::SNAPPY,
                Compression::ZSTD(ZstdLevel::default()),
                Compression::GZIP(GzipLevel::default()),
                Compression::LZ4_RAW,
            ] {
                written(&path, compression, version);
                checked(&path).unwrap();
            }
        }
    }

    /// Catches memory that is taken because a page says so: 1.7 GB for its bytes, 5.9 GB for its values.
    #[test]
    fn pages_larger_than_their_column_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        written(&path, Compression::SNAPPY, WriterVersion::PARQUET_1_0);
        let whole = std::fs::read(&path).unwrap();
        // The dictionary of the first column: type 2, uncompressed and compressed size, its own header with the values.
        assert_eq!(whole[4..7], [0x15, 0x04, 0x15]);
        let values = 8 + whole[7..].iter().position(|byte| *byte == 0x4c).unwrap();
        for (at, says) in [(7, "a page of 2147483647 bytes"), (values + 1, " and 2147483647 values in a column of 1048576")]
        {
            let length = whole[at..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
            let mut bytes = whole.clone();
            drop(bytes.splice(at..at + length, [0xfe, 0xff, 0xff, 0xff, 0x0f]));
            std::fs::write(&path, bytes).unwrap();
            let message = checked(&path).unwrap_err().to_string();
            assert!(message.contains("a.parquet: column texts: damaged: ") && message.contains(says), "{message}");
        }
    }
}
