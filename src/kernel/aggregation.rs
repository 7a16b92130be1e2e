//! How the losses of a batch's tokens become one number.

use serde::{Deserialize, Serialize};

/// The five aggregations in use. All are linear in the token losses, so each is a weight a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    TokenMean,
    TokenSum,
    /// Sum over tokens divided by the number of sequences (PipelineRL).
    #[default]
    SeqMeanTokenSum,
    /// The same, over a constant length.
    SeqMeanTokenSumNorm(f32),
    SeqMeanTokenMean,
}
