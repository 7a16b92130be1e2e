//! `score`: gives each rollout its reward, on the worker that sampled it.
//!
//! A rollout that its port has taken and not yet given back holds the frontier at its due, like one that is being sampled:
//! a slow reward keeps `train` from what the lag rule forces, and from nothing else.

use crate::alarm::{Alarm, Output, QUANTUM, Wake, output, to};
use crate::fault::{Fault, Halt, guarded};
use crate::record::{Rollout, Step};
use crate::waker::Waker;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// A reward function: one that answers at once needs [`score`](Scorer::score) alone; one that is slow takes rollouts, works on
/// threads of its own and [wakes](Scorer::wake_with) the operator when some are finished. None of the calls may block.
pub trait Scorer {
    /// Fills `reward` and `reward_parts`, or `reward_error`, and gives the rollout back; or takes it (None) and gives it back
    /// from [`finished`](Scorer::finished).
    ///
    /// # Errors
    /// Only what ends the run; a rollout that cannot be scored is no fault.
    fn score(&mut self, rollout: Rollout) -> Result<Option<Rollout>, Fault>;

    /// Rollouts that were taken and are scored now, in any order.
    ///
    /// # Errors
    /// As [`score`](Scorer::score).
    fn finished(&mut self) -> Result<Vec<Rollout>, Fault> {
        Ok(Vec::new())
    }

    /// How many were taken and not yet given back.
    fn pending(&self) -> usize {
        0
    }

    /// Told once, before the first rollout: what to wake whenever some are finished, or something failed.
    fn wake_with(&mut self, _waker: Waker) {}
}

/// How long after a halt rollouts that are still being scored are waited for, so that their groups can be kept whole.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Outputs of [`score`].
pub struct Scored<'scope> {
    pub rollouts: StreamVec<'scope, Step, Rollout>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Scores the rollouts that can be trained, for one quantum an activation. After a halt what is here is still scored, so
/// that complete groups are kept, and what the port has taken is waited for, [`PATIENCE`] at most; after a fault of its own,
/// dropped.
///
/// ```
/// use tidegate_operators::fault::{Fault, Halt};
/// use tidegate_operators::record::Rollout;
/// use tidegate_operators::score::{Scorer, score};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// struct Length;
///
/// impl Scorer for Length {
///     fn score(&mut self, mut rollout: Rollout) -> Result<Option<Rollout>, Fault> {
///         rollout.reward = Some(rollout.tokens.len() as f32);
///         Ok(Some(rollout))
///     }
/// }
///
/// timely::example(|scope| {
///     let rollouts = [Rollout { tokens: vec![1, 2], ..Rollout::default() }].to_stream(scope);
///     let scored = score(rollouts, Some(Length), &Halt::default());
///     scored.rollouts.inspect(|rollout| assert_eq!(rollout.reward, Some(2.0)));
/// });
/// ```
pub fn score<'scope, S: Scorer + 'static>(
    rollouts: StreamVec<'scope, Step, Rollout>,
    scorer: Option<S>,
    halt: &Halt,
) -> Scored<'scope> {
    let scope = rollouts.scope();
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("score".to_owned(), scope);
    let (rollouts_out, scored) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut rollouts = builder.new_input_connection(rollouts, Pipeline, to(0));

    let address = builder.operator_info().address;
    let waker = Waker::of(scope, &address);
    let mut wake = Wake::new(scope, address);
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(1));
        capabilities.clear();
        let mut waker = Some(waker);
        let mut state = Score { scorer, worker, queue: VecDeque::new(), taken: BTreeMap::new(), output: rollouts_out };
        let mut broken = false;
        let mut waits_until = None;
        move |frontiers| {
            rollouts.for_each(|capability, data| {
                let arrived = data.drain(..).filter_map(|rollout| Some((capability.retain_least(0)?, rollout)));
                state.queue.extend(arrived);
            });
            let told = waker.take().map_or(Ok(()), |waker| state.tell(waker));
            broken = broken || alarm.check(told.and_then(|()| state.quantum())).is_none();
            if alarm.halted() && !state.taken.is_empty() {
                let until = *waits_until.get_or_insert_with(|| Instant::now() + PATIENCE);
                broken = broken || Instant::now() >= until;
            }
            if broken {
                state.let_go();
            }
            if !state.queue.is_empty() {
                wake.now();
            } else if !state.taken.is_empty() {
                wake.soon();
            } else if frontiers[0].is_empty() {
                alarm.rest();
            }
        }
    });
    Scored { rollouts: scored, faults }
}

struct Score<S: Scorer> {
    scorer: Option<S>,
    worker: usize,
    queue: VecDeque<(Capability<Step>, Rollout)>,
    /// Capabilities of the rollouts that the port has, by group number and sample.
    taken: BTreeMap<(u64, u32), Capability<Step>>,
    output: Output<Rollout>,
}

impl<S: Scorer> Score<S> {
    fn tell(&mut self, waker: Waker) -> Result<(), Fault> {
        let Some(scorer) = &mut self.scorer else { return Ok(()) };
        guarded("score", || {
            scorer.wake_with(waker);
            Ok(())
        })
    }

    /// Sends on what is finished, and scores or hands over what is queued, for a while.
    fn quantum(&mut self) -> Result<(), Fault> {
        self.collect()?;
        let mut output = self.output.activate();
        let start = Instant::now();
        while start.elapsed() < QUANTUM
            && let Some((capability, rollout)) = self.queue.pop_front()
        {
            let missing = || Fault::new("score", format!("worker {} generates, but was given no scorer", self.worker));
            let scorer = self.scorer.as_mut().ok_or_else(missing)?;
            if !rollout.trainable() {
                output.session(&capability).give(rollout);
                continue;
            }
            let key = key(&rollout);
            match guarded("score", || scorer.score(rollout))? {
                Some(rollout) => output.session(&capability).give(rollout),
                None if self.taken.insert(key, capability).is_none() => {}
                None => return Err(Fault::new("score", format!("{} came twice", name(key)))),
            }
        }
        Ok(())
    }

    /// Sends on what the port has finished, each rollout at the time at which it came.
    fn collect(&mut self) -> Result<(), Fault> {
        let Some(scorer) = self.scorer.as_mut().filter(|_| !self.taken.is_empty()) else { return Ok(()) };
        let mut output = self.output.activate();
        for rollout in guarded("score", || scorer.finished())? {
            let key = key(&rollout);
            let unknown = || Fault::new("score", format!("the scorer returned {}, which it does not have", name(key)));
            let capability = self.taken.remove(&key).ok_or_else(unknown)?;
            output.session(&capability).give(rollout);
        }
        match self.taken.first_key_value() {
            Some((&key, _)) if guarded("score", || Ok(scorer.pending()))? == 0 => {
                Err(Fault::new("score", format!("the scorer has nothing pending, but owes {}", name(key))))
            }
            _ => Ok(()),
        }
    }

    /// Gives up whatever is not scored.
    fn let_go(&mut self) {
        self.queue.clear();
        self.taken.clear();
        self.scorer = None;
    }
}

fn key(rollout: &Rollout) -> (u64, u32) {
    (rollout.group.number, rollout.sample)
}

fn name((number, sample): (u64, u32)) -> String {
    format!("group {number}, sample {sample}")
}
