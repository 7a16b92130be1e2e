//! One cell: the run whose checkpoints it reads, where that is not there yet, and a measurement of it.

use super::measure::{Divergence, Policies, Sums};
use super::ways::{Kl, Place, no_distribution};
use crate::engine::contract::Engine;
use crate::engine::observed::{Drawn, Observable};
use crate::engine::spec::Sampling;
use crate::error::{Error, Result};
use crate::jobs::critic::engine::WithCritic;
use crate::jobs::data::Data;
use crate::jobs::eval::held_out;
use crate::jobs::experiment::cell;
use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Outcome, Row};
use crate::jobs::run::{torch, toy};
use crate::jobs::say;
use crate::jobs::signals::Interrupt;
use crate::spec::{EngineKind, Spec, text_of};
use crate::store::RunFolder;
use crate::tasks::prompts::Use;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tidegate_operators::record::{Group, Rollout, Version};

/// Measures a cell. Its run is in `folder`, or is made there: that of all cells with its seed and its place on the design's own axes.
///
/// # Errors
/// A run that fails or has lost a checkpoint, prompts that cannot be read, whatever the device says, a signal.
pub fn run(design: &Design, cell: &Cell, folder: &Path, interrupt: &Interrupt) -> Result<Row> {
    let spec = Spec::load(&design.base, &cell.sets)?;
    let place = design.kl.place(&cell.at)?;
    let run = match made(&spec, folder) {
        Some(run) => run,
        None => make(design, cell, folder, interrupt)?,
    };
    let started = Instant::now();
    let measured = match spec.model.engine {
        EngineKind::Torch => measured(torch, &spec, &design.kl, place, &run, interrupt),
        EngineKind::Toy => measured(toy, &spec, &design.kl, place, &run, interrupt),
        EngineKind::Emulation => Err(no_distribution()),
    };
    Ok(cell::row(cell, started, Outcome::Measured(measured?)))
}

/// The run of this specification, if it is there and has gone to its end.
fn made(spec: &Spec, folder: &Path) -> Option<RunFolder> {
    let run = RunFolder::view(folder).ok()?;
    let there = Spec::from_text(&text_of(&run.spec()).ok()?, &[]).ok()?;
    let keys = |spec: &Spec| {
        let mut keys = spec.keys();
        keys.remove("output");
        keys
    };
    let ended = run.checkpointed_steps().ok()?.last() == Some(&spec.steps);
    (ended && keys(&there) == keys(spec)).then_some(run)
}

fn make(design: &Design, of: &Cell, folder: &Path, interrupt: &Interrupt) -> Result<RunFolder> {
    say(format_args!("          first its run, with a checkpoint after every step"));
    let own = Cell { at: of.at[..design.axis.len()].to_vec(), ..of.clone() };
    match cell::run(design, &own, folder, interrupt)?.outcome {
        Outcome::Failed { exit, error } => {
            Err(Error::file(folder, format!("the run that is to be measured failed with exit code {exit}: {error}")))
        }
        Outcome::Done(_) | Outcome::Measured(_) => RunFolder::view(folder),
    }
}

fn measured<E>(
    open: impl Fn(&Spec, Option<&Path>) -> Result<WithCritic<E>>,
    spec: &Spec,
    kl: &Kl,
    place: Place,
    run: &RunFolder,
    interrupt: &Interrupt,
) -> Result<Divergence>
where
    E: Observable + 'static,
{
    let at = |version: Version| match version {
        0 => open(spec, None),
        _ => open(spec, Some(&checkpoint(run, version)?)),
    };
    let first = at(place.after)?;
    let sampling = Sampling {
        slots: 1,
        max_tokens: kl.length,
        time_limit_s: 0.0,
        kv_after_update: place.behavior.keys(),
        ..spec.generate.clone()
    };
    let versions = place.after..=place.after + place.ahead(kl.length.saturating_sub(1));
    let weights = versions.map(|version| at(version)?.snapshot()).collect::<Result<Vec<_>>>()?;
    let current = first.frozen(&at(place.after + place.lag)?, &spec.learn, &sampling)?;
    let generator = first.generator(&sampling, spec.seed, 0)?;
    let mut policies = Policies::<WithCritic<E>>::new(generator, current, place.after, weights);
    let mut sums = Sums::new(kl.length);
    for group in prompts(&first, spec, kl.prompts)? {
        if let Some(signal) = interrupt.signal() {
            return Err(Error::Signal(signal));
        }
        sums.add(&policies.tokens(&group, |position| place.ahead(position))?, |position| place.lag_at(position));
    }
    sums.divergence().ok_or_else(|| Error::config("kl.prompts", kl.prompts, "no prompt of them could be answered"))
}

fn checkpoint(run: &RunFolder, version: Version) -> Result<std::path::PathBuf> {
    let path = run.checkpoint(version);
    match path.is_dir() {
        true => Ok(path),
        false => Err(Error::file(path, "no such checkpoint; remove the run's folder, and it is made anew")),
    }
}

/// The held-out prompts of a run; of one with a file of prompts and none held out, the file's first.
fn prompts<E: Engine>(engine: &E, spec: &Spec, prompts: usize) -> Result<Vec<Arc<Group>>> {
    let model = engine.folder().unwrap_or(&spec.model.path);
    let file = spec.eval.data.as_ref().or(spec.data.as_ref());
    let data = Data { file: None, tasks: &spec.task, model, purpose: Use::Rollouts };
    held_out(data.evaluation(file, prompts, None)?, engine, file)
}

/// The policy's.
impl<E: Observable + 'static> Observable for WithCritic<E> {
    fn observe(generator: &mut E::Generator) {
        E::observe(generator);
    }

    fn drawn(generator: &mut E::Generator) -> Vec<Drawn> {
        E::drawn(generator)
    }

    fn distributions(frozen: &mut E::Frozen, rollout: &Rollout) -> Result<Vec<f32>> {
        E::distributions(frozen, rollout)
    }
}
