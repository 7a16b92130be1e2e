//! The real binary from end to end, on small runs of the bundled model.
//!
//! One run is recorded once and shared: see [`harness::recorded`].

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod analyze;
mod balance;
mod beginning;
mod compaction;
mod critic;
mod curriculum;
mod disk;
mod emulation;
mod ending;
mod estimators;
mod eval;
mod experiment;
mod hard_cases;
mod harness;
mod kl;
mod plan;
mod prompts;
mod reference;
mod replay;
mod resume;
mod rewards;
mod run;
mod running;
mod safeguards;
mod schedules;
mod sft;
mod signals;
mod soak;
mod tensorboard;
mod threads;
mod usage;
