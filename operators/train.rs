//! `train`: chooses each step's batch so that the lag bound holds, and takes the gradient steps.
//!
//! Its weights and its sealed steps have capabilities of their own and are connected to no input: the weights' frontier is
//! the number of steps done, however old the groups still in flight are. Only the record of what became of each group
//! ([`Moved`], for the census) leaves at the group's due.

use crate::admit::{End, Feedback};
use crate::alarm::{Alarm, Output, UNCONNECTED, Wake, first, output, to};
use crate::balance::Spent;
use crate::batch;
use crate::fault::{Fault, Halt, guarded};
use crate::plan::{Order, Plan, ShortBatch};
use crate::record::{Estimated, Metrics, Reason, Rollout, SealedStep, Step, Version, Weights, now_ns};
use crate::seal::{AHEAD, Sealed};
use crate::select::{Choice, Selector, Wait};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// The training half of an engine.
pub trait Learner {
    type Weights: 'static;

    /// Takes the batch of step `step`, in batch order. Rollouts that are not [`trainable`](Rollout::trainable) have no gradient.
    ///
    /// # Errors
    /// A batch that cannot be trained at all.
    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault>;

    /// One bounded piece of the step that [`begin`](Learner::begin) opened (one micro-batch, or the update). None while there
    /// is more to do.
    ///
    /// # Errors
    /// Whatever the device says.
    fn work(&mut self) -> Result<Option<Trained>, Fault>;

    /// The batch of a step that failed, whole, for the log; empty where nothing is left of it.
    fn abandon(&mut self) -> Vec<Rollout> {
        Vec::new()
    }

    /// An immutable snapshot of the newest weights.
    ///
    /// # Errors
    /// Whatever the device says.
    fn weights(&mut self) -> Result<Self::Weights, Fault>;
}

/// A finished step: the batch back, with `logp_current` filled, and what the learner measured.
#[derive(Clone, Debug)]
pub struct Trained {
    pub batch: Vec<Rollout>,
    pub metrics: Metrics,
}

/// Where a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
    /// Admitted, and not yet at `train`.
    Generating,
    /// At `train`, not chosen.
    Waiting,
    Trained,
    Discarded,
}

/// A group went from one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    pub number: u64,
    pub from: State,
    pub to: State,
}

/// What becomes of a step's result besides the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Generators take the weights of every step, and no trained token may have a larger lag than this.
    Run { bound: u64 },
    /// Recorded groups: nobody takes weights, and tokens have the lag that they were recorded with.
    Replay,
}

/// Outputs of [`train`].
pub struct Trains<'scope, W: 'static> {
    /// Version v at time v. The frontier is the number of steps done.
    pub weights: StreamVec<'scope, Step, Weights<W>>,
    /// Step k at time k.
    pub steps: StreamVec<'scope, Step, SealedStep>,
    pub feedback: StreamVec<'scope, Step, Feedback>,
    /// At the group's due.
    pub moved: StreamVec<'scope, Step, Moved>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Trains on the plan's learner: one piece of a step an activation, and at most [`AHEAD`] steps beyond the last `sealed`.
///
/// After a halt no step starts; one that has begun is finished. Groups that still wait then go to the log as they are, in a
/// step without metrics.
pub fn train<'scope, L: Learner + 'static>(
    groups: StreamVec<'scope, Step, Estimated>,
    end: StreamVec<'scope, Step, End>,
    sealed: StreamVec<'scope, Step, Sealed>,
    plan: &Plan,
    mode: Mode,
    learner: Option<L>,
    halt: &Halt,
) -> Trains<'scope, L::Weights> {
    let scope = groups.scope();
    let worker = plan.learner as u64;
    let mut builder = OperatorBuilder::new("train".to_owned(), scope);
    let (moved_out, moved) = output(&mut builder);
    let (weights_out, weights) = output(&mut builder);
    let (steps_out, steps) = output(&mut builder);
    let (feedback_out, feedback) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut groups = builder.new_input_connection(groups, Exchange::new(move |_: &Estimated| worker), to(0));
    let mut end = builder.new_input_connection(end, Exchange::new(move |_: &End| worker), UNCONNECTED);
    let mut sealed = builder.new_input_connection(sealed, Pipeline, UNCONNECTED);

    let mut wake = Wake::new(scope, builder.operator_info().address);
    let here = plan.learner == scope.index();
    let plan = plan.clone();
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(4));
        let own = Own { feedback: capabilities.remove(3), steps: capabilities.remove(2), weights: capabilities.remove(1) };
        capabilities.clear();
        let outputs = Outputs { moved: moved_out, weights: weights_out, steps: steps_out, feedback: feedback_out, own };
        let missing = || Fault::new("train", format!("worker {worker} trains, but was given no learner"));
        let mut missing = (here && learner.is_none()).then(missing);
        let mut train = here.then(|| Train::new(learner, plan, mode, outputs));
        move |frontiers| {
            missing.take().into_iter().for_each(|fault| alarm.raise(fault));
            groups.for_each(|capability, data| {
                let Some((state, capability)) = train.as_mut().zip(capability.retain_least(0)) else { return };
                data.drain(..).for_each(|group| alarm.check(state.arrive(&capability, group)).unwrap_or_default());
            });
            end.for_each(|_, data| {
                let Some(state) = &mut train else { return };
                data.drain(..).for_each(|end| state.selector.ended(end.groups));
            });
            sealed.for_each(|_, data| {
                let Some(state) = &mut train else { return };
                state.sealed = data.drain(..).map(|sealed| sealed.step).fold(state.sealed, Step::max);
            });
            if let Some(state) = &mut train {
                state.selector.frontier(first(&frontiers[0]));
                let next = state.quantum(&mut alarm);
                let cut = frontiers[0].is_empty() && (frontiers[1].is_empty() || alarm.halted());
                match next {
                    Next::Work => wake.now(),
                    // A halt may come meanwhile, and the log may have no more to say.
                    Next::WaitForLog => wake.soon(),
                    Next::Wait if !cut => {}
                    Next::Wait | Next::Done => {
                        state.tail();
                        train = None;
                    }
                }
            }
            if train.is_none() {
                alarm.rest();
            }
        }
    });
    Trains { weights, steps, feedback, moved, faults }
}

/// The capabilities of the outputs that follow the steps.
struct Own {
    weights: Capability<Step>,
    steps: Capability<Step>,
    feedback: Capability<Step>,
}

struct Outputs<W: 'static> {
    moved: Output<Moved>,
    weights: Output<Weights<W>>,
    steps: Output<SealedStep>,
    feedback: Output<Feedback>,
    own: Own,
}

/// What the operator does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Work,
    Wait,
    /// The log is too far behind, whatever has arrived.
    WaitForLog,
    Done,
}

/// The step that is under way: due and number of its groups, and how many rollouts they have.
struct Open {
    groups: Vec<(Step, u64)>,
    rollouts: usize,
}

struct Train<L: Learner> {
    learner: Option<L>,
    plan: Plan,
    mode: Mode,
    outputs: Outputs<L::Weights>,
    /// Groups with their due.
    selector: Selector<(Step, Estimated)>,
    published: Option<Version>,
    /// The last durable step.
    sealed: Step,
    open: Option<Open>,
    /// By due: its capability, and how many of its groups are here and neither trained nor discarded.
    here: BTreeMap<Step, (Capability<Step>, u64)>,
    /// Rollouts for the log that no step trained.
    discarded: Vec<Rollout>,
    clock: Clock,
}

impl<L: Learner> Train<L> {
    fn new(learner: Option<L>, plan: Plan, mode: Mode, outputs: Outputs<L::Weights>) -> Self {
        // The numbers of recorded groups have gaps, and the due of each says all.
        let order = if mode == Mode::Replay { Order::Arrival } else { plan.order };
        let selector = Selector::new(plan.start.clone(), plan.steps, plan.batch_groups, order);
        let by_turns = mode != Mode::Replay && plan.schedule.phase().is_some();
        Train {
            learner,
            mode,
            outputs,
            selector: if by_turns { selector.by_turns() } else { selector },
            sealed: plan.start.version,
            published: None,
            open: None,
            here: BTreeMap::new(),
            discarded: Vec::new(),
            clock: Clock::new(plan.start.finished_ns),
            plan,
        }
    }

    /// Counts a group. The time that it travels at is its due.
    fn arrive(&mut self, capability: &Capability<Step>, estimated: Estimated) -> Result<(), Fault> {
        let (due, number, earlier) = (*capability.time(), estimated.group.number, estimated.group.earlier);
        let breach = |breach| Fault::new("train", breach);
        self.here.entry(due).or_insert_with(|| (capability.clone(), 0)).1 += 1;
        let Some(reason) = &estimated.discarded else {
            self.moved(due, number, State::Generating, State::Waiting);
            return self.selector.arrive(due, earlier, number, (due, estimated)).map_err(breach);
        };
        if self.mode == Mode::Replay {
            return Err(Fault::new(
                "train",
                format!("group {number} was trained when it was recorded, and is now discarded: {reason}"),
            ));
        }
        self.discarded.extend(batch::discard(estimated.rollouts, reason));
        self.moved(due, number, State::Generating, State::Discarded);
        self.outputs.feedback.activate().session(&self.outputs.own.feedback).give(Feedback::Returned);
        self.selector.discard(due, earlier, number).map_err(breach)
    }

    fn moved(&mut self, due: Step, number: u64, from: State, to: State) {
        let Some((capability, groups)) = self.here.get_mut(&due) else { return };
        self.outputs.moved.activate().session(capability).give(Moved { number, from, to });
        if matches!(to, State::Trained | State::Discarded) {
            *groups -= 1;
            if *groups == 0 {
                self.here.remove(&due);
            }
        }
    }

    /// One piece of work: the first weights, a piece of the open step, or the choice of the next.
    fn quantum(&mut self, alarm: &mut Alarm) -> Next {
        let Some(mut learner) = self.learner.take() else { return Next::Wait };
        let next = if self.published.is_none() {
            self.publish(&mut learner, self.plan.start.version).map(|()| Next::Work)
        } else if self.open.is_some() {
            self.work(&mut learner).map(|()| Next::Work)
        } else if alarm.halted() {
            Ok(Next::Wait)
        } else if (self.sealed + AHEAD + 1..=self.plan.steps).contains(&self.selector.next_step()) {
            self.clock.wait(Cause::Log);
            Ok(Next::WaitForLog)
        } else {
            self.choose(&mut learner)
        };
        // After a fault the learner is let go; what it had of a step goes to the log with what waits.
        match alarm.check(next) {
            Some(next) => {
                self.learner = Some(learner);
                next
            }
            None => {
                self.open = None;
                self.discarded.extend(guarded("train", || Ok(learner.abandon())).unwrap_or_default());
                Next::Wait
            }
        }
    }

    fn publish(&mut self, learner: &mut L, version: Version) -> Result<(), Fault> {
        let own = &mut self.outputs.own;
        own.weights.downgrade(&version);
        let Plan { start, schedule, steps, .. } = &self.plan;
        // Weights that no generator takes need no snapshot; the last version ends the admission.
        let taken = version == start.version || version == *steps || schedule.swaps(version);
        if taken && self.mode != Mode::Replay {
            let payload = self.clock.train(|| guarded("train", || learner.weights()))?;
            self.outputs.weights.activate().session(&own.weights).give(Weights { version, payload });
        }
        self.published = Some(version);
        Ok(())
    }

    fn choose(&mut self, learner: &mut L) -> Result<Next, Fault> {
        let step = self.selector.next_step();
        let groups = match self.selector.choose() {
            Choice::Wait(wait) => {
                self.clock.wait(Cause::Groups(wait));
                return Ok(Next::Wait);
            }
            Choice::Done => return Ok(Next::Done),
            Choice::Last(groups) if self.plan.short_batch == ShortBatch::Discard => {
                for (due, estimated) in groups {
                    self.moved(due, estimated.group.number, State::Waiting, State::Discarded);
                    self.discarded.extend(batch::discard(estimated.rollouts, &Reason::DataEnded));
                }
                return Ok(Next::Done);
            }
            Choice::Step(groups) | Choice::Last(groups) => groups,
        };
        self.clock.begin();
        let numbers = groups.iter().map(|(due, estimated)| (*due, estimated.group.number)).collect();
        let groups: Vec<_> = groups.into_iter().map(|(_, estimated)| estimated).collect();
        let bound = match self.mode {
            Mode::Run { bound } => Some(bound),
            Mode::Replay => None,
        };
        let batch = batch::assemble(step, groups, bound)?;
        self.open = Some(Open { groups: numbers, rollouts: batch.len() });
        self.clock.train(|| guarded("train", || learner.begin(step, batch)))?;
        Ok(Next::Work)
    }

    /// One piece of the open step; with the last one, its weights go to the generators and its rows to the log.
    fn work(&mut self, learner: &mut L) -> Result<(), Fault> {
        let Some(Trained { mut batch, mut metrics }) = self.clock.train(|| guarded("train", || learner.work()))? else {
            return Ok(());
        };
        let step = self.selector.next_step() - 1;
        let Some(Open { groups, rollouts }) = self.open.take() else { return Ok(()) };
        if batch.len() != rollouts {
            let lost = format!("the learner took {rollouts} rollouts for step {step} and returned {}", batch.len());
            return Err(Fault::new("train", lost));
        }
        for (due, number) in groups {
            self.moved(due, number, State::Waiting, State::Trained);
        }
        batch::mark_trained(&mut batch);
        metrics.step = step;
        batch::measure(&mut metrics, &batch);
        // The step is done and goes to the log, even if no snapshot can be had of it.
        let published = self.publish(learner, step);
        let spent = self.clock.finish(&mut metrics);
        self.outputs.feedback.activate().session(&self.outputs.own.feedback).give(Feedback::Stepped(spent));
        self.seal(step, batch, Some(metrics));
        published
    }

    fn seal(&mut self, step: Step, mut rollouts: Vec<Rollout>, metrics: Option<Metrics>) {
        batch::append(step, &mut rollouts, self.discarded.drain(..));
        let own = &mut self.outputs.own;
        own.steps.downgrade(&step);
        self.outputs.steps.activate().session(&own.steps).give(SealedStep { step, rollouts, metrics });
        own.steps.downgrade(&(step + 1));
    }

    /// The end: what waits and what was discarded since the last step still goes to the log.
    fn tail(&mut self) {
        let waiting = self.selector.drain();
        self.discarded.extend(waiting.into_iter().flat_map(|(_, estimated)| estimated.rollouts));
        let next = self.outputs.own.steps.time().max(&(self.plan.start.version + 1)).to_owned();
        if !self.discarded.is_empty() {
            self.seal(next, Vec::new(), None);
        }
    }
}

/// What the learner's worker waits for.
#[derive(Clone, Copy)]
enum Cause {
    Groups(Wait),
    Log,
}

/// Where the learner's worker spends its time since the step before, nanoseconds.
struct Clock {
    started: Instant,
    mark: Instant,
    waiting: Cause,
    train_ns: u64,
    forced_ns: u64,
    any_ns: u64,
    log_ns: u64,
    /// When the step before ended, since the Unix epoch. Steps end one after the other also where the system's clock is set back.
    finished_ns: i64,
}

impl Clock {
    fn new(finished_ns: i64) -> Self {
        let waiting = Cause::Groups(Wait::Any);
        let now = Instant::now();
        Clock { started: now, mark: now, waiting, train_ns: 0, forced_ns: 0, any_ns: 0, log_ns: 0, finished_ns }
    }

    /// From now on the wait is for `next`.
    fn wait(&mut self, next: Cause) {
        self.begin();
        self.waiting = next;
    }

    /// The wait so far is over.
    fn begin(&mut self) {
        let spent = nanoseconds(self.mark);
        match self.waiting {
            Cause::Groups(Wait::Forced) => self.forced_ns += spent,
            Cause::Groups(Wait::Any) => self.any_ns += spent,
            Cause::Log => self.log_ns += spent,
        }
        self.mark = Instant::now();
    }

    fn train<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.train_ns += nanoseconds(start);
        result
    }

    fn finish(&mut self, metrics: &mut Metrics) -> Spent {
        let whole_ns = nanoseconds(self.started);
        let waited_ns = self.forced_ns + self.any_ns;
        metrics.train_ns = self.train_ns;
        metrics.wait_forced_ns = self.forced_ns;
        metrics.wait_any_ns = self.any_ns;
        metrics.wait_log_ns = self.log_ns;
        metrics.elsewhere_ns = whole_ns.saturating_sub(self.train_ns + waited_ns + self.log_ns);
        metrics.finished_ns = now_ns().max(self.finished_ns.saturating_add(1));
        *self = Clock::new(metrics.finished_ns);
        Spent { whole_ns, waited_ns }
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
