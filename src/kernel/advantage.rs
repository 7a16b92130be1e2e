//! Advantages of one group from its rewards.

use super::gae::Gae;
use serde::{Deserialize, Serialize};

/// What is added to the deviation before dividing by it; verl's value.
const EPSILON: f64 = 1e-6;

/// How a rollout's advantage comes from rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// Reward minus the mean of the others' (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; RLOO,
    /// arXiv 2402.14740).
    #[default]
    LeaveOneOut,
    /// Reward minus the group's mean (Dr. GRPO, arXiv 2503.20783).
    GroupMean,
    /// Reward minus the group's mean, over the group's sample deviation (n - 1 in the denominator) plus 1e-6 (GRPO, arXiv
    /// 2402.03300).
    GroupNormalised,
    /// Reward minus the group's mean, over the group's mean (MaxRL, arXiv 2602.02710): for rewards of 0 and 1 a gradient of
    /// `log p(success)` rather than of `p`, so that a prompt weighs the more the rarer its successes. Rewards are 0 or more.
    MaxRl,
    /// The reward as it is (REINFORCE, Williams 1992).
    Reinforce,
    /// The reward, [whitened](super::whiten) over the trained tokens of its batch (REINFORCE++, arXiv 2501.03262).
    BatchNormalised,
    /// By a critic's values: see [`gae`](super::gae).
    Gae(Gae),
}

impl Advantage {
    /// Whether rewards are compared within their group, so that equal ones teach nothing.
    pub fn compares_group(self) -> bool {
        match self {
            Advantage::LeaveOneOut | Advantage::GroupMean | Advantage::GroupNormalised | Advantage::MaxRl => true,
            Advantage::Reinforce | Advantage::BatchNormalised | Advantage::Gae(_) => false,
        }
    }
}

/// What [`group_advantages`] found in one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// `[G]` one advantage a rollout, finite; exactly 0.0 for a rollout whose reward is missing.
    pub advantages: Vec<f32>,
    /// How many rollouts had a reward. 0: the group is unscorable. 1: nothing to compare with, the advantage is 0.
    pub scored: usize,
    /// Whether there was a reward and all rewards were equal (also where only one was scored). Where the kind
    /// [compares](Advantage::compares_group) rewards every advantage is then 0.0.
    pub zero_variance: bool,
}

/// Advantages of one group's rollouts, in the order of `rewards` (`[G]`).
///
/// A reward that is None, NaN or infinite is missing: its rollout leaves the statistics and gets 0.0. Where all rewards are
/// equal everyone gets exactly 0.0, never a rounding error divided by a tiny deviation. 0.0 and -0.0 are equal rewards.
///
/// What compares nothing within a group ([`Advantage::Reinforce`], and what is made of its result later:
/// [`Advantage::BatchNormalised`] by the batch, [`Advantage::Gae`] by the values) gives the rewards themselves.
/// [`Advantage::MaxRl`] gives 0.0 to all where the mean is not above 0, as only negative rewards can make it.
///
/// ```
/// use tidegate::kernel::advantage::{Advantage, group_advantages};
///
/// let estimate = group_advantages(Advantage::LeaveOneOut, &[Some(1.0), Some(0.0), None, Some(0.0)]);
/// assert_eq!(estimate.advantages, [1.0, -0.5, 0.0, -0.5]);
/// assert_eq!((estimate.scored, estimate.zero_variance), (3, false));
/// ```
pub fn group_advantages(kind: Advantage, rewards: &[Option<f32>]) -> Estimate {
    // In f64 no sum of f32 rewards overflows, and the deviations keep the rewards' own precision.
    let known = |reward: &Option<f32>| reward.filter(|r| r.is_finite()).map(f64::from);
    let scored: Vec<f64> = rewards.iter().filter_map(known).collect();
    let zero_variance = scored.first().is_some_and(|first| scored.iter().all(|r| r == first));
    if scored.is_empty() || zero_variance && kind.compares_group() {
        return Estimate { advantages: vec![0.0; rewards.len()], scored: scored.len(), zero_variance };
    }
    // What compares has two different rewards here at least: n - 1 is at least 1 and the deviation is above 0.
    let n = scored.len() as f64;
    let sum: f64 = scored.iter().sum();
    let mean = sum / n;
    let advantage = |reward: f64| match kind {
        Advantage::LeaveOneOut => reward - (sum - reward) / (n - 1.0),
        Advantage::GroupMean => reward - mean,
        Advantage::GroupNormalised => (reward - mean) / (deviation(&scored, mean) + EPSILON),
        Advantage::MaxRl if mean > 0.0 => (reward - mean) / mean,
        Advantage::MaxRl => 0.0,
        Advantage::Reinforce | Advantage::BatchNormalised | Advantage::Gae(_) => reward,
    };
    let advantages = rewards.iter().map(|r| known(r).map_or(0.0, |r| narrow(advantage(r)))).collect();
    Estimate { advantages, scored: scored.len(), zero_variance }
}

/// Advantages of one rollout's tokens where there is a critic: `reward - value` at each token, with the critic's estimate
/// the value of the text before the token, `v(x, y<t)` (PipelineRL, arXiv 2509.19128); 0.0 where the mask is false. All `[T]`.
///
/// # Panics
/// If the lengths differ.
pub fn value_advantages(reward: f32, values: &[f32], mask: &[bool]) -> Vec<f32> {
    assert_eq!(values.len(), mask.len(), "values and mask are of the same tokens");
    values.iter().zip(mask).map(|(&value, &chosen)| if chosen { reward - value } else { 0.0 }).collect()
}

/// Sample deviation: n - 1 in the denominator.
fn deviation(rewards: &[f64], mean: f64) -> f64 {
    let squares: f64 = rewards.iter().map(|r| (r - mean) * (r - mean)).sum();
    (squares / (rewards.len() as f64 - 1.0)).sqrt()
}

/// To f32, kept finite: two rewards near the ends of the f32 range differ by more than it holds.
fn narrow(x: f64) -> f32 {
    x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Advantage; 4] =
        [Advantage::LeaveOneOut, Advantage::GroupMean, Advantage::GroupNormalised, Advantage::MaxRl];
    const RAW: [Advantage; 3] =
        [Advantage::Reinforce, Advantage::BatchNormalised, Advantage::Gae(Gae { gamma: 0.5, lambda: 0.5 })];

    fn estimate(kind: Advantage, rewards: &[f32]) -> Estimate {
        group_advantages(kind, &rewards.iter().copied().map(Some).collect::<Vec<_>>())
    }

    /// Hard case 1. Catches a mean that rounds ([0.1; 3] in f32), whose error the deviation then blows up.
    #[test]
    fn equal_rewards_give_exact_zeros() {
        for kind in KINDS {
            for rewards in [&[1.0; 4][..], &[0.0; 3], &[0.1; 3], &[0.1; 7], &[-0.3; 6], &[0.0, -0.0], &[f32::MAX; 5]] {
                let found = estimate(kind, rewards);
                assert!(found.advantages.iter().all(|&a| a == 0.0), "{kind:?} {rewards:?}: {found:?}");
                assert_eq!((found.scored, found.zero_variance), (rewards.len(), true), "{kind:?} {rewards:?}");
            }
        }
    }

    /// Hard case 2. Catches a group of one that is divided by n - 1 = 0 (NaN) or trained on its bare reward (0.7).
    #[test]
    fn a_group_of_one_has_advantage_zero() {
        for kind in KINDS {
            let found = estimate(kind, &[0.7]);
            assert_eq!(found, Estimate { advantages: vec![0.0], scored: 1, zero_variance: true }, "{kind:?}");
            let one_of_three = group_advantages(kind, &[None, Some(0.7), Some(f32::NAN)]);
            assert_eq!(one_of_three, Estimate { advantages: vec![0.0; 3], scored: 1, zero_variance: true }, "{kind:?}");
        }
    }

    /// Hard case 3. Catches a missing reward that counts as 0, or that turns its whole group to NaN.
    #[test]
    fn a_missing_reward_leaves_the_statistics() {
        for missing in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)] {
            let rewards = [missing, Some(1.0), Some(0.0)];
            let centred = group_advantages(Advantage::GroupMean, &rewards);
            assert_eq!(centred, Estimate { advantages: vec![0.0, 0.5, -0.5], scored: 2, zero_variance: false });
            assert_eq!(group_advantages(Advantage::LeaveOneOut, &rewards).advantages, [0.0, 1.0, -1.0]);
            // Deviation of {1, 0} is sqrt(1/2); 0.5 / (0.70710678 + 1e-6) = 0.70710578.
            let normalised = group_advantages(Advantage::GroupNormalised, &rewards).advantages;
            assert_eq!(normalised, [0.0, 0.707_105_76, -0.707_105_76]);
        }
    }

    /// Hard case 3, the end of it. Catches 0/0, and an unscorable or empty group that passes for one of equal rewards.
    #[test]
    fn nothing_scored_is_unscorable_not_zero_variance() {
        for kind in KINDS {
            let found = group_advantages(kind, &[None, Some(f32::NAN)]);
            assert_eq!(found, Estimate { advantages: vec![0.0; 2], scored: 0, zero_variance: false }, "{kind:?}");
            assert_eq!(group_advantages(kind, &[]), Estimate::default(), "{kind:?}");
        }
    }

    /// Hard cases 1 to 3 where nothing is compared: the reward is the advantage, equal or alone, and a missing one is 0.0, not
    /// NaN. Catches the shortcut for equal rewards where it is wrong.
    #[test]
    fn what_compares_nothing_gives_the_rewards() {
        for kind in RAW {
            assert!(!kind.compares_group());
            let equal = estimate(kind, &[0.1; 3]);
            assert_eq!((equal.advantages, equal.scored, equal.zero_variance), (vec![0.1; 3], 3, true), "{kind:?}");
            assert_eq!(estimate(kind, &[0.7]).advantages, [0.7], "{kind:?}");
            let missing = group_advantages(kind, &[Some(f32::NAN), Some(1.0), None, Some(-2.5)]);
            assert_eq!((missing.advantages, missing.scored), (vec![0.0, 1.0, 0.0, -2.5], 2), "{kind:?}");
            let nothing = group_advantages(kind, &[None, Some(f32::NAN)]);
            assert_eq!(nothing, Estimate { advantages: vec![0.0; 2], scored: 0, zero_variance: false }, "{kind:?}");
        }
    }

    /// One success of four: p = 1/4, so the success gets (1 - p) / p = 3 and the others -1; with three of four 1/3 and -1.
    /// Catches a division by the deviation (1.73 there), and by a mean that counts a missing reward.
    #[test]
    fn max_rl_scales_by_the_mean() {
        assert_eq!(estimate(Advantage::MaxRl, &[1.0, 0.0, 0.0, 0.0]).advantages, [3.0, -1.0, -1.0, -1.0]);
        assert_eq!(estimate(Advantage::MaxRl, &[1.0, 1.0, 0.0, 1.0]).advantages, [1.0 / 3.0, 1.0 / 3.0, -1.0, 1.0 / 3.0]);
        let missing = group_advantages(Advantage::MaxRl, &[None, Some(1.0), Some(0.0), Some(f32::NAN)]);
        assert_eq!(missing.advantages, [0.0, 1.0, -1.0, 0.0]);
        // Graded rewards: mean 0.5.
        assert_eq!(estimate(Advantage::MaxRl, &[0.25, 0.75]).advantages, [-0.5, 0.5]);
        // The largest that a group of n can give is n - 1, however small the reward.
        assert_eq!(estimate(Advantage::MaxRl, &[1e-30, 0.0, 0.0]).advantages, [2.0, -1.0, -1.0]);
    }

    /// Catches a sign that turns round, and 0/0, where the mean is not above 0.
    #[test]
    fn max_rl_makes_nothing_of_a_mean_that_is_not_above_0() {
        for rewards in [[-1.0, 1.0], [-1.0, 0.0], [-3.0, 1.0]] {
            assert_eq!(estimate(Advantage::MaxRl, &rewards).advantages, [0.0, 0.0], "{rewards:?}");
        }
    }

    /// Catches the population deviation (n): it would give 1.22474 for 1.06066 here.
    #[test]
    fn the_deviation_is_of_the_sample() {
        let found = estimate(Advantage::GroupNormalised, &[4.0, 2.0, 0.0, 2.0, 2.0]);
        // Squares 4 + 4 = 8, over n - 1 = 4: the deviation is sqrt(2).
        assert_eq!(found.advantages, [1.414_212_6, 0.0, -1.414_212_6, 0.0, 0.0]);
    }

    /// Catches a difference that overflows to infinity, and a sum that does.
    #[test]
    fn the_ends_of_the_range_stay_finite() {
        assert_eq!(estimate(Advantage::LeaveOneOut, &[f32::MAX, f32::MIN]).advantages, [f32::MAX, f32::MIN]);
        assert_eq!(estimate(Advantage::GroupMean, &[f32::MAX, f32::MAX, 0.0]).advantages[2], -(f32::MAX / 1.5));
    }

    /// Catches `value - reward`, and a NaN under the mask that leaks.
    #[test]
    fn with_a_critic_each_token_has_its_own() {
        let found = value_advantages(1.0, &[0.25, f32::NAN, 1.5], &[true, false, true]);
        assert_eq!(found, [0.75, 0.0, -0.5]);
    }

    proptest! {
        /// Catches any rounding or overflow that lets a non-number out, and a baseline that is not centred.
        #[test]
        fn advantages_are_finite_and_sum_to_zero(
            rewards in prop::collection::vec(prop::option::of(prop_oneof![
                4 => -10.0f32..10.0,
                1 => any::<f32>(),
                1 => Just(0.1f32),
            ]), 0..9)
        ) {
            for kind in KINDS.into_iter().chain(RAW) {
                let found = group_advantages(kind, &rewards);
                prop_assert_eq!(found.advantages.len(), rewards.len());
                prop_assert!(found.advantages.iter().all(|a| a.is_finite()), "{:?} {:?}", kind, found);
                if !kind.compares_group() {
                    continue;
                }
                let sum: f64 = found.advantages.iter().map(|&a| f64::from(a)).sum();
                let scale: f64 = found.advantages.iter().map(|&a| f64::from(a).abs()).sum();
                let at_the_end = found.advantages.iter().any(|a| a.abs() > 1e38);
                prop_assert!(at_the_end || sum.abs() <= 1e-6 * scale, "{:?} {:?}", kind, found);
            }
        }

        /// Leave-one-out is the centred reward times n / (n - 1). Catches a baseline that includes the rollout itself.
        #[test]
        fn leave_one_out_is_scaled_centring(rewards in prop::collection::vec(-10.0f32..10.0, 2..9)) {
            let n = rewards.len() as f32;
            let centred = estimate(Advantage::GroupMean, &rewards).advantages;
            for (loo, mean) in estimate(Advantage::LeaveOneOut, &rewards).advantages.iter().zip(centred) {
                prop_assert!((loo - mean * n / (n - 1.0)).abs() < 1e-4);
            }
        }
    }
}
