//! Replays: recorded groups go through the same operators again, each in the step that trained it.
#![allow(clippy::unwrap_used, reason = "tests")]

use tidegate_operators::start::Start;
mod common;

use common::{Call, Outcome, Trouble, World, on_workers, plan, run};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use tidegate_operators::census::Snapshot;
use tidegate_operators::dataflow::{Ports, ReplayPorts, replay_dataflow};
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::plan::{Order, Plan};
use tidegate_operators::record::{Rollout, SealedStep, Status, Step};
use tidegate_operators::recorded::Recorded;

/// A recording, and how far it is read ahead of what is sealed.
struct Recording {
    groups: VecDeque<Vec<Rollout>>,
    batch_groups: u64,
    read: u64,
    start: Step,
    log: Arc<Mutex<Vec<SealedStep>>>,
    world: World,
}

impl Recorded for Recording {
    fn next(&mut self) -> Result<Option<Vec<Rollout>>, Fault> {
        let step = self.start + 1 + self.read / self.batch_groups;
        let sealed = self.start + self.log.lock().unwrap().len() as u64;
        assert!(step <= sealed + 2, "step {step} is read when {sealed} are sealed");
        self.read += 1;
        assert!(self.world.trouble.is_none_or(|(call, turn, _)| call != Call::Prompts || turn != self.read), "planted");
        Ok(self.groups.pop_front())
    }
}

/// The trained groups of the steps after `start`, in batch order.
fn record(outcome: &Outcome, start: Step) -> VecDeque<Vec<Rollout>> {
    let mut groups: VecDeque<Vec<Rollout>> = VecDeque::new();
    let steps = outcome.steps().into_iter().filter(|step| step.step > start);
    for rollout in steps.flat_map(|step| &step.rollouts).filter(|rollout| rollout.trained_ns > 0) {
        match groups.back_mut().filter(|group| group[0].group.number == rollout.group.number) {
            Some(group) => group.push(rollout.clone()),
            None => groups.push_back(vec![rollout.clone()]),
        }
    }
    groups
}

fn replay(plan: &Plan, world: &World, workers: usize, groups: VecDeque<Vec<Rollout>>) -> Outcome {
    let plan = Plan { order: Order::Admission, ..plan.clone() };
    world.done.store(plan.start.version, std::sync::atomic::Ordering::SeqCst);
    let log: Arc<Mutex<Vec<SealedStep>>> = Arc::default();
    let (told, notices) = mpsc::channel();
    let (shared, steps, world, told) = (plan.clone(), Arc::clone(&log), world.clone(), Mutex::new(told));
    on_workers(workers, &format!("replay of {plan:?}, {world:?}"), move |worker| {
        let told = told.lock().unwrap().clone();
        let Ports { scorer, estimator, learner, log, .. } = world.ports(&steps, 1);
        let (groups, log_so_far, start) = (groups.clone(), Arc::clone(&steps), shared.start.clone());
        let batch_groups = shared.batch_groups;
        let recorded =
            Recording { groups, batch_groups, read: 0, start: start.version, log: log_so_far, world: world.clone() };
        let ports = ReplayPorts { recorded: Some(recorded), scorer, estimator, learner, log };
        let observe = move |notice| told.send(notice).unwrap();
        worker.dataflow(|scope| replay_dataflow(scope, &shared, ports, &Halt::default(), observe));
    });
    let sealed = std::mem::take(&mut *log.lock().unwrap());
    Outcome { sealed, notices: notices.try_iter().collect(), counts: Snapshot::default() }
}

type Row = (Step, u32, u64, u32, Status, Vec<u64>, Option<f32>, u64);

fn rows(outcome: &Outcome, start: Step) -> Vec<Row> {
    let trained = outcome.steps().into_iter().filter(|step| step.step > start).flat_map(|step| &step.rollouts);
    let trained = trained.filter(|rollout| rollout.trained_ns > 0);
    trained
        .map(|r| (r.step, r.order, r.group.number, r.sample, r.status.clone(), r.version.clone(), r.reward, r.group.due))
        .collect()
}

/// Catches a replay whose batches are not the recorded ones, or that reads the whole recording at once.
#[test]
fn a_replay_trains_the_recorded_batches() {
    for (prompts, start) in [(1_000_000, 0), (13, 0), (1_000_000, 3)] {
        let plan = plan(8, 2, 3, 4);
        let world = World { prompts, unscored: 20, longest: 6, ..World::default() };
        let recording = run(&plan, &world, 1, &Halt::default(), |_, _| {});
        assert!(recording.faults().is_empty());
        for workers in [1, 2] {
            let plan = Plan { start: Start::at(start, 0), learner: workers - 1, ..plan.clone() };
            let again = replay(&plan, &world, workers, record(&recording, start));
            assert_eq!(again.faults(), Vec::<&Fault>::new());
            assert!(rows(&again, start).len() > 20);
            assert_eq!(rows(&again, start), rows(&recording, start));
            let lags = |outcome: &Outcome| {
                let steps = outcome.steps().into_iter().filter(|step| step.step > start);
                steps.map(|step| step.metrics.as_ref().map(|m| (m.lag_max, m.lag_mean, m.reward))).collect::<Vec<_>>()
            };
            assert_eq!(lags(&again), lags(&recording));
        }
    }
}

/// Catches a replay that hangs, or goes on with other batches, when a group cannot be trained any more or cannot be read.
#[test]
fn a_replay_that_differs_is_a_fault() {
    let plan = plan(6, 2, 2, 2);
    let recording = run(&plan, &World::default(), 1, &Halt::default(), |_, _| {});
    let groups = record(&recording, 0);

    let discards = World { discarded: 30, ..World::default() };
    let again = replay(&plan, &discards, 1, groups.clone());
    let fault = again.faults()[0].to_string();
    assert!(fault.starts_with("train: group ") && fault.ends_with("and is now discarded: zero variance"), "{fault}");

    let mut short = groups.clone();
    short[3].pop();
    let again = replay(&plan, &World::default(), 2, short);
    let number = groups[3][0].group.number;
    let lost = format!("estimate: group {number} has 1 of its 2 rollouts, and no more can come");
    assert_eq!((again.faults()[0].to_string(), again.steps().len()), (lost, 1));

    let mut mixed = groups.clone();
    let stray = mixed[0].pop().unwrap();
    mixed[1].push(stray);
    let again = replay(&plan, &World::default(), 1, mixed);
    assert!(again.faults().iter().any(|fault| fault.message.ends_with("were given as one")), "{:?}", again.faults());

    let unread = World { trouble: Some((Call::Prompts, 5, Trouble::Panic)), ..World::default() };
    let again = replay(&plan, &unread, 1, groups);
    assert_eq!(again.faults()[0].to_string(), "recorded: panicked: planted");
}
