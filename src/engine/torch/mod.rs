//! The torch engine: the only folder that names tch.
//!
//! * [`config`] what a model is (`keys` of its file, [`rope`] of its positions), [`layout`] where its tensors lie in one flat buffer,
//!   [`model`] its forward passes, [`attention`];
//! * [`policy`] all of a model in one hand: what jobs hold;
//! * [`checkpoint`] folders on disk, [`weights`] snapshots that travel;
//! * [`generator`] samples, over [`cache`], [`rows`] by step;
//! * [`learner`] trains: [`pack`] plans micro-batches, [`micro_batch`] computes one, over [`trees`] of what rollouts share; what it says becomes coefficients
//!   and metrics in [`tally`](crate::engine::tally), [`trail`] keeps less on the way,
//!   [`optimizer`] is AdamW; [`frozen`] is what it is to stay near; `observed` shows whole distributions;
//! * [`device`] where it all runs, [`probe`] what it reaches there, `ffi` the operations that libtorch's bindings lack (`ops/`).

pub mod attention;
pub mod cache;
pub mod checkpoint;
#[cfg(test)]
mod compare_tests;
pub mod config;
pub mod device;
pub mod engine;
mod ffi;
pub mod frozen;
pub mod generator;
mod keys;
pub mod layout;
pub mod learner;
pub mod memory;
pub mod micro_batch;
pub mod model;
pub mod moments;
mod observed;
pub mod optimizer;
pub mod pack;
pub mod policy;
pub mod probe;
#[cfg(test)]
#[path = "reference_tests.rs"]
mod reference;
pub mod rope;
pub mod rows;
pub mod trail;
pub mod trees;
pub mod weights;

use crate::error::Error;
use tch::TchError;

/// libtorch's own words, without the C++ backtrace that follows them.
impl From<TchError> for Error {
    fn from(error: TchError) -> Self {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        Error::engine("libtorch", line.trim_start_matches("Internal torch error: "))
    }
}
