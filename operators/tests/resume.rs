//! A run that is stopped and killed over and over and goes on from its log: nothing is lost, nothing comes twice, and the bound
//! holds across all of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Outcome, World, draw, plan, run_with};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_operators::fault::Halt;
use tidegate_operators::plan::{Order, Plan};
use tidegate_operators::record::{Estimated, Metrics, Rollout, SealedStep, Status, Step};
use tidegate_operators::start::Start;

/// How a part of the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All that was complete is in the log.
    Stopped,
    /// The log has what was sealed by some moment, and no tail.
    Killed,
}

/// Runs a part until a halt that `delay` decides, and gives back what its log holds.
fn part(plan: &Plan, world: &World, workers: usize, waiting: Vec<Estimated>, delay: u64) -> Outcome {
    let halt = Halt::default();
    let halting = halt.clone();
    let waiting = std::sync::Mutex::new(waiting);
    let learner = plan.learner;
    run_with(
        plan,
        world,
        workers,
        &halt,
        move |worker, mut ports| {
            if worker == learner {
                ports.waiting = std::mem::take(&mut *waiting.lock().unwrap());
            }
            ports
        },
        move |worker, probes| {
            if worker == 0 && probes.weights.with_frontier(|frontier| frontier.first().is_none_or(|done| *done >= delay)) {
                halting.set();
            }
        },
    )
}

/// What the log says of where the next part starts, as a reader of files would find it.
fn start(log: &[SealedStep], tail: &[Rollout], plan: &Plan) -> (Start, Vec<Estimated>) {
    let mut accounted = BTreeSet::new();
    let mut waits: BTreeMap<(Step, u64), Vec<Rollout>> = BTreeMap::new();
    for rollout in log.iter().flat_map(|step| &step.rollouts) {
        accounted.insert(rollout.group.number);
    }
    for rollout in tail {
        waits.entry((rollout.group.due, rollout.group.number)).or_default().push(rollout.clone());
    }
    waits.retain(|_, rollouts| rollouts.iter().any(|rollout| rollout.status == Status::Waiting));
    accounted.extend(tail.iter().map(|rollout| rollout.group.number));
    let version = log.last().map_or(0, |step| step.step);
    let next = accounted.last().map_or(0, |last| last + 1);
    let finished_ns = log.last().and_then(|step| step.metrics.as_ref()).map_or(0, |metrics| metrics.finished_ns);
    let mut start = Start { finished_ns, ..Start::at(version, next) };
    start.again = (0..next).filter(|number| !accounted.contains(number)).collect();
    let mut waiting = Vec::new();
    for ((due, number), rollouts) in waits {
        assert!(start.wait(due, number, plan.schedule, plan.steps, plan.batch_groups), "nothing that waited is too late");
        waiting.push(Estimated { group: rollouts[0].group.clone(), rollouts, discarded: None });
    }
    (start, waiting)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Catches a group that is lost, trained twice or trained too late, a step that is missing or short, times that go back.
    #[test]
    fn parts_make_one_run(
        seed in any::<u64>(), batch in 1..4_u64, size in 1..3_u32, max_lag in 0..5_u64, workers in 1..4_usize,
        order in prop_oneof![Just(Order::Arrival), Just(Order::Admission)], discarded in prop_oneof![Just(0), Just(25_u64)],
    ) {
        let mut plan = plan(24, batch, size, max_lag);
        plan.order = order;
        plan.slots = (size as usize) * (1 + (seed % 7) as usize);
        plan.generators = (0..workers).collect();
        plan.learner = workers - 1;
        let world = World { seed, discarded, refused: discarded / 5, longest: 6, sleep: 40, ..World::default() };
        let mut log: Vec<SealedStep> = Vec::new();
        // Discarded in a tail: accounted for, and in no step's file.
        let mut dropped: Vec<Rollout> = Vec::new();
        let (mut next, mut waiting) = (Start::default(), Vec::new());
        for round in 0.. {
            prop_assert!(round < 200, "it goes forward");
            plan.start = next;
            let outcome = part(&plan, &world, workers, waiting, plan.start.version + draw(&[seed, round]) % 5);
            prop_assert!(outcome.faults().is_empty(), "{:?}", outcome.faults());
            let (mut steps, mut tail) = (Vec::new(), Vec::new());
            for sealed in outcome.sealed {
                if sealed.metrics.is_some() { steps.push(sealed) } else { tail = sealed.rollouts }
            }
            let end = if draw(&[seed, round, 1]).is_multiple_of(2) { End::Stopped } else { End::Killed };
            if end == End::Killed {
                steps.truncate((draw(&[seed, round, 2]) % (steps.len() as u64 + 1)) as usize);
                tail = Vec::new();
            }
            log.extend(steps);
            if log.last().is_some_and(|step| step.step == plan.steps) {
                break;
            }
            dropped.extend(tail.iter().filter(|rollout| rollout.status != Status::Waiting).cloned());
            let mut all = log.clone();
            all.iter_mut().take(1).for_each(|step| step.rollouts.extend(dropped.iter().cloned()));
            if log.is_empty() && !dropped.is_empty() {
                all.push(SealedStep { step: 0, rollouts: dropped.clone(), metrics: None });
            }
            (next, waiting) = start(&all, &tail, &plan);
        }
        let steps: Vec<Step> = log.iter().map(|step| step.step).collect();
        prop_assert_eq!(steps, (1..=plan.steps).collect::<Vec<_>>());
        let times = log.iter().map(|step| step.metrics.as_ref().map_or(0, |metrics: &Metrics| metrics.finished_ns));
        prop_assert!(times.is_sorted_by(|a, b| a < b));
        let mut seen = BTreeMap::new();
        for sealed in &log {
            let trained: Vec<_> = sealed.rollouts.iter().filter(|rollout| rollout.status == Status::Trained).collect();
            prop_assert_eq!(trained.len() as u64, batch * u64::from(size));
            for rollout in sealed.rollouts.iter() {
                *seen.entry((rollout.group.number, rollout.sample)).or_insert(0) += 1;
            }
            for version in trained.iter().flat_map(|rollout| &rollout.version) {
                prop_assert!(*version < sealed.step && sealed.step - 1 - version <= max_lag);
            }
        }
        for rollout in &dropped {
            *seen.entry((rollout.group.number, rollout.sample)).or_insert(0) += 1;
        }
        prop_assert!(seen.values().all(|times| *times == 1), "every rollout once");
        // Whatever is missing below the last number was under way when the last step was taken.
        let numbers: BTreeSet<u64> = seen.keys().map(|(number, _)| *number).collect();
        let missing = numbers.last().unwrap() + 1 - numbers.len() as u64;
        prop_assert!(missing <= batch * (max_lag + 1), "{missing} groups were skipped");
    }
}
