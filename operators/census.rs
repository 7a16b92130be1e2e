//! `census`: how many groups are in each state by due, and the proof that none was lost or counted twice.
//!
//! Every admission adds a group to a differential collection of those under way and every end, trained or discarded, takes
//! it out, both at the group's due. When a due has passed, what is left of it consolidates to nothing; a group that remains
//! was lost, one that is missing came twice.
//!
//! The collection goes through all that is under way whenever it lets a time go. That is up to M + 1 batches, so dues pass in
//! spans of a quarter of that, and a group's share of it does not grow with M.

use crate::fault::{Fault, Halt};
use crate::record::{Group, Step};
use crate::schedule::Schedule;
use crate::train::{Moved, State};
use differential_dataflow::AsCollection;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concat, Inspect};

/// How many groups are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub generating: i64,
    pub waiting: i64,
    pub trained: i64,
    pub discarded: i64,
}

impl Counts {
    /// Groups admitted and neither trained nor discarded.
    pub fn in_flight(&self) -> i64 {
        self.generating + self.waiting
    }

    fn add(&mut self, state: State, groups: i64) {
        match state {
            State::Generating => self.generating += groups,
            State::Waiting => self.waiting += groups,
            State::Trained => self.trained += groups,
            State::Discarded => self.discarded += groups,
        }
    }
}

/// The census of a process: one handle, cloned to all its workers and to whoever displays it.
#[derive(Clone, Debug, Default)]
pub struct Census(Arc<Mutex<Snapshot>>);

/// The counts at one moment. Workers report on their own, so for an instant a count may be ahead of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Dues of which all groups are trained or discarded, together.
    pub closed: Counts,
    /// The others.
    pub open: BTreeMap<Step, Counts>,
}

impl Snapshot {
    /// Over all dues.
    pub fn total(&self) -> Counts {
        let mut total = self.closed;
        for counts in self.open.values() {
            total.generating += counts.generating;
            total.waiting += counts.waiting;
            total.trained += counts.trained;
            total.discarded += counts.discarded;
        }
        total
    }

    fn add(&mut self, due: Step, from: Option<State>, to: State) {
        let counts = self.open.entry(due).or_default();
        from.into_iter().for_each(|from| counts.add(from, -1));
        counts.add(to, 1);
        let over = counts.generating == 0 && counts.waiting == 0;
        // Only a due that no group can be admitted at any more is folded away.
        if over
            && self.open.last_key_value().is_some_and(|(newest, _)| *newest > due)
            && let Some(counts) = self.open.remove(&due)
        {
            self.closed.trained += counts.trained;
            self.closed.discarded += counts.discarded;
        }
    }
}

impl Census {
    pub fn new() -> Self {
        Census::default()
    }

    /// The counts now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, due: Step, from: Option<State>, to: State) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(due, from, to);
    }
}

/// The last due of the span that `due` is in.
fn span_end(due: Step, schedule: Schedule) -> Step {
    let span = (schedule.bound() / 4).max(1);
    due.div_ceil(span).saturating_mul(span)
}

/// Counts groups by `census`, and names each that is lost or doubled when its due has passed and those of its span have (unless
/// the run was halted: then groups are given up on purpose).
pub fn census<'scope>(
    admitted: StreamVec<'scope, Step, Arc<Group>>,
    moved: StreamVec<'scope, Step, Moved>,
    schedule: Schedule,
    census: &Census,
    halt: &Halt,
) -> StreamVec<'scope, Step, Fault> {
    let (came, went) = (census.clone(), census.clone());
    let admitted = admitted.unary(Pipeline, "census admitted", move |_, _| {
        move |input, output| {
            input.for_each(|capability, data| {
                let Some(due) = capability.least().copied() else { return };
                let end = span_end(due, schedule);
                let groups = data.drain(..).inspect(|_| came.add(due, None, State::Generating));
                let updates = groups.map(|group| ((group.number, due), end, 1_isize));
                output.session(&capability.delayed(&end, 0)).give_iterator(updates);
            });
        }
    });
    let moved = moved.unary(Pipeline, "census moved", move |_, _| {
        move |input, output| {
            input.for_each(|capability, data| {
                let Some(due) = capability.least().copied() else { return };
                let end = span_end(due, schedule);
                let moves = data.drain(..).inspect(|moved| went.add(due, Some(moved.from), moved.to));
                let ends = moves.filter(|moved| matches!(moved.to, State::Trained | State::Discarded));
                let updates = ends.map(|moved| ((moved.number, due), end, -1_isize));
                output.session(&capability.delayed(&end, 0)).give_iterator(updates);
            });
        }
    });
    let under_way = admitted.concat(moved).as_collection();
    let halt = halt.clone();
    let halted = halt.clone();
    let faults = under_way.consolidate().inner.flat_map(move |((number, due), _, groups)| {
        let fate = if groups > 0 { "was admitted and never accounted for" } else { "was accounted for more than once" };
        (!halted.is_set()).then(|| Fault::new("census", format!("group {number}, due at step {due}, {fate}")))
    });
    faults.inspect(move |_| halt.set())
}
