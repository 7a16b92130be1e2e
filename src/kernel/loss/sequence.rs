//! Losses of one importance ratio a sequence: `gspo` clips it, `sequence_truncated` cuts it, `sequence_masked` leaves the
//! sequence out.

use super::importance::{reinforce, weighted};
use super::ppo::surrogate;
use super::{Term, Token};
use crate::kernel::ratio::{self, from_log};

/// `log_ratio` is that of the geometric mean.
pub(super) fn gspo(token: Token, log_ratio: f32, clip: [f32; 2]) -> Term {
    surrogate(log_ratio, token.advantage, clip)
}

pub(super) fn truncated(token: Token, log_ratio: f32, cap: f32) -> Term {
    let ratio = from_log(log_ratio);
    weighted(token, ratio, ratio::truncated(ratio, cap))
}

pub(super) fn masked(token: Token, log_ratio: f32, [low, high]: [f32; 2], cap: f32) -> Term {
    let term = reinforce(token, cap);
    let whole = from_log(log_ratio);
    // A NaN is neither: it stays in and is seen.
    if whole < low || whole > high {
        return Term { loss: 0.0, d_logp: 0.0, weight: 0.0, clipped: true, ..term };
    }
    term
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::loss::{Loss, Tokens, policy_loss};
    use crate::kernel::ratio::SequenceRatio::{GeometricMean, Product};

    /// Four tokens, one of them masked, whose ratios are 4, 2 and 1: product 8, geometric mean 2.
    fn of(loss: Loss, advantage: f32) -> Vec<Term> {
        let ln2 = 2.0f32.ln();
        let mut out = Vec::new();
        let tokens = Tokens {
            logp_current: &[-1.0, -2.0, f32::NAN, -3.0],
            logp_behavior: &[-1.0 - 2.0 * ln2, -2.0 - ln2, f32::NAN, -3.0],
            advantage: &[advantage; 4],
            lag: &[],
            mask: &[true, true, false, true],
        };
        policy_loss(loss, tokens, &mut out);
        out
    }

    fn assert_near(found: &[Term], expected: [Term; 4]) {
        let near = |a: f32, b: f32| (a - b).abs() <= 2e-6 * (1.0 + b.abs());
        for (t, (f, e)) in found.iter().zip(expected).enumerate() {
            let all = near(f.loss, e.loss) && near(f.d_logp, e.d_logp) && near(f.ratio, e.ratio) && near(f.weight, e.weight);
            assert!(all && f.clipped == e.clipped, "token {t}: {f:?}, not {e:?}");
        }
    }

    /// Catches a clip of each token's own ratio, a mean that counts the masked token, and a product.
    #[test]
    fn gspo_by_hand() {
        let loss = Loss::Gspo { clip_low: 0.25, clip_high: 0.5 };
        let bound = Term { loss: -1.5, d_logp: 0.0, ratio: 2.0, weight: 1.5, clipped: true };
        assert_near(&of(loss, 1.0), [bound, bound, Term::default(), bound]);
        let free = Term { loss: 2.0, d_logp: 2.0, ratio: 2.0, weight: 2.0, clipped: false };
        assert_near(&of(loss, -1.0), [free, free, Term::default(), free]);
    }

    /// Catches a cap on each token, the wrong kind of mean, and a sequence that its cap drops.
    #[test]
    fn sequence_truncated_by_hand() {
        let with = |ratio, cap| of(Loss::SequenceTruncated { ratio, cap }, 0.5);
        let term = |logp: f32, ratio, weight: f32| {
            let d_logp = -0.5 * weight;
            Term { loss: d_logp * logp, d_logp, ratio, weight, clipped: ratio != weight }
        };
        let all = |ratio, weight| {
            [term(-1.0, ratio, weight), term(-2.0, ratio, weight), Term::default(), term(-3.0, ratio, weight)]
        };
        assert_near(&with(Product, 5.0), all(8.0, 5.0));
        assert_near(&with(Product, 9.0), all(8.0, 8.0));
        assert_near(&with(GeometricMean, 5.0), all(2.0, 2.0));
        assert_near(&with(GeometricMean, 1.5), all(2.0, 1.5));
    }

    /// Both bounds, and a sequence inside them, whose tokens have their own weights. Catches a mask of single tokens (the last
    /// one's ratio is 1), a bound that is missing, and a sequence that is inside and still weighted as a whole.
    #[test]
    fn sequence_masked_by_hand() {
        let with = |ratio, low, high| of(Loss::SequenceMasked { ratio, low, high, cap: 3.0 }, 0.5);
        let term = |logp: f32, ratio, weight: f32| {
            let d_logp = -0.5 * weight;
            Term { loss: d_logp * logp, d_logp, ratio, weight, clipped: ratio != weight }
        };
        let kept = [term(-1.0, 4.0, 3.0), term(-2.0, 2.0, 2.0), Term::default(), term(-3.0, 1.0, 1.0)];
        let out = |ratio| Term { ratio, clipped: true, ..Term::default() };
        let left = [out(4.0), out(2.0), Term::default(), out(1.0)];
        assert_near(&with(GeometricMean, 0.5, 2.5), kept);
        assert_near(&with(GeometricMean, 0.5, 1.9), left);
        assert_near(&with(GeometricMean, 2.1, 9.0), left);
        assert_near(&with(Product, 0.5, 2.5), left);
        assert_near(&with(Product, 0.5, 8.5), kept);
    }
}
