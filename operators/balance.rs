//! How much a worker that trains generates beside it, by what each side waited for (floor 0: no timely, no clocks).
//!
//! Only the choice of a generator for a group that is admitted anyway is made here, so that the lag rule does not know of it: the same
//! groups are admitted at the same dues, and each is sampled by one generator or another. A run's log says which, and a replay trains
//! what is in it.

use serde::{Deserialize, Serialize};

/// Who decides how much a worker with both roles generates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Nobody: it has as many slots as the others, and takes a piece of a step and a decode step in turn.
    #[default]
    Fixed,
    /// [`Share`]: it gets groups as long as its training does not suffer from them.
    Auto,
}

/// How long the learner's worker took for a step, nanoseconds, and for how long of it it waited for groups; meanwhile it may have
/// generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub whole_ns: u64,
    pub waited_ns: u64,
}

/// Steps after which what was measured in them decides.
const STEPS: u32 = 4;

/// Up to which share of the time a wait is none.
const NOTHING: f64 = 0.05;

/// How many rollouts a generator that shares the learner's worker gets at most, between none and all of its slots.
///
/// Where the other generators are idle, the bound on lag holds them back: training is short, or waits for what this one has not
/// finished beside it. They could sample its groups, so it gets half as many. Where they are not, and the learner waited for groups, sampling is
/// short: it gets more, by an eighth of its slots.
///
/// ```
/// use tidegate_operators::balance::{Share, Spent};
///
/// let mut share = Share::new(16, 4);
/// // For four steps the others are idle half of the time.
/// (0..4).for_each(|_| share.step(Spent { whole_ns: 100, waited_ns: 0 }, 50));
/// assert_eq!(share.rollouts(), 8);
/// // Then they are not, and there is nothing to train.
/// (0..4).for_each(|_| share.step(Spent { whole_ns: 100, waited_ns: 30 }, 0));
/// assert_eq!(share.rollouts(), 12);
/// ```
#[derive(Clone, Debug)]
pub struct Share {
    slots: usize,
    /// Rollouts of one group.
    group: usize,
    rollouts: usize,
    steps: u32,
    spent: Spent,
    /// That the other generators had nothing in progress, on average.
    idle_ns: u64,
}

impl Share {
    /// All of `slots` at first; groups have so many rollouts.
    pub fn new(slots: usize, group: usize) -> Self {
        Share { slots, group, rollouts: slots, steps: 0, spent: Spent::default(), idle_ns: 0 }
    }

    /// How many rollouts it may have in progress.
    pub fn rollouts(&self) -> usize {
        self.rollouts
    }

    /// A step was done; the other generators, on average, had nothing in progress for `idle_ns` since the one before.
    pub fn step(&mut self, spent: Spent, idle_ns: u64) {
        self.spent.whole_ns += spent.whole_ns;
        self.spent.waited_ns += spent.waited_ns;
        self.idle_ns += idle_ns;
        self.steps += 1;
        if self.steps < STEPS {
            return;
        }
        let passed = |ns: u64| ns as f64 > NOTHING * self.spent.whole_ns as f64;
        if passed(self.idle_ns) {
            let half = self.rollouts / 2;
            self.rollouts = if half < self.group { 0 } else { half };
        } else if passed(self.spent.waited_ns) {
            self.rollouts = (self.rollouts + (self.slots / 8).max(self.group)).min(self.slots);
        }
        (self.steps, self.spent, self.idle_ns) = (0, Spent::default(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(share: &mut Share, steps: u32, waited: u64, idle: u64) -> usize {
        (0..steps).for_each(|_| share.step(Spent { whole_ns: 1000, waited_ns: waited }, idle));
        share.rollouts()
    }

    /// Catches a share below none or above all slots, one that moves with every step, a measurement that counts twice, and room for a part
    /// of a group, which would be taken for a whole one.
    #[test]
    fn it_moves_within_its_bounds() {
        let mut share = Share::new(128, 8);
        assert_eq!(after(&mut share, 3, 0, 400), 128);
        assert_eq!([1, 4, 4, 4, 4, 4].map(|steps| after(&mut share, steps, 0, 400)), [64, 32, 16, 8, 0, 0]);
        assert_eq!([3, 1, 4, 4].map(|steps| after(&mut share, steps, 200, 0)), [0, 16, 32, 48]);
        assert_eq!((after(&mut share, 4 * 9, 200, 0), after(&mut Share::new(8, 8), 4, 0, 400)), (128, 0));
        assert_eq!(after(&mut Share::new(8, 8), 4, 200, 0), 8);
    }

    /// Catches a share that changes for nothing, and one that grows although others are idle: what it has is what is waited for.
    #[test]
    fn it_moves_only_for_a_reason() {
        let moves = |waited, idle| {
            let mut share = Share::new(16, 2);
            after(&mut share, 4, 0, 900);
            after(&mut share, 4, waited, idle) as i64 - 8
        };
        assert_eq!((moves(50, 50), moves(51, 50), moves(50, 51), moves(900, 51)), (0, 2, -4, -4));
    }

    /// Steps of no length, as tests take them.
    #[test]
    fn nothing_measured_changes_nothing() {
        let mut share = Share::new(16, 4);
        (0..9).for_each(|_| share.step(Spent::default(), 0));
        assert_eq!(share.rollouts(), 16);
    }
}
