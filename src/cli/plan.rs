//! `tidegate plan`.

use crate::error::{Error, Result};
use crate::jobs::Output;
use crate::jobs::plan::{Curve, Delays, Options, Responses, Speed, plan};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  tidegate plan                                          # the paper's case study
  tidegate plan -n 128 -b 2048 --max-lag 16 --lengths lognormal:2000,1500,16384 --simulate
  tidegate plan -n 16 -b 256 --lengths runs/demo --calibrate data/model
  tidegate plan --curve lag --curve spread
  tidegate plan --simulate --transfer 2000 --checkpoint 40000,50 --html plan.html";

/// Say how to lay out accelerators, and when a pipeline pays
///
/// Finds the fastest split into generators and learners whose largest lag is allowed, and compares it with the conventional schedule
/// of the same largest and of no more mean lag: by the closed forms of PipelineRL's appendix, and with --simulate by events, with the
/// admission and selection of a real run. Speeds are those of the paper's case study (flashes: a token's forward pass at
/// peak arithmetic), yours by --decode and --train, or measured here with --calibrate.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Accelerators, N
    #[arg(short = 'n', long, default_value_t = 128)]
    accelerators: usize,
    /// Rollouts a step, B
    #[arg(short, long, default_value_t = 128)]
    batch_size: usize,
    /// The largest lag allowed, steps; a conventional phase has one step more
    #[arg(short = 'g', long, default_value_t = 133)]
    max_lag: u64,
    /// Response lengths: uniform:LONGEST, between:LEAST,LONGEST, fixed:LENGTH, lognormal:MEAN,DEVIATION,LONGEST, or a run that sampled them
    #[arg(short, long, default_value = "uniform:1000")]
    lengths: String,
    /// A decode step of h sequences takes the larger of STEP + TOKEN h and LEAST h
    #[arg(long, value_name = "STEP,TOKEN,LEAST", value_delimiter = ',', num_args = 1, conflicts_with = "calibrate")]
    decode: Vec<f64>,
    /// Training a token takes this long, tau
    #[arg(long, value_name = "TIME", conflicts_with = "calibrate")]
    train: Option<f64>,
    /// Most sequences in progress on a generator of a pipeline; by turns each has its share of the phase at once
    #[arg(long, value_name = "H", conflicts_with = "calibrate")]
    slots: Option<usize>,
    /// Measure a model on this machine in place of --decode and --train: seconds, for one such machine an accelerator
    #[arg(long, value_name = "MODEL")]
    calibrate: Option<PathBuf>,
    /// Where it is measured: cpu or cuda:N
    #[arg(long, default_value = "cpu", requires = "calibrate")]
    device: String,
    /// Play the layouts through event by event, too
    #[arg(long)]
    simulate: bool,
    /// Simulated: rollouts of a group
    #[arg(long, default_value_t = 1, requires = "simulate")]
    group_size: usize,
    /// Simulated: how long new weights hold up a generator that has sequences in progress; by turns none has
    #[arg(long, value_name = "TIME", default_value_t = 0.0, requires = "simulate")]
    transfer: f64,
    /// Simulated: from a rollout's last token to its reward
    #[arg(long, value_name = "TIME", default_value_t = 0.0, requires = "simulate")]
    reward: f64,
    /// Simulated: the learners' pause for a checkpoint, and after how many steps each
    #[arg(long, value_name = "TIME,STEPS", value_parser = pause, requires = "simulate")]
    checkpoint: Option<(f64, u64)>,
    /// Also a table over this
    #[arg(long, value_parser = PossibleValuesParser::new(Curve::NAMES).try_map(|name| Curve::named(&name).ok_or("no such curve")))]
    curve: Vec<Curve>,
    /// Also write a page with pictures of all curves
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// A time and a number of steps.
fn pause(text: &str) -> std::result::Result<(f64, u64), String> {
    let parts = text.split_once(',').and_then(|(time, steps)| Some((time.parse().ok()?, steps.parse().ok()?)));
    parts.filter(|(_, steps)| *steps > 0).ok_or_else(|| "a time and a number of steps from 1 up, as 40000,50".to_owned())
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let paper = Speed::PAPER;
        let [step, token, least] = match self.decode[..] {
            [] => [paper.step, paper.token, paper.least],
            [step, token, least] => [step, token, least],
            _ => return Err(Error::config("--decode", format!("{:?}", self.decode), "three times: STEP,TOKEN,LEAST")),
        };
        let (train, slots) = (self.train.unwrap_or(paper.train), self.slots.unwrap_or(paper.slots));
        let (checkpoint, checkpoint_steps) = self.checkpoint.unwrap_or_default();
        let Args { group_size, transfer, reward, .. } = self;
        let delays = Delays { group_size, transfer, reward, checkpoint, checkpoint_steps };
        plan(&Options {
            accelerators: self.accelerators,
            batch_size: self.batch_size,
            max_lag: self.max_lag,
            lengths: Responses::parse("--lengths", &self.lengths)?,
            speed: Speed { step, token, least, train, slots },
            calibrate: self.calibrate,
            device: self.device,
            simulate: self.simulate.then_some(delays),
            curves: self.curve,
            html: self.html,
            output: if self.json { Output::Json } else { Output::Text },
        })
    }
}
