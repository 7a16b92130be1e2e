//! How the losses of a batch's tokens become one number.

use serde::{Deserialize, Serialize};

/// The five aggregations in use. All are linear in the token losses, so each is a weight a token: here, one a sequence.
///
/// A sequence counts as one of the batch's sequences only if it has a token that is not masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Sum over tokens divided by the number of tokens (DAPO, arXiv 2503.14476).
    TokenMean,
    /// Sum over tokens.
    TokenSum,
    /// Sum over tokens divided by the number of sequences (PipelineRL, arXiv 2509.19128): every token weighs the same.
    #[default]
    SeqMeanTokenSum,
    /// The same, over a constant length in tokens as well, above 0 (Dr. GRPO, arXiv 2503.20783).
    SeqMeanTokenSumNorm(f32),
    /// Mean over sequences of each one's mean over tokens (GRPO, arXiv 2402.03300): tokens of long sequences weigh less.
    SeqMeanTokenMean,
}

/// The weight of each sequence's tokens (`[S]`, in the order of `masks`), such that the batch's loss is the sum over
/// unmasked tokens of weight times token loss.
///
/// `masks` holds one mask a sequence *of the whole batch*: the normalisers are the batch's, so the losses and gradients of
/// its micro-batches just add up, however uneven they are. A sequence without an unmasked token weighs 0, and so does a
/// whole batch of them: its loss is 0, never 0/0.
///
/// ```
/// use tidegate::kernel::aggregation::{Aggregation, token_weights};
///
/// let masks: [&[bool]; 3] = [&[true, true, false], &[true], &[false]];
/// assert_eq!(token_weights(Aggregation::SeqMeanTokenSum, &masks), [0.5, 0.5, 0.0]);
/// assert_eq!(token_weights(Aggregation::SeqMeanTokenMean, &masks), [0.25, 0.5, 0.0]);
/// ```
pub fn token_weights(kind: Aggregation, masks: &[&[bool]]) -> Vec<f32> {
    let counts: Vec<usize> = masks.iter().map(|mask| mask.iter().filter(|&&chosen| chosen).count()).collect();
    let tokens = counts.iter().sum::<usize>() as f64;
    let sequences = counts.iter().filter(|&&count| count > 0).count() as f64;
    let normaliser = |count: usize| match kind {
        Aggregation::TokenMean => tokens,
        Aggregation::TokenSum => 1.0,
        Aggregation::SeqMeanTokenSum => sequences,
        Aggregation::SeqMeanTokenSumNorm(length) => sequences * f64::from(length),
        Aggregation::SeqMeanTokenMean => sequences * count as f64,
    };
    counts.iter().map(|&count| if count == 0 { 0.0 } else { (1.0 / normaliser(count)) as f32 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Aggregation; 5] = [
        Aggregation::TokenMean,
        Aggregation::TokenSum,
        Aggregation::SeqMeanTokenSum,
        Aggregation::SeqMeanTokenSumNorm(4.0),
        Aggregation::SeqMeanTokenMean,
    ];

    /// Hard cases 7 and 8. Catches masked tokens (a cut rollout's) that stay in a denominator: only the two
    /// sequences and five tokens that are trained count.
    #[test]
    fn masked_tokens_leave_the_denominators() {
        let masks: [&[bool]; 4] = [&[true, true, true, false], &[false, false], &[true, false, true], &[]];
        let weights = |kind| token_weights(kind, &masks);
        assert_eq!(weights(Aggregation::TokenMean), [0.2, 0.0, 0.2, 0.0]);
        assert_eq!(weights(Aggregation::TokenSum), [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(weights(Aggregation::SeqMeanTokenSum), [0.5, 0.0, 0.5, 0.0]);
        assert_eq!(weights(Aggregation::SeqMeanTokenSumNorm(4.0)), [0.125, 0.0, 0.125, 0.0]);
        assert_eq!(weights(Aggregation::SeqMeanTokenMean), [1.0 / 6.0, 0.0, 0.25, 0.0]);
    }

    /// Hard case 9. Catches 0/0 and 1/0.
    #[test]
    fn a_batch_without_tokens_weighs_nothing() {
        for kind in KINDS {
            assert_eq!(token_weights(kind, &[&[false, false], &[], &[false]]), [0.0; 3], "{kind:?}");
            assert_eq!(token_weights(kind, &[]), [0.0; 0], "{kind:?}");
        }
    }

    /// Catches a spec key that changes its name.
    #[test]
    fn names_in_the_spec() {
        let read = |text| serde_json::from_str::<Aggregation>(text).unwrap();
        assert_eq!(read("\"seq_mean_token_sum\""), Aggregation::default());
        assert_eq!(read("{\"seq_mean_token_sum_norm\": 1024}"), Aggregation::SeqMeanTokenSumNorm(1024.0));
    }

    proptest! {
        /// What the normalised ones promise: the weights of all unmasked tokens sum to 1 (a mean of ones is 1). Catches any
        /// normaliser that is a micro-batch's, or that counts what is masked.
        #[test]
        fn a_mean_of_ones_is_one(masks in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..6), 0..6)) {
            let views: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
            for kind in [Aggregation::TokenMean, Aggregation::SeqMeanTokenMean] {
                let weights = token_weights(kind, &views);
                let of = |(mask, weight): (&Vec<bool>, &f32)| mask.iter().filter(|&&m| m).count() as f32 * weight;
                let sum: f32 = masks.iter().zip(&weights).map(of).sum();
                let expected = if masks.iter().flatten().any(|&m| m) { 1.0 } else { 0.0 };
                prop_assert!((sum - expected).abs() < 1e-5, "{:?}: {}", kind, sum);
            }
        }
    }
}
