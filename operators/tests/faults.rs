//! Whatever a port does, and whenever a run is halted: it ends, says who failed, and what is sealed is whole.

mod common;

use common::{Call, FakeLearner, FakePorts, Outcome, Trouble, World, plan, run, run_with};
use std::collections::BTreeSet;
use std::sync::Once;
use std::time::{Duration, Instant};
use tidegate_operators::dataflow::Ports;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::plan::Plan;
use tidegate_operators::record::{Rollout, Status, Step};
use tidegate_operators::train::{Learner, Trained};

/// Planted panics are not worth a backtrace each; others are.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let planted = info.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with("planted"));
            if !planted {
                others(info);
            }
        }));
    });
}

/// Steps follow each other, each is whole, no group is in the log twice, and only a tail holds what was not trained.
fn whole(plan: &Plan, outcome: &Outcome) {
    let mut groups = BTreeSet::new();
    for (sealed, step) in outcome.sealed.iter().zip(plan.start.version + 1..) {
        assert_eq!(sealed.step, step);
        let trained = sealed.rollouts.iter().filter(|rollout| rollout.trained_ns > 0).count() as u64;
        let batch = plan.batch_groups * u64::from(plan.group_size);
        assert_eq!(trained, if sealed.metrics.is_some() { batch } else { 0 });
        assert!(
            sealed.metrics.is_some() || step == plan.start.version + outcome.sealed.len() as u64,
            "only the last is a tail"
        );
        for rollout in &sealed.rollouts {
            assert!(groups.insert((rollout.group.number, rollout.sample)));
            assert_eq!(rollout.status == Status::Waiting, sealed.metrics.is_none() && rollout.trainable());
        }
    }
}

fn operator(call: Call) -> &'static str {
    match call {
        Call::Prompts | Call::Learned => "admit",
        Call::Load | Call::Start | Call::Decode => "generate",
        Call::Score => "score",
        Call::Estimate => "estimate",
        Call::Begin | Call::Work | Call::Weights => "train",
        Call::Seal => "seal",
    }
}

fn every_call(trouble: Trouble) {
    quiet();
    let calls = [Call::Prompts, Call::Learned, Call::Load, Call::Start, Call::Decode, Call::Score];
    let calls = calls.into_iter().chain([Call::Estimate, Call::Begin, Call::Work, Call::Weights, Call::Seal]);
    for (call, workers) in calls.flat_map(|call| [(call, 1), (call, 2), (call, 3)]) {
        for turn in [0, 5] {
            let mut plan = plan(40, 2, 2, 2);
            plan.learner = workers - 1;
            plan.generators = (0..workers.max(2) - 1).collect();
            plan.window = usize::from(call == Call::Learned);
            let world = World { trouble: Some((call, turn, trouble)), unscored: 20, ..World::default() };
            let halt = Halt::default();
            let outcome = run(&plan, &world, workers, &halt, |_, _| {});
            whole(&plan, &outcome);
            assert!(halt.is_set());
            let faults = outcome.faults();
            let planted: Vec<_> = faults.iter().filter(|fault| fault.message.contains("planted")).collect();
            assert!(!planted.is_empty(), "{call:?} {turn}: {faults:?}");
            // A panic is named after the operator that called the port; an error says itself who it is.
            let named = |fault: &Fault| trouble == Trouble::Error || fault.operator == operator(call);
            assert!(planted.iter().all(|fault| named(fault)), "{faults:?}");
            assert_eq!(planted.len(), faults.len(), "no fault but the planted one: {faults:?}");
            assert!(outcome.steps().len() < 40);
            let done = matches!(call, Call::Seal | Call::Weights).then_some(turn);
            assert!(done.is_none_or(|done| outcome.steps().len() as u64 == done), "nothing after the fault");
        }
    }
}

/// Catches a panic that takes a worker with it (the others would wait forever), or that goes unsaid.
#[test]
fn a_panic_in_any_port_ends_the_run() {
    every_call(Trouble::Panic);
}

/// Catches an error that is dropped, a step after it, or a step that is sealed in part: a disk that is full, a generator that
/// cannot load.
#[test]
fn an_error_of_any_port_ends_the_run() {
    every_call(Trouble::Error);
}

/// Catches a halt that an idle operator does not notice, and waiting groups that are lost: the learner is slow, so the others
/// idle when the flag is set from outside.
#[test]
fn a_halt_from_outside_seals_what_waits() {
    for workers in [1, 2, 4] {
        let mut plan = plan(10_000, 2, 2, 3);
        plan.learner = workers - 1;
        plan.generators = (0..workers.max(2) - 1).collect();
        plan.slots = 64;
        let world = World { pieces: 8, sleep: 2000, discarded: 20, ..World::default() };
        let halt = Halt::default();
        let outside = halt.clone();
        let setter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(120));
            outside.set();
            Instant::now()
        });
        let outcome = run(&plan, &world, workers, &halt, |_, _| {});
        assert!(setter.join().unwrap().elapsed() < Duration::from_secs(5));
        assert!(outcome.faults().is_empty());
        whole(&plan, &outcome);
        let tail = outcome.sealed.last().unwrap();
        let waiting = tail.rollouts.iter().filter(|rollout| rollout.status == Status::Waiting).count();
        assert!(tail.metrics.is_none() && waiting >= 2, "{waiting} rollouts wait");
        assert!(tail.rollouts.iter().all(|rollout| rollout.step == tail.step && rollout.trained_ns == 0));
    }
}

/// Catches a halt before the first step that leaves something behind.
#[test]
fn a_halt_before_the_start_ends_at_once() {
    let halt = Halt::default();
    halt.set();
    let outcome = run(&plan(3, 2, 2, 1), &World::default(), 2, &halt, |_, _| {});
    assert!(outcome.sealed.is_empty() && outcome.faults().is_empty());
}

/// Catches a worker that waits for a port that it was not given.
#[test]
fn a_missing_port_is_a_fault() {
    type Change = fn(FakePorts) -> FakePorts;
    let changes: [(&str, Change); 6] = [
        ("admit", |ports| Ports { prompts: None, ..ports }),
        ("generate", |ports| Ports { generator: None, ..ports }),
        ("score", |ports| Ports { scorer: None, ..ports }),
        ("estimate", |ports| Ports { estimator: None, ..ports }),
        ("train", |ports| Ports { learner: None, ..ports }),
        ("seal", |ports| Ports { log: None, ..ports }),
    ];
    for (operator, change) in changes {
        let mut plan = plan(3, 2, 2, 1);
        plan.learner = 1;
        let outcome = run_with(&plan, &World::default(), 2, &Halt::default(), move |_, ports| change(ports), |_, _| {});
        let faults = outcome.faults();
        assert!(
            faults.len() == 1 && faults[0].operator == operator && faults[0].message.starts_with("worker "),
            "{faults:?}"
        );
    }
}

/// A learner that loses a rollout, or that says that step `at` is done before it is.
struct Lossy(FakeLearner);

impl Learner for Lossy {
    type Weights = u64;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.0.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let trained = self.0.work()?;
        Ok(trained.map(|mut trained| {
            trained.batch.pop();
            trained
        }))
    }

    fn weights(&mut self) -> Result<u64, Fault> {
        self.0.weights()
    }
}

/// Catches a step that fails and takes its batch with it: the rows that show why are in the log's tail.
#[test]
fn the_batch_of_a_failed_step_is_kept() {
    for call in [Call::Begin, Call::Work] {
        let world = World { trouble: Some((call, 0, Trouble::Error)), ..World::default() };
        let outcome = run(&plan(3, 2, 2, 1), &world, 1, &Halt::default(), |_, _| {});
        let tail = outcome.sealed.last().expect("a tail");
        let of_batch = tail.rollouts.iter().filter(|rollout| !rollout.advantage.is_empty());
        assert!(tail.metrics.is_none() && of_batch.count() >= 4, "{call:?}: {} rows", tail.rollouts.len());
        assert!(tail.rollouts.iter().all(|rollout| rollout.status == Status::Waiting));
    }
}

/// Catches rows that vanish in the learner.
#[test]
fn a_learner_that_loses_rollouts_is_a_fault() {
    let lossy = |_, ports: FakePorts| {
        let Ports { prompts, generator, scorer, estimator, learner, log, waiting } = ports;
        Ports { prompts, generator, scorer, estimator, learner: learner.map(Lossy), log, waiting }
    };
    let outcome = run_with(&plan(3, 2, 2, 1), &World::default(), 1, &Halt::default(), lossy, |_, _| {});
    assert!(outcome.steps().is_empty());
    assert_eq!(outcome.faults()[0].to_string(), "train: the learner took 4 rollouts for step 1 and returned 3");
}
