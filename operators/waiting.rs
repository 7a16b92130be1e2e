//! `waiting`: brings back the groups that were complete and not trained when an earlier part of the run ended.
//!
//! They leave at the dues that they had, on the learner's worker, and then nothing more does. To the lag rule they are groups
//! that were admitted before and arrive now: the [`Start`](crate::start::Start) of the plan counts them.

use crate::alarm::{Alarm, output};
use crate::fault::{Fault, Halt};
use crate::plan::Plan;
use crate::record::{Estimated, Group, Step};
use std::sync::Arc;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

/// Outputs of [`waiting`].
pub struct Returned<'scope> {
    /// At their due.
    pub groups: StreamVec<'scope, Step, Estimated>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Sends `groups`, which must be those that the plan's start says wait; they are read on the plan's learner.
///
/// A halt does not keep them back: what waited goes to the log again.
pub fn waiting<'scope>(scope: Scope<'scope, Step>, plan: &Plan, groups: Vec<Estimated>, halt: &Halt) -> Returned<'scope> {
    let here = plan.learner == scope.index();
    let mut builder = OperatorBuilder::new("waiting".to_owned(), scope);
    let (mut groups_out, returned) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let plan = plan.clone();
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(1));
        let mut own = Some(capabilities.remove(0));
        let mut groups = if here { sorted(groups) } else { Vec::new() };
        move |_frontiers| {
            if let Some(mut own) = own.take().filter(|_| here)
                && alarm.check(as_planned(&plan, &groups)).is_some()
            {
                let mut output = groups_out.activate();
                for group in groups.drain(..) {
                    own.downgrade(&group.group.due);
                    output.session(&own).give(renew(group, &plan));
                }
            }
            alarm.rest();
        }
    });
    Returned { groups: returned, faults }
}

fn sorted(mut groups: Vec<Estimated>) -> Vec<Estimated> {
    groups.sort_unstable_by_key(|estimated| (estimated.group.due, estimated.group.number));
    groups
}

fn as_planned(plan: &Plan, groups: &[Estimated]) -> Result<(), Fault> {
    let found = groups.iter().map(|estimated| (estimated.group.due, estimated.group.number));
    if found.eq(plan.start.waiting.iter().copied()) {
        return Ok(());
    }
    let (given, planned) = (groups.len(), plan.start.waiting.len());
    Err(Fault::new("waiting", format!("was given {given} groups, which are not the {planned} that wait at the run's start")))
}

/// The group with the stamp that it has in this part of the run.
fn renew(mut estimated: Estimated, plan: &Plan) -> Estimated {
    let due = estimated.group.due;
    let earlier = plan.start.earlier(due, plan.batch_groups);
    let group = Arc::new(Group { earlier, ..(*estimated.group).clone() });
    estimated.rollouts.iter_mut().for_each(|rollout| rollout.group = Arc::clone(&group));
    Estimated { group, ..estimated }
}
