//! Measures one completion: samples it as the behavior does, with the generator that runs have, and compares each token's whole distribution
//! with the current policy's.

use crate::engine::observed::{Drawn, Observable};
use crate::error::{Error, Result};
use crate::kernel::kl::exact;
use crate::kernel::mean::Mean;
use crate::kernel::standard_error::MeanAndError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Rollout, Version};

/// What a cell came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// KL(behavior || current), nats a token: exact over the vocabulary in each place, mean over a completion's tokens, mean over
    /// completions.
    pub kl: f64,
    /// Of that mean, over completions.
    pub standard_error: Option<f64>,
    pub sequences: u64,
    pub tokens: u64,
    /// Mean lag of the tokens, steps.
    pub lag_mean: f64,
    /// Mean over the tokens of each of [`PARTS`] equal parts of the longest completion; None where there are none.
    pub kl_by_part: Vec<Option<f64>>,
}

/// Parts of a completion that are told apart.
pub const PARTS: usize = 8;

/// Who samples and who is compared with.
pub struct Policies<E: Observable> {
    /// That samples one sequence at a time, so that weights change at a token's place.
    generator: E::Generator,
    /// The current policy.
    current: E::Frozen,
    first: Version,
    /// Of the version `first` and those after it.
    weights: Vec<E::Weights>,
}

impl<E: Observable> Policies<E> {
    pub fn new(mut generator: E::Generator, current: E::Frozen, first: Version, weights: Vec<E::Weights>) -> Self {
        E::observe(&mut generator);
        Policies { generator, current, first, weights }
    }

    /// KL of each token of one completion, nats; none where the prompt was refused. The token at `position` is sampled by the weights that are
    /// `ahead(position)` versions after the first.
    ///
    /// # Errors
    /// Weights that are not there, whatever the device says.
    pub fn tokens(&mut self, group: &Arc<Group>, ahead: impl Fn(usize) -> u64) -> Result<Vec<f64>> {
        self.load(ahead(0))?;
        self.generator.start(Arc::clone(group))?;
        let (mut loaded, mut drawn, mut ended) = (ahead(0), Vec::new(), None);
        while self.generator.running() > 0 {
            if ahead(drawn.len()) != loaded {
                loaded = ahead(drawn.len());
                self.load(loaded)?;
            }
            ended = self.generator.step()?.pop();
            drawn.extend(E::drawn(&mut self.generator));
        }
        let rollout =
            ended.ok_or_else(|| Error::engine("generator", "ended without the completion that it was to sample"))?;
        if rollout.tokens.is_empty() {
            return Ok(Vec::new());
        }
        self.check(&rollout, &drawn, ahead)?;
        let current = E::distributions(&mut self.current, &rollout)?;
        let vocabulary = drawn.first().map_or(1, |drawn| drawn.logps.len());
        let rows = drawn.iter().zip(current.chunks_exact(vocabulary));
        Ok(rows.map(|(drawn, current)| exact(&drawn.logps, current)).collect())
    }

    fn load(&mut self, ahead: u64) -> Result<()> {
        let weights = usize::try_from(ahead).ok().and_then(|ahead| self.weights.get(ahead));
        let missing = || Error::engine("weights", format!("none of version {}", self.first + ahead));
        let weights = weights.ok_or_else(missing)?.clone();
        Ok(self.generator.load(self.first + ahead, weights)?)
    }

    /// What was sampled must be what was to be measured.
    fn check(&self, rollout: &Rollout, drawn: &[Drawn], ahead: impl Fn(usize) -> u64) -> Result<()> {
        let versions = (0..rollout.tokens.len()).map(|position| self.first + ahead(position));
        let own = drawn.iter().all(|one| (one.group, one.sample) == (rollout.group.number, rollout.sample));
        let chosen = rollout.tokens.iter().zip(drawn).zip(&rollout.logp_behavior);
        let likely = |((token, drawn), logp): ((&u32, &Drawn), &f32)| {
            drawn.logps.get(*token as usize).is_some_and(|seen| (seen - logp).abs() < 1e-3)
        };
        if !own || drawn.len() != rollout.tokens.len() || !versions.eq(rollout.version.iter().copied()) {
            let place = format!("group {} sample {}", rollout.group.number, rollout.sample);
            return Err(Error::engine(place, "its tokens are not of the versions that were to sample them"));
        }
        match chosen.into_iter().all(likely) {
            true => Ok(()),
            false => Err(Error::engine("generator", "shows another distribution than the one that it draws from")),
        }
    }
}

/// Adds completions up.
#[derive(Debug)]
pub struct Sums {
    length: usize,
    sequences: MeanAndError,
    lag: Mean,
    parts: [Mean; PARTS],
}

impl Sums {
    /// Of completions of at most `length` tokens.
    pub fn new(length: usize) -> Self {
        Sums { length, sequences: MeanAndError::default(), lag: Mean::default(), parts: [Mean::default(); PARTS] }
    }

    /// Adds a completion by the KL of each of its tokens; nothing where it has none.
    pub fn add(&mut self, kls: &[f64], lag_at: impl Fn(usize) -> u64) {
        if kls.is_empty() {
            return;
        }
        self.sequences.add(kls.iter().sum::<f64>() / kls.len() as f64);
        for (position, &kl) in kls.iter().enumerate() {
            self.lag.add(lag_at(position) as f64);
            self.parts[(position * PARTS / self.length.max(1)).min(PARTS - 1)].add(kl);
        }
    }

    /// What they came to; None where there was none.
    pub fn divergence(&self) -> Option<Divergence> {
        Some(Divergence {
            kl: self.sequences.mean()?,
            standard_error: self.sequences.standard_error(),
            sequences: self.sequences.count(),
            tokens: self.lag.count(),
            lag_mean: self.lag.value()?,
            kl_by_part: self.parts.iter().map(Mean::value).collect(),
        })
    }
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
