//! Rewards that take their time: the operator holds what its port has, the others go on, and every end is an end.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{FakePorts, Outcome, World, on_workers, plan, run_with};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidegate_operators::dataflow::Ports;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::plan::{Order, Plan};
use tidegate_operators::record::{Group, Reason, Rollout, Status, Step};
use tidegate_operators::score::{PATIENCE, Scorer, score};
use tidegate_operators::waker::Waker;
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle, StreamVec};
use timely::worker::Worker;

const WORKERS: [usize; 3] = [1, 2, 4];

/// A port that keeps what it takes until the test says what becomes of it.
#[derive(Clone, Default)]
struct Desk(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    taken: Vec<Rollout>,
    finished: Vec<Rollout>,
    pending: usize,
    failure: Option<Failure>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    Error,
    Panic,
    /// A rollout that it never had.
    Stranger,
    /// It forgets what it took.
    Lost,
}

impl Desk {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn pending(&self) -> usize {
        self.inside().taken.len()
    }

    /// Scores all that is there and that `which` picks, the last one first.
    fn finish(&self, which: impl Fn(&Rollout) -> bool) {
        let mut inside = self.inside();
        let picked: Vec<Rollout> = inside.taken.extract_if(.., |rollout| which(rollout)).collect();
        inside.finished.extend(picked.into_iter().rev().map(|r| Rollout { reward: Some(r.sample as f32), ..r }));
        inside.waker.iter().for_each(Waker::wake);
    }

    fn fail(&self, failure: Failure) {
        let mut inside = self.inside();
        inside.failure = Some(failure);
        inside.waker.iter().for_each(Waker::wake);
    }
}

impl Scorer for Desk {
    fn score(&mut self, rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        assert!(rollout.trainable());
        let mut inside = self.inside();
        inside.pending += 1;
        inside.taken.push(rollout);
        Ok(None)
    }

    fn finished(&mut self) -> Result<Vec<Rollout>, Fault> {
        let mut inside = self.inside();
        match inside.failure {
            Some(Failure::Error) => return Err(Fault::new("score", "planted")),
            Some(Failure::Panic) => panic!("planted"),
            Some(Failure::Stranger) => return Ok(vec![rollout(77, 1, 0)]),
            Some(Failure::Lost) => inside.pending = 0,
            None => {}
        }
        let finished = std::mem::take(&mut inside.finished);
        inside.pending -= finished.len().min(inside.pending);
        Ok(finished)
    }

    fn pending(&self) -> usize {
        self.inside().pending
    }

    fn wake_with(&mut self, waker: Waker) {
        self.inside().waker = Some(waker);
    }
}

fn rollout(number: u64, due: Step, sample: u32) -> Rollout {
    let group = Arc::new(Group { number, due, size: 4, ..Group::default() });
    Rollout { group, sample, tokens: vec![7; 2], mask: vec![true; 2], ..Rollout::default() }
}

/// What a stream gave on this worker, with its times.
type Seen<D> = Arc<Mutex<Vec<(Step, D)>>>;

fn watch<D: Clone + 'static>(stream: StreamVec<'_, Step, D>, probe: &ProbeHandle<Step>) -> Seen<D> {
    let seen = Seen::default();
    let all = Arc::clone(&seen);
    stream
        .inspect_core(move |event| {
            if let Ok((stamp, data)) = event {
                let stamp: &timely::progress::Stamp<Step> = stamp;
                let time = *stamp.least().expect("every record has a time");
                all.lock().unwrap().extend(data.iter().map(|datum: &D| (time, datum.clone())));
            }
        })
        .probe_with(probe);
    seen
}

/// The operator by itself on one worker, with two groups of four at the desk, due at 1 and 2.
struct Alone {
    desk: Desk,
    input: Option<InputHandleVec<Step, Rollout>>,
    probe: ProbeHandle<Step>,
    /// Of the faults, which may come at any time until the operator rests.
    quiet: ProbeHandle<Step>,
    seen: Seen<Rollout>,
    faults: Seen<Fault>,
}

impl Alone {
    fn new(worker: &mut Worker, halt: &Halt) -> Alone {
        let (desk, probe, quiet) = (Desk::default(), ProbeHandle::new(), ProbeHandle::new());
        let (mut input, seen, faults) = worker.dataflow(|scope| {
            let (input, rollouts) = scope.new_input();
            let scored = score(rollouts, Some(desk.clone()), halt);
            (input, watch(scored.rollouts, &probe), watch(scored.faults, &quiet))
        });
        let first = 10 * worker.index() as u64;
        for due in [1, 2] {
            input.advance_to(due);
            (0..4).for_each(|sample| input.send(rollout(first + due, due, sample)));
        }
        input.advance_to(3);
        input.flush();
        worker.step_while(|| desk.pending() < 8);
        Alone { desk, input: Some(input), probe, quiet, seen, faults }
    }

    fn send(&mut self, due: Step, rollout: Rollout) {
        let input = self.input.as_mut().expect("not closed");
        input.advance_to(due);
        input.send(rollout);
    }

    /// No more comes: the dataflow must end.
    fn close(&mut self, worker: &mut Worker) {
        self.input = None;
        worker.step_while(|| !(self.probe.done() && self.quiet.done()));
    }

    fn seen(&self) -> Vec<(Step, u32)> {
        self.seen.lock().unwrap().iter().map(|(due, rollout)| (*due, rollout.sample)).collect()
    }

    fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap().iter().map(|(_, fault)| fault.to_string()).collect()
    }
}

fn idle(worker: &mut Worker) {
    (0..200).for_each(|_| {
        worker.step();
    });
}

/// Catches a rollout that leaves early or at another time than its own, a frontier that passes one that is pending, and one
/// that stays behind when none is.
#[test]
fn what_is_pending_holds_its_due() {
    for workers in WORKERS {
        on_workers(workers, "pending", move |worker| {
            let mut alone = Alone::new(worker, &Halt::default());
            idle(worker);
            assert!(alone.probe.less_equal(&1) && alone.seen().is_empty());
            alone.desk.finish(|rollout| rollout.group.due == 2 || rollout.sample == 3);
            worker.step_while(|| alone.seen().len() < 5);
            let found: BTreeSet<_> = alone.seen().into_iter().collect();
            assert_eq!(found, BTreeSet::from([(1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]));
            idle(worker);
            assert!(alone.probe.less_equal(&1), "three are pending");
            alone.desk.finish(|_| true);
            worker.step_while(|| alone.seen().len() < 8 || alone.probe.less_equal(&2));
            assert!(alone.seen.lock().unwrap().iter().all(|(_, r)| r.reward == Some(r.sample as f32)));
            let status = Status::Discarded(Reason::NoReward);
            alone.send(4, Rollout { status, ..rollout(9, 4, 0) });
            alone.close(worker);
            assert_eq!((alone.seen().len(), alone.faults().len()), (9, 0), "what cannot be trained passes by");
        });
    }
}

/// Catches an operator that sees what is finished only when it looks at the halt, every 20 ms: the worker is parked, and the
/// moments at which something is finished are spread over that time.
#[test]
fn what_is_finished_wakes_the_operator() {
    on_workers(1, "wake", |worker| {
        let mut waits: Vec<Duration> = Vec::new();
        for round in 0..9 {
            let alone = Alone::new(worker, &Halt::default());
            let desk = alone.desk.clone();
            let finisher = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(21_000 + 2200 * round));
                let finished = Instant::now();
                desk.finish(|_| true);
                finished
            });
            while alone.seen().len() < 8 {
                worker.step_or_park(Some(Duration::from_secs(1)));
            }
            let seen = Instant::now();
            waits.push(seen - finisher.join().unwrap());
        }
        waits.sort();
        assert!(waits[4] < Duration::from_millis(4), "{waits:?}");
    });
}

/// Catches a halt that drops what would have been scored in time, or that waits for ever for what is not.
#[test]
fn a_halt_waits_for_what_is_pending_and_not_for_ever() {
    for workers in WORKERS {
        on_workers(workers, "halt, answered", |worker| {
            let halt = Halt::default();
            let mut alone = Alone::new(worker, &halt);
            halt.set();
            idle(worker);
            assert!(alone.probe.less_equal(&1) && alone.seen().is_empty());
            alone.desk.finish(|_| true);
            alone.close(worker);
            assert_eq!((alone.seen().len(), alone.faults().len()), (8, 0));
        });
    }
    on_workers(4, "halt, unanswered", |worker| {
        let halt = Halt::default();
        let mut alone = Alone::new(worker, &halt);
        let start = Instant::now();
        halt.set();
        alone.input = None;
        alone.desk.finish(|rollout| rollout.sample == 0);
        while !(alone.probe.done() && alone.quiet.done()) {
            worker.step_or_park(None);
        }
        assert!((PATIENCE..2 * PATIENCE).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!((alone.seen().len(), alone.faults().len()), (2, 0));
        assert_eq!(Arc::strong_count(&alone.desk.0), 1, "the port is let go");
    });
}

/// Catches a failure of the port that goes unsaid, that leaves a capability behind, or that takes a worker with it.
#[test]
fn a_fault_while_pending_ends_it() {
    for (failure, says) in [
        (Failure::Error, "score: planted".to_owned()),
        (Failure::Panic, "score: panicked: planted".to_owned()),
        (Failure::Stranger, "score: the scorer returned group 77, sample 0, which it does not have".to_owned()),
        (Failure::Lost, "score: the scorer has nothing pending, but owes group 1, sample 0".to_owned()),
    ] {
        for workers in WORKERS {
            let says = says.clone();
            on_workers(workers, "fault", move |worker| {
                let halt = Halt::default();
                let mut alone = Alone::new(worker, &halt);
                alone.desk.fail(failure);
                worker.step_while(|| alone.faults().is_empty());
                assert!(halt.is_set());
                alone.send(3, rollout(99, 3, 0));
                alone.close(worker);
                let says = says.replace("group 1,", &format!("group {},", 10 * worker.index() + 1));
                assert_eq!(alone.faults(), [says]);
                assert!(alone.seen().is_empty());
                assert_eq!(Arc::strong_count(&alone.desk.0), 1, "the port is let go");
            });
        }
    }
    on_workers(1, "twice", |worker| {
        let mut alone = Alone::new(worker, &Halt::default());
        alone.send(3, rollout(2, 3, 1));
        alone.close(worker);
        assert_eq!(alone.faults(), ["score: group 2, sample 1 came twice"]);
    });
}

/// A run whose rewards are given by `logic`, which is called over and over with what is at the desk.
fn run_at_desk(plan: &Plan, halt: &Halt, logic: impl Fn(&World, &Desk) + Send + Sync + 'static) -> Outcome {
    let world = World::default();
    let (desk, watched) = (Desk::default(), world.clone());
    let port = desk.clone();
    let change = move |_, ports: FakePorts| {
        let Ports { prompts, generator, estimator, learner, log, waiting, .. } = ports;
        Ports { prompts, generator, scorer: Some(port.clone()), estimator, learner, log, waiting }
    };
    run_with(plan, &world, 1, halt, change, move |_, _| logic(&watched, &desk))
}

/// Catches decoding that stops while rewards are pending: none is given before every rollout of the run is at the desk,
/// four times what the generator holds.
#[test]
fn decoding_goes_on_while_rewards_are_pending() {
    let plan = Plan { slots: 4, ..plan(4, 2, 2, 3) };
    let outcome = run_at_desk(&plan, &Halt::default(), |_, desk| {
        if desk.pending() == 16 {
            desk.finish(|_| true);
        }
    });
    assert!(outcome.faults().is_empty(), "{:?}", outcome.faults());
    assert_eq!(outcome.steps().len(), 4);
}

/// Catches training that waits for a slow reward before the lag rule says so: group 0 may be trained by step 4 at the last,
/// and its reward comes only after step 3.
#[test]
fn training_waits_for_a_slow_reward_only_where_the_lag_rule_forces_it() {
    let plan = Plan { slots: 16, order: Order::Arrival, ..plan(8, 2, 2, 3) };
    let outcome = run_at_desk(&plan, &Halt::default(), |world, desk| {
        let done = world.done.load(std::sync::atomic::Ordering::SeqCst);
        desk.finish(|rollout| rollout.group.number != 0 || done >= 3);
    });
    assert!(outcome.faults().is_empty(), "{:?}", outcome.faults());
    let slow: BTreeSet<_> = outcome.rollouts().filter(|r| r.group.number == 0).map(|r| (r.step, r.group.due)).collect();
    assert_eq!((outcome.steps().len(), slow), (8, BTreeSet::from([(4, 4)])));
}

/// Catches a run that does not end, or that keeps half a group, where it is halted while rewards are pending for ever.
#[test]
fn a_halted_run_gives_up_what_is_never_scored() {
    let halt = Halt::default();
    let outside = halt.clone();
    let outcome = run_at_desk(&plan(100, 2, 2, 3), &halt, move |_, desk| {
        desk.finish(|rollout| rollout.group.number < 5 || rollout.sample == 0);
        if desk.pending() > 0 && desk.inside().finished.is_empty() {
            outside.set();
        }
    });
    assert!(outcome.faults().is_empty(), "{:?}", outcome.faults());
    let mut groups = std::collections::BTreeMap::<u64, u32>::new();
    outcome.rollouts().for_each(|rollout| *groups.entry(rollout.group.number).or_default() += 1);
    assert!(!groups.is_empty() && groups.values().all(|rollouts| *rollouts == 2), "{groups:?}");
}
