//! A few steps from the middle of a run, moment by moment: which sequence was in which slot of which generator, and what the learner
//! did meanwhile.
//!
//! Rows say when a sequence began and ended and which version sampled each token, not when: a sequence's tokens are spread evenly over
//! its time. Of a step the log keeps sums, not moments: what the learner did in it is drawn one after the other, waits first.

use crate::error::Result;
use crate::spec::Spec;
use crate::store::LogReader;
use serde::Serialize;
use std::collections::BTreeMap;
use tidegate_operators::record::{Metrics, Rollout, Status, Step, Version};

/// Sequences that are drawn, about.
const DRAWN: usize = 1200;
/// Of these, as many are to be trained by the steps that are shown; and there are so many steps.
const TRAINED: u64 = 500;
const LEAST_STEPS: u64 = 3;
const MOST_STEPS: u64 = 8;
/// Steps behind the last that are read for sequences which ran meanwhile and were trained later.
const MOST_BEHIND: u64 = 32;
/// Sequences that are kept while they are read.
const MOST_KEPT: usize = 200_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// Seconds since the run began.
    pub from_s: f64,
    pub seconds: f64,
    /// The worker that trains; None where the specification cannot be read.
    pub learner: Option<usize>,
    pub steps: Vec<Spent>,
    pub lanes: Vec<Lane>,
}

/// One step of the learner: when it ended, and what its time went into, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spent {
    pub step: Step,
    pub from_s: f64,
    pub to_s: f64,
    pub any: f64,
    pub forced: f64,
    pub log: f64,
    pub elsewhere: f64,
    pub train: f64,
}

/// One generator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lane {
    pub worker: usize,
    /// Most sequences at once, and how many of these slots are drawn.
    pub slots: usize,
    pub drawn: usize,
    pub sequences: Vec<Sequence>,
}

/// One rollout; times in seconds from the start of the picture, which it may reach beyond.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sequence {
    pub slot: usize,
    pub from_s: f64,
    pub to_s: f64,
    /// How many tokens in a row have which version.
    pub versions: Vec<(usize, Version)>,
    /// The step that trained it; None of one that none did.
    pub step: Option<Step>,
}

struct Ran {
    from_ns: i64,
    to_ns: i64,
    versions: Vec<(usize, Version)>,
    step: Option<Step>,
}

/// None of a run whose steps do not say when they ended.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn timeline(log: &mut LogReader, began_ns: i64, lag_max: u64, spec: Option<&Spec>) -> Result<Option<Timeline>> {
    let steps: Vec<Step> = log.steps().collect();
    let Some(&middle) = steps.get(steps.len() / 2) else { return Ok(None) };
    let Some(metrics) = log.footer(middle)?.metrics.filter(|metrics| metrics.finished_ns > 0) else { return Ok(None) };
    let wanted = (TRAINED / metrics.rollouts.max(1)).clamp(LEAST_STEPS, MOST_STEPS) as usize;
    let first = (steps.len() / 2).saturating_sub(wanted / 2);
    let shown = &steps[first..(first + wanted).min(steps.len())];
    let before = first.checked_sub(1).map(|i| steps[i]);
    let began = match before.map(|step| log.footer(step)).transpose()?.and_then(|footer| footer.metrics) {
        Some(before) => before.finished_ns,
        None => began_ns,
    };
    let spent = spent(log, shown, began)?;
    let ended = spent.last().map_or(began, |(_, to_ns)| *to_ns);
    if ended <= began {
        return Ok(None);
    }
    let behind = steps[first + shown.len()..].iter().take(lag_max.saturating_add(1).min(MOST_BEHIND) as usize);
    let mut lanes: BTreeMap<usize, Vec<Ran>> = BTreeMap::new();
    let mut kept = 0;
    for step in shown.iter().chain(behind) {
        for rollout in log.step(*step)?.rollouts {
            let meanwhile = rollout.started_ns > 0 && rollout.started_ns < ended && rollout.finished_ns > began;
            if meanwhile && kept < MOST_KEPT {
                kept += 1;
                lanes.entry(rollout.worker).or_default().push(Ran::of(&rollout));
            }
        }
    }
    let plan = spec.map(Spec::plan);
    let scale = Scale { began, seconds: (ended - began) as f64 / 1e9 };
    Ok(Some(Timeline {
        from_s: ((began - began_ns) as f64 / 1e6).round() / 1e3,
        seconds: scale.seconds,
        learner: plan.map(|plan| plan.learner),
        steps: spent.into_iter().map(|(spent, _)| spent).collect(),
        lanes: laid_out(lanes, &scale),
    }))
}

/// Each of the steps, and when it ended.
fn spent(log: &mut LogReader, steps: &[Step], began: i64) -> Result<Vec<(Spent, i64)>> {
    let mut from = began;
    let mut all = Vec::new();
    for step in steps {
        let Some(m) = log.footer(*step)?.metrics.filter(|m| m.finished_ns >= from) else { break };
        all.push((Spent::of(&m, began, from), m.finished_ns));
        from = m.finished_ns;
    }
    Ok(all)
}

impl Spent {
    /// Brought to the time between the step before and this one, where the sums come to a little less or more.
    fn of(m: &Metrics, began: i64, from: i64) -> Spent {
        let all = [m.wait_any_ns, m.wait_forced_ns, m.wait_log_ns, m.elsewhere_ns, m.train_ns].map(|ns| ns as f64 / 1e9);
        let seconds = |ns: i64| (ns - began) as f64 / 1e9;
        let (from_s, to_s) = (seconds(from), seconds(m.finished_ns));
        let sum: f64 = all.iter().sum();
        let scale = if sum > 0.0 { (to_s - from_s) / sum } else { 0.0 };
        let [any, forced, log, elsewhere, train] = all.map(|s| s * scale);
        Spent { step: m.step, from_s, to_s, any, forced, log, elsewhere, train }
    }
}

impl Ran {
    fn of(rollout: &Rollout) -> Ran {
        let runs = rollout.version.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0]));
        Ran {
            from_ns: rollout.started_ns,
            to_ns: rollout.finished_ns,
            versions: runs.collect(),
            // One that was refused in its batch was not trained, whatever its clock says.
            step: (rollout.status == Status::Trained).then_some(rollout.step),
        }
    }
}

/// Seconds of the picture, to a ten-thousandth of its width.
struct Scale {
    began: i64,
    seconds: f64,
}

impl Scale {
    fn at(&self, ns: i64) -> f64 {
        let seconds = (ns - self.began) as f64 / 1e9;
        let decimals = (4.0 - self.seconds.log10().floor()).clamp(0.0, 9.0) as usize;
        format!("{seconds:.decimals$}").parse().unwrap_or(seconds)
    }
}

/// Slots by the time at which sequences began: each gets the first one that is free. Of each generator as many slots are drawn as
/// fit.
fn laid_out(lanes: BTreeMap<usize, Vec<Ran>>, scale: &Scale) -> Vec<Lane> {
    let all: usize = lanes.values().map(Vec::len).sum();
    let share = (DRAWN as f64 / all.max(1) as f64).min(1.0);
    let lane = |(worker, mut ran): (usize, Vec<Ran>)| {
        ran.sort_by_key(|ran| (ran.from_ns, ran.to_ns));
        let mut busy_until: Vec<i64> = Vec::new();
        let mut placed = Vec::new();
        for ran in ran {
            let slot = busy_until.iter().position(|until| *until <= ran.from_ns).unwrap_or(busy_until.len());
            busy_until.resize(busy_until.len().max(slot + 1), 0);
            busy_until[slot] = ran.to_ns;
            placed.push((slot, ran));
        }
        let slots = busy_until.len();
        let drawn = ((slots as f64 * share).ceil() as usize).min(slots);
        let shown = placed.into_iter().filter(|(slot, _)| *slot < drawn);
        let sequence = |(slot, ran): (usize, Ran)| Sequence {
            slot,
            from_s: scale.at(ran.from_ns),
            to_s: scale.at(ran.to_ns),
            versions: ran.versions,
            step: ran.step,
        };
        Lane { worker, slots, drawn, sequences: shown.map(sequence).collect() }
    };
    lanes.into_iter().map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_operators::record::Reason;

    const MS: i64 = 1_000_000;

    fn ran(from: i64, to: i64) -> Ran {
        Ran { from_ns: from * MS, to_ns: to * MS, versions: vec![(3, 1)], step: Some(2) }
    }

    /// Catches two sequences in one slot at once, and a slot that stays empty where one could begin.
    #[test]
    fn each_sequence_has_the_first_free_slot() {
        let scale = Scale { began: 0, seconds: 0.1 };
        let lanes = BTreeMap::from([(3, vec![ran(20, 40), ran(0, 30), ran(0, 10), ran(10, 20), ran(30, 50)])]);
        let [lane] = &laid_out(lanes, &scale)[..] else { panic!() };
        let found: Vec<(usize, f64)> = lane.sequences.iter().map(|of| (of.slot, of.from_s)).collect();
        assert_eq!(found, [(0, 0.0), (1, 0.0), (0, 0.01), (0, 0.02), (1, 0.03)]);
        assert_eq!((lane.worker, lane.slots, lane.drawn), (3, 2, 2));
    }

    /// Catches a rollout that was refused in its batch, where all get their clocks, and is said to be trained.
    #[test]
    fn only_what_was_trained_has_a_step() {
        let trained =
            Rollout { status: Status::Trained, step: 4, trained_ns: 9, version: vec![1, 1, 2], ..Rollout::default() };
        let refused = Rollout { status: Status::Discarded(Reason::NoReward), ..trained.clone() };
        assert_eq!((Ran::of(&trained).step, Ran::of(&refused).step), (Some(4), None));
        assert_eq!(Ran::of(&trained).versions, [(2, 1), (1, 2)]);
    }

    /// Catches a page that grows with the number of slots, and a generator that vanishes.
    #[test]
    fn few_of_very_many_are_drawn() {
        let many = |n: i64| (0..n).map(|_| ran(0, 10)).collect::<Vec<_>>();
        let lanes =
            laid_out(BTreeMap::from([(0, many(9_000)), (1, many(3_000)), (2, many(1))]), &Scale { began: 0, seconds: 1.0 });
        let found: Vec<_> = lanes.iter().map(|lane| (lane.worker, lane.slots, lane.drawn, lane.sequences.len())).collect();
        assert_eq!(found, [(0, 9_000, 900, 900), (1, 3_000, 300, 300), (2, 1, 1, 1)]);
    }

    /// A step of 2 s whose sums come to 1 s: 0.25 s of waiting become half a second.
    #[test]
    fn parts_of_a_step_fill_its_time() {
        let m = Metrics {
            step: 7,
            wait_any_ns: 250_000_000,
            train_ns: 750_000_000,
            finished_ns: 5_000_000_000,
            ..Metrics::default()
        };
        let spent = Spent::of(&m, 1_000_000_000, 3_000_000_000);
        assert_eq!((spent.from_s, spent.to_s, spent.any, spent.train), (2.0, 4.0, 0.5, 1.5));
        let none = Spent::of(&Metrics { finished_ns: 5, ..Metrics::default() }, 0, 0);
        assert_eq!((none.train, none.any), (0.0, 0.0));
    }
}
