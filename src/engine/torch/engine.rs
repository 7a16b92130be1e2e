//! The torch engine behind the contract: a policy's halves, and its checkpoints.

use crate::engine::contract::{Engine, Identity, Tokenize, Writer};
use crate::engine::spec::{Learning, Sampling};
use crate::engine::torch::checkpoint::{self, Alongside};
use crate::engine::torch::config::Config;
use crate::engine::torch::frozen::{self, TorchFrozen};
use crate::engine::torch::generator::TorchGenerator;
use crate::engine::torch::layout::Layout;
use crate::engine::torch::learner::TorchLearner;
use crate::engine::torch::optimizer::State;
use crate::engine::torch::policy::Policy;
use crate::engine::torch::weights::Snapshot;
use crate::engine::torch::{device, moments};
use crate::error::Result;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Metrics, Step, Version};

impl Engine for Policy {
    type Weights = Snapshot;
    type Generator = TorchGenerator;
    type Learner = TorchLearner;
    type Optimizer = State;
    type Frozen = TorchFrozen;
    type Writer = TorchWriter;

    fn describe(&self) -> String {
        let (layers, hidden) = (self.config.num_hidden_layers, self.config.hidden_size);
        format!("{layers} layers, hidden {hidden}, {} parameters", self.layout.parameters())
    }

    fn identity(&self) -> Identity {
        Identity { model: self.hash.clone(), tokenizer: self.tokenizer.hash().to_owned(), ..Identity::default() }
    }

    fn longest(&self) -> usize {
        self.config.max_position_embeddings as usize
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::new(self.tokenizer.clone())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }

    fn hashes(&self) -> Result<Vec<(String, String)>> {
        self.snapshot()?.hashes(&self.layout)
    }

    fn parameters(&self) -> u64 {
        self.layout.parameters() as u64
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Policy::snapshot(self)
    }

    fn set_weights(&mut self, weights: &Snapshot) {
        Policy::set_weights(self, weights);
    }

    fn release_weights(&mut self) {
        Policy::release_weights(self);
    }

    fn generator(&self, sampling: &Sampling, seed: u64, worker: usize) -> Result<TorchGenerator> {
        Policy::generator(self, sampling, seed, worker)
    }

    fn slots(generator: &TorchGenerator) -> usize {
        generator.slots()
    }

    fn library_ns(generator: &TorchGenerator) -> u64 {
        generator.torch_ns()
    }

    fn learner(&self, learning: &Learning, sampling: &Sampling, steps: Step, version: Version) -> Result<TorchLearner> {
        Policy::learner(self, learning, sampling.temperature, steps, version)
    }

    fn frozen(&self, of: &Self, learning: &Learning, sampling: &Sampling) -> Result<TorchFrozen> {
        Policy::frozen(self, of, learning, sampling.temperature)
    }

    fn reference(&self, folder: &Path) -> Result<Option<Snapshot>> {
        frozen::read(folder, &self.layout)
    }

    fn version(learner: &TorchLearner) -> Version {
        learner.version()
    }

    fn relearn(learner: &mut TorchLearner, learning: &Learning, steps: Step) {
        learner.relearn(learning, steps);
    }

    fn recall(learner: &mut TorchLearner, before: &[Metrics]) {
        learner.recall(before);
    }

    fn optimizer(learner: &mut TorchLearner) -> Result<State> {
        learner.optimizer().state().copy()
    }

    fn take_apart(learner: TorchLearner) -> Result<(Snapshot, State)> {
        Ok(learner.take_apart())
    }

    fn restore(&self, folder: &Path, learner: &mut TorchLearner) -> Result<()> {
        let state = moments::load(folder, &self.layout)?;
        learner.optimizer_mut().restore(&state)
    }

    fn writer(&self) -> TorchWriter {
        TorchWriter { config: self.config.clone(), layout: self.layout.clone(), alongside: self.alongside.clone() }
    }

    fn set_threads(threads: u16) {
        device::set_threads(threads);
    }
}

/// Writes Hugging Face folders, with `optimizer.safetensors` beside the weights.
#[derive(Clone, Debug)]
pub struct TorchWriter {
    config: Config,
    layout: Layout,
    alongside: Alongside,
}

impl Writer<Snapshot, State> for TorchWriter {
    fn write(&self, folder: &Path, weights: &Snapshot, optimizer: &State) -> Result<()> {
        checkpoint::write(folder, &self.config, &self.layout, weights.flat(), &self.alongside)?;
        moments::write(folder, &self.layout, optimizer)
    }

    fn write_reference(&self, folder: &Path, weights: &Snapshot) -> Result<()> {
        frozen::write(folder, &self.layout, weights)
    }
}
