//! Schedules: when a group may be admitted and when it is due, as pure functions of the version (floor 0).

use crate::record::{Step, Version};
use serde::{Deserialize, Serialize};

/// How generation and training overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Both run all the time, and a token is trained at most `max_lag` steps after the weights that sampled it.
    Pipeline { max_lag: u64 },
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule::Pipeline { max_lag: 8 }
    }
}

impl Schedule {
    /// The last step that may train a group admitted while `version` is the newest seen.
    pub fn due(self, version: Version) -> Step {
        match self {
            Schedule::Pipeline { max_lag } => version.saturating_add(max_lag).saturating_add(1),
        }
    }

    /// The oldest version that may sample a token of a group due at `due`.
    pub fn oldest(self, due: Step) -> Version {
        match self {
            Schedule::Pipeline { max_lag } => due.saturating_sub(max_lag.saturating_add(1)),
        }
    }

    /// How many groups may be live (admitted and not discarded, trained ones included) while `version` is the newest
    /// seen: what the steps up to the current due can train, of the run's `steps` with `batch_groups` each.
    pub fn budget(self, version: Version, steps: Step, batch_groups: u64) -> u64 {
        self.due(version).min(steps).saturating_mul(batch_groups)
    }

    /// The largest lag of a trained token, steps.
    pub fn bound(self) -> u64 {
        match self {
            Schedule::Pipeline { max_lag } => max_lag,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a due or budget that is one step off: with max_lag 0 the first group is due at step 1 and one batch is live.
    #[test]
    fn pipeline_numbers() {
        let on_policy = Schedule::Pipeline { max_lag: 0 };
        assert_eq!((on_policy.due(0), on_policy.budget(0, 10, 4), on_policy.bound()), (1, 4, 0));
        let lagged = Schedule::Pipeline { max_lag: 3 };
        assert_eq!((lagged.due(2), lagged.oldest(6), lagged.budget(2, 10, 4)), (6, 2, 24));
        assert_eq!(lagged.budget(8, 10, 4), 40, "never more than the run's steps can train");
    }
}
