//! Tests of the generator, over small random models.

use super::*;
use crate::engine::torch::checkpoint::{init, tests::spread};
use crate::engine::torch::config::{Family, tests::tiny};
use crate::engine::torch::device::tests::device;
use crate::engine::torch::ffi::Places;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::trees::tests::sequences;
use std::collections::BTreeMap;
use tch::Kind;
use tidegate_operators::record::Prompt;

/// A token is a letter; from 26 on, two letters.
fn letters(ids: &[u32]) -> String {
    let letter = |id: u32| char::from(b'a' + (id % 26) as u8);
    ids.iter().flat_map(|&id| std::iter::repeat_n(letter(id), if id < 26 { 1 } else { 2 })).collect()
}

fn sampling(slots: usize, max_tokens: usize) -> Sampling {
    Sampling { slots, max_tokens, ..Sampling::default() }
}

fn settings(sampling: Sampling) -> Settings {
    let (eos, decode) = (Vec::new(), Box::new(letters));
    Settings { device: device(), sampling, seed: 11, eos, decode, max_len: 32, worker: 5 }
}

fn weights(layout: &Layout, seed: u64) -> Snapshot {
    Snapshot::copy_of(&spread(layout, seed).to_device(device())).unwrap()
}

/// A generator of a tiny model with random weights of version 0.
fn generator_of(family: Family, settings: Settings) -> TorchGenerator {
    let config = tiny(family);
    let layout = Layout::of(&config, ValueHead::Present);
    let mut generator = TorchGenerator::new(config, layout.clone(), settings).unwrap();
    generator.load(0, weights(&layout, 1)).unwrap();
    generator
}

fn generator(settings: Settings) -> TorchGenerator {
    generator_of(Family::Qwen2, settings)
}

fn group(number: u64, size: u32, tokens: &[u32]) -> Arc<Group> {
    let prompt = Prompt { tokens: tokens.to_vec(), ..Prompt::default() };
    Arc::new(Group { number, size, prompt, ..Group::default() })
}

/// Runs to the end; rollouts by group and sample.
fn all(generator: &mut TorchGenerator) -> BTreeMap<(u64, u32), Rollout> {
    let mut done = BTreeMap::new();
    while generator.running() > 0 {
        for rollout in generator.step().unwrap() {
            assert!(done.insert((rollout.group.number, rollout.sample), rollout).is_none(), "a rollout came twice");
        }
    }
    done
}

fn only(settings: Settings, group: Arc<Group>) -> Rollout {
    let mut generator = generator(settings);
    generator.start(group).unwrap();
    let mut done = all(&mut generator);
    assert_eq!(done.len(), 1);
    done.pop_first().unwrap().1
}

fn assert_close(ours: &[f32], right: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), right.len());
    let near = ours.iter().zip(right).all(|(a, b)| (a - b).abs() < tolerance);
    assert!(near, "{ours:?} is not {right:?}");
}

#[test]
fn recorded_numbers_are_those_of_a_full_forward_at_the_temperature() {
    for family in [Family::Llama, Family::Qwen2] {
        let mut generator = generator_of(family, settings(Sampling { temperature: 0.7, ..sampling(3, 9) }));
        generator.start(group(0, 4, &[4, 8, 15])).unwrap();
        generator.start(group(1, 2, &[16])).unwrap();
        let done = all(&mut generator);
        assert_eq!(done.len(), 6);
        let layout = Layout::of(&tiny(family), ValueHead::Present);
        let model = Model::new(&tiny(family), &layout, weights(&layout, 1).flat(), Form::Views).unwrap();
        for rollout in done.values() {
            let prompt = &rollout.group.prompt.tokens;
            let ids: Vec<u32> = prompt.iter().chain(&rollout.tokens).copied().collect();
            let hidden = model.hidden(&sequences(&[&ids], device())).unwrap();
            let logps = (model.logits(&hidden).unwrap() / 0.7).log_softmax(-1, Kind::Float);
            let values = model.value(&hidden).unwrap().unwrap();
            for (t, &token) in rollout.tokens.iter().enumerate() {
                let at = (prompt.len() - 1 + t) as i64;
                assert_close(&[rollout.logp_behavior[t]], &[logps.double_value(&[at, i64::from(token)]) as f32], 1e-4);
                assert_close(&[rollout.value[t]], &[values.double_value(&[at]) as f32], 1e-4);
            }
            assert_eq!(rollout.text, letters(&rollout.tokens));
            assert_eq!((rollout.version.as_slice(), rollout.mask.as_slice()), ([0; 9].as_slice(), [true; 9].as_slice()));
            assert_eq!((rollout.stop, rollout.worker, &rollout.status), (Stop::Length, 5, &Status::Waiting));
            assert!(rollout.started_ns > 0 && rollout.finished_ns >= rollout.started_ns);
        }
        assert_ne!(done[&(0, 0)].tokens, done[&(0, 1)].tokens, "samples of a group draw for themselves");
    }
}

#[test]
fn a_rollout_does_not_depend_on_its_company() {
    let mut alone = generator(settings(sampling(8, 12)));
    alone.start(group(3, 5, &[1, 2, 3])).unwrap();
    let alone = all(&mut alone);
    // Two slots, others before, between and after: the samples enter at different times, into other slots.
    let mut crowded = generator(settings(sampling(2, 12)));
    crowded.start(group(1, 1, &[9, 9, 9, 9, 9, 9, 9])).unwrap();
    crowded.step().unwrap();
    crowded.start(group(3, 5, &[1, 2, 3])).unwrap();
    crowded.start(group(4, 3, &[7])).unwrap();
    assert_eq!(crowded.running(), 9);
    let crowded = all(&mut crowded);
    assert_eq!((alone.len(), crowded.len()), (5, 9));
    for (key, rollout) in &alone {
        assert_eq!(rollout.tokens, crowded[key].tokens);
        assert_close(&rollout.logp_behavior, &crowded[key].logp_behavior, 1e-5);
    }
}

#[test]
fn sequences_stay_in_their_slots_and_the_lowest_free_one_is_next() {
    let mut generator = generator(settings(sampling(3, 4)));
    let numbers = |generator: &TorchGenerator| -> Vec<Option<u64>> {
        generator.slots.iter().map(|slot| slot.as_ref().map(|sequence| sequence.rollout.group.number)).collect()
    };
    generator.start(group(0, 1, &[1])).unwrap();
    generator.step().unwrap();
    generator.start(group(1, 1, &[1, 2])).unwrap();
    generator.step().unwrap();
    generator.start(group(2, 1, &[1, 2, 3])).unwrap();
    generator.step().unwrap();
    assert_eq!(numbers(&generator), [Some(0), Some(1), Some(2)]);
    assert_eq!(generator.step().unwrap()[0].group.number, 0);
    assert_eq!(numbers(&generator), [None, Some(1), Some(2)]);
    generator.step().unwrap();
    assert_eq!(numbers(&generator), [None, None, Some(2)]);
    generator.start(group(3, 2, &[1])).unwrap();
    generator.step().unwrap();
    assert_eq!(numbers(&generator), [Some(3), Some(3), None]);
}

#[test]
fn new_weights_take_over_between_two_tokens_and_old_keys_stay() {
    let _guard = tch::no_grad_guard();
    let config = tiny(Family::Qwen2);
    let layout = Layout::of(&config, ValueHead::Present);
    let (old, new) = (weights(&layout, 1), weights(&layout, 2));
    let prompt = [3u32, 1, 4, 1, 5];
    let mut generator = generator(settings(sampling(2, 6)));
    generator.start(group(0, 1, &prompt)).unwrap();
    for _ in 0..3 {
        assert!(generator.step().unwrap().is_empty());
    }
    generator.load(7, new.clone()).unwrap();
    let rollout = all(&mut generator).pop_first().unwrap().1;
    assert_eq!(rollout.version, [0, 0, 0, 7, 7, 7]);

    // By hand: the old model's keys for the prompt and the tokens it took in, the new one's from there.
    let model = |snapshot: &Snapshot| Model::new(&config, &layout, snapshot.flat(), Form::Views).unwrap();
    let (old, new) = (model(&old), model(&new));
    let ids: Vec<i64> = prompt.iter().chain(&rollout.tokens).map(|&id| i64::from(id)).collect();
    let cache = Cache::new(&config, 1, 16, Kind::Float, device()).unwrap();
    let step = |model: &Model, from: usize, to: usize| {
        let positions: Vec<i64> = (from as i64..to as i64).collect();
        let places = Places::new(&vec![0i64; to - from], &positions).unwrap();
        model.decode_step(&Tensor::from_slice(&ids[from..to]).to_device(device()), &places, &cache).unwrap()
    };
    let _ = step(&old, 0, 4);
    let mut by_hand = Vec::new();
    for t in 0..6usize {
        let model = if t < 3 { &old } else { &new };
        let hidden = step(model, 4 + t, 5 + t);
        let logps = model.logits(&hidden).unwrap().log_softmax(-1, Kind::Float);
        by_hand.push(logps.double_value(&[0, ids[5 + t]]) as f32);
    }
    assert_close(&rollout.logp_behavior, &by_hand, 1e-5);
    // The new model over its own keys says something else: the stale ones were really used.
    let all: Vec<u32> = prompt.iter().chain(&rollout.tokens).copied().collect();
    let hidden = new.hidden(&sequences(&[&all], device())).unwrap();
    let fresh = new.logits(&hidden).unwrap().log_softmax(-1, Kind::Float).double_value(&[9, ids[10]]);
    assert!((fresh as f32 - by_hand[5]).abs() > 1e-3);
}

/// Catches keys of other weights that stay, a token that is sampled before its sequence is in again, a prompt that is shared as the weights
/// before made it, and tokens that are lost or doubled on the way.
#[test]
fn what_is_recomputed_is_as_by_the_new_weights_alone() {
    let _guard = tch::no_grad_guard();
    let config = tiny(Family::Qwen2);
    let layout = Layout::of(&config, ValueHead::Present);
    let (old, new) = (weights(&layout, 1), weights(&layout, 2));
    let sampling = Sampling { kv_after_update: KvAfterUpdate::Recompute, ..sampling(2, 6) };
    let mut generator = generator(settings(sampling));
    // Of three samples two run, and the last one enters when one of them has left.
    generator.start(group(0, 3, &[3, 1, 4, 1, 5])).unwrap();
    for _ in 0..4 {
        assert!(generator.step().unwrap().is_empty());
    }
    generator.load(7, new.clone()).unwrap();
    let done = all(&mut generator);
    let model = |snapshot: &Snapshot| Model::new(&config, &layout, snapshot.flat(), Form::Views).unwrap();
    for ((_, sample), rollout) in &done {
        let from_new = rollout.version.iter().position(|version| *version == 7).unwrap();
        assert!(if *sample == 2 { from_new == 0 } else { from_new > 0 }, "{:?}", rollout.version);
        let ids: Vec<u32> = rollout.group.prompt.tokens.iter().chain(&rollout.tokens).copied().collect();
        for (snapshot, tokens) in [(&old, 0..from_new), (&new, from_new..6)] {
            let model = model(snapshot);
            let logps = model.logits(&model.hidden(&sequences(&[&ids], device())).unwrap()).unwrap();
            let logps = logps.log_softmax(-1, Kind::Float);
            for t in tokens {
                let right = logps.double_value(&[4 + t as i64, i64::from(ids[5 + t])]) as f32;
                assert_close(&[rollout.logp_behavior[t]], &[right], 1e-5);
            }
        }
    }
}

#[test]
fn a_sample_that_enters_late_is_sampled_by_the_newest_weights_from_its_first_token() {
    let layout = Layout::of(&tiny(Family::Qwen2), ValueHead::Present);
    let mut generator = generator(settings(sampling(1, 2)));
    generator.start(group(0, 2, &[3, 1, 4])).unwrap();
    generator.step().unwrap();
    generator.load(1, weights(&layout, 2)).unwrap();
    let done = all(&mut generator);
    assert_eq!((&done[&(0, 0)].version, &done[&(0, 1)].version), (&vec![0, 1], &vec![1, 1]));
}

#[test]
fn frequencies_are_the_recorded_probabilities() {
    for (temperature, top_k, top_p) in [(1.0, 0, 1.0), (1.5, 6, 1.0), (0.8, 0, 0.9)] {
        let mut generator = generator(settings(Sampling { temperature, top_k, top_p, ..sampling(500, 1) }));
        generator.start(group(0, 2000, &[5, 6])).unwrap();
        let mut seen: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        for rollout in all(&mut generator).values() {
            let entry = seen.entry(rollout.tokens[0]).or_insert((0.0, f64::from(rollout.logp_behavior[0]).exp()));
            entry.0 += 1.0 / 2000.0;
        }
        let total: f64 = seen.values().map(|(_, probability)| probability).sum();
        assert!((0.98..1.000_01).contains(&total), "what was never seen is rare: {total}");
        if top_k > 0 {
            assert!(seen.len() <= top_k && total > 0.999_99);
        }
        for (frequency, probability) in seen.values() {
            let deviation = (probability * (1.0 - probability) / 2000.0).sqrt();
            assert!((frequency - probability).abs() < 4.5 * deviation + 1e-3, "{frequency} {probability}");
        }
    }
}

#[test]
fn greedy_repeats_and_keeps_the_logp_at_temperature_1() {
    let greedy = || settings(Sampling { temperature: 0.0, ..sampling(4, 5) });
    let first = only(greedy(), group(0, 1, &[5, 6]));
    let other = only(Settings { seed: 99, ..greedy() }, group(8, 1, &[5, 6]));
    assert_eq!(first.tokens, other.tokens);
    let plain = only(settings(sampling(1, 1)), group(0, 1, &[5, 6]));
    // Every token's log-probability under one distribution: the likeliest has the largest.
    assert!(first.logp_behavior[0] >= plain.logp_behavior[0] && first.logp_behavior[0] < 0.0);
}

#[test]
fn an_end_token_ends_a_rollout_and_is_its_last() {
    let free = only(settings(sampling(1, 8)), group(0, 1, &[5, 6]));
    assert_eq!((free.stop, free.tokens.len()), (Stop::Length, 8));
    // As the first token, and later, among several ends.
    for at in [0, 3] {
        let end = free.tokens[at];
        let length = free.tokens.iter().position(|&id| id == end).unwrap() + 1;
        let rollout = only(Settings { eos: vec![49, end], ..settings(sampling(1, 8)) }, group(0, 1, &[5, 6]));
        assert_eq!((rollout.stop, rollout.tokens.as_slice()), (Stop::Eos, &free.tokens[..length]));
        assert_eq!(rollout.mask, vec![true; length]);
        assert_eq!(rollout.text, letters(&free.tokens[..length - 1]));
    }
    // At the limit too it is the end token that ended it.
    let rollout = only(Settings { eos: vec![free.tokens[0]], ..settings(sampling(1, 1)) }, group(0, 1, &[5, 6]));
    assert_eq!(rollout.stop, Stop::Eos);
    // Ignored, it is a token like any other.
    let sampling = Sampling { ignore_eos: true, ..sampling(1, 8) };
    let rollout = only(Settings { eos: vec![free.tokens[0]], ..settings(sampling) }, group(0, 1, &[5, 6]));
    assert_eq!((rollout.stop, rollout.tokens), (Stop::Length, free.tokens));
}

#[test]
fn a_stop_string_may_span_tokens_and_stays_in_the_text() {
    let free = only(settings(sampling(1, 28)), group(0, 1, &[5, 6]));
    let text = |n: usize| letters(&free.tokens[..n]);
    // The last letter of the 19th token and the first of the 20th: far from the start, so the window has moved.
    let (before, whole) = (text(19), text(20));
    let stop = &whole[before.len() - 1..=before.len()];
    let length = (1..=28).find(|&n| text(n).contains(stop)).unwrap();
    let with = |stop: &str| Sampling { stop: vec!["#".to_owned(), stop.to_owned()], ..sampling(1, 28) };
    let rollout = only(settings(with(stop)), group(0, 1, &[5, 6]));
    assert_eq!((rollout.stop, rollout.tokens.as_slice()), (Stop::StopString, &free.tokens[..length]));
    assert!(rollout.text.contains(stop));
    assert_eq!(rollout.mask, vec![true; length]);
    // Ten letters at once end where they end.
    let stop = &whole[whole.len() - 10..];
    let rollout = only(settings(with(stop)), group(0, 1, &[5, 6]));
    assert_eq!((rollout.stop, rollout.text), (Stop::StopString, text(20)));
}

#[test]
fn only_the_last_tokens_are_decoded_for_stop_strings() {
    let longest = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = longest.clone();
    let decode = move |ids: &[u32]| {
        seen.fetch_max(ids.len(), std::sync::atomic::Ordering::Relaxed);
        String::new()
    };
    let sampling = Sampling { stop: vec!["##".to_owned()], ..sampling(1, 28) };
    let mut generator = generator(Settings { decode: Box::new(decode), ..settings(sampling) });
    generator.start(group(0, 1, &[5])).unwrap();
    (0..27).for_each(|_| assert!(generator.step().unwrap().is_empty()));
    assert_eq!(longest.load(std::sync::atomic::Ordering::Relaxed), 10);
}

/// Hard case 11: ids are kept as sampled, whatever they are as text.
#[test]
fn text_that_ends_inside_a_character_keeps_its_ids() {
    let emoji = "\u{1F30A}\0".as_bytes();
    let decode = |ids: &[u32]| {
        let bytes: Vec<u8> = ids.iter().enumerate().map(|(i, _)| emoji[i % 5]).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let rollout = only(Settings { decode: Box::new(decode), ..settings(sampling(1, 7)) }, group(0, 1, &[5, 6]));
    assert_eq!((rollout.tokens.len(), rollout.text.as_str()), (7, "\u{1F30A}\0\u{FFFD}"));
}

#[test]
fn limits_cut_and_may_mask() {
    let rollout = only(settings(sampling(1, 3)), group(0, 1, &[5, 6]));
    assert_eq!((rollout.stop, rollout.tokens.len(), rollout.mask), (Stop::Length, 3, vec![true; 3]));
    let rollout = only(settings(Sampling { mask_truncated: true, ..sampling(1, 3) }), group(0, 1, &[5, 6]));
    assert_eq!((rollout.stop, rollout.mask), (Stop::Length, vec![false; 3]));
    // The model's longest sequence, 32: the last position that a token may have is used.
    for prompt in [1, 29, 31] {
        let rollout = only(settings(sampling(1, 100)), group(0, 1, &vec![5; prompt]));
        assert_eq!((rollout.stop, rollout.tokens.len()), (Stop::Length, 32 - prompt));
    }
    // A prompt's own limit counts where it is the lower one.
    for (own, tokens) in [(2, 2), (9, 3)] {
        let mut group = group(0, 1, &[5, 6]);
        Arc::make_mut(&mut group).prompt.max_tokens = Some(own);
        let rollout = only(settings(sampling(1, 3)), group);
        assert_eq!((rollout.stop, rollout.tokens.len()), (Stop::Length, tokens));
    }
    let hurried = Sampling { time_limit_s: 1e-9, mask_truncated: true, ..sampling(1, 9) };
    let rollout = only(settings(hurried), group(0, 1, &[5, 6]));
    assert_eq!((rollout.stop, rollout.tokens.len(), rollout.mask), (Stop::Time, 1, vec![true]));
}

#[test]
fn prompts_that_cannot_be_sampled_are_refused_and_the_others_go_on() {
    let mut generator = generator(settings(sampling(2, 2)));
    generator.start(group(0, 2, &[])).unwrap();
    generator.start(group(1, 1, &[5; 32])).unwrap();
    generator.start(group(2, 1, &[5, 50])).unwrap();
    generator.start(group(3, 1, &[49])).unwrap();
    assert_eq!(generator.running(), 5);
    let first = generator.step().unwrap();
    assert_eq!((first.len(), generator.running()), (4, 1));
    let why: Vec<String> = first.iter().map(|rollout| rollout.status.to_string()).collect();
    let right = [
        "discarded: bad prompt: it is empty",
        "discarded: bad prompt: it is empty",
        "discarded: bad prompt: 32 tokens leave no room for an answer in 32",
        "discarded: bad prompt: token 50 is outside the vocabulary of 50",
    ];
    assert_eq!(why, right);
    assert!(first.iter().all(|rollout| rollout.stop == Stop::Refused && rollout.tokens.is_empty()));
    assert_eq!((first[0].sample, first[1].sample), (0, 1));
    assert_eq!(all(&mut generator)[&(3, 0)].tokens.len(), 2);
    assert!(generator.step().unwrap().is_empty());
}

#[test]
fn what_cannot_be_sampled_from_is_a_fault() {
    let config = tiny(Family::Qwen2);
    let layout = Layout::of(&config, ValueHead::None);
    let new = |settings| TorchGenerator::new(config.clone(), layout.clone(), settings);
    let mut generator = new(settings(sampling(2, 2))).unwrap();
    generator.start(group(4, 1, &[1])).unwrap();
    assert_eq!(generator.step().unwrap_err().to_string(), "generate: generator: no weights were loaded");
    let short = Snapshot::copy_of(&Tensor::zeros([8], (Kind::Float, Device::Cpu))).unwrap();
    assert!(generator.load(0, short).unwrap_err().message.starts_with("model: "));
    let broken = init(&layout, 0).unwrap() * f64::NAN;
    generator.load(3, Snapshot::copy_of(&broken).unwrap()).unwrap();
    let message = generator.step().unwrap_err().to_string();
    assert_eq!(message, "generate: group 4 sample 0: the logits under version 3 are not finite");
    for (wrong, message) in [
        (Settings { max_len: 65, ..settings(sampling(2, 2)) }, "max_len = 65: the model takes 2..=64 tokens"),
        (settings(sampling(0, 2)), "generate.slots = 0: it must be at least 1"),
        (settings(sampling(2, 0)), "generate.max_tokens = 0: it must be at least 1"),
    ] {
        let Err(error) = new(wrong) else { panic!("took it: {message}") };
        assert_eq!(error.to_string(), message);
    }
}

/// Catches a rollout that is lost or comes twice, keys in another's slot, slots that come back, and a generator that gives up
/// while there is something to halve. With one version of the weights, every rollout is the one of a generator with room.
#[test]
fn without_memory_it_goes_on_with_fewer_slots() {
    let long: Vec<u32> = (0..123).map(|i| 3 + i % 40).collect();
    let groups = || [group(0, 3, &long), group(1, 4, &[16, 23]), group(2, 2, &[42])];
    let longer = |slots| {
        let config = Config { max_position_embeddings: 300, ..tiny(Family::Qwen2) };
        let layout = Layout::of(&config, ValueHead::Present);
        let settings = Settings { max_len: 300, ..settings(sampling(slots, 12)) };
        let mut generator = TorchGenerator::new(config, layout.clone(), settings).unwrap();
        generator.load(0, weights(&layout, 1)).unwrap();
        generator
    };
    let (mut roomy, mut short) = (longer(6), longer(6));
    // Six slots have room for 128 positions, three for twice that, and nobody for more.
    short.cache.room = 3 * 256;
    for generator in [&mut roomy, &mut short] {
        groups().into_iter().for_each(|group| generator.start(group).unwrap());
        assert_eq!(generator.running(), 9);
    }
    let (all_of_it, with_less) = (all(&mut roomy), all(&mut short));
    assert_eq!((roomy.slots(), short.slots()), (6, 3));
    assert_eq!(with_less.len(), 9);
    assert!(all_of_it.values().all(|rollout| rollout.tokens.len() == 12), "the cache grows in the middle of the first ones");
    for (place, right) in &all_of_it {
        let found = &with_less[place];
        assert_eq!(found.tokens, right.tokens, "{place:?}");
        // Other slots beside it: the last bits may differ.
        assert_close(&found.logp_behavior, &right.logp_behavior, 1e-4);
    }
    let mut none = longer(2);
    none.cache.room = 100;
    none.start(group(0, 2, &long)).unwrap();
    let fault = (0..12).find_map(|_| none.step().err()).unwrap().to_string();
    assert!(fault.contains("can't allocate memory") && none.slots() == 1, "{fault}");
}

/// What other devices do, on this one.
#[test]
fn it_samples_the_same_without_kernels() {
    ffi::plainly(|| {
        recorded_numbers_are_those_of_a_full_forward_at_the_temperature();
        a_rollout_does_not_depend_on_its_company();
        new_weights_take_over_between_two_tokens_and_old_keys_stay();
        frequencies_are_the_recorded_probabilities();
        greedy_repeats_and_keeps_the_logp_at_temperature_1();
        without_memory_it_goes_on_with_fewer_slots();
        what_cannot_be_sampled_from_is_a_fault();
    });
}

/// Catches a device that draws in another order or computes another model: what is sampled on the CPU is sampled there too.
#[test]
fn a_rollout_of_the_cpu_is_sampled_again_elsewhere() {
    let sampled = |device: Device| {
        let mut generator = generator(Settings { device, ..settings(Sampling { temperature: 0.7, ..sampling(3, 9) }) });
        (0..4).for_each(|number| generator.start(group(number, 2, &[4, 8, 15, number as u32])).unwrap());
        all(&mut generator)
    };
    let right = sampled(Device::Cpu);
    for found in [sampled(device()), ffi::plainly(|| sampled(Device::Cpu))] {
        assert_eq!(found.len(), 8);
        for (place, rollout) in &right {
            assert_eq!(found[place].tokens, rollout.tokens, "{place:?}");
            assert_close(&found[place].logp_behavior, &rollout.logp_behavior, 1e-4);
            assert_close(&found[place].value, &rollout.value, 1e-4);
        }
    }
}
