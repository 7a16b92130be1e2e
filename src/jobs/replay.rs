//! `replay` (being built).
use crate::error::Result;
use crate::jobs::Output;
use std::path::PathBuf;
pub struct Options { pub run: PathBuf, pub sets: Vec<String>, pub steps: Option<u64>, pub force: bool, pub output: Output }
pub fn replay(_options: &Options) -> Result<()> { Ok(()) }
