//! `score`: gives each rollout its reward.

use crate::fault::Fault;
use crate::record::Rollout;

/// A reward function.
pub trait Scorer {
    /// Fills `reward` and `reward_parts`, or `reward_error`.
    ///
    /// # Errors
    /// Only what ends the run; a rollout that cannot be scored is no fault.
    fn score(&mut self, rollout: &mut Rollout) -> Result<(), Fault>;
}
