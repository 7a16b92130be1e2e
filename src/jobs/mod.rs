//! What each command does, one file a job, and what they share.
//!
//! * jobs: [`run`], [`sft`], [`replay`], [`analyze`];
//! * shared: [`data`] prompts, [`ports`] of the dataflow, [`rewards`], [`training`] the dataflow on its workers, [`eval`] held-out success,
//!   [`progress`] what is shown meanwhile, [`summary`] at the end, [`signals`];
//! * of replay: [`recording`] its source, [`verdict`] what it came to.

pub mod analyze;
pub mod data;
pub mod eval;
pub mod ports;
pub mod progress;
pub mod recording;
pub mod replay;
pub mod rewards;
pub mod run;
pub mod sft;
pub mod signals;
pub mod summary;
pub mod training;
pub mod verdict;

use crate::error::{Error, Result};
use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

/// How a job prints its result on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}

/// Prints a result on stdout, and a newline behind it. Whoever read enough (`| head`) is no error.
///
/// # Errors
/// A disk that is full, where stdout is a file.
pub fn print(result: impl Display) -> Result<()> {
    match writeln!(stdout(), "{result}").and_then(|()| stdout().flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::file("stdout", e)),
        _ => Ok(()),
    }
}

/// Says something on stderr. Nobody there to hear it, a terminal that is gone, ends no run.
pub fn say(talk: impl Display) {
    let _ = writeln!(stderr(), "{talk}");
}
