//! `tidegate experiment`: cells that are kept, that fail, that are interrupted, and that other settings make anew.

use crate::harness::{Ran, place, tidegate};
use crate::running::Running;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate::store::RunFolder;

/// A run of a tenth of a second.
const BASE: &str = r#"
steps = 4
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 8
group_size = 4
[generate]
slots = 16
max_tokens = 8
[eval]
prompts = 6
"#;

/// The first cell's run.
const LONG: &str = "runs/experiments/two/ends=well,max_lag=0/seed-1";

/// One of the rates stops the run: the policy's entropy is below ten.
const DESIGN: &str = r#"
about = "Two by two."
base = "spec.toml"
set = ["steps=3"]
seeds = [1, 2]
[[axis]]
name = "ends"
value = [{ name = "well" }, { name = "early", set = ["learn.safeguard.stop_entropy=10.0", "learn.safeguard.stop_steps=2"] }]
[[axis]]
name = "max_lag"
value = [{ name = "0", set = ["schedule.max_lag=0"] }, { name = "2", set = ["schedule.max_lag=2"] }]
"#;

fn experiment(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), &["experiment", "two.toml"].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

fn workplace() -> TempDir {
    let dir = place(BASE);
    fs::write(dir.path().join("two.toml"), DESIGN).unwrap();
    dir
}

fn results(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("two.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Lines that a table's cells make, without its frame.
fn rows(out: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = out.lines().filter(|line| line.starts_with('|') && !line.contains("---")).map(words);
    rows.map(|row| row[1..row.len() - 1].to_vec()).collect()
}

/// Catches a cell that is run twice, one that is lost because its run failed, a mean over other cells, settings that do not reach
/// their run, and a result that outlives the settings it was made with.
#[test]
fn cells_are_run_once_and_told_together() {
    let dir = workplace();
    let first = experiment(&dir, &["--markdown"]).ok();
    assert!(
        first.err.contains("about     Two by two.\n") && first.err.contains("cells     8 of 8 to run\n"),
        "{}",
        first.err
    );
    let table = rows(&first.out);
    assert_eq!(table[0][..5], ["ends", "max_lag", "runs", "failed", "success %"]);
    let heads: Vec<&[String]> = table[1..].iter().map(|row| &row[..4]).collect();
    assert_eq!(
        heads,
        [["well", "0", "2", "0"], ["well", "2", "2", "0"], ["early", "0", "2", "2"], ["early", "2", "2", "2"]]
    );
    assert!(table[1][4].contains(" ± ") && table[3][4..].iter().all(|cell| cell == "-"), "{table:?}");

    let kept = results(dir.path());
    assert_eq!(kept.len(), 8);
    let done = &kept[0];
    assert_eq!((done["at"].as_array().unwrap().len(), done["seed"].as_u64()), (2, Some(1)));
    assert_eq!(done["outcome"]["done"]["trained_rollouts"], 24);
    assert_eq!(done["curve"].as_array().unwrap().last().unwrap()["step"], 3);
    let failed = kept.iter().find(|row| row["at"][0] == "early").unwrap();
    assert_eq!(failed["outcome"]["failed"]["exit"], 1);
    assert!(failed["outcome"]["failed"]["error"].as_str().unwrap().contains("the run diverges"), "{failed}");
    assert_eq!(failed["curve"].as_array().unwrap().len(), 2, "what it did until then");
    assert!(dir.path().join("runs/experiments/two/ends=well,max_lag=2/seed-2/spec.toml").exists());

    let again = experiment(&dir, &["--markdown", "--html", "two.html"]).ok();
    assert!(again.err.contains("cells     0 of 8 to run\n") && again.err.contains("page      two.html ("), "{}", again.err);
    let page = fs::read_to_string(dir.path().join("two.html")).unwrap();
    assert!(page.contains("\"reward by seconds\"") && page.contains("the run diverges"));
    assert_eq!(again.out, first.out);

    fs::write(dir.path().join("spec.toml"), BASE.replace("slots = 16", "slots = 24")).unwrap();
    let other = experiment(&dir, &["--only", "ends=well", "--seeds", "3", "--table"]).ok();
    assert!(
        other.err.contains("cells     2, of which 0 have a result in two.jsonl\n") && other.out.contains(" 0 "),
        "{}{}",
        other.err,
        other.out
    );
    let other = experiment(&dir, &["--only", "ends=well", "--only", "max_lag=0"]).ok();
    assert!(other.err.contains("cells     2 of 2 to run\n"), "{}", other.err);
    assert_eq!(results(dir.path()).len(), 8, "they took the place of those of other settings");
}

/// Catches an assignment that does not reach its run, two values of which one's results take the other's place or that of the cells
/// without, and a time to a reward that stands for another setting.
#[test]
fn assignments_make_cells_of_their_own() {
    let dir = workplace();
    fs::write(dir.path().join("two.toml"), format!("reach = [0.0]\n{DESIGN}")).unwrap();
    let own = ["--only", "ends=well", "--only", "max_lag=0", "--seeds", "1", "--markdown"];
    experiment(&dir, &own).ok();
    let varied = [&own[..], &["--set", "batch.batch_size=4", "--set", "batch.batch_size=12"]].concat();
    let ran = experiment(&dir, &varied).ok();
    assert!(ran.err.contains("cells     2 of 2 to run\n"), "{}", ran.err);
    let table = rows(&ran.out);
    assert_eq!(table[0][..4], ["ends", "max_lag", "batch.batch_size", "runs"]);
    assert_eq!([&table[1][2], &table[2][2]], ["4", "12"]);
    assert_eq!(table[0][table[0].len() - 3..], ["reached 0", "s to 0", "rollouts to 0"]);
    assert_eq!(
        [&table[1], &table[2]].map(|row| [&row[row.len() - 3], &row[row.len() - 1]]),
        [["1 of 1", "12"], ["1 of 1", "36"]]
    );
    let kept = results(dir.path());
    let trained: Vec<u64> = kept.iter().map(|row| row["outcome"]["done"]["trained_rollouts"].as_u64().unwrap()).collect();
    assert_eq!(trained, [24, 12, 36]);
    assert!(kept.iter().all(|row| row["first_s"].as_f64().is_some_and(|seconds| (0.0..60.0).contains(&seconds))));
    assert!(dir.path().join("runs/experiments/two/ends=well,max_lag=0,batch.batch_size=12/seed-1/spec.toml").exists());
    let again = experiment(&dir, &varied).ok();
    assert!(again.err.contains("cells     0 of 2 to run\n"), "{}", again.err);
    experiment(&dir, &["--set", "batch.batch_size"]).refused(2, &["--set = batch.batch_size: KEY=VALUE"]);
}

/// The experiment, as soon as its first cell has trained two steps.
fn at_a_step(dir: TempDir) -> Running {
    let running = Running::at(dir, &["env", "--default-signal=INT,TERM"], &["experiment", "two.toml"]);
    let step = running.dir.path().join(LONG).join("rollouts/step-00000002.parquet");
    running.until_said("cell ");
    while !step.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

/// Catches a run that goes on without the experiment that it is a cell of, and is in the way when that goes on.
#[test]
fn a_cell_ends_with_its_experiment() {
    let dir = workplace();
    fs::write(dir.path().join("two.toml"), DESIGN.replace("steps=3", "steps=1000000")).unwrap();
    let running = at_a_step(dir);
    running.signal("KILL");
    let dir = running.killed();
    let run = RunFolder::view(dir.path().join(LONG)).unwrap();
    let began = Instant::now();
    while run.lock().is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "the cell goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(results(dir.path()).is_empty(), "a cell that was ended has no result");
}

/// Catches a result of half a cell, and results that are lost with the cell that was interrupted.
#[test]
fn an_interrupted_experiment_goes_on() {
    let dir = workplace();
    let long = DESIGN.replace("steps=3", "steps=1000000").replace("\"early\", set = [", "\"early\", set = [\"steps=2\", ");
    fs::write(dir.path().join("two.toml"), &long).unwrap();
    let early = experiment(&dir, &["--only", "ends=early", "--only", "max_lag=0", "--seeds", "1"]).ok();
    assert!(early.err.contains("cells     1 of 1 to run\n"), "{}", early.err);
    assert_eq!(results(dir.path()).len(), 1);
    let running = at_a_step(dir);
    running.signal("INT");
    let (ran, dir) = running.end();
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert_eq!(results(dir.path()).len(), 1);
    let said = fs::read_to_string(dir.path().join("runs/experiments/two/ends=well,max_lag=0/seed-1.log")).unwrap();
    assert!(said.contains("sealing what is complete"), "the run was told: {said}");
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is() {
    let dir = workplace();
    let refused = |text: &str, says: &[&str]| {
        fs::write(dir.path().join("two.toml"), text).unwrap();
        experiment(&dir, &[]).refused(2, says);
        assert!(!dir.path().join("runs").exists());
    };
    refused(
        &DESIGN.replace("schedule.max_lag=2", "schedule.max_lg=2"),
        &["schedule.max_lg = 2", "did you mean schedule.max_lag?", "(in the cell ends=well max_lag=2 seed=1)"],
    );
    refused(&DESIGN.replace("spec.toml", "none.toml"), &["base = none.toml: No such file"]);
    refused(&DESIGN.replace("about", "abuot"), &["abuot", "did you mean about?"]);
    tidegate(dir.path(), &["experiment", "lossy"])
        .refused(2, &["EXPERIMENT = lossy: no such file", "data/experiments holds none"]);
}
