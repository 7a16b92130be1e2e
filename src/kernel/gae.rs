//! Generalised advantage estimation over the tokens of one rollout.

use serde::{Deserialize, Serialize};

/// The two discounts of GAE (Schulman et al., arXiv 1506.02438), each in 0..=1 and counted in chosen tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gae {
    /// Discount of rewards.
    pub gamma: f32,
    /// Weight of later temporal differences: 0 is one step, 1 is reward-to-go minus value.
    pub lambda: f32,
}

impl Default for Gae {
    /// No discount of rewards, since a rollout has one and it comes last; and as much trust in the critic as PPO has.
    fn default() -> Self {
        Gae { gamma: 1.0, lambda: 0.95 }
    }
}

/// Advantages `[T]` of one rollout's tokens; add the values for the critic's targets.
///
/// With `next` the next *chosen* token: `delta_t = reward_t + gamma * value_next - value_t` and
/// `advantage_t = delta_t + gamma * lambda * advantage_next`. Tokens with a false mask are skipped: they are no time, what
/// stands in `rewards` and `values` there is not read, and their advantage is 0.0.
///
/// `bootstrap` is the value after the last chosen token: 0.0 where the rollout ended by itself; the critic's last estimate
/// where it was cut (at the length limit), since the rewards that it would still have got are then unknown, not 0.
///
/// # Panics
/// If the lengths differ.
///
/// ```
/// use tidegate::kernel::gae::{Gae, gae};
///
/// let kind = Gae { gamma: 0.5, lambda: 0.5 };
/// // The last token: 1 - 0.5. The first: 0 + 0.5 * 0.5 - 0.25, plus 0.25 of the last one's.
/// assert_eq!(gae(kind, &[0.0, 1.0], &[0.25, 0.5], &[true, true], 0.0), [0.125, 0.5]);
/// ```
pub fn gae(kind: Gae, rewards: &[f32], values: &[f32], mask: &[bool], bootstrap: f32) -> Vec<f32> {
    assert_eq!(rewards.len(), mask.len(), "rewards and mask are of the same tokens");
    assert_eq!(values.len(), mask.len(), "values and mask are of the same tokens");
    let (gamma, lambda) = (f64::from(kind.gamma), f64::from(kind.lambda));
    let mut advantages = vec![0.0; mask.len()];
    let (mut next_value, mut next_advantage) = (f64::from(bootstrap), 0.0);
    for t in (0..mask.len()).rev().filter(|&t| mask[t]) {
        let value = f64::from(values[t]);
        let delta = f64::from(rewards[t]) + gamma * next_value - value;
        next_advantage = delta + gamma * lambda * next_advantage;
        next_value = value;
        advantages[t] = next_advantage as f32;
    }
    advantages
}

/// What came after a rollout's last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing: it ended by itself.
    Own,
    /// More would have, had no limit cut it.
    Cut,
}

/// [`gae`] of a rollout whose one reward comes with its last chosen token. Where it was [cut](Ending::Cut) the value that
/// follows is the critic's last estimate, that before the last chosen token.
///
/// With both discounts 1 it is `reward - value` where the rollout ended by itself (PipelineRL, arXiv 2509.19128), up to
/// rounding: see [`value_advantages`](super::advantage::value_advantages).
///
/// # Panics
/// If the lengths differ.
///
/// ```
/// use tidegate::kernel::gae::{Ending, Gae, reward_gae};
///
/// let kind = Gae { gamma: 1.0, lambda: 1.0 };
/// assert_eq!(reward_gae(kind, 1.0, &[0.25, 9.0, 0.5], &[true, false, true], Ending::Own), [0.75, 0.0, 0.5]);
/// // Cut: the rewards to come are worth 0.5.
/// assert_eq!(reward_gae(kind, 1.0, &[0.25, 9.0, 0.5], &[true, false, true], Ending::Cut), [1.25, 0.0, 1.0]);
/// ```
pub fn reward_gae(kind: Gae, reward: f32, values: &[f32], mask: &[bool], ending: Ending) -> Vec<f32> {
    let mut rewards = vec![0.0; mask.len()];
    let Some(last) = mask.iter().rposition(|&chosen| chosen) else { return rewards };
    rewards[last] = reward;
    let bootstrap = match ending {
        Ending::Own => 0.0,
        Ending::Cut => values[last],
    };
    gae(kind, &rewards, values, mask, bootstrap)
}

/// What the critic's values are to come to, by the same estimate: `advantage + value` at chosen tokens, 0.0 at others. All
/// `[T]`. The advantages are those before any whitening.
///
/// # Panics
/// If the lengths differ.
pub fn value_targets(advantages: &[f32], values: &[f32], mask: &[bool]) -> Vec<f32> {
    assert_eq!(advantages.len(), mask.len(), "advantages and mask are of the same tokens");
    assert_eq!(values.len(), mask.len(), "values and mask are of the same tokens");
    let target = |t: usize| if mask[t] { advantages[t] + values[t] } else { 0.0 };
    (0..mask.len()).map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::advantage::value_advantages;
    use proptest::prelude::*;

    /// Hard case 7. Catches a cut rollout that is treated as one that ended: its last delta would be -0.5, not 0.
    #[test]
    fn a_cut_rollout_bootstraps() {
        let kind = Gae { gamma: 1.0, lambda: 0.0 };
        assert_eq!(gae(kind, &[0.0, 0.0], &[0.5, 0.5], &[true, true], 0.5), [0.0, 0.0]);
        assert_eq!(gae(kind, &[0.0, 0.0], &[0.5, 0.5], &[true, true], 0.0), [0.0, -0.5]);
    }

    /// Catches an index off by one on the shortest inputs.
    #[test]
    fn no_tokens_and_none_chosen() {
        let kind = Gae { gamma: 1.0, lambda: 1.0 };
        assert_eq!(gae(kind, &[], &[], &[], 3.0), [0.0; 0]);
        assert_eq!(gae(kind, &[f32::NAN], &[f32::NAN], &[false], f32::NAN), [0.0]);
    }

    /// One reward of 1 after three chosen tokens of values 0.5, 0.25, 0.5 with an environment's token between: gamma 0.5,
    /// lambda 0.5. From the end: 1 - 0.5 = 0.5; 0.5 * 0.5 - 0.25 + 0.25 * 0.5 = 0.125; 0.5 * 0.25 - 0.5 + 0.25 * 0.125 =
    /// -0.34375. Catches the reward at a masked last token (lost), and at every token.
    #[test]
    fn the_reward_comes_with_the_last_chosen_token() {
        let kind = Gae { gamma: 0.5, lambda: 0.5 };
        let (values, mask) = ([0.5, f32::NAN, 0.25, 0.5, 7.0], [true, false, true, true, false]);
        assert_eq!(reward_gae(kind, 1.0, &values, &mask, Ending::Own), [-0.34375, 0.0, 0.125, 0.5, 0.0]);
        // Cut: the last difference has 0.5 * 0.5 more, and 0.25 and 0.0625 of it reach the others.
        assert_eq!(reward_gae(kind, 1.0, &values, &mask, Ending::Cut), [-0.328125, 0.0, 0.1875, 0.75, 0.0]);
        assert_eq!(value_targets(&[-0.34375, 0.0, 0.125, 0.5, 0.0], &values, &mask), [0.15625, 0.0, 0.375, 1.0, 0.0]);
    }

    /// Hard case 9. Catches a reward, or a bootstrap, taken from a token that is not there.
    #[test]
    fn a_rollout_without_chosen_tokens_has_none() {
        let kind = Gae { gamma: 1.0, lambda: 1.0 };
        for ending in [Ending::Own, Ending::Cut] {
            assert_eq!(reward_gae(kind, 1.0, &[], &[], ending), [0.0; 0]);
            assert_eq!(reward_gae(kind, 1.0, &[f32::NAN; 2], &[false; 2], ending), [0.0; 2]);
        }
    }

    /// A critic's NaN at a chosen token is seen there and before it. Catches one that is dropped.
    #[test]
    fn a_nan_value_is_seen() {
        let found = reward_gae(Gae { gamma: 1.0, lambda: 0.5 }, 1.0, &[0.5, f32::NAN, 0.5], &[true; 3], Ending::Own);
        assert_eq!((found[0].is_nan(), found[1].is_nan(), found[2]), (true, true, 0.5));
    }

    proptest! {
        /// Catches a GAE that is not `reward - value` with both discounts 1, where a rollout ended by itself.
        #[test]
        fn undiscounted_is_reward_minus_value(
            tokens in prop::collection::vec((-1.0f32..1.0, any::<bool>()), 0..12), reward in -1.0f32..1.0
        ) {
            let (values, mask): (Vec<f32>, Vec<bool>) = tokens.into_iter().unzip();
            let found = reward_gae(Gae { gamma: 1.0, lambda: 1.0 }, reward, &values, &mask, Ending::Own);
            for (found, expected) in found.iter().zip(value_advantages(reward, &values, &mask)) {
                prop_assert!((found - expected).abs() < 1e-5);
            }
        }

        /// With both discounts 1 the sum telescopes to reward-to-go + bootstrap - value. Catches a delta or a recursion that
        /// uses the wrong neighbour.
        #[test]
        fn undiscounted_is_reward_to_go(
            tokens in prop::collection::vec((-1.0f32..1.0, -1.0f32..1.0), 1..12), bootstrap in -1.0f32..1.0
        ) {
            let (rewards, values): (Vec<f32>, Vec<f32>) = tokens.into_iter().unzip();
            let found = gae(Gae { gamma: 1.0, lambda: 1.0 }, &rewards, &values, &vec![true; values.len()], bootstrap);
            for t in 0..values.len() {
                let to_go: f32 = rewards[t..].iter().sum();
                prop_assert!((found[t] - (to_go + bootstrap - values[t])).abs() < 1e-5);
            }
        }

        /// Masked tokens are no time: without them the rest is the same, whatever stood there. Catches a discount or a value
        /// that crosses environment tokens.
        #[test]
        fn masked_tokens_are_not_there(
            tokens in prop::collection::vec((-1.0f32..1.0, -1.0f32..1.0, any::<bool>()), 0..12), garbage in any::<f32>()
        ) {
            let kind = Gae { gamma: 0.9, lambda: 0.8 };
            let mask: Vec<bool> = tokens.iter().map(|t| t.2).collect();
            let rewards: Vec<f32> = tokens.iter().map(|t| if t.2 { t.0 } else { garbage }).collect();
            let values: Vec<f32> = tokens.iter().map(|t| if t.2 { t.1 } else { garbage }).collect();
            let all = gae(kind, &rewards, &values, &mask, 0.3);
            let kept: Vec<_> = tokens.iter().filter(|t| t.2).collect();
            let (r, v): (Vec<f32>, Vec<f32>) = kept.iter().map(|t| (t.0, t.1)).unzip();
            let mut dense = gae(kind, &r, &v, &vec![true; r.len()], 0.3).into_iter();
            for (advantage, chosen) in all.into_iter().zip(mask) {
                prop_assert_eq!(advantage, if chosen { dense.next().unwrap() } else { 0.0 });
            }
        }
    }
}
