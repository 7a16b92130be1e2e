//! TensorBoard's events of a run: each step once, with the log's numbers, also where a run was killed and goes on.

use crate::harness::{place, tidegate};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use tidegate::store::{self, RunFolder};

const SPEC: &str = r#"
steps = 6
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
[checkpoint]
every_steps = 2
[eval]
prompts = 0
"#;

fn run(dir: &TempDir, sets: &[&str]) -> RunFolder {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    tidegate(dir.path(), &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>()).ok();
    RunFolder::view(dir.path().join("runs/spec")).unwrap()
}

/// Steps of the events in a file, in its order, with their data.
fn events(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let mut left = bytes.as_slice();
    let mut found = Vec::new();
    while !left.is_empty() {
        let length = u64::from_le_bytes(left[..8].try_into().unwrap()) as usize;
        let data = &left[12..12 + length];
        // A step below 128 is one byte; the header has none.
        if data[9] == 0x10 {
            found.push((u64::from(data[10]), data.to_vec()));
        }
        left = &left[16 + length..];
    }
    found
}

fn value(data: &[u8], tag: &str) -> f32 {
    let at = data.windows(tag.len()).position(|window| window == tag.as_bytes()).unwrap() + tag.len();
    assert_eq!(data[at], 0x15);
    f32::from_le_bytes(data[at + 1..at + 5].try_into().unwrap())
}

/// Catches a step that has no event or two, numbers of another step, and a run that goes on in a file of its own or with a gap.
#[test]
fn each_step_has_one_event_whatever_ended_the_run() {
    let dir = place(SPEC);
    let folder = run(&dir, &[]);
    let path = folder.path().join("events.out.tfevents.tidegate");
    let found = events(&path);
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..=6).collect::<Vec<_>>());
    for (metrics, (_, data)) in store::metrics(&folder).unwrap().iter().zip(&found) {
        assert_eq!(value(data, "reward/reward"), metrics.reward as f32);
        assert_eq!(value(data, "lag/lag_max"), metrics.lag_max as f32);
        assert_eq!(f64::from_le_bytes(data[1..9].try_into().unwrap()), metrics.finished_ns as f64 / 1e9);
    }
    // As a kill leaves it: the last event in half, or not there.
    let whole = fs::read(&path).unwrap();
    for (length, steps) in [(whole.len() - 100, 8), (whole.len() - found[5].1.len() - 16, 10)] {
        fs::write(&path, &fs::read(&path).unwrap()[..length]).unwrap();
        let more = format!("steps={steps}");
        tidegate(dir.path(), &["resume", "runs/spec", "--set", &more]).ok();
        assert_eq!(events(&path).iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..=steps).collect::<Vec<_>>());
        assert!(fs::read(&path).unwrap().starts_with(&whole), "what was right is as it was");
    }
}

#[test]
fn they_can_be_off() {
    let dir = place(SPEC);
    let folder = run(&dir, &["steps=2", "metrics.tensorboard=false"]);
    assert!(!folder.path().join("events.out.tfevents.tidegate").exists());
    // Later on they are made up for.
    tidegate(dir.path(), &["resume", "runs/spec", "--set", "steps=3", "--set", "metrics.tensorboard=true"]).ok();
    assert_eq!(events(&folder.path().join("events.out.tfevents.tidegate")).len(), 3);
}
