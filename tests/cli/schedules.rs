//! Schedules by turns, which runs are compared with: weights between phases, and the lag of their formulas.

use crate::harness::{Ran, lags, max_lag, steps, tidegate};
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;
use tidegate::store::RunFolder;
use tidegate_operators::record::Status;

/// Phases of three steps; the last one is cut short.
const SPEC: &str = r#"
steps = 11
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 4
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 24
max_tokens = 12
[learn]
lr = 1e-2
[checkpoint]
every_steps = 4
every_minutes = 0.0
[eval]
prompts = 0
[schedule]
steps = 3
"#;

fn workplace(kind: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("spec.toml"), format!("{SPEC}kind = \"{kind}\"\n")).unwrap();
    dir
}

fn call(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), args).ok()
}

fn log(dir: &TempDir) -> RunFolder {
    RunFolder::view(dir.path().join("runs/spec")).unwrap()
}

/// Catches weights that are taken within a phase, a lag that is not the formula's, a batch out of another phase, a step in the
/// order of arrival, and a bound that is said otherwise.
#[test]
fn weights_change_between_phases_and_the_largest_lag_is_the_formulas() {
    for (kind, bound) in [("conventional", 2), ("one_step_off", 5)] {
        let dir = workplace(kind);
        let ran = call(&dir, &["run", "spec.toml"]);
        assert!(ran.out.contains(&format!("max {bound}, bound {bound} steps")), "{}", ran.out);
        let folder = log(&dir);
        assert_eq!(max_lag(&folder), bound);
        for file in steps(&folder) {
            let rows: Vec<_> = file.rollouts.iter().filter(|row| row.status == Status::Trained).collect();
            assert_eq!(rows.len(), 12, "{kind}");
            for row in rows {
                let phase = (row.step - 1) / 3;
                let sampled = if kind == "conventional" { phase * 3 } else { phase.saturating_sub(1) * 3 };
                assert!(
                    row.version.iter().all(|version| *version == sampled),
                    "{kind} step {}: {:?}",
                    row.step,
                    row.version
                );
                assert_eq!(row.group.due, (phase + 1) * 3);
            }
        }
        let said = call(&dir, &["analyze", "runs/spec"]);
        assert!(said.out.contains(&format!("bound {bound}")), "{}", said.out);
        call(&dir, &["replay", "runs/spec"]);
    }
}

/// Catches a run that, going on in the middle of a phase, waits for groups that are trained, or passes the bound.
#[test]
fn a_run_goes_on_in_the_middle_of_a_phase() {
    for (kind, bound) in [("conventional", 2), ("one_step_off", 5)] {
        let dir = workplace(kind);
        call(&dir, &["run", "spec.toml", "--set", "steps=4"]);
        call(&dir, &["resume", "runs/spec", "--set", "steps=11"]);
        let folder = log(&dir);
        let all = steps(&folder);
        let trained: Vec<_> =
            all.iter().flat_map(|file| &file.rollouts).filter(|row| row.status == Status::Trained).collect();
        assert_eq!((all.len(), trained.len()), (11, 11 * 12), "{kind}");
        let groups: BTreeSet<_> = trained.iter().map(|row| (row.group.number, row.sample)).collect();
        assert_eq!(groups.len(), 11 * 12);
        assert!(trained.into_iter().flat_map(lags).all(|lag| (0..=bound).contains(&lag)), "{kind}");
    }
}
