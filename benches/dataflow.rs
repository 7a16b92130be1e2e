//! What the dataflow costs: rollouts a second through the operators with ports that do next to nothing, as a ratio to the same
//! ports called from a plain loop in the same run. `cargo bench --bench dataflow`; the median of five rounds, in turn.
//!
//! Rollouts have 16 tokens that cost nothing to sample, batches 1,024 rollouts in groups of 8.

use std::sync::Arc;
use std::time::Instant;
use tidegate::pipeline;
use tidegate_operators::admit::Prompts;
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::Ports;
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Step, Version};
use tidegate_operators::schedule::Schedule;
use tidegate_operators::score::Scorer;
use tidegate_operators::seal::Log;
use tidegate_operators::start::Start;
use tidegate_operators::train::{Learner, Trained};

const STEPS: u64 = 100;
const GROUP: u32 = 8;
const BATCH_GROUPS: u64 = 128;
const TOKENS: usize = 16;
const SLOTS: usize = 1024;

struct Idle;

impl Prompts for Idle {
    fn prompt(&mut self, _: u64) -> Result<Option<Prompt>, Fault> {
        Ok(Some(Prompt { tokens: vec![1; 8], ..Prompt::default() }))
    }
}

/// Ends every group at the next decode step.
#[derive(Default)]
struct IdleGenerator {
    version: Version,
    groups: Vec<Arc<Group>>,
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
        self.groups.push(group);
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        let groups = std::mem::take(&mut self.groups);
        Ok(groups.iter().flat_map(|group| (0..group.size).map(|sample| self.sample(group, sample))).collect())
    }

    fn running(&self) -> usize {
        self.groups.iter().map(|group| group.size as usize).sum()
    }
}

impl Scorer for Idle {
    fn score(&mut self, rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        Ok(Some(Rollout { reward: Some((rollout.sample % 2) as f32), ..rollout }))
    }
}

impl Estimator for Idle {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        rollouts.iter_mut().for_each(|rollout| rollout.advantage = vec![0.5; TOKENS]);
        Ok(None)
    }
}

#[derive(Default)]
struct IdleLearner {
    step: Step,
    batch: Vec<Rollout>,
}

impl Learner for IdleLearner {
    type Weights = ();

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        (self.step, self.batch) = (step, batch);
        Ok(())
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
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
        order: Order::Arrival,
        short_batch: ShortBatch::Train,
        slots: SLOTS,
        generators,
        learner,
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
            estimator: generates.then_some(Idle),
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
        for group in batch.chunks_mut(GROUP as usize) {
            Idle.estimate(group)?;
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
    Ok(())
}
