//! What else is written of a step's metrics, beside the log (`[metrics]`).

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSpec {
    /// TensorBoard's events, a step each, in the run's folder.
    pub tensorboard: bool,
}

impl Default for MetricsSpec {
    fn default() -> Self {
        MetricsSpec { tensorboard: true }
    }
}
