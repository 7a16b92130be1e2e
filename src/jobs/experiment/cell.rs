//! Runs one cell: a process of this program, so that a run that fails, or is killed, costs its own cell only.

use crate::error::{Error, Result};
use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Figures, Outcome, Row, curve, rounded_seconds};
use crate::jobs::outcome::Answers;
use crate::jobs::signals::{Interrupt, PARENT};
use crate::store::{self, RunFolder};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How much of what a failed run said is kept, bytes.
const WORDS: usize = 400;

/// What `run --json` prints, as far as it is kept.
#[derive(Deserialize)]
struct Printed {
    #[serde(flatten)]
    figures: Figures,
    before: Option<Answers>,
    after: Option<Answers>,
}

/// Runs a cell into `folder`, which is made anew: what a cell that was interrupted left there is removed. Its stderr goes to the file
/// beside it, `folder` with `.log` behind.
///
/// # Errors
/// A process that cannot be started, a disk that refuses, a signal. A run that fails is a result.
pub fn run(design: &Design, cell: &Cell, folder: &Path, interrupt: &Interrupt) -> Result<Row> {
    clear(folder)?;
    let log = PathBuf::from(format!("{}.log", folder.display()));
    log.parent().map_or(Ok(()), fs::create_dir_all).map_err(|e| Error::file(&log, e))?;
    let said = File::create(&log).map_err(|e| Error::file(&log, e))?;
    let program = std::env::current_exe().map_err(|e| Error::engine("this program's own path", e))?;
    let mut command = Command::new(&program);
    command.arg("run").arg(&design.base).arg("--json");
    command.args(cell.sets.iter().flat_map(|set| ["--set", set]));
    command.arg("--set").arg(format!("output={}", toml::Value::from(folder.display().to_string())));
    // A group of its own: a signal from the terminal reaches it once, by way of the experiment.
    command.env(PARENT, std::process::id().to_string());
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
    let started = Instant::now();
    let child = command.spawn().map_err(|e| Error::file(&program, e))?;
    let (exit, printed) = finish(child, interrupt)?;
    if let Some(signal) = interrupt.signal() {
        return Err(Error::Signal(signal));
    }
    let view = RunFolder::view(folder);
    let metrics = view.as_ref().ok().and_then(|folder| store::metrics(folder).ok()).unwrap_or_default();
    let outcome = if exit == 0 {
        Outcome::Done(figures(&printed).map_err(|e| Error::file(&log, format!("the run's summary: {e}")))?)
    } else {
        Outcome::Failed { exit, error: ended_by(exit).unwrap_or_else(|| last_words(&log)) }
    };
    let first_s = view.ok().and_then(|folder| first_s(&folder));
    Ok(Row { first_s, curve: curve(&metrics), ..row(cell, started, outcome) })
}

/// What a cell came to on this machine, by this program; its work began at `started`.
pub fn row(cell: &Cell, started: Instant, outcome: Outcome) -> Row {
    Row {
        at: cell.at.clone(),
        added: cell.added.clone(),
        seed: cell.seed,
        settings: cell.settings.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine(),
        seconds: rounded_seconds(started.elapsed()),
        outcome,
        first_s: None,
        curve: Vec::new(),
    }
}

/// Removes the run that a cell left there. What is no run is not the experiment's, and stays.
///
/// # Errors
/// A folder that holds something else, or a run that still goes on.
fn clear(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let run = RunFolder::view(folder).map_err(|_| Error::file(folder, "is in the way of a cell, and is no run: move it"))?;
    let _lock = run.lock()?;
    fs::remove_dir_all(folder).map_err(|e| Error::file(folder, e))
}

fn figures(printed: &str) -> Result<Figures, serde_json::Error> {
    let Printed { figures, before, after } = serde_json::from_str(printed)?;
    let sampled = |answers: &Option<Answers>| answers.as_ref().and_then(|answers| answers.sampled.total().rate());
    Ok(Figures {
        success_before: sampled(&before),
        success: sampled(&after),
        success_greedy: after.as_ref().and_then(|answers| answers.greedy.total().rate()),
        ..figures
    })
}

/// From the first admission to the end of the first step, seconds.
fn first_s(folder: &RunFolder) -> Option<f64> {
    let first = store::steps(folder).ok()?.next()?.ok()?;
    let admitted = first.rollouts.iter().map(|rollout| rollout.group.admitted_ns).min()?;
    Some((first.footer.metrics?.finished_ns - admitted) as f64 / 1e9)
}

/// Waits for a run's end: its exit code, or 128 and the signal that ended it, and what it printed. A signal to the experiment is
/// passed on, and the run seals what is complete.
fn finish(mut child: Child, interrupt: &Interrupt) -> Result<(i32, String)> {
    let failed = |e: std::io::Error| Error::engine("the cell's process", e);
    let mut passed_on = None;
    // Read as it comes: a pipe that is full would hold the run up.
    let out = child.stdout.take();
    let reading = std::thread::spawn(move || {
        let mut printed = String::new();
        out.map_or(Ok(0), |mut out| out.read_to_string(&mut printed)).map(|_| printed)
    });
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        let signal = interrupt.signal();
        if signal != passed_on {
            passed_on = signal;
            if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
                // One that has just ended does not hear it.
                let _ = kill_process(pid, Signal::INT);
            }
        }
        sleep(LOOK);
    };
    let gone = |_| Error::engine("the cell's process", "what it printed cannot be read");
    let printed = reading.join().map_err(gone)?.map_err(failed)?;
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&status);
    Ok((status.code().or(by_signal.map(|signal| 128 + signal)).unwrap_or(1), printed))
}

/// What a run that was ended from outside has to say: nothing of it is why.
fn ended_by(exit: i32) -> Option<String> {
    let signal = exit.checked_sub(128).filter(|signal| (1..=64).contains(signal))?;
    Some(format!("ended by signal {signal}, which was not the experiment's"))
}

/// The last line that a run said.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    text.lines().last().unwrap_or_default().chars().take(WORDS).collect()
}

/// The processor, as Linux names it, and how many of them this program may use.
pub(super) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name.trim());
    let count = available_parallelism().map_or(1, |count| count.get());
    format!("{count} x {}", name.unwrap_or(std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a progress line that stands as the reason why a run was killed, and a failure that is told as a signal's.
    #[test]
    fn who_was_ended_says_by_what() {
        assert_eq!(ended_by(137).unwrap(), "ended by signal 9, which was not the experiment's");
        assert_eq!([0, 1, 2, 101, 128, 255].map(ended_by), [const { None }; 6]);
    }

    /// Catches a folder of somebody else's that is removed, and a run that is removed while it is written.
    #[test]
    fn only_a_run_that_is_over_is_cleared() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::create(place.path().join("run")).unwrap();
        let lock = run.lock().unwrap();
        assert!(clear(run.path()).unwrap_err().to_string().contains("another process is writing"));
        drop(lock);
        clear(run.path()).unwrap();
        assert!(!run.path().exists());
        fs::write(place.path().join("notes.txt"), "mine").unwrap();
        assert!(clear(place.path()).unwrap_err().to_string().ends_with("is in the way of a cell, and is no run: move it"));
        clear(&place.path().join("nothing")).unwrap();
    }

    #[test]
    fn figures_are_the_summarys() {
        let printed = r#"{"run": "r", "steps": 3, "training_s": 1.5, "trained_rollouts": 12, "trained_tokens": 70,
            "generated_tokens": 80, "reward_last": 0.25, "lag_mean": null, "lag_max": 2, "lag_bound": 4, "ess_mean": 0.5,
            "ess_min": 0.25, "before": null, "after": {"sampled": {"tasks": {"a": {"prompts": 5, "solved": 1, "unscored": 1, "tokens": 9},
            "b": {"prompts": 4, "solved": 3, "unscored": 0, "tokens": 9}}}, "greedy": {"tasks": {}}}}"#;
        let found = figures(printed).unwrap();
        assert_eq!((found.success_before, found.success, found.success_greedy), (None, Some(0.5), None));
        assert_eq!((found.steps, found.trained_rollouts, found.lag_max, found.lag_mean), (3, 12, Some(2), None));
    }
}
