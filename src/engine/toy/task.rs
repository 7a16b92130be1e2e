//! A task that the table can learn: answer a word with the letter that follows its first letter, and stop.

use crate::error::{Error, Result};
use tidegate_operators::admit::Prompts;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Prompt, Rollout};
use tidegate_operators::score::Scorer;

/// The id that ends a sequence; it has no text.
pub const EOS: u32 = 0;

/// Letters by id, from 1: those of the toy's own words, and the others that generated tasks are written with.
const LETTERS: &str = "abcdefghijklmnos0123456789+-*=;>:";

/// Number of ids: the letters and [`EOS`].
pub const VOCAB: usize = LETTERS.len() + 1;

/// One id a letter.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToyTokenizer;

impl ToyTokenizer {
    /// The ids of `text`.
    ///
    /// # Errors
    /// A character that is none of its letters.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let id = |c: char| LETTERS.find(c).map(|i| i as u32 + 1);
        let refuse = |c| Error::engine("toy tokenizer", format!("{c:?} in {text:?} is not one of {LETTERS}"));
        text.chars().map(|c| id(c).ok_or_else(|| refuse(c))).collect()
    }

    /// The letters of `tokens`; ids without one, [`EOS`] among them, have no text.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let letter = |&token: &u32| LETTERS.chars().nth((token as usize).checked_sub(1)?);
        tokens.iter().filter_map(letter).collect()
    }
}

/// The words of the task, over and over: `rows` prompts an epoch, `limit` in all.
#[derive(Clone, Debug)]
pub struct ToyPrompts {
    rows: u64,
    limit: u64,
}

impl ToyPrompts {
    /// Prompts that end after `limit`; `rows` (at least 1) of them are an epoch.
    pub fn new(rows: u64, limit: u64) -> Self {
        ToyPrompts { rows: rows.max(1), limit }
    }
}

impl Prompts for ToyPrompts {
    fn prompt(&mut self, number: u64) -> Result<Option<Prompt>, Fault> {
        if number >= self.limit {
            return Ok(None);
        }
        let (id, epoch) = (number % self.rows, number / self.rows);
        let letter = |i: u64| &LETTERS[(i % 14) as usize..][..1];
        let text = format!("{}{}", letter(id % 3), letter(id / 3));
        let tokens = ToyTokenizer.encode(&text).map_err(|e| Fault::new("prompts", e))?;
        Ok(Some(Prompt {
            id,
            epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
            task: "toy".to_owned(),
            text,
            tokens,
            answer: letter(id % 3 + 1).to_owned(),
            ..Prompt::default()
        }))
    }
}

/// Reward 1 for the answer alone, 0.5 for the answer with something after it, else 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToyScorer;

impl ToyScorer {
    /// Fills the rollout's reward.
    pub fn reward(self, rollout: &mut Rollout) {
        let answer = rollout.group.prompt.answer.as_str();
        let starts = if rollout.text.starts_with(answer) { 0.5 } else { 0.0 };
        let ends = if rollout.text == answer && rollout.tokens.last() == Some(&EOS) { 0.5 } else { 0.0 };
        rollout.reward = Some(starts + ends);
        rollout.reward_parts = vec![("starts".to_owned(), starts), ("ends".to_owned(), ends)];
    }
}

impl Scorer for ToyScorer {
    fn score(&mut self, mut rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        self.reward(&mut rollout);
        Ok(Some(rollout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::Group;

    #[test]
    fn tokenizer_there_and_back() {
        assert_eq!(ToyTokenizer.encode("abo").unwrap(), [1, 2, 15]);
        assert_eq!(ToyTokenizer.decode(&[1, 2, 15, EOS, 99]), "abo");
        let refusal = ToyTokenizer.encode("a b").unwrap_err().to_string();
        assert!(refusal.contains("' ' in \"a b\""), "{refusal}");
    }

    #[test]
    fn prompts_end_and_repeat() {
        let mut prompts = ToyPrompts::new(4, 6);
        let all = (0..).map_while(|number| prompts.prompt(number).unwrap()).collect::<Vec<_>>();
        let text = all.iter().map(|p| (p.id, p.epoch, p.text.as_str(), p.answer.as_str())).collect::<Vec<_>>();
        let row = [(0, 0, "aa", "b"), (1, 0, "ba", "c"), (2, 0, "ca", "d"), (3, 0, "ab", "b")];
        assert_eq!(text[..4], row);
        assert_eq!(text[4..], [(0, 1, "aa", "b"), (1, 1, "ba", "c")]);
    }

    #[test]
    fn rewards_by_hand() {
        let prompt = Prompt { answer: "b".to_owned(), ..Prompt::default() };
        let group = Arc::new(Group { prompt, ..Group::default() });
        let reward = |tokens: &[u32]| {
            let text = ToyTokenizer.decode(tokens);
            let mut rollout = Rollout { group: group.clone(), tokens: tokens.to_vec(), text, ..Rollout::default() };
            ToyScorer.reward(&mut rollout);
            rollout.reward
        };
        assert_eq!(reward(&[2, EOS]), Some(1.0));
        assert_eq!(reward(&[2]), Some(0.5), "not ended");
        assert_eq!(reward(&[2, 1, EOS]), Some(0.5));
        assert_eq!(reward(&[3, 2, EOS]), Some(0.0));
        assert_eq!(reward(&[EOS]), Some(0.0));
    }
}
