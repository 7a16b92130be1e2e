//! `seal`: makes each step's rows durable, in step order, on the learner's worker.

use crate::alarm::{Alarm, Wake, output, to};
use crate::fault::{Fault, Halt, guarded};
use crate::record::{Metrics, SealedStep, Step};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Where sealed steps go.
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

/// Seals one step an activation. After a fault of the log, no later step is sealed.
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
pub fn seal<'scope, D: Log + 'static>(
    steps: StreamVec<'scope, Step, SealedStep>,
    mut log: Option<D>,
    halt: &Halt,
) -> Seals<'scope> {
    let scope = steps.scope();
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("seal".to_owned(), scope);
    let (mut sealed_out, sealed) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut steps = builder.new_input_connection(steps, Pipeline, to(0));

    let wake = Wake::new(scope, builder.operator_info().address);
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(1));
        capabilities.clear();
        let mut queue: VecDeque<(Capability<Step>, SealedStep)> = VecDeque::new();
        let mut last = 0;
        let mut broken = false;
        move |frontiers| {
            steps.for_each(|capability, data| {
                queue.extend(data.drain(..).filter_map(|step| Some((capability.retain_least(0)?, step))));
            });
            if let Some((capability, step)) = queue.pop_front().filter(|_| !broken) {
                let sealed = Sealed { step: step.step, metrics: step.metrics.clone() };
                match alarm.check(seal_one(log.as_mut(), step, last, worker)) {
                    Some(()) => {
                        last = sealed.step;
                        sealed_out.activate().session(&capability).give(sealed);
                    }
                    None => broken = true,
                }
            }
            if broken {
                queue.clear();
            }
            if !queue.is_empty() {
                wake.now();
            } else if frontiers[0].is_empty() {
                alarm.rest();
            }
        }
    });
    Seals { steps: sealed, faults }
}

fn seal_one<D: Log>(log: Option<&mut D>, step: SealedStep, last: Step, worker: usize) -> Result<(), Fault> {
    let missing = || Fault::new("seal", format!("worker {worker} trains, but was given no log"));
    let log = log.ok_or_else(missing)?;
    if step.step <= last {
        return Err(Fault::new("seal", format!("step {} comes after step {last}", step.step)));
    }
    guarded("seal", || log.seal(step))
}
