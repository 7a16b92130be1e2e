//! What a plan takes from the world: the lengths that a run sampled, and the speed of a model on this machine.

use crate::engine::contract::Engine;
use crate::engine::spec::{Learning, LrSchedule, Sampling};
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::policy::Policy;
use crate::error::{Error, Result};
use crate::jobs::say;
use crate::kernel::capacity::Speed;
use crate::kernel::lengths::Lengths;
use crate::spec::Responses;
use crate::store::{LogReader, RunFolder, scan};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Rollout, Status};
use tidegate_operators::train::Learner;

/// The lengths of all rollouts that a run sampled; None where it has none.
///
/// # Errors
/// A folder that holds no run; a damaged file.
pub fn lengths(run: &Path) -> Result<Option<Lengths>> {
    let log = if run.is_file() { LogReader::of_file(run)? } else { LogReader::open(&RunFolder::view(run)?)? };
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut all = Vec::new();
    scan(
        &log,
        threads,
        || (),
        |(), _, part| {
            let mut lengths = Vec::new();
            part.rows(|_, row| lengths.push(row.tokens))?;
            Ok(lengths)
        },
        |_, _, lengths| {
            all.extend(lengths?);
            Ok(())
        },
    )?;
    Ok(Lengths::counted(all))
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
        Responses::Recorded(run) => lengths(run)?,
        closed => closed.lengths(),
    };
    made.ok_or_else(|| Error::config(key, responses, "there is no response of a token or more"))
}

/// What was measured of a model, seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub model: String,
    pub device: String,
    /// Of one decode step with so many sequences.
    pub decode_s: Vec<(usize, f64)>,
    /// Fitted to those: `step + token * h`.
    pub step_s: f64,
    pub token_s: f64,
    /// Training one completion token.
    pub train_s: f64,
}

impl Measured {
    /// In seconds. A decode step never gets cheaper a token than where most sequences were measured.
    pub fn speed(&self) -> Speed {
        let (most, least) = self.decode_s.last().map_or((1, 0.0), |(h, s)| (*h, s / *h as f64));
        // Beyond what was measured the line is a guess.
        Speed { step: self.step_s, token: self.token_s, least, train: self.train_s, slots: 4 * most }
    }
}

/// Sequences in progress that are measured.
const SEQUENCES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Decode steps of a measurement, of which the first are the prompts' and a warm-up.
const STEPS: usize = 24;
const WARM: usize = 8;
/// Tokens of a prompt.
const PROMPT: usize = 16;
/// Most tokens that a step of the training measurement takes, and how often it is taken.
const TRAINED: usize = 4096;
const REPEATS: u64 = 3;

/// Measures a model on this machine and device, with the threads that libtorch takes by itself: some seconds for a small one.
///
/// # Errors
/// A folder that is no model; a device that refuses.
pub fn calibrate(model: &Path, device: &str, lengths: &Lengths) -> Result<Measured> {
    let threads = available_parallelism().map_or(1, |count| u16::try_from(count.get()).unwrap_or(u16::MAX));
    Policy::set_threads(threads);
    let policy = Policy::load(model, device, ValueHead::None)?;
    say(format_args!("measures  {}: {} on {device}, {threads} threads", model.display(), policy.describe()));
    let decode_s = decode(&policy)?;
    let (step_s, token_s) = line(&decode_s);
    let train_s = train(&policy, lengths)?;
    Ok(Measured { model: model.display().to_string(), device: device.to_owned(), decode_s, step_s, token_s, train_s })
}

fn group(number: u64, tokens: usize) -> Arc<Group> {
    let max_tokens = Some(u32::try_from(tokens).unwrap_or(u32::MAX));
    let prompt = Prompt { tokens: vec![1; PROMPT], max_tokens, ..Prompt::default() };
    Arc::new(Group { number, size: 1, prompt, ..Group::default() })
}

/// The median decode step for each number of sequences.
fn decode(policy: &Policy) -> Result<Vec<(usize, f64)>> {
    let mut measured = Vec::new();
    for slots in SEQUENCES {
        let sampling = Sampling { slots, max_tokens: STEPS + 1, ignore_eos: true, ..Sampling::default() };
        let mut generator = policy.generator(&sampling, 0, 0)?;
        generator.load(0, policy.snapshot()?)?;
        (0..slots as u64).try_for_each(|number| generator.start(group(number, STEPS + 1)))?;
        let mut seconds = Vec::with_capacity(STEPS);
        for _ in 0..STEPS {
            let started = Instant::now();
            generator.step()?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        measured.push((slots, median(&mut seconds[WARM..])));
    }
    Ok(measured)
}

/// Seconds a completion token, on rollouts of these lengths as far as the model and a few seconds allow.
fn train(policy: &Policy, lengths: &Lengths) -> Result<f64> {
    let learning = Learning { lr_schedule: LrSchedule::Constant, ..Learning::default() };
    let mut learner = policy.learner(&learning, 1.0, REPEATS + 1, 0)?;
    let longest = policy.longest().saturating_sub(PROMPT).clamp(1, TRAINED / 2);
    let (mut batch, mut tokens) = (Vec::new(), 0);
    while tokens < TRAINED {
        // Evenly over the distribution.
        let place = (batch.len() as f64 * 0.618_033_988_749_895).fract();
        let length = lengths.draw(place).min(longest);
        tokens += length;
        batch.push(Rollout {
            group: group(batch.len() as u64, length),
            tokens: vec![1; length],
            mask: vec![true; length],
            version: vec![0; length],
            logp_behavior: vec![-1.0; length],
            advantage: vec![1.0; length],
            reward: Some(0.0),
            status: Status::Waiting,
            ..Rollout::default()
        });
    }
    let mut seconds = Vec::new();
    for step in 1..=REPEATS + 1 {
        let started = Instant::now();
        learner.begin(step, batch.clone())?;
        while learner.work()?.is_none() {}
        seconds.push(started.elapsed().as_secs_f64() / tokens as f64);
    }
    Ok(median(&mut seconds[1..]))
}

/// `step + token * h` nearest to the measured times, each counted as a share of itself; neither is below 0.
fn line(measured: &[(usize, f64)]) -> (f64, f64) {
    let weigh = |of: fn(f64) -> f64| measured.iter().map(|(h, s)| of(*h as f64) / (s * s)).sum::<f64>();
    let (n, x, xx) = (weigh(|_| 1.0), weigh(|h| h), weigh(|h| h * h));
    let (y, xy) = measured.iter().fold((0.0, 0.0), |(y, xy), (h, s)| (y + 1.0 / s, xy + *h as f64 / s));
    let determinant = n * xx - x * x;
    let (step, token) = ((xx * y - x * xy) / determinant, (n * xy - x * y) / determinant);
    if token < 0.0 {
        (y / n, 0.0)
    } else if step < 0.0 {
        (0.0, xy / xx)
    } else {
        (step, token)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let (step, token) = line(&SEQUENCES.map(|h| (h, 0.5 + 0.25 * h as f64)));
        assert!((step - 0.5).abs() < 1e-9 && (token - 0.25).abs() < 1e-9, "{step} {token}");
        assert_eq!(line(&[(1, 2.0), (2, 1.0)]).1, 0.0);
    }

    /// On the bundled model. How long it takes is the machine's matter; that it takes time is not.
    #[test]
    fn a_model_is_measured() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/model");
        let found = calibrate(&model, "cpu", &Lengths::uniform(64).unwrap_or_else(|| unreachable!())).unwrap();
        assert_eq!(found.decode_s.iter().map(|(h, _)| *h).collect::<Vec<_>>(), SEQUENCES);
        assert!(found.decode_s.iter().all(|(_, s)| *s > 0.0) && found.train_s > 0.0, "{found:?}");
        let (most, slowest) = found.decode_s[7];
        let a_token = slowest / most as f64;
        assert!(found.speed().decode(1e6) >= 1e6 * a_token, "no cheaper a token than measured");
    }
}
