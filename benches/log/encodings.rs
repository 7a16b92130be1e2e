//! Columns of real rollouts in each encoding that may serve them: bytes a rollout, and what writing and reading takes.
use crate::Done;
pub fn table(_files: &[&str]) -> Done { Ok(()) }
