//! Damaged files: each is named, none is half read, none makes the reader panic.

use super::{run, small_step, write_small};
use crate::error::Error;
use crate::store::layout::LogFile;
use crate::store::{read_json_rows, read_step, steps};
use std::fs;
use std::os::unix::fs::FileExt;
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
    assert_eq!(read_step(&path).unwrap().into_sealed(), small_step(1));
    let file = fs::File::options().write(true).open(&path).unwrap();
    for length in (0..file.metadata().unwrap().len()).rev() {
        file.set_len(length).unwrap();
        assert_named(&path, &format!("cut to {length} bytes"));
    }
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

/// Flips one bit of a file's bytes, one after the other, in place.
fn flip_each(path: &Path, stride: usize, mut check: impl FnMut(usize)) {
    let whole = fs::read(path).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    for position in (0..whole.len()).step_by(stride) {
        file.write_all_at(&[whole[position] ^ 1 << (position % 8)], position as u64).unwrap();
        check(position);
        file.write_all_at(&[whole[position]], position as u64).unwrap();
    }
}

#[test]
fn no_flipped_byte_is_read_as_data() {
    let (_dir, path) = write_small();
    let mut seen_through = 0;
    flip_each(&path, 1, |position| match read_step(&path) {
        // A flip in the creator's name or the seal's key makes the file one without a seal: what it says is still right.
        Ok(file) => {
            seen_through += 1;
            assert_eq!(file.into_sealed(), small_step(1), "byte {position}");
        }
        Err(Error::File { path: named, .. } | Error::Column { path: named, .. }) => assert_eq!(named, path),
        Err(other) => panic!("byte {position}: {other}"),
    });
    assert!(seen_through < 40, "{seen_through}");
}

/// Of files without a seal the reader cannot know what was written; it must still not panic.
#[test]
fn a_damaged_file_without_a_seal_is_an_error_or_other_rows() {
    let (_dir, path) = write_small();
    let mut bytes = fs::read(&path).unwrap();
    let creator = bytes.windows(9).rposition(|w| w == b"tidegate ").unwrap();
    bytes[creator] = b'x';
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read_step(&path).unwrap().into_sealed(), small_step(1));
    flip_each(&path, 11, |position| {
        if let Err(error) = read_step(&path) {
            assert!(error.to_string().starts_with(&path.display().to_string()), "byte {position}: {error}");
        }
    });
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
