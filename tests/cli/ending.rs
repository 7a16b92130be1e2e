//! What is said at the end of a run: why it ended, and what to type next.

use crate::harness::{Ran, tidegate};
use crate::running::Running;
use std::fs;
use tempfile::TempDir;

const SPEC: &str = r#"
steps = 5
[model]
engine = "toy"
[data]
file = "prompts.jsonl"
epochs = 1
[reward]
kind = "exact"
[batch]
batch_size = 16
group_size = 4
[generate]
slots = 32
max_tokens = 24
[eval]
prompts = 0
"#;

/// Six prompts: a step of four, and one of two.
fn workplace() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("spec.toml"), SPEC).unwrap();
    let prompts = (0..6).map(|n| format!("{{\"prompt\": \"s:{n}1=\", \"answer\": \"{n}\"}}\n"));
    fs::write(dir.path().join("prompts.jsonl"), prompts.collect::<String>()).unwrap();
    dir
}

fn run(dir: &TempDir, sets: &[&str]) -> Ran {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    tidegate(dir.path(), &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>())
}

const LOOK_BACK: &str = "\nnext      tidegate analyze runs/spec    or    tidegate replay runs/spec\n";
const GO_ON: &str = "\nnext      tidegate resume runs/spec    or    tidegate analyze runs/spec\n";

/// Catches an advice to go on with a run that has nothing to go on with, and a reason that leaves it open.
#[test]
fn what_comes_next_depends_on_why_a_run_ended() {
    let dir = workplace();
    let ran = run(&dir, &[]).ok();
    assert!(ran.out.contains("\ntrained   2 steps "), "{}", ran.out);
    assert!(
        ran.out.contains("\n          of 5 planned: the prompts ended\n") && ran.out.ends_with(LOOK_BACK),
        "{}",
        ran.out
    );
    // What it says is right, and so it is after a resume, which finds no prompts either.
    tidegate(dir.path(), &["replay", "runs/spec"]).ok();
    let resumed = tidegate(dir.path(), &["resume", "runs/spec"]).ok();
    assert!(resumed.out.ends_with(LOOK_BACK), "{}", resumed.out);
    let resumed = tidegate(dir.path(), &["resume", "runs/spec", "--json"]).ok();
    assert_eq!(resumed.json()["ending"], "prompts");

    let dir = workplace();
    let ran = run(&dir, &["steps=2"]).ok();
    assert!(!ran.out.contains(" planned") && ran.out.ends_with(LOOK_BACK), "{}", ran.out);

    let endless = ["run", "spec.toml", "--set", "data.epochs=0", "--set", "steps=1000000"];
    let running = Running::at(workplace(), &["env", "--default-signal=INT,TERM"], &endless);
    running.until("rollouts/step-00000002.parquet");
    running.signal("TERM");
    let (ran, _dir) = running.end();
    assert!(ran.out.contains(" of 1000000 planned: the run was stopped\n") && ran.out.ends_with(GO_ON), "{}", ran.out);
}

/// Catches a run without a step that passes for one, and a failure that does not say what became of the prompts.
#[test]
fn a_run_whose_prompts_end_before_its_first_step_has_failed() {
    for (sets, says) in [
        (
            &["batch.batch_size=32", "schedule.short_batch=discard"][..],
            &[
                "which takes 32 rollouts",
                "schedule.short_batch = \"train\" would train fewer",
                "24 rollouts discarded: data ended",
            ][..],
        ),
        (&["data.max_prompt_tokens=1"], &["which takes 16 rollouts (batch.batch_size): 24 rollouts discarded: bad prompt"]),
    ] {
        let dir = workplace();
        run(&dir, sets).refused(1, &[&["prompts.jsonl: its prompts ended before the first step, "][..], says].concat());
        tidegate(dir.path(), &["replay", "runs/spec"]).refused(1, &["runs/spec: holds no sealed step"]);
        tidegate(dir.path(), &["analyze", "runs/spec"]).ok();
    }
}
