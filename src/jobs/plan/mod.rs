//! `plan`: how to lay out accelerators, what it comes to, and what the conventional schedule would; by closed forms, and by events.

mod curves;
mod measured;
mod report;
pub mod simulation;

pub use crate::kernel::capacity::Speed;
pub use crate::spec::Responses;
pub use curves::Curve;

use crate::error::{Error, Result};
use crate::jobs::{Output, print};
use crate::kernel::capacity::Job;
use crate::kernel::lengths::Lengths;
use crate::spec::check_speed;
use report::Report;
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
    pub simulate: bool,
    pub curves: Vec<Curve>,
    pub output: Output,
}

/// What responses come to, those of a run as it sampled them. `key` is where they were asked for.
///
/// # Errors
/// A run that is not there or cannot be read; no response of a token or more.
pub fn lengths_of(key: &str, responses: &Responses) -> Result<Lengths> {
    let made = match responses {
        Responses::Recorded(run) if !run.exists() => {
            return Err(Error::config(key, run.display(), format!("no such run; allowed: {}", Responses::FORMS)));
        }
        Responses::Recorded(run) => measured::lengths(run)?,
        closed => closed.lengths(),
    };
    made.ok_or_else(|| Error::config(key, responses, "there is no response of a token or more"))
}

/// Beyond this a number of steps means nothing.
const MOST_LAG: u64 = 10_000;

/// Plans and prints.
///
/// # Errors
/// Numbers that no layout can have; a run or a model that cannot be read.
pub fn plan(options: &Options) -> Result<()> {
    check(options)?;
    let lengths = lengths_of("--lengths", &options.lengths)?;
    let (speed, measured) = match &options.calibrate {
        Some(model) => {
            let measured = measured::calibrate(model, &options.device, &lengths)?;
            (measured.speed(), Some(measured))
        }
        None => (options.speed, None),
    };
    let job = Job { accelerators: options.accelerators, batch_size: options.batch_size, lengths, speed };
    let report = Report::new(options, &job, measured);
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
    Ok(())
}
