//! Reading the rollout log: files of this writer, of older ones, and of other tools that rewrote them.
//!
//! Columns are found by name; their order, further columns and narrower or wider number types do not matter. What an older
//! file lacks gets its default and a note. What cannot be read is refused by file and column, and a damaged file by name: no
//! file makes this module panic.
//!
//! Which file a step is in is nobody's business but this module's: [`LogReader`] finds it, before, during and after a
//! compaction, and gives every step once.

use super::file::OpenFile;
use super::footer::Footer;
use super::layout::{LogFile, RunFolder, newest_tail};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tidegate_operators::record::{Metrics, Rollout, SealedStep, Step};

/// One step of the log, or a tail.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    /// The file that it is in, perhaps with others.
    pub path: PathBuf,
    pub footer: Footer,
    /// In the order of the file: the batch, then what was discarded.
    pub rollouts: Vec<Rollout>,
    /// What the file lacked, a sentence each; empty for a file of this writer.
    pub notes: Vec<String>,
}

impl StepFile {
    /// What was sealed.
    pub fn into_sealed(self) -> SealedStep {
        SealedStep { step: self.footer.step, rollouts: self.rollouts, metrics: self.footer.metrics }
    }
}

/// Reads a file of one step, or a tail.
///
/// # Errors
/// [`Error::File`] for one that is missing, damaged, no Parquet file or of several steps; [`Error::Column`] for one whose columns
/// are not the log's.
pub fn read_step(path: &Path) -> Result<StepFile> {
    let mut file = OpenFile::open(path)?;
    let step = only_step(&file)?;
    file.step(step)
}

/// Reads the footer of a file of one step, or of a tail.
///
/// # Errors
/// As [`read_step`], as far as the footer shows it.
pub fn read_footer(path: &Path) -> Result<Footer> {
    let file = OpenFile::open(path)?;
    file.footer().of(path, only_step(&file)?)
}

fn only_step(file: &OpenFile) -> Result<Step> {
    let (first, last) = file.footer().steps().into_inner();
    match first == last {
        true => Ok(first),
        false => Err(Error::file(file.path(), format!("holds steps {first} to {last}, not one step"))),
    }
}

/// The run's sealed steps in order, one in memory at a time, from whatever files they are in. The tail is not among them.
///
/// # Errors
/// A folder that cannot be listed; each item as [`LogReader::step`].
pub fn steps(folder: &RunFolder) -> Result<impl Iterator<Item = Result<StepFile>> + Send + use<>> {
    steps_after(folder, 0)
}

/// As [`steps`], without those up to `step`.
///
/// # Errors
/// As [`steps`].
pub fn steps_after(folder: &RunFolder, step: Step) -> Result<impl Iterator<Item = Result<StepFile>> + Send + use<>> {
    let mut log = LogReader::open(folder)?;
    let steps: Vec<Step> = log.steps().filter(|k| *k > step).collect();
    Ok(steps.into_iter().map(move |step| log.step(step)))
}

/// What the log says of each sealed step, in order; steps whose file does not say are left out.
///
/// # Errors
/// A folder that cannot be listed, a footer that cannot be read.
pub fn metrics(folder: &RunFolder) -> Result<Vec<Metrics>> {
    let mut log = LogReader::open(folder)?;
    let steps: Vec<Step> = log.steps().collect();
    let all = steps.into_iter().map(|step| Ok(log.footer(step)?.metrics));
    Ok(all.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// What of the log is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Step(Step),
    Tail(Step),
}

/// A log by step, whatever files its steps are in. One file is open at a time, and of its rows one step is in memory.
pub struct LogReader {
    place: Place,
    /// The one file that is read for each step.
    files: BTreeMap<Step, LogFile>,
    tails: Vec<Step>,
    /// The tail that counts.
    newest_tail: Option<Step>,
    open: Option<OpenFile>,
}

/// Where the log is.
enum Place {
    Run(RunFolder),
    File(PathBuf),
}

impl LogReader {
    /// The log of a run as it is now. What is sealed later is not seen; what is compacted later is found all the same.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn open(folder: &RunFolder) -> Result<Self> {
        let mut log = LogReader {
            place: Place::Run(folder.clone()),
            files: BTreeMap::new(),
            tails: Vec::new(),
            newest_tail: None,
            open: None,
        };
        log.list()?;
        Ok(log)
    }

    /// A single file as a log of its own, whatever its name is.
    ///
    /// # Errors
    /// As [`read_step`], as far as the footer shows it.
    pub fn of_file(path: &Path) -> Result<Self> {
        let open = OpenFile::open(path)?;
        let (first, last) = open.footer().steps().into_inner();
        let mut log = LogReader {
            place: Place::File(path.to_owned()),
            files: BTreeMap::new(),
            tails: Vec::new(),
            newest_tail: None,
            open: None,
        };
        if let Some(LogFile::Tail(step)) = LogFile::from_path(path) {
            log.tails.push(step);
            log.newest_tail = Some(step);
        } else {
            let file = if first == last { LogFile::Step(first) } else { LogFile::Merged { first, last } };
            log.files.extend((first..=last).map(|step| (step, file)));
            log.open = Some(open);
        }
        Ok(log)
    }

    fn list(&mut self) -> Result<()> {
        let Place::Run(folder) = &self.place else { return Ok(()) };
        let mut files = folder.log_files()?;
        self.newest_tail = newest_tail(&files);
        // Nothing leaves a step in two files; whoever copied files has its step once all the same.
        files.sort_by_key(|file| u8::from(!matches!(file, LogFile::Merged { .. })));
        self.files.clear();
        self.tails.clear();
        for file in files {
            for step in file.steps() {
                self.files.entry(step).or_insert(file);
            }
            self.tails.extend(match file {
                LogFile::Tail(step) => Some(step),
                _ => None,
            });
        }
        Ok(())
    }

    /// The sealed steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<'_> {
        self.files.keys().copied()
    }

    /// Steps and tails in order; the tail of step `k` comes before step `k`.
    pub fn parts(&self) -> Vec<Part> {
        let steps = self.steps().map(Part::Step);
        let mut parts: Vec<Part> = self.tails.iter().copied().map(Part::Tail).chain(steps).collect();
        parts.sort_by_key(|part| match part {
            Part::Tail(step) => (*step, 0),
            Part::Step(step) => (*step, 1),
        });
        parts
    }

    /// The tail that counts: see [`RunFolder::tail`].
    pub fn newest_tail(&self) -> Option<Step> {
        self.newest_tail
    }

    /// The file that a part is in, as far as is known: None for a step that was not there when the log was opened.
    pub fn path(&self, part: Part) -> Option<PathBuf> {
        let file = match part {
            Part::Step(step) => *self.files.get(&step)?,
            Part::Tail(step) => LogFile::Tail(step),
        };
        Some(match &self.place {
            Place::Run(folder) => folder.log_file(file),
            Place::File(path) => path.clone(),
        })
    }

    /// Reads a step or a tail.
    ///
    /// # Errors
    /// As [`LogReader::step`] and [`read_step`].
    pub fn read(&mut self, part: Part) -> Result<StepFile> {
        match (part, self.path(part)) {
            (Part::Step(step), _) => self.step(step),
            (Part::Tail(step), path) => read_step(&path.ok_or_else(|| self.missing(step))?),
        }
    }

    /// Reads a step.
    ///
    /// # Errors
    /// A step that is not sealed; [`Error::File`] and [`Error::Column`] for a file that is not as it must be.
    pub fn step(&mut self, step: Step) -> Result<StepFile> {
        self.with_file(step, |file| file.step(step))
    }

    /// Reads what the footer says of a step.
    ///
    /// # Errors
    /// As [`LogReader::step`], as far as the footer shows it.
    pub fn footer(&mut self, step: Step) -> Result<Footer> {
        self.with_file(step, |file| file.footer().of(file.path(), step))
    }

    /// The file of a part, its rows checked against their seal, and the part's step as the file has it.
    ///
    /// # Errors
    /// As [`LogReader::read`].
    pub(super) fn file(&mut self, part: Part) -> Result<(OpenFile, Step)> {
        let of = |file: &mut OpenFile| {
            file.verify()?;
            Ok(file.share())
        };
        match (part, self.path(part)) {
            (Part::Step(step), _) => Ok((self.with_file(step, of)?, step)),
            (Part::Tail(step), path) => {
                let mut file = OpenFile::open(&path.ok_or_else(|| self.missing(step))?)?;
                let step = only_step(&file)?;
                Ok((of(&mut file)?, step))
            }
        }
    }

    /// The same log for another thread.
    pub(super) fn share(&self) -> Self {
        let place = match &self.place {
            Place::Run(folder) => Place::Run(folder.clone()),
            Place::File(path) => Place::File(path.clone()),
        };
        let (files, tails) = (self.files.clone(), self.tails.clone());
        LogReader { place, files, tails, newest_tail: self.newest_tail, open: None }
    }

    fn with_file<R>(&mut self, step: Step, read: impl FnOnce(&mut OpenFile) -> Result<R>) -> Result<R> {
        let mut file = match self.open.take() {
            // The file that is open is read to its end, also where its name is gone.
            Some(open) if self.files.contains_key(&step) && open.footer().steps().contains(&step) => open,
            _ => self.find(step)?,
        };
        let result = read(&mut file)?;
        self.open = Some(file);
        Ok(result)
    }

    fn find(&mut self, step: Step) -> Result<OpenFile> {
        loop {
            let path = self.path(Part::Step(step)).ok_or_else(|| self.missing(step))?;
            let error = match OpenFile::open(&path) {
                Ok(file) => return Ok(file),
                Err(error) => error,
            };
            if path.exists() {
                return Err(error);
            }
            // A compaction may have moved the step since the folder was listed.
            self.list()?;
            if self.path(Part::Step(step)).is_none_or(|now| now == path) {
                return Err(error);
            }
        }
    }

    fn missing(&self, step: Step) -> Error {
        let place = match &self.place {
            Place::Run(folder) => folder.rollouts(),
            Place::File(path) => path.clone(),
        };
        Error::file(place, format!("step {step} is not sealed"))
    }
}
