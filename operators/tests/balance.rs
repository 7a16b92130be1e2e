//! A worker that trains and generates, beside one that only generates: who samples what.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Call, World, plan, run};
use tidegate_operators::balance::Balance;
use tidegate_operators::fault::Halt;
use tidegate_operators::plan::Plan;

const STEPS: u64 = 80;

/// Worker 1 trains and generates, worker 0 generates.
fn shared(balance: Balance, max_lag: u64) -> Plan {
    let mut plan = plan(STEPS, 4, 2, max_lag);
    (plan.slots, plan.generators, plan.learner, plan.balance) = (16, vec![0, 1], 1, balance);
    plan
}

/// The share of the rollouts of the run's second half that worker 1 sampled.
fn sampled_by_the_learner(plan: &Plan, world: &World) -> f64 {
    let outcome = run(plan, world, 2, &Halt::default(), |_, _| {});
    assert_eq!((outcome.faults().len(), outcome.steps().len() as u64), (0, STEPS));
    let late: Vec<bool> = outcome.steps()[STEPS as usize / 2..]
        .iter()
        .flat_map(|step| &step.rollouts)
        .map(|r| r.group.generator == 1)
        .collect();
    late.iter().filter(|by_learner| **by_learner).count() as f64 / late.len() as f64
}

/// A decode step and a piece of a step take as long, and a step has many pieces: worker 0 could sample everything while worker 1 trains.
/// Catches a share that does not move, that moves the wrong way, and a fixed balance that is not fixed.
#[test]
fn a_learner_that_is_short_of_time_is_left_alone() {
    let world = World { longest: 6, pieces: 40, sleep: 200, ..World::default() };
    let fixed = sampled_by_the_learner(&shared(Balance::Fixed, 3), &world);
    let auto = sampled_by_the_learner(&shared(Balance::Auto, 3), &world);
    assert!(fixed > 0.2 && auto < 0.5 * fixed, "the learner sampled {auto} of all, and {fixed} without");
}

/// Decode steps take all the time. Catches a worker that waits although it could generate.
#[test]
fn a_learner_that_waits_generates() {
    let world = World { longest: 12, pieces: 1, slow: Some((Call::Decode, 200)), ..World::default() };
    let auto = sampled_by_the_learner(&shared(Balance::Auto, 3), &world);
    assert!(auto > 0.3, "the learner sampled {auto} of all");
}

/// On policy the sides take turns: what the learner's worker generates holds no step up, and half of it is its.
#[test]
fn on_policy_both_generate() {
    let world = World { longest: 6, pieces: 4, sleep: 200, ..World::default() };
    let auto = sampled_by_the_learner(&shared(Balance::Auto, 0), &world);
    assert!(auto > 0.3, "the learner sampled {auto} of all");
}
