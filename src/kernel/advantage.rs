//! Advantages of one group from its rewards.

use serde::{Deserialize, Serialize};

/// How a rollout's advantage comes from its group's rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// Reward minus the mean of the others' (Kool et al. 2019; RLOO).
    #[default]
    LeaveOneOut,
    /// Reward minus the group's mean.
    GroupMean,
    /// Reward minus the group's mean, over the group's sample deviation (GRPO).
    GroupNormalised,
}
