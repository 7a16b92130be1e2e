//! The dataflow against an oracle: on policy it equals a synchronous loop bit for bit, and off policy every rollout can be
//! sampled again from the versions that it recorded.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tidegate::engine::spec::{Learning, LrSchedule, Sampling};
use tidegate::engine::toy::{ToyGenerator, ToyLearner, ToyPrompts, ToyScorer, ToyWeights, resample};
use tidegate::kernel::advantage::{Advantage, group_advantages};
use tidegate_operators::admit::Prompts;
use tidegate_operators::balance::Balance;
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::{Notice, Ports, dataflow};
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::generate::Generator;
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::record::{Group, Reason, Rollout, SealedStep, Status, Step, Version};
use tidegate_operators::schedule::{Schedule, WeightsUpdate};
use tidegate_operators::seal::Log;
use tidegate_operators::start::Start;
use tidegate_operators::train::{Learner, Trained};

const SEED: u64 = 7;

fn sampling(slots: usize) -> Sampling {
    Sampling { slots, max_tokens: 12, ..Sampling::default() }
}

/// A fresh learner. Its rate is high, so that weights a step apart differ in every draw's log-probability.
fn learner(plan: &Plan) -> ToyLearner {
    let lr_schedule = LrSchedule::Constant;
    let learning = Learning { lr: 0.1, warmup_steps: 0, lr_schedule, value_coef: 0.5, ..Learning::default() };
    let learning = Learning { micro_batch_tokens: 40, ..learning };
    ToyLearner::new(ToyWeights::initial(16, SEED), plan.start.version, learning, &sampling(1), plan.steps)
}

/// Leave-one-out advantages; a group whose rewards are all equal is discarded.
struct LeaveOneOut;

impl Estimator for LeaveOneOut {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        let rewards = rollouts.iter().map(|rollout| rollout.reward).collect::<Vec<_>>();
        let estimate = group_advantages(Advantage::LeaveOneOut, &rewards);
        for (rollout, advantage) in rollouts.iter_mut().zip(estimate.advantages) {
            rollout.advantage = vec![advantage; rollout.tokens.len()];
        }
        Ok(estimate.zero_variance.then_some(Reason::ZeroVariance))
    }
}

/// The oracle: one thread, one loop, no overlap. What each step trained, in batch order, and what it discarded, by number.
fn synchronous(plan: &Plan, mut prompts: ToyPrompts) -> Vec<SealedStep> {
    let (mut learner, mut generator) = (learner(plan), ToyGenerator::new(sampling(1), SEED));
    let (mut sealed, mut number) = (Vec::new(), plan.start.next);
    for step in plan.start.version + 1..=plan.steps {
        generator.load(step - 1, learner.weights().unwrap()).unwrap();
        let (mut batch, mut discarded, earlier) = (Vec::new(), Vec::new(), number);
        while batch.len() < (plan.batch_groups * u64::from(plan.group_size)) as usize {
            let Some(prompt) = prompts.prompt(number).unwrap() else { break };
            let (due, oldest, size) = (step, step - 1, plan.group_size);
            let group = Group { number, due, oldest, earlier, size, prompt, ..Group::default() };
            number += 1;
            generator.start(Arc::new(group)).unwrap();
            let mut rollouts = Vec::new();
            while generator.running() > 0 {
                rollouts.extend(generator.step().unwrap());
            }
            rollouts.iter_mut().for_each(|rollout| ToyScorer.reward(rollout));
            match LeaveOneOut.estimate(&mut rollouts).unwrap() {
                None => batch.extend(rollouts),
                Some(reason) => discarded.extend(rollouts.into_iter().map(|rollout| {
                    let status = Status::Discarded(reason.clone());
                    Rollout { status, ..rollout }
                })),
            }
        }
        if batch.is_empty() {
            sealed.extend((!discarded.is_empty()).then_some(SealedStep { step, rollouts: discarded, metrics: None }));
            return sealed;
        }
        learner.begin(step, batch).unwrap();
        let Trained { mut batch, metrics } = loop {
            if let Some(trained) = learner.work().unwrap() {
                break trained;
            }
        };
        batch.iter_mut().for_each(|rollout| rollout.status = Status::Trained);
        batch.extend(discarded);
        sealed.push(SealedStep { step, rollouts: batch, metrics: Some(metrics) });
    }
    sealed
}

/// A log in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<SealedStep>>>);

impl Log for Memory {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        self.0.lock().unwrap().push(step);
        Ok(())
    }
}

/// A learner whose snapshots are all kept.
struct Keeping {
    learner: ToyLearner,
    kept: Arc<Mutex<BTreeMap<Version, ToyWeights>>>,
}

impl Learner for Keeping {
    type Weights = ToyWeights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        self.learner.work()
    }

    fn weights(&mut self) -> Result<ToyWeights, Fault> {
        let weights = self.learner.weights()?;
        let mut kept = self.kept.lock().unwrap();
        let version = kept.len() as Version;
        kept.insert(version, weights.clone());
        Ok(weights)
    }
}

/// What a run left.
struct Ran {
    sealed: Vec<SealedStep>,
    kept: BTreeMap<Version, ToyWeights>,
}

/// The real dataflow with the toy engine, on as many threads as there are workers.
fn run(plan: &Plan, prompts: &ToyPrompts, workers: usize) -> Ran {
    let (log, kept, halt, census) = (Memory::default(), Arc::default(), Halt::default(), Census::new());
    let faults = Arc::new(Mutex::new(Vec::new()));
    let worker_of = {
        let (plan, prompts, log, halt) = (plan.clone(), prompts.clone(), log.clone(), halt.clone());
        let (kept, faults, census) = (Arc::clone(&kept), Arc::clone(&faults), census.clone());
        move |worker: &mut timely::worker::Worker| {
            let faults = Arc::clone(&faults);
            let ports = Ports {
                prompts: Some(prompts.clone()),
                generator: Some(ToyGenerator::new(sampling(plan.slots), SEED)),
                scorer: Some(ToyScorer),
                estimator: Some(LeaveOneOut),
                learner: Some(Keeping { learner: learner(&plan), kept: Arc::clone(&kept) }),
                log: Some(log.clone()),
                waiting: Vec::new(),
            };
            let observe = move |notice| {
                if let Notice::Fault(fault) = notice {
                    faults.lock().unwrap().push(fault.to_string());
                }
            };
            worker.dataflow::<Step, _, _>(|scope| dataflow(scope, &plan, ports, &halt, &census, observe));
        }
    };
    let (over, ended) = mpsc::channel();
    thread::spawn(move || {
        let guards = timely::execute(timely::Config::process(workers), worker_of).unwrap();
        guards.join().into_iter().for_each(|result| result.unwrap());
        over.send(()).unwrap();
    });
    if let Err(why) = ended.recv_timeout(Duration::from_secs(30)) {
        halt.set();
        panic!("{why}; the groups: {:?}", census.snapshot());
    }
    assert_eq!(*faults.lock().unwrap(), Vec::<String>::new());
    assert_eq!(census.snapshot().total().in_flight(), 0, "groups are left");
    let sealed = log.0.lock().unwrap().clone();
    let kept = kept.lock().unwrap().clone();
    Ran { sealed, kept }
}

/// Which workers generate, and which one trains.
const ROLES: [(&[usize], usize); 4] = [(&[0], 0), (&[0], 1), (&[0, 1, 2], 3), (&[3, 1, 0, 2], 1)];

fn plan(max_lag: u64, generators: &[usize], learner: usize) -> Plan {
    Plan {
        start: Start::default(),
        steps: 10,
        batch_groups: 3,
        group_size: 4,
        schedule: Schedule::Pipeline { max_lag },
        weights_update: WeightsUpdate::InFlight,
        order: Order::Arrival,
        short_batch: ShortBatch::Train,
        balance: Balance::Fixed,
        slots: 8,
        generators: generators.to_vec(),
        learner,
        window: 0,
    }
}

fn workers(plan: &Plan) -> usize {
    plan.generators.len().max(plan.learner + 1)
}

/// A row without what depends on the clock or on who did the work. What was discarded has no place in a batch.
fn row(rollout: &Rollout) -> Rollout {
    let mut row = rollout.clone();
    let group = Group { generator: 0, admitted_ns: 0, ..(*row.group).clone() };
    (row.group, row.worker, row.step, row.order) = (Arc::new(group), 0, 0, 0);
    (row.started_ns, row.finished_ns, row.trained_ns) = (0, 0, 0);
    row
}

/// Rows of a step: trained ones in batch order, then discarded ones by number.
fn rows(step: &SealedStep) -> Vec<Rollout> {
    let mut rows = step.rollouts.iter().map(row).collect::<Vec<_>>();
    let trained = rows.iter().filter(|row| row.status == Status::Trained).count();
    rows[trained..].sort_by_key(|row| (row.group.number, row.sample));
    rows
}

/// At `max_lag` 0 all must be as if nothing overlapped, on any number of workers.
///
/// Catches a token sampled under the wrong weights or with another's draw, weights that reach a generator late, a rollout
/// lost, doubled or given to another group, a batch in order of arrival or of the wrong groups, an advantage or a
/// `logp_current` of another rollout, weights published before the step's update, a place that is not given back after a
/// discard, and a short last batch that is left out.
#[test]
fn on_policy_equals_the_synchronous_loop() {
    for limit in [u64::MAX, 40] {
        let prompts = ToyPrompts::new(6, limit);
        let expected = synchronous(&plan(0, &[0], 0), prompts.clone());
        let discarded = expected.iter().flat_map(|step| &step.rollouts).filter(|row| !row.trainable()).count();
        assert!(discarded > 0, "the case has no discards");
        let last = expected.last().and_then(|step| step.metrics.as_ref()).map(|metrics| metrics.rollouts);
        assert_eq!((expected.len(), last), if limit == 40 { (3, Some(4)) } else { (10, Some(12)) }, "the case has changed");
        for (generators, learner) in ROLES {
            let plan = plan(0, generators, learner);
            let ran = run(&plan, &prompts, workers(&plan));
            let steps = ran.sealed.iter().map(|step| step.step).collect::<Vec<_>>();
            assert_eq!(steps, expected.iter().map(|step| step.step).collect::<Vec<_>>());
            for (found, right) in ran.sealed.iter().zip(&expected) {
                for (found, right) in rows(found).iter().zip(&rows(right)) {
                    assert_eq!(found, right, "limit {limit}, generators {generators:?}, learner {learner}");
                }
                assert_eq!(found.rollouts.len(), right.rollouts.len());
                let hashes = |step: &SealedStep| step.metrics.as_ref().map(|metrics| metrics.weights.clone());
                assert_eq!(hashes(found), hashes(right));
            }
        }
    }
}

/// Off policy timing decides which versions sample a rollout, and the row says which: with them it is sampled again bit for
/// bit, whoever sampled it beside whatever else.
///
/// Catches a version that is recorded but did not sample the token (weights that change in place after they are published,
/// or that are swapped inside a decode step), rollouts that share draws or state, and a lag above the bound.
#[test]
fn rollouts_resample_from_their_recorded_versions() {
    let prompts = ToyPrompts::new(6, u64::MAX);
    let mut in_flight = 0;
    for max_lag in 1..=4 {
        for (generators, learner) in ROLES {
            let plan = plan(max_lag, generators, learner);
            let ran = run(&plan, &prompts, workers(&plan));
            assert_eq!(ran.sealed.iter().filter(|step| step.metrics.is_some()).count(), 10);
            let hashes = ran.sealed.iter().filter_map(|step| Some((step.step, step.metrics.as_ref()?.weights.clone())));
            hashes.for_each(|(step, hashes)| assert_eq!(ran.kept[&step].hashes(), hashes, "weights of step {step}"));
            let mut seen = BTreeMap::new();
            for rollout in ran.sealed.iter().flat_map(|step| &step.rollouts) {
                let again = resample(&|version| ran.kept[&version].clone(), rollout, &sampling(1), SEED);
                assert_eq!(&again, rollout, "max_lag {max_lag}, generators {generators:?}, learner {learner}");
                *seen.entry((rollout.group.number, rollout.sample)).or_insert(0) += 1;
                in_flight += usize::from(rollout.version.first() != rollout.version.last());
                if rollout.status == Status::Trained {
                    let lags = rollout.version.iter().map(|version| rollout.step - 1 - version);
                    assert!(lags.max() <= Some(max_lag), "{rollout:?}");
                }
            }
            assert!(seen.values().all(|times| *times == 1), "a rollout was sealed twice");
            let groups = seen.keys().map(|(number, _)| number + 1).max().unwrap();
            assert_eq!(seen.len() as u64, groups * 4, "a rollout was lost");
        }
    }
    assert!(in_flight > 0, "no weights changed in flight");
}
