//! Damaged files: each is named, none is half read, none makes the reader panic.

use super::super::{read_json_rows, read_step, steps};
use super::{run, small_step, write_small};
use crate::error::Error;
use crate::store::layout::LogFile;
use std::fs;
use std::path::Path;
use tidegate_operators::seal::Log;

fn assert_named(path: &Path, what: &str) {
    match read_step(path) {
        Err(Error::File { path: named, .. } | Error::Column { path: named, .. }) => assert_eq!(named, path, "{what}"),
        other => panic!("{what}: {:?}", other.map(|file| file.rollouts.len())),
    }
}

#[test]
fn a_file_cut_at_any_byte_is_named() {
    let (_dir, path) = write_small();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_named(&path, &format!("cut to {length} of {} bytes", whole.len()));
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(read_step(&path).unwrap().into_sealed(), small_step(1));
}

#[test]
fn a_torn_page_is_named_and_the_other_files_are_read() {
    let (_dir, folder, mut log) = run();
    for step in [1, 2, 3] {
        log.seal(small_step(step)).unwrap();
    }
    let path = folder.log_file(LogFile::Step(2));
    let mut bytes = fs::read(&path).unwrap();
    bytes[600..640].fill(0);
    fs::write(&path, &bytes).unwrap();
    let read: Vec<_> = steps(&folder).unwrap().collect();
    assert!(read[0].is_ok() && read[2].is_ok());
    let error = read[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("step-00000002.parquet") && error.contains("damaged"), "{error}");
}

#[test]
fn no_flipped_byte_is_read_as_data() {
    let (_dir, path) = write_small();
    let whole = fs::read(&path).unwrap();
    let mut unseen = 0;
    for position in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[position] ^= 1 << (position % 8);
        fs::write(&path, &bytes).unwrap();
        // Some bytes of the footer say nothing (an unused statistic): then what is read is still right.
        match read_step(&path) {
            Ok(file) => {
                unseen += 1;
                assert_eq!(file.into_sealed(), small_step(1), "byte {position}");
            }
            Err(Error::File { path: named, .. } | Error::Column { path: named, .. }) => assert_eq!(named, path),
            Err(other) => panic!("byte {position}: {other}"),
        }
    }
    assert!(unseen < whole.len() / 4, "{unseen} of {}", whole.len());
}

#[test]
fn what_is_no_parquet_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step-00000001.parquet");
    assert_named(&path, "missing");
    for bytes in [&b""[..], b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"hello, this is not Parquet at all"] {
        fs::write(&path, bytes).unwrap();
        assert_named(&path, &format!("{bytes:?}"));
        assert!(read_json_rows(&path).is_err());
    }
    assert_named(dir.path(), "a folder");
}
