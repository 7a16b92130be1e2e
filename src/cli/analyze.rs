//! `tidegate analyze`.
use crate::error::Result;
/// x
#[derive(Debug, clap::Args)]
pub struct Args {}
impl Args { pub fn execute(self) -> Result<()> { Ok(()) } }
