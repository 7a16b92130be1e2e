//! REINFORCE with a detached importance weight a token: `reinforce` bounds it from above, `cispo` from both sides.

use super::{Term, Token};
use crate::kernel::ratio::{bounded, ratio, truncated};

pub(super) fn reinforce(token: Token, cap: f32) -> Term {
    let ratio = ratio(token.logp_current, token.logp_behavior);
    weighted(token, ratio, truncated(ratio, cap))
}

pub(super) fn cispo(token: Token, [clip_low, clip_high]: [f32; 2]) -> Term {
    let ratio = ratio(token.logp_current, token.logp_behavior);
    weighted(token, ratio, bounded(ratio, 1.0 - clip_low, 1.0 + clip_high))
}

/// `-weight * advantage * logp_current`, the weight a constant to the derivative.
pub(super) fn weighted(token: Token, ratio: f32, weight: f32) -> Term {
    let d_logp = -weight * token.advantage;
    // False where both are NaN: nothing cut them.
    let clipped = (weight - ratio).abs() > 0.0;
    Term { loss: d_logp * token.logp_current, d_logp, ratio, weight, clipped }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::loss::Loss;
    use crate::kernel::loss::tests::one;

    /// Catches the sign, a weight that is not truncated, and one that truncation drops instead of cutting.
    #[test]
    fn reinforce_by_hand() {
        let loss = Loss::Reinforce { cap: 1.5 };
        let halved = one(loss, -1.0 - 2.0f32.ln(), -1.0, 3.0);
        assert_eq!(halved, Term { loss: 1.5 * (1.0 + 2.0f32.ln()), d_logp: -1.5, ratio: 0.5, weight: 0.5, clipped: false });
        let doubled = one(loss, -1.0, -1.0 - 2.0f32.ln(), -3.0);
        assert_eq!(doubled, Term { loss: -4.5, d_logp: 4.5, ratio: 2.0, weight: 1.5, clipped: true });
    }

    /// Both bounds, for either sign of the advantage. Catches PPO's flat side, a bound that is missing, and swapped bounds.
    #[test]
    fn cispo_by_hand() {
        let loss = Loss::Cispo { clip_low: 0.25, clip_high: 0.5 };
        let ln2 = 2.0f32.ln();
        let at = |log_ratio: f32, advantage| one(loss, -2.0, -2.0 - log_ratio, advantage);
        assert_eq!(at(ln2, 1.0), Term { loss: 3.0, d_logp: -1.5, ratio: 2.0, weight: 1.5, clipped: true });
        assert_eq!(at(ln2, -1.0), Term { loss: -3.0, d_logp: 1.5, ratio: 2.0, weight: 1.5, clipped: true });
        assert_eq!(at(-ln2, 1.0), Term { loss: 1.5, d_logp: -0.75, ratio: 0.5, weight: 0.75, clipped: true });
        assert_eq!(at(-ln2, -1.0), Term { loss: -1.5, d_logp: 0.75, ratio: 0.5, weight: 0.75, clipped: true });
        assert_eq!(at(0.0, 4.0), Term { loss: 8.0, d_logp: -4.0, ratio: 1.0, weight: 1.0, clipped: false });
    }

    /// What the two differ by: without a lower bound they are one.
    #[test]
    fn cispo_without_a_lower_bound_is_reinforce() {
        for log_ratio in [-30.0, -1.5, -0.1, 0.0, 0.3, 2.0, 30.0] {
            let cispo = one(Loss::Cispo { clip_low: 1.0, clip_high: 4.0 }, -1.0, -1.0 - log_ratio, 0.7);
            assert_eq!(cispo, one(Loss::Reinforce { cap: 5.0 }, -1.0, -1.0 - log_ratio, 0.7));
        }
    }
}
