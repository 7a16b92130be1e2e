//! Trains the recorded steps of a log again, from where a learner stands, and judges each.

use crate::engine::contract::Engine;
use crate::engine::spec::Learning;
use crate::error::Result;
use crate::jobs::estimator::GroupEstimator;
use crate::jobs::lent::Lent;
use crate::jobs::progress::Steps;
use crate::jobs::recording::{Expected, Recording};
use crate::jobs::reference::{Referee, Referring};
use crate::jobs::rewards::RewardScorer;
use crate::jobs::verdict::Verdict;
use crate::pipeline;
use crate::spec::Spec;
use crate::store::RunFolder;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_operators::dataflow::ReplayPorts;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::plan::Plan;
use tidegate_operators::record::{Rollout, SealedStep, Step};
use tidegate_operators::schedule::Schedule;
use tidegate_operators::seal::Log;
use tidegate_operators::start::Start;
use tidegate_operators::train::{Learner, Trained};

/// What to train again.
pub struct Retrace<'a> {
    pub folder: &'a RunFolder,
    pub spec: &'a Spec,
    /// Changes to what each step was trained with.
    pub sets: &'a [String],
    /// The steps that are done; those after it up to `last` are trained.
    pub after: Step,
    pub last: Step,
}

impl Retrace<'_> {
    /// Trains, each step with the specification that it was recorded under, on `threads` threads; a halt leaves the rest.
    ///
    /// # Errors
    /// A log that cannot be listed; workers that cannot be started. What went wrong on the way is among the faults.
    pub fn train<E>(
        &self,
        learner: Lent<E::Learner>,
        referee: Referee<E::Frozen, E::Weights>,
        verdict: Verdict,
        halt: &Halt,
        threads: u16,
    ) -> Result<(Verdict, Vec<Fault>)>
    where
        E: Engine + 'static,
    {
        let Retrace { folder, spec, sets, after, last } = *self;
        // Whatever was trained is trained: only sizes count of the plan.
        let schedule = Schedule::Pipeline { max_lag: 0 };
        let plan =
            Plan { start: Start::at(after, 0), schedule, steps: last, generators: vec![0], learner: 0, ..spec.plan() };
        let recording = Recording::open(folder, after + 1..=last)?;
        let expected = recording.expected();
        let then = Then { expected: expected.clone(), sets: sets.to_vec(), now: Default::default() };
        let learner = Following::<E> { learner, then: then.clone() };
        let mut then = then;
        let learner = Referring::around(spec, referee, learner)
            .following(Box::new(move |step| Ok(then.at(step)?.map(|(learning, _)| learning))));
        let verdict = Arc::new(Mutex::new(verdict));
        let log = Judge { verdict: Arc::clone(&verdict), expected, shown: Steps::new(last) };
        let ports = ReplayPorts {
            recorded: Some(recording),
            scorer: Some(RewardScorer::of_replay(&spec.reward)?),
            estimator: Some(GroupEstimator::of_replay(spec)),
            learner: Some(learner),
            log: Some(log),
        };
        let report = pipeline::replay(&plan, ports, halt, move |_| E::set_threads(threads))?;
        let verdict = std::mem::take(&mut *verdict.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((verdict, report.faults))
    }
}

/// What each step was trained with.
#[derive(Clone)]
struct Then {
    expected: Expected,
    sets: Vec<String>,
    /// Text of the specification that is followed now, and the size of micro-batches.
    now: (String, [u64; 2]),
}

impl Then {
    /// How a step was learned, and towards how many steps, where that is not as the step before.
    fn at(&mut self, step: Step) -> Result<Option<(Learning, Step)>, Fault> {
        let Some(then) = self.expected.trained(step).filter(|then| *then != self.now) else { return Ok(None) };
        let mut spec = Spec::from_text(&then.0, &self.sets).map_err(|e| Fault::new("recorded", e))?;
        // A sum's last bits are those of the micro-batches that memory allowed then.
        if !self.sets.iter().any(|set| set.contains("micro_batch_tokens")) {
            let learn = &mut spec.learn;
            let keys = [&mut learn.micro_batch_tokens, &mut learn.critic.micro_batch_tokens];
            keys.into_iter().zip(then.1).filter(|(_, then)| *then > 0).for_each(|(key, then)| *key = then as usize);
        }
        self.now = then;
        Ok(Some((spec.learn, spec.steps)))
    }
}

/// A learner that learns each step as the run did then: a run that goes on may do so with other rates.
struct Following<E: Engine> {
    learner: Lent<E::Learner>,
    then: Then,
}

impl<E: Engine> Learner for Following<E> {
    type Weights = E::Weights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        if let Some((learning, steps)) = self.then.at(step)? {
            E::relearn(self.learner.get()?, &learning, steps);
        }
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        self.learner.work()
    }

    fn weights(&mut self) -> Result<E::Weights, Fault> {
        self.learner.weights()
    }
}

/// The log of a replay: compares each step with what was recorded, and writes nothing.
struct Judge {
    verdict: Arc<Mutex<Verdict>>,
    expected: Expected,
    shown: Steps,
}

impl Log for Judge {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        let Some(metrics) = &step.metrics else { return Ok(()) };
        let recorded = self.expected.take(step.step);
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        self.shown.show(step.step, &format!("loss {:.6}", metrics.loss));
        match verdict.judge(&step, metrics, recorded.as_ref()) {
            None => Ok(()),
            Some(difference) => Err(Fault::new("replay", difference.what)),
        }
    }
}
