//! The simulation against the closed forms, and what only it sees.

use super::*;
use crate::kernel::capacity::{Job, Split};

fn job() -> Job {
    Job { accelerators: 128, batch_size: 128, lengths: Lengths::uniform(1000).unwrap(), speed: Speed::PAPER }
}

fn scene(schedule: Schedule, generators: usize, learners: usize, slots: usize) -> Scene {
    Scene {
        schedule,
        generators,
        learners,
        slots,
        group_size: 1,
        batch_groups: 128,
        steps: 900,
        lengths: Lengths::uniform(1000).unwrap(),
        speed: Speed::PAPER,
        transfer: 0.0,
        reward: 0.0,
        checkpoint: 0.0,
        checkpoint_steps: 0,
        seed: 1,
    }
}

fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found}, expected {expected}");
}

/// The case study, by the closed forms and by events: within 5 %.
#[test]
fn both_engines_agree() {
    let formula = job().pipeline(Split { generators: 44, learners: 84, slots: 192 });
    let found = simulate(&scene(Schedule::Pipeline { max_lag: 133 }, 44, 84, 192)).unwrap();
    near(found.rate.tokens, formula.tokens, 0.05);
    assert!(found.rate.max_lag <= 133, "{found:?}");
    // Both sides are as fast as each other there, so groups queue, which the formula's lag leaves out. Not so with fewer generators.
    assert!(found.rate.mean_lag > formula.mean_lag, "{found:?}");
    let formula = job().pipeline(Split { generators: 40, learners: 88, slots: 192 });
    let found = simulate(&scene(Schedule::Pipeline { max_lag: 133 }, 40, 88, 192)).unwrap();
    near(found.rate.tokens, formula.tokens, 0.05);
    near(found.rate.mean_lag, formula.mean_lag, 0.05);

    let formula = job().conventional(64);
    let all = Scene { steps: 640, ..scene(Schedule::Conventional { steps: 64 }, 128, 128, 64) };
    let found = simulate(&all).unwrap();
    near(found.rate.tokens, formula.tokens, 0.05);
    assert_eq!(found.rate.max_lag, 63);
    near(found.rate.mean_lag, formula.mean_lag, 0.05);
}

/// The paper's case study by events: 1.57 times the conventional schedule at a largest lag of 133, and the closed forms' speed-ups by lag,
/// within 5 %.
#[test]
fn speed_ups_by_lag_hold_by_events() {
    for (max_lag, expected) in [(16, 1.03), (32, 1.14), (64, 1.31), (133, 1.57)] {
        let (split, _) = job().best_split(max_lag).unwrap();
        let steps = max_lag + 1;
        let pipeline = Schedule::Pipeline { max_lag };
        let found = simulate(&Scene { steps: 6 * steps, ..scene(pipeline, split.generators, split.learners, split.slots) });
        let turns = Scene { steps: 4 * steps, ..scene(Schedule::Conventional { steps }, 128, 128, steps as usize) };
        let (found, turns) = (found.unwrap(), simulate(&turns).unwrap());
        assert!(found.rate.max_lag <= max_lag && turns.rate.max_lag == max_lag, "{found:?} {turns:?}");
        near(found.rate.tokens / turns.rate.tokens, expected, 0.05);
    }
}

/// What the formulas leave out costs what it must: weights on their way hold generators up, a pause holds the learners up, a late
/// reward makes older tokens.
#[test]
fn what_the_formulas_leave_out_is_seen() {
    let base = scene(Schedule::Pipeline { max_lag: 133 }, 44, 84, 192);
    let plain = simulate(&base).unwrap();
    let slow = simulate(&Scene { transfer: 2000.0, ..base.clone() }).unwrap();
    assert!(slow.rate.tokens < 0.8 * plain.rate.tokens, "{slow:?} {plain:?}");
    let pause = simulate(&Scene { checkpoint: 40_000.0, checkpoint_steps: 10, ..base.clone() }).unwrap();
    assert!(pause.rate.tokens < 0.7 * plain.rate.tokens, "{pause:?}");
    let late = simulate(&Scene { reward: 50_000.0, ..base.clone() }).unwrap();
    assert!(late.rate.mean_lag > plain.rate.mean_lag + 5.0, "{late:?}");
    assert_eq!(simulate(&Scene { slots: 0, ..base }), None);
}
