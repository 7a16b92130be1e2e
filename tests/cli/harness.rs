//! How the tests call the program, the run that they share, and what they read of a run by themselves.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use tempfile::TempDir;
use tidegate::store::{self, RunFolder, StepFile};
use tidegate_operators::record::{Rollout, Status};

/// Steps of the shared run, and the bound on its lag.
pub const STEPS: u64 = 6;
pub const MAX_LAG: i64 = 1;

/// Small enough for a second, and saturated: the slots hold more than the bound lets through.
const SPEC: &str = r#"
steps = 6
[[task]]
kind = "sorting"
[[task]]
kind = "addition"
[batch]
batch_size = 16
group_size = 4
[schedule]
max_lag = 1
[generate]
slots = 32
max_tokens = 64
[learn]
lr = 1e-4
grad_clip = 1.0
warmup_steps = 2
[eval]
prompts = 0
"#;

/// What a call came to.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        // What it says is to be typed next begins with its own path.
        let text = |bytes| String::from_utf8(bytes).unwrap().replace(env!("CARGO_BIN_EXE_tidegate"), "tidegate");
        let (out, err) = (text(output.stdout), text(output.stderr));
        let code =
            output.status.code().unwrap_or_else(|| panic!("it did not end by itself: {}\n{out}\n{err}", output.status));
        Ran { code, out, err }
    }
}

impl Ran {
    /// The call must have gone well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}", self.out, self.err);
        self
    }

    /// The call must have failed so, with nothing on stdout and one last line on stderr that holds all of `says`.
    #[track_caller]
    pub fn refused(&self, code: i32, says: &[&str]) {
        let line = self.err.lines().last().unwrap_or_default();
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{}", self.err);
        assert!(line.starts_with("error: "), "{}", self.err);
        says.iter().for_each(|say| assert!(line.contains(say), "no {say:?} in {}", self.err));
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

pub fn bundled_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/model")
}

pub fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(folder).args(args);
    command
}

pub fn tidegate(folder: &Path, args: &[&str]) -> Ran {
    command(folder, args).output().unwrap().into()
}

/// A temporary folder with `spec.toml` in it: a run of it goes to `runs/spec`.
pub fn workplace() -> TempDir {
    place(&format!("{SPEC}[model]\npath = {:?}\n", bundled_model()))
}

/// The same of another specification.
pub fn place(spec: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("spec.toml"), spec).unwrap();
    dir
}

/// A call with `--set` before each of `sets`.
pub fn call(dir: &TempDir, args: &[&str], sets: &[&str]) -> Ran {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    tidegate(dir.path(), &args.iter().copied().chain(sets).collect::<Vec<_>>())
}

/// `run spec.toml`, which makes the folder `runs/spec`.
pub fn run(dir: &TempDir, sets: &[&str]) -> Ran {
    call(dir, &["run", "spec.toml"], sets)
}

/// `resume` of that folder.
pub fn resume(dir: &TempDir, sets: &[&str]) -> Ran {
    call(dir, &["resume", "runs/spec"], sets)
}

/// That folder.
pub fn folder(dir: &TempDir) -> RunFolder {
    RunFolder::view(dir.path().join("runs/spec")).unwrap()
}

/// The run that the tests share: they read it and never write into it.
pub struct Recorded {
    pub folder: RunFolder,
    /// Its `--json` summary.
    pub summary: serde_json::Value,
}

pub fn recorded() -> &'static Recorded {
    static RECORDED: LazyLock<Recorded> = LazyLock::new(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recorded");
        if place.exists() {
            fs::remove_dir_all(&place).unwrap();
        }
        let dir = workplace();
        let output = format!("output={}", place.display());
        let sets = ["--set", &output, "--set", "eval.prompts=24", "--json"];
        let ran = tidegate(dir.path(), &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>()).ok();
        Recorded { folder: RunFolder::view(place).unwrap(), summary: ran.json() }
    });
    &RECORDED
}

/// Path of the shared run, as an argument.
pub fn recorded_path() -> &'static str {
    recorded().folder.path().to_str().unwrap()
}

/// All sealed steps of a run, read back.
pub fn steps(folder: &RunFolder) -> Vec<StepFile> {
    store::steps(folder).unwrap().map(|step| step.unwrap()).collect()
}

/// Lags of a row's trained tokens, in steps.
pub fn lags(row: &Rollout) -> impl Iterator<Item = i64> {
    let trained = row.mask.iter().zip(&row.version).filter(|(mask, _)| **mask && row.status == Status::Trained);
    trained.map(|(_, version)| row.step as i64 - 1 - *version as i64)
}

/// The largest lag of a run; no token's may be below 0.
pub fn max_lag(folder: &RunFolder) -> i64 {
    let all: Vec<i64> = steps(folder).iter().flat_map(|file| &file.rollouts).flat_map(lags).collect();
    assert!(all.iter().all(|lag| *lag >= 0));
    all.into_iter().max().unwrap()
}

/// Every file under a folder, by its path from there.
pub fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// A copy of a folder of files.
pub fn copy(from: &Path, to: &Path) {
    for name in files(from) {
        let to = to.join(&name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from.join(&name), to).unwrap();
    }
}
