//! `plan`: how to lay out accelerators, what it comes to, and what the conventional schedule would; by closed forms, and by events.

mod curves;
pub mod measured;
mod page;
mod report;
pub mod simulation;

pub use crate::kernel::capacity::Speed;
pub use crate::spec::Responses;
pub use curves::{Curve, Grid, Point};
pub use report::{LayoutReport, Report};

use crate::durable::check_place;
use crate::error::{Error, Result};
use crate::jobs::{Output, print};
use crate::kernel::capacity::Job;
use crate::spec::check_speed;
use serde::Serialize;
use std::path::PathBuf;

/// What to plan for.
#[derive(Clone, Debug)]
pub struct Options {
    pub accelerators: usize,
    pub batch_size: usize,
    pub max_lag: u64,
    pub lengths: Responses,
    pub speed: Speed,
    /// A model whose speed on this machine takes the place of `speed`.
    pub calibrate: Option<PathBuf>,
    pub device: String,
    /// Also plays the layouts through, event by event.
    pub simulate: Option<Delays>,
    pub curves: Vec<Curve>,
    /// Where a page with all curves goes.
    pub html: Option<PathBuf>,
    pub output: Output,
}

/// What the formulas leave out and the simulation has, in the unit of the speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// Rollouts of a group.
    pub group_size: usize,
    /// How long new weights hold a generator up.
    pub transfer: f64,
    /// From a rollout's last token to its reward.
    pub reward: f64,
    /// The learners' pause for a checkpoint, and after how many steps each; 0 steps: none.
    pub checkpoint: f64,
    pub checkpoint_steps: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Delays { group_size: 1, transfer: 0.0, reward: 0.0, checkpoint: 0.0, checkpoint_steps: 0 }
    }
}

/// Rollouts that a simulation plays through: a minute, and a gigabyte.
const MOST_PLAYED: u64 = 20_000_000;
/// Beyond this a number of steps means nothing.
const MOST_LAG: u64 = 10_000;

/// Plans and prints.
///
/// # Errors
/// Numbers that no layout can have; a run or a model that cannot be read.
pub fn plan(options: &Options) -> Result<()> {
    check(options)?;
    options.html.as_deref().map_or(Ok(()), check_place)?;
    let lengths = measured::lengths_of("--lengths", &options.lengths)?;
    let (speed, measured) = match &options.calibrate {
        Some(model) => {
            let measured = measured::calibrate(model, &options.device, &lengths)?;
            (measured.speed(), Some(measured))
        }
        None => (options.speed, None),
    };
    let job = Job { accelerators: options.accelerators, batch_size: options.batch_size, lengths, speed };
    let report = Report::new(options, &job, measured)?;
    if let Some(file) = &options.html {
        page::write(&report, &job, file)?;
    }
    match options.output {
        Output::Json => print(serde_json::to_string_pretty(&report).map_err(|e| Error::engine("the plan as JSON", e))?),
        Output::Text => print(&report),
    }
}

fn check(options: &Options) -> Result<()> {
    let speed = &options.speed;
    check_speed(speed, ["--decode", "--train"])?;
    if options.max_lag > MOST_LAG {
        return Err(Error::config("--max-lag", options.max_lag, format!("at most {MOST_LAG} steps")));
    }
    for (flag, value, least, most) in [
        ("--accelerators", options.accelerators, 2, 100_000),
        ("--batch-size", options.batch_size, 1, 10_000_000),
        ("--slots", speed.slots, 1, 100_000),
    ] {
        if !(least..=most).contains(&value) {
            return Err(Error::config(flag, value, format!("from {least} to {most}")));
        }
    }
    let Some(delays) = &options.simulate else { return Ok(()) };
    let played = options.batch_size as u64 * report::steps(options.max_lag, 1);
    if played > MOST_PLAYED {
        let why =
            format!("{played} rollouts would be played through, at most {MOST_PLAYED}: a smaller --batch-size or --max-lag");
        return Err(Error::config("--simulate", "true", why));
    }
    if delays.group_size == 0 || !options.batch_size.is_multiple_of(delays.group_size) {
        let why = format!("a divisor of --batch-size = {}", options.batch_size);
        return Err(Error::config("--group-size", delays.group_size, why));
    }
    for (flag, value) in [("--transfer", delays.transfer), ("--reward", delays.reward), ("--checkpoint", delays.checkpoint)]
    {
        if !(value.is_finite() && value >= 0.0) {
            return Err(Error::config(flag, value, "a time from 0 up"));
        }
    }
    Ok(())
}
