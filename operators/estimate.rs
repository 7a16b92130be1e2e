//! `estimate`: completes groups and gives every token its advantage.

use crate::fault::Fault;
use crate::record::{Reason, Rollout};

/// An advantage estimator.
pub trait Estimator {
    /// Fills `advantage` of a complete group's rollouts (in order of `sample`), marks those that cannot be trained as
    /// discarded, and says why none of the group may be trained, if so.
    ///
    /// # Errors
    /// Only what ends the run.
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault>;
}
