//! TensorBoard's event file: the metrics of each step as scalars, while the run goes on.
//!
//! The file says what the log says, one event a sealed step. So it needs no state of its own: opened again it keeps what agrees with the
//! log, however the process ended that wrote it, and gets what is missing; no step is in it twice.
//!
//! A record is the length of its data (u64), a masked CRC-32C of that, the data, and a masked CRC-32C of the data (u32 each, little-endian:
//! TensorFlow's `record_writer.cc`). The data is a protocol buffer, `Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary
//! summary = 5 }` with `Summary { repeated Value value = 1 }` and `Value { string tag = 1; float simple_value = 2 }` (`event.proto`, `summary.proto`):
//! few enough fields that they are written out here.

use super::footer::metrics_fields;
use super::layout::RunFolder;
use super::reader::metrics;
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use tidegate_operators::record::{Metrics, now_ns};
use toml::{Table, Value};

/// Which metrics stand together, as `group/metric`; one that is not here goes to `other`.
const GROUPS: [(&str, &[&str]); 6] = [
    ("reward", &["reward", "success", "length", "drawn_success"]),
    ("lag", &["lag_mean", "lag_max", "ess", "kl_k1", "kl_k3", "logp_gap", "clipped"]),
    (
        "policy",
        &[
            "loss",
            "policy_loss",
            "entropy",
            "grad_norm",
            "lr",
            "kl_reference",
            "kl_coef",
            "skipped",
            "held",
            "paused",
            "enlarged",
        ],
    ),
    ("critic", &["value_loss", "explained_variance", "critic_lr", "critic_grad_norm", "critic_micro_batch_tokens"]),
    ("batch", &["rollouts", "tokens", "left_out", "slots", "micro_batch_tokens"]),
    (
        "time",
        &[
            "train_ns",
            "torch_ns",
            "wait_forced_ns",
            "wait_any_ns",
            "wait_log_ns",
            "elsewhere_ns",
            "sample_ns",
            "idle_ns",
            "generators_ns",
        ],
    ),
];

/// What an event has in fields of its own.
const OF_THE_EVENT: [&str; 2] = ["step", "finished_ns"];

/// Bytes of the first record, which says what kind of file it is.
const HEADER: usize = 40;

/// A run's event file, open at its end.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// Opens the event file of a run, or makes it. Afterwards it has an event for each sealed step, and no other.
    ///
    /// # Errors
    /// A log that cannot be read, a disk that refuses.
    pub fn open(folder: &RunFolder) -> Result<Events> {
        let path = folder.events();
        let steps = metrics(folder)?.iter().map(event).collect::<Result<Vec<_>, _>>();
        let steps = steps.map_err(|e| Error::file(&path, e))?;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = file.map_err(|e| Error::write(&path, &e))?;
        agree(&mut file, &steps).map_err(|e| Error::write(&path, &e))?;
        Ok(Events { path, file })
    }

    /// Appends a step that was sealed; in one write, so that nobody finds half an event but where the disk is full.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn add(&mut self, metrics: &Metrics) -> Result<()> {
        let event = event(metrics).map_err(|e| Error::file(&self.path, e))?;
        self.file.write_all(&event).map_err(|e| Error::write(&self.path, &e))
    }
}

/// Keeps the header and the first of `steps` that the file has, cuts what comes after, and adds those that it lacks.
fn agree(file: &mut File, steps: &[Vec<u8>]) -> io::Result<()> {
    let mut found = BufReader::new(&*file);
    let mut has = |right: &dyn Fn(&[u8]) -> Vec<u8>, length: usize| -> io::Result<bool> {
        let mut bytes = vec![0; length];
        match found.read_exact(&mut bytes) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| right(&bytes) == bytes),
        }
    };
    // Its time is that of its making.
    let same_time = |bytes: &[u8]| header(f64::from_le_bytes(bytes[13..21].try_into().unwrap_or_default()));
    let (mut kept, mut length) = (0, 0);
    if has(&same_time, HEADER)? {
        length = HEADER;
        for step in steps {
            if !has(&|_| step.clone(), step.len())? {
                break;
            }
            kept += 1;
            length += step.len();
        }
    }
    file.set_len(length as u64)?;
    file.seek(SeekFrom::Start(length as u64))?;
    let mut out = BufWriter::new(file);
    if length == 0 {
        out.write_all(&header(now_ns() as f64 / 1e9))?;
    }
    steps[kept..].iter().try_for_each(|step| out.write_all(step))?;
    out.flush()
}

/// The first record.
fn header(wall_time: f64) -> Vec<u8> {
    let mut data = timed(wall_time);
    bytes_field(&mut data, 3, b"brain.Event:2");
    record(&data)
}

/// The record of a step: all its metrics that are finite numbers, as f32.
fn event(metrics: &Metrics) -> Result<Vec<u8>, String> {
    Ok(encoded(metrics.finished_ns as f64 / 1e9, metrics.step, &scalars(&metrics_fields(metrics)?)))
}

fn encoded(wall_time: f64, step: u64, scalars: &[(String, f32)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in scalars {
        let mut scalar = Vec::new();
        bytes_field(&mut scalar, 1, tag.as_bytes());
        key(&mut scalar, 2, Wire::Four);
        scalar.extend(value.to_le_bytes());
        bytes_field(&mut summary, 1, &scalar);
    }
    let mut data = timed(wall_time);
    key(&mut data, 2, Wire::Varint);
    varint(&mut data, step);
    bytes_field(&mut data, 5, &summary);
    record(&data)
}

/// Tags and values of a step's metrics. One that is not a number has no point: TensorBoard would draw it at 0.
fn scalars(fields: &Table) -> Vec<(String, f32)> {
    let named: BTreeSet<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).chain(OF_THE_EVENT).collect();
    let others = fields.keys().filter(|name| !named.contains(name.as_str())).map(|name| ("other", name.as_str()));
    let grouped = GROUPS.iter().flat_map(|(group, names)| names.iter().map(|name| (*group, *name)));
    let value = |name: &str| match fields.get(name)? {
        Value::Integer(x) => Some(*x as f32),
        Value::Float(x) => Some(*x as f32),
        Value::Boolean(x) => Some(f32::from(u8::from(*x))),
        _ => None,
    };
    let scalar = |(group, name)| Some((format!("{group}/{name}"), value(name).filter(|x| x.is_finite())?));
    grouped.chain(others).filter_map(scalar).collect()
}

fn timed(wall_time: f64) -> Vec<u8> {
    let mut data = Vec::new();
    key(&mut data, 1, Wire::Eight);
    data.extend(wall_time.to_le_bytes());
    data
}

/// How a field of a protocol buffer is laid out.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Eight = 1,
    Bytes = 2,
    Four = 5,
}

fn key(to: &mut Vec<u8>, field: u64, wire: Wire) {
    varint(to, field << 3 | wire as u64);
}

fn varint(to: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        to.push(x as u8 | 0x80);
        x >>= 7;
    }
    to.push(x as u8);
}

fn bytes_field(to: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(to, field, Wire::Bytes);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length, masked(&length).to_le_bytes().as_slice(), data, masked(data).to_le_bytes().as_slice()].concat()
}

/// A checksum as it stands in a record, so that one over a record does not cover its own.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc: u32, byte| TABLE[(crc as u8 ^ byte) as usize] ^ crc >> 8)
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
