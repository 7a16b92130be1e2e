//! PPO's clipped surrogate: `ppo`, and `dual_clip` with a bound for negative advantages as well.

use super::{Term, Token};
use crate::kernel::ratio::{MAX_LOG_RATIO, bounded, from_log};

pub(super) fn ppo(token: Token, clip: [f32; 2]) -> Term {
    surrogate(token.logp_current - token.logp_behavior, token.advantage, clip)
}

pub(super) fn dual_clip(token: Token, clip: [f32; 2], cap_negative: f32) -> Term {
    let term = ppo(token, clip);
    if token.advantage < 0.0 && term.weight > cap_negative {
        return Term { loss: -cap_negative * token.advantage, d_logp: 0.0, weight: cap_negative, clipped: true, ..term };
    }
    term
}

/// `-min(ratio * advantage, clip(ratio) * advantage)` of the ratio with this logarithm, whose derivative is 1.
pub(super) fn surrogate(log_ratio: f32, advantage: f32, [clip_low, clip_high]: [f32; 2]) -> Term {
    let ratio = from_log(log_ratio);
    let bound = bounded(ratio, 1.0 - clip_low, 1.0 + clip_high);
    let at_bound = bound * advantage < ratio * advantage;
    let weight = if at_bound { bound } else { ratio };
    let flat = at_bound || log_ratio.abs() > MAX_LOG_RATIO;
    let loss = -weight * advantage;
    Term { loss, d_logp: if flat { 0.0 } else { loss }, ratio, weight, clipped: flat }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::loss::Loss;
    use crate::kernel::loss::tests::one;

    /// The four corners of the clip. Catches a bound on the wrong side of the sign of the advantage, and swapped bounds.
    #[test]
    fn ppo_by_hand() {
        let loss = Loss::Ppo { clip_low: 0.25, clip_high: 0.5 };
        let ln2 = 2.0f32.ln();
        let at = |log_ratio: f32, advantage| one(loss, -2.0 + log_ratio, -2.0, advantage);
        assert_eq!(at(ln2, 1.0), Term { loss: -1.5, d_logp: 0.0, ratio: 2.0, weight: 1.5, clipped: true });
        assert_eq!(at(ln2, -1.0), Term { loss: 2.0, d_logp: 2.0, ratio: 2.0, weight: 2.0, clipped: false });
        assert_eq!(at(-ln2, 1.0), Term { loss: -0.5, d_logp: -0.5, ratio: 0.5, weight: 0.5, clipped: false });
        assert_eq!(at(-ln2, -1.0), Term { loss: 0.75, d_logp: 0.0, ratio: 0.5, weight: 0.75, clipped: true });
        assert_eq!(at(0.0, 4.0), Term { loss: -4.0, d_logp: -4.0, ratio: 1.0, weight: 1.0, clipped: false });
    }

    /// Catches a gradient of 4.9e8 from a token whose loss no longer depends on the policy.
    #[test]
    fn ppo_is_flat_where_the_exponent_is_cut() {
        let far = one(Loss::Ppo { clip_low: 0.2, clip_high: 0.2 }, -1.0, -30.0, -1.0);
        assert_eq!((far.loss, far.d_logp, far.clipped), (20.0f32.exp(), 0.0, true));
    }

    /// Beside PPO's corners the fifth one. Catches a cap on positive advantages (there PPO's bound is the tighter one, and a cap
    /// on the *loss* would be the wrong way round), and one that goes on teaching.
    #[test]
    fn dual_clip_by_hand() {
        let loss = Loss::DualClip { clip_low: 0.25, clip_high: 9.0, cap_negative: 3.0 };
        let at = |ratio: f32, advantage| one(loss, 0.0, -ratio.ln(), advantage);
        assert_eq!(at(4.0, -2.0), Term { loss: 6.0, d_logp: 0.0, ratio: 4.0, weight: 3.0, clipped: true });
        assert_eq!(at(2.0, -2.0), Term { loss: 4.0, d_logp: 4.0, ratio: 2.0, weight: 2.0, clipped: false });
        assert_eq!(at(4.0, 2.0), Term { loss: -8.0, d_logp: -8.0, ratio: 4.0, weight: 4.0, clipped: false });
        assert_eq!(at(16.0, 2.0), Term { loss: -20.0, d_logp: 0.0, ratio: 16.0, weight: 10.0, clipped: true });
        assert_eq!(at(0.5, -2.0), Term { loss: 1.5, d_logp: 0.0, ratio: 0.5, weight: 0.75, clipped: true });
    }
}
