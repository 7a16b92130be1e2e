//! The run's folder: where each file is, and what it is called.
//!
//! ```text
//! runs/NAME/
//!   spec.toml                          the whole configuration
//!   rollouts/step-00000042.parquet     one file a sealed step
//!   rollouts/step-00000001-00000040.parquet  those that were compacted into one
//!   rollouts/waiting-00000043.parquet  the tail: what no step had trained when the run ended before step 43
//!   checkpoints/step-00000040/         weights, optimizer, state; `evaluation.json` where it was evaluated
//!   checkpoints/best                   a link to the best of them, where they are
//!   metrics.parquet                    one row a step, derived at a clean end
//!   events.out.tfevents.tidegate       the same for TensorBoard, as the run goes on
//!   summary.json                       what the run came to, at a clean end
//! ```
//!
//! Whatever is not finished has a name that ends in `.tmp` (`crate::durable`), so that `rollouts/*.parquet` never matches it.

use crate::durable::{names, names_at_one_instant, reap, sync_folder, write_sealed};
use crate::error::{Error, Result};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_operators::record::Step;

/// Steps of a merged file: a name that claims more is not ours.
pub(super) const MOST_STEPS: Step = 10_000;

/// A folder that holds one run. Clones share what keeps its writers apart: all that write in a run's folder hold clones of one.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
    locks: Arc<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    /// Held while a file is made in `rollouts/`, and while the folder is exchanged.
    sealing: Mutex<()>,
    /// Held for the whole of a compaction.
    compacting: Mutex<()>,
}

impl PartialEq for RunFolder {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for RunFolder {}

/// A file of the rollout log, by its name. In the order of steps; the tail of step `k` comes after step `k - 1` and before step
/// `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogFile {
    /// `step-00000042.parquet`: what a step trained, and what was discarded since the one before.
    Step(Step),
    /// `step-00000001-00000040.parquet`: the same of several steps in a row, compacted.
    Merged { first: Step, last: Step },
    /// `waiting-00000043.parquet`: rollouts that no step had trained when the run ended; the number is that of the step to come.
    Tail(Step),
}

impl LogFile {
    /// The file's name. Sorted by name, files are in the order of their steps.
    pub fn name(self) -> String {
        match self {
            LogFile::Step(step) => format!("step-{step:08}.parquet"),
            LogFile::Merged { first, last } => format!("step-{first:08}-{last:08}.parquet"),
            LogFile::Tail(step) => format!("waiting-{step:08}.parquet"),
        }
    }

    /// The file that a name means, if it is one of the log's.
    pub fn from_name(name: &str) -> Option<Self> {
        let digits = |prefix| name.strip_prefix(prefix)?.strip_suffix(".parquet");
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let file = match digits("step-") {
            Some(text) => match text.split_once('-') {
                Some((first, last)) => LogFile::merged(number(first)?, number(last)?)?,
                None => LogFile::Step(number(text)?),
            },
            None => LogFile::Tail(number(digits("waiting-")?)?),
        };
        (file.name() == name).then_some(file)
    }

    /// The file that a path's last part means.
    pub fn from_path(path: &Path) -> Option<Self> {
        LogFile::from_name(&path.file_name()?.to_string_lossy())
    }

    fn merged(first: Step, last: Step) -> Option<Self> {
        (first < last && last - first < MOST_STEPS).then_some(LogFile::Merged { first, last })
    }

    /// The sealed steps that are in it: none in a tail.
    pub fn steps(self) -> RangeInclusive<Step> {
        match self {
            LogFile::Step(step) => step..=step,
            LogFile::Merged { first, last } => first..=last,
            LogFile::Tail(_) => RangeInclusive::new(1, 0),
        }
    }

    fn sort_key(self) -> (Step, u8) {
        match self {
            LogFile::Tail(step) => (step, 0),
            LogFile::Merged { first, .. } => (first, 1),
            LogFile::Step(step) => (step, 2),
        }
    }
}

impl RunFolder {
    /// Makes the folder of a new run, with everything in it that later files need.
    ///
    /// # Errors
    /// The folder already holds a run, or the disk refuses.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let folder = RunFolder { path: path.into(), locks: Arc::default() };
        let taken = || Error::file(&folder.path, "already holds a run; choose another name");
        if folder.spec().exists() {
            return Err(taken());
        }
        fs::create_dir_all(&folder.path).map_err(|e| Error::file(&folder.path, e))?;
        // Of two runs that start at once in one folder, one makes this, and the other is told.
        fs::create_dir(folder.rollouts()).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => taken(),
            _ => Error::file(folder.rollouts(), e),
        })?;
        fs::create_dir_all(folder.checkpoints()).map_err(|e| Error::file(folder.checkpoints(), e))?;
        sync_folder(&folder.path)?;
        Ok(folder)
    }

    /// Opens a run to write on, and removes what an earlier process left unfinished (`*.tmp`): files that were being written, a
    /// checkpoint in the making, a compaction's folder before or after it took the place of `rollouts/`.
    ///
    /// # Errors
    /// The folder holds no run, or the disk refuses.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let folder = Self::view(path)?;
        for place in [folder.path.clone(), folder.rollouts(), folder.checkpoints()] {
            reap(&place)?;
        }
        Ok(folder)
    }

    /// Opens a run to read only: a run that is still being written is left alone.
    ///
    /// # Errors
    /// The folder holds no run.
    pub fn view(path: impl Into<PathBuf>) -> Result<Self> {
        let folder = RunFolder { path: path.into(), locks: Arc::default() };
        if !folder.path.exists() {
            return Err(Error::file(&folder.path, "there is no such folder"));
        }
        if !folder.rollouts().is_dir() {
            return Err(Error::file(&folder.path, "is no run's folder: it has no folder rollouts/"));
        }
        Ok(folder)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `spec.toml`.
    pub fn spec(&self) -> PathBuf {
        self.path.join("spec.toml")
    }

    /// `rollouts/`.
    pub fn rollouts(&self) -> PathBuf {
        self.path.join("rollouts")
    }

    /// `checkpoints/`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// `checkpoints/step-00000040/`.
    pub fn checkpoint(&self, step: Step) -> PathBuf {
        self.checkpoints().join(checkpoint_name(step))
    }

    /// `metrics.parquet`.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.parquet")
    }

    /// `events.out.tfevents.tidegate`: TensorBoard calls a run by the folder in which it finds such a file.
    pub fn events(&self) -> PathBuf {
        self.path.join("events.out.tfevents.tidegate")
    }

    /// Where a file of the rollout log is.
    pub fn log_file(&self, file: LogFile) -> PathBuf {
        self.rollouts().join(file.name())
    }

    /// Writes `spec.toml`, all or nothing.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write_spec(&self, text: &str) -> Result<()> {
        write_sealed(&self.spec(), |file| io::Write::write_all(file, text.as_bytes()))
    }

    /// Every file of the rollout log, in step order, as they were at one instant. Other names in the folder are passed over.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn log_files(&self) -> Result<Vec<LogFile>> {
        let names = names_at_one_instant(&self.rollouts())?;
        let mut files: Vec<LogFile> = names.iter().filter_map(|name| LogFile::from_name(name)).collect();
        files.sort_unstable_by_key(|file| file.sort_key());
        Ok(files)
    }

    /// The sealed steps, in order, whatever files they are in.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn sealed_steps(&self) -> Result<Vec<Step>> {
        let mut steps: Vec<Step> = self.log_files()?.into_iter().flat_map(LogFile::steps).collect();
        steps.sort_unstable();
        steps.dedup();
        Ok(steps)
    }

    /// The tail that counts: the newest one, unless a step was sealed after it (its rollouts were then used or made again).
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn tail(&self) -> Result<Option<LogFile>> {
        Ok(newest_tail(&self.log_files()?).map(LogFile::Tail))
    }

    /// Held by whoever makes a file in `rollouts/`, and by a compaction when it puts another folder in its place.
    pub(super) fn sealing(&self) -> MutexGuard<'_, ()> {
        self.locks.sealing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held by a compaction.
    pub(super) fn compacting(&self) -> MutexGuard<'_, ()> {
        self.locks.compacting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The steps that have a checkpoint, in order.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn checkpointed_steps(&self) -> Result<Vec<Step>> {
        let all = names(&self.checkpoints())?;
        let step = |name: &String| {
            let step = name.strip_prefix("step-")?.parse().ok()?;
            (*name == checkpoint_name(step)).then_some(step)
        };
        let mut steps: Vec<Step> = all.iter().filter_map(step).collect();
        steps.sort_unstable();
        Ok(steps)
    }
}

fn checkpoint_name(step: Step) -> String {
    format!("step-{step:08}")
}

/// The tail that no sealed step follows.
pub(super) fn newest_tail(files: &[LogFile]) -> Option<Step> {
    let last = files.iter().map(|file| *file.steps().end()).max().unwrap_or(0);
    let tails = files.iter().filter_map(|file| match file {
        LogFile::Tail(step) => Some(*step),
        _ => None,
    });
    tails.max().filter(|tail| *tail > last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::temporary;

    #[test]
    fn names_are_padded_and_come_back() {
        assert_eq!(LogFile::Step(42).name(), "step-00000042.parquet");
        assert_eq!(LogFile::Tail(43).name(), "waiting-00000043.parquet");
        assert_eq!(LogFile::Step(123_456_789).name(), "step-123456789.parquet");
        for file in [LogFile::Step(42), LogFile::Tail(43), LogFile::Step(123_456_789)] {
            assert_eq!(LogFile::from_name(&file.name()), Some(file));
        }
        let merged = LogFile::Merged { first: 1, last: 40 };
        assert_eq!(merged.name(), "step-00000001-00000040.parquet");
        assert_eq!(LogFile::from_name(&merged.name()), Some(merged));
        let others = [
            "step-42.parquet",
            "step-00000042.parquet.tmp",
            "step-+0000042.parquet",
            "notes.txt",
            "step-.parquet",
            "step-00000001-.parquet",
            "step-00000001-00000001.parquet",
            "step-00000002-00000001.parquet",
            "step-00000001-00000002-00000003.parquet",
            "step-00000001-10000000000.parquet",
        ];
        for other in others {
            assert_eq!(LogFile::from_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_new_run_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let folder = RunFolder::create(&path).unwrap();
        assert!(folder.rollouts().is_dir() && folder.checkpoints().is_dir());
        let again = RunFolder::create(&path).unwrap_err().to_string();
        assert!(again.contains("already holds a run"), "{again}");
        let missing = RunFolder::open(dir.path().join("c")).unwrap_err().to_string();
        assert!(missing.contains("there is no such folder"), "{missing}");
    }

    #[test]
    fn open_reaps_temporaries_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path().join("r")).unwrap();
        folder.write_spec("seed = 1\n").unwrap();
        let kept = folder.log_file(LogFile::Step(1));
        fs::write(&kept, "sealed").unwrap();
        fs::write(temporary(&folder.log_file(LogFile::Step(2))), "half").unwrap();
        fs::create_dir_all(temporary(&folder.checkpoint(1)).join("x")).unwrap();
        assert_eq!(RunFolder::view(folder.path()).unwrap(), folder);
        assert!(temporary(&folder.checkpoint(1)).exists(), "a viewer removes nothing");
        RunFolder::open(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "sealed");
        assert_eq!(fs::read_to_string(folder.spec()).unwrap(), "seed = 1\n");
        assert_eq!(names(&folder.rollouts()).unwrap(), ["step-00000001.parquet"]);
        assert!(names(&folder.checkpoints()).unwrap().is_empty());
    }

    #[test]
    fn files_come_in_step_order_and_a_tail_counts_until_a_later_step() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path().join("r")).unwrap();
        assert_eq!(folder.tail().unwrap(), None);
        for file in [LogFile::Step(100_000_000), LogFile::Step(3), LogFile::Tail(3), LogFile::Step(2)] {
            fs::write(folder.log_file(file), "").unwrap();
        }
        let order = [LogFile::Step(2), LogFile::Tail(3), LogFile::Step(3), LogFile::Step(100_000_000)];
        assert_eq!(folder.log_files().unwrap(), order);
        assert_eq!(folder.sealed_steps().unwrap(), [2, 3, 100_000_000]);
        assert_eq!(folder.tail().unwrap(), None);
        fs::write(folder.log_file(LogFile::Tail(100_000_001)), "").unwrap();
        assert_eq!(folder.tail().unwrap(), Some(LogFile::Tail(100_000_001)));
    }

    /// Catches a step that is counted twice, and a tail inside a merged file that is taken for the newest.
    #[test]
    fn a_merged_file_has_all_its_steps_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path().join("r")).unwrap();
        let merged = LogFile::Merged { first: 2, last: 5 };
        for file in [LogFile::Step(6), LogFile::Step(4), LogFile::Tail(5), merged, LogFile::Step(1)] {
            fs::write(folder.log_file(file), "").unwrap();
        }
        let order = [LogFile::Step(1), merged, LogFile::Step(4), LogFile::Tail(5), LogFile::Step(6)];
        assert_eq!(folder.log_files().unwrap(), order);
        assert_eq!(folder.sealed_steps().unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(folder.tail().unwrap(), None);
        fs::remove_file(folder.log_file(LogFile::Step(6))).unwrap();
        assert_eq!(folder.tail().unwrap(), None, "step 5 was sealed after the tail before it");
    }
}
