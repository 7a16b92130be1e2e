//! What a source of prompts needs of a data file, whatever its format: rows by their index.

use super::prompts::Row;
use crate::error::Error;

/// The rows of a data file, any of which can be read on its own.
pub trait Table: Send {
    /// How many rows there are, the wrong ones included.
    fn rows(&self) -> u64;

    /// Which rows are read together.
    fn spread(&self) -> Spread;

    /// The row at `index`, from 0.
    ///
    /// # Errors
    /// See [`Unread`].
    fn row(&mut self, index: u64) -> Result<Row, Unread>;
}

/// What a row costs that lies far from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// No more than any other.
    Even,
    /// A block of so many rows is decoded at once, and so many blocks are kept: an order should stay among them for a while.
    Blocks { rows: u64, kept: u64 },
}

/// Why a row is not there.
#[derive(Debug)]
pub enum Unread {
    /// It is not as it must be. Others may be.
    Row(Error),
    /// The file cannot be read any more, whichever row.
    File(Error),
}

impl From<Unread> for Error {
    fn from(unread: Unread) -> Error {
        match unread {
            Unread::Row(error) | Unread::File(error) => error,
        }
    }
}
