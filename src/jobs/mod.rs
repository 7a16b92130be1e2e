//! What each command does, one file a job, and what they share.
//!
//! * jobs: [`run`], [`resume`], [`sft`], [`replay`], [`analyze`], [`eval`](eval::job), [`experiment`] many runs, [`plan`] before any; pages with pictures are [`mod@report`];
//! * of a run: [`course`] from its start, or from where [`recovery`] finds it, to its end, with [`checkpoints`], the [`best`]
//!   kept apart;
//! * shared: [`preflight`] room on the disk, [`data`] prompts, which of them comes next ([`curriculum`]), [`encode`] their ids, [`ports`] of the dataflow, [`rewards`], advantages
//!   by group ([`estimator`]) and by batch ([`whitening`]), a [`critic`] with a model of its own, the [`mod@reference`] policy, the batch [`as_taken`] when a step fails, the end of a run that diverges ([`divergence`]), [`training`] the dataflow on its workers, at which [`pace`] and with which [`waits`], what the two say of the split ([`shares`], [`advice`]), [`eval`] held-out success, [`progress`] what is shown meanwhile, a reward that is [`reached`], tables as [`lines`], [`summary`] at the
//!   end, kept as its [`outcome`], what accelerators that are emulated came to ([`emulation`]), [`signals`], threads that wait ([`spinning`]), TensorBoard's events ([`tensorboard`]);
//! * of replay: [`retrace`] trains again from a [`recording`], [`verdict`] what it came to; [`lent`] a learner that comes back, and whether a model is the recorded one ([`identity`]).

pub mod advice;
pub mod analyze;
pub mod as_taken;
pub mod best;
pub mod checkpoints;
pub mod course;
pub mod critic;
pub mod curriculum;
pub mod data;
pub mod divergence;
pub mod emulation;
pub mod encode;
pub mod estimator;
pub mod eval;
pub mod experiment;
pub mod identity;
pub mod lent;
pub mod lines;
pub mod outcome;
pub mod pace;
pub mod plan;
pub mod ports;
pub mod preflight;
pub mod progress;
pub mod reached;
pub mod recording;
pub mod recovery;
pub mod reference;
pub mod replay;
pub mod report;
pub mod resume;
pub mod retrace;
pub mod rewards;
pub mod run;
pub mod sft;
pub mod shares;
pub mod signals;
pub mod spinning;
pub mod summary;
pub mod tensorboard;
pub mod training;
pub mod verdict;
pub mod waits;
pub mod whitening;

use crate::error::{Error, Result};
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stderr, stdout};

/// Keys by how they begin, in a sentence: `learn.*, model.device`.
fn told(keys: &[&str]) -> String {
    let told = keys.iter().map(|key| if key.ends_with('.') { format!("{key}*") } else { (*key).to_owned() });
    told.collect::<Vec<_>>().join(", ")
}

/// This program as a person can type it again: by the path that it was started with, or by its name where the shell found it.
fn program() -> String {
    let started = std::env::args_os().next().map(|started| started.to_string_lossy().into_owned());
    started.filter(|started| started.contains('/')).unwrap_or_else(|| "tidegate".to_owned())
}

/// How a job prints its result on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}

/// Prints a result on stdout, and a newline behind it. Whoever read enough (`| head`), or closed the terminal, is no error.
///
/// # Errors
/// A disk that is full, where stdout is a file.
pub fn print(result: impl Display) -> Result<()> {
    match writeln!(stdout(), "{result}").and_then(|()| stdout().flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe && !hung_up(&e) => Err(Error::file("stdout", e)),
        _ => Ok(()),
    }
}

/// Whether stdout was a terminal, which is gone: a broken disk fails alike.
fn hung_up(error: &io::Error) -> bool {
    let device = |stat: Stat| FileType::from_raw_mode(stat.st_mode).is_char_device();
    error.raw_os_error() == Some(Errno::IO.raw_os_error()) && fstat(stdout()).is_ok_and(device)
}

/// Says something on stderr, on a line of its own beside a bar. Nobody there to hear it, a terminal that is gone, ends no run.
pub fn say(talk: impl Display) {
    progress::beside_bar(|| writeln!(stderr(), "{talk}").unwrap_or_default());
}
