//! What the dataflow costs: rollouts a second through the operators with ports that do next to nothing, as a ratio to the same
//! ports called from a plain loop in the same run. `cargo bench --bench dataflow`; the median of five rounds, in turn.
//!
//! Rollouts have 16 tokens that cost nothing to sample, batches 1,024 rollouts in groups of 8. Then, on two workers, what a rollout
//! costs while so and so many groups are in flight, in steady state: held by the generator, or waiting at the learner.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tidegate::pipeline;
use tidegate_operators::admit::Prompts;
use tidegate_operators::balance::Balance;
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::Ports;
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Step, Version};
use tidegate_operators::schedule::{Schedule, WeightsUpdate};
use tidegate_operators::score::Scorer;
use tidegate_operators::seal::Log;
use tidegate_operators::start::Start;
use tidegate_operators::train::{Learner, Trained};

const STEPS: u64 = 100;
const GROUP: u32 = 8;
const BATCH_GROUPS: u64 = 128;
const TOKENS: usize = 16;
const SLOTS: usize = 1024;

/// Groups in flight, and how many steps are timed then, in how many rounds.
const IN_FLIGHT: [u64; 3] = [1_000, 10_000, 100_000];
const TIMED_STEPS: u64 = 200;
const ROUNDS: usize = 3;

/// Where groups in flight are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Generator,
    Learner,
}

struct Idle;

impl Prompts for Idle {
    fn prompt(&mut self, _: u64) -> Result<Option<Prompt>, Fault> {
        Ok(Some(Prompt { tokens: vec![1; 8], ..Prompt::default() }))
    }
}

/// Ends every group at the next decode step, but for the newest ones that it holds back.
#[derive(Default)]
struct IdleGenerator {
    version: Version,
    groups: VecDeque<Arc<Group>>,
    held: usize,
}

impl IdleGenerator {
    fn sample(&self, group: &Arc<Group>, sample: u32) -> Rollout {
        Rollout {
            group: Arc::clone(group),
            sample,
            tokens: vec![1; TOKENS],
            mask: vec![true; TOKENS],
            logp_behavior: vec![-0.5; TOKENS],
            version: vec![self.version; TOKENS],
            ..Rollout::default()
        }
    }
}

impl Generator for IdleGenerator {
    type Weights = ();

    fn load(&mut self, version: Version, (): ()) -> Result<(), Fault> {
        self.version = version;
        Ok(())
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        self.groups.push_back(group);
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        let ended = self.groups.len().saturating_sub(self.held);
        let groups: Vec<Arc<Group>> = self.groups.drain(..ended).collect();
        Ok(groups.iter().flat_map(|group| (0..group.size).map(|sample| self.sample(group, sample))).collect())
    }

    fn running(&self) -> usize {
        self.groups.len() * GROUP as usize
    }
}

impl Scorer for Idle {
    fn score(&mut self, rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        Ok(Some(Rollout { reward: Some((rollout.sample % 2) as f32), ..rollout }))
    }
}

/// Counts groups.
#[derive(Default)]
struct IdleEstimator(Arc<AtomicU64>);

impl Estimator for IdleEstimator {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        self.0.fetch_add(1, Ordering::Relaxed);
        rollouts.iter_mut().for_each(|rollout| rollout.advantage = vec![0.5; TOKENS]);
        Ok(None)
    }
}

#[derive(Default)]
struct IdleLearner {
    step: Step,
    batch: Vec<Rollout>,
    crowd: Option<Crowd>,
}

/// Keeps so many groups in flight, and times the steps when they are.
struct Crowd {
    place: Place,
    groups: u64,
    /// Groups that came to the learner, or will at once.
    estimated: Arc<AtomicU64>,
    halt: Halt,
    started: Instant,
    /// Nanoseconds of the timed steps.
    took: Arc<Mutex<u64>>,
}

impl Crowd {
    /// So many steps go by first, so that the groups in flight have as many dues as they will have.
    fn steps_before(groups: u64) -> Step {
        1 + groups / BATCH_GROUPS
    }

    /// Whether a step is to go on until more groups wait.
    fn gathers(&self, step: Step) -> bool {
        let waiting = self.estimated.load(Ordering::Relaxed) - (step - 1) * BATCH_GROUPS;
        self.place == Place::Learner && waiting < self.groups
    }

    /// Step `step` is done. After the last timed one the run is ended.
    fn stepped(&mut self, step: Step) {
        let before = Crowd::steps_before(self.groups);
        if step == before {
            self.started = Instant::now();
        } else if step == before + TIMED_STEPS {
            *self.took.lock().unwrap_or_else(PoisonError::into_inner) = self.started.elapsed().as_nanos() as u64;
            self.halt.set();
        }
    }
}

impl Learner for IdleLearner {
    type Weights = ();

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        (self.step, self.batch) = (step, batch);
        Ok(())
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        if let Some(crowd) = &mut self.crowd {
            if crowd.gathers(self.step) {
                return Ok(None);
            }
            crowd.stepped(self.step);
        }
        let batch = std::mem::take(&mut self.batch);
        Ok(Some(Trained { batch, metrics: Metrics { step: self.step, ..Metrics::default() } }))
    }

    fn weights(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

impl Log for Idle {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        std::hint::black_box(step);
        Ok(())
    }
}

fn plan(generators: Vec<usize>, learner: usize) -> Plan {
    Plan {
        start: Start::default(),
        steps: STEPS,
        batch_groups: BATCH_GROUPS,
        group_size: GROUP,
        schedule: Schedule::Pipeline { max_lag: 4 },
        weights_update: WeightsUpdate::InFlight,
        order: Order::Arrival,
        short_batch: ShortBatch::Train,
        balance: Balance::Fixed,
        slots: SLOTS,
        generators,
        learner,
        window: 0,
    }
}

/// Rollouts a second through the dataflow.
fn through_dataflow(plan: &Plan, workers: usize) -> f64 {
    let ports = (0..workers).map(|worker| {
        let (generates, learns) = (plan.generators.contains(&worker), plan.learner == worker);
        Ports {
            prompts: (worker == plan.admitter()).then_some(Idle),
            generator: generates.then(IdleGenerator::default),
            scorer: generates.then_some(Idle),
            estimator: generates.then(IdleEstimator::default),
            learner: learns.then(IdleLearner::default),
            log: learns.then_some(Idle),
            waiting: Vec::new(),
        }
    });
    let started = Instant::now();
    let report = pipeline::run(plan, ports.collect(), &Halt::default(), &Census::default(), |_| {});
    assert!(report.is_ok_and(|report| report.faults.is_empty()), "the run has faults");
    rate(started)
}

/// Nanoseconds a rollout while so many groups are in flight.
fn crowded(place: Place, groups: u64) -> f64 {
    let room = groups / BATCH_GROUPS + 8;
    let plan = Plan {
        steps: Crowd::steps_before(groups) + TIMED_STEPS + room,
        schedule: Schedule::Pipeline { max_lag: room - 1 },
        // What waits at the learner takes none.
        slots: (groups * u64::from(GROUP)) as usize + SLOTS,
        ..plan(vec![0], 1)
    };
    let (halt, estimated, took) = (Halt::default(), Arc::default(), Arc::default());
    let held = if place == Place::Generator { groups as usize } else { 0 };
    let crowd = Crowd {
        place,
        groups,
        estimated: Arc::clone(&estimated),
        halt: halt.clone(),
        started: Instant::now(),
        took: Arc::clone(&took),
    };
    let learner = IdleLearner { crowd: Some(crowd), ..IdleLearner::default() };
    let generates = Ports {
        prompts: Some(Idle),
        generator: Some(IdleGenerator { held, ..IdleGenerator::default() }),
        scorer: Some(Idle),
        estimator: Some(IdleEstimator(estimated)),
        learner: None,
        log: None,
        waiting: Vec::new(),
    };
    let trains = Ports {
        prompts: None,
        generator: None,
        scorer: None,
        estimator: None,
        learner: Some(learner),
        log: Some(Idle),
        waiting: Vec::new(),
    };
    let report = pipeline::run(&plan, vec![generates, trains], &halt, &Census::default(), |_| {});
    assert!(report.is_ok_and(|report| report.faults.is_empty()), "the run has faults");
    let took = *took.lock().unwrap_or_else(PoisonError::into_inner);
    took as f64 / (TIMED_STEPS * BATCH_GROUPS * u64::from(GROUP)) as f64
}

/// Rollouts a second through the same ports in a plain loop.
fn through_loop() -> Result<f64, Fault> {
    let (mut generator, mut learner) = (IdleGenerator::default(), IdleLearner::default());
    let started = Instant::now();
    for step in 1..=STEPS {
        generator.load(step - 1, ())?;
        for number in 0..BATCH_GROUPS {
            let prompt = Idle.prompt(number)?.unwrap_or_default();
            generator.start(Arc::new(Group { number, due: step, size: GROUP, prompt, ..Group::default() }))?;
        }
        let mut batch = Vec::new();
        for rollout in generator.step()? {
            batch.extend(Idle.score(rollout)?);
        }
        let mut estimator = IdleEstimator::default();
        for group in batch.chunks_mut(GROUP as usize) {
            estimator.estimate(group)?;
        }
        learner.begin(step, batch)?;
        if let Some(Trained { mut batch, metrics }) = learner.work()? {
            batch.iter_mut().for_each(|rollout| rollout.status = Status::Trained);
            Idle.seal(SealedStep { step, rollouts: batch, metrics: Some(metrics) })?;
        }
    }
    Ok(rate(started))
}

fn rate(started: Instant) -> f64 {
    (STEPS * BATCH_GROUPS * u64::from(GROUP)) as f64 / started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Fault> {
    let (mut alone, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        alone.push(through_loop()?);
        one.push(through_dataflow(&plan(vec![0], 0), 1));
        two.push(through_dataflow(&plan(vec![0], 1), 2));
    }
    let reference = median(alone);
    println!("rollouts/s, median of 5 rounds of {STEPS} steps of {} rollouts", BATCH_GROUPS * u64::from(GROUP));
    for (name, value) in
        [("plain loop", reference), ("dataflow, 1 worker", median(one)), ("dataflow, 2 workers", median(two))]
    {
        println!("{name:20} {value:>12.0}   {:.2} of the loop", value / reference);
    }
    println!("ns a rollout on 2 workers, median of {ROUNDS} rounds of {TIMED_STEPS} steps, with groups in flight");
    for place in [Place::Generator, Place::Learner] {
        let mut rounds = [const { Vec::new() }; IN_FLIGHT.len()];
        for _ in 0..ROUNDS {
            IN_FLIGHT.iter().zip(&mut rounds).for_each(|(groups, times)| times.push(crowded(place, *groups)));
        }
        let times = rounds.map(median);
        for (groups, time) in IN_FLIGHT.iter().zip(times) {
            let of = format!("{groups} at the {place:?}").to_lowercase();
            println!("{of:24} {time:>8.0}   {:.2} of the first", time / times[0]);
        }
    }
    Ok(())
}
