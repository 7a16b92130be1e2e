//! `tidegate replay`.

use crate::error::Result;
use crate::jobs::Output;
use crate::jobs::replay::{Identity, Options, readable, replay};
use std::path::PathBuf;

/// Train again from recorded rollouts, without a generator
///
/// Scores, estimates and trains the recorded batches from the run's first weights, and compares loss and weights step by step,
/// bit for bit (same machine, same thread count). With --set it trains differently instead and reports what would have been:
/// reward-weighted likelihood, ESS and KL against the recorded behavior.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's folder
    run: PathBuf,
    #[arg(long = "set", value_name = "KEY=VALUE", help = sets())]
    sets: Vec<String>,
    /// Replay only the first N steps
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Replay although model or tokenizer are not those the run recorded
    #[arg(long)]
    force: bool,
    /// Print the result as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let output = if self.json { Output::Json } else { Output::Text };
        let identity = if self.force { Identity::Waived } else { Identity::Required };
        replay(&Options { run: self.run, sets: self.sets, steps: self.steps, identity, output })
    }
}

/// The help of `--set`.
fn sets() -> String {
    format!("Change what training reads ({}); may be repeated", readable())
}
