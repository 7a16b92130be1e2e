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

/// Where the learner's worker spent its time in a step: nanoseconds, together with training and the log that of the whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub whole_ns: u64,
    /// It waited for groups; meanwhile it may have generated.
    pub waited_ns: u64,
    /// A step was open, and it did something else: on a worker of both roles, decode steps.
    pub elsewhere_ns: u64,
}

/// Steps after which what was measured in them decides.
const STEPS: u32 = 4;

/// Where a wait is short enough to be none, and a time spent elsewhere to cost nothing: a share of the whole.
const NOTHING: f64 = 0.05;

/// How many rollouts a generator that shares the learner's worker gets at most, between none and all of its slots.
///
/// What it generates while its worker has nothing to train costs nobody. What it generates while a step is open holds the step up; that
/// is a loss only if the other generators could have done it, that is, if they were idle. So it gets fewer where both are so, and more
/// where its worker waited for groups: a quarter of its slots at a time.
///
/// ```
/// use tidegate_operators::balance::{Share, Spent};
///
/// let mut share = Share::new(16, 4);
/// // For four steps decode steps hold training up, and the others are idle half of the time.
/// let spent = Spent { whole_ns: 100, waited_ns: 0, elsewhere_ns: 40 };
/// (0..4).for_each(|_| share.step(spent, 50));
/// assert_eq!(share.rollouts(), 12);
/// // Then it has nothing to train.
/// (0..4).for_each(|_| share.step(Spent { whole_ns: 100, waited_ns: 30, elsewhere_ns: 0 }, 50));
/// assert_eq!(share.rollouts(), 16);
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
        self.spent.elsewhere_ns += spent.elsewhere_ns;
        self.idle_ns += idle_ns;
        self.steps += 1;
        if self.steps < STEPS {
            return;
        }
        let share = |ns: u64| ns as f64 / self.spent.whole_ns.max(1) as f64;
        let [waited, elsewhere, idle] = [self.spent.waited_ns, self.spent.elsewhere_ns, self.idle_ns].map(share);
        let quarter = (self.slots / 4).max(self.group);
        if elsewhere.min(idle) > NOTHING && elsewhere.min(idle) > waited {
            self.rollouts = self.rollouts.saturating_sub(quarter);
        } else if waited > NOTHING {
            self.rollouts = (self.rollouts + quarter).min(self.slots);
        }
        (self.steps, self.spent, self.idle_ns) = (0, Spent::default(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(share: &mut Share, steps: u32, waited: u64, elsewhere: u64, idle: u64) -> usize {
        (0..steps).for_each(|_| share.step(Spent { whole_ns: 1000, waited_ns: waited, elsewhere_ns: elsewhere }, idle));
        share.rollouts()
    }

    /// Catches a share below none or above all slots, one that moves with every step, and a measurement that counts twice.
    #[test]
    fn it_moves_by_quarters_within_its_bounds() {
        let mut share = Share::new(128, 8);
        assert_eq!(after(&mut share, 3, 0, 400, 400), 128);
        assert_eq!([1, 4, 4, 4, 4, 4].map(|steps| after(&mut share, steps, 0, 400, 400)), [96, 64, 32, 0, 0, 0]);
        assert_eq!([3, 1, 4, 4, 4, 4].map(|steps| after(&mut share, steps, 200, 0, 0)), [0, 32, 64, 96, 128, 128]);
        assert_eq!(after(&mut Share::new(8, 8), 4, 0, 400, 400), 0, "a quarter is a group at least");
    }

    /// Catches generation that is taken away although nobody else could do it, or although it costs nothing, and one that comes although
    /// there is enough.
    #[test]
    fn it_moves_only_for_a_reason() {
        let still = |waited, elsewhere, idle| {
            let mut share = Share::new(16, 4);
            after(&mut share, 4, 0, 900, 900);
            after(&mut share, 4, waited, elsewhere, idle) as i64 - 12
        };
        assert_eq!(still(0, 400, 40), 0, "the others have no time for it");
        assert_eq!(still(0, 40, 400), 0, "it costs nothing");
        assert_eq!((still(50, 0, 0), still(51, 0, 0)), (0, 4));
        assert_eq!((still(300, 400, 200), still(100, 400, 200)), (4, -4), "what is lost most counts");
    }

    /// Steps of no length, as tests take them.
    #[test]
    fn nothing_measured_changes_nothing() {
        let mut share = Share::new(16, 4);
        (0..9).for_each(|_| share.step(Spent::default(), 0));
        assert_eq!(share.rollouts(), 16);
    }
}
