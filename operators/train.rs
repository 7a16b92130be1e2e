//! `train`: chooses each step's batch so that the lag bound holds, and takes the gradient steps.

use crate::fault::Fault;
use crate::record::{Metrics, Rollout, Step};

/// The training half of an engine.
pub trait Learner {
    type Weights;

    /// Takes the batch of step `step`, in batch order. Rollouts that are not [`trainable`](Rollout::trainable) have no gradient.
    ///
    /// # Errors
    /// A batch that cannot be trained at all.
    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault>;

    /// One bounded piece of the step that [`begin`](Learner::begin) opened (one micro-batch, or the update). None while there
    /// is more to do.
    ///
    /// # Errors
    /// Whatever the device says.
    fn work(&mut self) -> Result<Option<Trained>, Fault>;

    /// An immutable snapshot of the newest weights.
    ///
    /// # Errors
    /// Whatever the device says.
    fn weights(&mut self) -> Result<Self::Weights, Fault>;
}

/// A finished step: the batch back, with `logp_current` filled, and what the learner measured.
#[derive(Clone, Debug)]
pub struct Trained {
    pub batch: Vec<Rollout>,
    pub metrics: Metrics,
}
