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
}

impl Frozen for ToyFrozen {
    type Weights = ToyWeights;
    type Piece = usize;

    /// A rollout each.
    fn pieces(&self, batch: &[Rollout], which: &[usize], _: usize) -> Result<Vec<usize>> {
        let vocab = self.weights.vocab;
        for rollout in which.iter().map(|&i| &batch[i]) {
            let mut ids = rollout.group.prompt.tokens.iter().chain(&rollout.tokens);
            if let Some(id) = ids.find(|&&id| id as usize >= vocab) {
                let place = format!("group {}, sample {}", rollout.group.number, rollout.sample);
                return Err(Error::engine(place, format!("id {id} is not below the vocabulary's {vocab}")));
            }
        }
        Ok(which.to_vec())
    }

    fn score(&mut self, batch: &mut [Rollout], piece: &usize) -> Result<()> {
        let rollout = &mut batch[*piece];
        let (prompt, tokens) = (&rollout.group.prompt.tokens, &rollout.tokens);
        let logp = |t: usize| {
            let row = self.weights.row(self.weights.context(prompt, &tokens[..t]));
            log_softmax(row, self.temperature)[tokens[t] as usize]
        };
        rollout.logp_reference = (0..tokens.len()).map(logp).collect();
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
