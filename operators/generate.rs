//! `generate`: samples rollouts, one token of all running ones a decode step, and takes new weights between two steps.

use crate::fault::Fault;
use crate::record::{Group, Rollout, Version};
use std::sync::Arc;

/// The sampling half of an engine.
pub trait Generator {
    type Weights;

    /// Takes newer weights; sequences that run go on with them from their next token.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    fn load(&mut self, version: Version, weights: Self::Weights) -> Result<(), Fault>;

    /// Queues the `group.size` rollouts of a group; they enter as slots get free, first come first served.
    ///
    /// # Errors
    /// Only what ends the run: a prompt that cannot be sampled comes back from [`step`](Generator::step) as refused rollouts.
    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault>;

    /// One decode step: one more token for every running rollout. Returns those that ended with it.
    ///
    /// # Errors
    /// Whatever the device says.
    fn step(&mut self) -> Result<Vec<Rollout>, Fault>;

    /// Rollouts started and not yet returned.
    fn running(&self) -> usize;
}
