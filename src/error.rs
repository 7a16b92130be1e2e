//! What can go wrong, in words that name the file, key or column, the value, and what would be right (floor 0).

use std::path::PathBuf;
use std::{error, io};
use tidegate_operators::fault::Fault;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything a command can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong usage or configuration: exit code 2. `reason` says what would be right.
    #[error("{key} = {value}: {reason}")]
    Config { key: String, value: String, reason: String },
    /// A file that cannot be read or written as asked.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// A disk, or a quota, that is full. What was to be written is not there, and can be written once there is room.
    #[error("{}: {reason}", path.display())]
    Full { path: PathBuf, reason: String },
    /// A column of a data file that is not what it must be.
    #[error("{}: column {column}: {reason}", path.display())]
    Column { path: PathBuf, column: String, reason: String },
    /// The engine (libtorch, device) refused.
    #[error("{what}: {reason}")]
    Engine { what: String, reason: String },
    /// A fault that the dataflow reported.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Stopped by a signal, after a clean shutdown: exit code 128 + signal.
    #[error("stopped by signal {0}")]
    Signal(i32),
    /// What a comparison found to differ (replay).
    #[error("{0}")]
    Mismatch(String),
}

impl Error {
    pub fn config(key: impl Into<String>, value: impl ToString, reason: impl Into<String>) -> Self {
        Error::Config { key: key.into(), value: value.to_string(), reason: reason.into() }
    }

    pub fn file(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Error::File { path: path.into(), reason: reason.to_string() }
    }

    /// A write that failed: [`Full`](Error::Full) where `error` was caused by that.
    pub fn write(path: impl Into<PathBuf>, error: &(dyn error::Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let mut kinds = causes.filter_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
        let (path, reason) = (path.into(), error.to_string());
        if kinds.any(full) { Error::Full { path, reason } } else { Error::File { path, reason } }
    }

    pub fn column(path: impl Into<PathBuf>, column: impl Into<String>, reason: impl ToString) -> Self {
        Error::Column { path: path.into(), column: column.into(), reason: reason.to_string() }
    }

    pub fn engine(what: impl Into<String>, reason: impl ToString) -> Self {
        Error::Engine { what: what.into(), reason: reason.to_string() }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Config { .. } => 2,
            Error::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
            _ => 1,
        }
    }
}
