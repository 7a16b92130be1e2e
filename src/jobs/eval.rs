//! Evaluation on held-out prompts: one rollout a prompt, without the dataflow.

use crate::error::Result;
use crate::jobs::ports::{TaskScorer, tokenize};
use crate::engine::tokenizer::Tokenizer;
use crate::tasks::Item;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Rollout};
use tidegate_operators::score::Scorer;

/// How many of a task's prompts were solved (reward of at least 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    pub prompts: u64,
    pub solved: u64,
    /// Completion tokens sampled.
    pub tokens: u64,
}

impl Tally {
    /// Share solved, in 0..=1; None without prompts.
    pub fn rate(&self) -> Option<f64> {
        (self.prompts > 0).then(|| self.solved as f64 / self.prompts as f64)
    }
}

/// Success by task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evaluation {
    pub tasks: BTreeMap<String, Tally>,
}

impl Evaluation {
    /// Over all tasks' prompts together.
    pub fn total(&self) -> Tally {
        self.tasks.values().fold(Tally::default(), |a, b| Tally {
            prompts: a.prompts + b.prompts,
            solved: a.solved + b.solved,
            tokens: a.tokens + b.tokens,
        })
    }

    fn count(&mut self, rollout: &Rollout) {
        let tally = self.tasks.entry(rollout.group.prompt.task.clone()).or_default();
        tally.prompts += 1;
        tally.solved += u64::from(rollout.reward.is_some_and(|r| r >= 1.0));
        tally.tokens += rollout.tokens.len() as u64;
    }
}

/// Samples one answer to each item and counts those that are right.
///
/// # Errors
/// What the tokenizer or the generator refuses.
pub fn evaluate(
    items: &[Item],
    tokenizer: &Tokenizer,
    generator: &mut impl Generator,
    scorer: &mut TaskScorer,
) -> Result<Evaluation> {
    let mut evaluation = Evaluation::default();
    for (number, item) in items.iter().enumerate() {
        let prompt = tokenize(item.clone(), tokenizer)?;
        generator.start(Arc::new(Group { number: number as u64, size: 1, prompt, ..Group::default() }))?;
    }
    while generator.running() > 0 {
        for mut rollout in generator.step()? {
            scorer.score(&mut rollout)?;
            evaluation.count(&rollout);
        }
    }
    Ok(evaluation)
}
