//! A run on emulated accelerators: what opens them, and what the run came to beside what a plan says of the same layout.

use crate::engine::emulation::{Device, Emulated, EmulatedEngine, Pieces};
use crate::error::{Error, Result};
use crate::jobs::plan::measured::lengths_of;
use crate::jobs::plan::simulation::{Scene, Span, simulate};
use crate::jobs::training::Outcome;
use crate::kernel::capacity::{Rate, Split};
use crate::kernel::lengths::Lengths;
use crate::spec::{EmulationSpec, Responses, ScheduleSpec, Spec};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use tidegate_operators::plan::Order;
use tidegate_operators::record::Metrics;
use tidegate_operators::schedule::{Schedule, WeightsUpdate};

const LENGTHS: &str = "emulation.lengths";

/// The emulation of a specification, with a checkpoint's weights where there is one.
///
/// # Errors
/// A run whose lengths are to be taken and that cannot be read; a folder that is no checkpoint of an emulation.
pub fn open(spec: &Spec, folder: Option<&Path>) -> Result<EmulatedEngine> {
    let (emulation, split) = keys(spec)?;
    made(spec, folder, emulation.flash_s, split, lengths(emulation)?)
}

/// The same for what only trains recorded rollouts again: work takes no time, and lengths are those that are recorded.
///
/// # Errors
/// A folder that is no checkpoint of an emulation.
pub fn open_timeless(spec: &Spec, folder: Option<&Path>) -> Result<EmulatedEngine> {
    let (_, split) = keys(spec)?;
    let lengths = Lengths::fixed(1).ok_or_else(|| Error::engine(LENGTHS, "one token is no length"))?;
    made(spec, folder, 0.0, split, lengths)
}

fn keys(spec: &Spec) -> Result<(&EmulationSpec, Split)> {
    let missing = || Error::config("model.engine", "emulation", "needs [emulation]");
    spec.emulated().zip(spec.emulated_split()).ok_or_else(missing)
}

fn lengths(emulation: &EmulationSpec) -> Result<Lengths> {
    lengths_of(LENGTHS, &Responses::parse(LENGTHS, &emulation.lengths)?)
}

fn made(spec: &Spec, folder: Option<&Path>, flash_s: f64, split: Split, lengths: Lengths) -> Result<EmulatedEngine> {
    let (emulation, _) = keys(spec)?;
    let device = Device::new(emulation.speed(split.slots), split.learners, emulation.transfer, flash_s);
    let engine = EmulatedEngine::new(device, lengths, spec.seed);
    folder.map_or(Ok(engine.clone()), |folder| engine.restored(folder))
}

/// What a run on emulated accelerators came to, and what a plan says of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    pub accelerators: usize,
    pub generators: usize,
    pub learners: usize,
    /// Timely workers.
    pub workers: usize,
    /// Seconds.
    pub flash_s: f64,
    /// Its steady state: from the end of the first of these steps to the end of the second. What was measured, and what the formulas and the
    /// simulation say, is of these; costs are of the whole run.
    pub span: [u64; 2],
    pub measured: Throughput,
    /// By the closed forms, and by events; None of what they do not know.
    pub formula: Option<Throughput>,
    pub simulated: Option<Throughput>,
    /// Of the whole run: a decode step, and the training of a step.
    pub decode_step: Cost,
    pub training_step: Cost,
    /// Seconds on the processors, all workers together, a second.
    pub processor: f64,
}

/// A layout's throughput and lag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Completion tokens trained a flash.
    pub tokens: f64,
    /// Of trained tokens, steps.
    pub max_lag: u64,
    pub mean_lag: f64,
    /// Share of the time that the learners had nothing to train; the closed forms do not say.
    pub learners_waited: Option<f64>,
}

/// What a piece of work was to take, and what coordination added to it, seconds in the mean: what its worker did between two of them, and how
/// much later than planned it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub planned_s: f64,
    pub added_s: f64,
}

impl Emulation {
    /// Of a run whose steps measured this; None where accelerators are real, or where the run was too short to have a steady state or went on in the middle of it.
    ///
    /// # Errors
    /// Lengths that cannot be read any more.
    pub fn of<W>(spec: &Spec, done: Emulated, outcome: &Outcome<W>, metrics: &[Metrics]) -> Result<Option<Emulation>> {
        let Some((emulation, split)) = spec.emulated().zip(spec.emulated_split()) else {
            return Ok(None);
        };
        let schedule = spec.plan().schedule;
        let span = Span::of(schedule, spec.steps);
        // A run that went on has been away in between.
        let own = metrics.get(metrics.len().saturating_sub(outcome.sealed.rewards.len())..).unwrap_or_default();
        let Some(measured) = measured(own, span, emulation.flash_s) else { return Ok(None) };
        let lengths = lengths(emulation)?;
        let Some(job) = spec.emulated_job(lengths) else { return Ok(None) };
        let planned = planned(&spec.schedule);
        let formula = match schedule {
            _ if !planned => None,
            Schedule::Pipeline { .. } => Some(job.pipeline(split)),
            Schedule::Conventional { steps } => Some(job.conventional(steps)),
            // It overlaps and waits: no closed form is known.
            Schedule::OneStepOff { .. } => None,
        };
        let scene = Scene {
            schedule,
            generators: split.generators,
            learners: split.learners,
            slots: split.slots,
            group_size: spec.batch.group_size,
            batch_groups: spec.batch_groups(),
            steps: spec.steps,
            lengths: job.lengths.clone(),
            speed: job.speed,
            transfer: emulation.transfer,
            reward: 0.0,
            checkpoint: 0.0,
            checkpoint_steps: 0,
            seed: spec.seed,
        };
        let simulated =
            planned.then(|| simulate(&scene)).flatten().map(|found| throughput(found.rate, Some(found.learners_waited)));
        let between: f64 = outcome.generators.iter().map(|of| 1.0 - of.sampled - of.idle).sum::<f64>() * outcome.seconds;
        let elsewhere: f64 = own.iter().map(|step| step.elsewhere_ns as f64 / 1e9).sum();
        Ok(Some(Emulation {
            accelerators: emulation.accelerators,
            generators: split.generators,
            learners: split.learners,
            workers: spec.worker_count(),
            flash_s: emulation.flash_s,
            span: [span.after, span.last],
            measured,
            formula: formula.map(|rate| throughput(rate, None)),
            simulated,
            decode_step: Cost::of(done.decode_steps, done.decode_steps.count, between),
            training_step: Cost::of(done.micro_batches, own.len() as u64, elsewhere),
            processor: outcome.processor_s / outcome.seconds.max(1e-9),
        }))
    }
}

/// Whether a plan knows such a schedule: generators that drain, and steps that take groups as they were admitted, are in no formula.
fn planned(schedule: &ScheduleSpec) -> bool {
    schedule.weights_update == WeightsUpdate::InFlight && schedule.order == Order::Arrival
}

impl Cost {
    /// `pieces` in `count` pieces of work, with so many seconds beside them.
    fn of(pieces: Pieces, count: u64, beside_s: f64) -> Cost {
        let count = count.max(1) as f64;
        let late_s = pieces.took.saturating_sub(pieces.planned).as_secs_f64();
        Cost { planned_s: pieces.planned.as_secs_f64() / count, added_s: (beside_s + late_s) / count }
    }
}

fn throughput(rate: Rate, learners_waited: Option<f64>) -> Throughput {
    Throughput { tokens: rate.tokens, max_lag: rate.max_lag, mean_lag: rate.mean_lag, learners_waited }
}

/// What the steps of a span come to; None where they are not all there, or took no time.
fn measured(metrics: &[Metrics], span: Span, flash_s: f64) -> Option<Throughput> {
    let end_of = |step: u64| metrics.iter().find(|m| m.step == step).map(|m| m.finished_ns);
    let flashes = (end_of(span.last)? - end_of(span.after)?) as f64 / 1e9 / flash_s;
    let steps: Vec<&Metrics> = metrics.iter().filter(|m| m.step > span.after && m.step <= span.last).collect();
    let sum = |of: fn(&Metrics) -> f64| steps.iter().map(|step| of(step)).sum::<f64>();
    let tokens = sum(|m| m.tokens as f64);
    let waited = sum(|m| (m.wait_any_ns + m.wait_forced_ns) as f64) / 1e9 / flash_s;
    (flashes > 0.0 && tokens > 0.0).then(|| Throughput {
        tokens: tokens / flashes,
        max_lag: steps.iter().map(|step| step.lag_max).max().unwrap_or(0),
        mean_lag: sum(|m| m.lag_mean * m.tokens as f64) / tokens,
        learners_waited: Some(waited / flashes),
    })
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Emulation { accelerators, workers, measured, .. } = self;
        let [after, last] = self.span;
        write!(f, "emulated  {accelerators} accelerators on {workers} workers: ")?;
        write!(f, "{:.3} tokens a flash in steps {} to {last}", measured.tokens, after + 1)?;
        let beside = [("formulas", self.formula), ("the simulation", self.simulated)];
        for (name, figures) in beside.into_iter().filter_map(|(name, figures)| Some((name, figures?))) {
            write!(f, "; {name} {:.3} ({:.1} %)", figures.tokens, 100.0 * measured.tokens / figures.tokens)?;
        }
        write!(f, "\n          lag mean {:.1}, max {}", measured.mean_lag, measured.max_lag)?;
        for (name, figures) in beside.into_iter().filter_map(|(name, figures)| Some((name, figures?))) {
            write!(f, "; {name} {:.1}, {}", figures.mean_lag, figures.max_lag)?;
        }
        let ms = |seconds: f64| 1e3 * seconds;
        let (decode, train) = (self.decode_step, self.training_step);
        write!(
            f,
            "\n          coordination added {:.2} ms to a decode step of {:.1} ms ",
            ms(decode.added_s),
            ms(decode.planned_s)
        )?;
        write!(f, "and {:.2} ms to a training step of {:.1} ms; ", ms(train.added_s), ms(train.planned_s))?;
        write!(f, "the workers took {:.2} s of processors a second", self.processor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn step(step: u64, second: i64, tokens: u64, lag_mean: f64) -> Metrics {
        let wait_any_ns = 500_000_000;
        Metrics {
            step,
            finished_ns: second * 1_000_000_000,
            tokens,
            lag_mean,
            lag_max: step,
            wait_any_ns,
            ..Metrics::default()
        }
    }

    /// From the end of step 2, at 10 s, to that of step 4, at 14 s: 80 tokens in 4 s, which are 8 flashes. Catches a step too many, a mean
    /// lag that does not weigh tokens, and a run without its steady state that has figures.
    #[test]
    fn a_span_is_measured_between_the_ends_of_two_steps() {
        let steps =
            [step(1, 3, 999, 9.0), step(2, 10, 999, 9.0), step(3, 13, 20, 1.0), step(4, 14, 60, 3.0), step(5, 20, 999, 9.0)];
        let found = measured(&steps, Span { after: 2, last: 4 }, 0.5).unwrap();
        assert_eq!((found.tokens, found.max_lag, found.mean_lag, found.learners_waited), (10.0, 4, 2.5, Some(0.25)));
        assert_eq!(measured(&steps, Span { after: 2, last: 6 }, 0.5), None);
        assert_eq!(measured(&steps, Span { after: 2, last: 2 }, 0.5), None);
    }

    /// Four decode steps of 10 ms that took 11, and 2 ms between them all told: 10 ms planned, 1.5 added.
    #[test]
    fn coordination_is_what_is_not_planned() {
        let pieces = Pieces { count: 4, planned: Duration::from_millis(40), took: Duration::from_millis(44) };
        let cost = Cost::of(pieces, 4, 0.002);
        assert!((cost.planned_s - 0.010).abs() < 1e-12 && (cost.added_s - 0.0015).abs() < 1e-12, "{cost:?}");
    }
}
