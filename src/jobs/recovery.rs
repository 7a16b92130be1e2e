//! Where a run goes on: its newest checkpoint, the sealed steps after it trained again, and what its log says of the groups.
//!
//! The log is the truth. A checkpoint only saves the time to train from the start, and must agree with the log.

use crate::crash;
use crate::engine::contract::{Engine, Identity};
use crate::engine::reference::Drift;
use crate::engine::spec::Learning;
use crate::engine::taking::judged_norm;
use crate::error::{Error, Result};
use crate::jobs::lent::Lent;
use crate::jobs::reference::{self, Loaded, Referee, Refreshed};
use crate::jobs::retrace::Retrace;
use crate::jobs::verdict::{Check, Verdict};
use crate::jobs::{identity, say};
use crate::kernel::norms::{MOST, Norms};
use crate::spec::Spec;
use crate::store::ledger::{Ledger, State};
use crate::store::{Footer, LogReader, Part, RunFolder, StepFile};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidegate_operators::fault::Halt;
use tidegate_operators::record::{Estimated, Metrics, Rollout, Status, Step, now_ns};
use tidegate_operators::start::Start;

/// All that a run starts with, or goes on with.
pub struct Origin<E: Engine> {
    /// Of the model that the run started from.
    pub identity: Identity,
    pub learner: E::Learner,
    /// After the last sealed step.
    pub state: State,
    /// The step of the checkpoint that it was loaded from, if it was.
    pub checkpoint: Option<Step>,
    pub start: Start,
    /// The groups that wait, as `start` says.
    pub waiting: Vec<Estimated>,
    /// What the last steps measured, in order: as many as safeguards look back.
    pub before: Vec<Metrics>,
    /// What the policy is to stay near.
    pub referee: Referee<E::Frozen, E::Weights>,
}

impl<E: Engine> Origin<E> {
    /// The origin of a run that starts at nothing. `open` makes the engine of a model folder.
    ///
    /// # Errors
    /// Not enough memory for its learner; a reference that is not of its layout.
    pub fn new(engine: &E, spec: &Spec, open: impl Fn(Option<&Path>) -> Result<E>) -> Result<Self> {
        let (frozen, reference) = reference::frozen(spec, engine, Loaded::First, &Refreshed::default(), open)?;
        let referee = Referee { frozen, ..Referee::default() };
        let learner = engine.learner(&spec.learn, &spec.generate, spec.steps, 0)?;
        let (state, start) = (State::default(), Start::default());
        let (waiting, before) = (Vec::new(), Vec::new());
        let identity = Identity { reference, ..engine.identity() };
        Ok(Origin { identity, learner, state, checkpoint: None, start, waiting, before, referee })
    }
}

/// Whether replayed steps must be the recorded ones, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Same,
    /// They may differ: another machine, or another build.
    Any,
}

/// Finds where the run in `folder` goes on. `open` makes the engine of a model folder.
///
/// # Errors
/// A log with a step missing, or damaged; a model that is not the one that the run started from; replayed steps that differ from
/// the recorded ones.
pub fn recover<E>(
    spec: &Spec,
    folder: &RunFolder,
    bits: Bits,
    halt: &Halt,
    open: impl Fn(Option<&Path>) -> Result<E>,
) -> Result<(E, Origin<E>)>
where
    E: Engine + 'static,
{
    let mut log = LogReader::open(folder)?;
    let sealed: Vec<Step> = log.steps().collect();
    let last = sealed.len() as Step;
    if let Some((step, expected)) = sealed.iter().zip(1..).find(|(step, expected)| *step != expected) {
        let why = format!("holds step {step} but not step {expected}: a file of the log is missing, and nothing can go on");
        return Err(Error::file(folder.rollouts(), why));
    }
    let first = if last > 0 { Some(log.footer(1)?) } else { None };
    set_aside(folder, last)?;
    let Found { engine, learner, mut state, refreshed, drift } = newest(spec, folder, &mut log, first.as_ref(), &open)?;
    let checkpoint = Some(state.step).filter(|step| *step > 0);
    crash::at("resume: loaded");
    let referee = Referee { refreshed: refreshed.clone(), drift, ..Referee::default() };
    let learner = again::<E>(spec, folder, E::version(&learner)..last, learner, referee, bits, halt)?;
    crash::at("resume: replayed");
    for step in state.step + 1..=last {
        let file = log.step(step)?;
        plausible(&file, &state.groups)?;
        state.groups.account_rows(&file.rollouts);
        if let Some(metrics) = file.footer.metrics {
            state = State::after(&metrics, state.groups);
        }
    }
    let mut start = Start { finished_ns: state.finished_ns, ..Start::at(last, 0) };
    let waiting = waiting(spec, &mut log, &mut state.groups, &mut start)?;
    let mut identity = first.map_or_else(|| engine.identity(), |Footer { info, .. }| identity::recorded(&info));
    let before = measured(&mut log, &spec.learn, last)?;
    let loaded = checkpoint.map_or(Loaded::First, |_| Loaded::Later(&identity));
    let (frozen, reference) = reference::frozen(spec, &engine, loaded, &refreshed, &open)?;
    identity::same_reference(spec, &identity, &reference)?;
    if last == 0 {
        identity.reference = reference;
    }
    let referee = Referee { frozen, refreshed, drift: Drift::after(&before), ..Referee::default() };
    Ok((engine, Origin { identity, learner, state, checkpoint, start, waiting, before, referee }))
}

/// What the steps up to `last` measured, in order, without their hashes: back to where there are as many norms of gradients as a
/// learner keeps, so that one that goes on decides what one that never stopped does.
fn measured(log: &mut LogReader, learning: &Learning, last: Step) -> Result<Vec<Metrics>> {
    let (mut found, mut norms) = (Vec::new(), 0);
    for step in (1..=last).rev() {
        if norms == MOST {
            break;
        }
        let Some(metrics) = log.footer(step)?.metrics else { continue };
        norms += usize::from(Norms::counts(judged_norm(learning, &metrics)));
        found.push(Metrics { weights: Vec::new(), ..metrics });
    }
    found.reverse();
    Ok(found)
}

/// Checkpoints of steps that the log does not have are not of this run as it is now: they must not be taken for those to come.
fn set_aside(folder: &RunFolder, last: Step) -> Result<()> {
    for step in folder.checkpointed_steps()?.into_iter().filter(|step| *step > last) {
        let path = folder.checkpoint(step);
        let aside = folder.checkpoints().join(format!("ahead-{step:08}-{}", now_ns()));
        std::fs::rename(&path, &aside).map_err(|e| Error::write(&path, &e))?;
        let (path, aside) = (path.display(), aside.display());
        say(format_args!("note      {path} is of a step that the log does not have; it is {aside} now"));
    }
    Ok(())
}

/// Where a run is found, before the steps that its log has after it.
struct Found<E: Engine> {
    engine: E,
    learner: E::Learner,
    state: State,
    refreshed: Refreshed<E::Weights>,
    drift: Drift,
}

/// The newest checkpoint that can be used, and if there is none, the beginning.
fn newest<E: Engine>(
    spec: &Spec,
    folder: &RunFolder,
    log: &mut LogReader,
    first: Option<&Footer>,
    open: &impl Fn(Option<&Path>) -> Result<E>,
) -> Result<Found<E>> {
    let mut steps = folder.checkpointed_steps()?;
    steps.retain(|step| log.path(Part::Step(*step)).is_some());
    for step in steps.into_iter().rev() {
        let path = folder.checkpoint(step);
        match at_checkpoint(spec, folder, log, step, open) {
            Ok(found) => return Ok(found),
            Err(error) => say(format_args!("note      {} cannot be used: {error}; going back", path.display())),
        }
    }
    let engine = open(None)?;
    if let Some(Footer { info, .. }) = first {
        identity::same(spec, &identity::recorded(info), &engine.identity())?;
    }
    let learner = engine.learner(&spec.learn, &spec.generate, spec.steps, 0)?;
    let (state, refreshed, drift) = (State::default(), Refreshed::default(), Drift::default());
    Ok(Found { engine, learner, state, refreshed, drift })
}

fn at_checkpoint<E: Engine>(
    spec: &Spec,
    folder: &RunFolder,
    log: &mut LogReader,
    step: Step,
    open: &impl Fn(Option<&Path>) -> Result<E>,
) -> Result<Found<E>> {
    let path = folder.checkpoint(step);
    let state = State::read(&path)?;
    if state.step != step {
        return Err(Error::file(&path, format!("its state.json is of step {}", state.step)));
    }
    let recorded = log.footer(step)?.metrics.unwrap_or_default().weights;
    let engine = open(Some(&path))?;
    let found = engine.hashes()?;
    for (weights, what) in [(&state.weights, "its state.json"), (&recorded, "the log")] {
        if *weights != found {
            return Err(Error::file(&path, format!("its weights are not those that {what} has for step {step}")));
        }
    }
    // Since the first of these steps the weights stand still: they are its, and what it holds comes from training it again.
    let moved = step - held(log, step)?;
    let mut learner = engine.learner(&spec.learn, &spec.generate, spec.steps, moved)?;
    engine.restore(&path, &mut learner)?;
    let before = measured(log, &spec.learn, moved)?;
    E::recall(&mut learner, &before);
    let refreshed = reference::refreshed_at(spec, &engine, &path, step)?;
    Ok(Found { engine, learner, state, refreshed, drift: Drift::after(&before) })
}

/// How many steps up to `step` hold their gradients for the one after it: no checkpoint has those, for the log has what they are made
/// of.
fn held(log: &mut LogReader, step: Step) -> Result<Step> {
    let mut count = 0;
    while count < step && log.footer(step - count)?.metrics.is_some_and(|metrics| metrics.held) {
        count += 1;
    }
    Ok(count)
}

/// Trains the sealed steps after a checkpoint again.
fn again<E>(
    spec: &Spec,
    folder: &RunFolder,
    steps: std::ops::Range<Step>,
    learner: E::Learner,
    referee: Referee<E::Frozen, E::Weights>,
    bits: Bits,
    halt: &Halt,
) -> Result<E::Learner>
where
    E: Engine + 'static,
{
    if steps.is_empty() {
        return Ok(learner);
    }
    say(format_args!("resume    training steps {} to {} again from the log", steps.start + 1, steps.end));
    let retrace = Retrace { folder, spec, sets: &[], after: steps.start, last: steps.end };
    let (lent, home) = Lent::new(learner);
    let threads = spec.learner_threads();
    let verdict = match bits {
        Bits::Same => Verdict::Check(Check::default()),
        Bits::Any => Verdict::WhatIf(Default::default()),
    };
    let (verdict, faults) = retrace.train::<E>(lent, referee, verdict, halt, threads)?;
    if let Some(difference) = verdict.difference() {
        let why = "another machine, build or number of threads gives other bits (--force goes on all the same)";
        return Err(Error::Mismatch(format!("{difference}: {why}")));
    }
    if let Some(fault) = faults.into_iter().next() {
        return Err(Error::Fault(fault));
    }
    if bits == Bits::Same {
        say(format_args!("resume    they are the recorded ones, bit for bit"));
    }
    let learner = home.take().filter(|learner| E::version(learner) == steps.end);
    learner.ok_or_else(|| Error::engine("resume", "stopped before all sealed steps were trained again"))
}

/// The groups that were complete and not trained, from the tails, newest first; all else that is missing is admitted again.
fn waiting(spec: &Spec, log: &mut LogReader, groups: &mut Ledger, start: &mut Start) -> Result<Vec<Estimated>> {
    let plan = spec.plan();
    let mut found: BTreeMap<(Step, u64), Vec<Rollout>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for part in log.parts().into_iter().rev().filter(|part| matches!(part, Part::Tail(_))) {
        let read = log.read(part).and_then(|file| plausible(&file, groups).map(|()| file.rollouts));
        let rows = match read {
            Ok(rows) => rows,
            Err(error) => {
                // No step needs it: what was in it is sampled again.
                say(format_args!("note      {error}; its rollouts are sampled again"));
                continue;
            }
        };
        groups.account_rows(&rows);
        for group in rows.chunk_by(|a, b| a.group.number == b.group.number) {
            let number = group[0].group.number;
            if group.iter().any(|row| row.status == Status::Waiting) && seen.insert(number) {
                found.insert((group[0].group.due, number), group.to_vec());
            }
        }
    }
    // A fault may have kept the estimator from a group: it is sampled again.
    let estimated_one = |row: &Rollout| !row.trainable() || row.advantage.len() == row.tokens.len();
    let whole = |rows: &[Rollout]| rows.len() == rows[0].group.size as usize && rows.iter().all(estimated_one);
    found.retain(|(_, number), rows| !groups.has(*number) && whole(rows));
    start.next = found.keys().map(|(_, number)| number + 1).max().unwrap_or(0).max(groups.next());
    found.retain(|(due, number), _| start.wait(*due, *number, plan.schedule, plan.steps, plan.batch_groups));
    let waits: BTreeSet<u64> = start.waiting.iter().map(|(_, number)| *number).collect();
    let unaccounted = groups.missing().iter().copied().chain(groups.next()..start.next);
    start.again = unaccounted.filter(|number| !waits.contains(number)).collect();
    Ok(found.into_values().map(estimated).collect())
}

/// Numbers of groups go on without large gaps; a file that says otherwise is not of this run.
fn plausible(file: &StepFile, groups: &Ledger) -> Result<()> {
    const LARGEST_GAP: u64 = 1 << 24;
    let last = file.rollouts.iter().map(|row| row.group.number).max().unwrap_or(0);
    if last > groups.next().saturating_add(LARGEST_GAP) {
        let why = format!("{last}, where the groups before it end at {}: this is no file of the run", groups.next());
        return Err(Error::column(&file.path, "group", why));
    }
    Ok(())
}

fn estimated(mut rollouts: Vec<Rollout>) -> Estimated {
    for rollout in &mut rollouts {
        (rollout.step, rollout.order) = (0, 0);
        rollout.logp_current.clear();
        rollout.logp_reference.clear();
    }
    rollouts.sort_unstable_by_key(|rollout| rollout.sample);
    Estimated { group: rollouts[0].group.clone(), rollouts, discarded: None }
}
