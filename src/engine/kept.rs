//! Which tokens of a batch are trained: those that the policy chose, without those that a safeguard leaves out for their lag.
//!
//! What is left out is as if it were masked: it has no gradient, and no place in a denominator or a mean. The rollout's own mask
//! stays what the policy chose, for the log.

use crate::engine::spec::Learning;
use crate::kernel::aggregation::token_weights;
use std::borrow::Cow;
use tidegate_operators::record::Rollout;

/// Lag of each token in the rollout's `step`, which `train` has filled; nothing where no versions are recorded.
pub fn lags(rollout: &Rollout) -> impl Iterator<Item = u64> {
    let trained = rollout.step.saturating_sub(1);
    rollout.version.iter().map(move |&sampled| trained.saturating_sub(sampled))
}

/// `[T]` the tokens of a rollout that are trained. A token without a recorded version has no lag.
pub fn kept<'a>(learning: &Learning, rollout: &'a Rollout) -> Cow<'a, [bool]> {
    if !learning.safeguard.leaves_out() {
        return Cow::Borrowed(&rollout.mask);
    }
    let lags = lags(rollout).chain(std::iter::repeat(0));
    rollout.mask.iter().zip(lags).map(|(&chosen, lag)| chosen && learning.safeguard.keeps(lag)).collect()
}

/// `[batch]` what each rollout's tokens weigh in the batch's loss: 0 where none of them is trained.
pub fn weights(learning: &Learning, batch: &[Rollout]) -> Vec<f32> {
    let none: Cow<'_, [bool]> = Cow::Borrowed(&[]);
    let masks = batch.iter().map(|r| if r.trainable() { kept(learning, r) } else { none.clone() }).collect::<Vec<_>>();
    token_weights(learning.aggregation, &masks.iter().map(|mask| &**mask).collect::<Vec<_>>())
}

/// How many tokens of the batch were chosen and are left out.
pub fn left_out(learning: &Learning, batch: &[Rollout]) -> u64 {
    let count = |mask: &[bool]| mask.iter().filter(|&&chosen| chosen).count() as u64;
    let trainable = batch.iter().filter(|rollout| learning.safeguard.leaves_out() && rollout.trainable());
    trainable.map(|rollout| count(&rollout.mask) - count(&kept(learning, rollout))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::aggregation::Aggregation;
    use crate::kernel::safeguard::Safeguard;
    use tidegate_operators::record::{Reason, Status};

    fn learning(max_lag: f64) -> Learning {
        let aggregation = Aggregation::TokenMean;
        Learning { aggregation, safeguard: Safeguard { max_lag, ..Safeguard::default() }, ..Learning::default() }
    }

    /// Step 6 trains version 5.
    fn rollout(version: &[u64]) -> Rollout {
        Rollout { step: 6, version: version.to_vec(), mask: vec![true; version.len()], ..Rollout::default() }
    }

    /// Lags 3, 2, 1 and 0. Catches a lag that counts from the step, and a masked token that comes back.
    #[test]
    fn a_token_is_left_out_for_its_own_lag() {
        let mut rollout = rollout(&[2, 3, 4, 5]);
        rollout.mask[2] = false;
        assert_eq!(lags(&rollout).collect::<Vec<_>>(), [3, 2, 1, 0]);
        assert_eq!(*kept(&learning(2.0), &rollout), [false, true, false, true]);
        assert_eq!(*kept(&learning(0.0), &rollout), [false, false, false, true]);
        assert_eq!(*kept(&learning(f64::INFINITY), &rollout), rollout.mask);
        rollout.version.clear();
        assert_eq!(*kept(&learning(0.0), &rollout), rollout.mask, "a demonstration has no lag");
    }

    /// Of 4 + 2 tokens chosen three are young enough. Catches what is left out and stays in a denominator, a rollout without a
    /// token that has a weight, and one that is not trained and counts.
    #[test]
    fn what_is_left_out_leaves_the_denominators() {
        let refused = Rollout { status: Status::Discarded(Reason::NoReward), ..rollout(&[0, 5]) };
        let batch = [rollout(&[0, 4, 5, 5]), rollout(&[3, 3]), refused];
        assert_eq!(weights(&learning(1.0), &batch), [1.0 / 3.0, 0.0, 0.0]);
        assert_eq!(left_out(&learning(1.0), &batch), 3);
        assert_eq!(weights(&learning(f64::INFINITY), &batch), [1.0 / 6.0, 1.0 / 6.0, 0.0]);
        assert_eq!(left_out(&learning(f64::INFINITY), &batch), 0);
    }
}
