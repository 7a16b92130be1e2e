//! `seal`: makes each step's rows durable, in step order, on a thread beside the learner's worker.

use crate::alarm::{Alarm, output, to};
use crate::fault::{Fault, Halt, guarded};
use crate::record::{Metrics, SealedStep, Step};
use crate::waker::Waker;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// How many steps are trained, or read for a replay, beyond the last durable one: what a slow disk can make a run hold.
pub const AHEAD: Step = 2;

/// Where sealed steps go. It is called on a thread of its own.
pub trait Log {
    /// Makes the step durable and visible, all or nothing.
    ///
    /// # Errors
    /// A disk that refuses.
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault>;
}

/// A step that is durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sealed {
    pub step: Step,
    /// None for the tail of a run.
    pub metrics: Option<Metrics>,
}

/// Outputs of [`seal`].
pub struct Seals<'scope> {
    /// At their step: once the frontier has passed k, all steps up to k are durable.
    pub steps: StreamVec<'scope, Step, Sealed>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Encoding and writing take as long as they take, while the worker trains on: steps go to the log's thread as they come,
/// and each leaves here when it is durable. After a fault of the log, no later step is sealed.
///
/// ```
/// use tidegate_operators::fault::{Fault, Halt};
/// use tidegate_operators::record::SealedStep;
/// use tidegate_operators::seal::{Log, seal};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// struct Full;
///
/// impl Log for Full {
///     fn seal(&mut self, _: SealedStep) -> Result<(), Fault> {
///         Err(Fault::new("log", "no space left on device"))
///     }
/// }
///
/// let halt = Halt::default();
/// let halted = halt.clone();
/// timely::example(move |scope| {
///     let steps = [SealedStep { step: 1, rollouts: Vec::new(), metrics: None }].to_stream(scope);
///     let sealed = seal(steps, Some(Full), &halt);
///     sealed.faults.inspect(|fault| assert_eq!(fault.to_string(), "log: no space left on device"));
/// });
/// assert!(halted.is_set());
/// ```
pub fn seal<'scope, D: Log + Send + 'static>(
    steps: StreamVec<'scope, Step, SealedStep>,
    log: Option<D>,
    halt: &Halt,
) -> Seals<'scope> {
    let scope = steps.scope();
    let mut builder = OperatorBuilder::new("seal".to_owned(), scope);
    let (mut sealed_out, sealed) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut steps = builder.new_input_connection(steps, Pipeline, to(0));

    let waker = Waker::of(scope, &builder.operator_info().address);
    let mut queue = Queue { worker: scope.index(), log, waker, last: 0, writer: None };
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(1));
        capabilities.clear();
        let mut under_way: VecDeque<(Capability<Step>, Sealed)> = VecDeque::new();
        let mut broken = false;
        move |frontiers| {
            steps.for_each(|capability, data| {
                for step in data.drain(..) {
                    let Some(capability) = capability.retain_least(0).filter(|_| !broken) else { continue };
                    let sealed = Sealed { step: step.step, metrics: step.metrics.clone() };
                    match alarm.check(queue.send(step)) {
                        Some(()) => under_way.push_back((capability, sealed)),
                        None => broken = true,
                    }
                }
            });
            while let Some(result) = queue.result() {
                let Some((capability, sealed)) = under_way.pop_front() else { continue };
                match alarm.check(result) {
                    Some(()) => sealed_out.activate().session(&capability).give(sealed),
                    // The thread has ended: what it was sent since is as if it had not been.
                    None => {
                        broken = true;
                        under_way.clear();
                    }
                }
            }
            if frontiers[0].is_empty() && under_way.is_empty() {
                alarm.check(queue.end());
                alarm.rest();
            }
        }
    });
    Seals { steps: sealed, faults }
}

/// The way to the log's thread, which starts with the first step.
struct Queue<D> {
    worker: usize,
    log: Option<D>,
    waker: Waker,
    /// The last step sent.
    last: Step,
    writer: Option<Writer>,
}

impl<D: Log + Send + 'static> Queue<D> {
    fn send(&mut self, step: SealedStep) -> Result<(), Fault> {
        let Queue { worker, last, .. } = *self;
        if step.step <= last {
            return Err(Fault::new("seal", format!("step {} comes after step {last}", step.step)));
        }
        self.last = step.step;
        if self.writer.is_none() {
            let missing = || Fault::new("seal", format!("worker {worker} trains, but was given no log"));
            let log = self.log.take().ok_or_else(missing)?;
            self.writer = Some(Writer::start(log, self.waker.clone())?);
        }
        // One that has ended has a fault to tell of, which is still to be heard.
        if let Some(writer) = &self.writer {
            let _ = writer.steps.send(step);
        }
        Ok(())
    }

    /// What became of the next step that was sent, if that is known.
    fn result(&self) -> Option<Result<(), Fault>> {
        self.writer.as_ref()?.results.try_recv().ok()
    }

    /// Lets the log go, on its own thread.
    fn end(&mut self) -> Result<(), Fault> {
        self.log = None;
        let Some(Writer { steps, thread, .. }) = self.writer.take() else { return Ok(()) };
        drop(steps);
        thread.join().map_err(|_| Fault::new("seal", "the log panicked at its end"))
    }
}

/// The log on its thread: steps go in, and for each, in order, comes out what became of it, up to the first fault.
struct Writer {
    steps: Sender<SealedStep>,
    results: Receiver<Result<(), Fault>>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start<D: Log + Send + 'static>(mut log: D, waker: Waker) -> Result<Writer, Fault> {
        let (steps, queue) = channel::<SealedStep>();
        let (told, results) = channel();
        let seal = move || {
            for step in queue {
                let result = guarded("seal", || log.seal(step));
                let failed = result.is_err();
                // An operator that is gone wants no news, and no more steps will come from it.
                let _ = told.send(result);
                waker.wake();
                if failed {
                    break;
                }
            }
        };
        let thread = Builder::new().name("log".to_owned()).spawn(seal);
        let thread = thread.map_err(|e| Fault::new("seal", format!("no thread for the log: {e}")))?;
        Ok(Writer { steps, results, thread })
    }
}
