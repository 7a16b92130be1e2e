//! `tidegate analyze`.

use crate::error::Result;
use crate::jobs::analyze::{Options, SkipBad, analyze};
use crate::jobs::{Output, print};
use std::path::PathBuf;

/// Say what runs were like, from their Parquet files alone
///
/// Reward, success and lengths over steps; lag by token against the bound; ESS and KL by lag; what was discarded and why; where
/// the time went; the most and least solved prompts; the longest and the most surprising rollouts. Files are read one at a
/// time, so memory does not grow with the run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of runs, or single files of a rollout log
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Name and leave out damaged files, in place of failing at the first
    #[arg(long)]
    skip_bad: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let skip_bad = if self.skip_bad { SkipBad::Yes } else { SkipBad::No };
        let output = if self.json { Output::Json } else { Output::Text };
        let mut text = Vec::new();
        analyze(&Options { runs: self.runs, skip_bad, output }, &mut text)?;
        print(String::from_utf8_lossy(&text).trim_end())
    }
}
