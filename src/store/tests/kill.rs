//! A real SIGKILL at each place of a compaction and of a seal: the test's own binary is the process that is ended.

use super::compaction::{limits, names, said};
use super::{info, run, small_step};
use crate::durable::temporary;
use crate::store::layout::{LogFile, RunFolder};
use crate::store::{ParquetLog, compact};
use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use tidegate_operators::seal::Log;

const FOLDER: &str = "TIDEGATE_TEST_FOLDER";
const SIGKILL: i32 = 9;

/// What the process does that is ended: compacts steps 1 to 8, then seals step 10. Alone it does nothing.
#[test]
fn victim() {
    let Some(path) = env::var_os(FOLDER) else { return };
    let folder = RunFolder::open(path).unwrap();
    compact(&folder, 8, &limits(16)).unwrap();
    ParquetLog::new(folder, info()).seal(small_step(10)).unwrap();
}

/// Runs the victim to its end at `place`, and says whether it was killed.
fn kill_at(folder: &Path, place: &str) -> bool {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "store::tests::kill::victim", "--test-threads=1"]);
    let output = command.env(FOLDER, folder).env("TIDEGATE_KILL_AT", place).output().unwrap();
    let killed = output.status.signal() == Some(SIGKILL);
    assert!(killed || output.status.success(), "{place}: {}", String::from_utf8_lossy(&output.stdout));
    killed
}

/// Catches a row that is lost or doubled, and a temporary that stays, wherever the process ends.
#[test]
fn a_kill_anywhere_leaves_every_row_once() {
    let (_dir, folder, mut log) = run();
    (1..=9).for_each(|step| log.seal(small_step(step)).unwrap());
    let (before, files) = (said(&folder), names(&folder));
    let compacted = ["step-00000001-00000004.parquet", "step-00000005-00000008.parquet", "step-00000009.parquet"];
    // Four rows a step, sixteen a merged file: two of them, which replace eight.
    let places = [
        ("compact: merged:1", false, false),
        ("compact: merged:2", false, false),
        ("compact: linked:1", false, false),
        ("compact: swapped:1", true, false),
        ("compact: removing:3", true, false),
        ("compact: removed:1", true, false),
        ("file: written:1", true, false),
        ("file: renamed:1", true, true),
    ];
    std::thread::scope(|scope| {
        for (place, is_compacted, is_sealed) in places {
            let (before, files) = (&before, &files);
            scope.spawn(move || {
                let (_dir, folder, mut log) = run();
                (1..=9).for_each(|step| log.seal(small_step(step)).unwrap());
                assert!(kill_at(folder.path(), place), "{place} was never passed");
                let look = |when: &str| {
                    let what = format!("{place}, {when}");
                    let mut found = names(&folder);
                    let mut says = said(&folder);
                    let sealed = is_sealed && found.pop().is_some() && says.pop().is_some();
                    assert_eq!(sealed, is_sealed, "{what}");
                    if is_compacted {
                        assert_eq!(found, compacted, "{what}");
                    } else {
                        assert_eq!(&found, files, "{what}");
                    }
                    assert_eq!(&says, before, "{what}");
                };
                look("as it was left");
                let opened = RunFolder::open(folder.path()).unwrap();
                look("opened");
                for place in [opened.path().to_owned(), opened.rollouts(), opened.checkpoints()] {
                    let mut names = fs::read_dir(place).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
                    assert!(names.all(|name| !name.ends_with(".tmp")));
                }
                // What was not done is done by the next one.
                compact(&opened, 8, &limits(16)).unwrap();
                assert_eq!(names(&opened)[..3], compacted);
            });
        }
    });
    assert!(!kill_at(folder.path(), "compact: merged:99"), "a place that is passed less often ends nothing");
    assert!(folder.log_file(LogFile::Step(10)).exists() && !temporary(&folder.rollouts()).exists());
}
