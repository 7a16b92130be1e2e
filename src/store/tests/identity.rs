//! What is written comes back, whatever it is.

use super::{assert_viewed, info, run, small_step, write_small};
use crate::store::{LogReader, layout::LogFile, read_footer, read_step, steps, write_metrics};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::fs;
use std::sync::Arc;
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Stop};
use tidegate_operators::seal::Log;

#[test]
fn a_step_comes_back_whole() {
    let (_dir, path) = write_small();
    let file = read_step(&path).unwrap();
    assert_eq!(file.notes, Vec::<String>::new());
    assert_eq!(file.footer.info, info());
    assert_eq!(file.footer, read_footer(&path).unwrap());
    assert_eq!(file.rollouts[0].reward.map(f32::to_bits), Some((-0.0f32).to_bits()));
    assert!(Arc::ptr_eq(&file.rollouts[0].group, &file.rollouts[1].group), "rollouts of a group share its header");
    assert_eq!(file.into_sealed(), small_step(1));
}

#[test]
fn a_sealed_step_is_never_written_again_and_a_tail_keeps_its_discards() {
    let (_dir, folder, mut log) = run();
    log.seal(small_step(1)).unwrap();
    let again = log.seal(small_step(1)).unwrap_err();
    assert!(again.message.contains("step-00000001.parquet") && again.message.contains("sealed already"), "{again}");
    let tail = |rollouts| SealedStep { step: 2, rollouts, metrics: None };
    let mut rollouts = small_step(2).rollouts;
    rollouts[0].status = Status::Waiting;
    log.seal(tail(rollouts[..3].to_vec())).unwrap();
    log.seal(tail(vec![rollouts[0].clone()])).unwrap();
    let read = read_step(&folder.log_file(LogFile::Tail(2))).unwrap().into_sealed();
    assert_eq!(read, tail(vec![rollouts[0].clone(), rollouts[2].clone()]));
    assert_eq!(fs::read_dir(folder.rollouts()).unwrap().count(), 2, "no temporary is left");
}

#[test]
fn steps_come_in_order_and_many_rows_fill_several_row_groups() {
    let (_dir, folder, mut log) = run();
    let mut large = small_step(2);
    let row = large.rollouts[0].clone();
    large.rollouts = (0..1500).map(|order| Rollout { order, ..row.clone() }).collect();
    log.seal(large.clone()).unwrap();
    log.seal(small_step(1)).unwrap();
    let read: Vec<_> = steps(&folder).unwrap().map(|file| file.unwrap().into_sealed()).collect();
    assert_eq!(read, [small_step(1), large]);
}

#[test]
fn an_empty_step_is_a_step() {
    let (_dir, folder, mut log) = run();
    let step = SealedStep { step: 3, rollouts: Vec::new(), metrics: Some(Metrics::default()) };
    log.seal(step.clone()).unwrap();
    assert_eq!(read_step(&folder.log_file(LogFile::Step(3))).unwrap().into_sealed(), step);
}

#[test]
fn a_number_that_no_column_holds_is_refused_by_column() {
    let (_dir, _folder, mut log) = run();
    let mut step = small_step(1);
    step.rollouts[1].tokens[2] = u32::MAX;
    let fault = log.seal(step).unwrap_err().message;
    assert!(fault.contains("column tokens: group 7, sample 1: 4294967295 does not fit"), "{fault}");
    let mut step = small_step(1);
    step.rollouts[0].version[0] = 1 << 31;
    assert!(log.seal(step).unwrap_err().message.contains("column version"));
}

#[test]
fn metrics_are_one_row_a_step() {
    let (_dir, folder, mut log) = run();
    for step in [1, 2, 3] {
        log.seal(small_step(step)).unwrap();
    }
    write_metrics(&folder).unwrap();
    let rows: Vec<_> = crate::store::read_json_rows(&folder.metrics()).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1]["step"], 2);
    assert_eq!(rows[1]["loss"], 0.1);
    assert_eq!(rows[1]["skipped"], false);
    assert!(!rows[1].contains_key("weights"));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), ".{0,12}", Just("a\0b\n\u{1f600}\u{fffd}".to_owned())]
}

fn status() -> impl Strategy<Value = Status> {
    let reason = prop_oneof![
        Just(Reason::NoReward),
        Just(Reason::Unscorable),
        Just(Reason::ZeroVariance),
        Just(Reason::DataEnded),
        text().prop_map(Reason::BadTokens),
        text().prop_map(Reason::BadPrompt),
    ];
    prop_oneof![Just(Status::Waiting), Just(Status::Trained), reason.prop_map(Status::Discarded)]
}

fn stop() -> impl Strategy<Value = Stop> {
    proptest::sample::select(vec![Stop::Eos, Stop::StopString, Stop::Length, Stop::Time, Stop::Refused])
}

fn counter() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, 0..=i64::MAX as u64]
}

prop_compose! {
    fn group()(
        numbers in [counter(), counter(), counter(), counter(), counter()],
        size in any::<u32>(),
        epoch in any::<u32>(),
        generator in 0..8usize,
        texts in [text(), text(), text(), text()],
        tokens in vec(0..=i32::MAX as u32, 0..4),
        (task_size, drawn_success) in (any::<u32>(), option::of(any::<f32>())),
        admitted_ns in any::<i64>(),
    ) -> Arc<Group> {
        let [number, due, earlier, oldest, id] = numbers;
        let [task, text, answer, meta] = texts;
        let prompt = Prompt { id, epoch, task, text, tokens, answer, meta, size: task_size, drawn_success, ..Prompt::default() };
        Arc::new(Group { number, due, earlier, oldest, size, generator, prompt, admitted_ns })
    }
}

prop_compose! {
    // Lists of unequal length are allowed: a rollout refused for that is logged as it is.
    fn rollout()(
        group in group(),
        (status, stop) in (status(), stop()),
        (sample, order) in (any::<u32>(), any::<u32>()),
        (step, worker) in (counter(), 0..9usize),
        tokens in vec(0..=i32::MAX as u32, 0..6),
        version in vec(0..=i32::MAX as u64, 0..6),
        mask in vec(any::<bool>(), 0..6),
        floats in vec(vec(any::<f32>(), 0..6), 5),
        (reward, reward_shaped) in (option::of(any::<f32>()), option::of(any::<f32>())),
        reward_parts in vec((text(), any::<f32>()), 0..3),
        (text, reward_error) in (text(), option::of(text())),
        times in [any::<i64>(), any::<i64>(), any::<i64>()],
    ) -> Rollout {
        let [logp_behavior, logp_current, logp_reference, value, advantage] = <[Vec<f32>; 5]>::try_from(floats).unwrap();
        let [started_ns, finished_ns, trained_ns] = times;
        Rollout {
            group, sample, status, tokens, text, mask, logp_behavior, version, value, stop, started_ns, finished_ns, worker,
            reward, reward_parts, reward_error, reward_shaped, advantage, logp_current, logp_reference, step, order,
            trained_ns,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_rollouts_come_back(rollouts in vec(rollout(), 0..5), step in 0..99_999_999u64, tail in any::<bool>()) {
        let (_dir, folder, mut log) = run();
        let metrics = (!tail).then(|| Metrics { step, ..Metrics::default() });
        let sealed = SealedStep { step, rollouts, metrics };
        log.seal(sealed.clone()).unwrap();
        let file = folder.log_file(folder.log_files().unwrap()[0]);
        // `Debug` and not `==`, so that NaN is itself.
        prop_assert_eq!(format!("{:?}", read_step(&file).unwrap().into_sealed()), format!("{sealed:?}"));
        assert_viewed(&mut LogReader::open(&folder).unwrap());
    }
}
