//! Before a run starts: how much disk it will need, and whether its folder can be written.

use crate::engine::contract::Tokenize;
use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::store::room::{free, readable};
use crate::store::size::{self, Size};
use crate::tasks::source::Prompts;
use rustix::fs::{Access, access};
use std::fmt;
use std::path::{Path, PathBuf};

/// Prompts looked at.
const LOOKED_AT: usize = 32;
/// A checkpoint holds the weights and the optimizer's two moments of each.
const NUMBERS_A_WEIGHT: u64 = 3;
const BYTES_A_NUMBER: u64 = 4;

/// What a run writes, and the room there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Of all steps; discarded rollouts come on top. Expected: rollouts half as long as `generate.max_tokens`. At most: all of
    /// them as long as that, and nothing compresses.
    pub log: Size,
    /// Of the checkpoints that are there at once: those kept, one in the making, and one that is about to go.
    pub checkpoints: u64,
    /// Where it is written, and what is free there; None where the system does not say.
    pub place: PathBuf,
    pub free: Option<u64>,
}

impl Disk {
    /// Of `steps` steps of `spec` with a model of `parameters` weights, prompts of `prompt_tokens` and `keep` checkpoints kept.
    pub fn of(spec: &Spec, steps: u64, parameters: u64, prompt_tokens: u64, keep: u64) -> Disk {
        let (rows, group_size) = (spec.batch.batch_size as u64, spec.batch.group_size as u64);
        let most = spec.generate.max_tokens as u64;
        let reference = &spec.learn.reference;
        let lists = u64::from(spec.has_critic()) + u64::from(reference.is_on());
        let file = |tokens| size::of_file(rows, group_size, prompt_tokens, tokens, lists);
        let all = |bytes: u64| bytes.saturating_mul(steps);
        let log = Size { expected: all(file(most.div_ceil(2)).expected), most: all(file(most).most) };
        // A reference that is refreshed is in no other place.
        let numbers = NUMBERS_A_WEIGHT + u64::from(reference.refresh_steps > 0);
        let checkpoint = parameters.saturating_mul(numbers * BYTES_A_NUMBER);
        let checkpoints = checkpoint.saturating_mul(keep.saturating_add(2));
        Disk { log, checkpoints, place: spec.output.clone(), free: free(&spec.output) }
    }

    /// What to say where the run will not fit: it pauses when the disk is full.
    pub fn warning(&self) -> Option<String> {
        let needed = self.log.expected.saturating_add(self.checkpoints);
        let free = self.free.filter(|free| *free < needed)?;
        let (needed, free, place) = (readable(needed), readable(free), self.place.display());
        Some(format!(
            "warning   {needed} of disk are needed, {free} are free in {place}: the run will pause when they are used up"
        ))
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [expected, most, checkpoints] = [self.log.expected, self.log.most, self.checkpoints].map(readable);
        write!(f, "disk      about {expected} for the log (at most {most}) and {checkpoints} for checkpoints")?;
        self.free.map_or(Ok(()), |free| write!(f, "; {} free in {}", readable(free), self.place.display()))
    }
}

/// Mean length of the first few prompts, tokens.
///
/// # Errors
/// A file that cannot be read any more.
pub fn prompt_tokens(prompts: &mut Prompts, tokenizer: &dyn Tokenize) -> Result<u64> {
    let mut lengths = Vec::new();
    for number in 0..LOOKED_AT as u64 {
        let Some((_, item)) = prompts.at(number)? else { break };
        // One that cannot be encoded is told when it is its turn.
        lengths.extend(tokenizer.encode(&item.text).ok().map(|tokens| tokens.len() as u64));
    }
    Ok(lengths.iter().sum::<u64>().div_ceil(lengths.len().max(1) as u64))
}

/// Whether a run could make its folder at `output`: asked before a model is loaded, which may take minutes.
///
/// # Errors
/// Names the part of the path that is no folder, or in which nothing may be written.
pub fn writable(output: &Path) -> Result<()> {
    let here = Path::new(".");
    let mut folders = output.ancestors().skip(1).map(|f| if f.as_os_str().is_empty() { here } else { f });
    let refuse = |why: String| Error::config("output", output.display(), why);
    if output.exists() && !output.is_dir() {
        return Err(refuse("is there and is no folder: give another name".to_owned()));
    }
    let Some(folder) = folders.find(|folder| folder.exists()) else { return Ok(()) };
    if !folder.is_dir() {
        return Err(refuse(format!("{} is a file, not a folder", folder.display())));
    }
    let may = access(folder, Access::WRITE_OK | Access::EXEC_OK);
    may.map_err(|e| refuse(format!("nothing can be written in {}: {}", folder.display(), std::io::Error::from(e))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn spec(sets: &[&str]) -> Spec {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Spec::from_text("model.path = \"m\"\noutput = \"nowhere/run\"\n[[task]]\nkind = \"sorting\"\n", &sets).unwrap()
    }

    /// 100 steps of 64 rollouts in groups of 8, 20 prompt tokens, 100 of at most 200 tokens; 1 M weights.
    #[test]
    fn numbers_are_those_worked_out_by_hand() {
        let disk = Disk::of(&spec(&["generate.max_tokens=200"]), 100, 1_000_000, 20, 2);
        // A step: 16,000 + 8 * 20 * 4 + 64 * 40 + 64 * 100 * 10.6 = 87,040.
        assert_eq!(disk.log.expected, 8_704_000);
        // 16,000 + 64 * (300 + 20 * 12 + 200 * 37) = 524,160.
        assert_eq!(disk.log.most, 52_416_000);
        assert_eq!(disk.checkpoints, 48_000_000);
        let disk = Disk { free: Some(72_400_000_000), ..disk };
        let line = "disk      about 8.7 MB for the log (at most 52 MB) and 48 MB for checkpoints; 72 GB free in nowhere/run";
        assert_eq!((disk.to_string(), disk.warning()), (line.to_owned(), None));
        let critic = Disk::of(&spec(&["generate.max_tokens=200", "learn.value_coef=0.5"]), 100, 1_000_000, 20, 2);
        assert_eq!(critic.log.expected - disk.log.expected, 64 * 100 * 34 * 100 / 10);
        let reference = ["generate.max_tokens=200", "learn.reference={kl_coef=0.1,refresh_steps=9}"];
        let reference = Disk::of(&spec(&reference), 100, 1_000_000, 20, 2);
        assert_eq!((reference.log.expected, reference.checkpoints), (critic.log.expected, 64_000_000));
    }

    /// Catches a warning that comes too late, that comes always, or numbers that overflow.
    #[test]
    fn what_does_not_fit_is_said() {
        let disk = Disk::of(&spec(&["generate.max_tokens=200"]), 100, 1_000_000, 20, 2);
        let free = |free| Disk { free, ..disk.clone() };
        let needed = 8_704_000 + 48_000_000;
        assert_eq!(free(Some(needed)).warning(), None);
        let said =
            "warning   57 MB of disk are needed, 50 MB are free in nowhere/run: the run will pause when they are used up";
        assert_eq!(free(Some(50_000_000)).warning().as_deref(), Some(said));
        assert_eq!((free(None).warning(), free(None).to_string().contains("free")), (None, false));
        let endless = Disk::of(&spec(&["generate.max_tokens=16777215"]), 1 << 40, u64::MAX, 1 << 20, 3);
        assert!(endless.warning().is_some_and(|text| text.contains(" PB of disk")));
    }

    /// Catches a run that loads its model first and then finds that it has no place.
    #[test]
    fn places_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        writable(&dir.path().join("a/b")).unwrap();
        writable(dir.path()).unwrap();
        writable(Path::new("run")).unwrap();
        let below = dir.path().join("file/run");
        let why = format!("output = {}: {} is a file, not a folder", below.display(), dir.path().join("file").display());
        assert_eq!(writable(&below).unwrap_err().to_string(), why);
        // Nobody may write here, not even root.
        let why = writable(Path::new("/proc/self/run")).unwrap_err().to_string();
        assert!(why.starts_with("output = /proc/self/run: nothing can be written in /proc/self: "), "{why}");
    }
}
