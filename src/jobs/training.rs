//! A run's dataflow: ports for every worker, and what came of it.

use crate::engine::torch::device;
use crate::engine::torch::generator::TorchGenerator;
use crate::engine::torch::learner::TorchLearner;
use crate::engine::torch::policy::Policy;
use crate::engine::torch::weights::Snapshot;
use crate::error::Result;
use crate::jobs::ports::{Baseline, GroupEstimator, TokenizedPrompts};
use crate::jobs::progress::{Counters, Progress, Shown};
use crate::jobs::rewards::Rewards;
use crate::pipeline::{self, WorkerTime};
use crate::spec::Spec;
use crate::store::{FooterInfo, ParquetLog, RunFolder};
use crate::tasks::outside::meter::Stats;
use crate::tasks::source;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::Ports;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Metrics, Rollout, Step, Version};
use tidegate_operators::train::{Learner, Trained};

/// What a run trains, and where it writes.
pub struct Training<'a> {
    pub spec: &'a Spec,
    pub folder: &'a RunFolder,
    pub rewards: &'a Rewards,
    pub policy: &'a Policy,
}

/// What came of it.
#[derive(Default)]
pub struct Outcome {
    /// Of every sealed step, in order.
    pub metrics: Vec<Metrics>,
    /// Rollouts that were sealed and not trained, by status.
    pub not_trained: BTreeMap<String, u64>,
    pub faults: Vec<Fault>,
    /// The last sealed step, and the weights after it.
    pub weights: Option<Snapshot>,
    pub version: Version,
    pub seconds: f64,
    pub generated_tokens: u64,
    /// Of rewards from outside, the evaluation before included.
    pub rewards: Option<Stats>,
    /// Shares of wall time spent on the processor outside libtorch;
    /// None where one worker both generates and trains.
    pub learner_outside: Option<f64>,
    pub generators_outside: Option<f64>,
}

/// Runs the dataflow to its end: the last step, the end of the prompts, a fault or a halt.
///
/// # Errors
/// Ports that cannot be made; faults of the run are in the outcome.
pub fn train(training: &Training<'_>, prompts: source::Prompts, halt: &Halt) -> Result<Outcome> {
    let Training { spec, folder, rewards, policy } = *training;
    let plan = spec.plan(0);
    let counters = Arc::new(Counters { rewards: rewards.meter(), ..Counters::default() });
    let progress = Progress::new(spec.steps, spec.schedule.max_lag, Arc::clone(&counters));
    let newest = Newest::default();
    let learner = policy.learner(&spec.learn, spec.generate.temperature, spec.steps, plan.start)?;
    let mut learner = Some(Keeping { learner, newest: newest.clone(), counters: Arc::clone(&counters) });
    let info = FooterInfo {
        spec: spec.to_text(),
        model: policy.hash.clone(),
        tokenizer: policy.tokenizer.hash().to_owned(),
        learner_threads: u32::from(threads(spec)[plan.learner]),
    };
    let log = Shown::new(ParquetLog::new(folder.clone(), info), progress.clone());
    let sealed = log.sealed();
    let (mut log, mut prompts) = (Some(log), Some(prompts));
    let baseline = if spec.has_critic() { Baseline::Critic } else { Baseline::Group(spec.estimate.advantage) };
    let mut ports = Vec::with_capacity(spec.worker_count());
    for worker in 0..spec.worker_count() {
        let generates = plan.generators.contains(&worker);
        let generator = generates.then(|| policy.generator(&spec.generate, spec.seed, worker)).transpose()?;
        ports.push(Ports {
            prompts: if worker == plan.admitter() { prompts.take() } else { None }
                .map(|prompts| TokenizedPrompts { prompts, tokenizer: policy.tokenizer.clone() }),
            generator: generator.map(|generator| Counted { generator, counters: Arc::clone(&counters), torch_ns: 0 }),
            scorer: generates.then(|| rewards.scorer()),
            estimator: generates.then(|| GroupEstimator::new(&spec.estimate, baseline)),
            learner: if worker == plan.learner { learner.take() } else { None },
            log: if worker == plan.learner { log.take() } else { None },
        });
    }
    let threads = threads(spec);
    let started = Instant::now();
    let census = Census::default();
    let mut report = pipeline::run(&plan, ports, halt, &census, move |worker| device::set_threads(threads[worker]))?;
    let in_flight = census.snapshot().total().in_flight();
    if report.faults.is_empty() && !halt.is_set() && in_flight != 0 {
        report.faults.push(Fault::new("census", format!("{in_flight} groups are neither trained nor discarded")));
    }
    let seconds = started.elapsed().as_secs_f64();
    progress.finish();

    let sealed = std::mem::take(&mut *sealed.lock().unwrap_or_else(PoisonError::into_inner));
    // A checkpoint ahead of the log would be one that the log cannot explain.
    let version = sealed.metrics.last().map_or(plan.start, |m| m.step);
    let weights = newest.take(version);
    let learner_torch: u64 = sealed.metrics.iter().map(|m| m.torch_ns).sum();
    let generator_torch = counters.torch_ns.load(Ordering::Relaxed);
    let apart = !plan.generators.contains(&plan.learner);
    let time = |workers: &[usize], torch_ns| outside(&report.workers, workers, torch_ns).filter(|_| apart);
    Ok(Outcome {
        metrics: sealed.metrics,
        not_trained: sealed.not_trained,
        learner_outside: time(&[plan.learner], learner_torch),
        generators_outside: time(&plan.generators, generator_torch),
        faults: report.faults,
        weights,
        version,
        seconds,
        generated_tokens: counters.tokens.load(Ordering::Relaxed),
        rewards: rewards.meter().map(|meter| meter.stats()),
    })
}

/// libtorch threads by worker; a worker with both roles gets the larger number.
fn threads(spec: &Spec) -> Vec<u16> {
    let w = &spec.workers;
    let of = |worker| {
        let generator = if w.generators.contains(&worker) { w.generator_threads } else { 1 };
        let learner = if w.learners.contains(&worker) { w.learner_threads } else { 1 };
        generator.max(learner)
    };
    (0..spec.worker_count()).map(of).collect()
}

/// Share of the workers' wall time that they were on the processor and not in libtorch.
fn outside(times: &[WorkerTime], workers: &[usize], torch_ns: u64) -> Option<f64> {
    let of = workers.iter().map(|&worker| times.get(worker).copied());
    let times: Vec<WorkerTime> = of.collect::<Option<_>>()?;
    let processor = times.iter().map(|t| t.processor_ns).sum::<u64>();
    let wall: u64 = times.iter().map(|t| t.wall_ns).sum();
    Some(processor.saturating_sub(torch_ns) as f64 / wall.max(1) as f64)
}

/// The newest weights that the learner gave: a few versions, since the log may be a step behind.
#[derive(Clone, Default)]
struct Newest(Arc<Mutex<VecDeque<(Version, Snapshot)>>>);

/// Versions kept.
const KEPT: usize = 3;

impl Newest {
    fn put(&self, version: Version, weights: Snapshot) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((version, weights));
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }

    /// The weights after step `version`.
    fn take(&self, version: Version) -> Option<Snapshot> {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_iter().find(|(of, _)| *of == version).map(|(_, weights)| weights)
    }
}

/// A learner whose newest snapshots outlive its worker.
struct Keeping {
    learner: TorchLearner,
    newest: Newest,
    counters: Arc<Counters>,
}

impl Learner for Keeping {
    type Weights = Snapshot;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.counters.in_step.store(true, Ordering::Relaxed);
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let trained = self.learner.work()?;
        self.counters.in_step.store(trained.is_none(), Ordering::Relaxed);
        Ok(trained)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        self.learner.abandon()
    }

    fn weights(&mut self) -> Result<Snapshot, Fault> {
        let weights = self.learner.weights()?;
        self.newest.put(self.learner.version(), weights.clone());
        Ok(weights)
    }
}

/// A generator that counts what it samples.
struct Counted {
    generator: TorchGenerator,
    counters: Arc<Counters>,
    /// Of the generator's time in libtorch, what is counted.
    torch_ns: u64,
}

impl Generator for Counted {
    type Weights = Snapshot;

    fn load(&mut self, version: Version, weights: Snapshot) -> Result<(), Fault> {
        self.generator.load(version, weights)
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        self.generator.start(group)
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        let ended = self.generator.step()?;
        let tokens: usize = ended.iter().map(|rollout| rollout.tokens.len()).sum();
        self.counters.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        let torch_ns = self.generator.torch_ns();
        self.counters.torch_ns.fetch_add(torch_ns - self.torch_ns, Ordering::Relaxed);
        self.torch_ns = torch_ns;
        Ok(ended)
    }

    fn running(&self) -> usize {
        self.generator.running()
    }
}
