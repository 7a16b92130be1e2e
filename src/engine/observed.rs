//! Whole distributions, for measurements: what a token was drawn from, and what another policy would have drawn it from.

use crate::engine::contract::Engine;
use crate::error::Result;
use tidegate_operators::record::Rollout;

/// The distribution that one token was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Whose token it is: number of the group, and sample.
    pub group: u64,
    pub sample: u32,
    /// `[V]` natural log-probabilities at the sampling temperature (at 1 where that is 0), before `top_k` and `top_p`.
    pub logps: Vec<f32>,
}

/// An engine that shows whole distributions. A run needs none of it: a generator that is not observed keeps nothing.
pub trait Observable: Engine {
    /// Has a generator keep the distribution of each token that it draws from now on: `V` numbers a token until they are taken.
    fn observe(generator: &mut Self::Generator);

    /// Takes what was kept since the last call, the tokens of a rollout in their order.
    fn drawn(generator: &mut Self::Generator) -> Vec<Drawn>;

    /// `[T, V]` natural log-probabilities, row by row: what the frozen policy gives to each token of the vocabulary in the place of
    /// each of the rollout's `T` tokens, with keys and values of its own.
    ///
    /// # Errors
    /// A rollout that it cannot compute, or whatever the device says.
    fn distributions(frozen: &mut Self::Frozen, rollout: &Rollout) -> Result<Vec<f32>>;
}
