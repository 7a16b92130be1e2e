//! `resume`: go on with a run that was stopped, killed, or that failed.

use crate::engine::contract::Engine;
use crate::error::{Error, Result};
use crate::jobs::course::Course;
use crate::jobs::recovery::{Bits, recover};
use crate::jobs::reference;
use crate::jobs::run::{plan, torch, toy};
use crate::jobs::{Output, curriculum, say, signals, told};
use crate::spec::{EngineKind, Spec};
use crate::store::ledger::State;
use crate::store::{LogReader, RunFolder, read_json_rows};
use crate::tasks::item::Item;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to go on with.
#[derive(Clone, Debug)]
pub struct Options {
    pub run: PathBuf,
    /// Changes to the run's specification.
    pub sets: Vec<String>,
    pub bits: Bits,
    pub output: Output,
}

/// Goes on with a run from its last sealed step.
///
/// # Errors
/// A folder that holds no run, or one that another process writes into; a change to the specification that a run cannot take in
/// its middle; as [`run`](crate::jobs::run::run).
pub fn resume(options: &Options) -> Result<()> {
    let viewed = RunFolder::view(&options.run)?;
    let lock = viewed.lock()?;
    let folder = RunFolder::open(&options.run)?;
    let mut spec = specification(&folder, &options.sets)?;
    // The folder may have been moved since.
    folder.path().clone_into(&mut spec.output);
    let result = match spec.model.engine {
        EngineKind::Torch => go_on(&folder, spec, options, torch),
        EngineKind::Toy => go_on(&folder, spec, options, toy),
    };
    drop(lock);
    result
}

fn go_on<E>(
    folder: &RunFolder,
    spec: Spec,
    options: &Options,
    open: impl Fn(&Spec, Option<&Path>) -> Result<E>,
) -> Result<()>
where
    E: Engine + 'static,
{
    let sealed = folder.sealed_steps()?.len() as u64;
    if sealed > spec.steps {
        return Err(Error::config("steps", spec.steps, format!("{sealed} steps are done already")));
    }
    if sealed == spec.steps && is_finished(folder)? {
        let why = format!("all of them are done; to train further, --set steps={}", sealed + sealed.max(1));
        return Err(Error::config("steps", spec.steps, why));
    }
    let interrupt = signals::halt_on_signals()?;
    let recovered = recover(&spec, folder, options.bits, &interrupt.halt, |at| open(&spec, at));
    let (engine, mut origin) = match (recovered, interrupt.signal()) {
        (Err(_), Some(signal)) => return Err(Error::Signal(signal)),
        (recovered, _) => recovered?,
    };
    E::relearn(&mut origin.learner, &spec.learn, spec.steps);
    let mut course = Course::new(spec, &engine)?;
    same_prompts(folder, &mut course)?;
    let outcomes = curriculum::outcomes(&course.spec, &LogReader::open(folder)?, &origin.start, course.prompts.source())?;
    origin.start.outcomes = Arc::new(outcomes);
    folder.write_spec(&course.spec.to_text())?;
    say(plan(&course.spec, &engine));
    reference::described(&course.spec).into_iter().for_each(say);
    let (start, waiting) = (&origin.start, origin.waiting.len());
    say(format_args!(
        "resume    after step {} of {}: {waiting} groups wait, {} are sampled again, new ones from number {}",
        start.version,
        course.spec.steps,
        start.again.len(),
        start.next
    ));
    course.run(engine, origin, folder, &interrupt, options.output)
}

/// The prompts must be those that the log has for its groups: looked at in the first and the last step.
fn same_prompts(folder: &RunFolder, course: &mut Course) -> Result<()> {
    let mut log = LogReader::open(folder)?;
    let steps: Vec<_> = log.steps().collect();
    let ends: Vec<_> = steps.first().into_iter().chain(steps.last()).copied().collect();
    for step in ends {
        for group in log.step(step)?.rollouts.iter().filter(|row| row.sample == 0).map(|row| &row.group) {
            let now = curriculum::again(&course.spec, group.number, &group.prompt, &mut course.prompts)?;
            let then = &group.prompt;
            let same = |(epoch, item): &(u32, Item)| {
                item.refused.is_some() || (*epoch, item.id, &item.text) == (then.epoch, then.id, &then.text)
            };
            if !now.as_ref().is_some_and(same) {
                let file = course.spec.data.as_ref().map_or_else(|| "task".into(), |data| data.file.display().to_string());
                let why = format!(
                    "group {} had prompt {} of it, {:?}, and would have another now",
                    group.number, then.id, then.text
                );
                return Err(Error::config("data.file", file, format!("{why}: these are not the prompts of the run")));
            }
        }
    }
    Ok(())
}

/// Whether a run whose steps are done also has all that is written after the last one.
fn is_finished(folder: &RunFolder) -> Result<bool> {
    let sealed = folder.sealed_steps()?;
    let kept = sealed.last().is_some_and(|last| State::read(&folder.checkpoint(*last)).is_ok());
    let derived = read_json_rows(&folder.metrics()).is_ok_and(|rows| rows.count() == sealed.len());
    Ok(kept && derived)
}

/// The keys that a run can take in its middle, as help and errors tell them.
pub fn changeable() -> String {
    format!("{}; but not {}", told(&HARMLESS), told(&FIXED))
}

/// Without a critic there are no values, with one there must be; what is trained again is computed in one type throughout; a
/// checkpoint has the reference that its step had; and a prompt is the source's next one or one that was drawn.
const FIXED: [&str; 8] = [
    "learn.value_coef",
    "learn.critic.model",
    "learn.critic.path",
    "learn.critic.alone_steps",
    "learn.dtype",
    "learn.reference.path",
    "learn.reference.refresh_steps",
    "curriculum.kind",
];

/// What a run can take in its middle, by how keys begin. Of the others each would make one run out of two: other rewards, another
/// bound, other batches, other draws.
const HARMLESS: [&str; 24] = [
    "steps",
    "checkpoint.",
    "curriculum.",
    "eval.",
    "estimate.discard_limit",
    "estimate.refill_limit",
    "generate.slots",
    "generate.time_limit_s",
    "learn.",
    "metrics.",
    "reward.batch",
    "reward.command",
    "reward.connections",
    "reward.env",
    "reward.failure_limit",
    "reward.headers",
    "reward.processes",
    "reward.retries",
    "reward.start_limit_s",
    "reward.time_limit_s",
    "reward.url",
    "workers.balance",
    "workers.generators",
    "workers.generator_threads",
];

/// What is wrong with a folder without `spec.toml`.
fn without_specification(folder: &RunFolder) -> Error {
    let why = match folder.sealed_steps().map(|steps| steps.len()) {
        Ok(0) => {
            "the run was ended before it wrote its spec.toml, so it has no sealed step and nothing to go on with; start it \
                  anew: tidegate run SPEC.toml"
                .to_owned()
        }
        Ok(steps) => {
            format!(
                "its spec.toml is gone; the footer of each of its {steps} steps in rollouts/ keeps the text, as tidegate.spec"
            )
        }
        Err(error) => return error,
    };
    Error::file(folder.path(), why)
}

/// What a specification has at a key: its value, the keys below it, or the value in whose place it stands.
fn shown(keys: &BTreeMap<String, String>, key: &str) -> String {
    if let Some(value) = keys.get(key) {
        return value.clone();
    }
    let inside = format!("{key}.");
    let below = keys.range(inside.clone()..).map_while(|(name, value)| Some((name.strip_prefix(&inside)?, value)));
    let below: Vec<String> = below.map(|(name, value)| format!("{name} = {value}")).collect();
    if !below.is_empty() {
        return format!("{{ {} }}", below.join(", "));
    }
    let above = key.match_indices('.').rev().find_map(|(end, _)| keys.get(&key[..end]));
    above.map_or_else(|| "nothing".to_owned(), Clone::clone)
}

/// The run's specification, changed by `spec.toml` (if somebody edited it) and by `sets`; against that of the last sealed step.
fn specification(folder: &RunFolder, sets: &[String]) -> Result<Spec> {
    let path = folder.spec();
    let text = fs::read_to_string(&path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => without_specification(folder),
        _ => Error::file(&path, e),
    })?;
    let spec = Spec::from_text(&text, sets)?;
    if let Some(set) = sets.iter().find(|set| set.split('=').next().is_some_and(|key| key.trim() == "output")) {
        return Err(Error::config("--set", set, "a run that goes on stays in its folder; move the folder if you like"));
    }
    let mut log = LogReader::open(folder)?;
    let Some(last) = log.steps().last() else {
        if !sets.is_empty() {
            say("note      nothing is trained yet: the run begins with what is set");
        }
        return Ok(spec);
    };
    let recorded = Spec::from_text(&log.footer(last)?.info.spec, &[])?;
    let (threads, were) = (spec.learner_threads(), recorded.learner_threads());
    if threads != were {
        let why = format!("the learner's worker had {were} threads, and other bits come out of {threads}");
        return Err(Error::config("workers", format!("{threads} threads"), why));
    }
    let (recorded, now) = (recorded.keys(), spec.keys());
    let mut changed = BTreeSet::new();
    for key in recorded.keys().chain(now.keys()).filter(|key| *key != "output") {
        if recorded.get(key) == now.get(key) {
            continue;
        }
        let (then, now) = (shown(&recorded, key), shown(&now, key));
        if HARMLESS.iter().any(|harmless| key.starts_with(harmless)) && !FIXED.contains(&key.as_str()) {
            changed.insert(format!("changed   {key}: {now} now, {then} before"));
            continue;
        }
        let why = format!("the run has {then} and cannot change it in its middle; it can change {}", changeable());
        return Err(Error::config(key, now, why));
    }
    changed.into_iter().for_each(say);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a key that changed its shape and is told as one that nothing stands for.
    #[test]
    fn a_value_of_another_shape_is_told() {
        let spec = |set: &str| {
            let text = "model.engine = \"toy\"\n[learn]\nvalue_coef = 0.1\n[[task]]\nkind = \"sorting\"\n";
            Spec::from_text(text, &[set.to_owned()]).unwrap().keys()
        };
        let (name, table) =
            (spec("estimate.advantage=leave_one_out"), spec("estimate.advantage={gae={gamma=0.5,lambda=0.25}}"));
        let key = "estimate.advantage";
        assert_eq!(
            (shown(&name, key).as_str(), shown(&table, key).as_str()),
            ("\"leave_one_out\"", "{ gae.gamma = 0.5, gae.lambda = 0.25 }")
        );
        assert_eq!(shown(&name, "estimate.advantage.gae.gamma"), "\"leave_one_out\"");
        assert_eq!(
            (shown(&table, "estimate.advantage.gae.gamma").as_str(), shown(&name, "data").as_str()),
            ("0.5", "nothing")
        );
    }
}
