//! `eval`: how well a model answers prompts, and how sure that is.

use crate::engine::contract::Engine;
use crate::engine::spec::Sampling;
use crate::error::{Error, Result};
use crate::jobs::data::Data;
use crate::jobs::eval::report::{Answers, Report};
use crate::jobs::eval::subject::Subject;
use crate::jobs::eval::{Evaluator, held_out};
use crate::jobs::progress::Answered;
use crate::jobs::rewards::Rewards;
use crate::jobs::run::{torch, toy};
use crate::jobs::signals::{self, Interrupt};
use crate::jobs::{Output, print, say};
use crate::spec::EngineKind;
use crate::store::layout::LogFile;
use crate::store::{FooterInfo, write_rollouts};
use crate::tasks::prompts::Use;
use rustix::fs::{Access, access};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tidegate_operators::record::{Group, Rollout, now_ns};

/// What to evaluate, on what, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// A model's folder, a run's (its newest checkpoint), or that of one of its checkpoints; None: the specification names it.
    pub model: Option<PathBuf>,
    /// A specification, or a run that has one; None: that of the run that `model` belongs to, or none.
    pub spec: Option<PathBuf>,
    /// Changes to the specification.
    pub sets: Vec<String>,
    /// Generated tasks, by name, in place of the specification's prompts.
    pub tasks: Vec<String>,
    /// The file of prompts that one of `sets` names, where one does.
    pub data: Option<PathBuf>,
    /// Most prompts.
    pub prompts: Option<usize>,
    /// Rollouts a prompt.
    pub samples: Option<u32>,
    /// For which k pass@k is told; none: 1, and all rollouts of a prompt.
    pub ks: Vec<u64>,
    /// libtorch threads.
    pub threads: Option<u16>,
    /// Where the rollouts are kept.
    pub rollouts: Option<PathBuf>,
    pub output: Output,
}

/// Evaluates and prints what it came to. The rollouts are in memory only where they are to be kept.
///
/// # Errors
/// What is named not being there, or not as it must be; a device that refuses; no answer that has a reward; rewards from outside
/// that fail; a disk that refuses; a signal, after which there is no result.
pub fn eval(options: &Options) -> Result<()> {
    let subject = Subject::choose(options)?;
    options.rollouts.as_deref().map_or(Ok(()), may_be_written)?;
    let interrupt = signals::listen("ending; an evaluation that is not done has no result", "")?;
    let folder = subject.folder.as_deref();
    match subject.spec.model.engine {
        EngineKind::Torch => answer(torch(&subject.spec, folder)?, &subject, options, &interrupt),
        EngineKind::Toy => answer(toy(&subject.spec, folder)?, &subject, options, &interrupt),
        EngineKind::Emulation => {
            let why = "emulated accelerators answer nothing; allowed: torch, toy";
            Err(Error::config("model.engine", "emulation", why))
        }
    }
}

fn answer<E: Engine>(mut engine: E, subject: &Subject, options: &Options, interrupt: &Interrupt) -> Result<()> {
    let spec = &subject.spec;
    engine.notes().iter().for_each(|note| say(format_args!("note      {note}")));
    E::set_threads(subject.threads);
    let rewards = Rewards::start(&spec.reward)?;
    let groups = prompts(&engine, subject, &rewards)?;
    // An answer ends with the model's longest sequence, whatever more was asked for.
    let max_tokens = spec.generate.max_tokens.min(engine.longest().saturating_sub(1));
    let sampling = Sampling { max_tokens, ..spec.generate.clone() };
    let mut evaluator = Evaluator::sampling(&groups, &engine, &sampling, &rewards, spec.seed)?;
    let weights = engine.snapshot()?;
    // The generator has them now.
    engine.release_weights();
    let asked = groups.len() as u64 * u64::from(subject.samples);
    let (mut answers, mut kept) = (Answers::default(), Vec::new());
    let mut shown = Answered::new(asked);
    let started = Instant::now();
    let done = evaluator.answer(subject.version, weights, &interrupt.halt, |rollouts| {
        rollouts.iter().for_each(|rollout| answers.add(rollout));
        if options.rollouts.is_some() {
            kept.extend(rollouts);
        }
        shown.show(answers.done(), || answers.so_far(started.elapsed().as_secs_f64()));
    });
    let seconds = started.elapsed().as_secs_f64();
    shown.finish();
    done?;
    if let Some(signal) = interrupt.signal() {
        say(format_args!("stopped after {} of {asked} answers, without a result", answers.done()));
        return Err(Error::Signal(signal));
    }
    if let Some((count, why)) = answers.unscored() {
        if answers.says_nothing() {
            let place = spec.data.as_ref().map_or(Path::new("task"), |data| data.file.as_path());
            return Err(Error::file(place, format!("none of {count} answers has a reward: {why}")));
        }
        say(format_args!("note      {count} of {asked} answers have no reward; the first: {why}"));
    }
    let (tasks, total) = answers.report(&subject.ks);
    let mut report = Report {
        model: subject.folder.clone().or_else(|| engine.folder().map(Path::to_owned)),
        described: engine.describe(),
        version: subject.version,
        model_hash: engine.identity().model,
        data: spec.data.as_ref().map(|data| data.file.clone()),
        samples: subject.samples,
        seed: spec.seed,
        device: spec.model.device.clone(),
        threads: subject.threads,
        generate: sampling,
        seconds,
        tokens_per_s: answers.tokens() as f64 / seconds.max(1e-9),
        tasks,
        total,
        rollouts: options.rollouts.clone(),
    };
    let written = options.rollouts.as_deref().map_or(Ok(()), |path| keep(path, &engine, subject, kept));
    if written.is_err() {
        report.rollouts = None;
    }
    match options.output {
        Output::Text => print(&report)?,
        Output::Json => print(serde_json::to_string(&report).unwrap_or_default())?,
    }
    written
}

/// The prompts as groups, in their order.
fn prompts<E: Engine>(engine: &E, subject: &Subject, rewards: &Rewards) -> Result<Vec<Arc<Group>>> {
    let Subject { spec, version, samples, .. } = subject;
    let model = engine.folder().unwrap_or(&spec.model.path);
    let data = Data { file: None, tasks: &spec.task, model, purpose: Use::Rollouts };
    let items = data.evaluation(spec.data.as_ref(), spec.eval.prompts, rewards.rule())?;
    let groups = held_out(items, engine, spec.data.as_ref())?;
    let admitted_ns = now_ns();
    let of_all = |group: Arc<Group>| {
        let group = Arc::unwrap_or_clone(group);
        Arc::new(Group { size: *samples, due: version + 1, oldest: *version, admitted_ns, ..group })
    };
    Ok(groups.into_iter().map(of_all).collect())
}

/// Writes the rollouts, in the order of prompts and samples whenever they came.
fn keep<E: Engine>(path: &Path, engine: &E, subject: &Subject, mut rollouts: Vec<Rollout>) -> Result<()> {
    rollouts.sort_by_key(|rollout| (rollout.group.number, rollout.sample));
    let step = subject.version + 1;
    for (rollout, order) in rollouts.iter_mut().zip(0..) {
        (rollout.step, rollout.order) = (step, order);
    }
    let identity = engine.identity();
    let info = FooterInfo {
        spec: subject.spec.to_text(),
        model: identity.model,
        tokenizer: identity.tokenizer,
        ..FooterInfo::default()
    };
    write_rollouts(path, step, info, &rollouts)
}

/// Before anything is sampled: whether the rollouts can be kept there.
fn may_be_written(path: &Path) -> Result<()> {
    let refuse = |why: String| Err(Error::config("--rollouts", path.display(), why));
    if path.extension().is_none_or(|extension| extension != "parquet") {
        return refuse("a file whose name ends in .parquet".to_owned());
    }
    if LogFile::from_path(path).is_some() {
        return refuse("a name that a run's log has for files of its own; choose another".to_owned());
    }
    if path.exists() {
        return refuse("exists already; choose another name".to_owned());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return refuse(format!("there is no folder {}", folder.display()));
    }
    let may = access(folder, Access::WRITE_OK | Access::EXEC_OK);
    may.or_else(|e| refuse(format!("nothing can be written in {}: {}", folder.display(), io::Error::from(e))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Catches a result of hours that has nowhere to go, and one that takes another's place.
    #[test]
    fn where_rollouts_cannot_be_kept_is_told_first() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("there.parquet"), "").unwrap();
        for (name, why) in [
            ("a.jsonl", "a file whose name ends in .parquet"),
            ("step-00000007.parquet", "a name that a run's log has for files of its own; choose another"),
            ("there.parquet", "exists already; choose another name"),
            ("none/a.parquet", "there is no folder "),
        ] {
            let path = dir.path().join(name);
            let refused = may_be_written(&path).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("--rollouts = {}: {why}", path.display())), "{refused}");
        }
        may_be_written(&dir.path().join("new.parquet")).unwrap();
        may_be_written(Path::new("new-and-not-there.parquet")).unwrap();
    }
}
