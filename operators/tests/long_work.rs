//! Decode steps that take long: what all generators need must not wait for several of them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Call, Trouble, World, plan, run};
use std::sync::atomic::Ordering;
use tidegate_operators::fault::Halt;
use tidegate_operators::plan::Plan;

/// How many decode steps of 8 ms a run takes, all on one worker.
fn decode_steps(plan: &Plan, longest: u64) -> u64 {
    // Trouble that never comes counts the calls.
    let trouble = Some((Call::Decode, u64::MAX, Trouble::Error));
    let world = World { longest, pieces: 1, slow: Some((Call::Decode, 8000)), trouble, ..World::default() };
    let outcome = run(plan, &world, 1, &Halt::default(), |_, _| {});
    assert_eq!((outcome.faults().len(), outcome.steps().len() as u64), (0, plan.steps));
    world.calls.load(Ordering::Relaxed)
}

/// 400 groups for as many slots. Catches an admission of a few prompts a decode step, which leaves most of the slots empty for long.
#[test]
fn admission_fills_all_slots_within_a_few_decode_steps() {
    let plan = Plan { slots: 400, ..plan(1, 400, 1, 0) };
    let taken = decode_steps(&plan, 1);
    assert!(taken <= 16, "{taken} decode steps");
}
