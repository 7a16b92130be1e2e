//! `tidegate sft`: a warm start from nothing and from a folder.

use crate::harness::{Ran, bundled_model, files, run, tidegate, workplace};
use crate::running::Running;
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;

const SPEC: &str = r#"
steps = 2
batch_size = 8
[[task]]
kind = "sorting"
[model]
hidden_size = 32
intermediate_size = 64
layers = 1
heads = 2
kv_heads = 1
[generate]
max_tokens = 24
[eval]
prompts = 8
"#;

fn sft_place() -> TempDir {
    let dir = workplace();
    fs::write(dir.path().join("sft.toml"), SPEC).unwrap();
    dir
}

fn sft(dir: &TempDir, sets: &[&str]) -> Ran {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    tidegate(dir.path(), &["sft", "sft.toml"].into_iter().chain(sets).collect::<Vec<_>>())
}

/// Catches a folder that is no model, a temporary one that stays, a model that did not learn.
#[test]
fn from_nothing_and_from_a_folder() {
    let dir = sft_place();
    let bundled = format!("model.path={}", bundled_model().display());
    for (output, set) in [("new", "seed=2"), ("warm", bundled.as_str())] {
        let ran = sft(&dir, &[&format!("output={output}"), set]).ok();
        assert!(ran.out.starts_with(&format!("model    {output} (")), "{}", ran.out);
        assert!(ran.out.contains("trained  2 steps of 8 pairs in "), "{}", ran.out);
        assert!(ran.out.contains("\n sorting    8 "), "{}", ran.out);
        let right = ["config.json", "model.safetensors", "sft.toml", "tokenizer.json", "tokenizer_config.json"];
        assert_eq!(files(&dir.path().join(output)), BTreeSet::from(right.map(str::to_owned)));
        let trained = run(&dir, &["steps=1", &format!("model.path={output}"), &format!("output=runs/{output}")]).ok();
        assert!(trained.err.contains(&format!("\nmodel     {output}: ")), "{}", trained.err);
    }
    let weights = |folder: &std::path::Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert_ne!(weights(&dir.path().join("warm")), weights(&bundled_model()));
    let left: BTreeSet<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, BTreeSet::from(["new", "runs", "sft.toml", "spec.toml", "warm"].map(Into::into)));
}

/// Catches a family that is not the one asked for, and one that a run does not load.
#[test]
fn a_new_model_is_of_the_family_asked_for() {
    let dir = sft_place();
    for family in ["llama", "qwen3"] {
        sft(&dir, &["steps=1", &format!("output={family}"), &format!("model.family={family}")]).ok();
        let config = fs::read_to_string(dir.path().join(family).join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["model_type"], family);
        run(&dir, &["steps=1", &format!("model.path={family}"), &format!("output=runs/{family}")]).ok();
    }
    sft(&dir, &["output=other", "model.family=gpt"]).refused(2, &["model.family = \"gpt\"", "`qwen3`"]);
}

/// Catches a model that is written over.
#[test]
fn an_output_that_exists_is_refused() {
    let dir = sft_place();
    fs::create_dir(dir.path().join("taken")).unwrap();
    sft(&dir, &["output=taken"]).refused(2, &["output = taken: exists already; choose another"]);
}

/// Catches a failed warm start that leaves a folder, so that the next one is told it exists; and a fault that is only found
/// after the training.
#[test]
fn what_fails_leaves_no_model() {
    let dir = sft_place();
    fs::write(dir.path().join("p.jsonl"), "{\"prompt\": \"s:21=\", \"answer\": \"12\"}\n").unwrap();
    for (set, code, says) in [
        ("data.file=none.jsonl", 1, "none.jsonl: No such file"),
        ("data.file=p.jsonl", 1, "p.jsonl: column completion: line 1: "),
        ("eval.data.file=none.jsonl", 1, "none.jsonl: No such file"),
        ("task=[]", 2, "task"),
        ("learn.lrr=1", 2, "learn.lrr = 1: no such key; did you mean learn.lr?"),
        ("model.path=nothing", 2, "model.path = nothing: no such folder"),
        ("threads=0", 2, "threads = 0: at least 1 thread, at most 128"),
        ("generate.temperature=0", 2, "generate.temperature = 0: a number above 0"),
        ("generate.max_tokens=256", 2, "generate.max_tokens = 256: the model's longest sequence"),
        ("generate.slots=0", 2, "batch_size, generate.slots, steps = 8, 0, 2: at least 1 each"),
    ] {
        sft(&dir, &["output=made", set]).refused(code, &[says]);
        assert!(!dir.path().join("made").exists(), "{set}");
    }
    sft(&dir, &["output=made"]).ok();
}

/// Catches a warm start that a signal kills, or that leaves a folder with half a model.
#[test]
fn a_signal_ends_a_warm_start_cleanly() {
    for model in ["model.path=", &format!("model.path={}", bundled_model().display())] {
        let args = ["sft", "sft.toml", "--set", "steps=1000000", "--set", "output=made", "--set", model];
        let running = Running::at(sft_place(), &["env", "--default-signal=INT"], &args);
        running.until_said("step     1/1000000  loss ");
        running.signal("INT");
        let (ran, dir) = running.end();
        ran.refused(130, &["error: stopped by signal 2"]);
        let lines: Vec<_> = ran.err.lines().collect();
        assert_eq!(
            lines[1],
            "signal 2: ending; a model that is not trained to its end is not saved; once more to end at once"
        );
        assert!(
            lines[2].starts_with("stopped after ") && lines[2].ends_with(" of 1000000 steps, and not saved"),
            "{}",
            ran.err
        );
        let left: BTreeSet<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, BTreeSet::from(["sft.toml", "spec.toml", "stderr.txt"].map(Into::into)));
    }
}
