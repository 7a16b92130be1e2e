//! The critic's part of the learner: its own rate, its warm-up, its bound, and a learner that learns values alone.

use super::tests::{PPO, batch, learner, learning, step};
use super::*;
use crate::engine::critic::Critic;
use crate::engine::torch::config::Family;
use crate::kernel::loss::Loss;
use crate::kernel::safeguard::Safeguard;

fn critic(critic: Critic) -> Learning {
    Learning { value_coef: 0.3, entropy_coef: 0.1, weight_decay: 0.1, critic, ..learning(PPO) }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

/// The trunk's numbers and the head's.
fn parts(learner: &TorchLearner, flat: &Tensor) -> [Vec<f32>; 2] {
    let (head, total) = (learner.layout().head(), learner.layout().total);
    [numbers(&flat.narrow(0, 0, head)), numbers(&flat.narrow(0, head, total - head))]
}

/// Catches a trunk that moves while the head warms up, by decay or by a gradient, moments that gather, a head that waits, and a first
/// step of the policy that is not a first step.
#[test]
fn in_warm_up_the_head_alone_learns() {
    for activation_checkpointing in [false, true] {
        let safeguard = Safeguard { skip_norm: 1.5, skip_window: 1, ..Safeguard::default() };
        let learning = critic(Critic { alone_steps: 2, lr: 0.05, ..Critic::default() });
        let learning = Learning { activation_checkpointing, safeguard, ..learning };
        let mut warm = learner(Family::Qwen2, &learning, 1.0);
        let [trunk, mut head] = parts(&warm, warm.flat());
        let mut measured = Vec::new();
        for _ in 0..2 {
            let trained = step(&mut warm, batch(6));
            let [trunk_now, head_now] = parts(&warm, warm.flat());
            assert!(trunk_now == trunk && head_now != head);
            head = head_now;
            let state = warm.optimizer().state();
            assert_eq!((state.updates, state.m.narrow(0, 0, trunk.len() as i64).abs().max().double_value(&[])), (0, 0.0));
            assert_eq!((trained.metrics.lr, trained.metrics.critic_lr, trained.metrics.skipped), (0.0, 0.05, false));
            assert!(trained.batch[0].logp_current.len() == trained.batch[0].tokens.len());
            measured.push(trained.metrics);
        }
        assert_eq!(warm.optimizer().state().head_updates, 2);
        // The head's gradient is what it is beside the policy's, and there is no other.
        let cold = Learning { critic: Critic::default(), ..learning.clone() };
        let mut cold = learner(Family::Qwen2, &cold, 1.0);
        let alone = step(&mut cold, batch(6)).metrics;
        let norm = parts(&cold, &cold.gradient)[1].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        assert!((measured[0].grad_norm - norm).abs() < 1e-5 * norm, "{} {norm}", measured[0].grad_norm);
        assert!((measured[0].value_loss - alone.value_loss).abs() < 1e-6);
        // The norms of before are no measure: the third step is not skipped, after a restart neither.
        let flat = warm.flat().copy();
        let state = warm.optimizer().state().copy().unwrap();
        let third = step(&mut warm, batch(6));
        assert!(
            !third.metrics.skipped && third.metrics.grad_norm > 1.5 * measured[1].grad_norm,
            "{:?}",
            third.metrics.grad_norm
        );
        let config = crate::engine::torch::config::tests::tiny(Family::Qwen2);
        let device = flat.device();
        let mut again = TorchLearner::new(config, warm.layout().clone(), flat, device, learning, 1.0, 100, 2).unwrap();
        again.optimizer_mut().restore(&state).unwrap();
        again.recall(&measured);
        assert_eq!(step(&mut again, batch(6)).metrics.weights, third.metrics.weights);
    }
}

/// Catches a warm-up that leaves the trunk with another step than its first: as if the head had been as it is from the start.
#[test]
fn after_warm_up_the_policy_begins() {
    let learning = critic(Critic { alone_steps: 3, ..Critic::default() });
    let mut warm = learner(Family::Llama, &learning, 1.0);
    (0..3).for_each(|_| drop(step(&mut warm, batch(6))));
    let flat = warm.flat().copy();
    let (config, layout, device) =
        (crate::engine::torch::config::tests::tiny(Family::Llama), warm.layout().clone(), flat.device());
    let cold = Learning { critic: Critic::default(), ..learning };
    let mut cold = TorchLearner::new(config, layout, flat, device, cold, 1.0, 97, 0).unwrap();
    let (fourth, first) = (step(&mut warm, batch(6)), step(&mut cold, batch(6)));
    assert_eq!((fourth.metrics.lr, fourth.metrics.grad_norm), (first.metrics.lr, first.metrics.grad_norm));
    assert_eq!(parts(&warm, warm.flat())[0], parts(&cold, cold.flat())[0]);
    assert_ne!(parts(&warm, warm.flat())[1], parts(&cold, cold.flat())[1], "the head is in its fourth");
}

/// Catches a rate of the head that is the policy's, or the other way round: Adam's first update is the rate, whatever the gradient.
#[test]
fn the_head_has_its_own_rate() {
    let learning = Learning { weight_decay: 0.0, ..critic(Critic { lr: 0.5, ..Critic::default() }) };
    let mut learner = learner(Family::Llama, &learning, 1.0);
    let before = learner.flat().copy();
    let metrics = step(&mut learner, batch(6)).metrics;
    let moved = parts(&learner, &(learner.flat() - before).abs());
    let most = moved.map(|part| part.into_iter().fold(0.0f32, f32::max));
    assert!((most[0] - 0.01).abs() < 1e-4 && (most[1] - 0.5).abs() < 1e-3, "{most:?}");
    assert_eq!((metrics.lr, metrics.critic_lr), (0.01, 0.5));
}

/// Catches a bound that is not around the recorded value: all have moved further than a millionth, so where the return lies on the other
/// side nothing is learned; and values that are missing.
#[test]
fn values_are_bounded_around_the_recorded_ones() {
    let learning = |clip| Learning { loss: Loss::default(), ..critic(Critic { clip, ..Critic::default() }) };
    let recorded = |by: f32| {
        let mut rows = batch(6);
        rows.iter_mut().for_each(|row| {
            row.value = vec![by; row.tokens.len()];
            row.advantage.fill(0.0);
            row.reward = Some(100.0);
        });
        rows
    };
    let plain = step(&mut learner(Family::Llama, &learning(0.0), 1.0), recorded(-100.0)).metrics;
    let bounded =
        step(&mut learner(Family::Llama, &Learning { entropy_coef: 0.0, ..learning(1e-6) }, 1.0), recorded(-100.0)).metrics;
    assert!(
        bounded.value_loss > 3.0 * plain.value_loss && bounded.grad_norm == 0.0,
        "{} {}",
        bounded.value_loss,
        bounded.grad_norm
    );
    let free = step(&mut learner(Family::Llama, &learning(1e-6), 1.0), recorded(150.0)).metrics;
    assert_eq!(free.value_loss, plain.value_loss);
    let fault = learner(Family::Llama, &learning(0.1), 1.0).begin(1, batch(3)).unwrap_err().message;
    assert!(fault.ends_with("tokens but 0 of value"), "{fault}");
}

/// Catches a critic that learns log-probabilities, overwrites what is the policy's, or values other tokens than the head on a trunk does;
/// and an output head that is computed for nothing and learns.
#[test]
fn a_learner_of_values_learns_nothing_else() {
    let trunk = critic(Critic::default());
    let values = Learning { weight_decay: 0.0, ..trunk.of_critic() };
    let mut own = learner(Family::Llama, &values, 1.0);
    let before = own.flat().copy();
    let trained = step(&mut own, batch(6));
    let both = step(&mut learner(Family::Llama, &trunk, 1.0), batch(6));
    assert!((trained.metrics.value_loss - both.metrics.value_loss).abs() < 1e-6 * both.metrics.value_loss);
    assert_eq!(
        (trained.metrics.tokens, trained.metrics.entropy, trained.metrics.policy_loss),
        (both.metrics.tokens, 0.0, 0.0)
    );
    for (row, given) in trained.batch.iter().zip(batch(6)) {
        assert!(row.value.len() == row.tokens.len() || !row.mask.contains(&true));
        assert_eq!(
            Rollout { value: Vec::new(), ..row.clone() },
            given,
            "status, advantages, log-probabilities are the policy's"
        );
    }
    let head = own.layout().part("lm_head.weight").unwrap().clone();
    let moved = |entry: &crate::engine::torch::layout::Entry| {
        (entry.view(own.flat()).unwrap() - entry.view(&before).unwrap()).abs().max().double_value(&[])
    };
    assert_eq!(moved(&head), 0.0);
    assert!(own.layout().parts.iter().filter(|part| **part != head).all(|part| moved(part) > 0.0));
    // The gradient is the whole model's: finite differences of the loss along it.
    let loss = |scale: f64| {
        let mut other = learner(Family::Llama, &values, 1.0);
        let direction = &own.optimizer().state().m / own.optimizer().state().m.norm();
        let _ = tch::no_grad(|| other.flat.f_add_(&(direction * scale)).unwrap());
        step(&mut other, batch(6)).metrics.loss
    };
    let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
    assert!((slope - trained.metrics.grad_norm).abs() < 2e-2 * slope.abs(), "{slope} {}", trained.metrics.grad_norm);
}
