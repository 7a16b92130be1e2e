//! What a reference says: as the learner at the same weights to the bit; and its file.

use super::*;
use crate::engine::spec::{Dtype, Learning};
use crate::engine::torch::checkpoint::{init, tests::spread};
use crate::engine::torch::config::{Family, tests::tiny};
use crate::engine::torch::device;
use crate::engine::torch::device::tests::device as here;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::learner::TorchLearner;
use crate::engine::torch::learner::tests::{PPO, batch, learner, learning, step};
use crate::engine::torch::policy::Policy;
use crate::kernel::reference::{KlEstimator, KlIn};

fn frozen(family: Family, learning: &Learning) -> TorchFrozen {
    let config = tiny(family);
    let layout = Layout::of(&config, ValueHead::Present);
    let flat = spread(&layout, 5);
    TorchFrozen::new(config, layout, &flat, here(), device::kind(learning.dtype), 0.7).unwrap()
}

/// The batch as the reference scores it.
fn scored(frozen: &mut TorchFrozen, learning: &Learning) -> Vec<Rollout> {
    let mut batch = batch(9);
    let which: Vec<usize> = (0..9).filter(|&i| batch[i].mask.contains(&true)).collect();
    let pieces = frozen.pieces(&batch, &which, learning.micro_batch_tokens).unwrap();
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.tokens <= 30 || piece.rollouts() == 1), "{pieces:?}");
    pieces.iter().for_each(|piece| frozen.score(&mut batch, piece).unwrap());
    batch
}

/// Without a reference.
fn off(dtype: Dtype) -> Learning {
    Learning { dtype, micro_batch_tokens: 30, ..learning(PPO) }
}

fn on(dtype: Dtype, kl_estimator: KlEstimator) -> Learning {
    let mut learning = off(dtype);
    (learning.reference.kl_coef, learning.reference.kl_estimator) = (0.5, kl_estimator);
    learning
}

/// Catches other micro-batches, another type or temperature, and rows that go to another rollout.
#[test]
fn at_the_learners_weights_it_says_what_the_learner_says() {
    for (family, dtype) in [(Family::Qwen2, Dtype::Fp32), (Family::Llama, Dtype::Bf16), (Family::Qwen3, Dtype::Fp32)] {
        let learning = on(dtype, KlEstimator::K1);
        let batch = scored(&mut frozen(family, &learning), &learning);
        let with = step(&mut learner(family, &learning, 0.7), batch.clone());
        assert!(with.batch.iter().any(|r| r.logp_current.len() > 3));
        for r in &with.batch {
            assert_eq!(r.logp_reference, r.logp_current, "{family:?} {dtype:?}");
        }
        let without = step(&mut learner(family, &off(dtype), 0.7), batch);
        assert_eq!(with.metrics.loss.to_bits(), without.metrics.loss.to_bits());
        assert_eq!(with.metrics.weights, without.metrics.weights, "the step without a reference");
        assert_eq!((with.metrics.kl_reference, with.metrics.kl_coef), (0.0, 0.5));
    }
}

/// Catches weights of a type that is not computed in, and ones that are not taken.
#[test]
fn other_weights_are_taken() {
    for dtype in [Dtype::Fp32, Dtype::Bf16] {
        let learning = on(dtype, KlEstimator::K1);
        let mut frozen = frozen(Family::Llama, &learning);
        let before = scored(&mut frozen, &learning);
        let layout = Layout::of(&tiny(Family::Llama), ValueHead::Present);
        let other = spread(&layout, 6);
        frozen.load(&Snapshot::of(other.shallow_clone())).unwrap();
        let after = scored(&mut frozen, &learning);
        assert_ne!(before[1].logp_reference, after[1].logp_reference);
        let config = tiny(Family::Llama);
        let mut learner = TorchLearner::new(config, layout, other, here(), learning, 0.7, 100, 0).unwrap();
        let trained = step(&mut learner, after);
        assert!(trained.batch.iter().all(|r| r.logp_reference == r.logp_current), "{dtype:?}");
    }
}

/// Catches a rollout that reaches libtorch with an id that has no row, or that the learner would be asked to train without a number.
#[test]
fn what_cannot_be_scored_is_refused() {
    let learning = on(Dtype::Fp32, KlEstimator::K1);
    let frozen = frozen(Family::Llama, &learning);
    let mut wrong = batch(2);
    wrong[1].tokens[0] = 1 << 20;
    let refused = frozen.pieces(&wrong, &[0, 1], 60).unwrap_err().to_string();
    assert!(refused.starts_with("group 1, sample 0: id 1048576, the vocabulary has "), "{refused}");
    frozen.pieces(&wrong, &[0], 60).unwrap();
    use tidegate_operators::train::Learner;
    let refused = learner(Family::Llama, &learning, 0.7).begin(1, batch(2)).unwrap_err().to_string();
    assert!(refused.contains("0 of logp_reference"), "{refused}");
    let mut broken = batch(2);
    broken.iter_mut().for_each(|r| r.logp_reference = vec![f32::NAN; r.tokens.len()]);
    let refused = learner(Family::Llama, &learning, 0.7).begin(1, broken).unwrap_err().to_string();
    assert!(refused.contains("logp_reference of token ") && refused.contains(" is NaN"), "{refused}");
}

/// In the reward the gradient is that of the advantages alone.
#[test]
fn in_the_reward_it_is_measured_and_not_in_the_loss() {
    let mut learning = on(Dtype::Fp32, KlEstimator::K3);
    learning.reference.kl_in = KlIn::Reward;
    let mut batch = batch(6);
    for r in &mut batch {
        r.logp_reference = r.logp_behavior.iter().map(|logp| logp - 1.0).collect();
    }
    let with = step(&mut learner(Family::Llama, &learning, 0.7), batch.clone());
    let without = step(&mut learner(Family::Llama, &off(Dtype::Fp32), 0.7), batch);
    assert_eq!(with.metrics.weights, without.metrics.weights);
    assert!(with.metrics.kl_reference > 0.0 && with.metrics.loss == without.metrics.loss);
}

/// Catches a file that does not come back bit for bit, that is of another model and is taken, or that is missed where there is none.
#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::of(&tiny(Family::Qwen2), ValueHead::Present);
    assert!(read(dir.path(), &layout).unwrap().is_none());
    let weights = Snapshot::of(init(&layout, 2).unwrap());
    write(dir.path(), &layout, &weights).unwrap();
    assert_eq!(read(dir.path(), &layout).unwrap().unwrap().flat(), weights.flat());
    let other = Layout::of(&tiny(Family::Llama), ValueHead::Present);
    let refused = read(dir.path(), &other).err().unwrap().to_string();
    assert!(refused.contains("reference.safetensors: tensor "), "{refused}");
    fs::write(dir.path().join(FILE), [7; 40]).unwrap();
    assert!(read(dir.path(), &layout).err().unwrap().to_string().contains("not safetensors"));
}

/// Catches ids that would mean something else, and weights that do not fit.
#[test]
fn another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let policy = |name: &str, family, alphabet, seed| {
        let folder = dir.path().join(name);
        Policy::create(&folder, &tiny(family), alphabet, seed).unwrap();
        Policy::load(&folder, "cpu", ValueHead::None).unwrap()
    };
    let mine = policy("mine", Family::Llama, "abc", 1);
    let frozen = |other: &Policy| mine.frozen(other, &Learning::default(), 1.0).map(|_| ()).map_err(|e| e.to_string());
    frozen(&policy("other-weights", Family::Llama, "abc", 2)).unwrap();
    for (other, says) in [
        (policy("letters", Family::Llama, "abd", 1), "letters: its tokenizer's hash is "),
        (policy("shape", Family::Qwen2, "abc", 1), "it must be of the policy's layout"),
    ] {
        let refused = frozen(&other).unwrap_err();
        assert!(refused.starts_with("learn.reference.path = ") && refused.contains(says), "{refused}");
    }
}
