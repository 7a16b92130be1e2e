//! The toy as an engine: what makes its halves, and its files.

use super::frozen::ToyFrozen;
use super::generator::ToyGenerator;
use super::learner::{ToyLearner, ToyOptimizer};
use super::policy::{ToyWeights, divisor};
use super::task::{ToyTokenizer, VOCAB};
use crate::engine::contract::{Engine, Identity, Tokenize, Writer};
use crate::engine::spec::{Learning, Sampling};
use crate::error::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, View, serialize_to_file};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Metrics, Step, Version};
use tidegate_operators::train::Learner;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const REFERENCE: &str = "reference.safetensors";
/// How often logits and values were updated.
const UPDATES: [&str; 2] = ["updates", "value_updates"];

/// Tables in memory.
#[derive(Clone, Debug)]
pub struct ToyEngine {
    weights: ToyWeights,
}

impl ToyEngine {
    /// New tables, drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        ToyEngine { weights: ToyWeights::initial(VOCAB, seed) }
    }

    /// The tables of a folder that [`Writer::write`] wrote.
    ///
    /// # Errors
    /// A file that is missing or has other tables.
    pub fn load(folder: &Path) -> Result<Self> {
        Ok(ToyEngine { weights: weights(&folder.join(MODEL))? })
    }

    /// With a critic, where there is none.
    #[must_use]
    pub fn with_critic(self) -> Self {
        if self.weights.values.is_empty() { ToyEngine { weights: self.weights.with_critic() } } else { self }
    }
}

impl Tokenize for ToyTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        ToyTokenizer::encode(self, text)
    }
}

impl Engine for ToyEngine {
    type Weights = ToyWeights;
    type Generator = ToyGenerator;
    type Learner = ToyLearner;
    type Optimizer = ToyOptimizer;
    type Frozen = ToyFrozen;
    type Writer = ToyWriter;

    fn describe(&self) -> String {
        format!("a table of {} logits", self.weights.logits.len())
    }

    fn identity(&self) -> Identity {
        // A critic comes and goes with the specification; the policy is the same.
        let hashes = self.weights.hashes();
        let logits = hashes.first().map(|(_, hash)| hash.clone()).unwrap_or_default();
        Identity { model: logits, tokenizer: format!("toy {VOCAB}"), ..Identity::default() }
    }

    fn longest(&self) -> usize {
        usize::MAX
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::new(ToyTokenizer)
    }

    fn notes(&self) -> &[String] {
        &[]
    }

    fn folder(&self) -> Option<&Path> {
        None
    }

    fn hashes(&self) -> Result<Vec<(String, String)>> {
        Ok(self.weights.hashes())
    }

    fn parameters(&self) -> u64 {
        (self.weights.logits.len() + self.weights.values.len()) as u64
    }

    fn snapshot(&self) -> Result<ToyWeights> {
        Ok(self.weights.clone())
    }

    fn set_weights(&mut self, weights: &ToyWeights) {
        self.weights = weights.clone();
    }

    /// Tables are small: they stay.
    fn release_weights(&mut self) {}

    fn generator(&self, sampling: &Sampling, seed: u64, _worker: usize) -> Result<ToyGenerator> {
        Ok(ToyGenerator::new(sampling.clone(), seed))
    }

    fn slots(generator: &ToyGenerator) -> usize {
        generator.slots()
    }

    fn library_ns(_: &ToyGenerator) -> u64 {
        0
    }

    fn learner(&self, learning: &Learning, sampling: &Sampling, steps: Step, version: Version) -> Result<ToyLearner> {
        Ok(ToyLearner::new(self.weights.clone(), version, learning.clone(), sampling, steps))
    }

    fn frozen(&self, of: &Self, _: &Learning, sampling: &Sampling) -> Result<ToyFrozen> {
        Ok(ToyFrozen::new(of.weights.clone(), divisor(sampling)))
    }

    fn reference(&self, folder: &Path) -> Result<Option<ToyWeights>> {
        let path = folder.join(REFERENCE);
        if path.exists() { weights(&path).map(Some) } else { Ok(None) }
    }

    fn version(learner: &ToyLearner) -> Version {
        learner.version()
    }

    fn relearn(learner: &mut ToyLearner, learning: &Learning, steps: Step) {
        learner.relearn(learning, steps);
    }

    fn recall(learner: &mut ToyLearner, before: &[Metrics]) {
        learner.recall(before);
    }

    fn optimizer(learner: &mut ToyLearner) -> Result<ToyOptimizer> {
        Ok(learner.optimizer())
    }

    fn take_apart(mut learner: ToyLearner) -> Result<(ToyWeights, ToyOptimizer)> {
        let weights = Learner::weights(&mut learner).map_err(Error::Fault)?;
        Ok((weights, learner.optimizer()))
    }

    fn restore(&self, folder: &Path, learner: &mut ToyLearner) -> Result<()> {
        let path = folder.join(OPTIMIZER);
        let (mut tables, updates) = read(&path)?;
        let mut take = |name: &str| tables.remove(name).unwrap_or_default();
        let moments = [[take("logits.m"), take("logits.v")], [take("values.m"), take("values.v")]];
        learner.restore(ToyOptimizer { moments, updates }).map_err(|why| Error::file(path, why))
    }

    fn writer(&self) -> ToyWriter {
        ToyWriter
    }

    fn set_threads(_: u16) {}
}

/// Writes tables.
#[derive(Clone, Copy, Debug)]
pub struct ToyWriter;

impl Writer<ToyWeights, ToyOptimizer> for ToyWriter {
    fn write(&self, folder: &Path, weights: &ToyWeights, optimizer: &ToyOptimizer) -> Result<()> {
        write(&folder.join(MODEL), tables(weights), [0; 2])?;
        let [[logits_m, logits_v], [values_m, values_v]] = &optimizer.moments;
        let moments = [("logits.m", logits_m), ("logits.v", logits_v), ("values.m", values_m), ("values.v", values_v)];
        write(&folder.join(OPTIMIZER), moments, optimizer.updates)
    }

    fn write_reference(&self, folder: &Path, weights: &ToyWeights) -> Result<()> {
        write(&folder.join(REFERENCE), tables(weights), [0; 2])
    }
}

fn tables(weights: &ToyWeights) -> [(&str, &Vec<f32>); 2] {
    [("logits", &*weights.logits), ("values", &*weights.values)]
}

/// The tables of a policy in a file.
fn weights(path: &Path) -> Result<ToyWeights> {
    let mut tables = read(path)?.0;
    let mut take = |name: &str| tables.remove(name).unwrap_or_default();
    let (logits, values) = (take("logits"), take("values"));
    if logits.len() != VOCAB.pow(3) || ![0, VOCAB.pow(2)].contains(&values.len()) {
        let why = format!("{} logits and {} values are not tables of {VOCAB} ids", logits.len(), values.len());
        return Err(Error::file(path, why));
    }
    Ok(ToyWeights { vocab: VOCAB, logits: Arc::new(logits), values: Arc::new(values) })
}

struct Table<'a> {
    numbers: &'a [f32],
    shape: [usize; 1],
}

impl View for Table<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.numbers)
    }
}

fn write<const N: usize>(path: &Path, tables: [(&str, &Vec<f32>); N], updates: [u64; 2]) -> Result<()> {
    let counts = UPDATES.into_iter().zip(updates).map(|(key, updates)| (key.to_owned(), updates.to_string()));
    let metadata: HashMap<String, String> = counts.collect();
    let there = tables.into_iter().filter(|(_, numbers)| !numbers.is_empty());
    let views = there.map(|(name, numbers)| (name.to_owned(), Table { numbers, shape: [numbers.len()] }));
    serialize_to_file(views, Some(metadata), path).map_err(|e| Error::file(path, e))
}

/// The tables of a file by name, and the numbers of updates that it says.
type Tables = (HashMap<String, Vec<f32>>, [u64; 2]);

fn read(path: &Path) -> Result<Tables> {
    let bytes = fs::read(path).map_err(|e| Error::file(path, e))?;
    let refuse = |e: &dyn std::fmt::Display| Error::file(path, format!("not safetensors: {e}"));
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| refuse(&e))?;
    let [updates, values] = UPDATES.map(|key| -> Option<u64> { metadata.metadata().as_ref()?.get(key)?.parse().ok() });
    let updates = updates.unwrap_or(0);
    // Once it was one count for both.
    let updates = [updates, values.unwrap_or(updates)];
    let file = SafeTensors::deserialize(&bytes).map_err(|e| refuse(&e))?;
    let mut tables = HashMap::new();
    for (name, table) in file.tensors() {
        if table.dtype() != Dtype::F32 {
            return Err(Error::file(path, format!("tensor {name}: type {:?}, not F32", table.dtype())));
        }
        let numbers = table.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        tables.insert(name, numbers.collect());
    }
    Ok((tables, updates))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a table, a moment or the count of updates that does not come back.
    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let engine = ToyEngine::new(5).with_critic();
        let learning = Learning { value_coef: 0.5, ..Learning::default() };
        let mut learner = engine.learner(&learning, &Sampling::default(), 9, 4).unwrap();
        let mut optimizer = ToyEngine::optimizer(&mut learner).unwrap();
        optimizer.updates = [3, 5];
        for (i, table) in optimizer.moments.iter_mut().flatten().enumerate() {
            table.iter_mut().zip(0..).for_each(|(x, n)| *x = 0.1 * n as f32 + i as f32);
        }
        engine.writer().write(dir.path(), &learner.weights().unwrap(), &optimizer).unwrap();
        let again = ToyEngine::load(dir.path()).unwrap();
        assert_eq!(again.weights, engine.weights);
        again.restore(dir.path(), &mut learner).unwrap();
        assert_eq!(ToyEngine::optimizer(&mut learner).unwrap(), optimizer);
        let mut without = ToyEngine::new(5).learner(&Learning::default(), &Sampling::default(), 9, 4).unwrap();
        let refused = again.restore(dir.path(), &mut without).unwrap_err().to_string();
        assert!(refused.contains("optimizer.safetensors: "), "{refused}");
        fs::write(dir.path().join(MODEL), "{}").unwrap();
        assert!(ToyEngine::load(dir.path()).unwrap_err().to_string().contains("not safetensors"));
    }
}
