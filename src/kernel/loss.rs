//! Policy losses and their derivatives.

use serde::{Deserialize, Serialize};

/// The policy loss of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Loss {
    /// Truncated-importance REINFORCE: `-min(cap, ratio) * advantage * logp`, the weight detached.
    Reinforce { cap: f32 },
    /// PPO's clipped surrogate.
    Ppo { clip_low: f32, clip_high: f32 },
}

impl Default for Loss {
    fn default() -> Self {
        Loss::Reinforce { cap: 5.0 }
    }
}
