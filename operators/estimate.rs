//! `estimate`: completes groups and gives every token its advantage, on the worker that sampled them.

use crate::alarm::{Alarm, QUANTUM, Wake, first, output, to};
use crate::fault::{Fault, Halt, guarded};
use crate::record::{Estimated, Reason, Rollout, Status, Step};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// An advantage estimator.
pub trait Estimator {
    /// Fills `advantage` of a complete group's rollouts (in order of `sample`), marks those that cannot be trained as
    /// discarded, and says why none of the group may be trained, if so.
    ///
    /// # Errors
    /// Only what ends the run.
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault>;
}

/// Outputs of [`estimate`].
pub struct Estimates<'scope> {
    pub groups: StreamVec<'scope, Step, Estimated>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Collects each group until its `size` rollouts are here and estimates it, for one quantum an activation.
///
/// A group of which the frontier says that no more can come is a fault, unless the run was halted: then it is let go.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_operators::estimate::{Estimator, estimate};
/// use tidegate_operators::fault::{Fault, Halt};
/// use tidegate_operators::record::{Group, Reason, Rollout};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// /// The reward, less the group's mean.
/// struct Centred;
///
/// impl Estimator for Centred {
///     fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
///         let mean = rollouts.iter().filter_map(|rollout| rollout.reward).sum::<f32>() / rollouts.len() as f32;
///         for rollout in rollouts {
///             rollout.advantage = rollout.reward.map(|reward| vec![reward - mean; rollout.tokens.len()]).unwrap_or_default();
///         }
///         Ok(None)
///     }
/// }
///
/// timely::example(|scope| {
///     let group = Arc::new(Group { size: 2, ..Group::default() });
///     let rollout = |sample, reward| {
///         Rollout { group: Arc::clone(&group), sample, tokens: vec![7], reward: Some(reward), ..Rollout::default() }
///     };
///     let rollouts = [rollout(1, 0.0), rollout(0, 1.0)].to_stream(scope);
///     let estimated = estimate(rollouts, Some(Centred), &Halt::default());
///     estimated.groups.inspect(|group| {
///         assert_eq!(group.rollouts[0].advantage, [0.5]);
///         assert_eq!(group.rollouts[1].advantage, [-0.5]);
///     });
/// });
/// ```
pub fn estimate<'scope, E: Estimator + 'static>(
    rollouts: StreamVec<'scope, Step, Rollout>,
    mut estimator: Option<E>,
    halt: &Halt,
) -> Estimates<'scope> {
    let scope = rollouts.scope();
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("estimate".to_owned(), scope);
    let (mut groups_out, groups) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut rollouts = builder.new_input_connection(rollouts, Pipeline, to(0));

    let wake = Wake::new(scope, builder.operator_info().address);
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(1));
        capabilities.clear();
        let mut partial: BTreeMap<(Step, u64), (Capability<Step>, Vec<Rollout>)> = BTreeMap::new();
        let mut complete: VecDeque<(Capability<Step>, Vec<Rollout>)> = VecDeque::new();
        let mut broken = false;
        move |frontiers| {
            rollouts.for_each(|capability, data| {
                let Some(capability) = capability.retain_least(0) else { return };
                for rollout in data.drain(..) {
                    let (key, size) = ((*capability.time(), rollout.group.number), rollout.group.size as usize);
                    let (_, group) = partial.entry(key).or_insert_with(|| (capability.clone(), Vec::with_capacity(size)));
                    group.push(rollout);
                    if group.len() == size {
                        complete.extend(partial.remove(&key));
                    }
                }
            });
            let passed = |due: Step| first(&frontiers[0]).is_none_or(|frontier| frontier > due);
            while let Some(entry) = partial.first_entry().filter(|entry| passed(entry.key().0)) {
                let ((_, number), (_, group)) = entry.remove_entry();
                if !alarm.halted() {
                    let (here, size) = (group.len(), group[0].group.size);
                    let lost = format!("group {number} has {here} of its {size} rollouts, and no more can come");
                    alarm.raise(Fault::new("estimate", lost));
                }
            }
            let mut groups = groups_out.activate();
            let start = Instant::now();
            while start.elapsed() < QUANTUM
                && let Some((capability, mut rollouts)) = complete.pop_front()
            {
                rollouts.sort_unstable_by_key(|rollout| rollout.sample);
                // After a fault groups pass as they are: no step starts any more, and the log keeps them as waiting.
                let result = (!broken).then(|| alarm.check(estimate_one(estimator.as_mut(), &mut rollouts, worker)));
                broken = !matches!(result, Some(Some(_)));
                if broken {
                    // What a fault cut off is not estimated, whatever stands there.
                    rollouts.iter_mut().for_each(|rollout| rollout.advantage.clear());
                }
                let discarded = result.flatten().flatten();
                let group = Arc::clone(&rollouts[0].group);
                groups.session(&capability).give(Estimated { group, rollouts, discarded });
            }
            if !complete.is_empty() {
                wake.now();
            } else if frontiers[0].is_empty() {
                alarm.rest();
            }
        }
    });
    Estimates { groups, faults }
}

/// Why no step may use the group, if so.
fn estimate_one<E: Estimator>(
    estimator: Option<&mut E>,
    rollouts: &mut [Rollout],
    worker: usize,
) -> Result<Option<Reason>, Fault> {
    let missing = || Fault::new("estimate", format!("worker {worker} generates, but was given no estimator"));
    let estimator = estimator.ok_or_else(missing)?;
    let discarded = guarded("estimate", || estimator.estimate(rollouts))?;
    // A group of which nothing is left to train is discarded, for the reason of its first rollout.
    Ok(discarded.or_else(|| match &rollouts.first()?.status {
        Status::Discarded(reason) if !rollouts.iter().any(Rollout::trainable) => Some(reason.clone()),
        _ => None,
    }))
}
