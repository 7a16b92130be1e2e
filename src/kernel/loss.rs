//! Policy and value losses and their derivatives.
//!
//! All are per token and not aggregated: multiply by [`token_weights`](super::aggregation::token_weights) and add. The
//! learner back-propagates `sum(coefficient * logp_current)` with the coefficient `weight of the sequence * d_logp`.

use super::ratio::{MAX_LOG_RATIO, ratio, truncated};
use serde::{Deserialize, Serialize};

/// The policy loss of a run. With `r = exp(logp_current - logp_behavior)` (exponent cut at ±20) and `A` the advantage:
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Loss {
    /// Truncated-importance REINFORCE (PipelineRL, arXiv 2509.19128; CISPO, arXiv 2506.13585, with its upper bound alone):
    /// with the weight `w = min(cap, r)` *detached*, the loss is `-w * A * logp_current` and its derivative `-w * A`.
    ///
    /// `w` depends on `logp_current`, yet is a constant to the derivative: `d_logp` is the slope of the reported loss with
    /// `w` held, not of the loss as a function of `logp_current`. The loss is there to be differentiated; its height says
    /// nothing about the policy. A token above the cap still learns, at weight `cap`. `cap` is above 0; the paper's is 5.
    Reinforce { cap: f32 },
    /// PPO's clipped surrogate (arXiv 1707.06347, equation 7) with two bounds (DAPO, arXiv 2503.14476): the loss is
    /// `-min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)`; its derivative is `-r * A` where the first is the smaller or
    /// they are equal, and 0 where the bound is, or where the exponent was cut. `clip_low` in 0..=1, `clip_high` at least 0.
    Ppo { clip_low: f32, clip_high: f32 },
    /// Negative log-likelihood, for warm starts: the loss is `-logp_current` and its derivative -1. Advantage and
    /// `logp_behavior` are not read.
    Supervised,
}

impl Default for Loss {
    fn default() -> Self {
        Loss::Reinforce { cap: 5.0 }
    }
}

impl Loss {
    /// Whether it reads `logp_behavior` and the advantage, which a demonstration does not have.
    pub fn reads_behavior(self) -> bool {
        !matches!(self, Loss::Supervised)
    }
}

/// The detached numbers of one sequence, each `[T]`; log-probabilities in nats, at the sampling temperature.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Under the weights that are being trained.
    pub logp_current: &'a [f32],
    /// As recorded when the token was sampled. May be empty for [`Loss::Supervised`].
    pub logp_behavior: &'a [f32],
    /// May be empty for [`Loss::Supervised`].
    pub advantage: &'a [f32],
    /// True where the token is trained.
    pub mask: &'a [bool],
}

/// One token's part. All zero for a masked token, which is to be left out of every mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Term {
    pub loss: f32,
    /// Derivative of the loss with respect to `logp_current`.
    pub d_logp: f32,
    /// `exp(logp_current - logp_behavior)`, the exponent cut at ±20; 1 for [`Loss::Supervised`].
    pub ratio: f32,
    /// The ratio after truncation: what multiplies the advantage in the loss.
    pub weight: f32,
    /// Whether truncation made `weight` differ from `ratio`, or took the derivative to 0.
    pub clipped: bool,
}

/// One [`Term`] a token of one sequence, into `out` (what it held before is dropped).
///
/// Masked tokens are *selected* out, not multiplied by 0: whatever stands there, NaN too, changes nothing. An unmasked NaN
/// comes out as NaN.
///
/// # Panics
/// If the lengths of what the loss reads differ.
///
/// ```
/// use tidegate::kernel::loss::{Loss, Term, Tokens, policy_loss};
///
/// let mut terms = Vec::new();
/// let tokens = Tokens {
///     logp_current: &[-1.0, -0.5, f32::NAN],
///     logp_behavior: &[-1.0, -9.5, f32::NAN],
///     advantage: &[2.0, 1.0, f32::NAN],
///     mask: &[true, true, false],
/// };
/// policy_loss(Loss::Reinforce { cap: 5.0 }, tokens, &mut terms);
/// assert_eq!(terms[0], Term { loss: 2.0, d_logp: -2.0, ratio: 1.0, weight: 1.0, clipped: false });
/// assert_eq!((terms[1].d_logp, terms[1].clipped), (-5.0, true));
/// assert_eq!(terms[2], Term::default());
/// ```
pub fn policy_loss(loss: Loss, tokens: Tokens<'_>, out: &mut Vec<Term>) {
    let Tokens { logp_current, logp_behavior, advantage, mask } = tokens;
    assert_eq!(logp_current.len(), mask.len(), "logp_current and mask are of the same tokens");
    if loss.reads_behavior() {
        assert_eq!(logp_behavior.len(), mask.len(), "logp_behavior and mask are of the same tokens");
        assert_eq!(advantage.len(), mask.len(), "advantage and mask are of the same tokens");
    }
    out.clear();
    out.extend(mask.iter().enumerate().map(|(t, &chosen)| match loss {
        _ if !chosen => Term::default(),
        Loss::Reinforce { cap } => reinforce(logp_current[t], logp_behavior[t], advantage[t], cap),
        Loss::Ppo { clip_low, clip_high } => ppo(logp_current[t], logp_behavior[t], advantage[t], [clip_low, clip_high]),
        Loss::Supervised => supervised(logp_current[t]),
    }));
}

fn reinforce(logp_current: f32, logp_behavior: f32, advantage: f32, cap: f32) -> Term {
    let ratio = ratio(logp_current, logp_behavior);
    let weight = truncated(ratio, cap);
    let d_logp = -weight * advantage;
    Term { loss: d_logp * logp_current, d_logp, ratio, weight, clipped: ratio > cap }
}

fn ppo(logp_current: f32, logp_behavior: f32, advantage: f32, [clip_low, clip_high]: [f32; 2]) -> Term {
    let ratio = ratio(logp_current, logp_behavior);
    let (floor, ceiling) = (1.0 - clip_low, 1.0 + clip_high);
    let bound = if ratio < floor { floor } else { truncated(ratio, ceiling) };
    let bounded = bound * advantage < ratio * advantage;
    let weight = if bounded { bound } else { ratio };
    let flat = bounded || (logp_current - logp_behavior).abs() > MAX_LOG_RATIO;
    let loss = -weight * advantage;
    Term { loss, d_logp: if flat { 0.0 } else { loss }, ratio, weight, clipped: flat }
}

fn supervised(logp_current: f32) -> Term {
    Term { loss: -logp_current, d_logp: -1.0, ratio: 1.0, weight: 1.0, clipped: false }
}

/// The critic's loss at one token, `(target - value)^2`, and its derivative with respect to `value`, `2 * (value - target)`.
///
/// As the text of PipelineRL (arXiv 2509.19128) has it, "(R - v)^2", so that a spec's coefficient is that of the paper's
/// formula. Its authors' code and verl put a half before the square: their coefficient 0.1 is 0.05 here. Without verl's clip
/// around the value at sampling time, which the paper does not have.
pub fn value_loss(value: f32, target: f32) -> (f32, f32) {
    let difference = value - target;
    (difference * difference, 2.0 * difference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOSSES: [Loss; 3] = [Loss::Reinforce { cap: 5.0 }, Loss::Ppo { clip_low: 0.2, clip_high: 0.28 }, Loss::Supervised];

    /// One unmasked token.
    fn one(loss: Loss, logp_current: f32, logp_behavior: f32, advantage: f32) -> Term {
        let mut out = Vec::new();
        let tokens = Tokens {
            logp_current: &[logp_current],
            logp_behavior: &[logp_behavior],
            advantage: &[advantage],
            mask: &[true],
        };
        policy_loss(loss, tokens, &mut out);
        out[0]
    }

    /// Catches the sign, a weight that is not truncated, and one that truncation drops instead of cutting.
    #[test]
    fn reinforce_by_hand() {
        let loss = Loss::Reinforce { cap: 1.5 };
        let halved = one(loss, -1.0 - 2.0f32.ln(), -1.0, 3.0);
        assert_eq!(halved, Term { loss: 1.5 * (1.0 + 2.0f32.ln()), d_logp: -1.5, ratio: 0.5, weight: 0.5, clipped: false });
        let doubled = one(loss, -1.0, -1.0 - 2.0f32.ln(), -3.0);
        assert_eq!(doubled, Term { loss: -4.5, d_logp: 4.5, ratio: 2.0, weight: 1.5, clipped: true });
    }

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

    /// Hard cases 7, 8 and 9. Catches a mask that multiplies (0 * NaN is NaN), and terms left over from the sequence before.
    #[test]
    fn what_is_masked_changes_nothing() {
        for loss in LOSSES {
            let clean = [one(loss, -1.0, -1.2, 0.5), one(loss, -0.5, -0.1, 0.5)];
            for junk in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.3] {
                let mut out = vec![Term { loss: 9.0, ..Term::default() }; 7];
                let tokens = Tokens {
                    logp_current: &[-1.0, junk, -0.5, junk],
                    logp_behavior: &[-1.2, junk, -0.1, junk],
                    advantage: &[0.5, junk, 0.5, junk],
                    mask: &[true, false, true, false],
                };
                policy_loss(loss, tokens, &mut out);
                assert_eq!(out, [clean[0], Term::default(), clean[1], Term::default()], "{loss:?} {junk}");
                policy_loss(loss, Tokens { mask: &[false; 4], ..tokens }, &mut out);
                assert_eq!(out, [Term::default(); 4], "{loss:?} {junk}");
            }
        }
    }

    /// Catches `f32::min` and `f32::max`, which drop a NaN and would train on a broken number unseen.
    #[test]
    fn an_unmasked_nan_is_seen() {
        for loss in LOSSES {
            assert!(one(loss, f32::NAN, -1.0, 1.0).loss.is_nan(), "{loss:?}");
        }
        for loss in &LOSSES[..2] {
            for broken in [one(*loss, -1.0, f32::NAN, 1.0), one(*loss, -1.0, -1.0, f32::NAN)] {
                assert!(broken.loss.is_nan() && broken.d_logp.is_nan(), "{loss:?} {broken:?}");
            }
        }
    }

    /// Catches a supervised loss that needs, or reads, what a warm start does not have.
    #[test]
    fn supervised_reads_neither_behavior_nor_advantage() {
        let mut out = Vec::new();
        let tokens = Tokens { logp_current: &[-0.5, -2.0], logp_behavior: &[], advantage: &[], mask: &[true, false] };
        policy_loss(Loss::Supervised, tokens, &mut out);
        assert_eq!(out, [Term { loss: 0.5, d_logp: -1.0, ratio: 1.0, weight: 1.0, clipped: false }, Term::default()]);
    }

    /// Catches a shorter list that silently ends the sequence.
    #[test]
    #[should_panic(expected = "logp_behavior and mask")]
    fn lengths_are_checked() {
        let tokens = Tokens { logp_current: &[-1.0], logp_behavior: &[], advantage: &[1.0], mask: &[true] };
        policy_loss(Loss::default(), tokens, &mut Vec::new());
    }

    /// Catches a spec key that changes its name, and a misspelt one that passes.
    #[test]
    fn names_in_the_spec() {
        let read = serde_json::from_str::<Loss>;
        assert_eq!(read("\"supervised\"").unwrap(), Loss::Supervised);
        assert_eq!(read("{\"reinforce\": {\"cap\": 5}}").unwrap(), Loss::default());
        let ppo = Loss::Ppo { clip_low: 0.25, clip_high: 0.5 };
        assert_eq!(read("{\"ppo\": {\"clip_low\": 0.25, \"clip_high\": 0.5}}").unwrap(), ppo);
        assert!(read("{\"reinforce\": {\"cap\": 5, \"clip_low\": 0.2}}").is_err());
    }

    /// Central difference of `f` at `x`.
    fn slope(f: impl Fn(f32) -> f32, x: f32) -> f32 {
        let h = 1.0 / 128.0;
        (f(x + h) - f(x - h)) / (2.0 * h)
    }

    proptest! {
        /// The weight is detached: moving both log-probabilities together holds it, and leaves the slope in `logp_current`.
        /// Catches a derivative that goes through the weight as well.
        #[test]
        fn reinforce_derivative(current in -6.0f32..-0.1, log_ratio in -3.0f32..3.0, advantage in -3.0f32..3.0) {
            let loss = Loss::Reinforce { cap: 5.0 };
            let found = one(loss, current, current - log_ratio, advantage);
            let numeric = slope(|x| one(loss, x, x - log_ratio, advantage).loss, current);
            prop_assert!((found.d_logp - numeric).abs() < 5e-3 * (1.0 + found.d_logp.abs()), "{found:?} {numeric}");
        }

        /// Away from the kinks. Catches a wrong branch, sign or factor.
        #[test]
        fn ppo_derivative(
            behavior in -6.0f32..-0.1, log_ratio in -3.0f32..3.0, advantage in -3.0f32..3.0,
            clip_low in 0.05f32..0.9, clip_high in 0.05f32..2.0,
        ) {
            let kinks = [(1.0 - clip_low).ln(), (1.0 + clip_high).ln()];
            prop_assume!(kinks.iter().all(|kink| (log_ratio - kink).abs() > 0.02));
            let loss = Loss::Ppo { clip_low, clip_high };
            let found = one(loss, behavior + log_ratio, behavior, advantage);
            let numeric = slope(|x| one(loss, x, behavior, advantage).loss, behavior + log_ratio);
            prop_assert!((found.d_logp - numeric).abs() < 5e-3 * (1.0 + found.loss.abs()), "{found:?} {numeric}");
            prop_assert_eq!(found.loss, -found.weight * advantage);
        }

        /// Catches a sign.
        #[test]
        fn supervised_derivative(current in -6.0f32..-0.1) {
            let numeric = slope(|x| one(Loss::Supervised, x, 0.0, 0.0).loss, current);
            prop_assert!((one(Loss::Supervised, current, 0.0, 0.0).d_logp - numeric).abs() < 1e-3);
        }

        /// Catches the half that verl has, in the loss or in the derivative alone.
        #[test]
        fn value_derivative(value in -5.0f32..5.0, target in -5.0f32..5.0) {
            let (loss, d_value) = value_loss(value, target);
            prop_assert_eq!(loss, (target - value) * (target - value));
            let numeric = slope(|x| value_loss(x, target).0, value);
            prop_assert!((d_value - numeric).abs() < 1e-2, "{d_value} {numeric}");
        }
    }
}
