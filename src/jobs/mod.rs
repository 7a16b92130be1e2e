//! What each command does, one file a job.

pub mod analyze;

/// How a job prints its result on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}
