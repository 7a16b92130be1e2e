//! The learner where memory runs out.

use super::tests::{PPO, batch, learner, learning, step};
use super::*;
use crate::engine::torch::config::Family;

/// A micro-batch that was computed and added to the gradient, and then finds no memory.
pub(super) fn fits(room: usize, open: &Open, at: usize) -> Result<()> {
    if open.plan.micro_batches[at].tokens <= room { Ok(()) } else { Err(memory::tests::refusal()) }
}

/// Catches a gradient that a failed micro-batch was half added to, tokens that count twice, a size that is not kept or not
/// recorded, and a step that cannot be trained again from what is recorded: bit for bit that of a learner told the size.
#[test]
fn without_memory_the_step_begins_anew_with_smaller_micro_batches() {
    let mut short = learner(Family::Qwen2, &learning(PPO), 1.0);
    short.room = 30;
    let first = step(&mut short, batch(12));
    let tokens = first.metrics.micro_batch_tokens;
    assert!((1..=30).contains(&tokens), "{tokens}");
    let second = step(&mut short, batch(9));
    assert_eq!(second.metrics.micro_batch_tokens, tokens);

    let mut told = learner(Family::Qwen2, &Learning { micro_batch_tokens: tokens as usize, ..learning(PPO) }, 1.0);
    let untimed = |trained: &Trained| (Metrics { torch_ns: 0, ..trained.metrics.clone() }, trained.batch.clone());
    assert_eq!(untimed(&step(&mut told, batch(12))), untimed(&first));
    assert_eq!(untimed(&step(&mut told, batch(9))), untimed(&second));
    let mut roomy = learner(Family::Qwen2, &learning(PPO), 1.0);
    assert_eq!(step(&mut roomy, batch(12)).metrics.micro_batch_tokens, 60);
}

/// Catches a learner that halves forever, or hides which rollout is too long; its batch is kept for the log.
#[test]
fn one_rollout_that_finds_no_memory_is_named() {
    let mut short = learner(Family::Llama, &learning(PPO), 1.0);
    short.room = 3;
    short.begin(1, batch(8)).unwrap();
    let fault = loop {
        match short.work() {
            Ok(trained) => assert!(trained.is_none()),
            Err(fault) => break fault.to_string(),
        }
    };
    assert!(fault.starts_with("train: one rollout of ") && fault.contains("can't allocate memory"), "{fault}");
    assert_eq!(short.abandon().len(), 8);
}
