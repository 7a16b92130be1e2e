//! Hard cases end to end, where no other page of tests has them. `docs/hard-cases.md` says which test holds which case.

use crate::harness::{Ran, lags, run, steps, workplace};
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;
use tidegate::store::{RunFolder, StepFile};
use tidegate_operators::record::Status;

fn log(dir: &TempDir) -> Vec<StepFile> {
    steps(&RunFolder::view(dir.path().join("runs/spec")).unwrap())
}

fn notes<'a>(ran: &'a Ran, about: &str) -> Vec<&'a str> {
    ran.err.lines().filter(|line| line.starts_with("note ") && line.contains(about)).collect()
}

/// Catches an advantage that is the bare reward or NaN, and a run that teaches nothing without a word.
#[test]
fn a_group_of_one_has_no_baseline_and_that_is_said_once() {
    let dir = workplace();
    let ran = run(&dir, &["steps=2", "batch={batch_size=8,group_size=1}"]).ok();
    assert_eq!(notes(&ran, "groups of one rollout have no baseline").len(), 1, "{}", ran.err);
    for row in log(&dir).iter().flat_map(|file| &file.rollouts) {
        assert!(row.reward.is_some() && row.advantage.iter().all(|advantage| *advantage == 0.0), "{:?}", row.advantage);
    }
}

/// Catches two rows that are taken for one because their texts are the same.
#[test]
fn two_rows_with_one_text_are_two_groups() {
    let dir = workplace();
    let row = "{\"prompt\": \"s:31=\", \"answer\": \"13\"}\n";
    fs::write(dir.path().join("p.jsonl"), row.repeat(4)).unwrap();
    run(&dir, &["task=[]", "data.file=p.jsonl", "data.epochs=1", "reward.kind=exact", "steps=1"]).ok();
    let rows: Vec<_> = log(&dir).into_iter().flat_map(|file| file.rollouts).collect();
    let groups: BTreeSet<_> = rows.iter().map(|row| (row.group.number, row.group.prompt.id)).collect();
    assert_eq!((groups.len(), groups.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len()), (4, 4));
}

/// Catches a run that waits for itself, and one that samples ahead though it must not.
#[test]
fn without_lag_one_batch_is_in_flight_and_the_run_ends() {
    let dir = workplace();
    run(&dir, &["steps=3", "schedule.max_lag=0"]).ok();
    let rows: Vec<_> = log(&dir).into_iter().flat_map(|file| file.rollouts).collect();
    assert_eq!(rows.iter().filter(|row| row.status == Status::Trained).count(), 3 * 16);
    assert!(rows.iter().flat_map(lags).all(|lag| lag == 0));
    assert!(rows.iter().all(|row| row.group.due == row.step), "each batch is admitted for its own step");
}

/// Catches a model's folder whose strange sides go without a word.
#[test]
fn what_is_strange_about_a_model_is_said() {
    let dir = workplace();
    let folder = dir.path().join("model");
    fs::create_dir(&folder).unwrap();
    for name in ["model.safetensors", "tokenizer.json"] {
        fs::copy(crate::harness::bundled_model().join(name), folder.join(name)).unwrap();
    }
    let text = fs::read_to_string(crate::harness::bundled_model().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["eos_token_id"] = serde_json::Value::Null;
    config["mystery"] = 7.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let ran = run(&dir, &["steps=1", "model.path=model", "generate.max_tokens=8"]).ok();
    assert_eq!(notes(&ran, "model/config.json: not looked at: mystery; ").len(), 1, "{}", ran.err);
    assert_eq!(notes(&ran, "no eos_token_id").len(), 1, "{}", ran.err);
    config["num_experts"] = 4.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    run(&dir, &["model.path=model"]).refused(1, &["model/config.json: num_experts = 4: not supported"]);
}
