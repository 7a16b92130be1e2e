//! A run that is ended in its first moments: what it leaves, and what is said of that.

use crate::harness::{command, files, place, tidegate};
use crate::running::Running;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SPEC: &str = r#"
steps = 1000000
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 16
group_size = 4
[generate]
slots = 32
max_tokens = 24
[eval]
prompts = 0
"#;

fn workplace() -> TempDir {
    place(SPEC)
}

/// Catches a signal that kills a run which has made its folder and has not said that it listens: it left `spec.toml.tmp`.
#[test]
fn a_signal_is_heard_from_the_first_file_on() {
    for _ in 0..4 {
        let running = Running::at(workplace(), &["env", "--default-signal=INT,TERM"], &["run", "spec.toml"]);
        let (start, rollouts) = (Instant::now(), running.path().join("rollouts"));
        while !rollouts.exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "no {}", rollouts.display());
        }
        kill_process(Pid::from_raw(running.pid() as i32).unwrap(), Signal::TERM).unwrap();
        let (ran, dir) = running.end();
        assert_eq!(ran.code, 143, "{}", ran.err);
        let left = files(&dir.path().join("runs/spec"));
        assert!(left.contains("spec.toml") && left.iter().all(|name| !name.ends_with(".tmp")), "{left:?}");
    }
}

/// The process is killed before its first file has its name. Catches a message that names a missing file and no way on, a
/// leftover that stays, and an advice to go on with a folder that holds nothing.
#[test]
fn a_folder_without_a_specification_is_told_from_a_run() {
    let dir = workplace();
    let path = dir.path().join("runs/spec");
    let killed = command(dir.path(), &["run", "spec.toml"]).env("TIDEGATE_KILL_AT", "file: written:1").output().unwrap();
    assert!(!killed.status.success());
    assert!(files(&path).contains("spec.toml.tmp"), "{:?}", files(&path));
    let resumed = tidegate(dir.path(), &["resume", "runs/spec"]);
    resumed
        .refused(1, &["runs/spec: the run was ended before it wrote its spec.toml, so ", "no sealed step", "tidegate run "]);
    assert!(files(&path).is_empty(), "{:?}", files(&path));
    let ran = tidegate(dir.path(), &["run", "spec.toml", "--set", "steps=2"]).ok();
    assert!(ran.err.contains("runs/spec holds no spec.toml: ") && ran.err.contains(" in runs/spec-2\n"), "{}", ran.err);
    assert!(!ran.err.contains("tidegate resume"), "{}", ran.err);
    // One that has steps is not to be started anew.
    fs::remove_file(dir.path().join("runs/spec-2/spec.toml")).unwrap();
    let resumed = tidegate(dir.path(), &["resume", "runs/spec-2"]);
    resumed.refused(1, &["runs/spec-2: its spec.toml is gone", "2 steps", "tidegate.spec"]);
}
