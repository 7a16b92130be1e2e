//! Evaluation on held-out prompts, without the dataflow: before and after a run, one rollout a prompt; and the [`job`] that looks
//! closer, with its [`report`].

pub mod job;
pub mod report;
mod subject;
mod text;

use crate::engine::contract::Engine;
use crate::engine::spec::Sampling;
use crate::error::Result;
use crate::jobs::encode::Encoder;
use crate::jobs::rewards::{RewardScorer, Rewards};
use crate::tasks::item::Item;
use crate::tasks::spec::DataSpec;
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::fault::Halt;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Rollout, Version};
use tidegate_operators::score::Scorer;
use tidegate_operators::success::solves;

/// How many of a task's prompts were solved (reward of at least 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub prompts: u64,
    pub solved: u64,
    /// Prompts whose answer has no reward: neither solved nor not.
    pub unscored: u64,
    /// Completion tokens sampled.
    pub tokens: u64,
}

impl Tally {
    /// Share solved of those with a reward, in 0..=1; None without any.
    pub fn rate(&self) -> Option<f64> {
        let scored = self.prompts.saturating_sub(self.unscored);
        (scored > 0).then(|| self.solved as f64 / scored as f64)
    }
}

/// Success by task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub tasks: BTreeMap<String, Tally>,
}

impl Evaluation {
    /// Over all tasks' prompts together.
    pub fn total(&self) -> Tally {
        self.tasks.values().fold(Tally::default(), |a, b| Tally {
            prompts: a.prompts + b.prompts,
            solved: a.solved + b.solved,
            unscored: a.unscored + b.unscored,
            tokens: a.tokens + b.tokens,
        })
    }

    fn count(&mut self, rollout: &Rollout) {
        let tally = self.tasks.entry(rollout.group.prompt.task.clone()).or_default();
        tally.prompts += 1;
        tally.solved += u64::from(rollout.reward.is_some_and(solves));
        tally.unscored += u64::from(rollout.reward.is_none());
        tally.tokens += rollout.tokens.len() as u64;
    }
}

/// How the answers are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At temperature 1, from the whole distribution.
    Sampled,
    /// The likeliest token each time.
    Greedy,
}

/// How often who waits for rewards looks at the halt.
const LOOK: Duration = Duration::from_millis(50);

/// Held-out prompts and who answers and judges them; for one set of weights after the other.
pub struct Evaluator<E: Engine> {
    generator: E::Generator,
    scorer: RewardScorer,
    groups: Vec<Arc<Group>>,
}

/// Held-out prompts as groups of one, in the order of the items.
///
/// # Errors
/// A prompt that is too long, where `data` says that this is the end.
pub fn held_out<E: Engine>(items: Vec<Item>, engine: &E, data: Option<&DataSpec>) -> Result<Vec<Arc<Group>>> {
    let mut encoder = Encoder::new(engine, data)?;
    let group = |(number, item)| {
        let prompt = encoder.prompt(0, item)?;
        Ok(Arc::new(Group { number, size: 1, prompt, ..Group::default() }))
    };
    (0..).zip(items).map(group).collect()
}

impl<E: Engine> Evaluator<E> {
    /// # Errors
    /// Not enough memory.
    pub fn new(
        groups: &[Arc<Group>],
        engine: &E,
        sampling: &Sampling,
        rewards: &Rewards,
        mode: Mode,
        seed: u64,
    ) -> Result<Self> {
        let temperature = if mode == Mode::Greedy { 0.0 } else { 1.0 };
        Self::sampling(groups, engine, &Sampling { temperature, ..sampling.clone() }, rewards, seed)
    }

    /// The same with the temperature of `sampling`.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn sampling(groups: &[Arc<Group>], engine: &E, sampling: &Sampling, rewards: &Rewards, seed: u64) -> Result<Self> {
        let rollouts: usize = groups.iter().map(|group| group.size as usize).sum();
        let sampling = Sampling { slots: sampling.slots.min(rollouts.max(1)), ..sampling.clone() };
        let generator = engine.generator(&sampling, seed, 0)?;
        Ok(Evaluator { generator, scorer: rewards.scorer(), groups: groups.to_vec() })
    }

    /// Answers each prompt and counts the right answers; a halt ends it early, and no other follows it.
    ///
    /// # Errors
    /// What the generator refuses; too many rewards from outside that failed.
    pub fn evaluate(&mut self, version: Version, weights: E::Weights, halt: &Halt) -> Result<Evaluation> {
        let mut evaluation = Evaluation::default();
        self.answer(version, weights, halt, |rollouts| rollouts.iter().for_each(|rollout| evaluation.count(rollout)))?;
        Ok(evaluation)
    }

    /// Answers each prompt; `take` gets the rollouts as they are done, rewards and all, in no order: none at times, so that it can
    /// show how far it is. A halt ends it early.
    ///
    /// # Errors
    /// As [`evaluate`](Evaluator::evaluate).
    pub fn answer(
        &mut self,
        version: Version,
        weights: E::Weights,
        halt: &Halt,
        mut take: impl FnMut(Vec<Rollout>),
    ) -> Result<()> {
        let Evaluator { generator, scorer, groups } = self;
        generator.load(version, weights)?;
        groups.iter().try_for_each(|group| generator.start(Arc::clone(group)))?;
        while generator.running() > 0 && !halt.is_set() {
            let mut done = Vec::new();
            for rollout in generator.step()? {
                // A prompt that was refused has no answer to be judged.
                done.extend(if rollout.trainable() { scorer.score(rollout)? } else { Some(rollout) });
            }
            done.extend(scorer.finished()?);
            take(done);
        }
        while scorer.pending() > 0 && !halt.is_set() {
            scorer.wait(LOOK);
            take(scorer.finished()?);
        }
        Ok(())
    }
}

/// Evaluates an engine's own weights once.
///
/// # Errors
/// As [`Evaluator`].
pub fn evaluate<E: Engine>(
    groups: &[Arc<Group>],
    engine: &E,
    sampling: &Sampling,
    rewards: &Rewards,
    mode: Mode,
    seed: u64,
    halt: &Halt,
) -> Result<Evaluation> {
    Evaluator::new(groups, engine, sampling, rewards, mode, seed)?.evaluate(0, engine.snapshot()?, halt)
}

/// Success by task, a column an evaluation.
pub fn table(columns: &[(&str, &Evaluation)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["held out", "prompts", "tokens"].into_iter().chain(columns.iter().map(|(name, _)| *name)));
    let Some((_, first)) = columns.first() else { return table };
    let names = first.tasks.keys().map(String::as_str);
    for name in names.chain(["all"]) {
        let of = |e: &Evaluation| if name == "all" { e.total() } else { e.tasks.get(name).copied().unwrap_or_default() };
        let tally = of(first);
        let mean = tally.tokens as f64 / tally.prompts.max(1) as f64;
        let mut row = vec![name.to_owned(), tally.prompts.to_string(), format!("{mean:.1}")];
        row.extend(columns.iter().map(|(_, e)| of(e).rate().map_or_else(String::new, |r| format!("{:.1} %", 100.0 * r))));
        table.add_row(row);
    }
    table
}
