//! A small world for the dataflow: ports whose every answer is a function of a seed, and a run that cannot hang a test.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; all of it is tests")]

pub mod streams;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tidegate_operators::admit::Prompts;
use tidegate_operators::balance::Balance;
use tidegate_operators::census::{Census, Snapshot};
use tidegate_operators::dataflow::{Notice, Ports, Probes, dataflow};
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Step, Stop, Version};
use tidegate_operators::schedule::{Schedule, WeightsUpdate};
use tidegate_operators::score::Scorer;
use tidegate_operators::seal::{AHEAD, Log};
use tidegate_operators::start::Start;
use tidegate_operators::success::Rate;
use tidegate_operators::train::{Learner, Trained};

/// A port call that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Prompts,
    Learned,
    Load,
    Start,
    Decode,
    Score,
    Estimate,
    Begin,
    Work,
    Weights,
    Seal,
}

/// How it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Panic,
    Error,
}

/// Everything that a run's ports do.
#[derive(Clone, Debug)]
pub struct World {
    pub seed: u64,
    /// Prompts that there are.
    pub prompts: u64,
    /// Rollouts have 1 to this many tokens.
    pub longest: u64,
    /// Learner calls of one step.
    pub pieces: u64,
    /// Percent of groups refused by the generator, discarded by the estimator, and of rollouts without a reward.
    pub refused: u64,
    pub discarded: u64,
    pub unscored: u64,
    /// Longest sleep in a port call, microseconds; and the sleep in each call of one port.
    pub sleep: u64,
    pub slow: Option<(Call, u64)>,
    /// The n-th call (from 0) of a port goes wrong.
    pub trouble: Option<(Call, u64, Trouble)>,
    pub calls: Arc<AtomicU64>,
    /// Steps that the learner finished, and how many of them were at most not yet sealed.
    pub done: Arc<AtomicU64>,
    pub ahead: Arc<AtomicU64>,
    pub census: Census,
    /// Bins that prompts are of, by their numbers, and what their port was told of them.
    pub bins: u64,
    pub known: Arc<Mutex<BTreeMap<u64, Rate>>>,
}

impl Default for World {
    fn default() -> Self {
        World {
            seed: 1,
            prompts: 1_000_000,
            longest: 4,
            pieces: 2,
            refused: 0,
            discarded: 0,
            unscored: 0,
            sleep: 0,
            slow: None,
            trouble: None,
            calls: Arc::default(),
            done: Arc::default(),
            ahead: Arc::default(),
            census: Census::new(),
            bins: 1,
            known: Arc::default(),
        }
    }
}

/// A plan of `steps` steps on one worker.
pub fn plan(steps: Step, batch_groups: u64, group_size: u32, max_lag: u64) -> Plan {
    Plan {
        start: Start::default(),
        steps,
        batch_groups,
        group_size,
        schedule: Schedule::Pipeline { max_lag },
        weights_update: WeightsUpdate::InFlight,
        order: Order::Arrival,
        short_batch: ShortBatch::Train,
        balance: Balance::Fixed,
        slots: 2 * group_size as usize,
        generators: vec![0],
        learner: 0,
        window: 0,
    }
}

/// SplitMix64 of a few numbers: every draw of the world.
pub fn draw(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, number| {
        let mut z = (hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

impl World {
    fn percent(&self, kind: u64, number: u64, sample: u64, percent: u64) -> bool {
        draw(&[self.seed, kind, number, sample]) % 100 < percent
    }

    /// Every port call comes through here: it may sleep, and goes wrong on its turn.
    fn call(&self, call: Call) -> Result<(), Fault> {
        if self.sleep > 0 {
            let count = self.calls.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(draw(&[self.seed, 9, call as u64, count]) % self.sleep));
        }
        if let Some((_, sleep)) = self.slow.filter(|(slow, _)| *slow == call) {
            std::thread::sleep(Duration::from_micros(sleep));
        }
        let Some((which, turn, trouble)) = self.trouble.filter(|(which, _, _)| *which == call) else { return Ok(()) };
        if self.calls.fetch_add(1, Ordering::Relaxed) != turn {
            return Ok(());
        }
        match trouble {
            Trouble::Panic => panic!("planted in {which:?}"),
            Trouble::Error => Err(Fault::new(format!("{which:?}"), "planted")),
        }
    }

    pub fn ports(&self, log: &Arc<Mutex<Vec<SealedStep>>>, slots: usize) -> FakePorts {
        let world = self.clone();
        let generator =
            FakeGenerator { world: world.clone(), version: 0, slots, sequences: Vec::new(), refused: Vec::new() };
        Ports {
            prompts: Some(FakePrompts { world: world.clone() }),
            generator: Some(generator),
            scorer: Some(FakeScorer(world.clone())),
            estimator: Some(FakeEstimator(world.clone())),
            learner: Some(FakeLearner { world: world.clone(), open: None, left: 0 }),
            log: Some(FakeLog { world, steps: Arc::clone(log) }),
            waiting: Vec::new(),
        }
    }
}

pub type FakePorts = Ports<FakePrompts, FakeGenerator, FakeScorer, FakeEstimator, FakeLearner, FakeLog>;

pub struct FakePrompts {
    pub world: World,
}

impl Prompts for FakePrompts {
    fn prompt(&mut self, number: u64) -> Result<Option<Prompt>, Fault> {
        self.world.call(Call::Prompts)?;
        let bin = number % self.world.bins;
        let drawn_success = self.world.known.lock().unwrap().get(&bin).map(|rate| rate.share() as f32);
        Ok((number < self.world.prompts).then(|| Prompt { id: number, bin, drawn_success, ..Prompt::default() }))
    }

    fn learned(&mut self, bin: u64, rate: Rate) -> Result<(), Fault> {
        self.world.call(Call::Learned)?;
        self.world.known.lock().unwrap().insert(bin, rate);
        Ok(())
    }
}

pub struct FakeGenerator {
    world: World,
    version: Version,
    slots: usize,
    sequences: Vec<Rollout>,
    refused: Vec<Rollout>,
}

impl Generator for FakeGenerator {
    type Weights = u64;

    fn load(&mut self, version: Version, weights: u64) -> Result<(), Fault> {
        self.world.call(Call::Load)?;
        assert_eq!(version, weights, "a version travels with its own weights");
        self.version = version;
        Ok(())
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        self.world.call(Call::Start)?;
        assert!(self.version >= group.oldest, "guard 4");
        let refused = self.world.percent(1, group.number, 0, self.world.refused);
        for sample in 0..group.size {
            let mut rollout = Rollout { group: Arc::clone(&group), sample, ..Rollout::default() };
            if refused {
                rollout.stop = Stop::Refused;
                rollout.status = Status::Discarded(Reason::BadPrompt("planted".to_owned()));
                self.refused.push(rollout);
            } else {
                self.sequences.push(rollout);
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        self.world.call(Call::Decode)?;
        let mut ended = std::mem::take(&mut self.refused);
        for rollout in self.sequences.iter_mut().take(self.slots) {
            rollout.tokens.push(7);
            rollout.mask.push(true);
            rollout.logp_behavior.push(-1.0);
            rollout.version.push(self.version);
        }
        let (world, longest) = (&self.world, self.world.longest);
        let over =
            |r: &mut Rollout| r.tokens.len() as u64 > draw(&[world.seed, 2, r.group.number, u64::from(r.sample)]) % longest;
        ended.extend(self.sequences.extract_if(.., over));
        Ok(ended)
    }

    fn running(&self) -> usize {
        self.sequences.len() + self.refused.len()
    }
}

pub struct FakeScorer(World);

impl Scorer for FakeScorer {
    fn score(&mut self, mut rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        self.0.call(Call::Score)?;
        assert!(rollout.trainable());
        let (number, sample) = (rollout.group.number, u64::from(rollout.sample));
        if self.0.percent(3, number, sample, self.0.unscored) {
            rollout.reward_error = Some("planted".to_owned());
        } else {
            rollout.reward = Some((draw(&[self.0.seed, 4, number, sample]) % 2) as f32);
        }
        Ok(Some(rollout))
    }
}

pub struct FakeEstimator(World);

impl Estimator for FakeEstimator {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        self.0.call(Call::Estimate)?;
        assert!(rollouts.iter().zip(0..).all(|(rollout, sample)| rollout.sample == sample), "in order of sample");
        for rollout in rollouts.iter_mut() {
            rollout.advantage = vec![0.5; rollout.tokens.len()];
            if rollout.reward.is_none() && rollout.trainable() {
                rollout.status = Status::Discarded(Reason::NoReward);
            }
        }
        Ok(self.0.percent(5, rollouts[0].group.number, 0, self.0.discarded).then_some(Reason::ZeroVariance))
    }
}

pub struct FakeLearner {
    world: World,
    open: Option<(Step, Vec<Rollout>)>,
    left: u64,
}

impl Learner for FakeLearner {
    type Weights = u64;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.left = self.world.pieces;
        self.open = Some((step, batch));
        self.world.call(Call::Begin)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        self.open.take().map(|(_, batch)| batch).unwrap_or_default()
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        self.world.call(Call::Work)?;
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Ok(None);
        }
        let (step, batch) = self.open.take().expect("work follows begin");
        self.world.done.store(step, Ordering::SeqCst);
        Ok(Some(Trained { batch, metrics: Metrics::default() }))
    }

    fn weights(&mut self) -> Result<u64, Fault> {
        self.world.call(Call::Weights)?;
        Ok(self.world.done.load(Ordering::SeqCst))
    }
}

pub struct FakeLog {
    pub world: World,
    pub steps: Arc<Mutex<Vec<SealedStep>>>,
}

impl Log for FakeLog {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        self.world.call(Call::Seal)?;
        let ahead = (self.world.done.load(Ordering::SeqCst) + 1).saturating_sub(step.step);
        assert!(ahead <= AHEAD, "the learner is {ahead} steps ahead of the log at step {}", step.step);
        self.world.ahead.fetch_max(ahead, Ordering::SeqCst);
        self.steps.lock().unwrap().push(step);
        Ok(())
    }
}

/// What a run left.
#[derive(Debug)]
pub struct Outcome {
    pub sealed: Vec<SealedStep>,
    pub notices: Vec<Notice>,
    pub counts: Snapshot,
}

impl Outcome {
    pub fn faults(&self) -> Vec<&Fault> {
        self.notices.iter().filter_map(|notice| if let Notice::Fault(fault) = notice { Some(fault) } else { None }).collect()
    }

    /// Steps that trained.
    pub fn steps(&self) -> Vec<&SealedStep> {
        self.sealed.iter().filter(|step| step.metrics.is_some()).collect()
    }

    pub fn rollouts(&self) -> impl Iterator<Item = &Rollout> {
        self.sealed.iter().flat_map(|step| &step.rollouts)
    }
}

/// Runs `logic` on each of `workers` timely threads and then lets the dataflows end. Fails the test if that hangs.
pub fn on_workers<T: Send + 'static>(
    workers: usize,
    what: &str,
    logic: impl Fn(&mut timely::worker::Worker) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let guards = timely::execute(timely::Config::process(workers), logic).unwrap();
        let _ = ended.send(guards.join().into_iter().collect::<Result<Vec<_>, _>>());
    });
    let ended = end.recv_timeout(Duration::from_secs(20));
    ended.unwrap_or_else(|_| panic!("hangs on {workers} workers: {what}")).expect("no worker panics")
}

/// Runs the plan in the world on `workers` threads; `each` runs after every worker step.
pub fn run(
    plan: &Plan,
    world: &World,
    workers: usize,
    halt: &Halt,
    each: impl Fn(usize, &Probes) + Send + Sync + 'static,
) -> Outcome {
    run_with(plan, world, workers, halt, |_, ports| ports, each)
}

/// The same, with some of the ports changed on some workers.
pub fn run_with<S: Scorer + 'static, L: Learner<Weights = u64> + 'static>(
    plan: &Plan,
    world: &World,
    workers: usize,
    halt: &Halt,
    change: impl Fn(usize, FakePorts) -> Ports<FakePrompts, FakeGenerator, S, FakeEstimator, L, FakeLog> + Send + Sync + 'static,
    each: impl Fn(usize, &Probes) + Send + Sync + 'static,
) -> Outcome {
    world.done.store(plan.start.version, Ordering::SeqCst);
    let what = format!("{plan:?}, {world:?}");
    let log = Arc::new(Mutex::new(Vec::new()));
    let census = world.census.clone();
    let (told, notices) = mpsc::channel();
    let (plan, world, halt, steps, counts) = (plan.clone(), world.clone(), halt.clone(), Arc::clone(&log), census.clone());
    let told = Mutex::new(told);
    on_workers(workers, &what, move |worker| {
        let told = told.lock().unwrap().clone();
        let observe = move |notice| told.send(notice).unwrap();
        let ports = change(worker.index(), world.ports(&steps, plan.slots));
        let probes = worker.dataflow(|scope| dataflow(scope, &plan, ports, &halt, &counts, observe));
        while worker.has_dataflows() {
            worker.step_or_park(None);
            each(worker.index(), &probes);
        }
        assert!(probes.sealed.done() && probes.weights.done());
    });
    let sealed = std::mem::take(&mut *log.lock().unwrap());
    Outcome { sealed, notices: notices.try_iter().collect(), counts: census.snapshot() }
}
