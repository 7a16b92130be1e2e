//! The learner with safeguards on: which tokens, how far, and whether at all.

use super::tests::{PPO, batch, learner, learning, step};
use super::*;
use crate::engine::torch::config::{Family, tests::tiny};
use crate::kernel::loss::Loss;
use crate::kernel::safeguard::{LrScale, Safeguard};

fn guarded(safeguard: Safeguard) -> Learning {
    Learning { safeguard, value_coef: 0.1, entropy_coef: 0.01, ..learning(PPO) }
}

/// Step 6 trains version 5, and versions are from 0 to 5. Catches what is left out and has a gradient, a place in a denominator
/// or in a mean, and a rollout that is computed for nothing.
#[test]
fn a_token_that_is_left_out_is_as_if_it_were_masked() {
    let untimed = |metrics: Metrics| Metrics { torch_ns: 0, left_out: 0, ..metrics };
    for (max_lag, all) in [(5.0, false), (2.0, false), (0.0, false), (-1.0, true)] {
        let mut masked = batch(9);
        let mut left_out = 0;
        for rollout in &mut masked {
            for (chosen, version) in rollout.mask.iter_mut().zip(&rollout.version).filter(|(chosen, _)| **chosen) {
                *chosen = (5 - version) as f64 <= max_lag;
                left_out += u64::from(!*chosen);
            }
        }
        let expected = step(&mut learner(Family::Qwen2, &guarded(Safeguard::default()), 1.0), masked.clone());
        let safeguard = Safeguard { max_lag, ..Safeguard::default() };
        let found = step(&mut learner(Family::Qwen2, &guarded(safeguard), 1.0), batch(9));
        assert_eq!((found.metrics.left_out, found.metrics.skipped), (left_out, all), "at most {max_lag}");
        assert_eq!(untimed(found.metrics), untimed(expected.metrics));
        for ((now, then), masked) in found.batch.iter().zip(batch(9)).zip(&masked) {
            assert_eq!((&now.mask, now.logp_current.is_empty()), (&then.mask, !masked.mask.contains(&true)));
        }
    }
}

/// Catches a rate that is recorded and not used, or used and not recorded.
#[test]
fn the_learning_rate_goes_with_the_root_of_ess() {
    let of = |learning: Learning| step(&mut learner(Family::Llama, &learning, 1.0), batch(4)).metrics;
    let safeguard = Safeguard { lr_scale: LrScale::SqrtEss, ..Safeguard::default() };
    let (plain, scaled) = (of(guarded(Safeguard::default())), of(guarded(safeguard)));
    assert!(plain.ess < 0.99, "{plain:?}");
    assert_eq!((scaled.ess, scaled.lr), (plain.ess, 0.01 * plain.ess.sqrt()));
    assert_eq!(scaled.weights, of(Learning { lr: scaled.lr, ..guarded(Safeguard::default()) }).weights);
    assert_ne!(scaled.weights, plain.weights);
}

/// Catches an outlier that moves weights or moments, a step that is no version, and a learner that goes on without what it went by.
#[test]
fn a_step_with_an_outlying_gradient_is_skipped() {
    let safeguard = Safeguard { skip_norm: 4.0, skip_window: 2, ..Safeguard::default() };
    let learning = Learning { safeguard, ..learning(Loss::default()) };
    let far = || {
        let mut far = batch(4);
        far.iter_mut().for_each(|rollout| rollout.advantage.iter_mut().for_each(|advantage| *advantage *= 1e3));
        far
    };
    let mut first = learner(Family::Llama, &learning, 1.0);
    let measured: Vec<Metrics> = (0..2).map(|_| step(&mut first, batch(4)).metrics).collect();
    let flat = first.flat().copy();
    let moments = first.optimizer().state().copy().unwrap();
    let third = step(&mut first, far());
    assert!(third.metrics.skipped && third.metrics.grad_norm > 100.0 * measured[1].grad_norm, "{:?}", third.metrics);
    assert!(third.batch.iter().all(|rollout| rollout.status == Status::Trained));
    assert_eq!((first.version(), first.optimizer().state().updates), (3, 2));
    assert_eq!((third.metrics.weights, first.flat() == &flat), (measured[1].weights.clone(), true));
    assert!(first.optimizer().state().m == moments.m && first.optimizer().state().v == moments.v);
    // From the same weights and moments, with and without the norms before.
    let goes_on = |before: &[Metrics]| {
        let (layout, device, learning) = (first.layout().clone(), flat.device(), learning.clone());
        let mut other = TorchLearner::new(tiny(Family::Llama), layout, flat.copy(), device, learning, 1.0, 100, 2).unwrap();
        other.optimizer_mut().restore(&moments).unwrap();
        other.recall(before);
        step(&mut other, far()).metrics.skipped
    };
    assert!(goes_on(&measured) && !goes_on(&[]));
    assert!(!step(&mut first, batch(4)).metrics.skipped);
}

/// Within rounding. Catches parts that count alike, a gradient that is clipped or forgotten before it is whole, moments that move twice
/// or early, and a learner that goes on holding what it has taken.
#[test]
fn held_gradients_make_the_step_of_one_large_batch() {
    let of = |safeguard| {
        let learning = Learning { safeguard, grad_clip: 0.5, value_coef: 0.1, ..learning(PPO) };
        learner(Family::Qwen2, &learning, 1.0)
    };
    let parts = || (batch(9).split_off(5), batch(5));
    let (first, second) = parts();
    let mut whole = of(Safeguard::default());
    let expected = step(&mut whole, [first.clone(), second.clone()].concat()).metrics;
    let mut enlarged = of(Safeguard { enlarge_lag: 0.0, enlarge_most: 2, ..Safeguard::default() });
    let flat = enlarged.flat().copy();
    let held = step(&mut enlarged, first);
    assert!(held.batch.iter().all(|rollout| rollout.status == Status::Trained));
    let held = held.metrics;
    assert_eq!((held.held, held.skipped, held.enlarged), (true, true, 1));
    assert!(held.grad_norm > 0.5 && enlarged.flat() == &flat && enlarged.optimizer().state().updates == 0);
    let taken = step(&mut enlarged, second).metrics;
    assert_eq!((taken.held, taken.skipped, taken.enlarged), (false, false, 2));
    assert!((taken.grad_norm / expected.grad_norm - 1.0).abs() < 1e-5, "{taken:?} {expected:?}");
    let near =
        |a: &Tensor, b: &Tensor, most: f64| (a - b).abs().max().double_value(&[]) < most * b.abs().max().double_value(&[]);
    let (found, expected) = (enlarged.optimizer().state(), whole.optimizer().state());
    assert!(near(&found.m, &expected.m, 1e-5) && near(&found.v, &expected.v, 1e-5) && found.updates == 1);
    assert!(step(&mut enlarged, batch(4)).metrics.held && enlarged.held.is_some());
}

/// Catches a pause that moves weights or moments, or one that holds what it left out.
#[test]
fn a_run_pauses_on_a_low_ess() {
    let safeguard = Safeguard { skip_ess: 0.99, ..Safeguard::default() };
    let mut learner = learner(Family::Llama, &guarded(safeguard), 1.0);
    let flat = learner.flat().copy();
    let paused = step(&mut learner, batch(4)).metrics;
    assert!(paused.ess < 0.99 && paused.grad_norm > 0.0, "{paused:?}");
    assert_eq!((paused.paused, paused.skipped, paused.held, paused.enlarged), (true, true, false, 0));
    assert!(learner.flat() == &flat && learner.optimizer().state().updates == 0 && learner.held.is_none());
    let mut young = batch(4);
    young.iter_mut().for_each(|rollout| rollout.version.fill(4));
    let taken = step(&mut learner, young).metrics;
    assert!(!taken.paused && !taken.skipped && learner.flat() != &flat, "{taken:?}");
}
