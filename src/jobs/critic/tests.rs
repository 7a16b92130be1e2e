//! The pair of learners of the toy engine: values, advantages, both updates, and what comes back of a step that fails.

use super::engine::{FOLDER, WithCritic};
use super::*;
use crate::engine::contract::Writer;
use crate::engine::spec::Sampling;
use crate::engine::toy::ToyEngine;
use crate::jobs::run::toy;
use crate::kernel::gae::{Ending, Gae, reward_gae};
use std::sync::Arc;
use tidegate_operators::record::{Group, Prompt, Reason, Status};

type Toy = WithCritic<ToyEngine>;

fn spec(sets: &[&str]) -> Spec {
    let text = "model.engine = \"toy\"\n[[task]]\nkind = \"sorting\"\n\
                [learn]\nvalue_coef = 0.5\nlr = 0.1\nwarmup_steps = 0\nlr_schedule = \"constant\"\ncritic = { model = \"separate\", lr = 0.2 }\n";
    Spec::from_text(text, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// Two rollouts that are trained, one whose tokens are masked, one without a reward.
fn batch() -> Vec<Rollout> {
    let prompt = Prompt { tokens: vec![1, 2], ..Prompt::default() };
    let group = Arc::new(Group { prompt, ..Group::default() });
    let rollout = |sample, tokens: &[u32], reward: f32| Rollout {
        group: group.clone(),
        sample,
        tokens: tokens.to_vec(),
        mask: vec![true; tokens.len()],
        logp_behavior: vec![-2.5; tokens.len()],
        version: vec![0; tokens.len()],
        advantage: vec![reward; tokens.len()],
        reward: Some(reward),
        ..Rollout::default()
    };
    let mut batch =
        vec![rollout(0, &[3, 3, 0], 1.0), rollout(1, &[4, 7, 0], 0.25), rollout(2, &[5, 6], 0.5), rollout(3, &[2, 0], 0.0)];
    batch[2].mask.fill(false);
    batch[3].status = Status::Discarded(Reason::NoReward);
    batch
}

fn learner(spec: &Spec, engine: &Toy) -> PolicyAndCritic<ToyEngine> {
    engine.learner(&spec.learn, &Sampling::default(), 9, 0).unwrap()
}

fn step(learner: &mut PolicyAndCritic<ToyEngine>, step: Step, batch: Vec<Rollout>) -> Trained {
    learner.begin(step, batch).unwrap();
    loop {
        if let Some(trained) = learner.work().unwrap() {
            return trained;
        }
    }
}

/// The first step values all by 0, the second by what the first taught. Catches values of after the update, of tokens that are not
/// there, advantages of rewards, and rows that are not trained and are changed.
#[test]
fn a_step_is_valued_before_the_critic_learns_from_it() {
    let spec = spec(&[]);
    let engine = toy(&spec, None).unwrap();
    let mut learner = learner(&spec, &engine);
    let first = step(&mut learner, 1, batch());
    assert_eq!(first.batch[0].value, [0.0; 3]);
    assert_eq!(first.batch[0].advantage, [1.0; 3]);
    assert_eq!(first.metrics.explained_variance, 0.0, "a constant explains nothing");
    assert_eq!((first.metrics.critic_lr, first.metrics.lr), (0.2, 0.1));
    // 0.5 * mean over the sequences of the sums of squares: (3 * 1 + 3 * 0.0625) / 2.
    assert!((first.metrics.value_loss - 1.593_75).abs() < 1e-6, "{}", first.metrics.value_loss);
    let second = step(&mut learner, 2, batch());
    // Adam's first update moves each value by its rate towards the return; those of the contexts that both rollouts begin in, too.
    assert!(second.batch[0].value[1..].iter().all(|value| (value - 0.2).abs() < 1e-4), "{:?}", second.batch[0].value);
    for row in &second.batch[..2] {
        for (advantage, value) in row.advantage.iter().zip(&row.value) {
            assert_eq!(*advantage, row.reward.unwrap() - value);
        }
    }
    assert!((second.batch[2].value.is_empty(), second.batch[2].advantage.clone()) == (true, vec![0.0; 2]));
    assert_eq!((&second.batch[3], second.batch[3].value.len()), (&Rollout { trained_ns: 0, ..batch().remove(3) }, 0));
    assert!(second.metrics.explained_variance.abs() < 1.0 && second.metrics.critic_grad_norm > 0.0);
    let names: Vec<&str> = second.metrics.weights.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["logits", "critic.logits", "critic.values"]);
    assert_eq!(second.metrics.weights[1], first.metrics.weights[1], "of the critic only values learn");
    assert_ne!(second.metrics.weights[2], first.metrics.weights[2]);
}

/// Every token masked: nothing moves, of either; nothing is NaN. Catches a mean over no tokens, and moments that decay.
#[test]
fn a_batch_without_trained_tokens_is_skipped_by_both() {
    let spec = spec(&["learn.weight_decay=0.1", "estimate.whiten=batch"]);
    let engine = toy(&spec, None).unwrap();
    let mut learner = learner(&spec, &engine);
    let mut masked = batch();
    masked.iter_mut().for_each(|row| row.mask.fill(false));
    let Trained { batch: found, metrics: m } = step(&mut learner, 1, masked);
    assert_eq!(m.weights, engine.hashes().unwrap());
    assert_eq!((m.skipped, m.tokens, m.loss, m.value_loss), (true, 0, 0.0, 0.0));
    assert_eq!((m.grad_norm, m.critic_grad_norm), (0.0, 0.0));
    assert!(found[..3].iter().all(|row| row.value.is_empty() && row.advantage == vec![0.0; row.mask.len()]), "{found:?}");
    let after = step(&mut learner, 2, batch());
    let mut fresh = self::learner(&spec, &engine);
    let first = step(&mut fresh, 1, batch());
    assert_eq!(after.batch[0].value, first.batch[0].value);
    assert_eq!(after.metrics.weights, first.metrics.weights, "as if that step had not been");
}

/// Catches an estimator that is not the specification's, and a batch that is not whitened, or before it is estimated.
#[test]
fn estimators_and_whitening_are_those_of_the_specification() {
    let kind = Gae { gamma: 0.9, lambda: 0.5 };
    let sets = ["estimate.advantage={gae={gamma=0.9,lambda=0.5}}", "estimate.whiten=batch"];
    for (sets, whitened) in [(&sets[..1], false), (&sets[..], true)] {
        let spec = spec(sets);
        let mut learner = learner(&spec, &toy(&spec, None).unwrap());
        step(&mut learner, 1, batch());
        let found = step(&mut learner, 2, batch()).batch;
        let raw = |row: &Rollout| reward_gae(kind, row.reward.unwrap(), &row.value, &row.mask, Ending::Own);
        let mut expected: Vec<Rollout> = found.clone();
        expected[..2].iter_mut().for_each(|row| row.advantage = raw(row));
        let before = expected.clone();
        whiten_batch(&mut expected).unwrap();
        let expected = if whitened { expected } else { before };
        assert_eq!(found, expected);
        let sum: f32 = found[..2].iter().flat_map(|row| &row.advantage).sum();
        assert_eq!(sum.abs() < 1e-5, whitened, "{sum}");
    }
}

/// Catches a policy that moves while the critic warms up, by weights or by moments, and a critic that waits for it.
#[test]
fn while_the_critic_warms_up_the_policy_stays() {
    let spec = spec(&["learn.critic.alone_steps=2", "learn.weight_decay=0.1"]);
    let engine = toy(&spec, None).unwrap();
    let mut learner = learner(&spec, &engine);
    let start = engine.hashes().unwrap();
    for k in 1..=2 {
        let trained = step(&mut learner, k, batch());
        assert_eq!(trained.metrics.weights[0], start[0]);
        assert_ne!(trained.metrics.weights[2], start[2]);
        assert_eq!((trained.metrics.lr, trained.metrics.critic_lr, trained.metrics.skipped), (0.0, 0.2, false));
        assert_eq!((trained.metrics.tokens, trained.batch[0].logp_current.len()), (6, 3), "it is looked at all the same");
    }
    let mut alone = Toy::open(
        &Spec { learn: Learning { value_coef: 0.0, ..Learning::default() }, ..spec.clone() },
        || Ok(ToyEngine::new(spec.seed)),
        || Ok(ToyEngine::new(0)),
    )
    .unwrap()
    .learner(&Learning { value_coef: 0.0, critic: Default::default(), ..spec.learn.clone() }, &Sampling::default(), 9, 0)
    .unwrap();
    let third = step(&mut learner, 3, batch());
    let first = step(&mut alone, 1, third.batch.clone());
    assert_eq!(third.metrics.weights[0], first.metrics.weights[0], "as a first step with these advantages");
}

/// Catches a batch that is lost or kept as it was half made, and a pair of unlike versions that passes for a step that is done.
#[test]
fn a_step_that_fails_gives_its_batch_back_as_it_was() {
    let spec = spec(&[]);
    let mut learner = learner(&spec, &toy(&spec, None).unwrap());
    let mut wrong = batch();
    wrong[1].reward = Some(f32::NAN);
    wrong.iter_mut().for_each(|row| row.value = vec![7.0; row.tokens.len()]);
    learner.begin(1, wrong.clone()).unwrap();
    let fault = loop {
        match learner.work() {
            Ok(trained) => assert!(trained.is_none()),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.message, "step 1: the norm of its gradient is NaN");
    let back = learner.abandon();
    let nan = |rows: &[Rollout]| format!("{rows:?}");
    assert_eq!(nan(&back), nan(&wrong), "its rows go to the log as they came");
    assert_eq!(Toy::version(&learner), 1, "the critic is a step further than the policy: no step of the log");
    assert!(learner.abandon().is_empty());
}

/// Catches a critic that is not in a checkpoint, or comes back without its moments, and hashes that miss it.
#[test]
fn what_is_kept_goes_on_to_the_same_bits() {
    let spec = spec(&["learn.critic.alone_steps=1"]);
    let engine = toy(&spec, None).unwrap();
    let mut first = learner(&spec, &engine);
    (1..=3).for_each(|k| drop(step(&mut first, k, batch())));
    let dir = tempfile::tempdir().unwrap();
    let (weights, optimizer) = (first.weights().unwrap(), Toy::optimizer(&mut first).unwrap());
    engine.writer().write(dir.path(), &weights, &optimizer).unwrap();
    assert!(dir.path().join(FOLDER).join("optimizer.safetensors").exists());
    let fourth = step(&mut first, 4, batch());
    let opened = toy(&spec, Some(dir.path())).unwrap();
    let mut second = opened.learner(&spec.learn, &Sampling::default(), 9, 3).unwrap();
    opened.restore(dir.path(), &mut second).unwrap();
    let again = step(&mut second, 4, batch());
    assert_eq!((again.batch, &again.metrics.weights), (fourth.batch, &fourth.metrics.weights));
    assert_ne!(opened.hashes().unwrap(), engine.hashes().unwrap());
    assert_eq!(opened.hashes().unwrap().len(), 3);
    // At the end it is taken apart instead of copied.
    let (weights, optimizer) = Toy::take_apart(first).unwrap();
    let end = tempfile::tempdir().unwrap();
    opened.writer().write(end.path(), &weights, &optimizer).unwrap();
    assert_eq!(toy(&spec, Some(end.path())).unwrap().hashes().unwrap(), again.metrics.weights);
}

/// A run whose critic has no model of its own, or that has none, is as if there were no pair.
#[test]
fn without_a_separate_critic_it_is_the_policys_learner() {
    let spec = spec(&["learn.critic={}"]);
    let engine = toy(&spec, None).unwrap();
    assert_eq!(engine.hashes().unwrap().len(), 2);
    let mut pair = learner(&spec, &engine);
    let mut rows = batch();
    rows.iter_mut().for_each(|row| row.value = vec![0.5; row.tokens.len()]);
    let trained = step(&mut pair, 1, rows.clone());
    assert_eq!(trained.batch[0].advantage, rows[0].advantage);
    assert_eq!((trained.metrics.weights.len(), trained.metrics.critic_grad_norm, trained.metrics.critic_lr), (2, 0.0, 0.1));
}
