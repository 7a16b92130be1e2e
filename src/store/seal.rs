//! Seals: hashes in a file of the log that cover every byte of it.
//!
//! Parquet's own page checksums are optional, this program's library does not write them, and nothing covers a footer: one
//! flipped bit would be read as another token, or as a column of another name. So the footer holds the hash of everything
//! before it (`tidegate.data`), and its own with this one value as zeros (`tidegate.seal`), which is filled in last.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Key of the footer's own hash.
pub(super) const SEAL: &str = "tidegate.seal";
/// What stands there until the footer is written: as long as the hash.
pub(super) const UNSEALED: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// How `created_by` of our files begins. Another tool that rewrites one may keep the key-values; they do not seal its bytes.
const CREATOR: &str = "tidegate version ";
/// `created_by` of our files.
pub(super) const CREATED_BY: &str = concat!("tidegate version ", env!("CARGO_PKG_VERSION"));
/// Length of the footer (little-endian) and magic, at the end of every Parquet file.
const TRAILER: u64 = 8;

/// A sink that hashes what it passes on.
pub(super) struct Hashed<W> {
    sink: W,
    length: u64,
    hasher: blake3::Hasher,
}

impl<W: Write> Hashed<W> {
    pub(super) fn new(sink: W) -> Self {
        Hashed { sink, length: 0, hasher: blake3::Hasher::new() }
    }

    /// Length and hash of the bytes so far.
    pub(super) fn seal(&self) -> DataSeal {
        DataSeal { length: self.length, hash: self.hasher.finalize() }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// Length and hash of the bytes before the footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DataSeal {
    length: u64,
    hash: blake3::Hash,
}

impl DataSeal {
    pub(super) fn to_text(&self) -> String {
        format!("{} {}", self.length, self.hash)
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        let (length, hash) = text.split_once(' ')?;
        Some(DataSeal { length: length.parse().ok()?, hash: blake3::Hash::from_hex(hash).ok()? })
    }

    /// Checks the file's data.
    ///
    /// # Errors
    /// Data that are not those that were written.
    pub(super) fn verify(&self, path: &Path, mut file: &File) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let hashed = file.rewind().and_then(|()| hasher.update_reader(file.take(self.length)).map(|_| ()));
        hashed.map_err(|e| Error::file(path, e))?;
        match hasher.finalize() == self.hash {
            true => Ok(()),
            false => Err(Error::file(path, "damaged: its rows do not match their seal")),
        }
    }
}

/// Fills the seal of a file's footer in; the file is complete but for it.
pub(super) fn seal_footer(file: &mut File) -> io::Result<()> {
    let Some(Footer { bytes, seal: Some(seal), end }) = Footer::read(file)? else {
        return Err(io::Error::other("the footer that was just written has no place for its seal"));
    };
    let hash = blake3::hash(&bytes).to_hex();
    let start = end - bytes.len() as u64;
    file.seek(SeekFrom::Start(start + seal as u64))?;
    file.write_all(hash.as_bytes())
}

/// Checks a footer before anything is made of it. Says whether it has a seal that holds; files of other writers have none.
///
/// # Errors
/// A footer that is not the one that was written.
pub(super) fn verify_footer(path: &Path, file: &mut File) -> Result<bool> {
    let Some(mut footer) = Footer::read(file).map_err(|e| Error::file(path, e))? else { return Ok(false) };
    let ours = footer.bytes.windows(CREATOR.len()).any(|window| window == CREATOR.as_bytes());
    let Some(seal) = footer.seal.filter(|_| ours) else { return Ok(false) };
    let place = &mut footer.bytes[seal..seal + UNSEALED.len()];
    let found = place.to_vec();
    place.copy_from_slice(UNSEALED.as_bytes());
    match blake3::hash(&footer.bytes).to_hex().as_bytes() == found {
        true => Ok(true),
        false => Err(Error::file(path, "damaged: its footer does not match its seal")),
    }
}

struct Footer {
    bytes: Vec<u8>,
    /// Where in `bytes` the seal's value is.
    seal: Option<usize>,
    /// Where in the file the footer ends.
    end: u64,
}

impl Footer {
    /// The raw footer, or None where the file has no sensible end (Parquet's own reader then says what is wrong).
    fn read(file: &mut File) -> io::Result<Option<Self>> {
        let length = file.seek(SeekFrom::End(0))?;
        let Some(end) = length.checked_sub(TRAILER) else { return Ok(None) };
        let mut size = [0; 4];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut size)?;
        let Some(start) = end.checked_sub(u32::from_le_bytes(size).into()) else { return Ok(None) };
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(end - start).read_to_end(&mut bytes)?;
        let seal = find_seal(&bytes);
        Ok(Some(Footer { bytes, seal, end }))
    }
}

/// The value behind the key, in Thrift's compact protocol: after the key's bytes comes the header of the next field (a string,
/// 0x18) and the value's length (64, one byte).
fn find_seal(footer: &[u8]) -> Option<usize> {
    let key = [SEAL.as_bytes(), &[0x18, UNSEALED.len() as u8]].concat();
    let start = footer.windows(key.len()).rposition(|window| window == key)? + key.len();
    (start + UNSEALED.len() <= footer.len()).then_some(start)
}
