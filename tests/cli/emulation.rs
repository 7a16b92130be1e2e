//! Emulated accelerators, end to end: the run that they make, what it says beside a plan, and what is refused.

use crate::harness::{Ran, max_lag, place, steps, tidegate};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;
use tidegate::store::RunFolder;

/// Six accelerators, decode steps of a millisecond.
const SPEC: &str = r#"
steps = 40
[model]
engine = "emulation"
[emulation]
accelerators = 6
generators = 3
lengths = "uniform:12"
flash_s = 2e-5
decode = [40.0, 1.0, 1.0]
train = 4.0
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 2
[schedule]
max_lag = 5
[generate]
slots = 8
max_tokens = 12
[eval]
prompts = 0
"#;

fn call(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), args).ok()
}

/// On a machine that is busy with something else a run takes longer than planned, never shorter.
fn check(summary: &Value, bound: u64) {
    let of = &summary["emulation"];
    let tokens = |who: &str| of[who]["tokens"].as_f64().unwrap();
    assert!(tokens("measured") > 0.0 && tokens("measured") < 1.1 * tokens("simulated"), "{of}");
    assert!(tokens("simulated") < 1.1 * tokens("formula"), "{of}");
    assert!(of["measured"]["max_lag"].as_u64().unwrap() <= bound, "{of}");
    for piece in ["decode_step", "training_step"] {
        assert!(of[piece]["planned_s"].as_f64().unwrap() > 0.0 && of[piece]["added_s"].as_f64().unwrap() >= 0.0, "{of}");
    }
}

/// Catches accelerators that have no worker, a bound that does not hold with them, a log whose weights nothing depends on, and an end after
/// which nobody can go on.
#[test]
fn a_run_is_as_any_other() {
    let dir = place(SPEC);
    let ran = call(&dir, &["run", "spec.toml", "--json"]);
    assert!(ran.err.contains("model     6 accelerators that are emulated: no model; "), "{}", ran.err);
    let summary = ran.json();
    check(&summary, 5);
    assert_eq!((summary["emulation"]["workers"].as_u64(), summary["emulation"]["learners"].as_u64()), (Some(6), Some(3)));
    assert_eq!(summary["generators"].as_array().unwrap().len(), 3);
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    assert!(max_lag(&folder) <= 5);
    let files = steps(&folder);
    assert_eq!(files.len(), 40);
    let workers: std::collections::BTreeSet<usize> =
        files.iter().flat_map(|file| &file.rollouts).map(|row| row.worker).collect();
    assert_eq!(workers.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    let ran = call(&dir, &["replay", "runs/spec"]);
    assert!(ran.out.contains("40 steps") && ran.out.contains("bit for bit"), "{}", ran.out);
    // The last checkpoint is gone: its steps come from the log.
    fs::remove_dir_all(dir.path().join("runs/spec/checkpoints")).unwrap();
    let ran = call(&dir, &["resume", "runs/spec", "--set", "steps=44"]);
    assert!(ran.err.contains("resume    they are the recorded ones, bit for bit"), "{}", ran.err);
    assert!(!ran.out.contains("emulated  "), "what went on in its middle has no steady state: {}", ran.out);
    assert_eq!(steps(&folder).len(), 44);
    tidegate(dir.path(), &["eval", "runs/spec"])
        .refused(2, &["model.engine = emulation: emulated accelerators answer nothing"]);
}

/// Catches a plan that does not reach the run, learners that are too few by turns, and a summary without its plan.
#[test]
fn by_turns_all_accelerators_do_both() {
    let dir = place(SPEC);
    let sets = ["schedule.kind=conventional", "schedule.steps=5", "emulation.generators=0", "steps=20"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let ran = call(&dir, &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>());
    assert!(ran.err.contains("workers   generate on [0, 1, 2, 3, 4, 5] (8 slots"), "{}", ran.err);
    assert!(ran.out.contains("emulated  6 accelerators on 6 workers: "), "{}", ran.out);
    assert!(ran.out.contains(", max 4; formulas 2.0, 4; the simulation 2."), "{}", ran.out);
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    assert_eq!(max_lag(&folder), 4);
}

/// Two settings of two schedules. Catches a table without what was planned, and a ratio that is upside down.
#[test]
fn an_experiment_tells_the_speed_up() {
    let dir = place(&SPEC.replace("generators = 3", "generators = 0").replace("group_size = 2", "group_size = 1"));
    let design = r#"
base = "spec.toml"
seeds = [1]
speed_up = { axis = "schedule", of = "pipeline", over = "conventional" }
[[axis]]
name = "schedule"
value = [{ name = "pipeline", set = ["schedule.max_lag=5"] },
         { name = "conventional", set = ["schedule.kind=conventional", "schedule.steps=1", "steps=20"] }]
[[axis]]
name = "lengths"
value = [{ name = "all 6", set = ["emulation.lengths=fixed:6"] }, { name = "1 to 12" }]
"#;
    fs::write(dir.path().join("two.toml"), design).unwrap();
    let out = call(&dir, &["experiment", "two.toml", "--markdown"]).out;
    let (cells, ratios) = out.split_once("\n\n").unwrap();
    let heads = "| schedule     | lengths | runs | failed | tokens/flash | formulas | simulation | of formulas % |";
    assert!(cells.starts_with(heads), "{cells}");
    let row = |name: &str| {
        let line = ratios.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(row("lengths"), ["lengths", "runs", "speed-up", "formulas", "simulation"]);
    for name in ["all 6", "1 to 12"] {
        let row = row(name);
        let said: Vec<f64> = row[2..].iter().map(|cell| cell.parse().unwrap()).collect();
        assert!(row[1] == "1" && said.iter().all(|ratio| *ratio > 0.5), "{row:?}");
        assert!(said[1] > 1.0, "a pipeline is faster than turns of one step: {row:?}");
    }
}
