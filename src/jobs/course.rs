//! The course of a run, from where it starts or goes on to its end: evaluate, train, keep, evaluate, report.

use crate::engine::contract::Engine;
use crate::engine::spec::Sampling;
use crate::error::{Error, Result};
use crate::jobs::best::Best;
use crate::jobs::data::Data;
use crate::jobs::emulation::Emulation;
use crate::jobs::encode::Encoder;
use crate::jobs::eval::{self, Evaluation, Evaluator, Mode};
use crate::jobs::recovery::Origin;
use crate::jobs::rewards::Rewards;
use crate::jobs::signals::Interrupt;
use crate::jobs::summary::{Ending, Evaluations, Summary};
use crate::jobs::training::{self, Training};
use crate::jobs::{Output, outcome, print, program, say};
use crate::spec::{EvalWhen, Spec};
use crate::store::{self, RunFolder, write_metrics};
use crate::tasks::prompts::Use;
use crate::tasks::source;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use tidegate_operators::fault::Halt;
use tidegate_operators::plan::ShortBatch;
use tidegate_operators::record::Group;

/// What a run is made of, besides its engine.
pub struct Course {
    pub spec: Spec,
    pub rewards: Rewards,
    pub prompts: source::Prompts,
    pub held_out: Vec<Arc<Group>>,
}

impl Course {
    /// Reads what the specification names.
    ///
    /// # Errors
    /// A data set or a reward that is not as it must be; completions that would leave no room for a prompt.
    pub fn new<E: Engine>(spec: Spec, engine: &E) -> Result<Self> {
        fits(&spec.generate, engine)?;
        Encoder::new(engine, spec.data.as_ref())?;
        let rewards = Rewards::start(&spec.reward)?;
        let model = engine.folder().unwrap_or(&spec.model.path);
        let data = Data { file: spec.data.as_ref(), tasks: &spec.task, model, purpose: Use::Rollouts };
        let prompts = data.training(spec.seed, rewards.rule())?;
        let items = data.held_out(spec.eval.data.as_ref(), spec.eval.prompts)?;
        let held_out = eval::held_out(items, engine, spec.eval.data.as_ref())?;
        Ok(Course { spec, rewards, prompts, held_out })
    }

    /// Goes from the origin to the end, and reports.
    ///
    /// # Errors
    /// A fault of the dataflow (what was complete is sealed); a signal.
    pub fn run<E>(
        self,
        mut engine: E,
        origin: Origin<E>,
        folder: &RunFolder,
        interrupt: &Interrupt,
        output: Output,
    ) -> Result<()>
    where
        E: Engine + 'static,
    {
        let Course { spec, rewards, prompts, held_out } = self;
        let halt = &interrupt.halt;
        let evaluations = |when, engine: &E| evaluations(when, &held_out, engine, &spec, &rewards, halt);
        let before = if origin.start.version == 0 { evaluations("before", &engine)? } else { None };
        // The learner has a copy of its own, and its weights are what there is to evaluate afterwards.
        engine.release_weights();
        let training = Training { spec: &spec, folder, rewards: &rewards, engine: &engine };
        let evaluator = || Evaluator::new(&held_out, &engine, &spec.generate, &rewards, Mode::Sampled, spec.seed);
        let evaluated = spec.eval.when == EvalWhen::Checkpoints && !held_out.is_empty();
        let best = evaluated.then(evaluator).transpose()?.map(|evaluator| Best::new(folder, evaluator, halt));
        let mut outcome = training::train(&training, prompts, origin, best, halt)?;
        let ending = match outcome.version {
            done if done >= spec.steps => Ending::Steps,
            _ if halt.is_set() => Ending::Signal,
            _ => Ending::Prompts,
        };
        let metrics = write_metrics(folder);
        let sealed = |steps| say(format_args!("{steps} steps are sealed in {}", folder.path().display()));
        if let Some((fault, others)) = outcome.faults.split_first() {
            others.iter().for_each(|other| say(format_args!("also: {other}")));
            let errors = metrics.err().into_iter().chain(outcome.unkept.take());
            errors.for_each(|error| say(format_args!("also: {error}")));
            sealed(outcome.version);
            say(format_args!("go on     {} resume {}", program(), folder.path().display()));
            return Err(Error::Fault(fault.clone()));
        }
        if let Some(error) = metrics.err().or(outcome.unkept.take()) {
            sealed(outcome.version);
            return Err(error);
        }
        if ending == Ending::Prompts && outcome.version == 0 {
            return Err(nothing_trained(&spec, &outcome.sealed.not_trained));
        }
        let after = match outcome.weights.take() {
            Some(weights) => {
                engine.set_weights(&weights);
                evaluations("after", &engine)?
            }
            None => None,
        };
        let mut summary = Summary::new(&spec, &outcome, ending, [before, after]);
        if let Some(done) = engine.emulated() {
            summary.emulation = Emulation::of(&spec, done, &outcome, &store::metrics(folder)?)?;
            // It knows the machine's processors, not those accelerators.
            summary.advice = None;
        }
        outcome::write(folder, &summary, &engine.describe())?;
        match output {
            Output::Text => print(&summary)?,
            Output::Json => print(serde_json::to_string(&summary).unwrap_or_default())?,
        }
        interrupt.signal().map_or(Ok(()), |signal| Err(Error::Signal(signal)))
    }
}

/// Prompts that ended before there was a batch: the run has nothing to show for itself.
fn nothing_trained(spec: &Spec, not_trained: &BTreeMap<String, u64>) -> Error {
    let file = spec.data.as_ref().map(|data| data.file.as_path()).unwrap_or(Path::new("task"));
    let became = not_trained.iter().map(|(status, rollouts)| format!("{rollouts} rollouts {status}"));
    let became = became.collect::<Vec<_>>().join(", ");
    let (size, short) = (
        spec.batch.batch_size,
        match spec.schedule.short_batch {
            ShortBatch::Train => "",
            ShortBatch::Discard => "; schedule.short_batch = \"train\" would train fewer",
        },
    );
    let why = format!("its prompts ended before the first step, which takes {size} rollouts (batch.batch_size){short}");
    Error::file(file, if became.is_empty() { why } else { format!("{why}: {became}") })
}

/// The longest completion must leave room for a prompt.
///
/// # Errors
/// It does not.
pub fn fits<E: Engine>(sampling: &Sampling, engine: &E) -> Result<()> {
    let (most, longest) = (sampling.max_tokens, engine.longest());
    if most < longest {
        return Ok(());
    }
    let why = format!("the model's longest sequence, prompt included, is {longest} tokens; leave room for the prompt");
    Err(Error::config("generate.max_tokens", most, why))
}

/// None without held-out prompts, and after a halt.
fn evaluations<E: Engine>(
    when: &str,
    held_out: &[Arc<Group>],
    engine: &E,
    spec: &Spec,
    rewards: &Rewards,
    halt: &Halt,
) -> Result<Option<Evaluations>> {
    if held_out.is_empty() {
        say(format_args!(
            "held out  none {when} training: eval.prompts is 0, or a file of prompts has no eval.data beside it"
        ));
        return Ok(None);
    }
    let threads = spec.workers.generator_threads.saturating_add(spec.workers.learner_threads);
    let of = |mode: Mode| -> Result<Evaluation> {
        let mut evaluator = Evaluator::new(held_out, engine, &spec.generate, rewards, mode, spec.seed)?;
        let weights = engine.snapshot()?;
        // On a thread of its own, whose pool of threads ends with it.
        let evaluation = thread::scope(|scope| {
            let evaluating = scope.spawn(|| {
                E::set_threads(threads);
                evaluator.evaluate(0, weights, halt)
            });
            evaluating.join()
        });
        evaluation.unwrap_or_else(|panic| resume_unwind(panic))
    };
    let evaluations = Evaluations { sampled: of(Mode::Sampled)?, greedy: of(Mode::Greedy)? };
    if halt.is_set() {
        return Ok(None);
    }
    let rate = |e: &Evaluation| e.total().rate().map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", 100.0 * rate));
    say(format_args!(
        "held out  {when} training: {} sampled, {} greedy of {} prompts",
        rate(&evaluations.sampled),
        rate(&evaluations.greedy),
        held_out.len()
    ));
    Ok(Some(evaluations))
}
