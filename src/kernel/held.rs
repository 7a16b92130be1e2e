//! Batches whose gradients wait for more of them: what is remembered of them, and what each weighs in the gradient of all.

use super::aggregation::Aggregation;
use super::ess::Ess;
use super::mean::Mean;

/// What a batch, or several of them, are to whoever decides on a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Batches {
    pub batches: u64,
    /// Rollouts with a token that is trained, and such tokens.
    pub sequences: u64,
    pub tokens: u64,
    /// Of the tokens' importance weights.
    pub ess: Ess,
    /// Mean over the tokens, steps.
    pub lag: Mean,
}

impl Batches {
    /// All of both.
    #[must_use]
    pub fn and(mut self, other: Batches) -> Self {
        self.batches += other.batches;
        self.sequences += other.sequences;
        self.tokens += other.tokens;
        self.ess.merge(other.ess);
        self.lag.merge(other.lag);
        self
    }

    /// What the batches' tokens are worth, in batches of tokens that all weigh the same: ESS times the number of batches.
    pub fn effective(&self) -> f64 {
        self.ess.value() * self.batches as f64
    }

    /// What the gradients of two parts, each aggregated by itself, are multiplied by so that their sum is the gradient of the whole: each
    /// part's share of what the aggregation divides by.
    ///
    /// ```
    /// use tidegate::kernel::aggregation::Aggregation;
    /// use tidegate::kernel::held::Batches;
    ///
    /// let of = |sequences, tokens| Batches { batches: 1, sequences, tokens, ..Batches::default() };
    /// let factors = |kind| Batches::factors(kind, of(6, 10), of(2, 30));
    /// assert_eq!(factors(Aggregation::TokenMean), [0.25, 0.75]);
    /// assert_eq!(factors(Aggregation::SeqMeanTokenSum), [0.75, 0.25]);
    /// assert_eq!(factors(Aggregation::TokenSum), [1.0, 1.0]);
    /// ```
    pub fn factors(kind: Aggregation, one: Batches, other: Batches) -> [f64; 2] {
        let of = |part: Batches| match kind {
            Aggregation::TokenMean => part.tokens,
            Aggregation::TokenSum => 0,
            Aggregation::SeqMeanTokenSum | Aggregation::SeqMeanTokenSumNorm(_) | Aggregation::SeqMeanTokenMean => {
                part.sequences
            }
        };
        let parts = [of(one), of(other)].map(|part| part as f64);
        let whole = parts[0] + parts[1];
        if whole == 0.0 { [1.0; 2] } else { parts.map(|part| part / whole) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::aggregation::token_weights;
    use proptest::prelude::*;

    const KINDS: [Aggregation; 5] = [
        Aggregation::TokenMean,
        Aggregation::TokenSum,
        Aggregation::SeqMeanTokenSum,
        Aggregation::SeqMeanTokenSumNorm(4.0),
        Aggregation::SeqMeanTokenMean,
    ];

    fn of(masks: &[Vec<bool>]) -> Batches {
        let tokens = |mask: &Vec<bool>| mask.iter().filter(|&&chosen| chosen).count() as u64;
        let sequences = masks.iter().filter(|mask| tokens(mask) > 0).count() as u64;
        Batches { batches: 1, sequences, tokens: masks.iter().map(tokens).sum(), ..Batches::default() }
    }

    /// Two batches whose weights are as uneven as they can be: by itself each is worth half a batch and a whole one. Catches a mean of
    /// the shares.
    #[test]
    fn batches_are_worth_their_tokens() {
        let batch = |weights: &[f64]| {
            let mut batch = Batches { batches: 1, tokens: weights.len() as u64, ..Batches::default() };
            weights.iter().for_each(|&weight| batch.ess.add(weight));
            batch
        };
        let (uneven, even) = (batch(&[1.0, 1.0, 0.0, 0.0]), batch(&[1.0; 4]));
        assert_eq!((uneven.effective(), even.effective()), (0.5, 1.0));
        assert_eq!(uneven.and(even).effective(), 1.5);
        assert_eq!((uneven.and(even).batches, uneven.and(even).tokens, Batches::default().effective()), (2, 8, 0.0));
    }

    /// A batch of which everything is masked takes nothing from the others.
    #[test]
    fn a_part_without_tokens_weighs_nothing() {
        let (none, some) = (Batches { batches: 1, ..Batches::default() }, of(&[vec![true, true]]));
        assert_eq!(Batches::factors(Aggregation::TokenMean, none, some), [0.0, 1.0]);
        assert_eq!(Batches::factors(Aggregation::SeqMeanTokenMean, some, none), [1.0, 0.0]);
        assert_eq!(Batches::factors(Aggregation::TokenMean, none, none), [1.0, 1.0]);
    }

    proptest! {
        /// What the factors promise, for every aggregation: each token weighs in the sum of both parts what it weighs in one batch
        /// of all. Catches a part that counts by its number of batches, and tokens counted where sequences divide.
        #[test]
        fn two_parts_weigh_as_one(
            one in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..6), 0..5),
            other in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..6), 0..5),
        ) {
            for kind in KINDS {
                let weights = |masks: &[Vec<bool>]| {
                    token_weights(kind, &masks.iter().map(Vec::as_slice).collect::<Vec<_>>())
                };
                let factors = Batches::factors(kind, of(&one), of(&other));
                let parts = [&one, &other].into_iter().zip(factors);
                let found = parts.flat_map(|(masks, factor)| weights(masks).into_iter().map(move |w| f64::from(w) * factor));
                let whole = weights(&[one.clone(), other.clone()].concat());
                for (found, whole) in found.zip(whole) {
                    prop_assert!((found - f64::from(whole)).abs() < 1e-6, "{:?}: {} {}", kind, found, whole);
                }
            }
        }
    }
}
