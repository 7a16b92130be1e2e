//! `run`: train a model with reinforcement learning.

use crate::engine::spec::Sampling;
use crate::engine::torch::device;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::policy::Policy;
use crate::error::{Error, Result};
use crate::jobs::data::Data;
use crate::jobs::eval::{Evaluation, Mode, evaluate};
use crate::jobs::rewards::Rewards;
use crate::jobs::summary::{Evaluations, Summary};
use crate::jobs::training::{self, Training};
use crate::jobs::{Output, print, say, signals};
use crate::spec::Spec;
use crate::store::layout::RunFolder;
use crate::store::write_metrics;
use crate::tasks::item::Item;
use crate::tasks::prompts::Use;
use tidegate_operators::fault::Halt;

/// Trains as the specification says and reports.
///
/// # Errors
/// A specification, model, data set or device that is not as it must be; a fault of the dataflow (what was complete is sealed);
/// a signal.
pub fn run(mut spec: Spec, output: Output) -> Result<()> {
    let head = if spec.has_critic() { ValueHead::Present } else { ValueHead::None };
    let mut policy = Policy::load(&spec.model.path, &spec.model.device, head)?;
    fits(&spec.generate, &policy)?;
    let rewards = Rewards::start(&spec.reward)?;
    let data = Data { file: spec.data.as_ref(), tasks: &spec.task, model: &spec.model.path, purpose: Use::Rollouts };
    let prompts = data.training(spec.seed, rewards.rule())?;
    let held_out = data.held_out(spec.eval.data.as_ref(), spec.eval.prompts)?;
    let folder = claim(&spec)?;
    spec.output = folder.path().to_owned();
    folder.write_spec(&spec.to_text())?;
    say(plan(&spec, &policy));
    if spec.batch.group_size == 1 && !spec.has_critic() {
        say(
            "note      groups of one rollout have no baseline: every advantage is 0, and nothing is learned without a critic",
        );
    }

    let interrupt = signals::halt_on_signals()?;
    let before = evaluations("before", &held_out, &policy, &spec, &rewards, &interrupt.halt)?;
    let training = Training { spec: &spec, folder: &folder, rewards: &rewards, policy: &policy };
    let outcome = training::train(&training, prompts, &interrupt.halt)?;
    if let Some(weights) = &outcome.weights {
        policy.set_weights(weights);
    }
    let saved = policy.save(&folder.checkpoint(outcome.version));
    let saved = write_metrics(&folder).and(saved);
    if let Some((fault, others)) = outcome.faults.split_first() {
        others.iter().for_each(|other| say(format_args!("also: {other}")));
        saved.err().into_iter().for_each(|error| say(format_args!("also: {error}")));
        say(format_args!("{} steps are sealed in {}", outcome.metrics.len(), folder.path().display()));
        return Err(Error::Fault(fault.clone()));
    }
    if let Err(error) = saved {
        say(format_args!("{} steps are sealed in {}", outcome.metrics.len(), folder.path().display()));
        return Err(error);
    }
    let after = evaluations("after", &held_out, &policy, &spec, &rewards, &interrupt.halt)?;
    let summary = Summary::new(&spec, &outcome, before, after);
    match output {
        Output::Text => print(summary)?,
        Output::Json => print(serde_json::to_string(&summary).unwrap_or_default())?,
    }
    interrupt.signal().map_or(Ok(()), |signal| Err(Error::Signal(signal)))
}

/// The longest completion must leave room for a prompt.
fn fits(sampling: &Sampling, policy: &Policy) -> Result<()> {
    let longest = policy.config.max_position_embeddings;
    if sampling.max_tokens as i64 >= longest {
        let why = format!("the model's longest sequence, prompt included, is {longest} tokens; leave room for the prompt");
        return Err(Error::config("generate.max_tokens", sampling.max_tokens, why));
    }
    Ok(())
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
    for path in (1..10_000).map(name).filter(|path| !path.exists()) {
        match RunFolder::create(&path) {
            // Another run took it in between.
            Err(_) if path.join("rollouts").exists() => {}
            claimed => return claimed,
        }
    }
    Err(Error::config("output", spec.output.display(), "taken, and so are the names numbered from it"))
}

/// What the run will do, in a few lines.
fn plan(spec: &Spec, policy: &Policy) -> String {
    let tasks: Vec<String> = match &spec.data {
        Some(data) => vec![data.file.display().to_string()],
        None => spec.task.iter().map(|t| t.kind.name().to_owned()).collect(),
    };
    let w = &spec.workers;
    format!(
        "run       {}\nmodel     {}: {} layers, hidden {}, {} parameters, {}\nprompts   {}\n\
         step      {} rollouts = {} groups of {}; {} steps\n\
         schedule  pipeline, max lag {} steps, weights in flight\n\
         workers   generate on {:?} ({} slots, {} thread each), train on {:?} ({} thread)",
        spec.output.display(),
        spec.model.path.display(),
        policy.config.num_hidden_layers,
        policy.config.hidden_size,
        policy.layout.parameters(),
        spec.model.device,
        tasks.join(", "),
        spec.batch.batch_size,
        spec.batch_groups(),
        spec.batch.group_size,
        spec.steps,
        spec.schedule.max_lag,
        w.generators,
        spec.generate.slots,
        w.generator_threads,
        w.learners,
        w.learner_threads,
    )
}

/// None without held-out prompts, and after a halt.
fn evaluations(
    when: &str,
    items: &[Item],
    policy: &Policy,
    spec: &Spec,
    rewards: &Rewards,
    halt: &Halt,
) -> Result<Option<Evaluations>> {
    if items.is_empty() {
        say(format_args!(
            "held out  none {when} training: eval.prompts is 0, or a file of prompts has no eval.data beside it"
        ));
        return Ok(None);
    }
    device::set_threads(spec.workers.generator_threads.saturating_add(spec.workers.learner_threads));
    let of = |mode: Mode| -> Result<Evaluation> { evaluate(items, policy, &spec.generate, rewards, mode, spec.seed, halt) };
    let evaluations = Evaluations { sampled: of(Mode::Sampled)?, greedy: of(Mode::Greedy)? };
    if halt.is_set() {
        return Ok(None);
    }
    let rate = |e: &Evaluation| 100.0 * e.total().rate().unwrap_or(0.0);
    say(format_args!(
        "held out  {when} training: {:.1} % sampled, {:.1} % greedy of {} prompts",
        rate(&evaluations.sampled),
        rate(&evaluations.greedy),
        items.len()
    ));
    Ok(Some(evaluations))
}
