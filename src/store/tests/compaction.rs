//! Compaction: every row once, whatever files it is in, and whatever happens meanwhile.

use super::{assert_viewed, info, run, small_step};
use crate::durable::temporary;
use crate::error::Error;
use crate::store::layout::{LogFile, RunFolder};
use crate::store::{
    Compacted, FooterInfo, Limits, LogReader, ParquetLog, Part, StepFile, compact, metrics, read_footer, read_json_rows,
    read_step, steps, steps_after, write_metrics,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_operators::record::{Metrics, Rollout, SealedStep, Status, Step};
use tidegate_operators::seal::Log;

/// Limits that small tests reach.
pub(super) fn limits(rows: u64) -> Limits {
    Limits { rows, linger: Duration::ZERO, ..Limits::default() }
}

/// A step of `rows` rows that can be told apart.
fn step_of(step: Step, rows: u32) -> SealedStep {
    let mut sealed = small_step(step);
    let row = sealed.rollouts[0].clone();
    sealed.rollouts = (0..rows).map(|order| Rollout { order, version: vec![step, order.into()], ..row.clone() }).collect();
    if let Some(metrics) = &mut sealed.metrics {
        *metrics = Metrics { loss: step as f64 * 0.1, entropy: f64::NAN, ..metrics.clone() };
        metrics.weights.push(("a.weight".to_owned(), format!("{step:016x}")));
    }
    sealed
}

/// Everything a log says, as text (NaN is itself), without the names of its files.
pub(super) fn said(folder: &RunFolder) -> Vec<String> {
    let mut log = LogReader::open(folder).unwrap();
    let part = |part| {
        let StepFile { footer, rollouts, notes, .. } = log.read(part).unwrap();
        format!("{part:?} {footer:?} {rollouts:?} {notes:?}")
    };
    LogReader::open(folder).unwrap().parts().into_iter().map(part).collect()
}

/// `(step, order)` of the rows that `rollouts/step-*.parquet` gives to another program, with how often each is there.
fn globbed(folder: &RunFolder) -> BTreeMap<(i64, i64), u32> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder.rollouts()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("step-") && name.ends_with(".parquet") {
            for row in read_json_rows(&path).unwrap().map(Result::unwrap) {
                *found.entry((row["step"].as_i64().unwrap(), row["order"].as_i64().unwrap())).or_default() += 1;
            }
        }
    }
    found
}

pub(super) fn names(folder: &RunFolder) -> Vec<String> {
    folder.log_files().unwrap().into_iter().map(LogFile::name).collect()
}

fn merged(first: Step, last: Step) -> LogFile {
    LogFile::Merged { first, last }
}

/// Catches a row, metric, note, tail or order that is another after compaction, by whatever way it is read.
#[test]
fn a_compacted_log_says_the_same() {
    let (_dir, folder, mut log) = run();
    // An empty step, one of several row groups, one that a row group ends before; a tail that was superseded.
    let rows = [3, 0, 9000, 7600, 500, 1, 1, 1, 7];
    for (step, rows) in (1..).zip(rows) {
        if step == 4 {
            log.seal(SealedStep { metrics: None, ..small_step(4) }).unwrap();
        }
        log.seal(step_of(step, rows)).unwrap();
    }
    log.seal(SealedStep { metrics: None, ..small_step(10) }).unwrap();
    fs::write(folder.rollouts().join("notes.txt"), "mine").unwrap();
    let (before, rows_before, all) = (said(&folder), globbed(&folder), format!("{:?}", metrics(&folder).unwrap()));
    let Compacted { merged: made, replaced, rows, left } = compact(&folder, 8, &limits(18_000)).unwrap();
    assert_eq!(made, [merged(1, 8)]);
    assert_eq!((replaced.len(), rows, left.len()), (8, 17_106, 0));
    let tails = [LogFile::Tail(4), LogFile::Tail(10)];
    assert_eq!(folder.log_files().unwrap(), [merged(1, 8), tails[0], LogFile::Step(9), tails[1]]);
    assert_eq!(fs::read_to_string(folder.rollouts().join("notes.txt")).unwrap(), "mine");
    assert!(!temporary(&folder.rollouts()).exists());
    assert_eq!(said(&folder), before);
    assert_eq!(globbed(&folder), rows_before);
    assert_eq!(format!("{:?}", metrics(&folder).unwrap()), all);
    assert_eq!(folder.sealed_steps().unwrap(), (1..=9).collect::<Vec<_>>());
    assert_eq!(folder.tail().unwrap(), Some(LogFile::Tail(10)));
    // Backwards, where no step goes on from the one before.
    let mut reader = LogReader::open(&folder).unwrap();
    let mut parts: Vec<Part> = reader.parts();
    parts.reverse();
    let backwards: Vec<u64> = parts.into_iter().map(|part| reader.read(part).unwrap().footer.step).collect();
    assert_eq!(backwards, [10, 9, 8, 7, 6, 5, 4, 4, 3, 2, 1]);
    assert_eq!(reader.step(3).unwrap().into_sealed().rollouts, step_of(3, 9000).rollouts);
    assert_eq!(steps_after(&folder, 7).unwrap().map(|s| s.unwrap().rollouts.len()).collect::<Vec<_>>(), [1, 7]);
    assert_viewed(&mut LogReader::open(&folder).unwrap());
    let file = SerializedFileReader::new(File::open(folder.log_file(merged(1, 8))).unwrap()).unwrap();
    let groups: Vec<i64> = file.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [3, 8192, 808, 8103], "a row group ends where a step does");
    // A step that is sealed is sealed, wherever it is.
    let again = log.seal(small_step(3)).unwrap_err().message;
    assert!(again.contains("step-00000001-00000008.parquet: step 3 is sealed already"), "{again}");
    // Nothing to do, and nothing done.
    assert!(compact(&folder, 8, &limits(18_000)).unwrap().merged.is_empty());
}

/// Catches a merged file above its limits, and a row that is copied each time.
#[test]
fn a_log_that_grows_is_copied_as_often_as_it_doubles() {
    let (_dir, folder, mut log) = run();
    let mut copied = 0;
    for interval in 0..16u64 {
        for step in 4 * interval + 1..=4 * interval + 4 {
            log.seal(step_of(step, 1)).unwrap();
        }
        copied += compact(&folder, 4 * interval + 4, &limits(32)).unwrap().rows;
        let counts = [1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 2];
        assert_eq!(folder.log_files().unwrap().len(), counts[interval as usize], "{:?}", names(&folder));
    }
    assert_eq!(folder.log_files().unwrap(), [merged(1, 32), merged(33, 64)]);
    // To each 32 steps: four files of 4 that stay for a while, two of 8, one of 16, one of 32.
    assert_eq!(copied, 2 * (4 * 4 + 2 * 8 + 16 + 32));
    let all: Vec<_> = steps(&folder).unwrap().map(|step| step.unwrap().footer.step).collect();
    assert_eq!(all, (1..=64).collect::<Vec<_>>());
    assert_eq!(globbed(&folder).len(), 64);
    // By bytes, by metrics and by steps that are not there.
    let (_dir, folder, mut log) = run();
    for step in [1, 2, 3, 4, 6, 7] {
        log.seal(step_of(step, 1)).unwrap();
    }
    let size = folder.log_file(LogFile::Step(1)).metadata().unwrap().len();
    let by_bytes = Limits { bytes: 5 * size / 2, ..limits(99) };
    assert_eq!(compact(&folder, 3, &by_bytes).unwrap().merged, [merged(1, 2)]);
    let by_metrics = Limits { metrics_bytes: 0, ..limits(99) };
    assert!(compact(&folder, 99, &by_metrics).unwrap().merged.is_empty());
    assert_eq!(compact(&folder, 99, &limits(99)).unwrap().merged, [merged(1, 4), merged(6, 7)]);
    assert_eq!(folder.sealed_steps().unwrap(), [1, 2, 3, 4, 6, 7]);
    assert!(LogReader::open(&folder).unwrap().step(5).unwrap_err().to_string().contains("step 5 is not sealed"));
}

/// Catches a merged file that says of a step what another one's file said, and a damaged file that is merged or lost.
#[test]
fn what_is_not_alike_or_not_whole_is_not_merged() {
    let (_dir, folder, mut log) = run();
    let mut resumed = ParquetLog::new(folder.clone(), FooterInfo { learner_threads: 3, ..info() });
    for step in 1..=9 {
        let log = if step < 5 { &mut log } else { &mut resumed };
        log.seal(small_step(step)).unwrap();
    }
    let damaged = folder.log_file(LogFile::Step(7));
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[600] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let done = compact(&folder, 9, &limits(99)).unwrap();
    assert_eq!(done.merged, [merged(1, 4), merged(5, 6), merged(8, 9)]);
    assert!(matches!(&done.left[..], [Error::File { path, .. }] if *path == damaged), "{:?}", done.left);
    assert_eq!(fs::read(&damaged).unwrap(), bytes);
    let mut reader = LogReader::open(&folder).unwrap();
    assert_eq!(reader.footer(4).unwrap().info.learner_threads, 2);
    assert_eq!(reader.footer(5).unwrap().info.learner_threads, 3);
    assert!(reader.step(7).unwrap_err().to_string().contains("step-00000007.parquet: damaged"));
    assert_eq!(reader.step(8).unwrap().into_sealed(), small_step(8));
    // A file that another tool rewrote has no seal that holds: nothing says that it is whole.
    let (_dir, folder, mut log) = run();
    (1..=3).for_each(|step| log.seal(small_step(step)).unwrap());
    let path = folder.log_file(LogFile::Step(2));
    let mut bytes = fs::read(&path).unwrap();
    let creator = bytes.windows(9).rposition(|w| w == b"tidegate ").unwrap();
    bytes[creator] = b'x';
    fs::write(&path, &bytes).unwrap();
    let done = compact(&folder, 3, &limits(99)).unwrap();
    assert_eq!((done.merged, done.left.len()), (Vec::new(), 0));
    assert!(!temporary(&folder.rollouts()).exists());
}

/// Catches a damaged merged file that is read in part, and one that stands under another name.
#[test]
fn a_damaged_merged_file_is_named() {
    let (_dir, folder, mut log) = run();
    (1..=5).for_each(|step| log.seal(small_step(step)).unwrap());
    compact(&folder, 3, &limits(99)).unwrap();
    let path = folder.log_file(merged(1, 3));
    assert!(read_step(&path).unwrap_err().to_string().ends_with("holds steps 1 to 3, not one step"));
    assert!(read_footer(&path).unwrap_err().to_string().ends_with("holds steps 1 to 3, not one step"));
    let mut single = LogReader::of_file(&path).unwrap();
    assert_eq!(single.parts(), [1, 2, 3].map(Part::Step));
    assert_eq!(single.step(2).unwrap().into_sealed(), small_step(2));
    let whole = fs::read(&path).unwrap();
    for position in [whole.len() / 3, whole.len() - 300] {
        let mut bytes = whole.clone();
        bytes[position] ^= 4;
        fs::write(&path, &bytes).unwrap();
        let read: Vec<_> = steps(&folder).unwrap().collect();
        assert_eq!(read.iter().filter(|step| step.is_ok()).count(), 2);
        for step in &read[..3] {
            assert!(step.as_ref().unwrap_err().to_string().starts_with(path.to_str().unwrap()));
        }
    }
    fs::write(&path, &whole).unwrap();
    fs::rename(&path, folder.log_file(merged(1, 4))).unwrap();
    let error = LogReader::open(&folder).unwrap().step(1).unwrap_err().to_string();
    assert!(error.ends_with("step-00000001-00000004.parquet: its footer says that it is of steps 1 to 3"), "{error}");
    // Steps that somebody copied stand in two files, and are read once.
    fs::rename(folder.log_file(merged(1, 4)), &path).unwrap();
    log.seal(small_step(6)).unwrap();
    fs::copy(folder.log_file(LogFile::Step(6)), folder.log_file(LogFile::Step(2))).unwrap();
    let read: Vec<_> = steps(&folder).unwrap().map(|step| step.unwrap().footer.step).collect();
    assert_eq!(read, [1, 2, 3, 4, 5, 6]);
}

/// Catches something of the user's that is lost with the old folder.
#[test]
fn a_folder_in_the_log_is_in_the_way() {
    let (_dir, folder, mut log) = run();
    (1..=3).for_each(|step| log.seal(small_step(step)).unwrap());
    fs::create_dir(folder.rollouts().join("mine")).unwrap();
    let done = compact(&folder, 3, &limits(99)).unwrap();
    assert_eq!(done.merged, []);
    let error = done.left[0].to_string();
    assert!(error.contains("not compacted: mine is a folder"), "{error}");
    assert!(folder.rollouts().join("mine").is_dir());
    assert_eq!(folder.log_files().unwrap(), [1, 2, 3].map(LogFile::Step));
}

/// Catches a reader that keeps to the files it listed.
#[test]
fn a_log_that_is_compacted_while_it_is_read_is_read_whole() {
    let (_dir, folder, mut log) = run();
    (1..=9).for_each(|step| log.seal(small_step(step)).unwrap());
    compact(&folder, 3, &limits(99)).unwrap();
    let mut reading = steps(&folder).unwrap();
    let mut read = vec![reading.next().unwrap().unwrap().into_sealed()];
    // The file that is open is merged anew, and so are those that come next.
    assert_eq!(compact(&folder, 6, &limits(99)).unwrap().merged, [merged(1, 6)]);
    read.extend(reading.by_ref().take(4).map(|step| step.unwrap().into_sealed()));
    assert_eq!(compact(&folder, 9, &limits(9)).unwrap().merged, [merged(7, 8)]);
    read.extend(reading.map(|step| step.unwrap().into_sealed()));
    assert_eq!(read, (1..=9).map(small_step).collect::<Vec<_>>());
    write_metrics(&folder).unwrap();
    assert_eq!(read_json_rows(&folder.metrics()).unwrap().count(), 9);
    // A file that is gone for good is named.
    let mut reader = LogReader::open(&folder).unwrap();
    fs::remove_file(folder.log_file(LogFile::Step(9))).unwrap();
    assert!(reader.step(9).unwrap_err().to_string().contains("step-00000009.parquet"));
}

/// Reads as another program does: lists the names, opens each. None where a file had left meanwhile.
fn list_and_open(rollouts: &Path) -> Option<Vec<u64>> {
    let names: Vec<String> =
        fs::read_dir(rollouts).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let mut found = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".parquet")) {
        let file = File::open(rollouts.join(name)).ok()?;
        let reader = SerializedFileReader::new(file).unwrap();
        for group in reader.metadata().row_groups() {
            found.push(u64::try_from(group.num_rows()).unwrap());
        }
    }
    Some(found)
}

/// Tells the others that it is over, also by a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Catches a step that is sealed into the folder which is being replaced, a listing that lacks rows or has them twice.
#[test]
fn steps_are_sealed_and_read_while_the_log_is_compacted() {
    const LAST: u64 = 60;
    let (_dir, folder, mut log) = run();
    log.seal(step_of(1, 1)).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = End(&ended);
            let mut log = ParquetLog::new(folder.clone(), info());
            (2..=LAST).for_each(|step| log.seal(step_of(step, 1)).unwrap());
        });
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                let limits = Limits { linger: Duration::from_millis(20), ..limits(16) };
                compact(&folder, folder.sealed_steps().unwrap().len() as u64, &limits).unwrap();
            }
        });
        scope.spawn(|| {
            let viewed = RunFolder::view(folder.path()).unwrap();
            while !ended.load(Ordering::Acquire) {
                let before = viewed.sealed_steps().unwrap().len() as u64;
                let read: Vec<u64> = steps(&viewed).unwrap().map(|step| step.unwrap().rollouts[0].version[0]).collect();
                assert!(read.len() as u64 >= before);
                assert_eq!(read, (1..=read.len() as u64).collect::<Vec<_>>());
                let before = viewed.sealed_steps().unwrap().len() as u64;
                if let Some(rows) = list_and_open(&folder.rollouts()) {
                    let sum = rows.iter().sum::<u64>();
                    assert!(before <= sum && sum <= viewed.sealed_steps().unwrap().len() as u64, "{before} {rows:?}");
                }
            }
        });
    });
    assert_eq!(globbed(&folder).into_values().collect::<Vec<_>>(), vec![1; LAST as usize]);
}

/// Catches a superseded tail whose discarded rows are gone with the small files around it.
#[test]
fn discarded_rows_of_a_superseded_tail_stay() {
    let (_dir, folder, mut log) = run();
    log.seal(small_step(1)).unwrap();
    log.seal(SealedStep { metrics: None, ..small_step(2) }).unwrap();
    (2..=4).for_each(|step| log.seal(small_step(step)).unwrap());
    assert_eq!(compact(&folder, 4, &limits(99)).unwrap().merged, [merged(1, 4)]);
    let parts = LogReader::open(&folder).unwrap().parts();
    assert_eq!(parts, [Part::Step(1), Part::Tail(2), Part::Step(2), Part::Step(3), Part::Step(4)]);
    let tail = read_step(&folder.log_file(LogFile::Tail(2))).unwrap();
    assert_eq!(tail.rollouts.iter().filter(|row| matches!(row.status, Status::Discarded(_))).count(), 2);
}
