//! Each operator by itself, on 1, 2 and 4 workers: what it emits and where, what it holds back, and that it lets all go when
//! its inputs close. (Timely itself refuses an emission where no capability is held.)
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::streams::{durable, estimated, faults, group, idle, rollout, watch};
use common::{World, on_workers, plan};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_operators::admit::{Admitted, End, Feedback, admit};
use tidegate_operators::balance::Spent;
use tidegate_operators::census::{Census, census};
use tidegate_operators::estimate::estimate;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::generate;
use tidegate_operators::record::{Group, Reason, Rollout, Step, Weights};
use tidegate_operators::schedule::Schedule;
use tidegate_operators::score::{Scorer, score};
use tidegate_operators::train::{Mode, Moved, State, train};
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concat, ConnectLoop, Feedback as _, Input, Inspect};
use timely::dataflow::{InputHandleVec, ProbeHandle, StreamVec};

const WORKERS: [usize; 3] = [1, 2, 4];

/// An input's records leave for another worker only when its time moves; an operator's, when it has run.
fn relay<D: Clone + 'static>(stream: StreamVec<'_, Step, D>) -> StreamVec<'_, Step, D> {
    stream.inspect(|_| {})
}

/// Goes on when all workers have come here; they keep stepping until then.
fn meet(worker: &mut timely::worker::Worker, met: &AtomicUsize) {
    let peers = worker.peers();
    let round = met.fetch_add(1, Ordering::SeqCst) / peers;
    worker.step_while(|| met.load(Ordering::SeqCst) < (round + 1) * peers);
}

/// Catches a rollout that leaves late or early, on another worker, unscored, or not at all; and a capability kept.
#[test]
fn score_keeps_times_and_ends() {
    for workers in WORKERS {
        on_workers(workers, "score", |worker| {
            let me = worker.index() as u64;
            let probe = ProbeHandle::new();
            let (mut input, seen, failed) = worker.dataflow(|scope| {
                let (input, rollouts) = scope.new_input();
                let scored = score(rollouts, World::default().ports(&Arc::default(), 1).scorer, &Halt::default());
                (input, watch(scored.rollouts, &probe), watch(scored.faults, &probe))
            });
            for due in 1..4 {
                input.advance_to(due);
                (0..5).for_each(|sample| input.send(rollout(&group(10 * me + due, due, 5), sample)));
            }
            input.advance_to(4);
            worker.step_while(|| probe.less_than(&4) && seen.lock().unwrap().len() < 15);
            input.close();
            worker.step_while(|| !probe.done());
            let seen = seen.lock().unwrap();
            let right =
                |(due, r): &(Step, Rollout)| r.group.due == *due && r.group.number == 10 * me + due && r.reward.is_some();
            assert!(seen.len() == 15 && seen.iter().all(right) && failed.lock().unwrap().is_empty());
        });
    }
}

struct SlowScorer;

impl Scorer for SlowScorer {
    fn score(&mut self, rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(Some(rollout))
    }
}

/// Catches an operator that does all it has in one go while decode steps and weights wait: one slow rollout an activation.
#[test]
fn score_lets_the_others_run() {
    on_workers(1, "slow score", |worker| {
        let probe = ProbeHandle::new();
        let (mut input, seen) = worker.dataflow(|scope| {
            let (input, rollouts) = scope.new_input();
            (input, watch(score(rollouts, Some(SlowScorer), &Halt::default()).rollouts, &probe))
        });
        (0..20).for_each(|sample| input.send(rollout(&group(0, 1, 20), sample)));
        input.close();
        let mut steps = 0;
        while !probe.done() {
            let before = seen.lock().unwrap().len();
            worker.step();
            steps += 1;
            assert!(seen.lock().unwrap().len() <= before + 1);
        }
        assert!(steps >= 20);
    });
}

/// Catches groups that leave incomplete, unsorted, or twice, a reason that is lost, and a silent wait for what cannot come.
#[test]
fn estimate_completes_groups() {
    for workers in WORKERS {
        on_workers(workers, "estimate", |worker| {
            let me = 100 * worker.index() as u64;
            let probe = ProbeHandle::new();
            let halt = Halt::default();
            let (mut input, seen, failed) = worker.dataflow(|scope| {
                let (input, rollouts) = scope.new_input();
                let estimated = estimate(rollouts, World::default().ports(&Arc::default(), 1).estimator, &halt);
                (input, watch(estimated.groups, &probe), watch(estimated.faults, &probe))
            });
            let scored = |number, due, sample| Rollout { reward: Some(1.0), ..rollout(&group(me + number, due, 3), sample) };
            input.advance_to(2);
            [(0, 2), (1, 0), (0, 1), (1, 2), (1, 1)]
                .into_iter()
                .for_each(|(number, sample)| input.send(scored(number, 2, sample)));
            // Group 2 has nothing to train; of group 3 one rollout is missing.
            (0..3).for_each(|sample| input.send(rollout(&group(me + 2, 2, 3), sample)));
            (0..2).for_each(|sample| input.send(scored(3, 2, sample)));
            input.flush();
            worker.step_while(|| seen.lock().unwrap().len() < 2);
            assert!(probe.less_equal(&2), "group 0 may still come");
            input.send(scored(0, 2, 0));
            input.flush();
            worker.step_while(|| seen.lock().unwrap().len() < 3);
            assert!(!halt.is_set());
            input.advance_to(3);
            worker.step_while(|| probe.less_equal(&2) && failed.lock().unwrap().is_empty());
            input.close();
            worker.step_while(|| !probe.done());
            let mut seen: Vec<_> = seen.lock().unwrap().clone();
            seen.sort_by_key(|(_, estimated)| estimated.group.number);
            let found: Vec<_> = seen.iter().map(|(due, e)| (*due, e.group.number - me, e.discarded.clone())).collect();
            assert_eq!(found, [(2, 0, None), (2, 1, None), (2, 2, Some(Reason::NoReward))]);
            assert!(seen.iter().all(|(_, estimated)| estimated.rollouts.iter().map(|r| r.sample).eq(0..3)));
            let lost = format!("estimate: group {} has 2 of its 3 rollouts, and no more can come", me + 3);
            assert_eq!((faults(&failed), halt.is_set()), (vec![lost], true));
        });
    }
}

/// Catches guard 4 left out (a group sampled before its weights), groups at the wrong generator, a frontier that passes a group
/// in progress, or one that stays behind it.
#[test]
fn generate_holds_its_groups_and_waits_for_weights() {
    for workers in WORKERS {
        on_workers(workers, "generate", move |worker| {
            let me = worker.index();
            let probe = ProbeHandle::new();
            let mut plan = plan(9, 1, 2, 1);
            plan.generators = (0..workers).collect();
            let (mut groups, mut weights, seen, finished) = worker.dataflow(|scope| {
                let ((groups, stream), (weights, versions)) = (scope.new_input(), scope.new_input());
                let generator = World { longest: 1, ..World::default() }.ports(&Arc::default(), 4).generator;
                let generated = generate(stream, versions, &plan, generator, &Halt::default());
                let feedback = ProbeHandle::new();
                watch(generated.faults, &feedback);
                (groups, weights, watch(generated.rollouts, &probe), watch(generated.feedback, &feedback))
            });
            let send = |groups: &mut InputHandleVec<Step, _>, due: Step| {
                for generator in (0..workers).filter(|_| me == 0) {
                    let number = 10 * due + generator as u64;
                    groups.send(Arc::new(Group { number, due, oldest: due - 2, size: 2, generator, ..Group::default() }));
                }
            };
            let version = |weights: &mut InputHandleVec<Step, _>, version| {
                weights.send(Weights { version, payload: version });
                weights.flush();
            };
            let (early, late) = (2, 3);
            groups.advance_to(early);
            send(&mut groups, early);
            groups.advance_to(late);
            send(&mut groups, late);
            groups.advance_to(9);
            idle(worker);
            assert!(seen.lock().unwrap().is_empty() && probe.less_equal(&early), "nothing is loaded");
            version(&mut weights, 0);
            worker.step_while(|| probe.less_equal(&early));
            idle(worker);
            assert!(seen.lock().unwrap().len() == 2 && probe.less_equal(&late), "version 1 is not loaded");
            version(&mut weights, 1);
            worker.step_while(|| probe.less_equal(&late));
            groups.close();
            worker.step_while(|| !probe.done());
            let seen = seen.lock().unwrap();
            assert!(
                seen.len() == 4
                    && seen.iter().all(|(due, r)| *due == r.group.due && r.group.generator == me && r.worker == me)
            );
            assert!(seen.iter().all(|(due, r)| r.version.iter().all(|version| version + 2 == *due)));
            let rollouts = |(_, event): &(Step, Feedback)| match event {
                Feedback::Finished { generator, rollouts } if *generator == me => *rollouts,
                other => panic!("{other:?}"),
            };
            assert_eq!(finished.lock().unwrap().iter().map(rollouts).sum::<usize>(), 4);
        });
    }
}

/// Catches a capability that is lowered or dropped too soon, room or budget overrun, a place that does not come back, a second
/// admitter, and an end without its record.
#[test]
fn admit_keeps_its_capability_and_its_limits() {
    for workers in WORKERS {
        let met = AtomicUsize::new(0);
        on_workers(workers, "admit", move |worker| {
            let here = worker.index() == workers - 1;
            let (groups, ends) = (ProbeHandle::new(), ProbeHandle::new());
            let mut plan = plan(3, 2, 2, 1);
            plan.slots = 6;
            plan.generators = (0..workers).rev().collect();
            let (mut versions, mut feedback, seen, end) = worker.dataflow(|scope| {
                let ((versions, seen), (feedback, events)) = (scope.new_input(), scope.new_input());
                let prompts = World::default().ports(&Arc::default(), 1).prompts;
                let Admitted { groups: admitted, end, faults } =
                    admit(seen, relay(events), &plan, prompts, &Halt::default());
                watch(faults, &ends);
                (versions, feedback, watch(admitted, &groups), watch(end, &ends))
            });
            let dues = || seen.lock().unwrap().iter().map(|(due, group)| (*due, group.number)).collect::<Vec<_>>();
            let of = |numbers: &[(Step, u64)]| if here { numbers.to_vec() } else { Vec::new() };
            // Six slots a generator hold three groups of two; the budget is four groups.
            worker.step_while(|| groups.less_than(&2) || dues().len() < if here { 3 } else { 0 });
            idle(worker);
            let first: Vec<_> = (0..if workers == 1 { 3 } else { 4 }).map(|number| (2, number)).collect();
            assert_eq!(dues(), of(&first));
            meet(worker, &met);
            if worker.index() == 0 {
                feedback.send(Feedback::Finished { generator: workers - 1, rollouts: 4 });
                feedback.send(Feedback::Returned);
                // Nothing of it is asked where the balance is fixed.
                feedback.send(Feedback::Stepped(Spent { whole_ns: 100, waited_ns: 90 }));
                feedback.flush();
            }
            worker.step_while(|| here && dues().len() < 5);
            idle(worker);
            assert_eq!(dues(), of(&[(2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]));
            assert!(groups.less_equal(&2), "a place may still come back");
            meet(worker, &met);
            if worker.index() == 0 {
                feedback.send(Feedback::Finished { generator: workers - 1, rollouts: 6 });
                feedback.flush();
            }
            versions.send(1);
            versions.flush();
            worker.step_while(|| groups.less_equal(&2) || here && dues().len() < 7);
            idle(worker);
            assert_eq!(dues().last().copied(), of(&[(3, 6)]).first().copied(), "three steps of two, one returned");
            assert!(groups.less_equal(&3) && !ends.done());
            meet(worker, &met);
            versions.send(3);
            versions.flush();
            worker.step_while(|| !groups.done() || !ends.done());
            assert_eq!(*end.lock().unwrap(), if here { vec![(0, End { groups: 7 })] } else { vec![] });
            versions.close();
            feedback.close();
        });
    }
}

/// Catches a weights output that waits for old groups: steps are done, and its frontier says so, while the input could still
/// bring groups of a time before all of them. Also batches that wait for more than they need.
#[test]
fn the_weights_frontier_is_the_steps_done() {
    for workers in WORKERS {
        let met = AtomicUsize::new(0);
        on_workers(workers, "train", move |worker| {
            let (weights, steps, others) = (ProbeHandle::new(), ProbeHandle::new(), ProbeHandle::new());
            let mut plan = plan(4, 2, 1, 3);
            plan.learner = workers - 1;
            let (mut groups, old, mut end, versions, sealed) = worker.dataflow(|scope| {
                let ((groups, arriving), (old, held), (end, ends)) =
                    (scope.new_input(), scope.new_input(), scope.new_input());
                let learner = World::default().ports(&Arc::default(), 1).learner;
                let (sealing, sealed) = scope.feedback(0);
                let (arriving, mode) = (relay(arriving.concat(held)), Mode::Run { bound: 3 });
                let trained = train(arriving, ends, sealed, &plan, mode, learner, &Halt::default());
                trained.steps.clone().map(|step| durable(step.step)).connect_loop(sealing);
                watch(trained.moved, &others);
                watch(trained.feedback, &others);
                watch(trained.faults, &others);
                (groups, old, end, watch(trained.weights, &weights), watch(trained.steps, &steps))
            });
            let learns = worker.index() == workers - 1;
            worker.step_while(|| learns && versions.lock().unwrap().is_empty());
            assert!(weights.less_equal(&0));
            groups.advance_to(4);
            for step in 1..=3 {
                if workers == 1 || worker.index() == 0 {
                    (0..2).for_each(|group| groups.send(estimated(2 * step + group - 2, 4, 0, 0)));
                    groups.flush();
                }
                worker.step_while(|| weights.less_than(&step));
                assert!(weights.less_equal(&step), "and not further");
                worker.step_while(|| steps.less_equal(&step));
                assert!(steps.less_equal(&(step + 1)) && others.less_equal(&0));
                meet(worker, &met);
            }
            if worker.index() == 0 {
                end.send(End { groups: 6 });
            }
            old.close();
            groups.close();
            end.close();
            worker.step_while(|| !(weights.done() && steps.done() && others.done()));
            let (versions, sealed) = (versions.lock().unwrap(), sealed.lock().unwrap());
            let times: Vec<_> = versions.iter().map(|(time, weights)| (*time, weights.version)).collect();
            let trained: Vec<_> = sealed.iter().map(|(time, step)| (*time, step.step, step.rollouts.len())).collect();
            assert_eq!(times, if learns { vec![(0, 0), (1, 1), (2, 2), (3, 3)] } else { vec![] });
            assert_eq!(trained, if learns { vec![(1, 1, 2), (2, 2, 2), (3, 3, 2)] } else { vec![] });
        });
    }
}

/// Catches the promise being taken on trust: a token that is too old is found at its step, and the step is not taken.
#[test]
fn train_looks_at_every_token() {
    on_workers(1, "train", |worker| {
        let probe = ProbeHandle::new();
        let (mut groups, _end, mut log, sealed, failed) = worker.dataflow(|scope| {
            let ((groups, arriving), (end, ends)) = (scope.new_input(), scope.new_input::<Vec<End>>());
            let (log, sealed) = scope.new_input();
            let (plan, learner) = (plan(4, 1, 1, 1), World::default().ports(&Arc::default(), 1).learner);
            let trained = train(arriving, ends, sealed, &plan, Mode::Run { bound: 1 }, learner, &Halt::default());
            (groups, end, log, watch(trained.steps, &probe), watch(trained.faults, &probe))
        });
        log.send(durable(1));
        log.close();
        groups.advance_to(4);
        (0..3).for_each(|number| groups.send(estimated(number, 4, 0, 0)));
        groups.close();
        worker.step_while(|| !probe.done());
        let (sealed, failed) = (sealed.lock().unwrap(), faults(&failed));
        assert_eq!(sealed.iter().map(|(_, step)| step.metrics.is_some()).collect::<Vec<_>>(), [true, true]);
        assert!(failed.len() == 1 && failed[0].ends_with("by version 0; step 3 may train versions 1 to 2"), "{failed:?}");
    });
}

/// Catches a census that cannot tell a lost group or a doubled one, or that speaks up before the due has passed.
#[test]
fn census_names_lost_and_doubled_groups() {
    for workers in WORKERS {
        let counts = Census::new();
        let shared = counts.clone();
        let found = on_workers(workers, "census", move |worker| {
            let probe = ProbeHandle::new();
            let (mut admitted, mut moved, failed) = worker.dataflow(|scope| {
                let ((admitted, came), (moved, went)) = (scope.new_input(), scope.new_input());
                (admitted, moved, watch(census(came, went, Schedule::default(), &shared, &Halt::default()), &probe))
            });
            admitted.advance_to(2);
            moved.advance_to(2);
            let went = |number, from, to| Moved { number, from, to };
            if worker.index() == 0 {
                (0..4).for_each(|number| admitted.send(group(number, 2, 1)));
                for number in [0, 1, 2] {
                    moved.send(went(number, State::Generating, State::Waiting));
                }
                moved.send(went(0, State::Waiting, State::Trained));
                (0..2).for_each(|_| moved.send(went(1, State::Waiting, State::Discarded)));
                moved.send(went(2, State::Waiting, State::Trained));
            }
            idle(worker);
            assert!(failed.lock().unwrap().is_empty());
            admitted.close();
            moved.close();
            worker.step_while(|| !probe.done());
            faults(&failed)
        });
        let found: BTreeSet<_> = found.into_iter().flatten().collect();
        let (lost, doubled) = ("was admitted and never accounted for", "was accounted for more than once");
        let expected =
            [(1, doubled), (3, lost)].map(|(number, fate)| format!("census: group {number}, due at step 2, {fate}"));
        assert!(found.iter().eq(&expected), "{found:?}");
        let total = counts.snapshot().total();
        assert_eq!((total.trained, total.discarded, total.generating), (2, 2, 1));
    }
}

/// Catches a census that goes through all that is under way at every due: its cost a group would grow with the lag.
#[test]
fn census_lets_dues_go_in_spans() {
    on_workers(1, "census", |worker| {
        let probe = ProbeHandle::new();
        let (mut admitted, mut moved, failed) = worker.dataflow(|scope| {
            let ((admitted, came), (moved, went)) = (scope.new_input(), scope.new_input::<Vec<Moved>>());
            let faults = census(came, went, Schedule::Pipeline { max_lag: 16 }, &Census::new(), &Halt::default());
            (admitted, moved, watch(faults, &probe))
        });
        for due in 1..=8 {
            admitted.advance_to(due);
            admitted.send(group(due, due, 1));
        }
        // A quarter of 16: dues 1 to 4. The faults halt the run, and those after them are of no interest.
        let mut named = Vec::new();
        for frontier in 2..=6 {
            moved.advance_to(frontier);
            idle(worker);
            named.push(failed.lock().unwrap().len());
        }
        assert_eq!(named, [0, 0, 0, 4, 4]);
        assert!(faults(&failed)[0].starts_with("census: group 1, due at step 1, was admitted"), "{:?}", faults(&failed));
    });
}
