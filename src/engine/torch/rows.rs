//! What one step takes in: the next token of each sequence, and pieces of prompts beside them.

use crate::engine::torch::ffi::Places;
use crate::error::Result;
use tch::Tensor;
use tidegate_operators::record::Rollout;

/// Most prompt tokens of a step, so that no sequence waits long for a prompt of another. About as many as make a product of rows
/// fast.
const PROMPT_TOKENS: usize = 256;

/// Rows are made a multiple of this where there are more, so that products of few sizes are prepared.
const ROUND: usize = 8;

/// A rollout in a slot.
pub struct Sequence {
    pub rollout: Rollout,
    /// Its tokens, prompt and completion, whose keys and values are in the cache.
    pub entered: usize,
}

impl Sequence {
    /// The token at `position` of prompt and completion.
    fn token(&self, position: usize) -> i64 {
        let prompt = &self.rollout.group.prompt.tokens;
        i64::from(prompt.get(position).copied().unwrap_or_else(|| self.rollout.tokens[position - prompt.len()]))
    }

    /// Tokens that are there and have not entered: one, or more of a prompt.
    fn ahead(&self) -> usize {
        self.rollout.group.prompt.tokens.len() + self.rollout.tokens.len() - self.entered
    }

    fn number(&self) -> (u64, u32) {
        (self.rollout.group.number, self.rollout.sample)
    }
}

/// The rows of a step: first those whose logits are sampled from, then the other tokens of prompts, those of a sequence in order.
#[derive(Debug, Default)]
pub struct Rows {
    tokens: Vec<i64>,
    slots: Vec<i64>,
    positions: Vec<i64>,
    /// The slots of the first rows.
    sampled: Vec<usize>,
    /// Slots, and how many of their tokens enter.
    entering: Vec<(usize, usize)>,
}

impl Rows {
    /// The next step of these sequences: one that has entered all its tokens but the last samples; prompts enter in the order of their
    /// groups.
    pub fn plan(slots: &[Option<Sequence>]) -> Rows {
        let used = || slots.iter().enumerate().filter_map(|(slot, sequence)| Some((slot, sequence.as_ref()?)));
        let mut prompts: Vec<_> = used().filter(|(_, sequence)| sequence.ahead() > 1).collect();
        prompts.sort_by_key(|(_, sequence)| sequence.number());
        let mut left = PROMPT_TOKENS;
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for (slot, sequence) in prompts {
            let piece = (sequence.ahead() - 1).min(left);
            left -= piece;
            pieces.push((slot, piece));
        }
        let piece_of = |slot: usize| pieces.iter().find(|(of, _)| *of == slot).map_or(0, |(_, piece)| *piece);
        let mut rows = Rows::default();
        for (slot, sequence) in used() {
            if sequence.ahead() == piece_of(slot) + 1 {
                let position = sequence.entered + piece_of(slot);
                rows.push(slot, sequence, position);
                rows.sampled.push(slot);
                rows.entering.push((slot, 1));
            }
        }
        for &(slot, piece) in pieces.iter().filter(|(_, piece)| *piece > 0) {
            let Some(sequence) = &slots[slot] else { continue };
            (sequence.entered..sequence.entered + piece).for_each(|position| rows.push(slot, sequence, position));
            rows.entering.push((slot, piece));
        }
        rows
    }

    fn push(&mut self, slot: usize, sequence: &Sequence, position: usize) {
        self.tokens.push(sequence.token(position));
        self.slots.push(slot as i64);
        self.positions.push(position as i64);
    }

    /// The slots that a token is sampled for, in the order of the first rows.
    pub fn sampled(&self) -> &[usize] {
        &self.sampled
    }

    /// Positions that the longest sequence needs.
    pub fn longest(&self) -> i64 {
        self.positions.iter().max().map_or(0, |last| last + 1)
    }

    /// `[r]` i64, a few rows more than have a place.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn tokens(&self) -> Result<Tensor> {
        let rows = self.tokens.len();
        let mut tokens = self.tokens.clone();
        tokens.resize(if rows > ROUND { rows.next_multiple_of(ROUND) } else { rows }, 0);
        Ok(Tensor::f_from_slice(&tokens)?)
    }

    /// Where the rows belong.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn places(&self) -> Result<Places> {
        Places::new(&self.slots, &self.positions)
    }

    /// Says so to the sequences, once their keys and values are in the cache.
    pub fn enter(&self, slots: &mut [Option<Sequence>]) {
        for &(slot, tokens) in &self.entering {
            if let Some(sequence) = &mut slots[slot] {
                sequence.entered += tokens;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::{Group, Prompt};

    fn sequence(number: u64, prompt: u32, completion: u32, entered: usize) -> Option<Sequence> {
        let prompt = Prompt { tokens: (0..prompt).collect(), ..Prompt::default() };
        let group = Arc::new(Group { number, prompt, ..Group::default() });
        let rollout = Rollout { group, tokens: (1000..1000 + completion).collect(), ..Rollout::default() };
        Some(Sequence { rollout, entered })
    }

    /// Catches a prompt that holds others up, one that is passed over, tokens out of order, and a first token that is sampled
    /// before its prompt is in.
    #[test]
    fn prompts_enter_beside_tokens_within_the_limit() {
        let mut slots = vec![sequence(9, 300, 0, 0), sequence(1, 4, 3, 6), None, sequence(2, 5, 0, 0), sequence(3, 1, 0, 0)];
        let rows = Rows::plan(&slots);
        // The running one, the one whose prompt enters whole, the one whose prompt is one token; then group 2's prompt, and of
        // group 9's what is left.
        assert_eq!(rows.sampled, [1, 3, 4]);
        assert_eq!(rows.slots[..7], [1, 3, 4, 3, 3, 3, 3]);
        assert_eq!(rows.positions[..8], [6, 4, 0, 0, 1, 2, 3, 0]);
        assert_eq!((rows.tokens[0], rows.tokens[1], rows.tokens.len()), (1002, 4, 3 + 256));
        assert_eq!((rows.longest(), rows.tokens().unwrap().size1().unwrap()), (252, 264));
        rows.enter(&mut slots);
        let entered: Vec<usize> = slots.iter().flatten().map(|sequence| sequence.entered).collect();
        assert_eq!(entered, [252, 7, 5, 1]);
        let rows = Rows::plan(&slots[..1]);
        assert_eq!(
            (rows.sampled.as_slice(), rows.positions.len(), rows.positions[0], rows.positions[1]),
            (&[0][..], 48, 299, 252)
        );
    }
}
