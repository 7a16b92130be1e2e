//! The emulation: accelerators that sleep for the time that work would take, so that a run's real workers, operators, admission and log
//! can be measured with more accelerators than anybody has at hand.
//!
//! ```text
//! device      how long a piece of work takes, and the sleep that stands for it
//! generator   a generating accelerator: a decode step of h rollouts is one sleep
//! learner     the training accelerators together: a micro-batch of them is one sleep
//! engine      makes them, and keeps their state in files
//! ```
//!
//! There is no model: tokens are drawn evenly from the toy's vocabulary, a rollout ends where a distribution of lengths says, and the
//! weights are a digest of all that was trained, which tells two runs apart as real weights would. It is a third engine behind the same
//! [contract](super::contract): the dataflow does not know.

pub mod device;
pub mod engine;
pub mod generator;
pub mod learner;

pub use device::{Device, Emulated, Pieces};
pub use engine::{EmulatedEngine, EmulatedWeights};
