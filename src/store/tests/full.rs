//! A full disk: the log waits, and what it writes then is whole.

use super::{run, small_step};
use crate::durable::{temporary, write_sealed};
use crate::error::Error;
use crate::store::layout::LogFile;
use crate::store::{Room, read_step, size};
use parquet::errors::ParquetError;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_operators::fault::Halt;
use tidegate_operators::record::SealedStep;
use tidegate_operators::seal::Log;

/// Writes to it fail as on a full disk. A log's temporary file that leads there is removed with the first attempt.
const FULL: &str = "/dev/full";

/// Catches a pause that is not told, a step that is lost or written twice, and a temporary file that stays.
#[test]
fn the_log_waits_for_room() {
    let (_dir, folder, log) = run();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = Arc::clone(&told);
    let mut room = Room::new(&Halt::default(), move |line| lines.lock().unwrap().push(line.to_owned()));
    room.every = Duration::from_millis(1);
    let mut log = log.waits(room);
    let path = folder.log_file(LogFile::Step(1));
    symlink(FULL, temporary(&path)).unwrap();
    log.seal(small_step(1)).unwrap();
    let told = told.lock().unwrap();
    assert!(told[0].contains(" left, step 1 needs about 16 kB; paused"), "{told:?}");
    assert_eq!(told[1..], ["room again: step 1 is on disk, the run goes on"]);
    assert_eq!(read_step(&path).unwrap().rollouts, small_step(1).rollouts);
    assert!(!temporary(&path).exists());
}

/// Catches a log without anyone to wait for, or one whose run is halted, that waits; and a cause that is not seen through the
/// library's errors.
#[test]
fn without_room_the_step_is_named() {
    let (_dir, folder, mut log) = run();
    let path = folder.log_file(LogFile::Step(1));
    symlink(FULL, temporary(&path)).unwrap();
    let fault = log.seal(small_step(1)).unwrap_err().to_string();
    assert!(fault.starts_with(&format!("seal: {}: ", path.display())) && fault.contains("No space left"), "{fault}");

    let halt = Halt::default();
    halt.set();
    let mut log = log.waits(Room::new(&halt, |line| panic!("{line}")));
    symlink(FULL, temporary(&path)).unwrap();
    let fault = log.seal(small_step(1)).unwrap_err().to_string();
    assert!(fault.ends_with(": step 1 is not on disk, nor is what came after it"), "{fault}");
    log.seal(small_step(1)).unwrap();

    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::PermissionDenied] {
        let write = |_: &mut _| Err(ParquetError::from(io::Error::from(kind)));
        let error = write_sealed(&folder.log_file(LogFile::Step(2)), write).unwrap_err();
        assert_eq!(matches!(error, Error::Full { .. }), kind != ErrorKind::PermissionDenied, "{error:?}");
    }
}

/// Catches an estimate that is far from what is written: within a factor of two of 300 rows of drawn tokens.
#[test]
fn sizes_are_near_what_is_written() {
    let (_dir, folder, mut log) = run();
    let mut step = small_step(1);
    let row = step.rollouts.swap_remove(0);
    let mut state = 1_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    step.rollouts = (0..300)
        .map(|sample| {
            let mut row = row.clone();
            row.sample = sample;
            row.tokens = (0..100).map(|_| draw() % 49_152).collect();
            // Of natural text, zstd leaves about a third; of letters drawn alike, about five bits of eight.
            row.text = (0..250).map(|_| char::from(b'a' + (draw() % 26) as u8)).collect();
            row.mask = vec![true; 100];
            row.version = vec![3; 100];
            row.advantage = vec![0.5; 100];
            for list in [&mut row.logp_behavior, &mut row.logp_current, &mut row.value] {
                *list = (0..100).map(|_| -(draw() as f32) / 1e7).collect();
            }
            row
        })
        .collect();
    let size = size::of_rollouts(&step.rollouts);
    log.seal(SealedStep { ..step }).unwrap();
    let written = std::fs::metadata(folder.log_file(LogFile::Step(1))).unwrap().len();
    let ratio = written as f64 / size.expected as f64;
    assert!((0.5..2.0).contains(&ratio) && written < size.most, "{written} bytes, expected {size:?}");
}
