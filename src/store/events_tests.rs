//! Tests of the event file: its bytes by known answers, and what opening it again makes of a file that ended anyhow.

use super::*;
use crate::store::{FooterInfo, ParquetLog};
use std::fs;
use tidegate_operators::record::SealedStep;
use tidegate_operators::seal::Log;

/// Known answers: the check value of the CRC catalogue, and RFC 3720's zeros. Catches the other polynomial (0xCBF43926), and a mask that
/// rotates the other way.
#[test]
fn checksums_are_castagnolis() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
    assert_eq!(masked(b"123456789"), 0xC78A_B0E5);
}

/// The bytes that TensorBoard's own writer (2.21) makes of the same events. Catches an order of fields, a key, a length.
#[test]
fn records_are_as_others_write_them() {
    let hex = |record: &[u8]| record.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&header(1.5)), "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
    assert_eq!(header(1.5).len(), HEADER);
    assert_eq!(
        hex(&encoded(2.0, 300, &[("reward/reward".to_owned(), 30.0)])),
        "2400000000000000422b804d09000000000000004010ac022a160a140a0d7265776172642f726577617264150000f04121cef8f4"
    );
}

#[test]
fn numbers_of_many_bytes_are_split_by_seven_bits() {
    let of = |x| {
        let mut bytes = Vec::new();
        varint(&mut bytes, x);
        bytes
    };
    assert_eq!((of(0), of(127), of(128), of(300)), (vec![0], vec![127], vec![0x80, 1], vec![0xAC, 2]));
    assert_eq!(of(u64::MAX).len(), 10);
}

/// The step of an event (None of the header), and its tags with their values.
type Event = (Option<u64>, Vec<(String, f32)>);

/// A file taken apart.
fn events(bytes: &[u8]) -> Vec<Event> {
    let mut left = bytes;
    let mut found = Vec::new();
    while !left.is_empty() {
        let length = u64::from_le_bytes(left[..8].try_into().unwrap()) as usize;
        assert_eq!(left[8..12], masked(&left[..8]).to_le_bytes());
        let data = &left[12..12 + length];
        assert_eq!(left[12 + length..16 + length], masked(data).to_le_bytes());
        found.push(event_of(&data[9..]));
        left = &left[16 + length..];
    }
    found
}

/// Behind the time: the step, and the summary; or the version of the file.
fn event_of(data: &[u8]) -> Event {
    if data[0] == 0x1A {
        assert_eq!(&data[2..], b"brain.Event:2");
        return (None, Vec::new());
    }
    let mut at = &data[1..];
    let step = take_varint(&mut at);
    assert_eq!((data[0], at[0]), (0x10, 0x2A));
    at = &at[1..];
    assert_eq!(take_varint(&mut at) as usize, at.len());
    let mut scalars = Vec::new();
    while !at.is_empty() {
        assert_eq!((at[0], at[2]), (0x0A, 0x0A));
        let (length, tag) = (at[1] as usize, at[3] as usize);
        let name = String::from_utf8(at[4..4 + tag].to_vec()).unwrap();
        assert_eq!((at[4 + tag], tag + 7), (0x15, length));
        scalars.push((name, f32::from_le_bytes(at[5 + tag..9 + tag].try_into().unwrap())));
        at = &at[2 + length..];
    }
    (Some(step), scalars)
}

fn take_varint(at: &mut &[u8]) -> u64 {
    let mut x = 0;
    for shift in (0..).step_by(7) {
        let byte = at[0];
        *at = &at[1..];
        x |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    x
}

fn metrics(step: u64) -> Metrics {
    Metrics {
        step,
        reward: 0.1 * step as f64,
        entropy: f64::NAN,
        finished_ns: step as i64 * 1_000_000_000,
        ..Metrics::default()
    }
}

/// Catches a number of a step that has no curve, one that is not a number and is drawn as 0, and a value of another column.
#[test]
fn an_event_has_every_number_of_its_step() {
    let step = Metrics { skipped: true, lag_max: 7, weights: vec![("w".to_owned(), "0".to_owned())], ..metrics(300) };
    let found = events(&event(&step).unwrap()).remove(0);
    assert_eq!(found.0, Some(300));
    let value = |tag: &str| found.1.iter().find(|(name, _)| name == tag).map(|(_, value)| *value);
    assert_eq!((value("reward/reward"), value("policy/skipped"), value("lag/lag_max")), (Some(30.0), Some(1.0), Some(7.0)));
    assert_eq!((value("policy/entropy"), value("lag/ess")), (None, Some(0.0)));
    let numbers = metrics_fields(&Metrics::default()).unwrap().into_iter().filter(|(_, value)| !value.is_array());
    let mut columns: Vec<String> =
        numbers.map(|(name, _)| name).filter(|name| !OF_THE_EVENT.contains(&name.as_str())).collect();
    let all = scalars(&metrics_fields(&Metrics::default()).unwrap());
    let mut names: Vec<&str> = all.iter().map(|(tag, _)| tag.split_once('/').unwrap().1).collect();
    columns.sort();
    names.sort_unstable();
    assert_eq!(names, columns);
    let later = scalars(&Table::from_iter([("grown_later".to_owned(), Value::Integer(3))]));
    assert_eq!(later, [("other/grown_later".to_owned(), 3.0)]);
}

/// A run of so many sealed steps.
fn run(steps: u64) -> (tempfile::TempDir, RunFolder, ParquetLog) {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let mut log = ParquetLog::new(folder.clone(), FooterInfo::default());
    (1..=steps).for_each(|step| seal(&mut log, step));
    (dir, folder, log)
}

fn seal(log: &mut ParquetLog, step: u64) {
    log.seal(SealedStep { step, rollouts: Vec::new(), metrics: Some(metrics(step)) }).unwrap();
}

fn steps(folder: &RunFolder) -> Vec<Option<u64>> {
    events(&fs::read(folder.events()).unwrap()).into_iter().map(|(step, _)| step).collect()
}

/// Catches a step that is in the file twice or not at all, half an event that stays, and a file that is written anew where it agrees: who
/// reads it as it grows would find another one.
#[test]
fn opened_again_it_says_what_the_log_says() {
    let (_dir, folder, mut log) = run(0);
    let mut live = Events::open(&folder).unwrap();
    assert_eq!(steps(&folder), [None]);
    for step in 1..=4 {
        seal(&mut log, step);
        live.add(&metrics(step)).unwrap();
    }
    let whole = fs::read(folder.events()).unwrap();
    let right = [None, Some(1), Some(2), Some(3), Some(4)];
    assert_eq!(steps(&folder), right);
    let again = |bytes: &[u8]| {
        fs::write(folder.events(), bytes).unwrap();
        Events::open(&folder).unwrap();
        fs::read(folder.events()).unwrap()
    };
    let step = event(&metrics(4)).unwrap();
    let ahead = [whole.as_slice(), &event(&metrics(5)).unwrap()].concat();
    let twice = [whole.as_slice(), &step].concat();
    let torn = [whole.as_slice(), &step[..step.len() / 2]].concat();
    let mut damaged = whole.clone();
    damaged[HEADER + 30] ^= 1;
    let lacks = &whole[..whole.len() - step.len()];
    for bytes in [&whole, &ahead, &twice, &torn, &damaged, lacks, &whole[..whole.len() - 1], &whole[..HEADER]] {
        assert!(again(bytes) == whole, "{} bytes", bytes.len());
    }
    // Without a header, or with another's, all is made anew.
    for bytes in [&whole[..HEADER - 1], b"".as_slice(), &whole[HEADER..], b"not an event file, and longer than a header is"]
    {
        assert!(again(bytes)[HEADER..] == whole[HEADER..], "{} bytes", bytes.len());
        assert_eq!(steps(&folder), right);
    }
    fs::remove_file(folder.events()).unwrap();
    let mut gone_on = Events::open(&folder).unwrap();
    gone_on.add(&metrics(5)).unwrap();
    assert_eq!(steps(&folder), [&right[..], &[Some(5)]].concat());
}
