//! `run`: train a model with reinforcement learning.

use crate::engine::contract::Engine;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::policy::Policy;
use crate::engine::toy::ToyEngine;
use crate::error::{Error, Result};
use crate::jobs::course::Course;
use crate::jobs::critic::engine::{FOLDER, WithCritic};
use crate::jobs::emulation;
use crate::jobs::preflight::{self, Disk};
use crate::jobs::recovery::Origin;
use crate::jobs::reference;
use crate::jobs::{Output, program, say, signals};
use crate::spec::{EngineKind, ScheduleSpec, Spec, safeguards_without_effect};
use crate::store::RunFolder;
use std::path::{Path, PathBuf};
use tidegate_operators::schedule::{Schedule, WeightsUpdate};

/// Trains as the specification says and reports.
///
/// # Errors
/// A specification, model, data set or device that is not as it must be; a fault of the dataflow (what was complete is sealed);
/// a signal.
pub fn run(spec: Spec, output: Output) -> Result<()> {
    preflight::writable(&spec.output)?;
    match spec.model.engine {
        EngineKind::Torch => start(torch, spec, output),
        EngineKind::Toy => start(toy, spec, output),
        EngineKind::Emulation => start(emulation::open, spec, output),
    }
}

/// The torch engine of a model folder, the specification's or a checkpoint's; with that of a separate critic.
///
/// # Errors
/// A folder that is no model that it runs.
pub fn torch(spec: &Spec, folder: Option<&Path>) -> Result<WithCritic<Policy>> {
    // The pools are the workers'.
    Policy::set_threads(1);
    let head = if spec.has_value_head() { ValueHead::Present } else { ValueHead::None };
    let load = |folder: &Path, head| Policy::load(folder, &spec.model.device, head);
    let critic = || {
        let own = Some(spec.learn.critic.path.as_path()).filter(|path| !path.as_os_str().is_empty());
        let start = own.unwrap_or(&spec.model.path).to_owned();
        let named = |e: Error| match own {
            Some(path) if folder.is_none() => Error::config("learn.critic.path", path.display(), e.to_string()),
            _ => e,
        };
        load(&critics(folder).unwrap_or(start), ValueHead::Present).map_err(named)
    };
    WithCritic::open(spec, || load(folder.unwrap_or(&spec.model.path), head), critic)
}

/// The toy engine: new tables, or a checkpoint's.
///
/// # Errors
/// A folder that has no tables.
pub fn toy(spec: &Spec, folder: Option<&Path>) -> Result<WithCritic<ToyEngine>> {
    let tables = |folder: Option<&Path>| folder.map_or_else(|| Ok(ToyEngine::new(spec.seed)), ToyEngine::load);
    let policy = || tables(folder).map(|engine| if spec.has_value_head() { engine.with_critic() } else { engine });
    let critic = || tables(critics(folder).as_deref()).map(ToyEngine::with_critic);
    WithCritic::open(spec, policy, critic)
}

/// A separate critic's folder in a checkpoint; a model that is none has none.
fn critics(checkpoint: Option<&Path>) -> Option<PathBuf> {
    checkpoint.map(|checkpoint| checkpoint.join(FOLDER)).filter(|folder| folder.is_dir())
}

fn start<E>(open: impl Fn(&Spec, Option<&Path>) -> Result<E>, spec: Spec, output: Output) -> Result<()>
where
    E: Engine + 'static,
{
    let engine = open(&spec, None)?;
    let origin = Origin::new(&engine, &spec, |folder| open(&spec, folder))?;
    let mut course = Course::new(spec, &engine)?;
    // A signal that comes until here ends the process, which has written nothing.
    let interrupt = signals::halt_on_signals()?;
    let folder = claim(&course.spec)?;
    let _lock = folder.lock()?;
    course.spec.output = folder.path().to_owned();
    let spec = &course.spec;
    folder.write_spec(&spec.to_text())?;
    say(plan(spec, &engine));
    reference::described(spec).into_iter().for_each(say);
    let idle = safeguards_without_effect(spec);
    engine.notes().iter().chain(&idle).for_each(|note| say(format_args!("note      {note}")));
    let prompt_tokens = preflight::prompt_tokens(&mut course.prompts, &*engine.tokenizer())?;
    let disk = Disk::of(spec, spec.steps, engine.parameters(), prompt_tokens, spec.checkpoint.keep as u64);
    say(&disk);
    disk.warning().into_iter().for_each(say);
    if spec.batch.group_size == 1 && !spec.has_critic() && spec.estimate.advantage.compares_group() {
        say(
            "note      groups of one rollout have no baseline: every advantage is 0, and nothing is learned without a critic",
        );
    }
    course.run(engine, origin, &folder, &interrupt, output)
}

/// The run's folder: as the spec says, with a number where that is taken, so that nothing recorded is lost.
fn claim(spec: &Spec) -> Result<RunFolder> {
    let name = |n: u32| {
        if n == 1 {
            return spec.output.clone();
        }
        // `runs/a/` is named runs/a-2 next, not runs/a/-2; a folder without a name (`.`) is asked what it is called.
        let named = || spec.output.file_name().map(|_| spec.output.clone());
        let base = named().or_else(|| spec.output.canonicalize().ok()).unwrap_or_default();
        let mut name = base.file_name().unwrap_or_default().to_owned();
        name.push(format!("-{n}"));
        base.with_file_name(name)
    };
    let taken = RunFolder::view(&spec.output).ok();
    for path in (1..10_000).map(name).filter(|path| !path.exists()) {
        match RunFolder::create(&path) {
            // Another run took it in between.
            Err(_) if path.join("rollouts").exists() => {}
            claimed => {
                taken.into_iter().for_each(|taken| offer(&taken, &path));
                return claimed;
            }
        }
    }
    Err(Error::config("output", spec.output.display(), "taken, and so are the names numbered from it"))
}

/// Says that a run is there already, and how to go on with it.
fn offer(taken: &RunFolder, path: &Path) {
    if !taken.spec().exists() {
        return say(format_args!(
            "note      {} holds no spec.toml: a run that was ended before it wrote one (nothing is lost with it), or that \
             begins just now; this is a new one, in {}",
            taken.path().display(),
            path.display()
        ));
    }
    let steps = taken.sealed_steps().map_or(0, |steps| steps.len());
    let there = taken.path().display();
    say(format_args!(
        "note      {there} holds a run of {steps} steps; this is a new one, in {}. To go on with the other: {} resume {there} \
         (with --set steps=N to go further than it was to)",
        path.display(),
        program()
    ));
}

/// How generation and training overlap, for a person.
fn schedule(spec: &ScheduleSpec) -> String {
    let bound = spec.schedule().bound();
    match spec.schedule() {
        Schedule::Pipeline { .. } => {
            let update = match spec.weights_update {
                WeightsUpdate::InFlight => "weights in flight",
                WeightsUpdate::Drain => "new weights when no sequence runs",
            };
            format!("pipeline, max lag {bound} steps, {update}")
        }
        Schedule::Conventional { steps } => {
            format!("conventional: rollouts of {steps} steps, then these steps; max lag {bound} steps")
        }
        Schedule::OneStepOff { steps } => {
            format!("one step off: rollouts of the next {steps} steps while these are trained; max lag {bound} steps")
        }
    }
}

/// Workers by their numbers; many in a row by the first and the last.
fn told(workers: &[usize]) -> String {
    match workers {
        [first, .., last] if workers.len() > 8 && last - first + 1 == workers.len() => format!("{first} to {last}"),
        _ => format!("{workers:?}"),
    }
}

/// What the run will do, in a few lines.
pub fn plan<E: Engine>(spec: &Spec, engine: &E) -> String {
    let tasks: Vec<String> = match &spec.data {
        Some(data) => vec![data.file.display().to_string()],
        None => spec.task.iter().map(|t| t.kind.name().to_owned()).collect(),
    };
    let model = match spec.model.engine {
        EngineKind::Torch => spec.model.path.display().to_string(),
        EngineKind::Toy => "the toy engine".to_owned(),
        EngineKind::Emulation => format!("{} accelerators that are emulated", spec.worker_count()),
    };
    let w = &spec.workers;
    format!(
        "run       {}\nmodel     {model}: {}, {}\nprompts   {}\n\
         step      {} rollouts = {} groups of {}; {} steps\n\
         schedule  {}\n\
         workers   generate on {} ({} slots, {} thread each), train on {:?} ({} thread)",
        spec.output.display(),
        engine.describe(),
        spec.model.device,
        tasks.join(", "),
        spec.batch.batch_size,
        spec.batch_groups(),
        spec.batch.group_size,
        spec.steps,
        schedule(&spec.schedule),
        told(&w.generators),
        spec.generate.slots,
        w.generator_threads,
        w.learners,
        w.learner_threads,
    )
}
