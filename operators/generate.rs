//! `generate`: samples rollouts, one token of all running ones a decode step, and takes new weights between two steps.
//!
//! A group's rollouts keep the group's capability: they leave at its due. The weights input is connected to no output, so
//! the rollouts' frontier does not wait for it. A group queues until weights are loaded that may sample it (guard 4 of
//! [`lag`](crate::lag)): groups and weights come by different edges, in any order.

use crate::admit::Feedback;
use crate::alarm::{Alarm, UNCONNECTED, Wake, output, to};
use crate::fault::{Fault, Halt, guarded};
use crate::plan::Plan;
use crate::record::{Group, Rollout, Step, Version, Weights};
use crate::schedule::{Schedule, WeightsUpdate};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// The sampling half of an engine.
pub trait Generator {
    type Weights: 'static;

    /// Takes newer weights; sequences that run go on with them from their next token.
    ///
    /// # Errors
    /// Weights that do not fit the model.
    fn load(&mut self, version: Version, weights: Self::Weights) -> Result<(), Fault>;

    /// Queues the `group.size` rollouts of a group; they enter as slots get free, first come first served.
    ///
    /// # Errors
    /// Only what ends the run: a prompt that cannot be sampled comes back from [`step`](Generator::step) as refused rollouts.
    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault>;

    /// One decode step: one more token for every running rollout. Returns those that ended with it.
    ///
    /// # Errors
    /// Whatever the device says.
    fn step(&mut self) -> Result<Vec<Rollout>, Fault>;

    /// Rollouts started and not yet returned.
    fn running(&self) -> usize;
}

/// Outputs of [`generate`].
pub struct Generated<'scope> {
    /// At their group's due.
    pub rollouts: StreamVec<'scope, Step, Rollout>,
    pub feedback: StreamVec<'scope, Step, Feedback>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Samples groups on the workers that their `generator` names. `weights` must already be on the workers that need them.
pub fn generate<'scope, G: Generator + 'static>(
    groups: StreamVec<'scope, Step, Arc<Group>>,
    weights: StreamVec<'scope, Step, Weights<G::Weights>>,
    plan: &Plan,
    generator: Option<G>,
    halt: &Halt,
) -> Generated<'scope> {
    let scope = groups.scope();
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("generate".to_owned(), scope);
    let (mut rollouts_out, rollouts) = output(&mut builder);
    let (mut feedback_out, feedback) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let to_generator = Exchange::new(|group: &Arc<Group>| group.generator as u64);
    let mut groups = builder.new_input_connection(groups, to_generator, to(0));
    let mut weights = builder.new_input_connection(weights, Pipeline, UNCONNECTED);

    let mut wake = Wake::new(scope, builder.operator_info().address);
    let here = plan.generators.contains(&worker);
    let (schedule, weights_update) = (plan.schedule, plan.weights_update);
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(2));
        let mut own = Some(capabilities.remove(1));
        capabilities.clear();
        let missing = || Fault::new("generate", format!("worker {worker} generates, but was given no generator"));
        let mut missing = (here && generator.is_none()).then(missing);
        let mut generate = generator.filter(|_| here).map(|generator| Generate::new(generator, schedule, weights_update));
        move |frontiers| {
            missing.take().into_iter().for_each(|fault| alarm.raise(fault));
            groups.for_each(|capability, data| {
                let Some(state) = &mut generate else { return };
                state.queue.extend(data.drain(..).filter_map(|group| Some((capability.retain_least(0)?, group))));
            });
            weights.for_each(|_, data| {
                let Some(state) = &mut generate else { return };
                data.drain(..).for_each(|weights| state.offer(weights));
            });
            if alarm.halted() {
                generate = None;
            }
            if let Some(state) = &mut generate {
                match alarm.check(state.quantum()) {
                    Some(ended) if !ended.is_empty() => {
                        if let Some(own) = &own {
                            let finished = Feedback::Finished { generator: worker, rollouts: ended.len() };
                            feedback_out.activate().session(own).give(finished);
                        }
                        let mut rollouts = rollouts_out.activate();
                        for (capability, mut rollout) in ended {
                            rollout.worker = worker;
                            rollouts.session(&capability).give(rollout);
                        }
                    }
                    Some(_) => {}
                    None => generate = None,
                }
            }
            match &generate {
                Some(state) if state.busy() => wake.now(),
                Some(state) if !state.queue.is_empty() => wake.soon(),
                _ if frontiers[0].is_empty() => {
                    own = None;
                    alarm.rest();
                }
                _ => {}
            }
        }
    });
    Generated { rollouts, feedback, faults }
}

struct Generate<G: Generator> {
    generator: G,
    loaded: Option<Version>,
    newer: Option<Weights<G::Weights>>,
    /// Groups that wait for weights, in order of admission: none may start before the one in front of it.
    queue: VecDeque<(Capability<Step>, Arc<Group>)>,
    /// By group number: its capability and how many of its rollouts are still to come.
    running: BTreeMap<u64, (Capability<Step>, u32)>,
    schedule: Schedule,
    weights_update: WeightsUpdate,
}

impl<G: Generator> Generate<G> {
    fn new(generator: G, schedule: Schedule, weights_update: WeightsUpdate) -> Self {
        let (queue, running) = (VecDeque::new(), BTreeMap::new());
        Generate { generator, loaded: None, newer: None, queue, running, schedule, weights_update }
    }

    /// Keeps the newest weights for the next quantum; those in between are never loaded. The first ones are taken by every schedule.
    fn offer(&mut self, weights: Weights<G::Weights>) {
        let newest = self.newer.as_ref().map(|newer| newer.version).max(self.loaded);
        if newest.is_none_or(|newest| weights.version > newest && self.schedule.swaps(weights.version)) {
            self.newer = Some(weights);
        }
    }

    /// Whether newer weights wait for what runs. It ends by itself, under weights that it may be sampled by: they are no older than when
    /// it started, and only that counts.
    fn drains(&self) -> bool {
        self.weights_update == WeightsUpdate::Drain && self.newer.is_some() && self.busy()
    }

    fn busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// Loads, starts, and takes one decode step; returns what ended.
    fn quantum(&mut self) -> Result<Vec<(Capability<Step>, Rollout)>, Fault> {
        let drains = self.drains();
        if let Some(Weights { version, payload }) = self.newer.take_if(|_| !drains) {
            guarded("generate", || self.generator.load(version, payload))?;
            self.loaded = Some(version);
        }
        while !drains
            && self.queue.front().is_some_and(|(_, group)| self.loaded >= Some(group.oldest))
            && let Some((capability, group)) = self.queue.pop_front()
        {
            guarded("generate", || self.generator.start(Arc::clone(&group)))?;
            self.running.insert(group.number, (capability, group.size));
        }
        if self.running.is_empty() {
            return Ok(Vec::new());
        }
        let ended = guarded("generate", || self.generator.step())?;
        let ended = ended.into_iter().map(|rollout| self.finish(rollout)).collect::<Result<Vec<_>, _>>()?;
        if self.generator.running() == 0
            && let Some((number, (_, left))) = self.running.first_key_value()
        {
            return Err(Fault::new(
                "generate",
                format!("the generator runs nothing, but owes {left} rollouts of group {number}"),
            ));
        }
        Ok(ended)
    }

    fn finish(&mut self, rollout: Rollout) -> Result<(Capability<Step>, Rollout), Fault> {
        let number = rollout.group.number;
        let Some((capability, left)) = self.running.get_mut(&number) else {
            return Err(Fault::new(
                "generate",
                format!("the generator returned a rollout of group {number}, which it does not run"),
            ));
        };
        let capability = capability.clone();
        *left -= 1;
        if *left == 0 {
            self.running.remove(&number);
        }
        Ok((capability, rollout))
    }
}
