//! The learner against autograd, against itself in other micro-batches, and against what must change nothing.

mod formulas;
mod reference;

use super::*;
use crate::engine::sampler::uniform;
use crate::engine::spec::{Dtype, LrSchedule, Sampling};
use crate::engine::torch::checkpoint::tests::spread;
use crate::engine::torch::config::{Family, tests::tiny};
use crate::engine::torch::device::tests::device;
use crate::engine::torch::ffi;
use crate::engine::torch::generator::{Settings, TorchGenerator};
use crate::engine::torch::reference::forward;
use crate::kernel::aggregation::Aggregation;
use crate::kernel::loss::Loss;
use std::sync::Arc;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Reason};

pub(crate) const PPO: Loss = Loss::Ppo { clip_low: 0.2, clip_high: 0.28 };

/// One draw in `low..high`, of a counter.
fn draw(number: usize, place: usize, low: f64, high: f64) -> f64 {
    low + (high - low) * uniform(7, number as u64, place as u32, 0)
}

/// Rollouts of uneven lengths with ids 3.., some tokens masked, behavior near what the tiny model might say.
/// Three and three of these rollouts have the same prompt.
pub(crate) fn batch(count: usize) -> Vec<Rollout> {
    let id = |number, place| draw(number, place, 3.0, 50.0) as u32;
    let rollout = |number: usize| {
        let (prompt, n) = (draw(number / 3, 0, 1.0, 6.0) as usize, draw(number, 1, 1.0, 14.0) as usize);
        let of_token = |salt: usize, low, high| (0..n).map(move |t| draw(number, 1000 * salt + t, low, high) as f32);
        let prompt = Prompt { tokens: (0..prompt).map(|t| id(number / 3, 100 + t)).collect(), ..Prompt::default() };
        Rollout {
            group: Arc::new(Group { number: number as u64, prompt, ..Group::default() }),
            tokens: (0..n).map(|t| id(number, 200 + t)).collect(),
            mask: of_token(1, 0.0, 1.0).map(|x| x > 0.2).collect(),
            logp_behavior: of_token(2, -6.0, -1.0).collect(),
            advantage: of_token(3, -1.5, 1.5).collect(),
            version: of_token(4, 0.0, 6.0).map(|version| version as u64).collect(),
            step: 6,
            reward: Some(draw(number, 2, -1.0, 1.0) as f32),
            ..Rollout::default()
        }
    };
    (0..count).map(rollout).collect()
}

pub(crate) fn learning(loss: Loss) -> Learning {
    let (lr, lr_schedule, warmup_steps) = (0.01, LrSchedule::Constant, 0);
    Learning { loss, lr, lr_schedule, warmup_steps, grad_clip: 0.0, micro_batch_tokens: 60, ..Learning::default() }
}

pub(crate) fn learner(family: Family, learning: &Learning, temperature: f64) -> TorchLearner {
    let config = tiny(family);
    let layout = Layout::of(&config, ValueHead::Present);
    let flat = spread(&layout, 5);
    TorchLearner::new(config, layout, flat, device(), learning.clone(), temperature, 100, 0).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

/// All micro-batches of a step, and none of its update.
fn gradient(learner: &mut TorchLearner, batch: Vec<Rollout>) -> Vec<f32> {
    learner.begin(1, batch).unwrap();
    for _ in 0..learner.open.as_ref().unwrap().plan.micro_batches.len() {
        assert!(learner.work().unwrap().is_none());
    }
    values(&learner.gradient)
}

pub(crate) fn step(learner: &mut TorchLearner, batch: Vec<Rollout>) -> Trained {
    learner.begin(learner.version() + 1, batch).unwrap();
    loop {
        if let Some(trained) = learner.work().unwrap() {
            return trained;
        }
    }
}

fn assert_near(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(most > 1e-2, "nothing to compare: the largest is {most}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * most.max(1.0), "{i}: {a} {b}, the largest is {most}");
    }
}

/// The loss as a formula in libtorch, a rollout at a time and without padding, and what autograd makes of it.
fn by_autograd(family: Family, learning: &Learning, temperature: f64, batch: &[Rollout]) -> (Vec<f32>, f64) {
    let config = tiny(family);
    let layout = Layout::of(&config, ValueHead::Present);
    let flat = spread(&layout, 5).set_requires_grad(true);
    let sequences = batch.iter().filter(|r| r.mask.contains(&true)).count() as f64;
    let mut total = 0.0;
    for rollout in batch {
        let prompt = &rollout.group.prompt.tokens;
        let ids: Vec<i64> = prompt.iter().chain(&rollout.tokens).map(|&id| i64::from(id)).collect();
        let n = rollout.tokens.len() as i64;
        let of_completion = |x: &Tensor| x.narrow(0, prompt.len() as i64 - 1, n);
        let (logits, values) = forward(&config, &layout, &flat, &ids);
        let all = (of_completion(&logits) / temperature).log_softmax(-1, Kind::Float);
        let chosen = Tensor::from_slice(&ids).narrow(0, prompt.len() as i64, n).unsqueeze(1);
        let logp = all.gather(1, &chosen, false).squeeze_dim(1);
        let policy = formulas::loss(learning.loss, rollout, &logp);
        let value = (of_completion(&values.unwrap()) - f64::from(rollout.reward.unwrap())).square();
        let entropy = -(all.exp() * &all).sum_dim_intlist(-1, false, Kind::Float);
        let mut each = policy + value * learning.value_coef - entropy * learning.entropy_coef;
        if learning.reference.is_on() {
            each += formulas::reference(learning.reference.kl_estimator, rollout, &logp) * learning.reference.kl_coef;
        }
        let mask = Tensor::from_slice(&rollout.mask);
        let loss = each.masked_select(&mask).sum(Kind::Float) / sequences;
        loss.backward();
        total += loss.double_value(&[]);
    }
    (values(&flat.grad()), total)
}

#[test]
fn coefficients_back_propagate_to_autograds_gradient() {
    let batch = batch(6);
    let with_all = [
        (Family::Qwen2, Loss::Reinforce { cap: 5.0 }, 0.0, 0.0, 0.7),
        (Family::Qwen2, PPO, 0.3, 0.1, 0.7),
        (Family::Llama, Loss::Supervised, 0.0, 0.2, 1.0),
        (Family::Llama, Loss::default(), 0.5, 0.0, 1.0),
    ];
    let alone = formulas::LOSSES.map(|loss| (Family::Llama, loss, 0.0, 0.0, 1.0));
    for (family, loss, value_coef, entropy_coef, temperature) in with_all.into_iter().chain(alone) {
        let learning = Learning { value_coef, entropy_coef, ..learning(loss) };
        let (expected, expected_loss) = by_autograd(family, &learning, temperature, &batch);
        let mut learner = learner(family, &learning, temperature);
        assert_near(&gradient(&mut learner, batch.clone()), &expected, 1e-5);
        let loss = learner.work().unwrap().unwrap().metrics.loss;
        assert!((loss - expected_loss).abs() < 1e-5 * (1.0 + expected_loss.abs()), "{loss} {expected_loss}");
    }
}

#[test]
fn micro_batches_of_any_size_give_the_same_gradient_and_metrics() {
    for aggregation in [Aggregation::default(), Aggregation::TokenMean, Aggregation::SeqMeanTokenMean] {
        let of_budget = |micro_batch_tokens| {
            let learning =
                Learning { micro_batch_tokens, aggregation, value_coef: 0.1, entropy_coef: 0.01, ..learning(PPO) };
            let mut learner = learner(Family::Llama, &learning, 1.0);
            let gradient = gradient(&mut learner, batch(9));
            (gradient, learner.work().unwrap().unwrap())
        };
        let (whole, expected) = of_budget(10_000);
        for budget in [1, 20, 37, 90] {
            let (parts, trained) = of_budget(budget);
            assert_near(&parts, &whole, 1e-5);
            let (found, expected) = (&trained.metrics, &expected.metrics);
            assert_eq!((found.tokens, found.rollouts), (expected.tokens, expected.rollouts));
            // Rollouts that are parted have their prompt each.
            assert!(found.slots >= expected.slots && (budget > 1 || found.slots > expected.slots));
            for (name, of) in NUMBERS {
                assert!((of(found) - of(expected)).abs() < 1e-5 * (1.0 + of(expected).abs()), "{name} at {budget}");
            }
        }
    }
}

type Number = (&'static str, fn(&Metrics) -> f64);

const NUMBERS: [Number; 11] = [
    ("loss", |m| m.loss),
    ("policy_loss", |m| m.policy_loss),
    ("value_loss", |m| m.value_loss),
    ("entropy", |m| m.entropy),
    ("ess", |m| m.ess),
    ("kl_k1", |m| m.kl_k1),
    ("kl_k3", |m| m.kl_k3),
    ("logp_gap", |m| m.logp_gap),
    ("clipped", |m| m.clipped),
    ("grad_norm", |m| m.grad_norm),
    ("lr", |m| m.lr),
];

#[test]
fn metrics_are_means_over_trained_tokens() {
    let mut learner = learner(Family::Llama, &learning(Loss::Reinforce { cap: 1.5 }), 1.0);
    let before = values(learner.flat());
    let mut given = batch(5);
    given[1].status = Status::Discarded(Reason::NoReward);
    given[2].mask.fill(false);
    let Trained { batch, metrics } = step(&mut learner, given);
    let trained: Vec<&Rollout> = batch.iter().filter(|r| !r.logp_current.is_empty()).collect();
    assert_eq!(trained.iter().map(|r| r.group.number).collect::<Vec<_>>(), [0, 3, 4]);
    let mut tokens = Vec::new();
    for r in &trained {
        assert_eq!(r.logp_current.len(), r.tokens.len());
        let pairs = r.logp_current.iter().zip(&r.logp_behavior).zip(&r.mask);
        tokens.extend(pairs.filter(|(_, m)| **m).map(|((c, b), _)| (f64::from(*c), f64::from(*b))));
    }
    let n = tokens.len() as f64;
    let mean = |of: fn((f64, f64)) -> f64| tokens.iter().map(|&token| of(token)).sum::<f64>() / n;
    let weights: Vec<f64> = tokens.iter().map(|(c, b)| (c - b).exp().min(1.5)).collect();
    let ess = weights.iter().sum::<f64>().powi(2) / (n * weights.iter().map(|w| w * w).sum::<f64>());
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    near(metrics.kl_k1, mean(|(c, b)| b - c));
    near(metrics.kl_k3, mean(|(c, b)| (c - b).exp() - 1.0 - (c - b)));
    near(metrics.logp_gap, mean(|(c, b)| (c - b).abs()));
    near(metrics.clipped, mean(|(c, b)| f64::from(u8::from((c - b).exp() > 1.5))));
    near(metrics.ess, ess);
    assert!(metrics.clipped > 0.0 && metrics.clipped < 1.0 && metrics.ess < 0.99);
    assert_eq!((metrics.tokens, metrics.rollouts, metrics.step, metrics.skipped), (tokens.len() as u64, 3, 1, false));
    assert_eq!((metrics.lr, metrics.value_loss), (0.01, 0.0));
    let statuses = [Status::Trained, Status::Discarded(Reason::NoReward), Status::Trained, Status::Trained, Status::Trained];
    assert!(batch.iter().map(|r| &r.status).eq(&statuses));
    assert_ne!(values(learner.flat()), before);
    assert_eq!(learner.weights().unwrap().hashes(learner.layout()).unwrap(), metrics.weights);
}

/// The two halves of the engine are one policy: on rollouts that the learner's own weights sampled, every ratio is 1; in bf16, where
/// each half rounds in places of its own, nearly.
#[test]
fn what_the_generator_samples_is_on_policy() {
    let kinds = [(Dtype::Fp32, 2e-6, 1e-10), (Dtype::Bf16, 0.02, 5e-4)];
    let families = [(Family::Llama, 1.0), (Family::Qwen2, 0.7)];
    for ((family, temperature), (dtype, gap, kl)) in families.into_iter().flat_map(|one| kinds.map(|kind| (one, kind))) {
        let mut learner = learner(family, &Learning { dtype, ..learning(Loss::default()) }, temperature);
        let sampling = Sampling { slots: 5, max_tokens: 20, temperature, dtype, ..Sampling::default() };
        let (device, decode) = (device(), Box::new(|_: &[u32]| String::new()));
        let settings = Settings { device, sampling, seed: 3, eos: vec![2], decode, max_len: 40, worker: 0 };
        let mut generator = TorchGenerator::new(tiny(family), learner.layout().clone(), settings).unwrap();
        generator.load(0, learner.weights().unwrap()).unwrap();
        for (number, rollout) in batch(3).into_iter().enumerate() {
            let prompt = rollout.group.prompt.clone();
            generator.start(Arc::new(Group { number: number as u64, size: 4, prompt, ..Group::default() })).unwrap();
        }
        let mut sampled = Vec::new();
        while generator.running() > 0 {
            sampled.extend(generator.step().unwrap());
        }
        sampled.iter_mut().for_each(|r| r.advantage = vec![1.0; r.tokens.len()]);
        let metrics = step(&mut learner, sampled).metrics;
        assert!(metrics.rollouts == 12 && metrics.tokens > 50, "{metrics:?}");
        assert!(metrics.logp_gap < gap && metrics.kl_k3 < kl && metrics.ess > 1.0 - 2.0 * kl.max(5e-7), "{metrics:?}");
    }
}

#[test]
fn company_does_not_change_logp() {
    let learning = Learning { micro_batch_tokens: 10_000, ..learning(PPO) };
    let together = step(&mut learner(Family::Qwen2, &learning, 0.7), batch(8)).batch;
    for rollout in batch(8) {
        let number = rollout.group.number as usize;
        let alone = step(&mut learner(Family::Qwen2, &learning, 0.7), vec![rollout]).batch.remove(0);
        for (a, b) in alone.logp_current.iter().zip(&together[number].logp_current) {
            assert!((a - b).abs() <= 1e-6 * (1.0 + a.abs()), "{a} {b}");
        }
    }
}

/// What is under a mask: the same weights to the bit, whatever it is.
#[test]
fn what_is_masked_changes_nothing() {
    let learning = Learning { value_coef: 0.1, entropy_coef: 0.01, ..learning(PPO) };
    let hashes = |batch| step(&mut learner(Family::Llama, &learning, 1.0), batch).metrics.weights;
    let expected = hashes(batch(5));
    let mut junk = batch(5);
    for rollout in &mut junk {
        for t in (0..rollout.tokens.len()).filter(|&t| !rollout.mask[t]) {
            (rollout.logp_behavior[t], rollout.advantage[t]) = (f32::NAN, f32::NEG_INFINITY);
        }
    }
    assert!(junk.iter().any(|r| r.advantage.iter().any(|a| a.is_infinite())));
    assert_eq!(hashes(junk), expected);
}

/// Hard case 8: the first end of sequence is trained, what follows it is not, whatever its id.
#[test]
fn what_follows_the_end_is_not_trained() {
    let with_tail = |tail: [u32; 3]| {
        let mut batch = batch(3);
        for rollout in &mut batch {
            rollout.mask.fill(true);
            rollout.tokens.extend([2].iter().chain(&tail));
            rollout.mask.extend([true, false, false, false]);
            rollout.logp_behavior.extend([-1.0; 4]);
            rollout.advantage.extend([1.0; 4]);
        }
        batch
    };
    let learning = Learning { micro_batch_tokens: 10_000, ..learning(PPO) };
    let run = |tail| {
        let mut learner = learner(Family::Llama, &learning, 1.0);
        let gradient = gradient(&mut learner, with_tail(tail));
        let embedding =
            Tensor::from_slice(&gradient).narrow(0, 0, 50 * 32).view([50, 32]).abs().sum_dim_intlist(1, false, None);
        (values(&embedding), gradient)
    };
    let (embedding, expected) = run([2, 2, 2]);
    for tail in [[0, 0, 0], [1, 0, 2]] {
        assert_eq!(run(tail).1, expected);
    }
    // 2 is the end, which is never an input of what is trained.
    assert_eq!((embedding[0], embedding[1], embedding[2]), (0.0, 0.0, 0.0));
    // The head's row of the end has a gradient: it is trained.
    let layout = Layout::of(&tiny(Family::Llama), ValueHead::Present);
    let head = layout.entries.iter().find(|e| e.name == "lm_head.weight").unwrap().offset as usize;
    assert!(expected[head + 2 * 32..head + 3 * 32].iter().any(|g| g.abs() > 1e-3));
}

/// What a step computed, without how long it took.
fn untimed(metrics: Metrics) -> Metrics {
    assert!(metrics.torch_ns > 0);
    Metrics { torch_ns: 0, ..metrics }
}

#[test]
fn the_same_batch_from_the_same_start_gives_the_same_bits() {
    let _ = tch::get_num_threads();
    tch::set_num_threads(1);
    let run = || {
        let mut learner = learner(Family::Qwen2, &learning(Loss::default()), 1.0);
        (0..3).map(|_| untimed(step(&mut learner, batch(8)).metrics)).collect::<Vec<_>>()
    };
    let (first, again) = (run(), run());
    assert_eq!(first, again);
    assert_ne!(first[0].weights, first[1].weights);
}

/// A learner that starts from another's weights, optimizer state and version takes the same step: nothing else is remembered.
#[test]
fn a_step_depends_on_weights_optimizer_and_version_alone() {
    let learning = Learning { lr_schedule: LrSchedule::Cosine, warmup_steps: 3, ..learning(Loss::default()) };
    let mut first = learner(Family::Llama, &learning, 1.0);
    step(&mut first, batch(8));
    let (config, layout, flat) = (tiny(Family::Llama), first.layout().clone(), first.flat().copy());
    let mut second = TorchLearner::new(config, layout, flat, device(), learning, 1.0, 100, 1).unwrap();
    second.optimizer_mut().restore(first.optimizer().state()).unwrap();
    let next = |learner: &mut TorchLearner| untimed(step(learner, batch(5)).metrics);
    assert_eq!(next(&mut first), next(&mut second));
}

/// Hard case 9.
#[test]
fn a_batch_without_trained_tokens_is_skipped() {
    let mut learner = learner(Family::Llama, &learning(Loss::default()), 1.0);
    let before = values(learner.flat());
    let mut masked = batch(3);
    masked.iter_mut().for_each(|rollout| rollout.mask.fill(false));
    for (version, batch) in [(1, masked), (2, Vec::new())] {
        let count = batch.len();
        let trained = step(&mut learner, batch);
        let m = &trained.metrics;
        assert_eq!((m.skipped, m.loss, m.grad_norm, m.tokens, m.entropy, m.ess), (true, 0.0, 0.0, 0, 0.0, 0.0));
        assert_eq!((learner.version(), trained.batch.len(), m.weights.len()), (version, count, 23));
        assert!(trained.batch.iter().all(|r| r.status == Status::Trained && r.logp_current.is_empty()));
        assert_eq!(values(learner.flat()), before);
    }
    assert!(!step(&mut learner, batch(2)).metrics.skipped);
    assert_eq!(learner.optimizer().state().updates, 1);
}

#[test]
fn demonstrations_are_learnt() {
    let learning = Learning { lr: 3e-3, grad_clip: 1.0, aggregation: Aggregation::TokenMean, ..learning(Loss::Supervised) };
    let mut learner = learner(Family::Llama, &learning, 1.0);
    let mut pairs = batch(4);
    for pair in &mut pairs {
        (pair.logp_behavior, pair.advantage, pair.reward) = (Vec::new(), Vec::new(), None);
    }
    let losses: Vec<f64> = (0..40).map(|_| step(&mut learner, pairs.clone()).metrics.loss).collect();
    assert!(losses[0] > 3.0 && losses[39] < 0.1 * losses[0], "{losses:?}");
}

#[test]
fn an_update_is_clipped_adamw() {
    let learning = Learning { grad_clip: 0.3, ..learning(Loss::default()) };
    let mut learner = learner(Family::Llama, &learning, 1.0);
    let expected = learner.flat().copy();
    let mut clipped = Tensor::from_slice(&gradient(&mut learner, batch(4))).to_device(device());
    let norm = clipped.norm_scalaropt_dtype(2, Kind::Double).double_value(&[]);
    let _ = clipped.f_mul_scalar_(0.3 / (norm + 1e-6)).unwrap();
    AdamW::new(&expected, &learning).unwrap().step(&expected, &clipped, 0.01).unwrap();
    let metrics = learner.work().unwrap().unwrap().metrics;
    assert!(norm > 0.3 && (metrics.grad_norm - norm).abs() < 1e-5 * norm, "{norm} {}", metrics.grad_norm);
    assert_near(&values(learner.flat()), &values(&expected), 1e-6);
}

#[test]
fn what_cannot_be_trained_is_named() {
    let refused = |spoil: fn(&mut Rollout)| {
        let mut batch = batch(3);
        batch[1].mask.fill(true);
        spoil(&mut batch[1]);
        let learning = Learning { value_coef: 0.1, ..learning(PPO) };
        let mut learner = learner(Family::Llama, &learning, 1.0);
        let fault = learner.begin(1, batch).unwrap_err();
        assert_eq!(learner.work().unwrap_err().message, "no step has begun");
        fault.to_string().strip_prefix("train: group 1 sample 0: ").unwrap().to_owned()
    };
    assert!(refused(|r| r.logp_behavior.truncate(1)).ends_with("tokens but 1 of logp_behavior"));
    assert!(refused(|r| r.advantage.clear()).ends_with("tokens but 0 of advantage"));
    assert!(refused(|r| r.mask.push(true)).ends_with("of mask"));
    assert_eq!(refused(|r| r.logp_behavior[0] = f32::NEG_INFINITY), "logp_behavior of token 0 is -inf");
    assert_eq!(refused(|r| r.advantage[0] = f32::NAN), "advantage of token 0 is NaN");
    assert_eq!(refused(|r| r.tokens[0] = 50), "id 50, the vocabulary has 50");
    assert_eq!(refused(|r| r.reward = None), "reward None: the critic needs a number");
    assert!(refused(|r| r.group = Arc::new(Group { number: 1, ..Group::default() })).contains("empty prompt"));
    let long = Prompt { tokens: vec![3; 64], ..Prompt::default() };
    let refused = {
        let mut batch = batch(1);
        batch[0].mask.fill(true);
        batch[0].group = Arc::new(Group { prompt: long, ..Group::default() });
        learner(Family::Llama, &learning(PPO), 1.0).begin(1, batch)
    };
    assert!(refused.unwrap_err().message.ends_with("the model's longest is 64"));
}

#[test]
fn a_broken_gradient_ends_the_run_before_the_weights() {
    let mut learner = learner(Family::Llama, &learning(Loss::Reinforce { cap: 5.0 }), 1.0);
    let before = values(learner.flat());
    let mut batch = batch(2);
    batch.iter_mut().for_each(|r| r.advantage.fill(f32::MAX));
    learner.begin(1, batch).unwrap();
    let fault = loop {
        match learner.work() {
            Ok(trained) => assert!(trained.is_none()),
            Err(fault) => break fault,
        }
    };
    assert!(fault.message.starts_with("gradient of step 1: its norm is"), "{fault}");
    assert_eq!((values(learner.flat()), learner.version()), (before, 0));
}

#[test]
fn what_does_not_fit_is_refused_at_the_start() {
    let config = tiny(Family::Llama);
    let layout = Layout::of(&config, ValueHead::None);
    let new = |learning: Learning, temperature, elements| {
        let flat = Tensor::zeros([elements], (Kind::Float, Device::Cpu));
        let learner = TorchLearner::new(config.clone(), layout.clone(), flat, device(), learning, temperature, 1, 0);
        learner.err().map(|e| e.to_string())
    };
    let critic = Learning { value_coef: 0.1, ..Learning::default() };
    assert!(new(critic, 1.0, layout.total).unwrap().starts_with("learn.value_coef = 0.1: the model has no value head"));
    assert!(new(Learning::default(), 0.0, layout.total).unwrap().starts_with("generate.temperature = 0: "));
    assert!(new(Learning::default(), 1.0, 7).unwrap().contains("[7] of Float"));
    assert_eq!(new(Learning::default(), 1.0, layout.total), None);
    let mut learner = learner(Family::Llama, &learning(PPO), 1.0);
    assert!(learner.begin(2, batch(1)).unwrap_err().message.contains("step 2 cannot begin at version 0, between steps"));
    learner.begin(1, batch(1)).unwrap();
    assert!(learner.begin(1, batch(1)).unwrap_err().message.contains("in the middle"));
}

/// Catches weights that are no numbers going to the generators, into a checkpoint and into the log as a good step, and a failed
/// step that takes its batch with it.
#[test]
fn a_diverged_step_is_a_fault_and_gives_its_batch_back() {
    let mut learner = learner(Family::Llama, &Learning { lr: 1e300, ..learning(Loss::default()) }, 1.0);
    learner.begin(1, batch(4)).unwrap();
    let fault = loop {
        match learner.work() {
            Ok(trained) => assert!(trained.is_none(), "a step was made of it"),
            Err(fault) => break fault,
        }
    };
    assert!(fault.message.starts_with("weights of step 1: not finite"), "{fault}");
    let back = learner.abandon();
    assert_eq!((back.len(), learner.abandon().len()), (4, 0));
    assert!(back.iter().all(|rollout| rollout.status == Status::Waiting));
}

/// What other devices do, on this one.
#[test]
fn it_learns_the_same_without_kernels() {
    ffi::plainly(|| {
        coefficients_back_propagate_to_autograds_gradient();
        micro_batches_of_any_size_give_the_same_gradient_and_metrics();
        what_the_generator_samples_is_on_policy();
        company_does_not_change_logp();
        the_same_batch_from_the_same_start_gives_the_same_bits();
    });
}
