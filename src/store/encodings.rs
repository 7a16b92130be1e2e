//! How each column lies in a file, chosen by measurement: `docs/log.md` has the table, `cargo bench --bench log -- encodings` makes it.
//!
//! Every reader in use must know the encodings: split bytes (`BYTE_STREAM_SPLIT`) are for floats alone, since DuckDB reads them of
//! integers from 2.0 on only.

use super::seal::CREATED_BY;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::collections::HashSet;

/// Rows of a row group, and its bytes before compression: what a writer holds.
pub(super) const ROWS_A_GROUP: usize = 8192;
const BYTES_A_GROUP: usize = 64 << 20;

/// Log-probabilities that are looked at, to see what they are like.
const LOOKED_AT: usize = 4096;

/// What the log-probabilities of a file are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floats {
    /// Most are found once: of their four bytes only the first says something of the next one.
    Differ,
    /// Most are found again, as where a small model gives the same short answers: they are sought as they are.
    Repeat,
}

impl Floats {
    /// Of a few of the values, the first ones.
    pub(super) fn for_values(values: impl Iterator<Item = f32>) -> Self {
        let (mut seen, mut all) = (HashSet::new(), 0);
        for value in values.take(LOOKED_AT) {
            seen.insert(value.to_bits());
            all += 1;
        }
        if seen.len() * 2 < all { Floats::Repeat } else { Floats::Differ }
    }

    /// As a file has them, to write them again.
    pub(super) fn of_file(file: &ParquetMetaData) -> Self {
        let path = list("logp_behavior");
        let columns = file.row_groups().iter().flat_map(|group| group.columns());
        let split = columns
            .filter(|column| *column.column_path() == path && column.num_values() > 0)
            .any(|column| column.encodings().any(|encoding| encoding == Encoding::BYTE_STREAM_SPLIT));
        if split { Floats::Differ } else { Floats::Repeat }
    }
}

/// How a file is written.
pub(super) fn properties(floats: Floats) -> WriterProperties {
    let zstd = |level| ZstdLevel::try_new(level).map_or(Compression::UNCOMPRESSED, Compression::ZSTD);
    let mut properties = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_compression(zstd(1))
        .set_max_row_group_row_count(Some(ROWS_A_GROUP))
        .set_max_row_group_bytes(Some(BYTES_A_GROUP))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // No page index: it lies between the rows and the footer, where no seal covers it, and rows are read whole.
        .set_offset_index_disabled(true);
    let (encoding, level) = match floats {
        Floats::Differ => (Encoding::BYTE_STREAM_SPLIT, 1),
        Floats::Repeat => (Encoding::PLAIN, 3),
    };
    let logps = ["logp_behavior", "logp_current", "logp_reference", "value"].map(|name| (list(name), encoding, level));
    let ids = ["prompt_tokens", "tokens"].map(|name| (list(name), Encoding::PLAIN, 1));
    let texts = ["completion_text"].map(|name| (plain(name), Encoding::PLAIN, 1));
    let times = ["admitted_ns", "started_ns", "finished_ns", "trained_ns"].map(|name| (plain(name), Encoding::PLAIN, 1));
    let counters = ["order", "group", "prompt_id"].map(|name| (plain(name), Encoding::DELTA_BINARY_PACKED, 1));
    // A dictionary makes them smaller by two bytes a rollout and slower by half a nanosecond a token: for short rollouts.
    let runs = ["version", "advantage"].map(|name| (list(name), Encoding::PLAIN, 1));
    let runs = runs.into_iter().filter(|_| floats == Floats::Differ);
    // What is not named here has a dictionary.
    for (column, encoding, level) in logps.into_iter().chain(ids).chain(texts).chain(times).chain(counters).chain(runs) {
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column.clone(), encoding)
            .set_column_compression(column, zstd(level));
    }
    // The least and the greatest of a text or of a list's elements tell a reader nothing of which rows to take.
    let lists = [
        "prompt_tokens",
        "tokens",
        "mask",
        "logp_behavior",
        "logp_current",
        "logp_reference",
        "version",
        "value",
        "advantage",
    ];
    let texts = ["prompt_text", "answer", "meta", "completion_text"];
    for column in lists.map(list).into_iter().chain(texts.map(plain)) {
        properties = properties.set_column_statistics_enabled(column, EnabledStatistics::None);
    }
    properties.build()
}

fn plain(name: &str) -> ColumnPath {
    ColumnPath::from(name)
}

fn list(name: &str) -> ColumnPath {
    ColumnPath::from([name, "list", "element"].map(str::to_owned).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_that_come_again_are_known() {
        let floats = |all: &[f32]| Floats::for_values(all.iter().copied());
        assert_eq!(floats(&[]), Floats::Differ);
        assert_eq!(floats(&[-0.5, -0.25, -0.5, -0.125]), Floats::Differ);
        assert_eq!(floats(&[-0.5, -0.5, -0.25, -0.5, -0.5]), Floats::Repeat);
        // NaN equals nothing, and is found again all the same.
        assert_eq!(floats(&[f32::NAN; 5]), Floats::Repeat);
        // What comes after the first few thousand changes nothing.
        let late = (0..LOOKED_AT).map(|i| i as f32).chain(std::iter::repeat_n(0.0, 100_000));
        assert_eq!(Floats::for_values(late), Floats::Differ);
    }
}
