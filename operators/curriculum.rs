//! `curriculum`: keeps the success rate of each bin of prompts, and tells `admit` whenever one changes.
//!
//! The outcomes of the last groups of each bin are a differential collection on the admitting worker, whichever worker scored them.
//! A group that ends is an insertion. What it pushes out of its bin's window is found by the collection itself and goes around as a
//! retraction, so that all that is held is what counts, however long the run is: at most `window` outcomes a bin, and those on
//! their way out.
//!
//! Its time is its own: the count of arrivals, not the due of a group. A due passes when all groups up to it have ended, which is up
//! to M + 1 batches later; what was seen of a bin is wanted now. Nothing waits for these times: `admit` is connected to none of them, and the
//! lag rule does not know of them.

use crate::admit::Feedback;
use crate::alarm::{UNCONNECTED, output, to};
use crate::plan::Plan;
use crate::record::{Estimated, Step};
use crate::success::{Outcome, Rate};
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::trace::implementations::{ValBatcher, ValBuilder, ValSpine};
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concat, ConnectLoop, Feedback as _};

/// A bin's outcome that counts from a time on, or no more.
pub type Update = ((u64, Outcome), Step, isize);

/// Outputs of [`curriculum`].
pub struct Rates<'scope> {
    /// What came in, where it came in.
    pub groups: StreamVec<'scope, Step, Estimated>,
    /// On the plan's [`admitter`](Plan::admitter): the rate of each bin that changed, in the order of the changes.
    pub rates: StreamVec<'scope, Step, Feedback>,
    /// There too: the collection, as all that was inserted and retracted.
    pub outcomes: StreamVec<'scope, Step, Update>,
}

/// What the collection says of a bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// Over the outcomes that count.
    Rate(Rate),
    /// One that counts no more, and is still here.
    Aged(Outcome),
}

/// Keeps the rates over the last [`window`](Plan::window) groups of each bin, those that the plan's start knows among them.
pub fn curriculum<'scope>(groups: StreamVec<'scope, Step, Estimated>, plan: &Plan) -> Rates<'scope> {
    let scope = groups.scope();
    let (groups, ended) = outcomes_of(groups);
    let (aged_loop, aged) = scope.feedback::<Vec<Update>>(1);
    let outcomes = arrivals(ended, plan).concat(aged);
    // All of it is on one worker: by key it would also be on the learner's, whose micro-batches others would wait for.
    let arranged = arrange_core::<_, _, ValBatcher<u64, Outcome, Step, isize>, ValSpine<u64, Outcome, Step, isize>>(
        outcomes.clone(),
        Pipeline,
        "curriculum outcomes",
        ValBatcher::new,
    );
    let window = plan.window;
    let known = arranged.reduce_abelian::<_, ValBuilder<u64, Known, Step, isize>, ValSpine<u64, Known, Step, isize>, _, _>(
        "curriculum window",
        move |_bin, outcomes, known| look(window, outcomes, known),
        |updates, bin, known| {
            updates.clear();
            updates.extend(known.drain(..).map(|(known, time, change)| ((*bin, known), time, change)));
        },
    );
    let known = known.as_collection(|bin, known| (*bin, *known)).inner;
    // One that is found aged at a time is gone from the next one on; that it is then found no more is no news.
    let retracted = known.clone().flat_map(|((bin, known), time, change)| match known {
        Known::Aged(outcome) if change > 0 => Some(((bin, outcome), time + 1, -change)),
        Known::Aged(_) | Known::Rate(_) => None,
    });
    retracted.connect_loop(aged_loop);
    Rates { groups, rates: in_order(known), outcomes }
}

/// Of a bin's outcomes, by number: the rate over the last ones, and those before them.
fn look(window: usize, outcomes: &[(&Outcome, isize)], known: &mut Vec<(Known, isize)>) {
    let (aged, counted) = outcomes.split_at(outcomes.len().saturating_sub(window));
    known.extend(aged.iter().map(|(outcome, count)| (Known::Aged(**outcome), *count)));
    known.push((Known::Rate(Rate::over(counted.iter().map(|(outcome, _)| *outcome))), 1));
}

/// The groups, and how each went. They pass without being copied.
fn outcomes_of<'scope>(
    groups: StreamVec<'scope, Step, Estimated>,
) -> (StreamVec<'scope, Step, Estimated>, StreamVec<'scope, Step, (u64, Outcome)>) {
    let mut builder = OperatorBuilder::new("curriculum groups".to_owned(), groups.scope());
    let (mut groups_out, passed) = output(&mut builder);
    let (mut outcomes_out, outcomes) = output(&mut builder);
    let mut groups = builder.new_input_connection(groups, Pipeline, to(0).into_iter().chain(to(1)));
    builder.build(move |_| {
        move |_frontiers| {
            let (mut groups_out, mut outcomes_out) = (groups_out.activate(), outcomes_out.activate());
            groups.for_each(|capability, data| {
                let (Some(first), Some(second)) = (capability.retain_least(0), capability.retain_least(1)) else { return };
                let ended = data.iter().filter_map(|Estimated { group, rollouts, .. }| {
                    Outcome::of_rollouts(group.number, rollouts).map(|outcome| (group.prompt.bin, outcome))
                });
                outcomes_out.session(&second).give_iterator(ended);
                groups_out.session(&first).give_container(data);
            });
        }
    });
    (passed, outcomes)
}

/// Brings outcomes to the admitting worker, each at a time of its own or with others that came together.
fn arrivals<'scope>(outcomes: StreamVec<'scope, Step, (u64, Outcome)>, plan: &Plan) -> StreamVec<'scope, Step, Update> {
    let scope = outcomes.scope();
    let admitter = plan.admitter() as u64;
    let mut builder = OperatorBuilder::new("curriculum".to_owned(), scope);
    let (mut updates_out, updates) = output(&mut builder);
    let pact = Exchange::new(move |_: &(u64, Outcome)| admitter);
    let mut outcomes = builder.new_input_connection(outcomes, pact, UNCONNECTED);

    let here = plan.admitter() == scope.index();
    let before = Arc::clone(&plan.start.outcomes);
    builder.build(move |mut capabilities| {
        let mut own = capabilities.pop().filter(|_| here);
        let mut before = Some(before);
        move |frontiers| {
            let mut arrived = before.take().map_or_else(Vec::new, |before| before.to_vec());
            outcomes.for_each(|_, data| arrived.append(data));
            let Some(capability) = &mut own else { return };
            if !arrived.is_empty() {
                let time = *capability.time();
                let updates = arrived.into_iter().map(|arrived| (arrived, time, 1));
                updates_out.activate().session(capability).give_iterator(updates);
                capability.downgrade(&(time + 1));
            }
            if frontiers[0].is_empty() {
                own = None;
            }
        }
    });
    updates
}

/// The rates as they follow each other. What is given out at once may be of several times, and is in the order of bins and rates;
/// it is also here at once.
fn in_order<'scope>(known: StreamVec<'scope, Step, ((u64, Known), Step, isize)>) -> StreamVec<'scope, Step, Feedback> {
    known.unary(Pipeline, "curriculum rates", move |_, _| {
        move |input, output| {
            let (mut last, mut changes) = (None, Vec::new());
            input.for_each(|capability, data| {
                last = Some(capability);
                changes.extend(data.drain(..).filter_map(|((bin, known), time, change)| match known {
                    Known::Rate(rate) if change > 0 => Some((time, bin, rate)),
                    Known::Rate(_) | Known::Aged(_) => None,
                }));
            });
            let Some(capability) = last else { return };
            changes.sort_unstable();
            let rates = changes.into_iter().map(|(_, bin, rate)| Feedback::Rate { bin, rate });
            output.session(&capability).give_iterator(rates);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use timely::dataflow::operators::{Inspect, ToStream};

    /// Catches a rate that an older one comes after: of what is given out at once the order is that of rates, not of times.
    #[test]
    fn rates_follow_each_other() {
        let rate = |right| Known::Rate(Rate { right, scored: 8 });
        let aged = Known::Aged(Outcome { number: 0, right: 1, scored: 8 });
        let updates =
            vec![((1, rate(2)), 5, 1), ((1, rate(7)), 4, 1), ((1, rate(7)), 5, -1), ((2, rate(0)), 3, 1), ((2, aged), 3, 1)];
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        timely::example(move |scope| {
            in_order(updates.to_stream(scope)).inspect(move |event| tell.lock().unwrap().push(*event));
        });
        let expected = [(2, 0), (1, 7), (1, 2)];
        let expected = expected.map(|(bin, right)| Feedback::Rate { bin, rate: Rate { right, scored: 8 } });
        assert_eq!(*told.lock().unwrap(), expected);
    }
}
