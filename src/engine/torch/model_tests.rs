//! Tests of the forward passes, over small random models.

use super::*;
use crate::engine::torch::checkpoint::tests::spread;
use crate::engine::torch::config::{Family, tests::tiny};
use crate::engine::torch::device::tests::device;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::reference::forward;
use crate::engine::torch::trail::Trail;
use crate::engine::torch::trees::{Tree, rows_of, tests::sequences};

fn random(config: &Config, seed: u64, form: Form) -> Model {
    let layout = Layout::of(config, ValueHead::Present);
    Model::new(config, &layout, &there(spread(&layout, seed)), form).unwrap()
}

fn families() -> Vec<Config> {
    let mut biased = tiny(Family::Llama);
    (biased.attention_bias, biased.mlp_bias, biased.num_key_value_heads) = (true, true, 4);
    vec![tiny(Family::Llama), tiny(Family::Qwen2), tiny(Family::Qwen3), biased]
}

fn there(tensor: Tensor) -> Tensor {
    tensor.to_device(device())
}

fn far(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a.to_kind(Kind::Float) - b.to_kind(Kind::Float)).abs().max().double_value(&[])
}

fn places(slots: &[i64], positions: &[i64]) -> Places {
    Places::new(slots, positions).unwrap()
}

/// Catches a step that is not the full forward pass, whatever form the weights are in and however tokens are spread over steps.
#[test]
fn steps_over_the_cache_are_the_full_forward() {
    let _guard = tch::no_grad_guard();
    let packed = Form::Packed(Kind::Float);
    for (config, form) in families().into_iter().flat_map(|config| [(config.clone(), Form::Views), (config, packed)]) {
        let model = random(&config, 7, form);
        let tokens = [[3u32, 9, 27, 4, 40, 11], [1, 2, 49, 0, 5, 6]];
        let all = sequences(&[&tokens[0], &tokens[1]], device());
        let hidden = random(&config, 7, Form::Views).hidden(&all).unwrap();
        let full = model.logits(&hidden).unwrap();
        let values = model.value(&hidden).unwrap().unwrap();
        assert_eq!((full.size(), values.size()), (vec![12, 50], vec![12]));
        let mut cache = Cache::new(&config, 3, 16, Kind::Float, device()).unwrap();
        // Sequence, slot, and the tokens of each step: together, and beside the other's prompt.
        for step in [vec![(0usize, 2i64, 0..3usize)], vec![(0, 2, 3..4), (1, 0, 0..2)], vec![(0, 2, 4..5), (1, 0, 2..6)]] {
            let rows: Vec<(usize, i64, usize)> =
                step.into_iter().flat_map(|(of, slot, range)| range.map(move |t| (of, slot, t))).collect();
            let ids: Vec<i64> = rows.iter().map(|&(of, _, t)| i64::from(tokens[of][t])).collect();
            let (slots, positions): (Vec<i64>, Vec<i64>) = rows.iter().map(|&(_, slot, t)| (slot, t as i64)).unzip();
            cache.grow(6).unwrap();
            let hidden = model.decode_step(&there(Tensor::from_slice(&ids)), &places(&slots, &positions), &cache).unwrap();
            let (logits, value) = (model.logits(&hidden).unwrap(), model.value(&hidden).unwrap().unwrap());
            for (row, &(of, _, t)) in (0..).zip(&rows) {
                let at = (of * 6 + t) as i64;
                assert!(far(&logits.get(row), &full.get(at)) < 1e-4);
                assert!(far(&value.get(row), &values.get(at)) < 1e-4);
            }
        }
    }
}

/// Catches weights that stay behind when others are loaded.
#[test]
fn a_model_that_loads_again_is_a_new_one() {
    let _guard = tch::no_grad_guard();
    let form = Form::Packed(Kind::BFloat16);
    let tokens = there(Tensor::from_slice(&[3i64, 9, 27]));
    for config in families() {
        let layout = Layout::of(&config, ValueHead::Present);
        let said = |model: &Model| {
            let cache = Cache::new(&config, 1, 16, Kind::BFloat16, device()).unwrap();
            let hidden = model.decode_step(&tokens, &places(&[0; 3], &[0, 1, 2]), &cache).unwrap();
            (model.logits(&hidden).unwrap(), model.value(&hidden).unwrap().unwrap())
        };
        let (mut model, other) = (random(&config, 1, form), random(&config, 2, form));
        assert!(far(&said(&model).0, &said(&other).0) > 0.1);
        model.reload(&layout, &there(spread(&layout, 2)), form).unwrap();
        let (ours, right) = (said(&model), said(&other));
        assert!(ours.0.equal(&right.0) && ours.1.equal(&right.1));
    }
}

/// bf16 has 8 bits: what it says is near what f32 says, and logits are f32, not rounded.
#[test]
fn bf16_is_near() {
    let _guard = tch::no_grad_guard();
    for config in families() {
        let cache = |kind| Cache::new(&config, 1, 16, kind, device()).unwrap();
        let (tokens, places) = (there(Tensor::from_slice(&[3i64, 9, 27, 4])), places(&[0; 4], &[0, 1, 2, 3]));
        let logits = |kind: Kind| {
            let model = random(&config, 7, Form::Packed(kind));
            model.logits(&model.decode_step(&tokens, &places, &cache(kind)).unwrap()).unwrap()
        };
        let (full, half) = (logits(Kind::Float), logits(Kind::BFloat16));
        let largest = full.abs().max().double_value(&[]);
        assert!(far(&full, &half) < 0.05 * largest, "{} of {largest}", far(&full, &half));
        assert!(far(&half, &half.to_kind(Kind::BFloat16)) > 0.0);
    }
}

/// Catches a branch that sees another, that does not see its trunk, or that stands elsewhere than in its sequence; and gradients of a trunk
/// that miss those of a branch. Over tiles of attention: trunks and branches that are shorter than one, fill it, and go over it.
#[test]
fn a_tree_is_its_sequences() {
    let ids = |n: usize, salt: usize| -> Vec<u32> { (0..n).map(|i| ((i * 7 + salt * 13) % 50) as u32).collect() };
    for mut config in families() {
        config.max_position_embeddings = 300;
        let layout = Layout::of(&config, ValueHead::Present);
        let flat = there(spread(&layout, 3));
        for lengths in [vec![3, 2, 0, 4], vec![64, 64, 10], vec![70, 5, 130, 1, 61], vec![1, 90, 40]] {
            let all: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(salt, &n)| ids(n, salt)).collect();
            let (trunk, branches) = (all[0].as_slice(), all[1..].iter().map(Vec::as_slice).collect::<Vec<_>>());
            let whole: Vec<Vec<u32>> = branches.iter().map(|branch| [trunk, branch].concat()).collect();
            let whole: Vec<&[u32]> = whole.iter().map(Vec::as_slice).collect();
            // The logits of each branch's rows, from the end of the trunk on, and what all of them give together.
            let run = |trees: &Trees, rows: &[i64]| {
                let chosen: Vec<i64> = (0..rows.len() as i64).map(|i| i * 11 % 50).collect();
                let gradient = Tensor::zeros_like(&flat);
                let model = Model::new(&config, &layout, &flat, Form::Learning(&gradient)).unwrap();
                let hidden = rows_of(&model.hidden(trees).unwrap(), &there(Tensor::from_slice(rows))).unwrap();
                let said = model.log_probabilities(&hidden, &there(Tensor::from_slice(&chosen)), 1.0).unwrap();
                let waves = Tensor::arange(said.numel() as i64, (Kind::Float, device())).cos().view_as(&said);
                (&said * waves).sum(Kind::Float).backward();
                (said.detach(), gradient)
            };
            let last = trunk.len() as i64 - 1;
            let (mut in_tree, mut in_whole, mut from, mut start) = (Vec::new(), Vec::new(), last + 1, 0);
            for branch in &branches {
                let n = branch.len() as i64;
                in_tree.extend(std::iter::once(last).chain(from..from + n));
                in_whole.extend(start + last..=start + last + n);
                (from, start) = (from + n, start + last + 1 + n);
            }
            let tree = Trees::new(&[Tree { trunk, branches: branches.clone() }], device()).unwrap();
            let (ours, right) = (run(&tree, &in_tree), run(&sequences(&whole, device()), &in_whole));
            assert!(far(&ours.0, &right.0) < 1e-5, "{lengths:?}: {}", far(&ours.0, &right.0));
            let largest = right.1.abs().max().double_value(&[]);
            assert!(far(&ours.1, &right.1) < 1e-5 * largest, "{lengths:?}: {} of {largest}", far(&ours.1, &right.1));
        }
    }
}

const IDS: [i64; 8] = [2, 3, 4, 5, 8, 7, 6, 1];
const COEFFICIENTS: [[f32; 2]; 8] =
    [[1.0, 0.5], [-2.0, 0.3], [0.4, 0.0], [1.5, 1.0], [0.0, 2.0], [1.0, 0.0], [0.2, 0.1], [0.0, 0.0]];

/// What the head and the critic say of some ids, as one number; and its gradient.
fn gradient_of(config: &Config, flat: &Tensor, recomputed: bool) -> (f64, Tensor) {
    let layout = Layout::of(config, ValueHead::Present);
    let gradient = Tensor::zeros([layout.total], (Kind::Float, device()));
    let model = Model::new(config, &layout, flat, Form::Learning(&gradient)).unwrap();
    let trees = sequences(&[&[1, 2, 3, 4], &[9, 8, 7, 0]], device());
    let (hidden, trail) = if recomputed {
        let (hidden, trail) = Trail::walk(&model, &trees).unwrap();
        (hidden, Some(trail))
    } else {
        (model.hidden(&trees).unwrap(), None)
    };
    let ids = there(Tensor::from_slice(&IDS));
    let said = model.log_probabilities(&hidden, &ids, 0.7).unwrap();
    let coefficients = there(Tensor::from_slice2(&COEFFICIENTS));
    let value = model.value(&hidden).unwrap().unwrap();
    let loss = (said * coefficients).sum(Kind::Float) + value.square().sum(Kind::Float);
    loss.backward();
    if let Some(trail) = trail {
        trail.back(&model).unwrap();
    }
    (loss.double_value(&[]), gradient)
}

/// Catches a forward or backward pass that is not that of the plain one.
#[test]
fn logits_and_gradients_are_those_of_libtorchs_own_operations() {
    for config in families() {
        let layout = Layout::of(&config, ValueHead::Present);
        let flat = there(spread(&layout, 1)).set_requires_grad(true);
        let sequences = [[1i64, 2, 3, 4], [9, 8, 7, 0]];
        let (logits, values): (Vec<Tensor>, Vec<Option<Tensor>>) =
            sequences.iter().map(|ids| forward(&config, &layout, &flat, ids)).unzip();
        let logps = (Tensor::cat(&logits, 0) / 0.7).log_softmax(-1, Kind::Float);
        let ids = there(Tensor::from_slice(&IDS)).unsqueeze(1);
        let entropy = -(logps.exp() * &logps).sum_dim_intlist(-1, false, Kind::Float);
        let said = Tensor::stack(&[logps.gather(1, &ids, false).squeeze_dim(1), entropy], 1);
        let values: Vec<Tensor> = values.into_iter().flatten().collect();
        let loss = (said * there(Tensor::from_slice2(&COEFFICIENTS))).sum(Kind::Float)
            + Tensor::cat(&values, 0).square().sum(Kind::Float);
        loss.backward();
        let (ours, gradient) = gradient_of(&config, &flat.detach(), false);
        let right = loss.double_value(&[]);
        assert!((ours - right).abs() < 1e-4 * right.abs(), "{ours} is not {right}");
        let largest = gradient.abs().max().double_value(&[]);
        assert!(far(&gradient, &flat.grad()) < 1e-5 * largest, "{} of {largest}", far(&gradient, &flat.grad()));
    }
}

/// Catches a backward pass of ours that is not the derivative of the forward pass: along random directions, and along each tensor
/// alone.
#[test]
fn gradients_are_derivatives() {
    for config in families() {
        let layout = Layout::of(&config, ValueHead::Present);
        let flat = there(spread(&layout, 1));
        let (_, gradient) = gradient_of(&config, &flat, false);
        for (number, part) in layout.parts.iter().enumerate() {
            tch::manual_seed(number as i64);
            let direction = Tensor::zeros_like(&flat);
            let noise = Tensor::randn(part.shape.as_slice(), (Kind::Float, device()));
            part.view(&direction).unwrap().copy_(&noise);
            let along = (&gradient * &direction).sum(Kind::Double).double_value(&[]);
            let at = |step: f64| gradient_of(&config, &(&flat + &direction * step), false).0;
            let h = 2e-3;
            let right = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
            let size = (&gradient * &gradient).sum(Kind::Double).double_value(&[]).sqrt();
            assert!((along - right).abs() < 2e-2 * right.abs() + 2e-3 * size, "{}: {along} is not {right}", part.name);
        }
    }
}

/// Catches a layer that is computed from something else the second time.
#[test]
fn activation_checkpointing_changes_no_gradient() {
    for config in families() {
        let flat = there(spread(&Layout::of(&config, ValueHead::Present), 1));
        let (kept, recomputed) = (gradient_of(&config, &flat, false), gradient_of(&config, &flat, true));
        assert_eq!(kept.0, recomputed.0);
        assert!(far(&kept.1, &recomputed.1) < 1e-5, "{}", far(&kept.1, &recomputed.1));
    }
}

/// bf16 rounds what is computed, not what is added up.
#[test]
fn gradients_in_bf16_are_near() {
    for config in families() {
        let flat = there(spread(&Layout::of(&config, ValueHead::Present), 1));
        let (full, half) =
            (gradient_of(&config, &flat, false).1, gradient_of(&config, &flat.to_kind(Kind::BFloat16), false).1);
        let cosine = (&full * &half).sum(Kind::Double) / (full.norm() * half.norm());
        assert!(cosine.double_value(&[]) > 0.99, "{}", cosine.double_value(&[]));
        assert!(half.kind() == Kind::Float && far(&half, &half.to_kind(Kind::BFloat16)) > 0.0);
    }
}

#[test]
fn another_layout_and_long_sequences_are_refused() {
    let config = tiny(Family::Llama);
    let layout = Layout::of(&config, ValueHead::None);
    let short = Tensor::zeros([7], (Kind::Float, device()));
    let Err(error) = Model::new(&config, &layout, &short, Form::Views) else { panic!("took a short buffer") };
    assert_eq!(error.to_string(), format!("model: [7] weights for a layout of {}", layout.total));
    let error = random(&config, 0, Form::Views).hidden(&sequences(&[&[0; 65]], device())).unwrap_err();
    assert_eq!(error.to_string(), "model: a sequence of 65 tokens, the model's longest is 64");
}

/// What other devices do, on this one: catches types and shapes that only go together in the kernels.
#[test]
fn all_of_it_holds_without_kernels() {
    ffi::plainly(|| {
        steps_over_the_cache_are_the_full_forward();
        a_model_that_loads_again_is_a_new_one();
        bf16_is_near();
        a_tree_is_its_sequences();
        logits_and_gradients_are_those_of_libtorchs_own_operations();
        gradients_are_derivatives();
        activation_checkpointing_changes_no_gradient();
        gradients_in_bf16_are_near();
    });
}
