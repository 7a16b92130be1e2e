//! All of a log on several threads: whoever looks at every row, and keeps a little of each step.
//!
//! The log is cut where a row group begins with a step. What is kept of a step comes out in the order of the log, whichever thread
//! was sooner: what is made of it does not depend on the threads, nor on the files that the steps are in.

use super::file::OpenFile;
use super::footer::Footer;
use super::reader::{LogReader, Part};
use super::view::Row;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use tidegate_operators::record::Step;

/// Rows that one thread takes at once, at least.
const ROWS: u64 = 4096;

/// A step or a tail of the log, open.
pub struct Viewed<'a> {
    file: &'a mut OpenFile,
    step: Step,
}

impl Viewed<'_> {
    /// The file that it is in.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// What the footer says of it.
    ///
    /// # Errors
    /// Metrics that cannot be read.
    pub fn footer(&self) -> Result<Footer> {
        self.file.footer().of(self.file.path(), self.step)
    }

    /// Hands on its rows, each with its place. Gives what the file lacked, a sentence each.
    ///
    /// # Errors
    /// A damaged file; a column or value that is not the log's.
    pub fn rows(&mut self, mut take: impl FnMut(usize, Row<'_>)) -> Result<Vec<String>> {
        self.file.view(self.step, |place, row| {
            take(place, row);
            Ok(())
        })
    }

    /// The completion of the row at a place.
    ///
    /// # Errors
    /// A damaged file.
    pub fn completion(&self, place: usize) -> Result<String> {
        self.file.completion(self.step, place)
    }
}

/// Makes something of each part of a log, on so many threads, and hands it to `take` in the order of the log.
///
/// A thread takes a few parts in a row of one file: it makes a `begin()` for them, which goes from one to the next. `make` gets the
/// part's index among [`LogReader::parts`], `take` too, and the file that the part was sought in.
///
/// # Errors
/// What `take` returned; nothing is handed to it after that.
pub fn scan<P, S: Send>(
    log: &LogReader,
    threads: NonZeroUsize,
    begin: impl Fn() -> P + Sync,
    make: impl Fn(&mut P, usize, &mut Viewed<'_>) -> Result<S> + Sync,
    mut take: impl FnMut(usize, &Path, Result<S>) -> Result<()>,
) -> Result<()> {
    let parts = log.parts();
    let work = Work::new(log, &parts);
    let threads = threads.get().min(parts.len());
    thread::scope(|scope| {
        let (made, results) = channel();
        for _ in 0..threads {
            let (log, made, work, parts, begin, make) = (log.share(), made.clone(), &work, &parts[..], &begin, &make);
            scope.spawn(move || Worker { log, parts, made, begin, make }.run(work));
        }
        drop(made);
        // What came too soon, by the index of its first part.
        let mut early: BTreeMap<usize, Made<S>> = BTreeMap::new();
        let mut next = 0;
        for done in results {
            early.insert(done.first, done);
            while let Some(done) = early.remove(&next) {
                for (path, result) in done.of {
                    let index = next;
                    next += 1;
                    if let Err(error) = take(index, &path, result) {
                        work.stop();
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    })
}

/// What was made of some parts in a row.
struct Made<S> {
    first: usize,
    of: Vec<(PathBuf, Result<S>)>,
}

/// What is to be read: files that nobody has opened yet, and what they were cut into; the first of the log first.
struct Work {
    left: Mutex<Left>,
    changed: Condvar,
}

struct Left {
    tasks: BTreeMap<usize, Task>,
    /// Files that are being opened: there may be more to do soon.
    opening: usize,
    stopped: bool,
}

/// Some parts of a file in a row, and the file.
type Piece = (Range<usize>, Box<OpenFile>);

enum Task {
    /// The parts of one file.
    Open(Range<usize>),
    /// Some of them, open.
    Read(Range<usize>, Box<OpenFile>),
}

impl Work {
    fn new(log: &LogReader, parts: &[Part]) -> Self {
        let mut tasks = BTreeMap::new();
        let mut first = 0;
        for run in parts.chunk_by(|a, b| log.path(*a) == log.path(*b)) {
            tasks.insert(first, Task::Open(first..first + run.len()));
            first += run.len();
        }
        let left = Mutex::new(Left { tasks, opening: 0, stopped: false });
        Work { left, changed: Condvar::new() }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Task> {
        let mut left = self.left();
        loop {
            if left.stopped {
                return None;
            }
            match left.tasks.pop_first() {
                Some((_, task)) => {
                    left.opening += usize::from(matches!(task, Task::Open(_)));
                    return Some(task);
                }
                None if left.opening == 0 => return None,
                None => left = self.changed.wait(left).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn add(&self, pieces: Vec<Piece>) {
        self.left().tasks.extend(pieces.into_iter().map(|(parts, file)| (parts.start, Task::Read(parts, file))));
    }

    fn stop(&self) {
        self.left().stopped = true;
        self.changed.notify_all();
    }
}

/// While a file is being opened. Others wait for what it is cut into, also where that fails.
struct Opening<'a>(&'a Work);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.left().opening -= 1;
        self.0.changed.notify_all();
    }
}

struct Worker<'a, S, B, M> {
    log: LogReader,
    parts: &'a [Part],
    made: Sender<Made<S>>,
    begin: &'a B,
    make: &'a M,
}

impl<P, S, B, M> Worker<'_, S, B, M>
where
    B: Fn() -> P,
    M: Fn(&mut P, usize, &mut Viewed<'_>) -> Result<S>,
{
    fn run(mut self, work: &Work) {
        while let Some(task) = work.next() {
            let done = match task {
                Task::Open(parts) => {
                    let _opening = Opening(work);
                    let (pieces, failed) = self.open(parts);
                    work.add(pieces);
                    failed
                }
                Task::Read(parts, mut file) => Some(self.read(parts, &mut file)),
            };
            // Nobody listens any more where a part could not be taken.
            if done.is_some_and(|done| self.made.send(done).is_err()) {
                return;
            }
        }
    }

    /// Cuts a file into pieces. What cannot be opened is an error of all its parts.
    fn open(&mut self, parts: Range<usize>) -> (Vec<Piece>, Option<Made<S>>) {
        let path = self.log.path(self.parts[parts.start]).unwrap_or_default();
        let (file, first) = match self.log.file(self.parts[parts.start]) {
            Ok(opened) => opened,
            Err(error) => {
                let again = parts.clone().skip(1).map(|_| Error::file(&path, "could not be opened"));
                let of = std::iter::once(error).chain(again).map(|error| (path.clone(), Err(error))).collect();
                return (Vec::new(), Some(Made { first: parts.start, of }));
            }
        };
        let mut pieces: Vec<Piece> = Vec::new();
        let last = first + parts.len() as Step - 1;
        for steps in file.segments(ROWS) {
            // A compaction may have put it into a file of more steps meanwhile.
            let (from, to) = (first.max(*steps.start()), last.min(*steps.end()));
            if from <= to {
                let place = |step: Step| parts.start + (step - first) as usize;
                pieces.push((place(from)..place(to) + 1, Box::new(file.share())));
            }
        }
        (pieces, None)
    }

    fn read(&self, parts: Range<usize>, file: &mut OpenFile) -> Made<S> {
        let first = parts.start;
        let mut piece = (self.begin)();
        let of = parts.map(|index| {
            let step = match self.parts[index] {
                Part::Step(step) | Part::Tail(step) => step,
            };
            let path = file.path().to_owned();
            (path, (self.make)(&mut piece, index, &mut Viewed { file, step }))
        });
        Made { first, of: of.collect() }
    }
}
