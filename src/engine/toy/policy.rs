//! The table policy: logits of the next token, and values, by (first token of the prompt, previous token).

use crate::engine::sampler::uniform;
use crate::engine::spec::Sampling;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// An immutable snapshot of the tables; a clone shares them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToyWeights {
    /// Number of token ids, V.
    pub vocab: usize,
    /// `[V * V, V]` logits of the next token, by context.
    pub logits: Arc<Vec<f32>>,
    /// `[V * V]` the critic's values, by context; empty where the run has no critic.
    pub values: Arc<Vec<f32>>,
}

impl ToyWeights {
    /// Version 0 without a critic: logits uniform in -0.1..0.1, drawn from `seed`.
    pub fn initial(vocab: usize, seed: u64) -> Self {
        let draw = |i: usize| (uniform(seed, i as u64, u32::MAX, 0) * 0.2 - 0.1) as f32;
        let logits = (0..vocab * vocab * vocab).map(draw).collect();
        ToyWeights { vocab, logits: Arc::new(logits), values: Arc::default() }
    }

    /// The same policy with a critic whose values are all 0.
    #[must_use]
    pub fn with_critic(self) -> Self {
        ToyWeights { values: Arc::new(vec![0.0; self.vocab * self.vocab]), ..self }
    }

    /// Row of the tables for the token that follows `prompt` (not empty) and `completion`; ids below `vocab`.
    pub fn context(&self, prompt: &[u32], completion: &[u32]) -> usize {
        let previous = completion.last().or(prompt.last());
        let id = |token: Option<&u32>| token.map_or(0, |&t| t as usize);
        id(prompt.first()) * self.vocab + id(previous)
    }

    /// `[V]` logits of the next token.
    pub fn row(&self, context: usize) -> &[f32] {
        &self.logits[context * self.vocab..(context + 1) * self.vocab]
    }

    /// The critic's value, if there is one.
    pub fn value(&self, context: usize) -> Option<f32> {
        self.values.get(context).copied()
    }

    /// Name and hash of each table, as in [`Metrics::weights`](tidegate_operators::record::Metrics::weights).
    pub fn hashes(&self) -> Vec<(String, String)> {
        let mut hashes = vec![("logits".to_owned(), hash(&self.logits))];
        if !self.values.is_empty() {
            hashes.push(("values".to_owned(), hash(&self.values)));
        }
        hashes
    }

    /// What keeps these weights from taking the place of `other`, if anything.
    pub fn misfit(&self, other: &ToyWeights) -> Option<String> {
        let shape = |w: &ToyWeights| (w.vocab, w.logits.len(), w.values.len());
        let (mine, theirs) = (shape(self), shape(other));
        (mine != theirs).then(|| format!("(vocabulary, logits, values) are {mine:?}, not {theirs:?}"))
    }
}

/// First 16 hexadecimal digits of BLAKE3 over the little-endian bytes.
fn hash(values: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        hasher.update(&value.to_le_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// What logits are divided by: the temperature, or 1 where that is 0 (greedy).
pub fn divisor(sampling: &Sampling) -> f32 {
    if sampling.temperature == 0.0 { 1.0 } else { sampling.temperature as f32 }
}

/// Natural log-probabilities of a softmax over `logits / temperature` (temperature above 0).
pub fn log_softmax(logits: &[f32], temperature: f32) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scaled = logits.iter().map(|l| (l - top) / temperature).collect::<Vec<_>>();
    let norm = scaled.iter().map(|s| s.exp()).sum::<f32>().ln();
    scaled.iter().map(|s| s - norm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_known_bytes() {
        // BLAKE3 of the four bytes 00 00 80 3f, which are 1.0 in little-endian order.
        assert_eq!(hash(&[1.0]), blake3::hash(&[0, 0, 0x80, 0x3f]).to_hex()[..16]);
        let weights = ToyWeights::initial(4, 7);
        assert_eq!(weights.hashes().len(), 1);
        assert_eq!(weights.clone().with_critic().hashes()[1].0, "values");
        assert_ne!(weights.hashes(), ToyWeights::initial(4, 8).hashes());
    }

    #[test]
    fn context_is_first_and_previous() {
        let weights = ToyWeights::initial(4, 7);
        assert_eq!(weights.context(&[2, 3], &[]), 2 * 4 + 3);
        assert_eq!(weights.context(&[2, 3], &[3, 1]), 2 * 4 + 1);
        assert_eq!(weights.row(11), &weights.logits[44..48]);
        assert_eq!(weights.value(3), None);
    }

    #[test]
    fn log_softmax_by_hand() {
        let logps = log_softmax(&[0.0, 3f32.ln() * 2.0], 2.0);
        assert!((logps[0] - 0.25f32.ln()).abs() < 1e-6, "{logps:?}");
        assert!((logps[1] - 0.75f32.ln()).abs() < 1e-6, "{logps:?}");
    }
}
