//! `tidegate experiment` with a `[kl]`: measurements of one run, which keeps a checkpoint after every step.

use crate::harness::{Ran, place, tidegate};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;
use tidegate::store::RunFolder;

const BASE: &str = r#"
steps = 9
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 16
group_size = 4
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 16
max_tokens = 8
[learn]
lr = 0.1
warmup_steps = 1
lr_schedule = "constant"
[eval]
prompts = 0
"#;

const DESIGN: &str = r#"
about = "KL by lag."
base = "spec.toml"
set = ["checkpoint.every_steps=1", "checkpoint.keep=9"]
seeds = [1]
[kl]
after = [0, 3]
lags = [0, 1, 6]
length = 6
prompts = 12
"#;

fn experiment(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), &["experiment", "kl.toml"].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

fn workplace() -> TempDir {
    let dir = place(BASE);
    fs::write(dir.path().join("kl.toml"), DESIGN).unwrap();
    dir
}

/// By stage, lag and behavior.
fn measured(dir: &TempDir, at: [&str; 3]) -> Value {
    let text = fs::read_to_string(dir.path().join("kl.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found: Vec<Value> = rows.filter(|row| *row["at"].as_array().unwrap() == at).collect();
    assert_eq!(found.len(), 1, "{at:?} in {text}");
    found[0]["outcome"]["measured"].clone()
}

/// Catches a checkpoint that was skipped, a run that is made for each cell, a stage or a lag that is another's, and a behavior whose weights stand
/// still, or move where they should not.
#[test]
fn divergence_is_measured_by_stage_lag_and_behavior() {
    let dir = workplace();
    let ran = experiment(&dir, &["--markdown"]).ok();
    assert!(ran.err.contains("cells     18 of 18 to run\n"), "{}", ran.err);
    assert_eq!(ran.err.matches("first its run").count(), 1, "{}", ran.err);
    let run = RunFolder::view(dir.path().join("runs/experiments/kl/seed-1")).unwrap();
    assert_eq!(run.checkpointed_steps().unwrap(), (1..=9).collect::<Vec<_>>());
    let kl = |at| measured(&dir, at)["kl"].as_f64().unwrap();
    for after in ["0", "3"] {
        for behavior in ["keep", "recompute", "conventional"] {
            assert_eq!(kl([after, "0", behavior]), 0.0, "on policy");
            assert_eq!(kl([after, "1", behavior]), kl([after, "1", "conventional"]), "one update is not seen in flight");
        }
        // The toy has no keys.
        assert_eq!(kl([after, "6", "keep"]), kl([after, "6", "recompute"]));
        let (near, far) = (kl([after, "6", "keep"]), kl([after, "6", "conventional"]));
        assert!(near > kl([after, "1", "keep"]) && far > near, "after {after}: {near} {far}");
        let lag = |behavior| measured(&dir, [after, "6", behavior])["lag_mean"].as_f64().unwrap();
        assert!(lag("conventional") == 6.0 && lag("keep") < 6.0 && lag("keep") > 2.0, "{}", lag("keep"));
        let of = measured(&dir, [after, "6", "keep"]);
        assert_eq!(of["sequences"], 12);
        assert!(of["standard_error"].as_f64().unwrap() > 0.0, "{of}");
    }
    assert_ne!(kl(["0", "6", "conventional"]), kl(["3", "6", "conventional"]), "stages differ");
    let lines: Vec<&str> = ran.out.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + 6, "{}", ran.out);
    assert!(lines[0].contains("| after step | lag |") && lines[0].contains("conventional |"), "{}", lines[0]);

    let again = experiment(&dir, &["--markdown"]).ok();
    assert!(again.err.contains("cells     0 of 18 to run\n") && again.out == ran.out, "{}", again.err);
    fs::write(dir.path().join("kl.toml"), DESIGN.replace("prompts = 12", "prompts = 5")).unwrap();
    let other = experiment(&dir, &["--only", "lag=6", "--only", "behavior=keep"]).ok();
    assert!(other.err.contains("cells     2 of 2 to run\n") && !other.err.contains("first its run"), "{}", other.err);
    assert_eq!(measured(&dir, ["0", "6", "keep"])["sequences"], 5);
    fs::remove_dir_all(run.checkpoint(3)).unwrap();
    let lost = experiment(&dir, &["--only", "lag=6", "--again"]);
    lost.refused(1, &["step-00000003: no such checkpoint; remove the run's folder, and it is made anew"]);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_runs() {
    let dir = workplace();
    for (wrong, says) in [
        (DESIGN.replace("lags = [0, 1, 6]", "lags = [7]"), "steps = 9: kl reads the weights after step 10"),
        (DESIGN.replace("\"checkpoint.every_steps=1\", ", ""), "checkpoint.every_steps = 0: kl reads"),
        (DESIGN.replace("length = 6", "length = 0"), "kl.length = 0: at least 1 token"),
        (DESIGN.replace("length = 6", "lenght = 6"), "did you mean kl.length?"),
    ] {
        fs::write(dir.path().join("kl.toml"), wrong).unwrap();
        experiment(&dir, &[]).refused(2, &[says]);
        assert!(!dir.path().join("runs").exists());
    }
}
