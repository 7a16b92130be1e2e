//! `tidegate run`.

use crate::error::Result;
use crate::jobs::run::run;
use crate::jobs::{Output, print};
use crate::spec::Spec;
use std::path::PathBuf;

/// Train a model with reinforcement learning
///
/// Prints the resolved plan, evaluates on held-out prompts, trains with a live progress line, evaluates again, and ends with a
/// summary. The run's folder keeps the whole specification, every rollout as Parquet, and the trained model.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's specification, TOML (data/demo.toml is one with comments)
    spec: PathBuf,
    /// Override a key of the specification; may be repeated
    ///
    /// The value is TOML, for example: --set seed=2 --set schedule.max_lag=8 --set 'workers.generators=[0,1]'
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Where the model runs: cpu or cuda:N (short for --set model.device=...)
    #[arg(long)]
    device: Option<String>,
    /// Print the whole resolved specification and stop
    #[arg(long)]
    print_spec: bool,
    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let device = self.device.map(|device| format!("model.device={device}"));
        let sets: Vec<String> = self.sets.into_iter().chain(device).collect();
        let spec = Spec::load(&self.spec, &sets)?;
        if self.print_spec {
            return print(spec.to_text().trim_end());
        }
        run(spec, if self.json { Output::Json } else { Output::Text })
    }
}
