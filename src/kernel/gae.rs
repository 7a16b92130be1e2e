//! Generalised advantage estimation over the tokens of one rollout.

/// The two discounts of GAE (Schulman et al., arXiv 1506.02438), each in 0..=1 and counted in chosen tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gae {
    /// Discount of rewards.
    pub gamma: f32,
    /// Weight of later temporal differences: 0 is one step, 1 is reward-to-go minus value.
    pub lambda: f32,
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

#[cfg(test)]
mod tests {
    use super::*;
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

    proptest! {
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
