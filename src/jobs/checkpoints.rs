//! Checkpoints: copied between two steps, written beside the steps that follow, sealed after the step that they are of.
//!
//! Two wrappers tell a thread what it needs. [`Watched`], around the learner, copies weights and optimizer after a step at which
//! a checkpoint is due. [`Accounted`], around the log, says which step is durable and which groups it accounts for. The
//! thread writes once it has both, so that no checkpoint is ever ahead of the log.

use crate::clock::thread_ns;
use crate::crash;
use crate::durable::{self, Staged};
use crate::engine::contract::{Engine, Writer};
use crate::error::{Error, Result};
use crate::jobs::best::{self, Best};
use crate::jobs::lent::{Home, Lent};
use crate::jobs::progress::Counters;
use crate::jobs::reference::Refreshed;
use crate::jobs::say;
use crate::spec::CheckpointSpec;
use crate::store::ledger::{Ledger, State};
use crate::store::{Compacted, Limits, RunFolder, compact};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};
use tidegate_operators::fault::{Fault, guarded};
use tidegate_operators::record::{Rollout, SealedStep, Step, Version};
use tidegate_operators::seal::Log;
use tidegate_operators::train::{Learner, Trained};

/// What a learner was after one step; nothing changes it any more.
struct Copied<E: Engine> {
    version: Version,
    weights: E::Weights,
    optimizer: E::Optimizer,
    /// What it was to stay near, where that is in no other file.
    reference: Option<E::Weights>,
}

enum Message<E: Engine> {
    Copied(Box<Copied<E>>),
    Sealed(State),
}

/// The thread that writes checkpoints, and the learner that it writes them of.
pub struct Checkpoints<E: Engine> {
    thread: JoinHandle<Desk<E>>,
    home: Home<E::Learner>,
    state: Arc<Mutex<State>>,
    refreshed: Refreshed<E::Weights>,
}

/// The end of a run's checkpoints.
pub struct Kept<E: Engine> {
    /// After the last sealed step.
    pub state: State,
    /// The weights then; None where the learner has gone further than the log, after a fault.
    pub weights: Option<E::Weights>,
    /// Why the last checkpoint could not be written.
    pub unkept: Option<Error>,
}

/// What checkpoints are made with.
pub struct Making<'a, E: Engine> {
    pub engine: &'a E,
    pub folder: &'a RunFolder,
    pub spec: &'a CheckpointSpec,
    /// The newest one that is good.
    pub newest: Option<Step>,
    /// Told when a step is under way.
    pub counters: &'a Arc<Counters>,
    pub best: Option<Best<E>>,
    /// The reference, once it is not the first one any more.
    pub refreshed: Refreshed<E::Weights>,
}

impl<E: Engine + 'static> Checkpoints<E> {
    /// Starts the thread, and wraps a run's learner and log for it. `state` is that at the run's start; one that took sealed
    /// steps again to get there is written at once, so that they need not be taken a third time.
    ///
    /// # Errors
    /// A learner that cannot be copied.
    pub fn start<D>(
        making: Making<'_, E>,
        state: State,
        mut learner: E::Learner,
        log: D,
    ) -> Result<(Self, Watched<E>, Accounted<E, D>)> {
        let Making { engine, folder, spec, newest, counters, best, refreshed } = making;
        let (sender, messages) = channel();
        let again = state.step > 0 && newest != Some(state.step);
        let busy = Arc::new(AtomicBool::new(again));
        if again {
            let (weights, optimizer) = (learner.weights()?, E::optimizer(&mut learner)?);
            let copied = Copied { version: state.step, weights, optimizer, reference: refreshed.get() };
            // The thread has both ends of the channel, so it is heard.
            let _ = sender.send(Message::Copied(Box::new(copied)));
            let _ = sender.send(Message::Sealed(state.clone()));
        }
        let (folder, writer) = (folder.clone(), engine.writer());
        let desk = Desk { folder, keep: spec.keep, writer, newest, busy: busy.clone(), told: HashSet::new(), best };
        let thread = Builder::new().name("checkpoints".to_owned());
        let thread = thread.spawn(move || {
            E::set_threads(1);
            desk.serve(&messages)
        });
        let thread = thread.map_err(|e| Error::engine("thread that writes checkpoints", e))?;
        let (lent, home) = Lent::new(learner);
        let due = Due { steps: spec.every_steps, minutes: spec.every_minutes, step: state.step, at: Instant::now() };
        let counters = Arc::clone(counters);
        let learner = Watched { learner: lent, due, busy, sender: sender.clone(), counters, refreshed: refreshed.clone() };
        let groups = state.groups.clone();
        let state = Arc::new(Mutex::new(state));
        let log = Accounted { log, groups, sender, state: Arc::clone(&state) };
        Ok((Checkpoints { thread, home, state, refreshed }, learner, log))
    }

    /// After the dataflow's end: the last checkpoint, where the learner stands at the last sealed step.
    pub fn finish(self) -> Kept<E> {
        // The wrappers are gone with the dataflow, so the thread comes to its end.
        let desk = self.thread.join();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let learner = self.home.take().filter(|learner| E::version(learner) == state.step);
        let mut kept = Kept { state, weights: None, unkept: None };
        match (desk, learner) {
            (Err(_), _) => kept.unkept = Some(Error::engine("checkpoints", "the thread that writes them panicked")),
            (Ok(_), None) => {}
            (Ok(desk), Some(learner)) => {
                let reference = self.refreshed.get();
                kept.unkept = last(desk, learner, reference, &kept.state, &mut kept.weights).err();
            }
        }
        kept
    }
}

/// Writes the checkpoint of the last step, unless it is there; the weights are good for an evaluation whatever becomes of it.
fn last<E: Engine>(
    mut desk: Desk<E>,
    learner: E::Learner,
    reference: Option<E::Weights>,
    state: &State,
    kept: &mut Option<E::Weights>,
) -> Result<()> {
    let (weights, optimizer) = E::take_apart(learner)?;
    *kept = Some(weights.clone());
    if desk.newest == Some(state.step) {
        return Ok(());
    }
    desk.write(&Copied { version: state.step, weights, optimizer, reference }, state)?;
    desk.tidy();
    Ok(())
}

/// So many files of the log are no burden, and easier to look at one by one.
const MANY: usize = 64;

/// Where every step is to be kept, how long training waits for the checkpoint before; and how often it looks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// Where checkpoints are written.
struct Desk<E: Engine> {
    folder: RunFolder,
    keep: usize,
    writer: E::Writer,
    newest: Option<Step>,
    busy: Arc<AtomicBool>,
    /// Who evaluates checkpoints, where that is asked.
    best: Option<Best<E>>,
    /// What could not be tidied and was told.
    told: HashSet<String>,
}

impl<E: Engine> Desk<E> {
    fn serve(mut self, messages: &Receiver<Message<E>>) -> Self {
        let mut pending: Option<Box<Copied<E>>> = None;
        for message in messages {
            match message {
                Message::Copied(copied) => pending = Some(copied),
                Message::Sealed(state) => {
                    let Some(copied) = pending.take_if(|copied| copied.version == state.step) else { continue };
                    // The log has all that a checkpoint has: a run goes on without one.
                    let written = guarded("checkpoint", || {
                        self.write(&copied, &state).map_err(|e| Fault::new("checkpoint", e))?;
                        self.tidy();
                        Ok(())
                    });
                    if let Err(fault) = written {
                        say(format_args!("note      no checkpoint of step {}: {fault}; the run goes on", state.step));
                    }
                    self.busy.store(false, Ordering::Release);
                }
            }
        }
        self
    }

    fn write(&mut self, copied: &Copied<E>, state: &State) -> Result<()> {
        let staged = Staged::new(&self.folder.checkpoint(state.step))?;
        self.writer.write(staged.path(), &copied.weights, &copied.optimizer)?;
        if let Some(reference) = &copied.reference {
            self.writer.write_reference(staged.path(), reference)?;
        }
        state.write(staged.path())?;
        staged.seal()?;
        crash::at("checkpoint: sealed");
        self.newest = Some(state.step);
        // A checkpoint is whole without an evaluation.
        if let Some(Err(error)) = self.best.as_mut().map(|best| best.judge(state.step, copied.weights.clone())) {
            say(format_args!("note      checkpoint of step {} is not evaluated: {error}", state.step));
        }
        Ok(())
    }

    /// Removes what the newest checkpoint makes needless, and makes few files of many. What cannot be done stays as it is, and is
    /// found there; it is told once.
    fn tidy(&mut self) {
        let Some(newest) = self.newest else { return };
        let many = || -> Result<bool> { Ok(self.folder.log_files()?.len() >= MANY) };
        let compacted =
            || if many()? { compact(&self.folder, newest, &Limits::default()) } else { Ok(Compacted::default()) };
        let left = prune(&self.folder, self.keep).and_then(|()| compacted());
        let left = left.map_or_else(|error| vec![error], |compacted| compacted.left);
        for error in left.into_iter().map(|error| error.to_string()) {
            if self.told.insert(error.clone()) {
                say(format_args!("note      not tidied: {error}"));
            }
        }
    }
}

/// Removes all checkpoints but the newest `keep` and the best. One that goes has a temporary name first: nobody takes half of it for whole.
fn prune(folder: &RunFolder, keep: usize) -> Result<()> {
    let steps = folder.checkpointed_steps()?;
    let best = best::step(folder);
    for step in steps[..steps.len().saturating_sub(keep.max(1))].iter().filter(|step| Some(**step) != best) {
        let path = folder.checkpoint(*step);
        let going = durable::temporary(&path);
        std::fs::rename(&path, &going).map_err(|e| Error::file(&path, e))?;
        crash::at("checkpoint: removing");
        durable::remove(&going)?;
    }
    Ok(())
}

/// When a checkpoint is due.
struct Due {
    steps: u64,
    minutes: f64,
    /// The step of the last one, and when it was copied.
    step: Step,
    at: Instant,
}

impl Due {
    fn after(&self, step: Step) -> bool {
        let steps = self.steps > 0 && step - self.step >= self.steps;
        let time = Duration::try_from_secs_f64(self.minutes * 60.0).unwrap_or(Duration::MAX);
        steps || self.minutes > 0.0 && step > self.step && self.at.elapsed() >= time
    }

    /// How long a checkpoint that is due waits for the one before, where that is not written yet: it is skipped then, unless each is asked for.
    fn patience(&self) -> Duration {
        if self.steps == 1 { PATIENCE } else { Duration::ZERO }
    }
}

/// A learner that is copied when a checkpoint is due.
pub struct Watched<E: Engine> {
    learner: Lent<E::Learner>,
    due: Due,
    /// One checkpoint is under way: the next waits for a later step, not the step for it.
    busy: Arc<AtomicBool>,
    sender: Sender<Message<E>>,
    counters: Arc<Counters>,
    refreshed: Refreshed<E::Weights>,
}

/// Whether the checkpoint before is written, after a wait of at most `patience`. Its step is being sealed on another thread, so that a wait
/// ends; should it not, training goes on.
fn is_over(busy: &AtomicBool, patience: Duration) -> bool {
    let started = Instant::now();
    while busy.load(Ordering::Acquire) {
        if started.elapsed() >= patience {
            return false;
        }
        sleep(LOOK);
    }
    true
}

impl<E: Engine> Learner for Watched<E> {
    type Weights = E::Weights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.counters.in_step.store(true, Ordering::Relaxed);
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let trained = self.learner.work()?;
        self.counters.in_step.store(trained.is_none(), Ordering::Relaxed);
        Ok(trained)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        self.learner.abandon()
    }

    fn weights(&mut self) -> Result<E::Weights, Fault> {
        let count = |started: u64| self.counters.copies_ns.fetch_add(thread_ns() - started, Ordering::Relaxed);
        let started = thread_ns();
        let weights = self.learner.weights()?;
        count(started);
        let learner = self.learner.get()?;
        let version = E::version(learner);
        if self.due.after(version) && is_over(&self.busy, self.due.patience()) {
            (self.due.step, self.due.at) = (version, Instant::now());
            let started = thread_ns();
            let optimizer = E::optimizer(learner);
            count(started);
            match optimizer {
                Ok(optimizer) => {
                    let reference = self.refreshed.get();
                    let copied = Copied { version, weights: weights.clone(), optimizer, reference };
                    self.busy.store(true, Ordering::Release);
                    crash::at("checkpoint: copied");
                    // Nobody hears it only if the thread is gone; the end of the run says so.
                    let _ = self.sender.send(Message::Copied(Box::new(copied)));
                }
                Err(error) => say(format_args!("note      no checkpoint of step {version}: {error}; the run goes on")),
            }
        }
        crash::at("step: published");
        Ok(weights)
    }
}

/// A log that says what is durable.
pub struct Accounted<E: Engine, D> {
    log: D,
    groups: Ledger,
    sender: Sender<Message<E>>,
    state: Arc<Mutex<State>>,
}

impl<E: Engine, D: Log> Log for Accounted<E, D> {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        let mut groups = self.groups.clone();
        groups.account_rows(&step.rollouts);
        let state = step.metrics.as_ref().map(|metrics| State::after(metrics, groups.clone()));
        self.log.seal(step)?;
        crash::at("step: sealed");
        // What a tail accounts for is read from the tail.
        if let Some(state) = state {
            self.groups = groups;
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state.clone();
            let _ = self.sender.send(Message::Sealed(state));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a checkpoint that is written at every step, or never.
    #[test]
    fn due_by_steps_or_by_time() {
        let due = |steps, minutes, seconds: u64| {
            let at = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            Due { steps, minutes, step: 10, at }
        };
        assert_eq!([10, 14, 15, 99].map(|step| due(5, 0.0, 900).after(step)), [false, false, true, true]);
        assert_eq!([10, 11].map(|step| due(0, 10.0, 601).after(step)), [false, true]);
        assert!(!due(0, 10.0, 590).after(11) && !due(0, 0.0, 9999).after(11));
        assert!(due(100, 1.0, 61).after(11));
        assert_eq!([0, 1, 2].map(|steps| due(steps, 1.0, 0).patience()), [Duration::ZERO, PATIENCE, Duration::ZERO]);
    }
}
