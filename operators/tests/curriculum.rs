//! Success rates in a differential collection: what counts, in whatever order it comes and wherever it was scored; what is held; and
//! that prompts follow it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::streams::{Seen, idle, rollout, watch};
use common::{World, draw, on_workers, plan, run};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tidegate_operators::admit::Feedback;
use tidegate_operators::curriculum::{Rates, Update, curriculum};
use tidegate_operators::fault::Halt;
use tidegate_operators::plan::Plan;
use tidegate_operators::record::{Estimated, Group, Prompt, Reason, Status, Step};
use tidegate_operators::start::Start;
use tidegate_operators::success::{Outcome, Rate, Recent};
use timely::dataflow::operators::{Input, Inspect};
use timely::dataflow::{ProbeHandle, StreamVec};

/// A group of four, so many of them right.
fn group(number: u64, due: Step, bin: u64, right: u32) -> Estimated {
    let prompt = Prompt { bin, ..Prompt::default() };
    let group = Arc::new(Group { number, due, size: 4, prompt, ..Group::default() });
    let mut rollouts: Vec<_> = (0..4).map(|sample| rollout(&group, sample)).collect();
    rollouts.iter_mut().for_each(|rollout| rollout.reward = Some(if rollout.sample < right { 1.0 } else { 0.0 }));
    Estimated { group, rollouts, discarded: None }
}

fn outcome(number: u64, right: u32) -> Outcome {
    Outcome { number, right, scored: 4 }
}

/// The last rate told of each bin.
fn told(rates: &Seen<Feedback>) -> BTreeMap<u64, Rate> {
    let rates = rates.lock().unwrap();
    let rate = |(_, event): &(Step, Feedback)| match event {
        Feedback::Rate { bin, rate } => (*bin, *rate),
        other => panic!("{other:?}"),
    };
    rates.iter().map(rate).collect()
}

/// What the collection holds: insertions less retractions.
fn held(updates: &Seen<Update>) -> BTreeMap<(u64, Outcome), isize> {
    let mut held = BTreeMap::new();
    for (_, (datum, _, change)) in updates.lock().unwrap().iter() {
        *held.entry(*datum).or_insert(0) += change;
    }
    held.retain(|_, count| *count != 0);
    held
}

struct Kept {
    rates: Seen<Feedback>,
    outcomes: Seen<Update>,
    groups: Seen<Estimated>,
}

fn keep(groups: StreamVec<'_, Step, Estimated>, plan: &Plan, probe: &ProbeHandle<Step>) -> Kept {
    let Rates { groups, rates, outcomes } = curriculum(groups.inspect(|_| {}), plan);
    Kept { rates: watch(rates, probe), outcomes: watch(outcomes, probe), groups: watch(groups, probe) }
}

/// Three of a window of two, by hand. Catches an outcome that is too old and still counts, one that is held after it was pushed out
/// (the retraction forgotten), and rates that wait for a due to pass.
#[test]
fn an_outcome_that_is_pushed_out_counts_no_more() {
    on_workers(1, "curriculum", |worker| {
        let probe = ProbeHandle::new();
        let plan = Plan { window: 2, ..plan(9, 1, 4, 1) };
        let (mut input, kept) = worker.dataflow(|scope| {
            let (input, groups) = scope.new_input();
            (input, keep(groups, &plan, &probe))
        });
        input.advance_to(3);
        let mut after = |group: Estimated, others: Option<Estimated>| {
            input.send(group);
            others.into_iter().for_each(|group| input.send(group));
            input.flush();
            idle(worker);
            let of = |bin| told(&kept.rates).get(&bin).map(|rate| (rate.right, rate.scored));
            (of(5), of(6))
        };
        assert_eq!(after(group(0, 3, 5, 4), None), (Some((4, 4)), None));
        assert_eq!(after(group(2, 3, 5, 1), Some(group(1, 3, 6, 0))), (Some((5, 8)), Some((0, 4))));
        assert_eq!(after(group(3, 3, 5, 0), None), (Some((1, 8)), Some((0, 4))), "0 is out");
        assert_eq!(kept.rates.lock().unwrap().len(), 4, "a rate that is the same is no news");
        // One that was admitted before all that count, and was long on its way, counts nothing.
        assert_eq!(after(group(1, 3, 5, 4), None), (Some((1, 8)), Some((0, 4))));
        assert_eq!(after(group(9, 3, 5, 2), None), (Some((2, 8)), Some((0, 4))));
        let mut none = group(10, 3, 6, 0);
        none.rollouts.iter_mut().for_each(|rollout| rollout.reward = None);
        assert_eq!(after(none, None).1, Some((0, 4)), "without a reward it says nothing");
        input.close();
        worker.step_while(|| !probe.done());
        let expected = [(5, outcome(3, 0)), (5, outcome(9, 2)), (6, outcome(1, 0))];
        assert_eq!(held(&kept.outcomes), expected.into_iter().map(|held| (held, 1)).collect());
        assert_eq!(kept.groups.lock().unwrap().len(), 7, "all groups pass");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Catches a rate, or an outcome held, that depends on the order in which groups end, on how many come together, on the worker
    /// that scored them, or on whether the run was stopped and went on: all are those of the last `window` by number.
    #[test]
    fn what_counts_is_what_a_reader_of_the_log_finds(
        seed in any::<u64>(), workers in 1..4_usize, window in 1..5_usize, bins in 1..6_u64, count in 1..60_u64,
        before in 0..30_u64, together in 1..9_u64,
    ) {
        let ended = move |number: u64| (draw(&[seed, number]) % bins, (draw(&[seed, number, 1]) % 5) as u32);
        let mut order: Vec<u64> = (before..before + count).collect();
        order.sort_by_key(|number| draw(&[seed, *number, 2]));
        let mut expected = Recent::new(window);
        expected.extend((0..before).map(|number| (ended(number).0, outcome(number, ended(number).1))));
        let start = Start { outcomes: Arc::new(expected.outcomes().collect()), ..Start::default() };
        expected.extend(order.iter().map(|number| (ended(*number).0, outcome(*number, ended(*number).1))));
        let mut plan = Plan { window, start, ..plan(9, 1, 4, 1) };
        plan.generators = (0..workers).rev().collect();
        let here = plan.admitter();
        let all = on_workers(workers, "curriculum", move |worker| {
            let probe = ProbeHandle::new();
            let (me, peers) = (worker.index() as u64, worker.peers() as u64);
            let (mut input, kept) = worker.dataflow(|scope| {
                let (input, groups) = scope.new_input();
                (input, keep(groups, &plan, &probe))
            });
            for (place, number) in (0..).zip(&order).filter(|(_, number)| *number % peers == me) {
                let (bin, right) = ended(*number);
                input.send(group(*number, 0, bin, right));
                if place % together == 0 {
                    input.flush();
                    worker.step();
                }
            }
            input.close();
            worker.step_while(|| !probe.done());
            (told(&kept.rates), held(&kept.outcomes))
        });
        for (index, (rates, outcomes)) in all.into_iter().enumerate() {
            if index != here {
                prop_assert!(rates.is_empty() && outcomes.is_empty(), "all of it is at the admitter");
                continue;
            }
            prop_assert_eq!(rates, expected.rates().collect::<BTreeMap<_, _>>());
            prop_assert_eq!(outcomes, expected.outcomes().map(|held| (held, 1)).collect::<BTreeMap<_, _>>());
        }
    }
}

/// The whole dataflow. Catches rates that do not reach the prompts, groups that were discarded and do not count, and a run that does
/// not end: the last rates told are those of all groups in the log.
#[test]
fn prompts_are_told_how_all_groups_went() {
    for workers in [1, 3] {
        let mut plan = Plan { window: 3, ..plan(12, 2, 4, 2) };
        plan.generators = (0..workers).collect();
        plan.learner = workers - 1;
        let world = World { bins: 4, discarded: 30, refused: 10, unscored: 20, ..World::default() };
        let outcome = run(&plan, &world, workers, &Halt::default(), |_, _| {});
        assert!(outcome.faults().is_empty(), "{:?}", outcome.faults());
        let zero = Status::Discarded(Reason::ZeroVariance);
        assert!(outcome.rollouts().any(|rollout| rollout.status == zero));
        let mut groups: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        outcome.rollouts().for_each(|rollout| groups.entry(rollout.group.number).or_default().push(rollout));
        let known = world.known.lock().unwrap();
        assert_eq!(known.len(), 4);
        // What ended after the last prompt was drawn may not have been told.
        let drawn: Vec<_> = groups.values().filter_map(|rows| rows[0].group.prompt.drawn_success).collect();
        assert!(drawn.len() > groups.len() / 2, "{} of {}", drawn.len(), groups.len());
        let mut rates: Vec<Rate> = known.values().copied().collect();
        rates.dedup();
        assert!(rates.len() > 1 && known.values().all(|rate| (1..=12).contains(&rate.scored)), "{known:?}");
    }
}

/// Without a window nothing of it is there: no rate is told.
#[test]
fn without_a_window_nothing_is_kept() {
    let world = World { bins: 4, ..World::default() };
    let outcome = run(&plan(4, 2, 2, 1), &world, 1, &Halt::default(), |_, _| {});
    assert!(outcome.faults().is_empty() && world.known.lock().unwrap().is_empty());
    let _: &Mutex<_> = &world.known;
}
