//! The parts that a step is made of besides libtorch's work, each alone: `cargo bench --bench parts`.
//!
//! Medians with their spread by criterion, which keeps them under `target/criterion` and says what has changed since the run before.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tidegate::engine::sampler::uniform;
use tidegate::engine::tokenizer::Tokenizer;
use tidegate::engine::torch::pack::{Sequence, plan};
use tidegate::kernel::advantage::{Advantage, group_advantages};
use tidegate::kernel::aggregation::{Aggregation, token_weights};
use tidegate::kernel::loss::{Loss, Tokens, policy_loss};
use tidegate_operators::plan::Order;
use tidegate_operators::select::{Choice, Selector};
use tidegate_operators::start::Start;

/// A batch: 128 groups of 8 rollouts of 200 tokens.
const GROUPS: usize = 128;
const SIZE: usize = 8;
const LENGTH: usize = 200;

/// Numbers in -1..1 that are anything but in order.
fn waves(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 12.9898).sin()).collect()
}

fn kernel(c: &mut Criterion) {
    let mut group = c.benchmark_group("kernel");
    let tokens = GROUPS * SIZE * LENGTH;
    group.throughput(Throughput::Elements(tokens as u64));
    let (current, advantage, lag, mask) = (waves(LENGTH), waves(LENGTH), vec![1; LENGTH], vec![true; LENGTH]);
    let behavior: Vec<f32> = current.iter().map(|x| x - 0.01).collect();
    let mut terms = Vec::new();
    group.bench_function("loss, a token", |b| {
        b.iter(|| {
            for _ in 0..GROUPS * SIZE {
                let tokens = Tokens {
                    logp_current: &current,
                    logp_behavior: &behavior,
                    advantage: &advantage,
                    lag: &lag,
                    mask: &mask,
                };
                policy_loss(black_box(Loss::default()), tokens, &mut terms);
            }
            black_box(terms.last().copied())
        });
    });
    let masks = vec![mask.as_slice(); GROUPS * SIZE];
    group.bench_function("weights of a batch, a token", |b| {
        b.iter(|| token_weights(black_box(Aggregation::TokenMean), &masks));
    });
    group.throughput(Throughput::Elements((GROUPS * SIZE) as u64));
    let rewards: Vec<Option<f32>> = waves(SIZE).into_iter().map(Some).collect();
    group.bench_function("advantages, a rollout", |b| {
        b.iter(|| (0..GROUPS).map(|_| group_advantages(black_box(Advantage::LeaveOneOut), &rewards).scored).sum::<usize>());
    });
    group.finish();
}

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    let prompts: Vec<Vec<u32>> = (0..GROUPS as u32).map(|g| (0..64).map(|i| g * 31 + i).collect()).collect();
    let sequences: Vec<Sequence> =
        (0..GROUPS * SIZE).map(|i| Sequence { prompt: &prompts[i / SIZE], branch: i * 7919 % LENGTH }).collect();
    group.throughput(Throughput::Elements(sequences.len() as u64));
    group.bench_function("micro-batches of a batch, a rollout", |b| b.iter(|| plan(black_box(&sequences), 8192).slots));
    group.throughput(Throughput::Elements(1024));
    group.bench_function("a draw", |b| b.iter(|| (0..1024).map(|t| uniform(black_box(7), 3, 5, t)).sum::<f64>()));
    let text = "12+345=".repeat(30);
    let Ok(tokenizer) = Tokenizer::load("data/model".as_ref()) else { panic!("data/model has a tokenizer") };
    let Ok(ids) = tokenizer.encode(&text) else { panic!("it knows digits") };
    group.throughput(Throughput::Elements(ids.len() as u64));
    group.bench_function("ids of a text, a token", |b| b.iter(|| tokenizer.encode(black_box(&text)).map(|ids| ids.len())));
    group.bench_function("text of ids, a token", |b| b.iter(|| tokenizer.decode(black_box(&ids)).len()));
    group.finish();
}

/// The selection of batches while ten thousand groups wait, of 80 dues.
fn selection(c: &mut Criterion) {
    const WAITING: u64 = 10_000;
    let mut group = c.benchmark_group("selection");
    for order in [Order::Arrival, Order::Admission] {
        let filled = || {
            let mut selector: Selector<u64> = Selector::new(Start::default(), 1000, GROUPS as u64, order);
            for number in 0..WAITING {
                let due = 1 + number / GROUPS as u64;
                let arrived = selector.arrive(due, (due - 1) * GROUPS as u64, number, number);
                assert!(arrived.is_ok(), "the bound holds");
            }
            selector
        };
        group.throughput(Throughput::Elements(GROUPS as u64));
        group.bench_function(format!("a step by {order:?}, a group").to_lowercase(), |b| {
            b.iter_batched(
                filled,
                |mut selector| match selector.choose() {
                    Choice::Step(groups) => (groups.len(), selector),
                    _ => panic!("a batch waits"),
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(parts, kernel, engine, selection);
criterion_main!(parts);
