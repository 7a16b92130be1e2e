//! The rollout log as a whole: what is written comes back, what is damaged is named, what is older is read.

mod compaction;
mod damage;
mod full;
mod identity;
mod kill;
mod older;

use super::layout::{LogFile, RunFolder};
use super::view::Row;
use super::{FooterInfo, LogReader, ParquetLog, Viewed, scan};
use crate::error::Result;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Stop};
use tidegate_operators::seal::Log;

fn info() -> FooterInfo {
    FooterInfo {
        spec: "[schedule]\nmax_lag = 2\n".to_owned(),
        model: "m".repeat(64),
        tokenizer: "t".repeat(64),
        critic: "c".repeat(64),
        reference: "r".repeat(64),
        learner_threads: 2,
    }
}

fn run() -> (TempDir, RunFolder, ParquetLog) {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let log = ParquetLog::new(folder.clone(), info());
    (dir, folder, log)
}

/// Two groups: one trained, whose text was cut inside an emoji and holds a NUL, one discarded.
fn small_step(step: u64) -> SealedStep {
    let group = |number| {
        let prompt = Prompt {
            id: 10 + number,
            epoch: 1,
            task: "sums".to_owned(),
            text: "2+3=".to_owned(),
            tokens: vec![5, 6, 7],
            answer: "5".to_owned(),
            meta: r#"{"level":1}"#.to_owned(),
            max_tokens: None,
            refused: None,
            size: 3,
            bin: 0,
            drawn_success: Some(0.25),
        };
        let base = Group { number, due: step + 2, earlier: 4, oldest: 0, size: 2, generator: 1, prompt, admitted_ns: 1_000 };
        Arc::new(base)
    };
    let row = |number, sample, status| Rollout {
        group: group(number),
        sample,
        status,
        tokens: vec![1, 2, 49_151],
        text: "5\0\u{fffd}".to_owned(),
        mask: vec![true, true, false],
        logp_behavior: vec![-0.1, -1.5e-8, -30.0],
        version: vec![0, 1, 1],
        value: vec![0.25, 0.5, 0.75],
        stop: Stop::Length,
        started_ns: 2_000,
        finished_ns: 3_000,
        worker: 1,
        reward: Some(-0.0),
        reward_parts: vec![("format".to_owned(), 0.5), ("format".to_owned(), -0.5)],
        reward_error: None,
        reward_shaped: Some(-0.25),
        advantage: vec![0.5; 3],
        logp_current: vec![-0.2, -0.3, -29.0],
        logp_reference: vec![-0.4, -0.5, -28.0],
        step,
        order: sample,
        trained_ns: 4_000,
    };
    let unscored = Rollout {
        reward: None,
        reward_parts: Vec::new(),
        reward_error: Some("exit status 139".to_owned()),
        reward_shaped: None,
        stop: Stop::Eos,
        advantage: Vec::new(),
        logp_current: Vec::new(),
        logp_reference: Vec::new(),
        ..row(8, 0, Status::Discarded(Reason::NoReward))
    };
    let refused = Rollout {
        group: group(9),
        status: Status::Discarded(Reason::BadPrompt("512 tokens leave no room".to_owned())),
        stop: Stop::Refused,
        ..Rollout::default()
    };
    SealedStep {
        step,
        rollouts: vec![row(7, 0, Status::Trained), row(7, 1, Status::Trained), unscored, refused],
        metrics: Some(Metrics { step, loss: 0.1, tokens: 4, lag_max: 1, ..Metrics::default() }),
    }
}

fn write_small() -> (TempDir, PathBuf) {
    let (dir, folder, mut log) = run();
    log.seal(small_step(1)).unwrap();
    (dir, folder.log_file(LogFile::Step(1)))
}

/// Reads a log by its columns on three threads: of every row of every part, what a [`Row`](super::view::Row) says.
fn viewed(log: &LogReader) -> Result<Vec<Rollout>> {
    let mut all = Vec::new();
    let make = |piece: &mut usize, _: usize, part: &mut Viewed<'_>| {
        *piece += 1;
        let mut rows = Vec::new();
        part.rows(|place, row| rows.push((place, shown(&row))))?;
        for (place, rollout) in &mut rows {
            rollout.text = part.completion(*place)?;
        }
        Ok(rows)
    };
    let threads = NonZeroUsize::new(3).unwrap();
    let mut next = 0;
    scan(
        log,
        threads,
        || 0,
        make,
        |index, _, rows| {
            assert_eq!(index, next, "parts come in order");
            next += 1;
            for (place, (at, rollout)) in rows?.into_iter().enumerate() {
                assert_eq!(at, place);
                all.push(rollout);
            }
            Ok(())
        },
    )?;
    Ok(all)
}

fn shown(row: &Row<'_>) -> Rollout {
    let (task, text) = (row.task.into(), row.prompt.into());
    let prompt = Prompt { id: row.prompt_id, task, size: row.size, text, ..Prompt::default() };
    let length = row.version.len();
    let versions = row.version.runs(0..length).flat_map(|(range, version)| range.map(move |_| version));
    let mut mask = vec![false; length];
    row.mask.ranges(length).for_each(|range| mask[range].fill(true));
    Rollout {
        group: Arc::new(Group { number: row.group, prompt, admitted_ns: row.admitted_ns, ..Group::default() }),
        sample: row.sample,
        status: row.status.clone(),
        tokens: vec![0; row.tokens],
        mask,
        logp_behavior: row.logp_behavior.to_vec(),
        version: versions.collect(),
        stop: row.stop,
        started_ns: row.started_ns,
        finished_ns: row.finished_ns,
        reward: row.reward,
        advantage: row.advantage.to_vec(),
        logp_current: row.logp_current.to_vec(),
        logp_reference: row.logp_reference.to_vec(),
        step: row.step,
        trained_ns: row.trained_ns,
        ..Rollout::default()
    }
}

/// What of a rollout is seen by its columns.
fn seen(rollout: &Rollout) -> Rollout {
    let Group { number, prompt, admitted_ns, .. } = (*rollout.group).clone();
    let prompt = Prompt { id: prompt.id, task: prompt.task, size: prompt.size, text: prompt.text, ..Prompt::default() };
    let trained = |i: usize| rollout.mask.is_empty() || rollout.mask.get(i) == Some(&true);
    Rollout {
        group: Arc::new(Group { number, prompt, admitted_ns, ..Group::default() }),
        tokens: vec![0; rollout.tokens.len()],
        mask: (0..rollout.version.len()).map(trained).collect(),
        value: Vec::new(),
        worker: 0,
        reward_parts: Vec::new(),
        reward_error: None,
        reward_shaped: None,
        order: 0,
        ..rollout.clone()
    }
}

/// Both ways to read a log say the same. As text, where NaN is like NaN.
fn assert_viewed(log: &mut LogReader) {
    let found = format!("{:?}", viewed(log).unwrap());
    let rollouts = log.parts().into_iter().flat_map(|part| log.read(part).unwrap().rollouts).map(|row| seen(&row));
    assert_eq!(found, format!("{:?}", rollouts.collect::<Vec<_>>()));
}
