//! `plan`: how to lay out accelerators, what it comes to, and what the conventional schedule would; by closed forms, and by events.

mod curves;
mod measured;
mod report;
pub mod simulation;

pub use crate::kernel::capacity::Speed;
pub use curves::Curve;

use crate::error::{Error, Result};
use crate::jobs::{Output, print};
use crate::kernel::capacity::Job;
use crate::kernel::lengths::Lengths;
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

/// How long responses are.
#[derive(Clone, Debug, PartialEq)]
pub enum Responses {
    Uniform {
        longest: usize,
    },
    Fixed {
        length: usize,
    },
    LogNormal {
        mean: f64,
        deviation: f64,
        longest: usize,
    },
    /// Those that a run sampled.
    Recorded(PathBuf),
}

impl Responses {
    /// `uniform:LONGEST`, `fixed:LENGTH`, `lognormal:MEAN,DEVIATION,LONGEST`, or the path of a run.
    ///
    /// # Errors
    /// Numbers that are none, or none above 0.
    pub fn parse(text: &str) -> Result<Responses> {
        let wrong = || {
            let right =
                "uniform:LONGEST, fixed:LENGTH, lognormal:MEAN,DEVIATION,LONGEST (tokens, above 0), or a run's folder";
            Error::config("--lengths", text, right)
        };
        let Some((kind, numbers)) = text.split_once(':') else {
            let path = PathBuf::from(text);
            return if path.exists() { Ok(Responses::Recorded(path)) } else { Err(wrong()) };
        };
        let numbers: Vec<f64> = numbers.split(',').map(|n| n.trim().parse().map_err(|_| wrong())).collect::<Result<_>>()?;
        let tokens = |x: f64| {
            let whole = x.fract() == 0.0 && (1.0..=MOST_TOKENS).contains(&x);
            whole.then_some(x as usize).ok_or_else(wrong)
        };
        match (kind, &numbers[..]) {
            ("uniform", [longest]) => Ok(Responses::Uniform { longest: tokens(*longest)? }),
            ("fixed", [length]) => Ok(Responses::Fixed { length: tokens(*length)? }),
            ("lognormal", [mean, deviation, longest]) if *mean > 0.0 && *deviation > 0.0 => {
                Ok(Responses::LogNormal { mean: *mean, deviation: *deviation, longest: tokens(*longest)? })
            }
            _ => Err(wrong()),
        }
    }

    fn lengths(&self) -> Result<Lengths> {
        let made = match self {
            Responses::Uniform { longest } => Lengths::uniform(*longest),
            Responses::Fixed { length } => Lengths::fixed(*length),
            Responses::LogNormal { mean, deviation, longest } => Lengths::log_normal(*mean, *deviation, *longest),
            Responses::Recorded(run) => measured::lengths(run)?,
        };
        made.ok_or_else(|| Error::config("--lengths", self.to_string(), "there is no response of a token or more"))
    }
}

impl std::fmt::Display for Responses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Responses::Uniform { longest } => write!(f, "uniform on 1 to {longest}"),
            Responses::Fixed { length } => write!(f, "all {length}"),
            Responses::LogNormal { mean, deviation, longest } => {
                write!(f, "log-normal, mean {mean}, deviation {deviation}, cut at {longest}")
            }
            Responses::Recorded(run) => write!(f, "those of {}", run.display()),
        }
    }
}

/// A million: longer responses are of another world.
const MOST_TOKENS: f64 = 1e6;

/// Beyond these numbers mean nothing: units of time, and steps.
const MOST_TIME: f64 = 1e12;
const MOST_LAG: u64 = 10_000;

/// Plans and prints.
///
/// # Errors
/// Numbers that no layout can have; a run or a model that cannot be read.
pub fn plan(options: &Options) -> Result<()> {
    check(options)?;
    let lengths = options.lengths.lengths()?;
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
    let positive = [("--decode", speed.step), ("--train", speed.train)];
    if let Some((flag, x)) = positive.into_iter().find(|(_, x)| !(*x > 0.0 && x.is_finite())) {
        return Err(Error::config(flag, x, "a time above 0"));
    }
    let at_least = [("--decode", speed.token), ("--decode", speed.least)];
    if let Some((flag, x)) = at_least.into_iter().find(|(_, x)| !(*x >= 0.0 && x.is_finite())) {
        return Err(Error::config(flag, x, "times from 0 up"));
    }
    let slow = [("--decode", speed.step), ("--decode", speed.token), ("--decode", speed.least), ("--train", speed.train)];
    if let Some((flag, x)) = slow.into_iter().find(|(_, x)| *x > MOST_TIME) {
        return Err(Error::config(flag, format!("{x:e}"), format!("at most {MOST_TIME:e}")));
    }
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
