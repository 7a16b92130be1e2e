//! A compacted run, to whoever reads it: the same bits to `replay`, the same report from `analyze`.

use crate::harness::{Ran, STEPS, copy, recorded, steps, tidegate};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::{TempDir, tempdir};
use tidegate::store::layout::LogFile;
use tidegate::store::{Limits, RunFolder, compact};

/// A copy of the shared run, compacted up to a step.
fn compacted(through: u64) -> (TempDir, RunFolder) {
    let dir = tempdir().unwrap();
    copy(recorded().folder.path(), dir.path());
    let folder = RunFolder::open(dir.path()).unwrap();
    let done = compact(&folder, through, &Limits::default()).unwrap();
    assert_eq!(done.merged, [LogFile::Merged { first: 1, last: through }], "{done:?}");
    (dir, folder)
}

fn call(what: &str, run: &Path, args: &[&str]) -> Ran {
    let run = run.to_str().unwrap();
    tidegate(Path::new("/"), &[what, run].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

/// Catches a replay that finds other rows, another order or another specification in a merged file, whole or half compacted.
#[test]
fn a_compacted_run_replays_bit_for_bit() {
    for through in [STEPS, 3] {
        let (dir, _) = compacted(through);
        let check = &call("replay", dir.path(), &["--json"]).ok().json()["check"];
        assert_eq!((check["same_steps"].as_u64(), check["tensors"].as_u64()), (Some(STEPS), Some(50)));
        assert!(check["difference"].is_null(), "{check}");
    }
}

/// The report of a run without what names the run and counts its files.
fn report(run: &Path) -> (Value, Value) {
    let mut report = call("analyze", run, &["--json"]).ok().json()["runs"][0].take();
    report["run"].take();
    let files = report["files"].take();
    (report, files)
}

/// Catches a report that depends on which files the steps are in.
#[test]
fn a_compacted_run_has_the_same_report() {
    let (right, files) = report(recorded().folder.path());
    let read = files["read"].as_u64().unwrap();
    for through in [STEPS, 3] {
        let (dir, folder) = compacted(through);
        let (found, files) = report(dir.path());
        assert_eq!(found, right);
        assert_eq!((files["read"].as_u64(), files["skipped"].as_u64()), (Some(read + 1 - through), Some(0)));
        assert_eq!(steps(&folder).len() as u64, STEPS);
    }
    let (_dir, folder) = compacted(3);
    let (merged, _) = report(&folder.log_file(LogFile::Merged { first: 1, last: 3 }));
    assert_eq!((merged["first_step"].as_u64(), merged["last_step"].as_u64()), (Some(1), Some(3)));
}

/// Catches a damaged merged file that is read in part, takes the other files down with it, or is named once for each step.
#[test]
fn a_damaged_merged_file_is_named_and_may_be_skipped() {
    let (dir, folder) = compacted(3);
    let path = folder.log_file(LogFile::Merged { first: 1, last: 3 });
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let named = "step-00000001-00000003.parquet: damaged";
    call("analyze", dir.path(), &[]).refused(1, &[named]);
    call("replay", dir.path(), &[]).refused(1, &[named]);
    let report = call("analyze", dir.path(), &["--skip-bad", "--json"]).ok().json()["runs"][0].take();
    assert_eq!((report["first_step"].as_u64(), report["last_step"].as_u64()), (Some(4), Some(STEPS)));
    assert_eq!(report["files"]["skipped"], 1);
    assert_eq!(report["files"]["skipped_names"].as_array().unwrap().len(), 1);
    call("analyze", path.as_path(), &["--skip-bad"]).ok();
}
