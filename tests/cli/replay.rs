//! `tidegate replay`: the same bit for bit, or the first step that is not.

use crate::harness::{STEPS, bundled_model, copy, recorded, recorded_path, run, steps, tidegate, workplace};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};
use tidegate::store::layout::LogFile;
use tidegate::store::{ParquetLog, RunFolder};
use tidegate_operators::record::{Rollout, Status};
use tidegate_operators::seal::Log;

fn replay(run: &Path, args: &[&str]) -> crate::harness::Ran {
    let run = run.to_str().unwrap();
    tidegate(Path::new("/"), &["replay", run].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

/// Catches any part of a step that depends on more than the log: order, timing, draws.
#[test]
fn a_recorded_run_is_the_same_bit_for_bit() {
    let ran = tidegate(Path::new("/"), &["replay", recorded_path()]).ok();
    assert!(ran.out.starts_with(&format!("replayed  {}: {STEPS} steps, 96 rollouts\n", recorded_path())), "{}", ran.out);
    assert!(ran.out.contains("loss and 50 tensors of each step, bit for bit"), "{}", ran.out);
    assert!(ran.err.contains("step     6/6  loss "), "{}", ran.err);
}

/// Catches a learning-rate schedule that is stretched over the steps that are replayed, and a count that is not asked for.
#[test]
fn the_first_steps_alone_are_the_same_too() {
    for (asked, steps) in [("2", 2), ("4", 4), ("99", STEPS)] {
        let ran = replay(recorded().folder.path(), &["--steps", asked, "--json"]).ok();
        let check = &ran.json()["check"];
        assert_eq!((check["same_steps"].as_u64(), check["tensors"].as_u64()), (Some(steps), Some(50)));
        assert!(check["difference"].is_null());
    }
    replay(recorded().folder.path(), &["--steps", "0"]).refused(2, &["--steps = 0: at least 1 step"]);
}

/// The shared run's log written anew, sealed as the program seals it, after a change to its third step.
fn changed(change: impl Fn(&mut Vec<Rollout>)) -> (TempDir, PathBuf) {
    let dir = tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    for file in steps(&recorded().folder) {
        let mut log = ParquetLog::new(folder.clone(), file.footer.info.clone());
        let mut sealed = file.into_sealed();
        if sealed.step == 3 {
            change(&mut sealed.rollouts);
        }
        log.seal(sealed).unwrap();
    }
    (dir, folder.path().to_owned())
}

/// A row that taught something, and the place of a token in it that was trained, not the first.
fn taught(rows: &mut [Rollout]) -> (&mut Rollout, usize) {
    let teaches = |row: &Rollout| row.status == Status::Trained && row.advantage.iter().any(|a| *a != 0.0);
    let row = rows.iter_mut().find(|row| teaches(row) && row.tokens.len() > 2).unwrap();
    assert!(row.mask[1] && row.advantage[1] != 0.0);
    (row, 1)
}

/// Catches the copying itself as the cause of what the next tests see.
#[test]
fn a_copy_without_a_change_replays() {
    let (_dir, run) = changed(|_| ());
    replay(&run, &[]).ok();
}

fn caught(what: &str, change: impl Fn(&mut Rollout, usize)) {
    let (_dir, run) = changed(|rows| {
        let (row, at) = taught(rows);
        change(row, at);
    });
    let ran = replay(&run, &[]);
    assert_eq!(ran.code, 1, "{}\n{}", ran.out, ran.err);
    let line = ran.err.lines().last().unwrap();
    assert!(line.starts_with("error: step 3: ") && line.contains(what) && line.contains(" differs: recorded "), "{line}");
    assert!(ran.out.starts_with(&format!("replayed  {}: 2 steps, 32 rollouts\n", run.display())), "{}", ran.out);
    assert!(!ran.out.contains("bit for bit"), "{}", ran.out);
}

/// Catches a replay that trains other tokens than the recorded ones.
#[test]
fn a_changed_token_is_seen() {
    caught("logp_current[1] of group ", |row, at| row.tokens[at] = if row.tokens[at] == 5 { 6 } else { 5 });
}

/// Catches importance weights that are not made of the recorded log-probabilities.
#[test]
fn a_changed_behavior_is_seen() {
    caught("loss", |row, at| row.logp_behavior[at] -= 0.5);
}

/// Catches a replay that takes the recorded rewards for right and scores nothing.
#[test]
fn a_changed_reward_is_seen() {
    caught("reward of group ", |row, _| row.reward = row.reward.map(|reward| 1.0 - reward));
}

/// Catches a replay that takes the recorded advantages for right and estimates nothing.
#[test]
fn a_changed_advantage_is_seen() {
    caught("advantage[1] of group ", |row, at| row.advantage[at] *= 1.5);
}

/// Catches a comparison of loss and weights alone.
#[test]
fn a_changed_log_probability_is_seen() {
    let next = |x: f32| f32::from_bits(x.to_bits() ^ 1);
    caught("logp_current[1] of group ", |row, at| row.logp_current[at] = next(row.logp_current[at]));
}

/// Catches a what-if that trains as before, or that calls the change a difference.
#[test]
fn another_learning_rate_asks_what_if() {
    let ran = replay(recorded().folder.path(), &["--set", "learn.lr=1e-3"]).ok();
    let rows: Vec<_> = ran.out.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(rows.len() as u64, STEPS, "{}", ran.out);
    let of = |lr: &str| {
        let ran = replay(recorded().folder.path(), &["--set", lr, "--json"]).ok();
        let steps = ran.json()["what_if"]["steps"].clone();
        steps.as_array().unwrap().iter().map(|step| step["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let recorded: Vec<_> = steps(&recorded().folder).iter().map(|f| f.footer.metrics.as_ref().unwrap().loss).collect();
    assert_eq!(of("learn.lr=1e-4"), recorded);
    let other = of("learn.lr=1e-3");
    assert_eq!(other[0], recorded[0], "the first step starts from the same weights");
    assert!(other[5] != recorded[5], "the last does not");
}

/// Catches a key that is taken and not read: the user would think it was tried.
#[test]
fn what_a_replay_does_not_read_is_refused() {
    for set in ["schedule.max_lag=3", "batch.batch_size=32", "generate.temperature=0.5", "seed=2"] {
        replay(recorded().folder.path(), &["--set", set]).refused(2, &["--set = ", set, "allowed: learn.*, estimate.*"]);
    }
    replay(recorded().folder.path(), &["--set", "learn.lrr=1"]).refused(2, &["learn.lrr = 1: ", "did you mean learn.lr?"]);
}

fn other_model(name: &str, change: impl Fn(&mut Vec<u8>)) -> (TempDir, String) {
    let dir = tempdir().unwrap();
    copy(&bundled_model(), dir.path());
    let mut bytes = fs::read(dir.path().join(name)).unwrap();
    change(&mut bytes);
    fs::write(dir.path().join(name), bytes).unwrap();
    let set = format!("model.path={}", dir.path().display());
    (dir, set)
}

/// Catches a model that is taken for the recorded one although one of its weights is another.
#[test]
fn another_model_is_refused_unless_forced() {
    let run = recorded().folder.path();
    let (dir, set) = other_model("model.safetensors", |bytes| *bytes.iter_mut().nth_back(1).unwrap() ^= 0x40);
    let place = dir.path().to_str().unwrap();
    replay(run, &["--set", &set]).refused(1, &[place, "the model's hash is ", "--force"]);
    let forced = replay(run, &["--set", &set, "--force"]);
    assert_eq!(forced.code, 1);
    assert!(forced.err.contains("error: step 1: "), "{}", forced.err);
}

/// Catches a tokenizer that is not looked at; and a folder of the same model elsewhere that would not do.
#[test]
fn another_tokenizer_is_refused_unless_forced() {
    let run = recorded().folder.path();
    let (dir, set) = other_model("tokenizer.json", |bytes| bytes.push(b'\n'));
    replay(run, &["--set", &set]).refused(1, &[dir.path().to_str().unwrap(), "the tokenizer's hash is ", "--force"]);
    let forced = replay(run, &["--set", &set, "--force"]).ok();
    assert!(forced.out.contains("bit for bit"), "{}", forced.out);
    let (_dir, same) = other_model("config.json", |_| ());
    assert!(replay(run, &["--set", &same]).ok().out.contains("bit for bit"));
}

/// Catches a hole in the log over which a replay steps, and a result that is printed for the part before it.
#[test]
fn a_missing_file_is_named() {
    for (missing, says) in [(3, "step-00000004.parquet: seals step 4, expected step 3"), (1, "starts at step 2")] {
        let dir = tempdir().unwrap();
        copy(recorded().folder.path(), dir.path());
        let folder = RunFolder::view(dir.path()).unwrap();
        fs::remove_file(folder.log_file(LogFile::Step(missing))).unwrap();
        replay(dir.path(), &[]).refused(1, &[says]);
        replay(dir.path(), &["--json"]).refused(1, &[says]);
    }
    replay(Path::new("/nothing"), &[]).refused(1, &["/nothing: there is no such folder"]);
}

/// Catches a damaged file that is read as if it were whole.
#[test]
fn a_damaged_file_is_named() {
    let dir = tempdir().unwrap();
    copy(recorded().folder.path(), dir.path());
    let path = RunFolder::view(dir.path()).unwrap().log_file(LogFile::Step(2));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    replay(dir.path(), &[]).refused(1, &["step-00000002.parquet: "]);
}

/// A run in whose learner memory ran out, as it is in the log: the specification asks for larger micro-batches than the steps
/// had. Catches a replay that adds its sums up in another order, and (where the log does not say) shows that this matters.
#[test]
fn a_replay_does_with_the_memory_that_the_run_had() {
    let dir = workplace();
    run(&dir, &["steps=2", "learn.micro_batch_tokens=100"]).ok();
    let recorded = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    for (says, code) in [(100, 0), (0, 1)] {
        let folder = RunFolder::create(dir.path().join(format!("told-{says}"))).unwrap();
        for file in steps(&recorded) {
            let mut info = file.footer.info.clone();
            let spec = info.spec.replace("micro_batch_tokens = 100", "micro_batch_tokens = 8192");
            assert_ne!(std::mem::replace(&mut info.spec, spec.clone()), spec);
            let mut sealed = file.into_sealed();
            sealed.metrics.as_mut().unwrap().micro_batch_tokens = says;
            ParquetLog::new(folder.clone(), info).seal(sealed).unwrap();
        }
        let replayed = replay(folder.path(), &[]);
        assert_eq!(replayed.code, code, "{says}: {}{}", replayed.out, replayed.err);
    }
}
