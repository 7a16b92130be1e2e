//! Importance ratios between the current and the behavior policy, of a token and of a whole sequence.

use serde::{Deserialize, Serialize};

/// Where the log of a ratio is cut, on both sides, before it is exponentiated: `exp(20)` is 4.9e8, well inside f32, and
/// `exp(-20)` is 2.1e-9.
pub const MAX_LOG_RATIO: f32 = 20.0;

/// `pi(token) / mu(token)`: `exp(logp_current - logp_behavior)`, the exponent cut at ±[`MAX_LOG_RATIO`]. Exactly 1 where
/// the two are equal; NaN if one of them is.
pub fn ratio(logp_current: f32, logp_behavior: f32) -> f32 {
    from_log(logp_current - logp_behavior)
}

/// The ratio whose logarithm is `log_ratio`, which is cut at ±[`MAX_LOG_RATIO`] before. NaN stays NaN.
pub fn from_log(log_ratio: f32) -> f32 {
    log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

/// A ratio cut from above, `min(cap, ratio)` (Ionides 2008, "Truncated importance sampling"): it trades variance for bias.
/// NaN stays NaN.
pub fn truncated(ratio: f32, cap: f32) -> f32 {
    if ratio > cap { cap } else { ratio }
}

/// A ratio cut from both sides. NaN stays NaN.
pub fn bounded(ratio: f32, low: f32, high: f32) -> f32 {
    if ratio < low { low } else { truncated(ratio, high) }
}

/// How the ratios of a sequence's tokens become one of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SequenceRatio {
    /// Their product: the ratio of the sequence's probabilities. Unbiased, and the wider spread the longer the sequence.
    Product,
    /// The n-th root of the product of n: the same for every length (GSPO, arXiv 2507.18071).
    GeometricMean,
}

/// Logarithm of a sequence's ratio, from the `[T]` log-probabilities of its tokens; only those that `mask` chooses count. 0
/// where it chooses none, exactly 0 where all are equal, and NaN if one of them is. Not cut: that is [`from_log`]'s.
///
/// ```
/// use tidegate::kernel::ratio::{SequenceRatio, sequence_log_ratio};
///
/// let (current, behavior, mask) = ([-1.0, -2.0, -9.0], [-1.5, -3.0, 0.0], [true, true, false]);
/// assert_eq!(sequence_log_ratio(SequenceRatio::Product, &current, &behavior, &mask), 1.5);
/// assert_eq!(sequence_log_ratio(SequenceRatio::GeometricMean, &current, &behavior, &mask), 0.75);
/// ```
pub fn sequence_log_ratio(kind: SequenceRatio, logp_current: &[f32], logp_behavior: &[f32], mask: &[bool]) -> f32 {
    let (mut sum, mut count) = (0.0f64, 0u32);
    for ((current, behavior), _) in logp_current.iter().zip(logp_behavior).zip(mask).filter(|&(_, &chosen)| chosen) {
        // As `ratio` takes it, so that a sequence of one token has its token's ratio to the bit.
        sum += f64::from(current - behavior);
        count += 1;
    }
    match kind {
        SequenceRatio::Product => sum as f32,
        SequenceRatio::GeometricMean => (sum / f64::from(count.max(1))) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an exponent that overflows, a cut on one side only, and a ratio that is not 1 on policy.
    #[test]
    fn ratios_by_hand() {
        assert_eq!(ratio(-0.73, -0.73), 1.0);
        assert_eq!(ratio(-1.0, -1.0 - 2.0f32.ln()), 2.0);
        assert_eq!(ratio(0.0, -1000.0), 20.0f32.exp());
        assert_eq!(ratio(-1000.0, 0.0), (-20.0f32).exp());
        assert_eq!((truncated(7.0, 5.0), truncated(0.5, 5.0)), (5.0, 0.5));
        assert_eq!([0.1, 0.9, 1.7].map(|ratio| bounded(ratio, 0.5, 1.5)), [0.5, 0.9, 1.5]);
    }

    /// Catches a mean over masked tokens, 0/0 where all are masked, and a sum in f32, which loses what is small beside what is
    /// large.
    #[test]
    fn sequences_by_hand() {
        use SequenceRatio::{GeometricMean, Product};
        let (current, behavior) = ([-1.0, f32::NAN, -2.0, -0.5], [-1.5, 0.0, -1.0, -2.5]);
        let of = |kind, mask: [bool; 4]| sequence_log_ratio(kind, &current, &behavior, &mask);
        let chosen = [true, false, true, true];
        assert_eq!((of(Product, chosen), of(GeometricMean, chosen)), (1.5, 0.5));
        assert_eq!((of(Product, [false; 4]), of(GeometricMean, [false; 4])), (0.0, 0.0));
        assert!(of(Product, [true; 4]).is_nan() && of(GeometricMean, [true; 4]).is_nan());
        let small = f32::exp2(-30.0);
        let sum = sequence_log_ratio(Product, &[0.0, small, 0.0], &[-1.0, 0.0, 1.0], &[true; 3]);
        assert_eq!(sum, small);
    }

    /// Catches `f32::min`, which answers 5 here: a broken log-probability would train at full weight, unseen.
    #[test]
    fn nan_stays_nan() {
        assert!(truncated(ratio(-1.0, f32::NAN), 5.0).is_nan());
        assert!(truncated(ratio(f32::NAN, -1.0), 5.0).is_nan());
        assert!(bounded(f32::NAN, 0.5, 1.5).is_nan());
    }
}
