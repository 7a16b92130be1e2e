//! Prompts that are too long: refused, skipped, or cut on the left.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What becomes of a prompt that has more tokens than the limit (`data.too_long`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// The run ends.
    Refuse,
    /// The prompt is left out: its group is discarded, and counted.
    #[default]
    Skip,
    /// Its first tokens are left out.
    CutLeft,
}

/// A prompt that has more tokens than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlong {
    pub tokens: usize,
    pub limit: usize,
}

impl fmt::Display for Overlong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens, at most {} are taken", self.tokens, self.limit)
    }
}

/// The ids of a prompt of at most `limit` tokens: cut on the left where the policy says so.
///
/// # Errors
/// More tokens than `limit` under the other two policies: the caller ends the run, or leaves the prompt out.
pub fn fit(mut tokens: Vec<u32>, limit: usize, policy: TooLong) -> Result<Vec<u32>, Overlong> {
    let Some(over) = tokens.len().checked_sub(limit).filter(|over| *over > 0) else { return Ok(tokens) };
    match policy {
        TooLong::CutLeft => {
            tokens.drain(..over);
            Ok(tokens)
        }
        TooLong::Refuse | TooLong::Skip => Err(Overlong { tokens: tokens.len(), limit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_cut_and_on_the_left() {
        for policy in [TooLong::Refuse, TooLong::Skip, TooLong::CutLeft] {
            assert_eq!(fit(vec![1, 2, 3], 3, policy), Ok(vec![1, 2, 3]));
            assert_eq!(fit(Vec::new(), 0, policy), Ok(Vec::new()));
        }
        assert_eq!(fit(vec![1, 2, 3, 4], 3, TooLong::CutLeft), Ok(vec![2, 3, 4]));
        for policy in [TooLong::Refuse, TooLong::Skip] {
            let over = fit(vec![1, 2, 3, 4], 3, policy).unwrap_err();
            assert_eq!(over.to_string(), "4 tokens, at most 3 are taken");
        }
    }
}
