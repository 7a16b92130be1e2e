//! The real binary from end to end, on small runs of the bundled model.
//!
//! One run is recorded once and shared: see [`harness::recorded`].

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod analyze;
mod harness;
mod prompts;
mod replay;
mod rewards;
mod run;
mod sft;
mod signals;
mod usage;
