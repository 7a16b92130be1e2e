//! `tidegate sft`.

use crate::error::Result;
use crate::jobs::sft::{SftSpec, sft};
use std::path::PathBuf;

/// Warm a model up on prompts and worked answers
///
/// Supervised training with the same learner that `tidegate run` uses; starts from a model folder or from random weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The specification, TOML (data/sft.toml made the bundled model)
    spec: PathBuf,
    /// Override a key of the specification; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        sft(&SftSpec::load(&self.spec, &self.sets)?)
    }
}
