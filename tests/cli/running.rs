//! A run in the background, and what it must have left once it has ended.

use crate::harness::{Ran, files, steps, workplace};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate::store::{RunFolder, read_json_rows, read_step};
use tidegate_operators::record::Status;

/// Its stderr.
const ERR: &str = "stderr.txt";
/// How long a stopped run may take to end; a few seconds on a machine that does other things too.
const SOON: Duration = Duration::from_secs(15);

pub struct Running {
    child: Child,
    pub dir: TempDir,
}

impl Running {
    /// A run without end to speak of.
    pub fn start(set: &str) -> Running {
        Running::under(&["env", "--default-signal=HUP,INT,TERM"], set)
    }

    /// The same, called by another program with these arguments.
    pub fn under(caller: &[&str], set: &str) -> Running {
        Running::at(workplace(), caller, &["run", "spec.toml", "--set", "steps=1000000", "--set", set])
    }

    /// Any command, in a place that is prepared.
    pub fn at(dir: TempDir, caller: &[&str], args: &[&str]) -> Running {
        let program = [env!("CARGO_BIN_EXE_tidegate")];
        let mut command = Command::new(caller[0]);
        command.args(caller[1..].iter().chain(&program).chain(args)).current_dir(dir.path());
        let err = File::create(dir.path().join(ERR)).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(err).spawn().unwrap();
        Running { child, dir }
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("runs/spec")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Until a line on stderr begins so.
    pub fn until_said(&self, start: &str) {
        let (began, path) = (Instant::now(), self.dir.path().join(ERR));
        while !fs::read_to_string(&path).unwrap().lines().any(|line| line.starts_with(start)) {
            assert!(began.elapsed() < 4 * SOON, "no {start:?} in {}", fs::read_to_string(&path).unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn until(&self, file: &str) {
        let (start, path) = (Instant::now(), self.path().join(file));
        while !path.exists() {
            assert!(start.elapsed() < 4 * SOON, "no {}", path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, name: &str) {
        self.signals(&[name]);
    }

    /// As quickly one after the other as a shell can.
    pub fn signals(&self, names: &[&str]) {
        let kill = |name| format!("kill -s {name} {}", self.child.id());
        let all = names.iter().map(kill).collect::<Vec<_>>().join(" && ");
        assert!(Command::new("sh").args(["-c", &all]).status().unwrap().success());
    }

    /// After a signal that nothing survives.
    pub fn killed(mut self) -> TempDir {
        assert!(!self.child.wait().unwrap().success());
        self.dir
    }

    /// Waits for its end, which must come soon.
    pub fn end(mut self) -> (Ran, TempDir) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if start.elapsed() > SOON {
                self.child.kill().unwrap();
                panic!("it still runs after {SOON:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let err = fs::read_to_string(self.dir.path().join(ERR)).unwrap();
        (Ran { err, ..Ran::from(self.child.wait_with_output().unwrap()) }, self.dir)
    }
}

/// All that a stopped run must have left: whole files, the checkpoint and the metrics of its last step.
pub fn whole(path: &Path) -> RunFolder {
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
