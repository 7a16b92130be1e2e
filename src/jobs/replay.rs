//! `replay`: train again from recorded rollouts, and compare, or ask what another loss would have done.

use crate::engine::contract::Engine;
use crate::engine::reference::Reference;
use crate::error::{Error, Result};
use crate::jobs::lent::Lent;
use crate::jobs::reference::{self, Loaded, Recorded, Referee, Refreshed};
use crate::jobs::retrace::Retrace;
use crate::jobs::run::{torch, toy};
use crate::jobs::verdict::{Check, Verdict, WhatIf};
use crate::jobs::{Output, identity, say, told};
use crate::spec::{EngineKind, Spec};
use crate::store::{Footer, LogReader, RunFolder};
use crate::tasks::spec::Source;
use std::path::{Path, PathBuf};
use tidegate_operators::fault::Halt;

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
const READ: [&str; 4] = ["learn.", "estimate.", "model.", "workers.learner_threads"];

/// Of these, what a replay does not read: it takes the steps that were taken, and stops at none.
const STOPS: &str = "learn.safeguard.stop_";

/// The keys that a replay reads, as help and errors tell them.
pub fn readable() -> String {
    format!("{}; but not {STOPS}*", told(&READ))
}

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
        if !READ.iter().any(|read| key.starts_with(read)) || key.starts_with(STOPS) {
            let why = format!("not read when recorded rollouts are trained; allowed: {}", readable());
            return Err(Error::config("--set", set, why));
        }
    }
    let spec = Spec::from_text(&footer.info.spec, &options.sets)?;
    if spec.has_value_head() && !Spec::from_text(&footer.info.spec, &[])?.has_critic() {
        let why = "the run had no critic, so its rollouts have no values to replay with; allowed: 0, or learn.critic.model = \"separate\"";
        return Err(Error::config("learn.value_coef", spec.learn.value_coef, why));
    }
    match spec.model.engine {
        EngineKind::Torch => retrace(&folder, &footer, &spec, options, torch),
        EngineKind::Toy => retrace(&folder, &footer, &spec, options, toy),
    }
}

fn retrace<E>(
    folder: &RunFolder,
    footer: &Footer,
    spec: &Spec,
    options: &Options,
    open: impl Fn(&Spec, Option<&Path>) -> Result<E>,
) -> Result<()>
where
    E: Engine + 'static,
{
    let engine = open(spec, None)?;
    if options.identity == Identity::Required {
        identity::same(spec, &identity::recorded(&footer.info), &engine.identity())?;
    }
    let set_threads = options.sets.iter().any(|set| set.starts_with("workers.learner_threads"));
    let recorded_threads = u16::try_from(footer.info.learner_threads).unwrap_or(1);
    let threads = if set_threads { spec.workers.learner_threads } else { recorded_threads };
    let recorded = folder.sealed_steps()?.len() as u64;
    let last = options.steps.unwrap_or(recorded).min(recorded);
    // A new place or device of the same model changes nothing by itself; anything else that is set asks "what if".
    let compares = options.sets.iter().all(|set| set.starts_with("model."));
    let rewards = spec.reward.source();
    if rewards == Source::Outside {
        say("rewards   as recorded: they came from outside, and nothing is asked again");
    }
    let verdict =
        if compares { Verdict::Check(Check { rewards, ..Check::default() }) } else { Verdict::WhatIf(WhatIf::default()) };
    // The learning-rate schedule is that of the whole run, however few steps are replayed.
    let learner = engine.learner(&spec.learn, &spec.generate, spec.steps, 0)?;
    let retrace = Retrace { folder, spec, sets: &options.sets, after: 0, last };
    let referee = if compares { Referee::default() } else { referee(footer, spec, &engine, open)? };
    let (verdict, faults) = retrace.train::<E>(Lent::new(learner).0, referee, verdict, &Halt::default(), threads)?;
    match (verdict.difference(), faults.into_iter().next()) {
        // What was compared until then is no result.
        (None, Some(fault)) => Err(Error::Fault(fault)),
        (difference, _) => {
            verdict.print(options.output, &options.run)?;
            difference.map_or(Ok(()), |difference| Err(Error::Mismatch(difference)))
        }
    }
}

/// The reference of a replay that asks what if. What the log has of it is taken, where it is of the same one.
fn referee<E: Engine>(
    footer: &Footer,
    spec: &Spec,
    engine: &E,
    open: impl Fn(&Spec, Option<&Path>) -> Result<E>,
) -> Result<Referee<E::Frozen, E::Weights>> {
    let (frozen, hash) = reference::frozen(spec, engine, Loaded::First, &Refreshed::default(), |folder| open(spec, folder))?;
    let was = Spec::from_text(&footer.info.spec, &[])?.learn.reference;
    // One that is refreshed depends on what is trained.
    let same = |a: &Reference, b: &Reference| a.path == b.path && [a.refresh_steps, b.refresh_steps] == [0, 0];
    let recorded = if same(&was, &spec.learn.reference) && [&hash, ""].contains(&footer.info.reference.as_str()) {
        Recorded::Kept
    } else {
        Recorded::Dropped
    };
    Ok(Referee { frozen, recorded, ..Referee::default() })
}

fn first_footer(folder: &RunFolder) -> Result<Footer> {
    let mut log = LogReader::open(folder)?;
    let first = log.steps().next();
    match first {
        Some(1) => log.footer(1),
        Some(step) => Err(Error::file(folder.path(), format!("the log starts at step {step}, a replay needs step 1"))),
        None => Err(Error::file(folder.path(), "holds no sealed step")),
    }
}
