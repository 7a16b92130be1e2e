//! A run that is stopped, or that fails, in the middle: what is complete stays, and the user is told.

use crate::harness::{Ran, command, files, steps, tidegate, workplace};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate::store::layout::LogFile;
use tidegate::store::{RunFolder, read_json_rows, read_step};
use tidegate_operators::record::Status;

/// How long a stopped run may take to end; a few seconds on a machine that does other things too.
const SOON: Duration = Duration::from_secs(15);

struct Running {
    child: Child,
    dir: TempDir,
}

impl Running {
    /// A run without end to speak of.
    fn start(set: &str) -> Running {
        let dir = workplace();
        let args = ["run", "spec.toml", "--set", "steps=1000000", "--set", set];
        let child = command(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running { child, dir }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("runs/spec")
    }

    fn until(&self, file: &str) {
        let (start, path) = (Instant::now(), self.path().join(file));
        while !path.exists() {
            assert!(start.elapsed() < 4 * SOON, "no {}", path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end, which must come soon.
    fn end(mut self) -> (Ran, TempDir) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if start.elapsed() > SOON {
                self.child.kill().unwrap();
                panic!("it still runs after {SOON:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.child.wait_with_output().unwrap().into(), self.dir)
    }
}

/// All that a stopped run must have left: whole files, the checkpoint and the metrics of its last step.
fn whole(path: &Path) -> RunFolder {
    let folder = RunFolder::view(path).unwrap();
    let sealed = folder.sealed_steps().unwrap();
    let last = sealed.len() as u64;
    assert_eq!(sealed, (1..=last).collect::<Vec<_>>());
    assert!(steps(&folder).iter().all(|file| file.rollouts.iter().any(|row| row.status == Status::Trained)));
    assert_eq!(folder.checkpointed_steps().unwrap(), [last]);
    let rows = read_json_rows(&folder.metrics()).unwrap().map(|row| row.unwrap()["step"].as_u64().unwrap());
    assert_eq!(rows.collect::<Vec<_>>(), sealed);
    if let Some(tail) = folder.tail().unwrap() {
        let tail = read_step(&folder.log_file(tail)).unwrap();
        assert_eq!((tail.footer.step, tail.footer.metrics), (last + 1, None));
        assert!(!tail.rollouts.is_empty() && tail.rollouts.iter().all(|row| row.status != Status::Trained));
    }
    assert!(files(path).iter().all(|name| !name.ends_with(".tmp")));
    folder
}

/// Catches a signal that kills, that is not noticed, or whose exit code is that of a failure.
#[test]
fn signals_end_a_run_cleanly() {
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        let running = Running::start("eval.prompts=0");
        running.until("rollouts/step-00000002.parquet");
        running.signal(signal);
        let (ran, dir) = running.end();
        assert_eq!(ran.code, 128 + number, "{}", ran.err);
        assert!(ran.err.contains(&format!("signal {number}: sealing what is complete")), "{}", ran.err);
        assert!(ran.err.ends_with(&format!("error: stopped by signal {number}\n")), "{}", ran.err);
        let folder = whole(&dir.path().join("runs/spec"));
        let steps = folder.sealed_steps().unwrap().len();
        assert!(steps >= 2);
        assert!(ran.out.contains(&format!("trained   {steps} steps in ")), "{}", ran.out);
        let replayed = tidegate(dir.path(), &["replay", "runs/spec"]).ok();
        assert!(replayed.out.contains("bit for bit"), "{}", replayed.out);
        tidegate(dir.path(), &["analyze", "runs/spec"]).ok();
    }
}

/// Catches an evaluation that goes on to its end, however long; and means over no steps that are printed as numbers.
#[test]
fn a_signal_during_the_first_evaluation_is_heard() {
    let running = Running::start("eval.prompts=20000");
    running.until("spec.toml");
    // The handler is set right after; the evaluation would take half a minute and more.
    std::thread::sleep(Duration::from_millis(500));
    running.signal("INT");
    let (ran, dir) = running.end();
    assert_eq!(ran.code, 130, "{}", ran.err);
    let path = dir.path().join("runs/spec");
    assert!(RunFolder::view(&path).unwrap().sealed_steps().unwrap().is_empty());
    assert!(ran.out.contains("reward    - in the first tenth of the steps, - in the last\n"), "{}", ran.out);
    assert!(ran.out.contains("ESS       mean -, least -\n"), "{}", ran.out);
    assert!(!ran.out.contains("NaN") && !ran.out.contains("-0.0"), "{}", ran.out);
    assert!(path.join("checkpoints/step-00000000/model.safetensors").exists());
}

/// A file stands where a step is to be sealed. Catches a fault that hangs the run, one whose cause is hidden by what cannot
/// be done after it, and a result that is printed for a failed run.
#[test]
fn a_fault_in_mid_run_is_told_and_what_was_complete_is_kept() {
    let running = Running::start("eval.prompts=0");
    running.until("rollouts/step-00000002.parquet");
    let folder = RunFolder::view(running.path()).unwrap();
    fs::write(folder.log_file(LogFile::Step(20)), "in the way").unwrap();
    let (ran, _dir) = running.end();
    ran.refused(1, &["error: seal: ", "step-00000020.parquet: step 20 is sealed already"]);
    assert!(ran.err.contains("\n19 steps are sealed in "), "{}", ran.err);
    assert!(ran.err.contains("\nalso: ") && ran.err.contains("step-00000020.parquet: "), "{}", ran.err);
    for step in 1..=19 {
        assert!(read_step(&folder.log_file(LogFile::Step(step))).is_ok());
    }
    assert_eq!(fs::read(folder.log_file(LogFile::Step(20))).unwrap(), b"in the way");
    assert_eq!(folder.checkpointed_steps().unwrap().len(), 1);
}
