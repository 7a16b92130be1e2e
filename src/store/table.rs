//! Any row of a Parquet file by its index, however large the file is: rows are decoded in blocks, of which a few are kept.

use super::file::open;
use super::guard::guarded;
use super::pages;
use super::rows::{Row, to_rows};
use crate::error::{Error, Result};
use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector};
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Most of a block: its size as the footer gives it (encoded, before compression), bytes, and its rows.
const BLOCK_BYTES: u64 = 4 << 20;
const BLOCK_ROWS: u64 = 8192;

/// How many blocks an order may stay among.
const WINDOW: u64 = 32;

/// A file of no more than this is kept whole: any order of its rows is as good as another.
const WHOLE_BYTES: u64 = WINDOW * BLOCK_BYTES;
const WHOLE_ROWS: u64 = 1 << 20;

/// Most memory of the blocks that are kept, and so of one, bytes. Encoded rows that are much alike take far less.
const KEPT_BYTES: usize = 256 << 20;

/// Rows that are decoded at once.
const ROWS_AT_ONCE: usize = 256;

/// How the rows of a file lie, a function of its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Rows of each block; the last one may have fewer.
    pub rows: u64,
    /// How many blocks are kept.
    pub kept: u64,
}

/// The rows of a Parquet file as JSON objects, see [`read_json_rows`](super::read_json_rows).
pub struct RowTable {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    /// First row of each row group, and the number of all rows.
    starts: Vec<u64>,
    /// None for a file that is kept whole.
    blocks: Option<Blocks>,
    block_rows: u64,
    kept_bytes: usize,
    /// The newest first.
    kept: VecDeque<Block>,
    decoded: u64,
    /// Row groups whose page headers were looked at.
    checked: Vec<bool>,
}

struct Block {
    number: u64,
    batches: Vec<RecordBatch>,
    bytes: usize,
}

impl RowTable {
    /// Reads the footer of a file.
    ///
    /// # Errors
    /// A file that is missing, damaged or no Parquet file.
    pub fn open(path: &Path) -> Result<RowTable> {
        let (file, metadata, _) = open(path)?;
        let mut starts = vec![0u64];
        let mut bytes = 0u64;
        for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
            let rows = u64::try_from(group.num_rows()).ok().and_then(|rows| starts[number].checked_add(rows));
            let wrong = || Error::file(path, format!("damaged: row group {number} has {} rows", group.num_rows()));
            starts.push(rows.ok_or_else(wrong)?);
            bytes = bytes.saturating_add(u64::try_from(group.total_byte_size()).unwrap_or(0));
        }
        let (block_rows, blocks) = layout(starts[starts.len() - 1], bytes);
        let (path, kept, checked) = (path.to_owned(), VecDeque::new(), vec![false; starts.len() - 1]);
        Ok(RowTable { path, file, metadata, starts, blocks, block_rows, kept_bytes: KEPT_BYTES, kept, decoded: 0, checked })
    }

    /// How many rows the file has.
    pub fn rows(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    /// How the rows lie; None for a file that is kept whole.
    pub fn blocks(&self) -> Option<Blocks> {
        self.blocks
    }

    /// How many rows were decoded so far.
    pub fn decoded(&self) -> u64 {
        self.decoded
    }

    /// Whether the file has the column.
    pub fn has(&self, column: &str) -> bool {
        self.metadata.schema().field_with_name(column).is_ok()
    }

    /// Whether some of what a column holds is bytes, which have no text.
    pub fn holds_bytes(&self, column: &str) -> bool {
        self.metadata.schema().field_with_name(column).is_ok_and(|field| is_bytes(field.data_type()))
    }

    /// The row at `index`, from 0.
    ///
    /// # Errors
    /// A damaged file; a type that JSON cannot say; rows of which a block does not fit into memory.
    pub fn row(&mut self, index: u64) -> Result<Row> {
        if index >= self.rows() {
            return Err(Error::file(&self.path, format!("row {}: the file has {} rows", index + 1, self.rows())));
        }
        let number = index / self.block_rows;
        let at = match self.kept.iter().position(|block| block.number == number) {
            Some(at) => at,
            None => {
                let block = self.block(number)?;
                self.keep(block);
                0
            }
        };
        let mut place = (index % self.block_rows) as usize;
        for batch in &self.kept[at].batches {
            if place < batch.num_rows() {
                let rows = guarded(&self.path, || to_rows(&batch.slice(place, 1)))?;
                return rows.into_iter().next().ok_or_else(|| self.damaged(number));
            }
            place -= batch.num_rows();
        }
        Err(self.damaged(number))
    }

    fn damaged(&self, number: u64) -> Error {
        let first = number * self.block_rows + 1;
        Error::file(&self.path, format!("damaged: fewer rows than its footer says, from row {first} on"))
    }

    fn keep(&mut self, block: Block) {
        let mut bytes = block.bytes;
        self.kept.push_front(block);
        let mut fits = |block: &Block| {
            bytes += block.bytes;
            bytes <= self.kept_bytes
        };
        let keep = 1 + self.kept.iter().skip(1).map_while(|block| fits(block).then_some(())).count();
        self.kept.truncate(keep);
    }

    fn block(&mut self, number: u64) -> Result<Block> {
        let first = number * self.block_rows;
        let end = self.rows().min(first + self.block_rows);
        // Row groups that hold some of its rows; those without rows hold none.
        let from = self.starts.partition_point(|start| *start <= first) - 1;
        let to = self.starts.partition_point(|start| *start < end);
        let (skip, rows) = ((first - self.starts[from]) as usize, (end - first) as usize);
        let behind = (self.starts[to] - end) as usize;
        let selection =
            RowSelection::from(vec![RowSelector::skip(skip), RowSelector::select(rows), RowSelector::skip(behind)]);
        for group in (from..to).filter(|group| !self.checked[*group]) {
            pages::check(&self.path, &self.file, self.metadata.metadata(), group..group + 1)?;
        }
        self.checked[from..to].fill(true);
        let file = self.file.try_clone().map_err(|e| Error::file(&self.path, e))?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        let builder = builder.with_row_groups((from..to).collect()).with_row_selection(selection);
        let mut reader = guarded(&self.path, || builder.with_batch_size(ROWS_AT_ONCE).build())?;
        let mut block = Block { number, batches: Vec::new(), bytes: 0 };
        let mut found = 0;
        while let Some(batch) = guarded(&self.path, || reader.next().transpose())? {
            found += batch.num_rows();
            block.bytes += batch.get_array_memory_size();
            if block.bytes > self.kept_bytes {
                let most = self.kept_bytes >> 20;
                return Err(Error::file(&self.path, format!("rows {} to {end} take more than {most} MiB", first + 1)));
            }
            block.batches.push(batch);
        }
        self.decoded += found as u64;
        if found == rows { Ok(block) } else { Err(self.damaged(number)) }
    }
}

/// Rows of a block, and how an order has to be; from the number of all rows and their size, bytes.
fn layout(rows: u64, bytes: u64) -> (u64, Option<Blocks>) {
    let block_rows = (BLOCK_BYTES / bytes.div_ceil(rows.max(1)).max(1)).clamp(1, BLOCK_ROWS);
    let whole = rows <= WHOLE_ROWS && bytes <= WHOLE_BYTES;
    (block_rows, (!whole).then_some(Blocks { rows: block_rows, kept: WINDOW }))
}

fn is_bytes(of: &DataType) -> bool {
    match of {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => true,
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) | DataType::Map(field, _) => {
            is_bytes(field.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| is_bytes(field.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, BinaryArray, Int64Array, ListArray, StringArray, StructArray};
    use arrow::datatypes::{Field, Int64Type, Schema};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    use std::sync::Arc;
    use tempfile::TempDir;

    /// `rows` rows of a number, a text of about `width` bytes and a list, in row groups of `group` rows.
    fn written(rows: i64, group: usize, width: usize) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.parquet");
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        // Texts that differ: a dictionary would make nothing of equal ones.
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("{i:0width$}"))));
        let list = (0..rows).map(|i| Some((0..i % 4).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(list));
        let field = |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
        let columns = [("n", numbers), ("prompt", texts), ("list", lists)];
        let columns: Vec<_> = columns.into_iter().map(|(name, array)| (field(name, &array), array)).collect();
        let batch = RecordBatch::from(StructArray::from(columns));
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        (dir, path)
    }

    fn small_blocks(path: &Path, rows: u64, kept_bytes: usize) -> RowTable {
        RowTable { block_rows: rows, kept_bytes, ..RowTable::open(path).unwrap() }
    }

    /// Catches a row that is taken for its neighbour, whatever the blocks and the row groups are.
    #[test]
    fn each_row_is_where_it_stands() {
        for (group, block) in [(1000, 7), (10, 7), (7, 7), (3, 50), (1000, 1000), (1, 4)] {
            let (_dir, path) = written(101, group, 8);
            let mut table = small_blocks(&path, block, 1 << 20);
            assert_eq!(table.rows(), 101);
            for index in (0..101).rev().chain([0, 100, 50, 50]) {
                let row = table.row(index).unwrap();
                assert_eq!((row["n"].as_u64(), row["prompt"].as_str().unwrap().parse()), (Some(index), Ok(index)));
                assert_eq!(row["list"].as_array().unwrap().len() as u64, index % 4);
            }
            assert!(table.row(101).unwrap_err().to_string().ends_with("p.parquet: row 102: the file has 101 rows"));
        }
    }

    /// Catches a large file that is read whole, and an order among neighbours that decodes blocks again and again.
    #[test]
    fn only_the_blocks_that_are_asked_for_are_decoded_and_few_are_kept() {
        let (_dir, path) = written(200_000, 5000, 8);
        let mut table = small_blocks(&path, 1000, 200_000);
        for index in [150_500, 150_999, 150_000] {
            table.row(index).unwrap();
        }
        assert_eq!((table.decoded(), table.kept.len()), (1000, 1));
        let bytes = table.kept[0].bytes;
        for block in 0..50 {
            table.row(block * 1000).unwrap();
            let kept: usize = table.kept.iter().map(|block| block.bytes).sum();
            assert!(kept <= 200_000 || table.kept.len() == 1, "{kept}");
        }
        assert_eq!(table.decoded(), 51_000);
        assert_eq!(table.kept.len(), 200_000 / bytes);
        table.row(49_999).unwrap();
        assert_eq!(table.decoded(), 51_000, "the newest block was kept");
        let tight = small_blocks(&path, 1000, 1000).row(3000).unwrap_err().to_string();
        assert!(tight.contains("rows 3001 to 4000 take more than "), "{tight}");
    }

    /// Small files keep the order that they always had; large ones lie in blocks, a function of the footer.
    #[test]
    fn size_says_how_rows_lie() {
        let (_dir, path) = written(20_000, 5000, 100);
        assert_eq!(RowTable::open(&path).unwrap().blocks(), None);
        assert_eq!(layout(1 << 20, 128 << 20), (8192, None));
        assert_eq!(layout((1 << 20) + 1, 1000), (8192, Some(Blocks { rows: 8192, kept: 32 })));
        assert_eq!(layout(40_000, 160_000_000), (1048, Some(Blocks { rows: 1048, kept: 32 })));
        assert_eq!(layout(10, 1 << 40), (1, Some(Blocks { rows: 1, kept: 32 })));
        assert_eq!(layout(0, 0), (8192, None));
    }

    #[test]
    fn columns_of_bytes_are_seen_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.parquet");
        let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values([b"a", b"b"]));
        let inner = Arc::new(Field::new("inner", DataType::Binary, true));
        let outer: ArrayRef = Arc::new(StructArray::from(vec![(inner, bytes.clone())]));
        let text: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b"]));
        let columns = [("flat", bytes), ("nested", outer), ("text", text)];
        let fields: Vec<_> =
            columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let table = RowTable::open(&path).unwrap();
        let found = ["flat", "nested", "text", "none"].map(|name| (table.has(name), table.holds_bytes(name)));
        assert_eq!(found, [(true, true), (true, true), (true, false), (false, false)]);
    }
}
