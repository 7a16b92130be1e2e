//! The whole dataflow on real timely workers, over ports that do what a seed says.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Outcome, World, plan, run};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_operators::balance::Balance;
use tidegate_operators::fault::Halt;
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::record::{Reason, Rollout, Status, Step};
use tidegate_operators::schedule::{Schedule, WeightsUpdate};
use tidegate_operators::start::Start;

/// What every undisturbed run must have: the bound for every token, whole steps in order, and every admitted group in the
/// log exactly once, trained or discarded with a reason.
fn verify(plan: &Plan, world: &World, outcome: &Outcome) {
    assert_eq!(outcome.faults(), Vec::<&tidegate_operators::fault::Fault>::new());
    let bound = plan.schedule.bound();
    let steps = outcome.steps();
    let numbers: Vec<Step> = steps.iter().map(|step| step.step).collect();
    assert_eq!(numbers, (plan.start.version + 1..=plan.start.version + steps.len() as u64).collect::<Vec<_>>());
    let mut groups: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
    for sealed in &outcome.sealed {
        let mut trained = 0;
        for (rollout, order) in sealed.rollouts.iter().zip(0..) {
            assert_eq!((rollout.step, rollout.order), (sealed.step, order));
            let (seen, is_trained) = groups.entry(rollout.group.number).or_default();
            *seen += 1;
            *is_trained |= rollout.status == Status::Trained;
            trained += u64::from(rollout.sample == 0 && !matches!(rollout.status, Status::Discarded(Reason::ZeroVariance)))
                * u64::from(rollout.trained_ns > 0);
            assert_ne!(rollout.status, Status::Waiting);
            if rollout.status == Status::Trained {
                assert!(rollout.advantage.len() == rollout.tokens.len() && rollout.trained_ns > 0);
                for version in &rollout.version {
                    assert!(
                        *version < sealed.step && sealed.step - 1 - version <= bound,
                        "lag of {version} at {}",
                        sealed.step
                    );
                }
            }
        }
        let short = sealed.step == steps.len() as u64 + plan.start.version;
        if sealed.metrics.is_some() {
            assert!(trained == plan.batch_groups || short && trained < plan.batch_groups && trained > 0, "{trained} groups");
        }
    }
    let admitted = groups.len() as u64;
    assert!(groups.keys().copied().eq(plan.start.next..plan.start.next + admitted), "every number once, without gaps");
    assert!(groups.values().all(|(seen, _)| *seen == plan.group_size));
    let trained = groups.values().filter(|(_, trained)| *trained).count() as u64;
    let total = outcome.counts.total();
    assert_eq!((total.in_flight(), total.trained + total.discarded), (0, admitted as i64));
    if plan.start.next + admitted < world.prompts {
        let taken = plan.steps - plan.start.version;
        assert_eq!((steps.len() as u64, trained), (taken, taken * plan.batch_groups));
    }
}

fn worlds() -> impl Strategy<Value = (Plan, World, usize)> {
    let sizes = (1..5_u64, 1..4_u32, 0..9_u64, 1..9_u64, 1..5_usize, 1..4_usize);
    let kinds = (any::<u64>(), 1..12_u64, 1..4_u64, prop_oneof![Just(1_000_000), 1..40_u64], 0..3_u64);
    let choices = (any::<bool>(), any::<bool>(), prop_oneof![Just(0_u64), Just(60)], any::<prop::sample::Index>());
    (sizes, kinds, choices).prop_map(|(sizes, kinds, choices)| {
        let (batch_groups, group_size, max_lag, steps, workers, rooms) = sizes;
        let (seed, longest, pieces, prompts, discards) = kinds;
        let (by_number, train_short, sleep, learner) = choices;
        let mut plan = plan(steps, batch_groups, group_size, max_lag);
        plan.slots = rooms * group_size as usize;
        plan.order = if by_number { Order::Admission } else { Order::Arrival };
        plan.weights_update = if seed % 3 == 0 { WeightsUpdate::Drain } else { WeightsUpdate::InFlight };
        plan.short_batch = if train_short { ShortBatch::Train } else { ShortBatch::Discard };
        plan.learner = learner.index(workers);
        // With several workers, some only generate, and the learner may generate too.
        plan.generators = (0..workers).filter(|worker| workers == 1 || *worker != plan.learner || seed % 2 == 0).collect();
        let by = seed as usize % plan.generators.len();
        plan.generators.rotate_left(by);
        plan.balance = if seed % 5 < 3 { Balance::Auto } else { Balance::Fixed };
        let [refused, discarded, unscored] = [[0, 0, 0], [15, 15, 15], [0, 40, 30]][discards as usize];
        (plan, World { seed, prompts, longest, pieces, refused, discarded, unscored, sleep, ..World::default() }, workers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Catches any break of the bound, whoever gets the groups, a hang, a lost or doubled group, a step that is not whole, under random sizes, delays,
    /// discards at every stage, both orders, and data that end inside a batch.
    #[test]
    fn every_run_keeps_the_promises((plan, world, workers) in worlds()) {
        let outcome = run(&plan, &world, workers, &Halt::default(), |_, _| {});
        verify(&plan, &world, &outcome);
    }
}

/// Catches weights that are taken while a sequence runs, a generator that waits for itself, and a bound that a long wait breaks.
#[test]
fn drained_rollouts_are_of_one_version() {
    for (max_lag, workers) in [(0, 1), (2, 1), (2, 3), (5, 2)] {
        let mut plan = plan(12, 2, 2, max_lag);
        plan.weights_update = WeightsUpdate::Drain;
        plan.generators = (0..workers).collect();
        let world = World { longest: 9, discarded: 20, ..World::default() };
        let outcome = run(&plan, &world, workers, &Halt::default(), |_, _| {});
        verify(&plan, &world, &outcome);
        let mixed = |rollout: &Rollout| rollout.version.windows(2).any(|pair| pair[0] != pair[1]);
        assert!(!outcome.rollouts().any(mixed));
        assert!(largest_lag(&plan, &outcome) <= max_lag);
    }
    // What they are told from: in flight some are of two.
    let mut plan = plan(12, 2, 2, 2);
    plan.slots = 8;
    let outcome = run(&plan, &World { longest: 9, ..World::default() }, 1, &Halt::default(), |_, _| {});
    assert!(outcome.rollouts().any(|rollout| rollout.version.windows(2).any(|pair| pair[0] != pair[1])));
}

fn largest_lag(plan: &Plan, outcome: &Outcome) -> u64 {
    let lags = outcome.steps().into_iter().flat_map(|sealed| {
        sealed.rollouts.iter().flat_map(|rollout| &rollout.version).map(|version| sealed.step - 1 - version)
    });
    let largest = lags.max().unwrap();
    let reported = outcome.steps().iter().map(|step| step.metrics.as_ref().unwrap().lag_max).max();
    assert_eq!((largest <= plan.schedule.bound(), reported), (true, Some(largest)));
    largest
}

/// Catches a rule that is stricter than it says: in a saturated run the largest lag is the bound, and not one less.
#[test]
fn saturated_runs_reach_the_bound() {
    for max_lag in [0, 1, 3] {
        let mut plan = plan(8, 2, 1, max_lag);
        plan.slots = 64;
        let world = World { longest: 1, ..World::default() };
        let outcome = run(&plan, &world, 1, &Halt::default(), |_, _| {});
        verify(&plan, &world, &outcome);
        assert_eq!(largest_lag(&plan, &outcome), max_lag);
    }
}

/// Catches counters that start at 0 on a resume: steps go on, numbers go on, and the bound holds from the first step.
#[test]
fn resumes_within_the_bound() {
    let mut plan = plan(9, 2, 2, 2);
    plan.start = Start::at(4, 11);
    plan.slots = 64;
    let world = World { discarded: 20, ..World::default() };
    let outcome = run(&plan, &world, 2, &Halt::default(), |_, _| {});
    verify(&plan, &world, &outcome);
    assert_eq!(outcome.steps().first().map(|step| step.step), Some(5));
    assert!(largest_lag(&plan, &outcome) <= 2);
}

/// Catches batches that depend on timing under `order = admission`: one worker and three, asleep and awake, train the same
/// groups in the same steps.
#[test]
fn admission_order_repeats() {
    let batches = |workers, sleep| {
        let mut plan = plan(6, 3, 2, 3);
        plan.order = Order::Admission;
        plan.generators = (0..workers).collect();
        let world = World { discarded: 20, longest: 9, sleep, ..World::default() };
        let outcome = run(&plan, &world, workers, &Halt::default(), |_, _| {});
        verify(&plan, &world, &outcome);
        let trained = outcome.rollouts().filter(|rollout| rollout.status == Status::Trained);
        trained.map(|rollout| (rollout.step, rollout.order, rollout.group.number)).collect::<Vec<_>>()
    };
    let alone = batches(1, 0);
    assert_eq!(alone, batches(1, 200));
    assert_eq!(alone, batches(3, 200));
}

/// Catches a run that waits for groups that never come, or drops them unsaid: 10 prompts, 4 groups a step.
#[test]
fn data_that_end_inside_a_batch() {
    for (short_batch, steps, discarded) in [(ShortBatch::Train, 3, 0), (ShortBatch::Discard, 2, 2)] {
        let mut plan = plan(100, 4, 1, 1);
        plan.short_batch = short_batch;
        let world = World { prompts: 10, ..World::default() };
        let outcome = run(&plan, &world, 1, &Halt::default(), |_, _| {});
        verify(&plan, &world, &outcome);
        assert_eq!(outcome.steps().len(), steps);
        let ended = outcome.rollouts().filter(|rollout| rollout.status == Status::Discarded(Reason::DataEnded));
        assert_eq!(ended.count(), discarded);
    }
}

/// Catches a plan that is not checked: it halts by name and the workers end.
#[test]
fn a_wrong_plan_halts_by_name() {
    let mut plan = plan(3, 2, 4, 1);
    plan.slots = 3;
    let outcome = run(&plan, &World::default(), 2, &Halt::default(), |_, _| {});
    assert!(outcome.sealed.is_empty());
    assert!(outcome.faults().iter().all(|fault| fault.operator == "plan" && fault.message.starts_with("slots = 3")));
    assert_eq!(outcome.faults().len(), 2);
    assert_eq!(plan.schedule, Schedule::Pipeline { max_lag: 1 });
}
