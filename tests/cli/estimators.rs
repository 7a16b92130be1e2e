//! Estimators and shaped rewards end to end: what the log says is what its own columns come to, and a replay makes the same.

use crate::harness::{call, place, steps};
use std::fs;
use tempfile::TempDir;
use tidegate::store::RunFolder;
use tidegate_operators::record::{Rollout, Status, Stop};

const SPEC: &str = r#"
steps = 5
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 4
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 24
max_tokens = 12
[learn]
lr = 1e-2
[eval]
prompts = 0
"#;

fn workplace() -> TempDir {
    place(SPEC)
}

/// The trained rows of each step of a run with these keys, which a replay must make again.
fn trained(dir: &TempDir, sets: &[&str]) -> Vec<Vec<Rollout>> {
    call(dir, &["run", "spec.toml"], sets).ok();
    let ran = call(dir, &["replay", "runs/spec"], &[]).ok();
    assert!(ran.out.contains("bit for bit"), "{}", ran.out);
    log(dir)
}

fn log(dir: &TempDir) -> Vec<Vec<Rollout>> {
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    let rows = |rows: Vec<Rollout>| rows.into_iter().filter(|row| row.status == Status::Trained).collect();
    steps(&folder).into_iter().map(|file| rows(file.rollouts)).collect()
}

#[track_caller]
fn close(found: f32, expected: f64) {
    assert!((f64::from(found) - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{found}, not {expected}");
}

/// Each step's advantages are its rewards over mean and deviation of its own trained tokens. Catches a batch that is whitened
/// by groups or not at all, a log that has what was there before, and a replay that whitens otherwise.
#[test]
fn a_step_is_whitened_over_its_batch() {
    let dir = workplace();
    let mut spread = 0;
    for batch in trained(&dir, &["estimate.advantage=batch_normalised"]) {
        assert_eq!(batch.len(), 12);
        let rewards = |row: &Rollout| vec![f64::from(row.reward.unwrap()); row.mask.iter().filter(|m| **m).count()];
        let tokens: Vec<f64> = batch.iter().flat_map(rewards).collect();
        let mean = tokens.iter().sum::<f64>() / tokens.len() as f64;
        let squares = tokens.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let deviation = (squares / (tokens.len() as f64 - 1.0)).sqrt();
        spread += usize::from(deviation > 0.0);
        for row in &batch {
            let expected = if deviation > 0.0 { (f64::from(row.reward.unwrap()) - mean) / deviation } else { 0.0 };
            row.advantage.iter().for_each(|advantage| close(*advantage, expected));
        }
    }
    assert!(spread >= 3, "{spread} steps of 5 had different rewards");
}

/// Catches a run that goes on with advantages that were whitened once already, and steps that are trained again otherwise.
#[test]
fn a_whitened_run_goes_on() {
    let dir = workplace();
    call(&dir, &["run", "spec.toml"], &["estimate={advantage='group_mean',whiten='batch'}"]).ok();
    let before = log(&dir);
    // Without a checkpoint all is trained again from the log.
    fs::remove_dir_all(dir.path().join("runs/spec/checkpoints")).unwrap();
    let ran = call(&dir, &["resume", "runs/spec"], &["steps=7"]).ok();
    assert!(ran.err.contains("they are the recorded ones, bit for bit"), "{}", ran.err);
    let after = log(&dir);
    assert_eq!((after.len(), &after[..5]), (7, &before[..]));
    call(&dir, &["replay", "runs/spec"], &[]).ok();
}

/// Catches values of other tokens, a cut rollout that is taken for one that ended, and a reward that is not the shaped one.
#[test]
fn gae_is_of_the_recorded_values_and_the_shaped_reward() {
    let dir = workplace();
    let keys = "estimate={advantage={gae={gamma=0.9,lambda=0.8}},length_coef=-0.01,overlong_buffer=4,reward_max=0.5}";
    let (mut cut, mut own, mut valued) = (0, 0, 0);
    for row in
        trained(&dir, &[keys, "learn={lr=0.1,warmup_steps=0,value_coef=0.5}", "schedule.max_lag=0"]).into_iter().flatten()
    {
        let n = row.tokens.len();
        let over = (n + 4).saturating_sub(12) as f64 / 4.0;
        let shaped = f64::from(row.reward.unwrap()).min(0.5) - 0.01 * n as f64 - over;
        close(row.reward_shaped.unwrap(), shaped);
        let value = |t: usize| f64::from(row.value[t]);
        let bootstrap = if row.stop == Stop::Length { value(n - 1) } else { 0.0 };
        let delta = |t: usize| {
            let (reward, next) = if t + 1 == n { (shaped, bootstrap) } else { (0.0, value(t + 1)) };
            reward + 0.9 * next - value(t)
        };
        for t in 0..n {
            close(row.advantage[t], (t..n).map(|k| 0.72f64.powi((k - t) as i32) * delta(k)).sum());
        }
        cut += usize::from(row.stop == Stop::Length);
        own += usize::from(row.stop == Stop::Eos);
        valued += usize::from(row.value.iter().any(|value| *value != 0.0));
    }
    assert!(cut > 0 && own > 0 && valued > 0, "{cut} {own} {valued}");
}

/// Catches a run that samples for ever, one that ends without saying why, and one that ends sooner than it was told to.
#[test]
fn prompts_that_teach_nothing_end_the_run() {
    let dir = workplace();
    let estimate = "estimate={zero_variance='discard',refill_limit=3}";
    let ran = call(&dir, &["run", "spec.toml"], &[estimate, "reward.pattern=^never"]);
    ran.refused(1, &["3 batches, 100 % zero-variance: 9 groups and none was kept", "take easier prompts"]);
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    assert!(steps(&folder).is_empty());
    let ran = call(&dir, &["resume", "runs/spec"], &["estimate.refill_limit=4"]);
    ran.refused(1, &["4 batches, 100 % zero-variance: 12 groups"]);
}
