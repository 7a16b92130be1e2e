//! The little of the rows that is kept to be read: prompts by how often they were solved, and the first few rollouts by a measure.

use crate::error::Result;
use crate::jobs::analyze::report::{Prompts, SUCCESS_ROWS, Sample, Solved};
use crate::kernel::mean::Mean;
use crate::store::schema::stop_text;
use crate::store::view::Row;
use std::collections::HashMap;

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

/// How often each prompt of some steps was solved.
#[derive(Debug, Default)]
pub(super) struct PromptCounts {
    /// In the order in which they were first seen.
    counts: Vec<(u64, Count)>,
    places: HashMap<u64, usize>,
    rollouts_not_counted: u64,
}

impl PromptCounts {
    /// Adds a rollout that has a reward, of one step.
    pub(super) fn add(&mut self, row: &Row<'_>, solved: u64) {
        // Rows of a group stand side by side.
        let last = self.counts.len().checked_sub(1).filter(|last| self.counts[*last].0 == row.prompt_id);
        let place = last.unwrap_or_else(|| *self.places.entry(row.prompt_id).or_insert(self.counts.len()));
        if place == self.counts.len() {
            let text = readable(row.prompt, PROMPT_CHARACTERS);
            self.counts.push((row.prompt_id, Count { rollouts: 0, solved: 0, text }));
        }
        let (_, count) = &mut self.counts[place];
        count.rollouts += 1;
        count.solved += solved;
    }

    /// Adds what comes after. Prompts that do not fit any more are only counted.
    pub(super) fn merge(&mut self, other: PromptCounts) {
        self.rollouts_not_counted += other.rollouts_not_counted;
        for (id, count) in other.counts {
            match self.places.get(&id) {
                Some(place) => {
                    let (_, known) = &mut self.counts[*place];
                    known.rollouts += count.rollouts;
                    known.solved += count.solved;
                }
                None if self.counts.len() >= MAX_PROMPTS => self.rollouts_not_counted += count.rollouts,
                None => {
                    self.places.insert(id, self.counts.len());
                    self.counts.push((id, count));
                }
            }
        }
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
        let mut by_success = [0; SUCCESS_ROWS];
        all.iter().for_each(|prompt| by_success[success_row(prompt.solved, prompt.rollouts)] += 1);
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
            by_success,
            most_solved,
            least_solved: all.into_iter().take(SHOWN).collect(),
        }
    }
}

/// Never, ten equal parts of what is between, always.
fn success_row(solved: u64, rollouts: u64) -> usize {
    match solved {
        0 => 0,
        _ if solved >= rollouts => SUCCESS_ROWS - 1,
        _ => 1 + (10 * solved / rollouts) as usize,
    }
}

/// The few rollouts with the largest measure, the first seen of equal ones.
#[derive(Debug, Default)]
pub(super) struct Top {
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    measure: f64,
    /// Of its row in the step: its completion is still to be read.
    place: usize,
    sample: Sample,
}

impl Top {
    /// Keeps the rollout if it is among the first; a measure that is NaN never is.
    pub(super) fn offer(&mut self, measure: f64, place: usize, row: &Row<'_>) {
        if self.has_room(measure) {
            self.insert(Kept { measure, place, sample: sample(row) });
        }
    }

    fn has_room(&self, measure: f64) -> bool {
        !measure.is_nan() && (self.kept.len() < SAMPLES || self.kept.last().is_some_and(|last| measure > last.measure))
    }

    fn insert(&mut self, kept: Kept) {
        let place = self.kept.partition_point(|other| other.measure >= kept.measure);
        self.kept.insert(place, kept);
        self.kept.truncate(SAMPLES);
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, other: Top) {
        for kept in other.kept {
            if self.has_room(kept.measure) {
                self.insert(kept);
            }
        }
    }

    /// Leaves out what the bar says to be in no list, and reads the completions of the rest.
    ///
    /// # Errors
    /// What `completion` returns.
    pub(super) fn read(&mut self, bar: &Bar, index: usize, completion: impl Fn(usize) -> Result<String>) -> Result<()> {
        self.kept.retain(|kept| bar.passes(kept.measure, index));
        for kept in &mut self.kept {
            kept.sample.completion = readable(&completion(kept.place)?, SAMPLE_CHARACTERS);
        }
        Ok(())
    }

    /// Raises the bar for parts that count beside this one.
    pub(super) fn raise(&self, bar: &mut Bar, index: usize) {
        self.kept.iter().for_each(|kept| bar.raise(kept.measure, index));
    }

    pub(super) fn finish(self) -> Vec<Sample> {
        self.kept.into_iter().map(|kept| kept.sample).collect()
    }
}

/// The largest few measures so far: what is below them is in no list, and its completion need not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Bar(Vec<(f64, usize)>);

impl Bar {
    /// Of a rollout of the part at `index`: of equal measures the first counts.
    fn passes(&self, measure: f64, index: usize) -> bool {
        let before = |&&(other, at): &&(f64, usize)| other > measure || (other == measure && at < index);
        self.0.iter().filter(before).count() < SAMPLES
    }

    fn raise(&mut self, measure: f64, index: usize) {
        let place = self.0.partition_point(|&(other, at)| other > measure || (other == measure && at <= index));
        self.0.insert(place, (measure, index));
        self.0.truncate(SAMPLES);
    }
}

/// Mean `logp_behavior` over the tokens that the policy chose; None if there are none.
pub(crate) fn logp_mean(row: &Row<'_>) -> Option<f64> {
    let mut mean = Mean::default();
    for range in row.mask.ranges(row.logp_behavior.len()) {
        row.logp_behavior[range].iter().for_each(|logp| mean.add((*logp).into()));
    }
    mean.value()
}

fn sample(row: &Row<'_>) -> Sample {
    Sample {
        step: row.step,
        group: row.group,
        sample: row.sample,
        prompt_id: row.prompt_id,
        status: row.status.to_string(),
        stop: stop_text(row.stop),
        tokens: row.tokens,
        logp_mean: logp_mean(row),
        reward: row.reward,
        prompt: readable(row.prompt, SAMPLE_CHARACTERS),
        completion: String::new(),
    }
}

/// The text on one line, control characters escaped; the middle of a long one is left out.
pub(crate) fn readable(text: &str, most: usize) -> String {
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

    #[test]
    fn long_texts_lose_their_middle_and_lines_are_escaped() {
        assert_eq!(readable("a\nb\0\u{1f600}\"'", 80), "a\\nb\\u{0}\u{1f600}\"'");
        assert_eq!(readable("0123456789", 9), "012345 [...] 789");
        assert_eq!(readable("012345678", 9), "012345678");
        assert_eq!(readable(&"é".repeat(10), 3), "éé [...] é");
        assert_eq!(readable("", 9), "");
    }

    fn top(measures: &[f64]) -> Top {
        let mut top = Top::default();
        for (place, measure) in measures.iter().enumerate() {
            top.offer(*measure, place, &Row { sample: place as u32, ..Row::blank() });
        }
        top
    }

    fn measures(top: &Top) -> Vec<f64> {
        top.kept.iter().map(|kept| kept.measure).collect()
    }

    #[test]
    fn the_top_keeps_the_first_few() {
        let mut all = top(&[1.0, f64::NAN, 3.0, 2.0, 3.0, 0.5]);
        all.merge(top(&[2.0, 3.0, f64::NAN]));
        assert_eq!(all.finish().iter().map(|s| s.sample).collect::<Vec<_>>(), [2, 4, 1]);
    }

    /// Catches a bar that keeps out what belongs into the list, and one that lets all of equal measure in.
    #[test]
    fn what_is_in_no_list_is_not_read() {
        let mut bar = Bar::default();
        top(&[3.0, 2.0, 3.0]).raise(&mut bar, 5);
        let passing = |index, all: &[f64]| {
            let mut top = top(all);
            top.read(&bar, index, |place| Ok(format!("completion {place}"))).unwrap();
            measures(&top)
        };
        assert_eq!(passing(7, &[2.0, 3.0, 4.0, 1.0]), [4.0, 3.0]);
        assert_eq!(passing(6, &[2.0, 2.0]), [0.0; 0]);
        assert_eq!(passing(4, &[2.0, 2.0, 1.0]), [2.0, 2.0], "it comes before those of the bar");
        let mut one = top(&[1.0, 2.0]);
        one.read(&Bar::default(), 0, |place| Ok(format!("completion {place}"))).unwrap();
        assert_eq!(one.finish().iter().map(|s| &*s.completion).collect::<Vec<_>>(), ["completion 1", "completion 0"]);
    }

    #[test]
    fn no_more_than_so_many_prompts_are_kept() {
        let mut counts = PromptCounts::default();
        for id in 0..MAX_PROMPTS as u64 + 7 {
            let mut step = PromptCounts::default();
            step.add(&Row { prompt_id: id, ..Row::blank() }, 0);
            step.add(&Row { prompt_id: 3, ..Row::blank() }, 1);
            counts.merge(step);
        }
        let prompts = counts.finish();
        assert_eq!((prompts.counted, prompts.rollouts_not_counted), (MAX_PROMPTS as u64, 7));
        let solved = &prompts.most_solved[0];
        assert_eq!((solved.prompt_id, solved.rollouts, solved.solved), (3, MAX_PROMPTS as u64 + 8, MAX_PROMPTS as u64 + 7));
    }
}
