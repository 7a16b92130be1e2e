//! What each command does, one file a job, and what they share.
//!
//! * jobs: [`run`], [`sft`], [`replay`], [`analyze`];
//! * shared: [`data`] prompts, [`ports`] of the dataflow, [`training`] the dataflow on its workers, [`eval`] held-out success,
//!   [`progress`] what is shown meanwhile, [`summary`] at the end, [`signals`];
//! * of replay: [`recording`] its source, [`verdict`] what it came to.

pub mod analyze;
pub mod data;
pub mod eval;
pub mod ports;
pub mod progress;
pub mod recording;
pub mod replay;
pub mod run;
pub mod sft;
pub mod signals;
pub mod summary;
pub mod training;
pub mod verdict;

/// How a job prints its result on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}
