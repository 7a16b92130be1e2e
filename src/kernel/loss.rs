//! Policy and value losses and their derivatives.
//!
//! All are per token and not aggregated: multiply by [`token_weights`](super::aggregation::token_weights) and add. The
//! learner back-propagates `sum(coefficient * logp_current)` with the coefficient `weight of the sequence * d_logp`.
//! `docs/losses.md` says of each when to use it.

mod decoupled;
mod importance;
mod ppo;
mod sequence;
#[cfg(test)]
pub(crate) mod tests;

use super::ratio::{SequenceRatio, sequence_log_ratio};
use serde::{Deserialize, Serialize};

/// The policy loss of a run. With `r = exp(logp_current - logp_behavior)` (exponent cut at ±20) and `A` the advantage:
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Loss {
    /// Truncated-importance REINFORCE (PipelineRL, arXiv 2509.19128): with the weight `w = min(cap, r)` *detached*, the loss
    /// is `-w * A * logp_current` and its derivative `-w * A`.
    ///
    /// `w` depends on `logp_current`, yet is a constant to the derivative: `d_logp` is the slope of the reported loss with
    /// `w` held, not of the loss as a function of `logp_current`. The loss is there to be differentiated; its height says
    /// nothing about the policy. A token above the cap still learns, at weight `cap`. `cap` is above 0; the paper's is 5.
    Reinforce {
        #[serde(default = "default::cap")]
        cap: f32,
    },
    /// The same with a bound from below as well (CISPO, MiniMax-M1, arXiv 2506.13585, equations 4 and 5):
    /// `w = clip(r, 1 - clip_low, 1 + clip_high)`, detached. A token that the current policy has become unlikely to choose
    /// keeps a weight of `1 - clip_low`, where [`Loss::Reinforce`] would let it fade. The paper ran without the lower bound:
    /// `clip_low = 1` is [`Loss::Reinforce`] with `cap = 1 + clip_high`. `clip_low` in 0..=1, `clip_high` at least 0.
    Cispo {
        #[serde(default = "default::clip_low")]
        clip_low: f32,
        #[serde(default = "default::clip_high")]
        clip_high: f32,
    },
    /// PPO's clipped surrogate (arXiv 1707.06347, equation 7) with two bounds (DAPO, arXiv 2503.14476): the loss is
    /// `-min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)`; its derivative is `-r * A` where the first is the smaller or
    /// they are equal, and 0 where the bound is, or where the exponent was cut. `clip_low` in 0..=1, `clip_high` at least 0.
    Ppo {
        #[serde(default = "default::clip_low")]
        clip_low: f32,
        #[serde(default = "default::clip_high")]
        clip_high: f32,
    },
    /// PPO with a lower bound for negative advantages (dual clip, arXiv 1912.09729): where `A < 0` the loss is at
    /// most `-cap_negative * A`, and flat from there on, so that no ratio, however large, makes a gradient as large.
    /// `cap_negative` at least 1; the paper's is 3.
    DualClip {
        #[serde(default = "default::clip_low")]
        clip_low: f32,
        #[serde(default = "default::clip_high")]
        clip_high: f32,
        #[serde(default = "default::cap_negative")]
        cap_negative: f32,
    },
    /// PPO's surrogate of one ratio a sequence, the geometric mean `s` of its tokens' (GSPO, arXiv 2507.18071; per token as in
    /// its section 4.3): the loss is `-min(s * A, clip(s, ..) * A)` at every token, and the derivative `-s * A`, or 0 where the
    /// bound is. Averaged over the sequence ([`SeqMeanTokenMean`](super::aggregation::Aggregation::SeqMeanTokenMean)), that is
    /// the gradient of the paper's `-min(s * A, clip(s, ..) * A)`, in which `d s / d logp = s / n`.
    Gspo {
        #[serde(default = "default::gspo_low")]
        clip_low: f32,
        #[serde(default = "default::gspo_high")]
        clip_high: f32,
    },
    /// Decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298): the surrogate bounds how far the policy is from
    /// a *proximal* one, and a weight corrects for the policy that sampled. With `u` current over proximal and
    /// `w = min(cap, proximal over behavior)`, both proximal and `w` detached, the loss is
    /// `-w * min(u * A, clip(u, 1 - clip_low, 1 + clip_high) * A)`.
    ///
    /// The proximal policy is the one a step before the current, and its log-probability is not computed but interpolated
    /// (A-3PO, arXiv 2512.06547): `logp_behavior + (logp_current - logp_behavior) * (lag - 1) / lag`, as if it had moved evenly
    /// over the `lag` steps since. So `u` is the ratio's change of one step. At a lag of 1 or 0 it is the behavior policy, and
    /// the loss that of [`Loss::Ppo`].
    DecoupledPpo {
        #[serde(default = "default::clip_low")]
        clip_low: f32,
        #[serde(default = "default::clip_high")]
        clip_high: f32,
        #[serde(default = "default::cap")]
        cap: f32,
    },
    /// REINFORCE with one weight a sequence, `w = min(cap, ratio of the sequence)`, detached.
    SequenceTruncated {
        #[serde(default = "default::product")]
        ratio: SequenceRatio,
        #[serde(default = "default::cap")]
        cap: f32,
    },
    /// [`Loss::Reinforce`] without the sequences whose ratio is outside `low..=high`: their tokens have loss, derivative and
    /// weight 0 (and stay in the denominators, which are those of the batch before it is computed). `low` in 0..=1, `high` at
    /// least 1.
    SequenceMasked {
        #[serde(default = "default::geometric_mean")]
        ratio: SequenceRatio,
        #[serde(default = "default::low")]
        low: f32,
        #[serde(default = "default::high")]
        high: f32,
        #[serde(default = "default::cap")]
        cap: f32,
    },
    /// Negative log-likelihood, for warm starts: the loss is `-logp_current` and its derivative -1. Nothing else is read.
    Supervised,
}

/// What keys are where a specification leaves them out.
mod default {
    use super::SequenceRatio;

    pub fn cap() -> f32 {
        5.0
    }
    pub fn cap_negative() -> f32 {
        3.0
    }
    pub fn clip_low() -> f32 {
        0.2
    }
    pub fn clip_high() -> f32 {
        0.28
    }
    pub fn gspo_low() -> f32 {
        3e-4
    }
    pub fn gspo_high() -> f32 {
        4e-4
    }
    pub fn low() -> f32 {
        0.8
    }
    pub fn high() -> f32 {
        1.25
    }
    pub fn product() -> SequenceRatio {
        SequenceRatio::Product
    }
    pub fn geometric_mean() -> SequenceRatio {
        SequenceRatio::GeometricMean
    }
}

impl Default for Loss {
    fn default() -> Self {
        Loss::Reinforce { cap: default::cap() }
    }
}

impl Loss {
    /// Whether it reads `logp_behavior` and the advantage, which a demonstration does not have.
    pub fn reads_behavior(self) -> bool {
        !matches!(self, Loss::Supervised)
    }

    /// Whether it reads each token's lag.
    pub fn reads_lag(self) -> bool {
        matches!(self, Loss::DecoupledPpo { .. })
    }
}

/// The detached numbers of one sequence, each `[T]`; log-probabilities in nats, at the sampling temperature. A list that the
/// loss does not read may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Under the weights that are being trained.
    pub logp_current: &'a [f32],
    /// As recorded when the token was sampled.
    pub logp_behavior: &'a [f32],
    pub advantage: &'a [f32],
    /// Steps between the weights that sampled the token and those that are being trained.
    pub lag: &'a [u64],
    /// True where the token is trained.
    pub mask: &'a [bool],
}

/// One token of [`Tokens`]: NaN, and a lag of 0, where the list is empty.
#[derive(Clone, Copy, Debug)]
struct Token {
    logp_current: f32,
    logp_behavior: f32,
    advantage: f32,
    lag: u64,
}

impl Tokens<'_> {
    /// `out[t] = of(token t)` for the tokens that are trained.
    fn terms(self, out: &mut [Term], of: impl Fn(Token) -> Term) {
        let number = |list: &[f32], t: usize| list.get(t).copied().unwrap_or(f32::NAN);
        for (t, term) in out.iter_mut().enumerate().filter(|&(t, _)| self.mask[t]) {
            *term = of(Token {
                logp_current: self.logp_current[t],
                logp_behavior: number(self.logp_behavior, t),
                advantage: number(self.advantage, t),
                lag: self.lag.get(t).copied().unwrap_or(0),
            });
        }
    }

    /// Logarithm of the whole sequence's ratio.
    fn log_ratio(self, kind: SequenceRatio) -> f32 {
        sequence_log_ratio(kind, self.logp_current, self.logp_behavior, self.mask)
    }
}

/// One token's part. All zero for a masked token, which is to be left out of every mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Term {
    pub loss: f32,
    /// Derivative of the loss with respect to `logp_current`.
    pub d_logp: f32,
    /// `exp(logp_current - logp_behavior)`, the exponent cut at ±20, or the whole sequence's ratio where the loss weighs with
    /// that; 1 for [`Loss::Supervised`].
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
///     lag: &[],
///     mask: &[true, true, false],
/// };
/// policy_loss(Loss::Reinforce { cap: 5.0 }, tokens, &mut terms);
/// assert_eq!(terms[0], Term { loss: 2.0, d_logp: -2.0, ratio: 1.0, weight: 1.0, clipped: false });
/// assert_eq!((terms[1].d_logp, terms[1].clipped), (-5.0, true));
/// assert_eq!(terms[2], Term::default());
/// ```
pub fn policy_loss(loss: Loss, tokens: Tokens<'_>, out: &mut Vec<Term>) {
    let length = tokens.mask.len();
    assert_eq!(tokens.logp_current.len(), length, "logp_current and mask are of the same tokens");
    if loss.reads_behavior() {
        assert_eq!(tokens.logp_behavior.len(), length, "logp_behavior and mask are of the same tokens");
        assert_eq!(tokens.advantage.len(), length, "advantage and mask are of the same tokens");
    }
    if loss.reads_lag() {
        assert_eq!(tokens.lag.len(), length, "lag and mask are of the same tokens");
    }
    out.clear();
    out.resize(length, Term::default());
    match loss {
        Loss::Reinforce { cap } => tokens.terms(out, |token| importance::reinforce(token, cap)),
        Loss::Cispo { clip_low, clip_high } => tokens.terms(out, |token| importance::cispo(token, [clip_low, clip_high])),
        Loss::Ppo { clip_low, clip_high } => tokens.terms(out, |token| ppo::ppo(token, [clip_low, clip_high])),
        Loss::DualClip { clip_low, clip_high, cap_negative } => {
            tokens.terms(out, |token| ppo::dual_clip(token, [clip_low, clip_high], cap_negative));
        }
        Loss::Gspo { clip_low, clip_high } => {
            let log_ratio = tokens.log_ratio(SequenceRatio::GeometricMean);
            tokens.terms(out, |token| sequence::gspo(token, log_ratio, [clip_low, clip_high]));
        }
        Loss::DecoupledPpo { clip_low, clip_high, cap } => {
            tokens.terms(out, |token| decoupled::decoupled_ppo(token, [clip_low, clip_high], cap));
        }
        Loss::SequenceTruncated { ratio, cap } => {
            let log_ratio = tokens.log_ratio(ratio);
            tokens.terms(out, |token| sequence::truncated(token, log_ratio, cap));
        }
        Loss::SequenceMasked { ratio, low, high, cap } => {
            let log_ratio = tokens.log_ratio(ratio);
            tokens.terms(out, |token| sequence::masked(token, log_ratio, [low, high], cap));
        }
        Loss::Supervised => tokens.terms(out, |token| supervised(token.logp_current)),
    }
}

fn supervised(logp_current: f32) -> Term {
    Term { loss: -logp_current, d_logp: -1.0, ratio: 1.0, weight: 1.0, clipped: false }
}

/// The critic's loss at one token, `(target - value)^2`, and its derivative with respect to `value`, `2 * (value - target)`.
///
/// As the text of PipelineRL (arXiv 2509.19128) has it, "(R - v)^2", so that a spec's coefficient is that of the paper's
/// formula. Its authors' code and verl put a half before the square: their coefficient 0.1 is 0.05 here. With a bound around
/// the value at sampling time: [`clipped_value_loss`](super::critic::clipped_value_loss).
pub fn value_loss(value: f32, target: f32) -> (f32, f32) {
    let difference = value - target;
    (difference * difference, 2.0 * difference)
}
