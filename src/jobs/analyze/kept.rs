//! The little of the rows that is kept to be read: prompts by how often they were solved, and the first few rollouts by a measure.

use crate::jobs::analyze::lag::trained;
use crate::jobs::analyze::report::{Prompts, Sample, Solved};
use crate::kernel::mean::Mean;
use crate::store::schema::stop_text;
use std::collections::HashMap;
use tidegate_operators::record::Rollout;

/// Prompts that are counted one by one, the first ones seen; about 150 bytes each.
pub const MAX_PROMPTS: usize = 100_000;
/// Lines of a list in the report.
const SHOWN: usize = 5;
/// Rollouts of a list in the report.
const SAMPLES: usize = 3;
/// Characters of a text in the report.
const PROMPT_CHARACTERS: usize = 80;
const SAMPLE_CHARACTERS: usize = 600;

#[derive(Debug)]
struct Count {
    rollouts: u64,
    solved: u64,
    text: String,
}

/// How often each prompt was solved.
#[derive(Debug, Default)]
pub(super) struct PromptCounts {
    counts: HashMap<u64, Count>,
    rollouts_not_counted: u64,
}

impl PromptCounts {
    /// Adds a rollout that has a reward.
    pub(super) fn add(&mut self, rollout: &Rollout, solved: u64) {
        let prompt = &rollout.group.prompt;
        if self.counts.len() >= MAX_PROMPTS && !self.counts.contains_key(&prompt.id) {
            self.rollouts_not_counted += 1;
            return;
        }
        let new = || Count { rollouts: 0, solved: 0, text: readable(&prompt.text, PROMPT_CHARACTERS) };
        let count = self.counts.entry(prompt.id).or_insert_with(new);
        count.rollouts += 1;
        count.solved += solved;
    }

    pub(super) fn finish(self) -> Prompts {
        let solved = |(prompt_id, count): (u64, Count)| Solved {
            prompt_id,
            rollouts: count.rollouts,
            solved: count.solved,
            prompt: count.text,
        };
        let mut all: Vec<_> = self.counts.into_iter().map(solved).collect();
        let share = |s: &Solved| s.solved as f64 / s.rollouts as f64;
        // Of prompts solved equally often, those tried more often say more.
        all.sort_by(|a, b| {
            share(b).total_cmp(&share(a)).then(b.rollouts.cmp(&a.rollouts)).then(a.prompt_id.cmp(&b.prompt_id))
        });
        let most_solved = all.iter().take(SHOWN).cloned().collect();
        all.sort_by(|a, b| {
            share(a).total_cmp(&share(b)).then(b.rollouts.cmp(&a.rollouts)).then(a.prompt_id.cmp(&b.prompt_id))
        });
        Prompts {
            counted: all.len() as u64,
            rollouts_not_counted: self.rollouts_not_counted,
            most_solved,
            least_solved: all.into_iter().take(SHOWN).collect(),
        }
    }
}

/// The few rollouts with the largest measure, the first seen of equal ones.
#[derive(Debug, Default)]
pub(super) struct Top {
    kept: Vec<(f64, Sample)>,
}

impl Top {
    /// Keeps the rollout if it is among the first; a measure that is NaN never is.
    pub(super) fn offer(&mut self, measure: f64, rollout: &Rollout) {
        let place = self.kept.partition_point(|(kept, _)| *kept >= measure);
        if place < SAMPLES && !measure.is_nan() {
            self.kept.insert(place, (measure, sample(rollout)));
            self.kept.truncate(SAMPLES);
        }
    }

    pub(super) fn finish(self) -> Vec<Sample> {
        self.kept.into_iter().map(|(_, sample)| sample).collect()
    }
}

/// Mean `logp_behavior` over the tokens that the policy chose; None if there are none.
pub(super) fn logp_mean(rollout: &Rollout) -> Option<f64> {
    let mut mean = Mean::default();
    let chosen = rollout.logp_behavior.iter().enumerate().filter(|(i, _)| trained(rollout, *i));
    chosen.for_each(|(_, logp)| mean.add((*logp).into()));
    mean.value()
}

fn sample(rollout: &Rollout) -> Sample {
    let group = &rollout.group;
    Sample {
        step: rollout.step,
        group: group.number,
        sample: rollout.sample,
        prompt_id: group.prompt.id,
        status: rollout.status.to_string(),
        stop: stop_text(rollout.stop),
        tokens: rollout.tokens.len(),
        logp_mean: logp_mean(rollout),
        reward: rollout.reward,
        prompt: readable(&group.prompt.text, SAMPLE_CHARACTERS),
        completion: readable(&rollout.text, SAMPLE_CHARACTERS),
    }
}

/// The text on one line, control characters escaped; the middle of a long one is left out.
pub(super) fn readable(text: &str, most: usize) -> String {
    let escaped = |part: &str| -> String {
        part.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
    };
    let starts = || text.char_indices().map(|(at, _)| at);
    // Head and tail, found without counting all characters of a long text.
    let (head, tail) = (most * 2 / 3, most / 3);
    match (starts().nth(most), starts().nth(head), starts().rev().nth(tail.saturating_sub(1))) {
        (Some(_), Some(head), Some(tail)) => format!("{} [...] {}", escaped(&text[..head]), escaped(&text[tail..])),
        _ => escaped(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::{Group, Prompt};

    #[test]
    fn long_texts_lose_their_middle_and_lines_are_escaped() {
        assert_eq!(readable("a\nb\0\u{1f600}\"'", 80), "a\\nb\\u{0}\u{1f600}\"'");
        assert_eq!(readable("0123456789", 9), "012345 [...] 789");
        assert_eq!(readable("012345678", 9), "012345678");
        assert_eq!(readable(&"é".repeat(10), 3), "éé [...] é");
        assert_eq!(readable("", 9), "");
    }

    #[test]
    fn the_top_keeps_the_first_few() {
        let mut top = Top::default();
        for (sample, measure) in [1.0, f64::NAN, 3.0, 2.0, 3.0, 0.5].into_iter().enumerate() {
            top.offer(measure, &Rollout { sample: sample as u32, ..Rollout::default() });
        }
        assert_eq!(top.finish().iter().map(|s| s.sample).collect::<Vec<_>>(), [2, 4, 3]);
    }

    #[test]
    fn no_more_than_so_many_prompts_are_kept() {
        let mut counts = PromptCounts::default();
        for id in 0..MAX_PROMPTS as u64 + 7 {
            let group = Arc::new(Group { prompt: Prompt { id, ..Prompt::default() }, ..Group::default() });
            counts.add(&Rollout { group, ..Rollout::default() }, 0);
        }
        let prompts = counts.finish();
        assert_eq!((prompts.counted, prompts.rollouts_not_counted), (MAX_PROMPTS as u64, 7));
    }
}
