//! A run's dataflow: ports for every worker, and what came of it.

use crate::clock::thread_ns;
use crate::engine::contract::Engine;
use crate::error::{Error, Result};
use crate::jobs::best::Best;
use crate::jobs::checkpoints::{Checkpoints, Making};
use crate::jobs::curriculum::Drawing;
use crate::jobs::divergence::Stopping;
use crate::jobs::encode::Encoder;
use crate::jobs::estimator::{Discards, GroupEstimator};
use crate::jobs::pace::{Pacing, Watch};
use crate::jobs::ports::TokenizedPrompts;
use crate::jobs::progress::{Counters, Progress, SealedSoFar, Shown};
use crate::jobs::recovery::Origin;
use crate::jobs::reference::Referring;
use crate::jobs::rewards::Rewards;
use crate::jobs::say;
use crate::jobs::tensorboard::TensorBoard;
use crate::jobs::waits::{GeneratorShares, Ticking, Timed};
use crate::pipeline::{self, Report, WorkerTime};
use crate::spec::Spec;
use crate::store::{FooterInfo, ParquetLog, Room, RunFolder};
use crate::tasks::outside::meter::Stats;
use crate::tasks::source;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::Ports;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::plan::Plan;
use tidegate_operators::record::{Group, Rollout, Version};

/// What a run trains, and where it writes.
pub struct Training<'a, E> {
    pub spec: &'a Spec,
    pub folder: &'a RunFolder,
    pub rewards: &'a Rewards,
    pub engine: &'a E,
}

/// What came of it.
pub struct Outcome<W> {
    pub sealed: SealedSoFar,
    pub faults: Vec<Fault>,
    /// The last sealed step, of earlier parts of the run too, and the weights after it.
    pub version: Version,
    pub weights: Option<W>,
    /// Why the last checkpoint could not be written.
    pub unkept: Option<Error>,
    pub seconds: f64,
    pub generated_tokens: u64,
    /// Of rewards from outside, the evaluation before included.
    pub rewards: Option<Stats>,
    /// Shares of wall time spent on the processor outside the engine's tensor library;
    /// None where one worker both generates and trains.
    pub learner_outside: Option<f64>,
    pub generators_outside: Option<f64>,
    pub pacing: Pacing,
    /// On the processors, all workers together, seconds.
    pub processor_s: f64,
    /// Where each generator's time went.
    pub generators: Vec<GeneratorShares>,
}

/// Runs the dataflow to its end: the last step, the end of the prompts, a fault or a halt.
///
/// # Errors
/// Ports that cannot be made; faults of the run are in the outcome.
pub fn train<E>(
    training: &Training<'_, E>,
    prompts: source::Prompts,
    origin: Origin<E>,
    best: Option<Best<E>>,
    halt: &Halt,
) -> Result<Outcome<E::Weights>>
where
    E: Engine + 'static,
{
    let Training { spec, folder, rewards, engine } = *training;
    let Origin { identity, learner, state, checkpoint, start, waiting, before, referee } = origin;
    let plan = Plan { start, ..spec.plan() };
    let counters = Arc::new(Counters { rewards: rewards.meter(), ..Counters::default() });
    let progress = Progress::new(spec, Arc::clone(&counters));
    let info = FooterInfo {
        spec: spec.to_text(),
        model: identity.model,
        tokenizer: identity.tokenizer,
        critic: identity.critic,
        reference: identity.reference,
        learner_threads: u32::from(spec.learner_threads()),
    };
    let log = TensorBoard::new(spec, folder, ParquetLog::new(folder.clone(), info).waits(room(halt)));
    let log = Shown::new(log, progress.clone());
    let sealed = log.sealed();
    let (counted, refreshed) = (&counters, referee.refreshed.clone());
    let making = Making { engine, folder, spec: &spec.checkpoint, newest: checkpoint, counters: counted, best, refreshed };
    let (checkpoints, learner, log) = Checkpoints::start(making, state, learner, log)?;
    let encoder = Encoder::new(engine, spec.data.as_ref())?;
    let learner = Referring::around(spec, referee, learner);
    let learner = Stopping::new(spec.learn.safeguard, &before, learner);
    let learner = Timed::new(&counters.waits, plan.learner, learner);
    let (mut learner, mut log, mut waiting) = (Some(learner), Some(log), Some(waiting));
    let drawing = Drawing::new(spec, &plan.start, prompts.source());
    let mut prompts = Some(TokenizedPrompts { prompts, encoder, drawing });
    let discards = Discards::default();
    let mut ports = Vec::with_capacity(spec.worker_count());
    for worker in 0..spec.worker_count() {
        let generates = plan.generators.contains(&worker);
        let trains = worker == plan.learner;
        let generator = generates.then(|| engine.generator(&spec.generate, spec.seed, worker)).transpose()?;
        ports.push(Ports {
            prompts: if worker == plan.admitter() { prompts.take() } else { None },
            generator: generator.map(|generator| Counted::<E> {
                generator,
                worker,
                counters: Arc::clone(&counters),
                watch: Watch::new(&counters.pace),
                clock: counters.waits.clock(worker),
                library_ns: 0,
                slots: spec.generate.slots,
            }),
            scorer: generates.then(|| rewards.scorer()),
            estimator: generates.then(|| GroupEstimator::new(spec, discards.clone())),
            learner: if trains { learner.take() } else { None },
            log: if trains { log.take() } else { None },
            waiting: if trains { waiting.take().unwrap_or_default() } else { Vec::new() },
        });
    }
    let threads: Vec<u16> = (0..spec.worker_count()).map(|worker| spec.threads(worker)).collect();
    let started = Instant::now();
    counters.waits.start();
    let census = Census::default();
    // A run that was ended after its last step has only its end left.
    let mut report = if plan.start.version >= plan.steps {
        drop(ports);
        Report::default()
    } else {
        pipeline::run(&plan, ports, halt, &census, move |worker| E::set_threads(threads[worker]))?
    };
    let in_flight = census.snapshot().total().in_flight();
    if report.faults.is_empty() && !halt.is_set() && in_flight != 0 {
        report.faults.push(Fault::new("census", format!("{in_flight} groups are neither trained nor discarded")));
    }
    let seconds = started.elapsed().as_secs_f64();
    let generators = counters.waits.shares();
    progress.finish();

    let kept = checkpoints.finish();
    let sealed = std::mem::take(&mut *sealed.lock().unwrap_or_else(PoisonError::into_inner));
    let generator_library = counters.torch_ns.load(Ordering::Relaxed);
    let learner_library = sealed.torch_ns + counters.copies_ns.load(Ordering::Relaxed);
    let apart = !plan.generators.contains(&plan.learner);
    let time = |workers: &[usize], library_ns| outside(&report.workers, workers, library_ns).filter(|_| apart);
    Ok(Outcome {
        learner_outside: time(&[plan.learner], learner_library),
        generators_outside: time(&plan.generators, generator_library),
        pacing: counters.pace.pacing(),
        processor_s: report.workers.iter().map(|time| time.processor_ns as f64 / 1e9).sum(),
        generators,
        sealed,
        faults: report.faults,
        weights: kept.weights,
        version: kept.state.step,
        unkept: kept.unkept,
        seconds,
        generated_tokens: counters.tokens.load(Ordering::Relaxed),
        rewards: rewards.meter().map(|meter| meter.stats()),
    })
}

/// Where a full disk makes a run wait: until there is room, or a halt.
pub fn room(halt: &Halt) -> Room {
    Room::new(halt, |line| say(line))
}

/// Share of the workers' wall time that they were on the processor and not in the engine's library.
fn outside(times: &[WorkerTime], workers: &[usize], library_ns: u64) -> Option<f64> {
    let of = workers.iter().map(|&worker| times.get(worker).copied());
    let times: Vec<WorkerTime> = of.collect::<Option<_>>()?;
    let processor = times.iter().map(|t| t.processor_ns).sum::<u64>();
    let wall: u64 = times.iter().map(|t| t.wall_ns).sum();
    Some(processor.saturating_sub(library_ns) as f64 / wall.max(1) as f64)
}

/// A generator that counts what it samples, and is timed.
struct Counted<E: Engine> {
    generator: E::Generator,
    counters: Arc<Counters>,
    /// Of the generator's time in the engine's library, what is counted.
    library_ns: u64,
    watch: Watch,
    clock: Ticking,
    worker: usize,
    /// That it had when it was last looked at.
    slots: usize,
}

impl<E: Engine> Generator for Counted<E> {
    type Weights = E::Weights;

    fn load(&mut self, version: Version, weights: E::Weights) -> Result<(), Fault> {
        let (started, processor) = (Instant::now(), thread_ns());
        self.generator.load(version, weights)?;
        // All of it is copying, and laying out anew, what the library computes with.
        let processor_ns = thread_ns() - processor;
        self.counters.torch_ns.fetch_add(processor_ns, Ordering::Relaxed);
        self.watch.load(started.elapsed(), Duration::from_nanos(processor_ns));
        self.clock.work(started, Instant::now(), self.generator.running());
        Ok(())
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        self.clock.begin();
        self.generator.start(group)
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        let started = Instant::now();
        let ended = self.generator.step()?;
        let (stepped, running) = (Instant::now(), self.generator.running());
        self.watch.step(started, stepped, running);
        self.clock.work(started, stepped, running);
        let tokens: usize = ended.iter().map(|rollout| rollout.tokens.len()).sum();
        self.counters.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        let library_ns = E::library_ns(&self.generator);
        self.counters.torch_ns.fetch_add(library_ns - self.library_ns, Ordering::Relaxed);
        self.library_ns = library_ns;
        let slots = E::slots(&self.generator);
        if slots < self.slots {
            say(format_args!(
                "note      out of memory in the generator of worker {}: {slots} slots from now on, not {}; generate.slots = {slots} \
                 says so from the start",
                self.worker, self.slots
            ));
            self.slots = slots;
        }
        Ok(ended)
    }

    fn running(&self) -> usize {
        self.generator.running()
    }
}
