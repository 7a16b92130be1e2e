//! `recorded`: the source of a replay, in place of `admit` and `generate`: groups that were trained before, in the order of
//! their batches.

use crate::admit::End;
use crate::alarm::{Alarm, UNCONNECTED, Wake, output};
use crate::fault::{Fault, Halt, guarded};
use crate::plan::Plan;
use crate::record::{Rollout, Status, Step};
use crate::seal::{AHEAD, Sealed};
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Where recorded groups come from.
pub trait Recorded {
    /// All rollouts of the next trained group, in batch order; None when there are no more.
    ///
    /// # Errors
    /// A group that cannot be read.
    fn next(&mut self) -> Result<Option<Vec<Rollout>>, Fault>;
}

/// Outputs of [`recorded`].
pub struct Recordings<'scope> {
    pub rollouts: StreamVec<'scope, Step, Rollout>,
    pub end: StreamVec<'scope, Step, End>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Emits, on the learner's worker, the groups of the k-th batch at time k: under the lag rule with `max_lag` 0 each step then
/// trains exactly its recorded batch. One group an activation, and at most [`AHEAD`] steps beyond the log.
pub fn recorded<'scope, R: Recorded + 'static>(
    sealed: StreamVec<'scope, Step, Sealed>,
    plan: &Plan,
    source: Option<R>,
    halt: &Halt,
) -> Recordings<'scope> {
    let scope = sealed.scope();
    let here = plan.learner == scope.index();
    let mut builder = OperatorBuilder::new("recorded".to_owned(), scope);
    let (mut rollouts_out, rollouts) = output(&mut builder);
    let (mut end_out, end) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut sealed = builder.new_input_connection(sealed, Pipeline, UNCONNECTED);

    let mut wake = Wake::new(scope, builder.operator_info().address);
    let plan = plan.clone();
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(2));
        let missing = || Fault::new("recorded", format!("worker {} trains, but was given no recorded groups", plan.learner));
        let mut missing = (here && source.is_none()).then(missing);
        let mut source = source.filter(|_| here);
        let (mut done, mut groups) = (plan.start.version, 0);
        move |_frontiers| {
            missing.take().into_iter().for_each(|fault| alarm.raise(fault));
            sealed.for_each(|_, data| done = data.drain(..).map(|sealed| sealed.step).fold(done, Step::max));
            let Some(port) = source.as_mut().filter(|_| !alarm.halted()) else {
                source = None;
                capabilities.clear();
                alarm.rest();
                return;
            };
            let due = plan.start.version + 1 + groups / plan.batch_groups;
            capabilities[0].downgrade(&due);
            if due > done + AHEAD && due <= plan.steps {
                wake.soon();
                return;
            }
            let next = if due > plan.steps { Ok(None) } else { guarded("recorded", || port.next()) };
            match alarm.check(next.and_then(|group| group.map(|group| renew(group, due, &plan)).transpose())) {
                Some(Some(group)) => {
                    groups += 1;
                    rollouts_out.activate().session(&capabilities[0]).give_iterator(group.into_iter());
                }
                Some(None) => {
                    end_out.activate().session(&capabilities[1]).give(End { groups });
                    source = None;
                }
                None => source = None,
            }
            wake.now();
        }
    });
    Recordings { rollouts, end, faults }
}

/// A recorded group as it was before it was trained.
fn renew(mut rollouts: Vec<Rollout>, due: Step, plan: &Plan) -> Result<Vec<Rollout>, Fault> {
    let Some(first) = rollouts.first() else { return Err(Fault::new("recorded", "a recorded group has no rollouts")) };
    let mut group = (*first.group).clone();
    group.earlier = (due - 1) * plan.batch_groups;
    let group = Arc::new(group);
    for rollout in &mut rollouts {
        if rollout.group.number != group.number {
            let mixed = format!("groups {} and {} were given as one", group.number, rollout.group.number);
            return Err(Fault::new("recorded", mixed));
        }
        rollout.group = Arc::clone(&group);
        rollout.logp_current.clear();
        if rollout.status == Status::Trained {
            rollout.status = Status::Waiting;
        }
    }
    Ok(rollouts)
}
