//! Who generates how much, and what everybody waited for, end to end.

use crate::harness::{Ran, max_lag, place, steps, tidegate};
use tempfile::TempDir;
use tidegate::store::RunFolder;

const SPEC: &str = r#"
steps = 40
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 4
[schedule]
max_lag = 3
[workers]
generators = [0, 1]
learners = [1]
balance = "auto"
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 24
max_tokens = 12
[learn]
lr = 0.1
[eval]
prompts = 0
"#;

fn call(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), args).ok()
}

/// Catches a run whose bound or bits depend on who samples what, times that do not add up, and shares that no one is told.
#[test]
fn a_balanced_run_keeps_its_promises_and_tells_its_waits() {
    let dir = place(SPEC);
    let ran = call(&dir, &["run", "spec.toml", "--json"]);
    assert!(ran.err.contains(" %, generators idle "), "{}", ran.err);
    let summary = ran.json();
    let generators = summary["generators"].as_array().unwrap();
    assert_eq!(generators.iter().map(|of| of["worker"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    for share in generators.iter().flat_map(|of| [&of["sampled"], &of["idle"]]) {
        assert!((0.0..=1.0).contains(&share.as_f64().unwrap()), "{summary}");
    }
    let of_learner = ["trained", "waited_forced", "waited_any", "waited_log", "elsewhere"];
    let whole: f64 = of_learner.iter().map(|part| summary["balance"][part].as_f64().unwrap()).sum();
    assert!((whole - 1.0).abs() < 1e-9, "{summary}");
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    assert!(max_lag(&folder) <= 3);
    for file in steps(&folder) {
        let m = file.footer.metrics.unwrap();
        // Worker 1 trains: its generator's time is not among the generators'.
        assert!(m.generators_ns > 0 && m.sample_ns + m.idle_ns <= m.generators_ns, "step {}: {m:?}", m.step);
    }
    let ran = call(&dir, &["replay", "runs/spec"]);
    assert!(ran.out.contains("40 steps") && ran.out.contains("bit for bit"), "{}", ran.out);
    let text = call(&dir, &["analyze", "runs/spec"]).out;
    assert!(text.contains("  in steady state the learner waited "), "{text}");
    let text = call(&dir, &["resume", "runs/spec", "--set", "steps=44", "--set", "workers.balance=fixed"]).out;
    assert!(text.contains("balance   generator 0 sampled ") && text.contains("; generator 1 sampled "), "{text}");
    let refused = tidegate(dir.path(), &["run", "spec.toml", "--set", "workers.learners=[2]"]);
    refused.refused(2, &["workers.balance = \"auto\": no generator beside others shares the learner's worker"]);
}
