//! Schedules: when a group may be admitted, when it is due and which weights generators take, as pure functions (floor 0).
//!
//! Those by turns have phases of so many steps: phase p (from 0) are the steps `p * steps + 1 ..= (p + 1) * steps`. Its groups are due
//! at its last step, and none of them is trained before all are there ([`Selector::by_turns`](crate::select::Selector::by_turns)).

use crate::record::{Step, Version};
use serde::{Deserialize, Serialize};

/// How generation and training overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Both run all the time, and a token is trained at most `max_lag` steps after the weights that sampled it.
    Pipeline { max_lag: u64 },
    /// By turns: the groups of `steps` steps are sampled, then these steps are taken.
    Conventional { steps: u64 },
    /// The groups of the next phase are sampled while those of this one are trained.
    OneStepOff { steps: u64 },
}

/// When a generator takes newer weights that its schedule lets it have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsUpdate {
    /// Between two decode steps: sequences go on under them from their next token.
    #[default]
    InFlight,
    /// When none of its sequences runs any more, and until then it starts none: every rollout is of one version. What in-flight updates are
    /// compared with.
    Drain,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule::Pipeline { max_lag: 8 }
    }
}

impl Schedule {
    /// The last step that may train a group admitted while `version` is the newest seen and `live` groups are live, of
    /// `batch_groups` a step. It rises with both.
    pub fn due(self, version: Version, live: u64, batch_groups: u64) -> Step {
        match self {
            Schedule::Pipeline { .. } => self.newest(version),
            Schedule::Conventional { steps } | Schedule::OneStepOff { steps } => {
                let whole = live / steps.saturating_mul(batch_groups).max(1);
                whole.max(version / steps).saturating_add(1).saturating_mul(steps)
            }
        }
    }

    /// The largest due of a group admitted while `version` is the newest seen.
    pub fn newest(self, version: Version) -> Step {
        match self {
            Schedule::Pipeline { max_lag } => version.saturating_add(max_lag).saturating_add(1),
            Schedule::Conventional { steps } => (version / steps).saturating_add(1).saturating_mul(steps),
            Schedule::OneStepOff { steps } => (version / steps).saturating_add(2).saturating_mul(steps),
        }
    }

    /// The oldest version that may sample a token of a group due at `due`.
    pub fn oldest(self, due: Step) -> Version {
        due.saturating_sub(self.bound().saturating_add(1))
    }

    /// How many groups may be live (admitted and not discarded, trained ones included) while `version` is the newest
    /// seen: what the steps up to the newest due can train, of the run's `steps` with `batch_groups` each.
    pub fn budget(self, version: Version, steps: Step, batch_groups: u64) -> u64 {
        self.newest(version).min(steps).saturating_mul(batch_groups)
    }

    /// The largest lag of a trained token, steps.
    pub fn bound(self) -> u64 {
        match self {
            Schedule::Pipeline { max_lag } => max_lag,
            Schedule::Conventional { steps } => steps.saturating_sub(1),
            Schedule::OneStepOff { steps } => steps.saturating_mul(2).saturating_sub(1),
        }
    }

    /// Steps of a phase, for a schedule by turns.
    pub fn phase(self) -> Option<u64> {
        match self {
            Schedule::Pipeline { .. } => None,
            Schedule::Conventional { steps } | Schedule::OneStepOff { steps } => Some(steps),
        }
    }

    /// Whether generators take the weights of `version`: by turns only those between two phases.
    pub fn swaps(self, version: Version) -> bool {
        self.phase().is_none_or(|steps| version.is_multiple_of(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a due or budget that is one step off: with max_lag 0 the first group is due at step 1 and one batch is live.
    #[test]
    fn pipeline_numbers() {
        let on_policy = Schedule::Pipeline { max_lag: 0 };
        assert_eq!((on_policy.due(0, 0, 4), on_policy.budget(0, 10, 4), on_policy.bound()), (1, 4, 0));
        let lagged = Schedule::Pipeline { max_lag: 3 };
        assert_eq!((lagged.due(2, 0, 4), lagged.oldest(6), lagged.budget(2, 10, 4)), (6, 2, 24));
        assert_eq!(lagged.budget(8, 10, 4), 40, "never more than the run's steps can train");
        assert!(lagged.swaps(7) && lagged.phase().is_none());
    }

    /// Catches a phase that is one step off: phases of 3 steps with 2 groups each, versions and live groups around their ends.
    #[test]
    fn numbers_by_turns() {
        let turns = Schedule::Conventional { steps: 3 };
        assert_eq!([(0, 0), (0, 5), (2, 5), (3, 6), (5, 11)].map(|(v, live)| turns.due(v, live, 2)), [3, 3, 3, 6, 6]);
        assert_eq!([0, 2, 3, 6].map(|v| turns.budget(v, 8, 2)), [6, 6, 12, 16]);
        assert_eq!((turns.oldest(6), turns.bound()), (3, 2));
        let off = Schedule::OneStepOff { steps: 3 };
        assert_eq!([(0, 0), (0, 5), (0, 6), (3, 6), (3, 12)].map(|(v, live)| off.due(v, live, 2)), [3, 3, 6, 6, 9]);
        assert_eq!([0, 2, 3, 6].map(|v| off.budget(v, 20, 2)), [12, 12, 18, 24]);
        assert_eq!((off.oldest(9), off.oldest(3), off.bound()), (3, 0, 5));
        assert_eq!([0, 1, 3, 4].map(|v| off.swaps(v)), [true, false, true, false]);
    }
}
