//! The toy's reference policy: tables that nothing trains.

use super::policy::{ToyWeights, log_softmax};
use crate::engine::contract::Frozen;
use crate::error::{Error, Result};
use tidegate_operators::record::Rollout;

/// Tables, and the temperature that what they score was sampled at.
#[derive(Clone, Debug)]
pub struct ToyFrozen {
    weights: ToyWeights,
    temperature: f32,
}

impl ToyFrozen {
    pub fn new(weights: ToyWeights, temperature: f32) -> Self {
        ToyFrozen { weights, temperature }
    }

    /// Refuses ids that the tables do not have.
    fn takes(&self, rollout: &Rollout) -> Result<()> {
        let vocab = self.weights.vocab;
        let mut ids = rollout.group.prompt.tokens.iter().chain(&rollout.tokens);
        let Some(id) = ids.find(|&&id| id as usize >= vocab) else { return Ok(()) };
        let place = format!("group {}, sample {}", rollout.group.number, rollout.sample);
        Err(Error::engine(place, format!("id {id} is not below the vocabulary's {vocab}")))
    }

    /// `[V]` log-probabilities in the place of the token `t`.
    fn distribution(&self, rollout: &Rollout, t: usize) -> Vec<f32> {
        let context = self.weights.context(&rollout.group.prompt.tokens, &rollout.tokens[..t]);
        log_softmax(self.weights.row(context), self.temperature)
    }

    /// `[T, V]` log-probabilities in the places of a rollout's tokens.
    pub(super) fn distributions(&self, rollout: &Rollout) -> Result<Vec<f32>> {
        self.takes(rollout)?;
        Ok((0..rollout.tokens.len()).flat_map(|t| self.distribution(rollout, t)).collect())
    }
}

impl Frozen for ToyFrozen {
    type Weights = ToyWeights;
    type Piece = usize;

    /// A rollout each.
    fn pieces(&self, batch: &[Rollout], which: &[usize], _: usize) -> Result<Vec<usize>> {
        which.iter().try_for_each(|&i| self.takes(&batch[i]))?;
        Ok(which.to_vec())
    }

    fn score(&mut self, batch: &mut [Rollout], piece: &usize) -> Result<()> {
        let rollout = &mut batch[*piece];
        let logp = |t: usize| self.distribution(rollout, t)[rollout.tokens[t] as usize];
        rollout.logp_reference = (0..rollout.tokens.len()).map(logp).collect();
        Ok(())
    }

    fn load(&mut self, weights: &ToyWeights) -> Result<()> {
        self.weights = weights.clone();
        Ok(())
    }

    fn library_ns(&self) -> u64 {
        0
    }
}
