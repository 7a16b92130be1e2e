//! `tidegate analyze`.

use crate::error::Result;
use crate::jobs::analyze::{SkipBad, report, told};
use crate::jobs::report::write_runs;
use crate::jobs::{Output, print};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  tidegate analyze runs/demo                                  # on the terminal
  tidegate analyze runs/demo --html demo.html                 # and a page: open it in a browser, send it to somebody
  tidegate analyze runs/demo runs/demo-2 --html both.html     # two runs side by side, the differences first
  tidegate analyze runs/demo/rollouts/step-00000042.parquet   # a single step
  tidegate analyze runs/demo --json | jq .runs[0].lag";

/// Say what runs were like, from their Parquet files alone
///
/// Reward, success and lengths over steps; lag by token against the bound; ESS and KL by lag; what was discarded and why; where
/// the time went; the most and least solved prompts; the longest and the most surprising rollouts. Files are read one at a
/// time, so memory does not grow with the run.
///
/// With --html the same goes to a page with pictures too: curves, lag by position, a timeline of what each worker did, and some
/// hundred rollouts to open, token by token. Of two runs or more the page says what sets them apart, what matters first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
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
    /// Also write a page with pictures: one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let skip_bad = if self.skip_bad { SkipBad::Yes } else { SkipBad::No };
        let output = if self.json { Output::Json } else { Output::Text };
        let report = match &self.html {
            Some(file) => write_runs(&self.runs, skip_bad, file)?,
            None => report(&self.runs, skip_bad)?,
        };
        print(told(&report, output)?.trim_end())
    }
}
