//! The log beside the dataflow: on its own thread, in step order, and never far behind.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::streams::{durable, estimated, faults, idle, watch};
use common::{Call, World, on_workers, plan, run};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_operators::admit::End;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::record::{SealedStep, Step};
use tidegate_operators::seal::{AHEAD, Log, seal};
use tidegate_operators::train::{Mode, train};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Input;

/// Catches a learner that a slow log lets run away, one that the log's news do not wake, and a run that is taken for over
/// because all its groups have come.
#[test]
fn train_waits_for_the_log() {
    on_workers(1, "train", |worker| {
        let (probe, weights) = (ProbeHandle::new(), ProbeHandle::new());
        let halt = Halt::default();
        let (mut groups, mut end, mut log, trained) = worker.dataflow(|scope| {
            let ((groups, arriving), (end, ends), (log, sealed)) = (scope.new_input(), scope.new_input(), scope.new_input());
            let learner = World::default().ports(&Arc::default(), 1).learner;
            let trained = train(arriving, ends, sealed, &plan(9, 1, 1, 8), Mode::Run { bound: 8 }, learner, &halt);
            watch(trained.weights, &weights);
            (groups, end, log, watch(trained.steps, &probe))
        });
        groups.advance_to(9);
        (0..9).for_each(|number| groups.send(estimated(number, 9, 0, 0)));
        end.send(End { groups: 9 });
        groups.close();
        end.close();
        for durable_steps in 0..5 {
            worker.step_while(|| trained.lock().unwrap().len() < durable_steps + AHEAD as usize);
            std::thread::sleep(Duration::from_millis(1));
            idle(worker);
            assert_eq!(trained.lock().unwrap().len(), durable_steps + AHEAD as usize, "not further");
            assert!(weights.less_equal(&(durable_steps as u64 + AHEAD)));
            log.send(durable(durable_steps as u64 + 1));
            log.flush();
        }
        worker.step_while(|| trained.lock().unwrap().len() < 7);
        idle(worker);
        // The log says no more, and nothing but the flag says that it is over.
        halt.set();
        worker.step_while(|| !probe.done());
        let trained: Vec<_> = trained.lock().unwrap().iter().map(|(_, s)| (s.step, s.metrics.is_some())).collect();
        assert_eq!(trained, (1..=7).map(|step| (step, true)).chain([(8, false)]).collect::<Vec<_>>());
    });
}

/// Catches a step that is called durable before it is, and an output out of step order.
#[test]
fn seal_is_in_order_and_says_when() {
    for workers in [1, 2, 4] {
        on_workers(workers, "seal", |worker| {
            let (probe, log) = (ProbeHandle::new(), Arc::default());
            let (mut input, seen, failed) = worker.dataflow(|scope| {
                let (input, steps) = scope.new_input();
                let sealed = seal(steps, World::default().ports(&log, 1).log, &Halt::default());
                (input, watch(sealed.steps, &probe), watch(sealed.faults, &probe))
            });
            for step in [1, 2, 3, 3] {
                input.advance_to(step);
                input.send(SealedStep { step, rollouts: Vec::new(), metrics: None });
            }
            input.advance_to(4);
            let sealed = || log.lock().unwrap().len() as u64;
            while probe.less_than(&4) && seen.lock().unwrap().len() < 3 {
                worker.step();
                let told = seen.lock().unwrap().len() as u64;
                assert!(told <= sealed(), "{told} are told, {} sealed", sealed());
                // The log's thread may be on before this one looks; the faults' output holds time 0.
                assert!((1..=3).all(|step| told >= step || probe.less_equal(&step)));
            }
            input.close();
            worker.step_while(|| !probe.done());
            assert_eq!(
                seen.lock().unwrap().iter().map(|(time, sealed)| (*time, sealed.step)).collect::<Vec<_>>(),
                [(1, 1), (2, 2), (3, 3)]
            );
            assert_eq!((sealed(), faults(&failed)), (3, vec!["seal: step 3 comes after step 3".to_owned()]));
        });
    }
}

/// What a log does with step 3.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Third {
    Seal,
    Refuse,
    Panic,
}

/// A log that seals a step when it is let, and does as it is told with step 3. A 0 in `seen` is its end.
struct SlowLog {
    third: Third,
    let_go: Receiver<()>,
    seen: Arc<Mutex<Vec<Step>>>,
}

impl Log for SlowLog {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        self.let_go.recv().unwrap();
        self.seen.lock().unwrap().push(step.step);
        match self.third {
            Third::Refuse if step.step == 3 => Err(Fault::new("log", "no space left on device")),
            Third::Panic if step.step == 3 => panic!("planted"),
            _ => Ok(()),
        }
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(2));
        self.seen.lock().unwrap().push(0);
    }
}

/// Catches a worker that waits for the disk (it lets the log go on), a step that is tried after one that failed, a panic that
/// leaves the run waiting, a halt that loses what was handed over, and a dataflow that ends before its log has.
#[test]
fn seal_works_beside_its_worker() {
    for (third, halted) in [(Third::Seal, false), (Third::Seal, true), (Third::Refuse, false), (Third::Panic, false)] {
        on_workers(1, &format!("{third:?}, halted: {halted}"), move |worker| {
            let (probe, log, halt) = (ProbeHandle::new(), Arc::default(), Halt::default());
            let (permit, let_go) = channel();
            let (mut input, seen, failed) = worker.dataflow(|scope| {
                let (input, steps) = scope.new_input();
                let sealed = seal(steps, Some(SlowLog { third, let_go, seen: Arc::clone(&log) }), &halt);
                (input, watch(sealed.steps, &probe), watch(sealed.faults, &probe))
            });
            for step in 1..6 {
                input.advance_to(step);
                input.send(SealedStep { step, rollouts: Vec::new(), metrics: None });
            }
            input.flush();
            let last = if third == Third::Seal { 5 } else { 2 };
            for step in 1..=last {
                idle(worker);
                assert_eq!(seen.lock().unwrap().len() as Step, step - 1);
                if halted && step == 3 {
                    halt.set();
                }
                permit.send(()).unwrap();
                worker.step_while(|| (seen.lock().unwrap().len() as Step) < step);
            }
            if third != Third::Seal {
                permit.send(()).unwrap();
                // What comes when the log has ended, and that is not yet known, is no fault of its own.
                while log.lock().unwrap().last() != Some(&0) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                input.advance_to(6);
                input.send(SealedStep { step: 6, rollouts: Vec::new(), metrics: None });
            }
            input.close();
            worker.step_while(|| !probe.done());
            let told: Vec<_> = seen.lock().unwrap().iter().map(|(time, sealed)| (*time, sealed.step)).collect();
            assert_eq!(told, (1..=last).map(|step| (step, step)).collect::<Vec<_>>());
            let fault = match third {
                Third::Seal => None,
                Third::Refuse => Some("log: no space left on device".to_owned()),
                Third::Panic => Some("seal: panicked: planted".to_owned()),
            };
            // Tried were those that are durable and the one that failed; then the log was let go.
            let tried = (1..=last + Step::from(fault.is_some())).chain([0]).collect::<Vec<_>>();
            assert_eq!(*log.lock().unwrap(), tried);
            assert_eq!((halt.is_set(), faults(&failed)), (halted || fault.is_some(), Vec::from_iter(fault)));
        });
    }
}

/// Catches a run that a slow log stops altogether or does not slow down, and steps that come to the log in another order.
#[test]
fn a_slow_log_holds_the_run_back() {
    for workers in [1, 2] {
        let mut plan = plan(30, 2, 2, 2);
        plan.learner = workers - 1;
        let world = World { slow: Some((Call::Seal, 1000)), ..World::default() };
        let outcome = run(&plan, &world, workers, &Halt::default(), |_, _| {});
        assert_eq!(outcome.faults(), Vec::<&Fault>::new());
        assert!(outcome.sealed.iter().map(|sealed| sealed.step).eq(1..=30));
        assert_eq!(world.ahead.load(Ordering::SeqCst), AHEAD);
        let waited = |sealed: &SealedStep| sealed.metrics.as_ref().map_or(0, |m| m.wait_log_ns);
        let waited = outcome.sealed.iter().map(waited).sum::<u64>();
        assert!((20_000_000..).contains(&waited), "28 of 30 seals of 1 ms are waited for: {waited} ns");
    }
}

/// Catches a halt during a seal that loses what the log was given, or that leaves the learner waiting for it.
#[test]
fn a_halt_while_a_step_is_sealed() {
    for workers in [1, 2] {
        let mut plan = plan(10_000, 2, 2, 2);
        plan.learner = workers - 1;
        let world = World { slow: Some((Call::Seal, 30_000)), ..World::default() };
        let (halt, done) = (Halt::default(), Arc::clone(&world.done));
        let outside = halt.clone();
        // Two steps are trained 30 ms before the first is durable.
        let outcome = run(&plan, &world, workers, &halt, move |_, _| {
            if done.load(Ordering::SeqCst) == AHEAD {
                outside.set();
            }
        });
        assert!(outcome.faults().is_empty());
        let sealed: Vec<_> = outcome.sealed.iter().map(|sealed| (sealed.step, sealed.metrics.is_some())).collect();
        assert_eq!(sealed, [(1, true), (2, true), (3, false)]);
    }
}

/// Catches generators that run away from a slow learner: what waits and what is generated is what the lag rule lets in.
#[test]
fn a_slow_learner_holds_the_generators_back() {
    for workers in [1, 3] {
        let mut plan = plan(20, 2, 3, 3);
        plan.slots = 1000;
        plan.learner = workers - 1;
        plan.generators = (0..workers.max(2) - 1).collect();
        let world = World { slow: Some((Call::Work, 1000)), discarded: 20, longest: 1, ..World::default() };
        let (most, census) = (Arc::new(AtomicI64::new(0)), world.census.clone());
        let seen = Arc::clone(&most);
        let outcome = run(&plan, &world, workers, &Halt::default(), move |_, _| {
            seen.fetch_max(census.snapshot().total().in_flight(), Ordering::SeqCst);
        });
        assert!(outcome.faults().is_empty());
        // (max_lag + 1) * B; the end of a step may be counted after the admissions that it allows.
        let most = most.load(Ordering::SeqCst);
        assert!((8..=8 + 2).contains(&most), "{most} groups at once");
    }
}
