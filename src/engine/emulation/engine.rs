//! The emulation as an engine: what makes its halves, and its files.

use super::device::{Device, Emulated};
use super::generator::EmulatedGenerator;
use super::learner::EmulatedLearner;
use crate::engine::contract::{Engine, Frozen, Identity, Tokenize, Writer};
use crate::engine::spec::{Learning, Sampling};
use crate::engine::toy::ToyTokenizer;
use crate::engine::toy::task::VOCAB;
use crate::error::{Error, Result};
use crate::kernel::lengths::Lengths;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Metrics, Rollout, Step, Version};

const WEIGHTS: &str = "model.safetensors";
/// The one tensor in it.
const DIGEST: &str = "digest";

/// What stands for weights: a digest of the run's seed and of all that was trained since. Of equal digests one may conclude that the same
/// rollouts were trained in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmulatedWeights(pub(super) [u8; 32]);

impl EmulatedWeights {
    /// Those that a run of this seed starts from.
    pub fn initial(seed: u64) -> Self {
        EmulatedWeights(*blake3::hash(&seed.to_le_bytes()).as_bytes())
    }

    /// Name and hash, as in [`Metrics::weights`].
    pub fn hashes(&self) -> Vec<(String, String)> {
        vec![(DIGEST.to_owned(), blake3::hash(&self.0).to_hex()[..16].to_owned())]
    }
}

/// Accelerators that only take time.
#[derive(Clone, Debug)]
pub struct EmulatedEngine {
    device: Device,
    lengths: Arc<Lengths>,
    weights: EmulatedWeights,
}

impl EmulatedEngine {
    /// New ones, whose rollouts are of these lengths.
    pub fn new(device: Device, lengths: Lengths, seed: u64) -> Self {
        EmulatedEngine { device, lengths: Arc::new(lengths), weights: EmulatedWeights::initial(seed) }
    }

    /// With the weights of a folder that [`Writer::write`] wrote.
    ///
    /// # Errors
    /// A file that is missing, or that holds something else.
    pub fn restored(self, folder: &Path) -> Result<Self> {
        let path = folder.join(WEIGHTS);
        let bytes = fs::read(&path).map_err(|e| Error::file(&path, e))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| Error::file(&path, format!("not safetensors: {e}")))?;
        let found = file.tensor(DIGEST).map_err(|e| Error::file(&path, e))?;
        let digest: Option<[u8; 32]> = found.data().try_into().ok().filter(|_| found.dtype() == Dtype::U8);
        let wrong = || Error::file(&path, format!("{DIGEST} is not 32 bytes: no checkpoint of an emulation"));
        Ok(EmulatedEngine { weights: EmulatedWeights(digest.ok_or_else(wrong)?), ..self })
    }
}

impl Engine for EmulatedEngine {
    type Weights = EmulatedWeights;
    type Generator = EmulatedGenerator;
    type Learner = EmulatedLearner;
    type Optimizer = ();
    type Frozen = NoPolicy;
    type Writer = EmulatedWriter;

    fn describe(&self) -> String {
        format!("no model; lengths of {:.1} tokens in the mean, {} train", self.lengths.mean(), self.device.learners())
    }

    fn identity(&self) -> Identity {
        let hash = self.weights.hashes().pop().map(|(_, hash)| hash).unwrap_or_default();
        Identity { model: format!("emulation {hash}"), tokenizer: format!("toy {VOCAB}"), ..Identity::default() }
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
        0
    }

    fn emulated(&self) -> Option<Emulated> {
        Some(self.device.emulated())
    }

    fn snapshot(&self) -> Result<EmulatedWeights> {
        Ok(self.weights)
    }

    fn set_weights(&mut self, weights: &EmulatedWeights) {
        self.weights = *weights;
    }

    /// 32 bytes: they stay.
    fn release_weights(&mut self) {}

    fn generator(&self, sampling: &Sampling, seed: u64, _worker: usize) -> Result<EmulatedGenerator> {
        Ok(EmulatedGenerator::new(self.device.clone(), Arc::clone(&self.lengths), sampling.clone(), seed))
    }

    fn slots(generator: &EmulatedGenerator) -> usize {
        generator.slots()
    }

    fn library_ns(_: &EmulatedGenerator) -> u64 {
        0
    }

    fn learner(&self, learning: &Learning, _: &Sampling, steps: Step, version: Version) -> Result<EmulatedLearner> {
        Ok(EmulatedLearner::new(self.device.clone(), self.weights, learning.clone(), steps, version))
    }

    fn frozen(&self, _: &Self, _: &Learning, _: &Sampling) -> Result<NoPolicy> {
        Err(Error::config("learn.reference.kl_coef", "above 0", "emulated accelerators hold no policy; allowed: 0"))
    }

    fn reference(&self, _: &Path) -> Result<Option<EmulatedWeights>> {
        Ok(None)
    }

    fn version(learner: &EmulatedLearner) -> Version {
        learner.version()
    }

    fn relearn(learner: &mut EmulatedLearner, learning: &Learning, steps: Step) {
        learner.relearn(learning, steps);
    }

    /// No safeguard goes by what the steps before measured.
    fn recall(_: &mut EmulatedLearner, _: &[Metrics]) {}

    fn optimizer(_: &mut EmulatedLearner) -> Result<()> {
        Ok(())
    }

    fn take_apart(learner: EmulatedLearner) -> Result<(EmulatedWeights, ())> {
        Ok((learner.digest(), ()))
    }

    /// The weights are all that there is.
    fn restore(&self, _: &Path, _: &mut EmulatedLearner) -> Result<()> {
        Ok(())
    }

    fn writer(&self) -> EmulatedWriter {
        EmulatedWriter
    }

    fn set_threads(_: u16) {}
}

/// Writes digests.
#[derive(Clone, Copy, Debug)]
pub struct EmulatedWriter;

impl Writer<EmulatedWeights, ()> for EmulatedWriter {
    fn write(&self, folder: &Path, weights: &EmulatedWeights, _: &()) -> Result<()> {
        let path = folder.join(WEIGHTS);
        let digest = TensorView::new(Dtype::U8, vec![32], &weights.0).map_err(|e| Error::file(&path, e))?;
        serialize_to_file([(DIGEST, digest)], None, &path).map_err(|e| Error::file(&path, e))
    }

    /// There is no reference.
    fn write_reference(&self, _: &Path, _: &EmulatedWeights) -> Result<()> {
        Ok(())
    }
}

/// A policy that could say how likely it finds a token: emulated accelerators have none.
#[derive(Clone, Copy, Debug)]
pub enum NoPolicy {}

impl Frozen for NoPolicy {
    type Weights = EmulatedWeights;
    type Piece = ();

    fn pieces(&self, _: &[Rollout], _: &[usize], _: usize) -> Result<Vec<()>> {
        match *self {}
    }

    fn score(&mut self, _: &mut [Rollout], (): &()) -> Result<()> {
        match *self {}
    }

    fn load(&mut self, _: &EmulatedWeights) -> Result<()> {
        match *self {}
    }

    fn library_ns(&self) -> u64 {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::capacity::Speed;

    fn engine(seed: u64) -> EmulatedEngine {
        let lengths = Lengths::uniform(8).unwrap();
        EmulatedEngine::new(Device::new(Speed::PAPER, 2, 0.0, 0.0), lengths, seed)
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let learner = engine(5).learner(&Learning::default(), &Sampling::default(), 9, 4).unwrap();
        let (weights, optimizer) = EmulatedEngine::take_apart(learner).unwrap();
        engine(5).writer().write(dir.path(), &weights, &optimizer).unwrap();
        let again = engine(6).restored(dir.path()).unwrap();
        assert_eq!((again.snapshot().unwrap(), again.identity()), (weights, engine(5).identity()));
        assert_ne!(engine(6).identity(), engine(5).identity());
        fs::write(dir.path().join(WEIGHTS), "{}").unwrap();
        assert!(engine(5).restored(dir.path()).unwrap_err().to_string().contains("not safetensors"));
    }
}
