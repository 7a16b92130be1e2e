//! Operations by their kernels beside the same by libtorch's own.

use super::*;
use std::collections::BTreeSet;

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Catches loops that are compiled without threads, and threads beside libtorch's own, which take turns with them at great cost.
#[test]
fn loops_are_shared_out_by_libtorchs_own_threads() {
    let expected = if env!("TIDEGATE_OPS_THREADS") == "one" { 1 } else { i64::from(tch::get_num_threads()) };
    assert_eq!(threads_of_a_loop(), expected);
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let files = maps.lines().filter_map(|line| line.split_whitespace().last());
    let libraries: BTreeSet<_> = files.filter(|file| file.contains("gomp") || file.contains("iomp")).collect();
    assert!(libraries.len() <= 1, "{libraries:?}");
}

/// By how much `got` is off, as a share of `right`.
fn off(got: &Tensor, right: &Tensor) -> f64 {
    let (got, right) = (got.to_kind(Kind::Float), right.to_kind(Kind::Float));
    (&got - &right).norm().double_value(&[]) / right.norm().double_value(&[]).max(1e-12)
}

/// What the head says of `ids`, and the gradients of the hidden states and of the head where those of log-probability and entropy
/// are `coefficients`.
fn with_gradients(hidden: &Tensor, weight: &Weight, ids: &Tensor, coefficients: [f64; 2]) -> [Tensor; 3] {
    let dw = weight.gradient.as_ref().unwrap();
    let _ = dw.shallow_clone().zero_();
    let hidden = hidden.detach().set_requires_grad(true);
    let said = head(&hidden, weight, ids, 0.8).unwrap();
    (&said * Tensor::from_slice(&coefficients.map(|c| c as f32))).sum(Kind::Float).backward();
    [said.detach(), hidden.grad(), dw.copy()]
}

/// Catches logits that are made again otherwise than they were, blocks of a large vocabulary that are left out, and sums that are
/// rounded on the way: of two pieces of rows, and a vocabulary of many blocks.
#[test]
fn the_head_of_a_large_vocabulary_is_that_of_libtorchs_own_operations() {
    tch::manual_seed(7);
    let (n, d, v) = (300, 16, 70_001);
    for (kind, tolerance) in [(Kind::Float, 1e-4), (Kind::BFloat16, 1e-2)] {
        let hidden = Tensor::randn([n, d], F32).to_kind(kind);
        let value = (Tensor::randn([v, d], F32) * 0.7).to_kind(kind);
        let weight = Weight { value, gradient: Some(Tensor::zeros([v, d], F32)) };
        let ids = Tensor::randint(v, [n], (Kind::Int64, Device::Cpu));
        let run = || with_gradients(&hidden, &weight, &ids, [1.0, 0.3]);
        let (right, got) = (plainly(run), run());
        let without = without_small_products(run);
        for (got, right) in got.iter().chain(&without).zip(right.iter().chain(&right)) {
            assert!(off(got, right) < tolerance, "{kind:?}: {}", off(got, right));
        }
    }
}

/// Catches the gradient of a token that is nearly certain being the difference of two rounded numbers.
#[test]
fn a_nearly_certain_token_has_its_small_gradient_in_bf16() {
    // One hidden state of 1, and a head of one column: logits are its rows.
    let logits = Tensor::from_slice(&[7.5f32, 0.0, -0.5, 0.25]).view([4, 1]);
    let gradient = |kind: Kind| {
        let weight = Weight { value: logits.to_kind(kind), gradient: Some(Tensor::zeros([4, 1], F32)) };
        let hidden = Tensor::ones([1, 1], F32).to_kind(kind);
        let hidden = hidden.set_requires_grad(true);
        let said = head(&hidden, &weight, &Tensor::from_slice(&[0i64]), 1.0).unwrap();
        said.select(1, 0).sum(Kind::Float).backward();
        weight.gradient.unwrap().double_value(&[0, 0])
    };
    // 1 - p of the chosen one.
    let others: f64 = [-7.5f64, -8.0, -7.25].iter().map(|x| x.exp()).sum();
    let right = others / (1.0 + others);
    for kind in [Kind::Float, Kind::BFloat16] {
        assert!((gradient(kind) / right - 1.0).abs() < 4e-3, "{kind:?}: {} {right}", gradient(kind));
    }
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let weight = Weight { value: Tensor::ones([3, 2], F32), gradient: None };
    for id in [-1i64, 3] {
        let error = head(&Tensor::ones([1, 2], F32), &weight, &Tensor::from_slice(&[id]), 1.0).unwrap_err();
        assert!(error.to_string().contains("an id outside the vocabulary of 3"), "{error}");
    }
}

/// Catches an id without a probability that rounding lets through at the end, and blocks of a large vocabulary out of order.
#[test]
fn a_draw_from_a_large_vocabulary_has_a_probability() {
    tch::manual_seed(8);
    let logits = Tensor::randn([1, 3000], F32) * 3.0;
    let _ = logits.narrow(1, 1000, 2000).fill_(-1e9);
    let largest = 1.0 - f64::EPSILON / 2.0;
    let mut draws: Vec<f64> = (0..2000).map(|i| f64::from(i) / 2000.0).collect();
    draws.extend([largest, 1.0 - 1e-12, 1.0 - 1e-9]);
    let rows = logits.expand([draws.len() as i64, 3000], false).contiguous();
    let chosen = choose(&rows, &draws, 1.0).unwrap();
    assert!(chosen.iter().all(|&(id, logp)| id < 1000 && logp > -60.0), "{:?}", chosen.iter().max_by_key(|(id, _)| *id));
    let right = plainly(|| choose(&rows, &draws[..2000], 1.0)).err();
    assert!(right.is_some(), "rows and draws are as many");
    let right = plainly(|| choose(&rows.narrow(0, 0, 2000), &draws[..2000], 1.0)).unwrap();
    let same = chosen.iter().zip(&right).filter(|(a, b)| a.0 == b.0).count();
    // A draw on the border of two ids may go either way.
    assert!(same >= 1998, "{same} of 2000");
}

/// Catches a gradient that is rounded before it is added, rows that are left out, and a tail that is read past its end.
#[test]
fn gradients_of_bf16_weights_are_added_up_in_float() {
    tch::manual_seed(9);
    for (m, n, k) in [(1, 1, 2), (3, 16, 8), (255, 65, 130), (256, 64, 64), (513, 200, 18)] {
        let (dy, x) =
            (Tensor::randn([m, n], F32).to_kind(Kind::BFloat16), Tensor::randn([m, k], F32).to_kind(Kind::BFloat16));
        let weight = Weight {
            value: Tensor::randn([n, k], F32).to_kind(Kind::BFloat16).set_requires_grad(true),
            gradient: Some(Tensor::ones([n, k], F32)),
        };
        let x = x.set_requires_grad(true);
        (linear(&x, &weight, None).unwrap() * &dy).sum(Kind::Float).backward();
        let right = dy.to_kind(Kind::Float).tr().matmul(&x.detach().to_kind(Kind::Float)) + 1.0;
        let off = off(weight.gradient.as_ref().unwrap(), &right);
        assert!(off < 1e-6, "{m} {n} {k}: {off}");
    }
}

/// Catches sums whose order depends on who computes them: what rows say is the same under one thread and two.
#[test]
fn rows_are_the_same_whatever_the_threads() {
    tch::manual_seed(10);
    let (x, w) = (Tensor::randn([70, 64], F32), Tensor::randn([3001, 64], F32));
    let blocks = Blocks::of(&w, Kind::BFloat16).unwrap();
    let draws: Vec<f64> = (0..70).map(|i| f64::from(i) / 70.0).collect();
    let run = |threads: i32| {
        tch::set_num_threads(threads);
        let logits = match &blocks {
            Some(blocks) => blocks.linear_in_float(&x.to_kind(Kind::BFloat16)).unwrap(),
            None => x.matmul(&w.tr()),
        };
        choose(&logits, &draws, 1.0).unwrap()
    };
    let before = tch::get_num_threads();
    let (one, two) = (run(1), run(2));
    tch::set_num_threads(before);
    assert_eq!(one, two);
}
