//! What every operator of the dataflow carries: a fault output that halts the run, and a way to notice a halt while idle.

use crate::fault::{Fault, Halt};
use crate::record::Step;
use std::rc::Rc;
use std::time::{Duration, Instant};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use timely::progress::Antichain;
use timely::scheduling::Activator;

/// An operator's output of `D`.
pub(crate) type Output<D> = OutputBuilder<Step, CapacityContainerBuilder<Vec<D>>>;

/// Adds an output of `D` that no input is connected to.
pub(crate) fn output<'scope, D: 'static>(
    builder: &mut OperatorBuilder<'scope, Step>,
) -> (Output<D>, StreamVec<'scope, Step, D>) {
    let (output, stream) = builder.new_output_connection::<Vec<D>, _>([]);
    (OutputBuilder::from(output), stream)
}

/// The connection of an input whose records come out of output `port` at their own time, and of no other.
pub(crate) fn to(port: usize) -> [(usize, Antichain<Step>); 1] {
    [(port, Antichain::from_elem(0))]
}

/// The connection of an input that no output depends on: its frontier holds nothing back.
pub(crate) const UNCONNECTED: [(usize, Antichain<Step>); 0] = [];

/// The first time of a frontier, None if it is empty.
pub(crate) fn first(frontier: &timely::progress::frontier::MutableAntichain<Step>) -> Option<Step> {
    frontier.frontier().first().copied()
}

/// How often an idle operator that still holds capabilities looks at the halt. Nothing wakes it then: the flag may be set
/// from a signal handler's thread.
const POLL: Duration = Duration::from_millis(20);

/// An operator's quantum where one piece of work takes far less than a decode step: it works this long at most, then lets
/// the others run.
pub(crate) const QUANTUM: Duration = Duration::from_micros(500);

/// Wakes an operator: at once, or within [`POLL`] to look at the halt.
pub(crate) struct Wake {
    activator: Activator,
    polls_at: Instant,
}

impl Wake {
    pub(crate) fn new(scope: Scope<'_, Step>, address: Rc<[usize]>) -> Self {
        Wake { activator: scope.activator_for(address), polls_at: Instant::now() }
    }

    pub(crate) fn now(&self) {
        self.activator.activate();
    }

    /// One poll is under way at any time, however often this is called.
    pub(crate) fn soon(&mut self) {
        let now = Instant::now();
        if now >= self.polls_at {
            self.polls_at = now + POLL;
            self.activator.activate_after(POLL);
        }
    }
}

/// The fault output of one operator. It holds its own capability, so that a fault can be raised at any moment until
/// [`rest`](Alarm::rest).
pub(crate) struct Alarm {
    halt: Halt,
    output: Output<Fault>,
    capability: Option<Capability<Step>>,
}

impl Alarm {
    pub(crate) fn new(halt: &Halt, output: Output<Fault>, capability: Capability<Step>) -> Self {
        Alarm { halt: halt.clone(), output, capability: Some(capability) }
    }

    pub(crate) fn halted(&self) -> bool {
        self.halt.is_set()
    }

    /// Halts the run and reports why.
    pub(crate) fn raise(&mut self, fault: Fault) {
        self.halt.set();
        if let Some(capability) = &self.capability {
            self.output.activate().session(capability).give(fault);
        }
    }

    /// The result's value; or halts the run and reports why.
    pub(crate) fn check<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.raise(fault)).ok()
    }

    /// The operator has come to its end: no fault will follow.
    pub(crate) fn rest(&mut self) {
        self.capability = None;
    }
}
