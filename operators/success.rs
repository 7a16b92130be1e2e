//! How prompts went: the outcome of each group, and of a bin's last ones the success rate (floor 0: no timely).
//!
//! A *bin* holds prompts that are about as hard as each other ([`Prompt::bin`](crate::record::Prompt::bin)); what was seen of one
//! says something of the others. The policy changes, so only the last `window` groups of a bin count: those with the largest
//! numbers, in whatever order they came.

use crate::record::Rollout;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How one group went. Ordered by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Outcome {
    /// The group's.
    pub number: u64,
    /// Rollouts with a reward of at least 1.
    pub right: u32,
    /// Rollouts with a reward, at least one.
    pub scored: u32,
}

/// Whether a reward says that the prompt is solved: 1 is a right answer, and more one with a bonus.
pub fn solves(reward: f32) -> bool {
    reward >= 1.0
}

impl Outcome {
    /// Of a group's rewards; None where it has none.
    pub fn of(number: u64, rewards: impl IntoIterator<Item = Option<f32>>) -> Option<Self> {
        let (mut right, mut scored) = (0, 0);
        for reward in rewards.into_iter().flatten().filter(|reward| reward.is_finite()) {
            right += u32::from(solves(reward));
            scored += 1;
        }
        (scored > 0).then_some(Outcome { number, right, scored })
    }

    /// Of a group's rollouts.
    pub fn of_rollouts(number: u64, rollouts: &[Rollout]) -> Option<Self> {
        Outcome::of(number, rollouts.iter().map(|rollout| rollout.reward))
    }
}

/// The success of a bin: rollouts of the groups that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// Those with a reward of at least 1.
    pub right: u64,
    /// Those with a reward.
    pub scored: u64,
}

impl Rate {
    /// Over these groups together: every rollout weighs the same.
    pub fn over<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        outcomes.into_iter().fold(Rate::default(), |rate, outcome| Rate {
            right: rate.right + u64::from(outcome.right),
            scored: rate.scored + u64::from(outcome.scored),
        })
    }

    /// In 0..=1; NaN over no rollouts.
    pub fn share(self) -> f64 {
        self.right as f64 / self.scored as f64
    }
}

/// The outcomes that count, of each bin its last `window`: what [`curriculum`](crate::curriculum::curriculum) keeps in its collection,
/// for whoever reads a log.
///
/// ```
/// use tidegate_operators::success::{Outcome, Recent};
///
/// let mut recent = Recent::new(2);
/// for (number, right) in [(7, 4), (3, 0), (9, 2)] {
///     recent.add(5, Outcome { number, right, scored: 4 });
/// }
/// // Group 3 is too old.
/// let rates: Vec<(u64, f64)> = recent.rates().map(|(bin, rate)| (bin, rate.share())).collect();
/// assert_eq!(rates, [(5, 0.75)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    window: usize,
    bins: BTreeMap<u64, BTreeSet<Outcome>>,
}

impl Recent {
    pub fn new(window: usize) -> Self {
        Recent { window, bins: BTreeMap::new() }
    }

    /// Counts an outcome of a bin, and counts the oldest no more where they are too many.
    pub fn add(&mut self, bin: u64, outcome: Outcome) {
        let outcomes = self.bins.entry(bin).or_default();
        outcomes.insert(outcome);
        while outcomes.len() > self.window {
            outcomes.pop_first();
        }
    }

    /// All that count, by bin and number.
    pub fn outcomes(&self) -> impl Iterator<Item = (u64, Outcome)> {
        self.bins.iter().flat_map(|(bin, outcomes)| outcomes.iter().map(|outcome| (*bin, *outcome)))
    }

    /// Of each bin that has outcomes.
    pub fn rates(&self) -> impl Iterator<Item = (u64, Rate)> {
        self.bins.iter().filter(|(_, outcomes)| !outcomes.is_empty()).map(|(bin, outcomes)| (*bin, Rate::over(outcomes)))
    }
}

impl Extend<(u64, Outcome)> for Recent {
    fn extend<I: IntoIterator<Item = (u64, Outcome)>>(&mut self, outcomes: I) {
        outcomes.into_iter().for_each(|(bin, outcome)| self.add(bin, outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a success that is any reward above 0, and rewards that are missing or not finite and count as failures.
    #[test]
    fn outcomes_by_hand() {
        let of = |rewards: &[Option<f32>]| Outcome::of(3, rewards.iter().copied());
        assert_eq!(
            of(&[Some(1.0), Some(0.9), Some(2.0), Some(-1.0), None]),
            Some(Outcome { number: 3, right: 2, scored: 4 })
        );
        assert_eq!(of(&[Some(f32::NAN), Some(f32::INFINITY), None]), None);
        assert_eq!(of(&[Some(0.0), Some(f32::NAN)]), Some(Outcome { number: 3, right: 0, scored: 1 }));
    }

    /// Catches a mean of the groups' rates in place of the rate of their rollouts: 1 of 1 and 1 of 3 are 2 of 4.
    #[test]
    fn every_rollout_weighs_the_same() {
        let outcomes = [(0, 1, 1), (1, 1, 3)].map(|(number, right, scored)| Outcome { number, right, scored });
        assert_eq!(Rate::over(&outcomes), Rate { right: 2, scored: 4 });
        assert_eq!(Rate::over(&outcomes).share(), 0.5);
        assert!(Rate::default().share().is_nan());
    }

    /// Catches a window by order of arrival: groups end when they end, and which of them count must not depend on it.
    #[test]
    fn the_last_are_those_with_the_largest_numbers() {
        let outcomes = [4, 1, 9, 2, 7].map(|number| (6, Outcome { number, right: 0, scored: 1 }));
        let mut recent = Recent::new(3);
        recent.extend(outcomes);
        assert_eq!(recent.outcomes().map(|(_, outcome)| outcome.number).collect::<Vec<_>>(), [4, 7, 9]);
        let mut other = Recent::new(3);
        other.extend(outcomes.into_iter().rev());
        assert_eq!(other, recent);
    }
}
