//! `tidegate resume`.

use crate::error::Result;
use crate::jobs::Output;
use crate::jobs::recovery::Bits;
use crate::jobs::resume::{Options, resume};
use std::path::PathBuf;

/// Go on with a run that was stopped, killed, or that failed
///
/// Loads the newest checkpoint, trains the sealed steps after it again from the log, bit for bit, and goes on from the last
/// one: groups that were complete are used, those that were under way are sampled again, none is skipped or trained twice,
/// and the bound on the lag holds across it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's folder
    run: PathBuf,
    /// Change a key that a run can change in its middle; may be repeated
    ///
    /// These are steps, checkpoint.*, eval.*, estimate.discard_limit, estimate.refill_limit, generate.slots,
    /// generate.time_limit_s, learn.* (but for value_coef), where and how long an outside reward is asked,
    /// workers.generators and workers.generator_threads. For example: --set steps=400
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Go on although the steps that are trained again differ from the log (another machine or build)
    #[arg(long)]
    force: bool,
    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let output = if self.json { Output::Json } else { Output::Text };
        let bits = if self.force { Bits::Any } else { Bits::Same };
        resume(&Options { run: self.run, sets: self.sets, bits, output })
    }
}
