//! Writing the rollout log: one Parquet file a sealed step, visible all or nothing.

use super::encode::encode;
use super::encodings::{Floats, properties};
use super::file::{ROWS_AT_ONCE, TOKENS_AT_ONCE};
use super::footer::{FileFooter, Footer, FooterInfo};
use super::layout::{LogFile, RunFolder};
use super::reader::read_step;
use super::room::Room;
use super::schema::{SCHEMA_VERSION, schema};
use super::seal::{Hashed, seal_footer};
use super::size;
use crate::durable::write_sealed;
use crate::error::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use std::collections::HashSet;
use std::error;
use std::fs::File;
use std::path::Path;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Rollout, SealedStep, Status, Step};
use tidegate_operators::seal::Log;

/// The run's log in Parquet files.
#[derive(Debug)]
pub struct ParquetLog {
    folder: RunFolder,
    info: FooterInfo,
    room: Option<Room>,
}

impl ParquetLog {
    /// A log in `folder`, whose files all say `info` in their footers.
    pub fn new(folder: RunFolder, info: FooterInfo) -> Self {
        ParquetLog { folder, info, room: None }
    }

    /// Where the disk is full, waits for room instead of failing.
    #[must_use]
    pub fn waits(mut self, room: Room) -> Self {
        self.room = Some(room);
        self
    }

    fn write(&self, mut sealed: SealedStep) -> Result<()> {
        let file = match sealed.metrics {
            Some(_) => LogFile::Step(sealed.step),
            None => LogFile::Tail(sealed.step),
        };
        let path = self.folder.log_file(file);
        if sealed.metrics.is_some() {
            let files = self.folder.log_files()?;
            if let Some(file) = files.into_iter().find(|file| file.steps().contains(&sealed.step)) {
                let path = self.folder.log_file(file);
                let why = format!("step {} is sealed already; a sealed step is never written again", sealed.step);
                return Err(Error::file(path, why));
            }
        } else if path.exists() {
            // A resumed run that ended before its next step: what waited comes again, groups that were discarded do not.
            let here: HashSet<u64> = sealed.rollouts.iter().map(|row| row.group.number).collect();
            let earlier = read_step(&path)?.rollouts;
            for group in earlier.chunk_by(|a, b| a.group.number == b.group.number) {
                let done = group.iter().all(|row| matches!(row.status, Status::Discarded(_)));
                if done && !here.contains(&group[0].group.number) {
                    sealed.rollouts.extend_from_slice(group);
                }
            }
        }
        let footer =
            Footer { schema_version: SCHEMA_VERSION, step: sealed.step, info: self.info.clone(), metrics: sealed.metrics };
        let attempt = || {
            // Until the file has its name, no compaction may put another folder in the place of this one.
            let _sealing = self.folder.sealing();
            write_sealed(&path, |file| write_file(file, &sealed.rollouts, &footer))
        };
        let Some(room) = &self.room else { return attempt() };
        let needs = size::of_rollouts(&sealed.rollouts).expected;
        room.wait_for(&self.folder.rollouts(), &format!("step {}", sealed.step), needs, attempt)
    }
}

impl Log for ParquetLog {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        self.write(step).map_err(|e| Fault::new("seal", e))
    }
}

/// Writes rollouts that belong to no step, as a file of their own with the columns of the log, all or nothing; a file of that name is
/// replaced. It reads as the tail of a run before `step`.
///
/// # Errors
/// A number that its column cannot hold; a disk that refuses.
pub fn write_rollouts(path: &Path, step: Step, info: FooterInfo, rollouts: &[Rollout]) -> Result<()> {
    let footer = Footer { schema_version: SCHEMA_VERSION, step, info, metrics: None };
    write_sealed(path, |file| write_file(file, rollouts, &footer))
}

fn write_file(file: &mut File, rollouts: &[Rollout], footer: &Footer) -> Result<(), Box<dyn error::Error>> {
    let floats = Floats::for_values(rollouts.iter().flat_map(|row| row.logp_behavior.iter().copied()));
    let mut writer = ArrowWriter::try_new(Hashed::new(&mut *file), schema(), Some(properties(floats)))?;
    for rows in pieces(rollouts) {
        writer.write(&encode(rows)?)?;
    }
    finish(writer, &FileFooter::of_one(footer, rollouts.len() as u64)?)?;
    Ok(seal_footer(file)?)
}

/// Rollouts that are turned into columns at once, one or more: bounds the copy of a step that the writer holds.
fn pieces(mut left: &[Rollout]) -> impl Iterator<Item = &[Rollout]> {
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = |row: &&Rollout| {
            let fits = tokens < TOKENS_AT_ONCE;
            tokens += row.tokens.len();
            fits
        };
        let (piece, rest) = left.split_at(left.iter().take(ROWS_AT_ONCE).take_while(fits).count());
        left = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Writes the footer; the place of its seal is still empty.
pub(super) fn finish(mut writer: ArrowWriter<Hashed<&mut File>>, footer: &FileFooter) -> Result<(), ParquetError> {
    writer.flush()?;
    writer.sync()?;
    for pair in footer.to_pairs(&writer.inner().seal()) {
        writer.append_key_value_metadata(pair);
    }
    writer.close().map(|_| ())
}
