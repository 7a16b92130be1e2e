//! The whole dataflow over any ports: of a run, and of a replay.

use crate::admit::{Feedback, Prompts, admit};
use crate::census::{Census, census};
use crate::curriculum::curriculum;
use crate::estimate::{Estimator, estimate};
use crate::fault::{Fault, Halt};
use crate::generate::{Generator, generate};
use crate::plan::Plan;
use crate::record::{Estimated, Metrics, Step, Weights};
use crate::recorded::{Recorded, recorded};
use crate::score::{Scorer, score};
use crate::seal::{Log, Sealed, seal};
use crate::train::{Learner, Mode, train};
use crate::waiting::waiting;
use timely::ExchangeData;
use timely::dataflow::operators::probe::Handle;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concat, Concatenate, ConnectLoop, Exchange, Feedback as _, Inspect, Probe};
use timely::dataflow::{Scope, StreamVec};

/// What one worker has of the world. A worker needs only what the plan has it do: `prompts` to admit, `generator`, `scorer`
/// and `estimator` to generate, `learner` and `log` to train. One that is missing is a fault.
pub struct Ports<P, G, S, E, L, D> {
    pub prompts: Option<P>,
    pub generator: Option<G>,
    pub scorer: Option<S>,
    pub estimator: Option<E>,
    pub learner: Option<L>,
    pub log: Option<D>,
    /// To train: the groups that wait at the run's start.
    pub waiting: Vec<Estimated>,
}

/// What one worker has of the world in a replay, all on the plan's learner.
pub struct ReplayPorts<R, S, E, L, D> {
    pub recorded: Option<R>,
    pub scorer: Option<S>,
    pub estimator: Option<E>,
    pub learner: Option<L>,
    pub log: Option<D>,
}

/// News of a run, told on the worker where it happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A step is durable; None for the tail of a run, which no step trained.
    Sealed(Step, Option<Box<Metrics>>),
    /// Something failed, and the run is halted.
    Fault(Fault),
}

/// How far the run is. All workers see the same, each a little later or sooner.
#[derive(Clone, Debug)]
pub struct Probes {
    /// Its frontier is the number of steps done.
    pub weights: Handle<Step>,
    /// Steps below its frontier are durable. Empty when the run is over.
    pub sealed: Handle<Step>,
}

/// Builds the dataflow of a run. Every worker must call it with the same plan; a plan that is not
/// [valid](Plan::validate) halts the run before it begins.
///
/// The dataflow completes, on all workers, when the run is over: all steps are done, the prompts have ended, or `halt` was
/// set, by a fault or from outside. `observe` must not panic.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use tidegate_operators::{admit::Prompts, balance::Balance, census::Census, dataflow::{Ports, dataflow}, estimate::Estimator};
/// # use tidegate_operators::{fault::{Fault, Halt}, generate::Generator, plan::{Order, Plan, ShortBatch}, record::*};
/// # use tidegate_operators::{schedule::{Schedule, WeightsUpdate}, score::Scorer, seal::Log, start::Start, train::{Learner, Trained}};
/// # struct Endless;
/// # impl Prompts for Endless {
/// #     fn prompt(&mut self, _: u64) -> Result<Option<Prompt>, Fault> { Ok(Some(Prompt::default())) }
/// # }
/// # #[derive(Default)]
/// # struct Engine { version: Version, rollouts: Vec<Rollout>, batch: Vec<Rollout> }
/// # impl Generator for Engine {
/// #     type Weights = u64;
/// #     fn load(&mut self, version: Version, _: u64) -> Result<(), Fault> { self.version = version; Ok(()) }
/// #     fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
/// #         let (version, mask) = (vec![self.version], vec![true]);
/// #         self.rollouts.push(Rollout { group, version, mask, tokens: vec![7], ..Rollout::default() });
/// #         Ok(())
/// #     }
/// #     fn step(&mut self) -> Result<Vec<Rollout>, Fault> { Ok(std::mem::take(&mut self.rollouts)) }
/// #     fn running(&self) -> usize { self.rollouts.len() }
/// # }
/// # impl Scorer for Engine {
/// #     fn score(&mut self, rollout: Rollout) -> Result<Option<Rollout>, Fault> {
/// #         Ok(Some(Rollout { reward: Some(1.0), ..rollout }))
/// #     }
/// # }
/// # impl Estimator for Engine {
/// #     fn estimate(&mut self, _: &mut [Rollout]) -> Result<Option<Reason>, Fault> { Ok(None) }
/// # }
/// # impl Learner for Engine {
/// #     type Weights = u64;
/// #     fn begin(&mut self, _: Step, batch: Vec<Rollout>) -> Result<(), Fault> { self.batch = batch; Ok(()) }
/// #     fn work(&mut self) -> Result<Option<Trained>, Fault> {
/// #         Ok(Some(Trained { batch: std::mem::take(&mut self.batch), metrics: Metrics::default() }))
/// #     }
/// #     fn weights(&mut self) -> Result<u64, Fault> { Ok(0) }
/// # }
/// # struct Steps(Arc<Mutex<Vec<SealedStep>>>);
/// # impl Log for Steps {
/// #     fn seal(&mut self, step: SealedStep) -> Result<(), Fault> { self.0.lock().unwrap().push(step); Ok(()) }
/// # }
/// let plan = Plan {
///     start: Start::default(),
///     steps: 3,
///     batch_groups: 2,
///     group_size: 1,
///     schedule: Schedule::Pipeline { max_lag: 1 },
///     weights_update: WeightsUpdate::InFlight,
///     order: Order::Arrival,
///     short_batch: ShortBatch::Train,
///     slots: 4,
///     generators: vec![0],
///     learner: 0,
///     window: 0,
///     balance: Balance::Fixed,
/// };
/// let log = Arc::new(Mutex::new(Vec::new()));
/// let steps = Arc::clone(&log);
/// timely::execute_directly(move |worker| {
///     let ports = Ports {
///         prompts: Some(Endless),
///         generator: Some(Engine::default()),
///         scorer: Some(Engine::default()),
///         estimator: Some(Engine::default()),
///         learner: Some(Engine::default()),
///         log: Some(Steps(steps)),
///         waiting: Vec::new(),
///     };
///     worker.dataflow(|scope| dataflow(scope, &plan, ports, &Halt::default(), &Census::new(), |_notice| {}));
/// });
/// let sealed = log.lock().unwrap();
/// assert_eq!(sealed.iter().map(|step| (step.step, step.rollouts.len())).collect::<Vec<_>>(), [(1, 2), (2, 2), (3, 2)]);
/// ```
pub fn dataflow<'scope, W, P, G, S, E, L, D>(
    scope: Scope<'scope, Step>,
    plan: &Plan,
    ports: Ports<P, G, S, E, L, D>,
    halt: &Halt,
    counts: &Census,
    observe: impl Fn(Notice) + Clone + 'static,
) -> Probes
where
    W: ExchangeData + Clone,
    P: Prompts + 'static,
    G: Generator<Weights = W> + 'static,
    S: Scorer + 'static,
    E: Estimator + 'static,
    L: Learner<Weights = W> + 'static,
    D: Log + Send + 'static,
{
    check(scope, plan, halt, &observe);
    let (weights_loop, weights) = scope.feedback::<Vec<Weights<W>>>(0);
    let (feedback_loop, feedback) = scope.feedback::<Vec<Feedback>>(0);
    let (sealed_loop, durable) = scope.feedback::<Vec<Sealed>>(0);
    let versions = weights.clone().map(|weights| weights.version);

    let admitted = admit(versions, feedback, plan, ports.prompts, halt);
    let generated = generate(admitted.groups.clone(), weights, plan, ports.generator, halt);
    let scored = score(generated.rollouts, ports.scorer, halt);
    let estimated = estimate(scored.rollouts, ports.estimator, halt);
    let mode = Mode::Run { bound: plan.schedule.bound() };
    let returned = waiting(scope, plan, ports.waiting, halt);
    let under_way = admitted.groups.concat(returned.groups.clone().map(|estimated| estimated.group));
    let (groups, rates) = match plan.window {
        0 => (estimated.groups, None),
        _ => {
            let kept = curriculum(estimated.groups, plan);
            (kept.groups, Some(kept.rates))
        }
    };
    let arriving = groups.concat(returned.groups);
    let trained = train(arriving, admitted.end, durable, plan, mode, ports.learner, halt);
    let sealed = seal(trained.steps, ports.log, halt);
    sealed.steps.clone().connect_loop(sealed_loop);
    let miscounts = census(under_way, trained.moved, plan.schedule, counts, halt);

    let (weights_probe, weights) = trained.weights.probe();
    deliver(weights, &plan.generators).connect_loop(weights_loop);
    let told = [generated.feedback, trained.feedback].into_iter().chain(rates);
    scope.concatenate(told).connect_loop(feedback_loop);

    let faults =
        [admitted.faults, generated.faults, scored.faults, estimated.faults, trained.faults, sealed.faults, miscounts];
    report(scope.concatenate(faults).concat(returned.faults), observe.clone());
    Probes { weights: weights_probe, sealed: news(sealed.steps, observe) }
}

/// Builds the dataflow of a replay: recorded groups are scored, estimated, trained and sealed again, each in the step that
/// trained it. Of the plan, `schedule`, `weights_update`, `order`, `generators` and `slots` must be valid and are without effect.
pub fn replay_dataflow<'scope, W, R, S, E, L, D>(
    scope: Scope<'scope, Step>,
    plan: &Plan,
    ports: ReplayPorts<R, S, E, L, D>,
    halt: &Halt,
    observe: impl Fn(Notice) + Clone + 'static,
) -> Probes
where
    W: ExchangeData + Clone,
    R: Recorded + 'static,
    S: Scorer + 'static,
    E: Estimator + 'static,
    L: Learner<Weights = W> + 'static,
    D: Log + Send + 'static,
{
    check(scope, plan, halt, &observe);
    let (sealed_loop, durable) = scope.feedback::<Vec<Sealed>>(0);

    let recordings = recorded(durable.clone(), plan, ports.recorded, halt);
    let scored = score(recordings.rollouts, ports.scorer, halt);
    let estimated = estimate(scored.rollouts, ports.estimator, halt);
    let trained = train(estimated.groups, recordings.end, durable, plan, Mode::Replay, ports.learner, halt);
    let sealed = seal(trained.steps, ports.log, halt);
    sealed.steps.clone().connect_loop(sealed_loop);

    let (weights_probe, _) = trained.weights.probe();
    let faults = [recordings.faults, scored.faults, estimated.faults, trained.faults, sealed.faults];
    report(scope.concatenate(faults), observe.clone());
    Probes { weights: weights_probe, sealed: news(sealed.steps, observe) }
}

/// A wrong plan halts before anything starts. The dataflow is built all the same: workers must agree on its shape.
fn check(scope: Scope<'_, Step>, plan: &Plan, halt: &Halt, observe: &impl Fn(Notice)) {
    if let Err(wrong) = plan.validate(scope.peers()) {
        halt.set();
        observe(Notice::Fault(Fault::new("plan", wrong)));
    }
}

/// Brings each version to the workers that need it, each with a payload of its own.
fn deliver<'scope, W: ExchangeData + Clone>(
    weights: StreamVec<'scope, Step, Weights<W>>,
    workers: &[usize],
) -> StreamVec<'scope, Step, Weights<W>> {
    let workers: Vec<u64> = workers.iter().map(|worker| *worker as u64).collect();
    weights
        .flat_map(move |weights| workers.clone().into_iter().map(move |worker| (worker, weights.clone())))
        .exchange(|(worker, _)| *worker)
        .map(|(_, weights)| weights)
}

fn report(faults: StreamVec<'_, Step, Fault>, observe: impl Fn(Notice) + 'static) {
    faults.inspect(move |fault| observe(Notice::Fault(fault.clone())));
}

fn news(sealed: StreamVec<'_, Step, Sealed>, observe: impl Fn(Notice) + 'static) -> Handle<Step> {
    let told = sealed.inspect(move |sealed| observe(Notice::Sealed(sealed.step, sealed.metrics.clone().map(Box::new))));
    told.probe().0
}
