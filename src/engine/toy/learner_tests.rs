//! Tests of the toy learner: gradients against finite differences, bits, refusals, and that it learns.

use super::*;
use crate::engine::spec::LrSchedule;
use crate::engine::toy::task::{ToyPrompts, ToyScorer};
use crate::engine::toy::{ToyGenerator, policy};
use crate::kernel::aggregation::Aggregation;
use crate::kernel::loss::{Loss, tests::of_rewards};
use crate::kernel::safeguard::{LrScale, Safeguard};
use std::collections::{BTreeSet, VecDeque};
use tidegate_operators::admit::Prompts;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Reason, Status};

fn learning() -> Learning {
    Learning {
        lr: 0.1,
        warmup_steps: 0,
        lr_schedule: LrSchedule::Constant,
        weight_decay: 0.0,
        grad_clip: 0.0,
        value_coef: 0.5,
        micro_batch_tokens: 4,
        ..Learning::default()
    }
}

fn sampling() -> Sampling {
    Sampling { temperature: 0.8, max_tokens: 6, slots: 8, ..Sampling::default() }
}

fn learner(learning: Learning) -> ToyLearner {
    ToyLearner::new(policy::ToyWeights::initial(16, 3), 0, learning, &sampling(), 10)
}

/// Two rollouts of unequal length, one of them with a masked token.
fn batch() -> Vec<Rollout> {
    let prompt = Prompt { tokens: vec![1, 2], ..Prompt::default() };
    let group = Arc::new(Group { prompt, ..Group::default() });
    let rollout = |sample, tokens: &[u32], advantage: f32| Rollout {
        group: group.clone(),
        sample,
        tokens: tokens.to_vec(),
        mask: vec![true; tokens.len()],
        logp_behavior: vec![-2.5; tokens.len()],
        version: vec![0; tokens.len()],
        advantage: vec![advantage; tokens.len()],
        reward: Some(advantage + 0.5),
        ..Rollout::default()
    };
    let mut batch = vec![rollout(0, &[3, 3, 0], 0.5), rollout(1, &[4, 7, 7, 2, 1], -0.5)];
    batch[1].mask[3] = false;
    batch
}

fn train(learner: &mut ToyLearner, step: Step, batch: Vec<Rollout>) -> Trained {
    learner.begin(step, batch).unwrap();
    loop {
        if let Some(trained) = learner.work().unwrap() {
            return trained;
        }
    }
}

/// Loss of the batch under tables that differ by `delta` in one entry.
fn loss(learning: &Learning, table: usize, entry: usize, delta: f32) -> f64 {
    let mut learner = learner(learning.clone());
    let tables = [&mut learner.weights.logits, &mut learner.weights.values];
    Arc::make_mut(tables.into_iter().nth(table).unwrap())[entry] += delta;
    train(&mut learner, 1, batch()).metrics.loss
}

/// Catches a wrong sign, a forgotten temperature, weight or coefficient in any part of the gradient. PPO's loss, unlike
/// truncated REINFORCE's, is the function that its derivative belongs to.
#[test]
fn gradient_is_that_of_the_loss() {
    let loss_kind = Loss::Ppo { clip_low: 0.9, clip_high: 9.0 };
    let learning = Learning { loss: loss_kind, entropy_coef: 0.3, aggregation: Aggregation::TokenMean, ..learning() };
    let mut learner = learner(learning.clone());
    learner.begin(1, batch()).unwrap();
    while learner.open.as_ref().is_some_and(|open| !open.pieces.is_empty()) {
        assert!(learner.work().unwrap().is_none());
    }
    let gradient = learner.open.unwrap().gradient;
    let row = (16 + 3) * 16;
    let mut seen = 0;
    for (table, entries) in [(0, row..row + 16), (1, 16..16 + 8)] {
        for entry in entries {
            let slope = (loss(&learning, table, entry, 5e-3) - loss(&learning, table, entry, -5e-3)) / 1e-2;
            let found = f64::from(gradient[table][entry]);
            assert!((found - slope).abs() < 1e-4, "table {table} entry {entry}: {found} but the slope is {slope}");
            seen += usize::from(found.abs() > 1e-3);
        }
    }
    assert!(seen > 10, "only {seen} entries had a gradient");
}

/// Catches a micro-batch that is left out or counted twice, and a normaliser taken from a micro-batch.
#[test]
fn micro_batches_add_up() {
    let step = |micro_batch_tokens| {
        let mut learner = learner(Learning { micro_batch_tokens, ..learning() });
        learner.begin(1, batch()).unwrap();
        let mut calls = 1;
        loop {
            match learner.work().unwrap() {
                None => calls += 1,
                Some(trained) => return (calls, trained.batch, trained.metrics.weights, trained.metrics.tokens),
            }
        }
    };
    let (few, many) = (step(1000), step(1));
    assert_eq!((few.0, many.0), (2, 3));
    assert_eq!(few.1, many.1);
    assert_eq!(few.2, many.2);
    assert_eq!(few.3, 7);
}

/// By hand, one token: the first AdamW update moves each entry by lr against the sign of its gradient.
#[test]
fn first_update_by_hand() {
    let mut learner = learner(Learning { value_coef: 0.0, weight_decay: 0.5, ..learning() });
    let mut rollout = batch().remove(0);
    for list in [&mut rollout.logp_behavior, &mut rollout.advantage] {
        list.truncate(1);
    }
    rollout.tokens.truncate(1);
    rollout.mask.truncate(1);
    rollout.version.truncate(1);
    let before = learner.weights().unwrap();
    let trained = train(&mut learner, 1, vec![rollout]);
    let after = learner.weights().unwrap();
    let context = 16 + 2;
    for (j, (&b, &a)) in before.row(context).iter().zip(after.row(context)).enumerate() {
        let up = if j == 3 { 0.1 } else { -0.1 };
        assert!((a - (b + up - 0.1 * 0.5 * b)).abs() < 1e-5, "entry {j}: {b} became {a}");
    }
    assert!((after.row(0)[0] - before.row(0)[0] * 0.95).abs() < 1e-7, "decay alone");
    assert_eq!(trained.batch[0].logp_current, [log_softmax(before.row(context), 0.8)[3]]);
    assert_eq!((trained.metrics.step, trained.metrics.lr, trained.metrics.skipped), (1, 0.1, false));
    assert_eq!(trained.metrics.weights, after.hashes());
}

/// Catches a snapshot that a later step changes.
#[test]
fn snapshots_stay() {
    let mut learner = learner(learning());
    let snapshot = learner.weights().unwrap();
    let hashes = snapshot.hashes();
    train(&mut learner, 1, batch());
    assert_eq!(snapshot.hashes(), hashes);
    assert_ne!(learner.weights().unwrap().hashes(), hashes);
}

/// Hard case 9. Catches NaN out of 0/0, and Adam's momentum moving the weights without a gradient.
#[test]
fn nothing_to_train_skips_the_update() {
    let mut learner = learner(learning());
    train(&mut learner, 1, batch());
    let before = learner.weights().unwrap();
    let mut masked = batch();
    masked[0].mask.fill(false);
    masked[1].status = Status::Discarded(Reason::NoReward);
    let trained = train(&mut learner, 2, masked);
    let m = &trained.metrics;
    assert_eq!((m.skipped, m.loss, m.tokens, m.rollouts, m.grad_norm), (true, 0.0, 0, 0, 0.0));
    assert_eq!(learner.weights().unwrap(), before);
    assert!(trained.batch[1].logp_current.is_empty());
    train(&mut learner, 3, batch());
}

/// Catches batches that would train on garbage, steps out of order, and a gradient clip that is not one.
#[test]
fn refusals_and_the_clip() {
    let refusal = |change: fn(&mut Rollout)| {
        let mut batch = batch();
        change(&mut batch[1]);
        learner(learning()).begin(1, batch).unwrap_err().message
    };
    assert_eq!(
        refusal(|r| r.version[4] = 1),
        "rollout 1 of group 0: a token was sampled by version 1, later than the learner's 0"
    );
    assert_eq!(refusal(|r| r.tokens[0] = 16), "rollout 1 of group 0: id 16 is not below the vocabulary's 16");
    assert_eq!(refusal(|r| r.advantage.clear()), "rollout 1 of group 0: advantage has 0 entries for 5 tokens");
    let mut learner = learner(Learning { grad_clip: 1e-3, ..learning() });
    assert!(learner.work().is_err());
    assert_eq!(learner.begin(2, batch()).unwrap_err().message, "step 2 cannot begin before step 1");
    learner.begin(1, batch()).unwrap();
    assert_eq!(learner.begin(1, batch()).unwrap_err().message, "step 1 cannot begin in step 1");
    while learner.work().unwrap().is_none() {}
    let first = &learner.moments[0].first;
    let norm = first.iter().chain(&learner.moments[1].first).map(|m| f64::from(*m).powi(2)).sum::<f64>().sqrt();
    assert!((norm - 0.1 * 1e-3).abs() < 1e-8, "first moments are 0.1 of a gradient of norm 1e-3: {norm}");
}

/// Metrics of a batch by hand.
#[test]
fn metrics_by_hand() {
    let mut learner = learner(learning());
    train(&mut learner, 1, batch());
    let trained = train(&mut learner, 2, batch());
    let (m, rollouts) = (&trained.metrics, &trained.batch);
    assert_eq!((m.rollouts, m.tokens, m.slots), (2, 7, 8));
    let gaps = rollouts.iter().flat_map(|r| r.logp_current.iter().zip(&r.mask)).filter(|(_, m)| **m);
    let gaps = gaps.map(|(current, _)| f64::from(*current + 2.5)).collect::<Vec<_>>();
    let mean = |f: fn(f64) -> f64| gaps.iter().map(|&d| f(d)).sum::<f64>() / 7.0;
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * (1.0 + b.abs());
    assert!(close(m.kl_k1, mean(|d| -d)), "{m:?}");
    assert!(close(m.kl_k3, mean(|d| d.exp() - 1.0 - d)), "{m:?}");
    assert!(close(m.logp_gap, mean(f64::abs)), "{m:?}");
    assert!(close(m.ess, mean(f64::exp).powi(2) / mean(|d| (2.0 * d).exp())), "{m:?}");
    assert!(close(m.loss, m.policy_loss + 0.5 * m.value_loss), "{m:?}");
    assert!(m.entropy > 0.0 && m.entropy <= 16f64.ln());
}

/// Generates, rewards and trains `steps` batches of 4 groups of 8, each sampled by weights of `lag` steps before (or the first);
/// the mean reward of each.
fn rewards(learning: Learning, lag: u64, steps: u64) -> (Vec<f64>, Vec<(String, String)>) {
    let mut learner = learner(learning);
    let mut generator = ToyGenerator::new(sampling(), 11);
    let mut prompts = ToyPrompts::new(3, u64::MAX);
    let (mut means, mut number, mut kept) = (Vec::new(), 0, VecDeque::new());
    for step in 1..=steps {
        kept.push_back((step - 1, learner.weights().unwrap()));
        kept.drain(..kept.len().saturating_sub(lag as usize + 1));
        let (version, weights) = kept[0].clone();
        generator.load(version, weights).unwrap();
        for _ in 0..4 {
            let prompt = prompts.prompt(number).unwrap().unwrap();
            generator.start(Arc::new(Group { number, size: 8, prompt, ..Group::default() })).unwrap();
            number += 1;
        }
        let mut batch = Vec::new();
        while generator.running() > 0 {
            batch.extend(generator.step().unwrap());
        }
        batch.iter_mut().for_each(|r| ToyScorer.reward(r));
        for i in 0..batch.len() {
            let number = batch[i].group.number;
            let peers = batch.iter().filter(|r| r.group.number == number).filter_map(|r| r.reward).sum::<f32>() / 8.0;
            batch[i].advantage = vec![batch[i].reward.unwrap() - peers; batch[i].tokens.len()];
            batch[i].step = step;
        }
        means.push(batch.iter().filter_map(|r| r.reward).map(f64::from).sum::<f64>() / batch.len() as f64);
        train(&mut learner, step, batch);
    }
    (means, learner.weights.hashes())
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// Catches an engine that does not learn, and one whose second run differs in a bit.
#[test]
fn learns_the_task_the_same_way_twice() {
    let once = || rewards(Learning { lr: 0.3, ..learning() }, 0, 30);
    let (means, hashes) = once();
    let (early, late) = (mean(&means[..5]), mean(&means[25..]));
    assert!(early < 0.3 && late > 0.8, "reward went from {early} to {late}: {means:?}");
    assert_eq!(once().1, hashes);
}

/// On policy every loss has the same derivative, so the weights are the same to the bit. Catches a loss whose bounds cut at a
/// ratio of 1, and a ratio that is not 1 there.
#[test]
fn on_policy_every_loss_teaches_the_same() {
    let after = |loss| rewards(Learning { loss, lr: 0.3, ..learning() }, 0, 5).1;
    let expected = after(Loss::default());
    for loss in of_rewards() {
        assert_eq!(after(loss), expected, "{loss:?}");
    }
}

/// Three steps behind each learns, and none as another does. Catches a sign, a loss that its bounds stop, one name that does
/// another's work, and lags that do not reach the loss.
#[test]
fn off_policy_every_loss_learns_its_own_way() {
    let mut seen = BTreeSet::new();
    for loss in of_rewards() {
        let (means, hashes) = rewards(Learning { loss, lr: 0.2, ..learning() }, 3, 60);
        let (early, late) = (mean(&means[..5]), mean(&means[55..]));
        assert!(late > early + 0.5, "{loss:?}: reward went from {early} to {late}");
        assert!(seen.insert(hashes), "{loss:?} is one of the others");
    }
}

/// The batch as step 4 takes it, with tokens of lags 0 to 3: two of the first rollout's and three of the second's are above 1.
fn lagging() -> Vec<Rollout> {
    let mut batch = batch();
    batch[0].version = vec![1, 1, 2];
    batch[1].version = vec![0, 0, 1, 2, 3];
    batch[1].mask = vec![true; 5];
    batch.iter_mut().for_each(|rollout| rollout.step = 4);
    batch
}

fn at_version_3(safeguard: Safeguard) -> ToyLearner {
    let learning = Learning { safeguard, aggregation: Aggregation::SeqMeanTokenMean, ..learning() };
    ToyLearner::new(policy::ToyWeights::initial(16, 3), 3, learning, &sampling(), 10)
}

/// Bit for bit as with these tokens masked, in weights and in metrics. Catches a token that is left out of the gradient and
/// stays in a denominator or a mean, and a mask that goes to the log changed.
#[test]
fn a_token_that_is_left_out_is_as_if_it_were_masked() {
    for (max_lag, left_out) in [(3.0, 0), (1.0, 5), (0.0, 7)] {
        let mut masked = lagging();
        for rollout in &mut masked {
            let young = rollout.version.iter().map(|version| (3 - version) as f64 <= max_lag);
            rollout.mask = young.collect();
        }
        let expected = train(&mut at_version_3(Safeguard::default()), 4, masked).metrics;
        let mut learner = at_version_3(Safeguard { max_lag, ..Safeguard::default() });
        let trained = train(&mut learner, 4, lagging());
        let found = Metrics { left_out: 0, finished_ns: expected.finished_ns, ..trained.metrics.clone() };
        assert_eq!((trained.metrics.left_out, found), (left_out, expected), "at most {max_lag}");
        assert!(trained.batch.iter().zip(lagging()).all(|(now, then)| now.mask == then.mask));
        assert_eq!(trained.batch[0].logp_current.is_empty(), max_lag == 0.0, "nothing is computed for nothing");
    }
}

/// Hard case 9, by lag. Catches 0/0, and momentum that moves the weights.
#[test]
fn a_batch_that_is_left_out_whole_is_skipped() {
    let mut learner = at_version_3(Safeguard { max_lag: 0.0, ..Safeguard::default() });
    let before = learner.weights().unwrap();
    let mut batch = lagging();
    batch[1].version[4] = 2;
    let m = train(&mut learner, 4, batch).metrics;
    assert_eq!((m.skipped, m.tokens, m.left_out, m.loss), (true, 0, 8, 0.0));
    assert_eq!((learner.weights().unwrap(), learner.version()), (before, 4));
}

/// Catches a rate that is scaled by the share itself, that is recorded and not used, or used and not recorded.
#[test]
fn the_learning_rate_goes_with_the_root_of_ess() {
    let step = |learning| {
        let mut learner = learner(learning);
        train(&mut learner, 1, batch()).metrics
    };
    let safeguard = Safeguard { lr_scale: LrScale::SqrtEss, ..Safeguard::default() };
    let (plain, scaled) = (step(learning()), step(Learning { safeguard, ..learning() }));
    assert!(plain.ess < 0.9999 && plain.lr == 0.1, "{plain:?}");
    assert_eq!((scaled.ess, scaled.lr), (plain.ess, 0.1 * plain.ess.sqrt()));
    assert_eq!(scaled.weights, step(Learning { lr: scaled.lr, ..learning() }).weights);
    assert_ne!(scaled.weights, plain.weights);
}

/// A gradient of a thousand times the usual norm. Catches one that moves weights or moments after all, a step that is no
/// version, and a learner that goes on from a checkpoint without what it went by.
#[test]
fn a_step_with_an_outlying_gradient_is_skipped() {
    let safeguard = Safeguard { skip_norm: 4.0, skip_window: 2, ..Safeguard::default() };
    let mut learner = learner(Learning { safeguard, value_coef: 0.0, ..learning() });
    let far = || {
        let mut far = batch();
        far.iter_mut().for_each(|rollout| rollout.advantage.iter_mut().for_each(|advantage| *advantage *= 1000.0));
        far
    };
    let mut measured = vec![train(&mut learner, 1, batch()).metrics, train(&mut learner, 2, batch()).metrics];
    let (weights, optimizer) = (learner.weights().unwrap(), learner.optimizer());
    let mut again = learner.clone();
    again.taking = Taking::default();
    let mut forgetful = again.clone();
    let third = train(&mut learner, 3, far()).metrics;
    assert!(third.skipped && third.tokens == 7 && third.grad_norm > 100.0 * measured[1].grad_norm, "{third:?}");
    assert_eq!((learner.weights().unwrap(), learner.optimizer(), learner.version()), (weights, optimizer, 3));
    assert_eq!(third.weights, measured[1].weights);
    again.recall(&measured);
    assert!(train(&mut again, 3, far()).metrics.skipped && !train(&mut forgetful, 3, far()).metrics.skipped);
    // The outlier is one of the two norms that the next is measured by.
    measured.push(third);
    let fourth = train(&mut learner, 4, batch()).metrics;
    assert!(!fourth.skipped && fourth.weights != measured[2].weights);
    assert_eq!(train(&mut again, 4, batch()).metrics.weights, fourth.weights);
}

/// Of two rollouts and then of one, with lags above 0: the batches that the next two tests are of.
fn two_batches() -> [Vec<Rollout>; 2] {
    let (first, mut second) = (lagging(), vec![lagging().remove(0)]);
    second[0].advantage.fill(1.5);
    second.iter_mut().for_each(|rollout| rollout.step = 5);
    [first, second]
}

/// For each aggregation, within rounding. Catches parts that count alike, a gradient that is clipped before it is whole, moments that
/// move twice or early, and ESS of the last part alone in the rate.
#[test]
fn held_gradients_make_the_step_of_one_large_batch() {
    let kinds = [
        Aggregation::TokenMean,
        Aggregation::TokenSum,
        Aggregation::SeqMeanTokenSum,
        Aggregation::SeqMeanTokenSumNorm(4.0),
        Aggregation::SeqMeanTokenMean,
    ];
    for aggregation in kinds {
        let scaled = Safeguard { lr_scale: LrScale::SqrtEss, ..Safeguard::default() };
        let enlarged = Safeguard { enlarge_lag: 0.0, enlarge_most: 2, ..scaled };
        let at = |version, safeguard| {
            let learning = Learning { safeguard, aggregation, grad_clip: 0.1, ..learning() };
            ToyLearner::new(policy::ToyWeights::initial(16, 3), version, learning, &sampling(), 10)
        };
        let [first, second] = two_batches();
        let whole = train(&mut at(4, scaled), 5, [first.clone(), second.clone()].concat()).metrics;
        let mut learner = at(3, enlarged);
        let before = (learner.weights().unwrap(), learner.optimizer());
        let held = train(&mut learner, 4, first).metrics;
        assert_eq!((held.held, held.skipped, held.enlarged, held.paused), (true, true, 1, false));
        assert_eq!((learner.weights().unwrap(), learner.optimizer(), learner.version()), (before.0, before.1, 4));
        let taken = train(&mut learner, 5, second).metrics;
        assert_eq!((taken.held, taken.skipped, taken.enlarged), (false, false, 2));
        assert!((taken.grad_norm / whole.grad_norm - 1.0).abs() < 1e-5, "{aggregation:?}: {taken:?} {whole:?}");
        assert_eq!(taken.lr.to_bits(), whole.lr.to_bits());
        let mut one = at(4, scaled);
        train(&mut one, 5, two_batches().concat());
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        let (found, expected) = (learner.optimizer(), one.optimizer());
        let moments = found.moments.iter().flatten().zip(expected.moments.iter().flatten());
        assert!(moments.into_iter().all(|(a, b)| near(a, b)) && found.updates == [1; 2], "{aggregation:?}");
        assert!(near(&learner.weights().unwrap().logits, &one.weights().unwrap().logits), "{aggregation:?}");
    }
}

/// Behavior far from the policy in one token: an ESS of a few tokens' worth. Catches a pause that moves weights or moments, that
/// lasts past the first batch of equal weights, and a learner that goes on without it.
#[test]
fn a_run_pauses_on_a_low_ess() {
    let safeguard = Safeguard { skip_ess: 0.9, ..Safeguard::default() };
    let of = |step: Step, lag: u64, far: f32| {
        let mut batch = batch();
        for rollout in &mut batch {
            rollout.step = step;
            rollout.version.fill(step - 1 - lag);
            rollout.logp_behavior[1] -= far;
        }
        batch
    };
    let mut learner = at_version_3(safeguard);
    let before = (learner.weights().unwrap(), learner.optimizer());
    let mut measured = vec![train(&mut learner, 4, of(4, 2, 3.0)).metrics];
    let mut again = learner.clone();
    again.taking = Taking::default();
    let mut forgetful = again.clone();
    measured.push(train(&mut learner, 5, of(5, 2, 0.0)).metrics);
    assert!(measured[0].ess < 0.9 && measured[1].ess > 0.9 && measured[0].grad_norm > 0.0, "{measured:?}");
    assert!(measured.iter().all(|m| m.paused && m.skipped && !m.held && m.enlarged == 0));
    assert_eq!((learner.weights().unwrap(), learner.optimizer(), learner.version()), (before.0, before.1, 5));
    again.recall(&measured[..1]);
    assert!(train(&mut again, 5, of(5, 2, 0.0)).metrics.paused && !train(&mut forgetful, 5, of(5, 2, 0.0)).metrics.paused);
    let on_policy = train(&mut learner, 6, of(6, 2, 3.0)).metrics;
    assert!(!on_policy.paused && !on_policy.skipped && on_policy.ess < 0.9, "{on_policy:?}");
    assert_eq!(train(&mut again, 6, of(6, 2, 3.0)).metrics.weights, on_policy.weights);
}

/// Catches weights that are no numbers and are published, and a batch that is lost with the step.
#[test]
fn a_step_that_loses_the_policy_is_an_error() {
    let mut learner = learner(Learning { lr: 1e39, ..learning() });
    learner.begin(1, batch()).unwrap();
    let fault = (0..9).find_map(|_| learner.work().err()).unwrap();
    assert!(fault.message.starts_with("step 1: its weights are not finite after an update"), "{fault}");
    assert_eq!(learner.abandon().len(), 2);
}
