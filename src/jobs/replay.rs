//! `replay`: train again from recorded rollouts, and compare, or ask what another loss would have done.

use crate::engine::torch::device;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::policy::Policy;
use crate::error::{Error, Result};
use crate::jobs::ports::{Baseline, GroupEstimator};
use crate::jobs::progress::Steps;
use crate::jobs::recording::{Expected, Recording};
use crate::jobs::rewards::RewardScorer;
use crate::jobs::verdict::{Check, Verdict, WhatIf};
use crate::jobs::{Output, say};
use crate::pipeline;
use crate::spec::{EstimateSpec, Spec, ZeroVariance};
use crate::store::layout::LogFile;
use crate::store::{Footer, RunFolder, read_footer};
use crate::tasks::spec::Source;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_operators::dataflow::ReplayPorts;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::plan::Plan;
use tidegate_operators::record::SealedStep;
use tidegate_operators::schedule::Schedule;
use tidegate_operators::seal::Log;

/// Whether a model or tokenizer that is not the recorded one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    Required,
    Waived,
}

/// What to replay.
#[derive(Clone, Debug)]
pub struct Options {
    pub run: PathBuf,
    /// Changes to what training reads; with any, nothing is compared.
    pub sets: Vec<String>,
    /// Only the first steps.
    pub steps: Option<u64>,
    pub identity: Identity,
    pub output: Output,
}

/// Keys that a replay reads: others cannot change what recorded tokens teach.
const READ: [&str; 4] = ["learn.", "estimate.", "workers.learner_threads", "model."];

/// Replays a run and prints what it found.
///
/// # Errors
/// A folder that is no run; a model or tokenizer that is not the recorded one; a difference from the recorded run.
pub fn replay(options: &Options) -> Result<()> {
    let folder = RunFolder::view(&options.run)?;
    let footer = first_footer(&folder)?;
    if options.steps == Some(0) {
        return Err(Error::config("--steps", 0, "at least 1 step"));
    }
    for set in &options.sets {
        let key = set.split('=').next().unwrap_or(set).trim();
        if !READ.iter().any(|read| key.starts_with(read)) {
            let why = "not read when recorded rollouts are trained; allowed: learn.*, estimate.*, model.*, workers.learner_threads";
            return Err(Error::config("--set", set, why));
        }
    }
    let spec = Spec::from_text(&footer.info.spec, &options.sets)?;
    if spec.has_critic() && !Spec::from_text(&footer.info.spec, &[])?.has_critic() {
        let why = "the run had no critic, so its rollouts have no values to replay with; allowed: 0";
        return Err(Error::config("learn.value_coef", spec.learn.value_coef, why));
    }
    let head = if spec.has_critic() { ValueHead::Present } else { ValueHead::None };
    let policy = Policy::load(&spec.model.path, &spec.model.device, head)?;
    if options.identity == Identity::Required {
        same(&spec.model.path, "model", &footer.info.model, &policy.hash)?;
        same(&spec.model.path, "tokenizer", &footer.info.tokenizer, policy.tokenizer.hash())?;
    }
    let set_threads = options.sets.iter().any(|set| set.starts_with("workers.learner_threads"));
    let recorded_threads = u16::try_from(footer.info.learner_threads).unwrap_or(1);
    let threads = if set_threads { spec.workers.learner_threads } else { recorded_threads };
    let recorded = folder.sealed_steps()?.len() as u64;
    let steps = options.steps.unwrap_or(recorded).min(recorded);
    // A new place or device of the same model changes nothing by itself; anything else that is set asks "what if".
    let compares = options.sets.iter().all(|set| set.starts_with("model."));
    let rewards = spec.reward.source();
    if rewards == Source::Outside {
        say("rewards   as recorded: they came from outside, and nothing is asked again");
    }
    let verdict =
        if compares { Verdict::Check(Check { rewards, ..Check::default() }) } else { Verdict::WhatIf(WhatIf::default()) };
    let (verdict, faults) = train(&folder, &spec, &policy, steps, threads, verdict)?;
    match (verdict.difference(), faults.into_iter().next()) {
        // What was compared until then is no result.
        (None, Some(fault)) => Err(Error::Fault(fault)),
        (difference, _) => {
            verdict.print(options.output, &options.run)?;
            difference.map_or(Ok(()), |difference| Err(Error::Mismatch(difference)))
        }
    }
}

fn first_footer(folder: &RunFolder) -> Result<Footer> {
    let steps = folder.sealed_steps()?;
    match steps.first() {
        Some(1) => read_footer(&folder.log_file(LogFile::Step(1))),
        Some(step) => Err(Error::file(folder.path(), format!("the log starts at step {step}, a replay needs step 1"))),
        None => Err(Error::file(folder.path(), "holds no sealed step")),
    }
}

fn same(path: &Path, what: &str, recorded: &str, found: &str) -> Result<()> {
    if recorded == found {
        return Ok(());
    }
    let why = format!(
        "the {what}'s hash is {found}, the run recorded {recorded}: not the one it started from (--force replays anyway)"
    );
    Err(Error::file(path, why))
}

fn train(
    folder: &RunFolder,
    spec: &Spec,
    policy: &Policy,
    steps: u64,
    threads: u16,
    verdict: Verdict,
) -> Result<(Verdict, Vec<Fault>)> {
    let plan = Plan { schedule: Schedule::Pipeline { max_lag: 0 }, steps, generators: vec![0], learner: 0, ..spec.plan(0) };
    let recording = Recording::open(folder, steps)?;
    let expected = recording.expected();
    let baseline = if spec.has_critic() { Baseline::Critic } else { Baseline::Group(spec.estimate.advantage) };
    let halt = Halt::default();
    let verdict = Arc::new(Mutex::new(verdict));
    let log = Judge { verdict: Arc::clone(&verdict), expected, shown: Steps::new(steps) };
    // The learning-rate schedule is that of the whole run, however few steps are replayed.
    let learner = policy.learner(&spec.learn, spec.generate.temperature, spec.steps, 0)?;
    let ports = ReplayPorts {
        recorded: Some(recording),
        scorer: Some(RewardScorer::of_replay(&spec.reward)?),
        // Whatever was trained is trained: what a filter would have kept out is not in the recorded batches' place.
        estimator: Some(GroupEstimator::new(&EstimateSpec { zero_variance: ZeroVariance::Keep, ..spec.estimate }, baseline)),
        learner: Some(learner),
        log: Some(log),
    };
    let report = pipeline::replay(&plan, ports, &halt, move |_| device::set_threads(threads))?;
    let verdict = std::mem::take(&mut *verdict.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((verdict, report.faults))
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
