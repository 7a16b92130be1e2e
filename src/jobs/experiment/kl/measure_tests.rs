//! Tests of a measurement: by hand with the toy's tables, and with keys and values on libtorch.

use super::*;
use crate::engine::contract::Engine;
use crate::engine::spec::{KvAfterUpdate, Learning, Sampling};
use crate::engine::tokenizer::SPECIAL;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::policy::Policy;
use crate::engine::toy::policy::{ToyWeights, log_softmax};
use crate::engine::toy::{ToyEngine, ToyGenerator};
use crate::tasks::generated::ALPHABET;
use std::path::Path;
use tidegate_operators::record::Prompt;

const LENGTH: usize = 12;

fn sampling(kv_after_update: KvAfterUpdate) -> Sampling {
    Sampling { slots: 1, max_tokens: LENGTH, ignore_eos: true, kv_after_update, ..Sampling::default() }
}

fn group(number: u64, tokens: &[u32]) -> Arc<Group> {
    let prompt = Prompt { tokens: tokens.to_vec(), ..Prompt::default() };
    Arc::new(Group { number, size: 1, prompt, ..Group::default() })
}

/// Tables of version `v`.
fn toy(v: u64) -> ToyEngine {
    ToyEngine::new(70 + v)
}

/// Versions 5, 6 and 7 may sample; the current one is 7.
fn policies(versions: u64) -> Policies<ToyEngine> {
    let first = toy(5);
    let weights = (5..5 + versions).map(|v| toy(v).snapshot().unwrap()).collect();
    let (sampling, learning) = (sampling(KvAfterUpdate::Keep), Learning::default());
    let generator = first.generator(&sampling, 9, 0).unwrap();
    let current = first.frozen(&toy(7), &learning, &sampling).unwrap();
    Policies::new(generator, current, 5, weights)
}

/// The same completion, sampled without being observed.
fn rollout(group: &Arc<Group>, ahead: impl Fn(usize) -> u64) -> Rollout {
    let mut generator = ToyGenerator::new(sampling(KvAfterUpdate::Keep), 9);
    generator.start(Arc::clone(group)).unwrap();
    for position in 0.. {
        generator.load(5 + ahead(position), toy(5 + ahead(position)).snapshot().unwrap()).unwrap();
        if let Some(rollout) = generator.step().unwrap().pop() {
            return rollout;
        }
    }
    unreachable!("it ends at its limit")
}

fn distribution(weights: &ToyWeights, rollout: &Rollout, t: usize) -> Vec<f32> {
    let context = weights.context(&rollout.group.prompt.tokens, &rollout.tokens[..t]);
    log_softmax(weights.row(context), 1.0)
}

/// Catches a current policy of another version, a swap that comes a token early or late, and a divergence the wrong way round.
#[test]
fn each_token_is_compared_by_hand() {
    let in_flight = |position: usize| position as u64 / 4;
    let conventional = |_: usize| 0;
    let mut policies = policies(3);
    for number in 0..3 {
        let group = group(number, &[1, 2, 3]);
        let ways: [&dyn Fn(usize) -> u64; 2] = [&in_flight, &conventional];
        for ahead in ways {
            let found = policies.tokens(&group, ahead).unwrap();
            let rollout = rollout(&group, ahead);
            let by_hand = |t: usize| {
                let drawn = distribution(&toy(5 + ahead(t)).snapshot().unwrap(), &rollout, t);
                exact(&drawn, &distribution(&toy(7).snapshot().unwrap(), &rollout, t))
            };
            assert_eq!(found, (0..LENGTH).map(by_hand).collect::<Vec<_>>());
            assert!(found[..8].iter().all(|kl| *kl > 1e-4), "{found:?}");
            let last_are_current = ahead(LENGTH - 1) == 2;
            assert_eq!(found[8..].iter().all(|kl| *kl == 0.0), last_are_current, "{found:?}");
        }
    }
}

/// On policy there is no divergence at all, whoever was sampled before.
#[test]
fn a_lag_of_0_is_0() {
    let mut policies = policies(3);
    policies.tokens(&group(0, &[1]), |_| 0).unwrap();
    assert_eq!(policies.tokens(&group(1, &[1]), |_| 2).unwrap(), [0.0; LENGTH]);
}

#[test]
fn weights_that_are_not_there_are_told() {
    let missing = policies(1).tokens(&group(0, &[1]), |position| u64::from(position > 3)).unwrap_err().to_string();
    assert_eq!(missing, "weights: none of version 6");
    let refused = policies(1).tokens(&group(0, &[]), |_| 0).unwrap();
    assert!(refused.is_empty(), "a prompt that cannot be answered has no tokens");
}

/// Means over completions of means over tokens, the error over completions; parts by the longest completion.
#[test]
fn completions_add_up() {
    let mut sums = Sums::new(16);
    assert_eq!(sums.divergence(), None);
    sums.add(&[], |_| 9);
    sums.add(&[1.0, 3.0, 8.0], |position| 4 - position as u64);
    sums.add(&[2.0], |_| 1);
    let found = sums.divergence().unwrap();
    // Means 4 and 2: their deviation is the root of 2, over the root of 2.
    assert_eq!((found.kl, found.sequences, found.tokens), (3.0, 2, 4));
    assert!((found.standard_error.unwrap() - 1.0).abs() < 1e-12);
    assert_eq!(found.lag_mean, 2.5);
    assert_eq!(found.kl_by_part[..3], [Some(2.0), Some(8.0), None]);
    assert_eq!(found.kl_by_part.len(), PARTS);
}

/// The bundled model, and random weights of its shape as what comes after it.
fn two_policies() -> (Policy, Policy) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/model");
    let load = || Policy::load(&folder, "cpu", ValueHead::None).unwrap();
    let (first, mut second) = (load(), load());
    let dir = tempfile::tempdir().unwrap();
    // As many characters as it has, whichever.
    let characters = usize::try_from(first.config.vocab_size).unwrap() - SPECIAL.len();
    let alphabet: String = ALPHABET.chars().take(characters).collect();
    Policy::create(dir.path(), &first.config, &alphabet, 3).unwrap();
    let random = Policy::load(dir.path(), "cpu", ValueHead::None).unwrap();
    Engine::set_weights(&mut second, &random.snapshot().unwrap());
    (first, second)
}

/// Catches keys of other weights in what is recomputed or on policy, and keys that are kept and are not the old ones: what is recomputed under
/// the current weights is the current policy, what is kept is not.
#[test]
fn recomputed_keys_are_the_current_policys_and_kept_ones_are_not() {
    Policy::set_threads(1);
    let (first, second) = two_policies();
    let prompt = first.tokenizer().encode("s:5172=").unwrap();
    let of = |kv_after_update: KvAfterUpdate, ahead: fn(usize) -> u64| {
        let sampling = sampling(kv_after_update);
        let generator = first.generator(&sampling, 4, 0).unwrap();
        let current = Engine::frozen(&first, &second, &Learning::default(), &sampling).unwrap();
        let weights = [&first, &second].map(|policy| policy.snapshot().unwrap()).to_vec();
        Policies::<Policy>::new(generator, current, 8, weights).tokens(&group(2, &prompt), ahead).unwrap()
    };
    let swaps = |position: usize| u64::from(position >= 5);
    let (keep, recompute) = (of(KvAfterUpdate::Keep, swaps), of(KvAfterUpdate::Recompute, swaps));
    assert_eq!((keep.len(), recompute.len()), (LENGTH, LENGTH));
    let same = keep[..5].iter().zip(&recompute).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(same && keep[..5].iter().all(|kl| *kl > 0.1), "{keep:?} {recompute:?}");
    assert!(recompute[5..].iter().all(|kl| kl.abs() < 1e-9), "{recompute:?}");
    assert!(keep[5..].iter().all(|kl| *kl > 1e-7), "{keep:?}");
    let on_policy = of(KvAfterUpdate::Keep, |_| 1);
    assert!(on_policy.iter().all(|kl| kl.abs() < 1e-9), "{on_policy:?}");
}
