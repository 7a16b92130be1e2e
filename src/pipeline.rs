//! The dataflow on its workers: one thread each, every one with its own ports, until the dataflow completes.
//!
//! ```text
//! prompts -> admit -> generate -> score -> estimate -> train -> seal -> (parquet, metrics)
//!              ^          ^                              |
//!              |          +----------- weights ----------+   in flight: between two decode steps
//!              +---------------- feedback ---------------+   version frontier = steps done
//! ```
//!
//! [`tidegate_operators::dataflow`] wires it; here it is given ports, workers and an end.

use crate::clock::thread_ns;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::admit::Prompts;
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::{Notice, Ports, ReplayPorts, dataflow, replay_dataflow};
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::plan::Plan;
use tidegate_operators::record::Step;
use tidegate_operators::recorded::Recorded;
use tidegate_operators::score::Scorer;
use tidegate_operators::seal::Log;
use tidegate_operators::train::Learner;
use timely::ExchangeData;
use timely::dataflow::Scope;

/// How long an idle worker sleeps before it looks again (messages wake it at once; this is for what comes from outside).
const NAP: Duration = Duration::from_millis(20);

/// What became of a dataflow.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order they were seen; empty for a clean end.
    pub faults: Vec<Fault>,
    /// By worker.
    pub workers: Vec<WorkerTime>,
}

/// A worker's time, from the building of the dataflow to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTime {
    pub wall_ns: u64,
    /// On the processor.
    pub processor_ns: u64,
}

/// Runs the plan on one worker for each of `ports`; `prepare` is called on each worker's thread first, with its index.
///
/// # Errors
/// Workers that cannot be started. Faults of the run are in the report: what was complete is sealed.
pub fn run<W, P, G, S, E, L, D>(
    plan: &Plan,
    ports: Vec<Ports<P, G, S, E, L, D>>,
    halt: &Halt,
    census: &Census,
    prepare: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Report>
where
    W: ExchangeData + Clone,
    P: Prompts + Send + 'static,
    G: Generator<Weights = W> + Send + 'static,
    S: Scorer + Send + 'static,
    E: Estimator + Send + 'static,
    L: Learner<Weights = W> + Send + 'static,
    D: Log + Send + 'static,
{
    let (plan, halt, census) = (plan.clone(), halt.clone(), census.clone());
    execute(ports, prepare, move |scope, ports, faults| {
        dataflow(scope, &plan, ports, &halt, &census, faults.observe());
    })
}

/// Trains recorded groups again on one worker, this one's thread count set by `prepare`.
///
/// # Errors
/// As [`run`].
pub fn replay<W, R, S, E, L, D>(
    plan: &Plan,
    ports: ReplayPorts<R, S, E, L, D>,
    halt: &Halt,
    prepare: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Report>
where
    W: ExchangeData + Clone,
    R: Recorded + Send + 'static,
    S: Scorer + Send + 'static,
    E: Estimator + Send + 'static,
    L: Learner<Weights = W> + Send + 'static,
    D: Log + Send + 'static,
{
    let (plan, halt) = (plan.clone(), halt.clone());
    execute(vec![ports], prepare, move |scope, ports, faults| {
        replay_dataflow(scope, &plan, ports, &halt, faults.observe());
    })
}

/// The faults of all workers.
#[derive(Clone, Default)]
struct Faults(Arc<Mutex<Vec<Fault>>>);

impl Faults {
    /// What the dataflow tells its news to.
    fn observe(&self) -> impl Fn(Notice) + Clone + use<> {
        let faults = Arc::clone(&self.0);
        move |notice| {
            if let Notice::Fault(fault) = notice {
                faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
            }
        }
    }
}

fn execute<Q: Send + 'static>(
    ports: Vec<Q>,
    prepare: impl Fn(usize) + Send + Sync + 'static,
    build: impl Fn(Scope<'_, Step>, Q, Faults) + Send + Sync + 'static,
) -> Result<Report> {
    let workers = ports.len();
    let ports: Vec<Mutex<Option<Q>>> = ports.into_iter().map(|ports| Mutex::new(Some(ports))).collect();
    let faults = Faults::default();
    let seen = faults.clone();
    let guards = timely::execute(timely::Config::process(workers), move |worker| {
        let index = worker.index();
        prepare(index);
        let (started, processor) = (Instant::now(), thread_ns());
        if let Some(ports) = ports[index].lock().unwrap_or_else(PoisonError::into_inner).take() {
            worker.dataflow::<Step, _, _>(|scope| build(scope, ports, seen.clone()));
        }
        while worker.step_or_park(Some(NAP)) {}
        let wall_ns = started.elapsed().as_nanos() as u64;
        WorkerTime { wall_ns, processor_ns: thread_ns() - processor }
    })
    .map_err(|e| Error::engine("timely workers", e))?;
    let mut report = Report::default();
    for (index, joined) in guards.join().into_iter().enumerate() {
        match joined {
            Ok(time) => report.workers.push(time),
            Err(panic) => report.faults.push(Fault::new(format!("worker {index}"), panic)),
        }
    }
    let seen = std::mem::take(&mut *faults.0.lock().unwrap_or_else(PoisonError::into_inner));
    report.faults.splice(0..0, seen);
    Ok(report)
}
