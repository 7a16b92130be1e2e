//! A policy: a model's shape, its weights in one flat buffer, its tokenizer, and what makes its two halves.

use crate::engine::contract::Engine;
use crate::engine::spec::{Learning, Sampling};
use crate::engine::tokenizer::{self, Tokenizer};
use crate::engine::torch::checkpoint::{self, Alongside};
use crate::engine::torch::config::Config;
use crate::engine::torch::device;
use crate::engine::torch::frozen::TorchFrozen;
use crate::engine::torch::generator::{Settings, TorchGenerator};
use crate::engine::torch::layout::{Layout, ValueHead};
use crate::engine::torch::learner::TorchLearner;
use crate::engine::torch::weights::Snapshot;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use tch::{Device, Tensor};

/// A model folder in memory. It is Send; what it makes lives on the worker that makes it.
pub struct Policy {
    /// Where its tokenizer (and chat template) lie.
    pub folder: PathBuf,
    pub config: Config,
    pub layout: Layout,
    pub tokenizer: Tokenizer,
    /// Hash of the model's weights as loaded.
    pub hash: String,
    /// What a person should know of the folder, a sentence each.
    pub notes: Vec<String>,
    /// What a saved folder of it has besides.
    pub(super) alongside: Alongside,
    /// None once they were released.
    flat: Option<Tensor>,
    device: Device,
}

impl Policy {
    /// Loads a Hugging Face folder. `device` is `cpu` or `cuda:N`; a value head that the folder lacks starts at 0.
    ///
    /// # Errors
    /// A device that is not there; a folder that is not a model tidegate runs; a tokenizer larger than the vocabulary.
    pub fn load(folder: &Path, device: &str, value_head: ValueHead) -> Result<Policy> {
        let device = device::parse(device)?;
        device::open(device)?;
        let loaded = checkpoint::load(folder, value_head)?;
        let tokenizer = Tokenizer::load(folder)?;
        if tokenizer.size() as i64 > loaded.config.vocab_size {
            let why = format!("{} tokens, but config.json has vocab_size = {}", tokenizer.size(), loaded.config.vocab_size);
            return Err(Error::file(folder.join("tokenizer.json"), why));
        }
        Ok(Policy {
            folder: folder.to_owned(),
            config: loaded.config,
            layout: loaded.layout,
            tokenizer,
            hash: loaded.model_hash,
            notes: loaded.notes,
            alongside: Alongside::read(folder)?,
            flat: Some(loaded.flat),
            device,
        })
    }

    /// Writes a new model of random weights into `folder`, with a token a character.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn create(folder: &Path, config: &Config, alphabet: &str, seed: u64) -> Result<()> {
        let layout = Layout::of(config, ValueHead::None);
        let flat = checkpoint::init(&layout, seed)?;
        checkpoint::save(folder, config, &layout, &flat, &Alongside::default())?;
        tokenizer::write_char_level(folder, alphabet)
    }

    /// A generator of this model, without weights yet.
    ///
    /// # Errors
    /// Not enough memory for its cache.
    pub fn generator(&self, sampling: &Sampling, seed: u64, worker: usize) -> Result<TorchGenerator> {
        let decoder = self.tokenizer.decoder();
        let settings = Settings {
            device: self.device,
            sampling: sampling.clone(),
            seed,
            eos: self.config.eos_token_id.clone(),
            decode: Box::new(move |ids| decoder(ids)),
            max_len: self.config.max_position_embeddings as usize,
            worker,
        };
        TorchGenerator::new(self.config.clone(), self.layout.clone(), settings)
    }

    /// A learner that starts from a copy of these weights as version `version`, towards `steps` steps.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn learner(&self, learning: &Learning, temperature: f64, steps: u64, version: u64) -> Result<TorchLearner> {
        let flat = self.snapshot()?.flat().shallow_clone();
        let (config, layout) = (self.config.clone(), self.layout.clone());
        TorchLearner::new(config, layout, flat, self.device, learning.clone(), temperature, steps, version)
    }

    /// A model of these weights' shape that nothing trains, with the weights of `of`, which it may share.
    ///
    /// # Errors
    /// Another tokenizer or another layout; not enough memory.
    pub fn frozen(&self, of: &Policy, learning: &Learning, temperature: f64) -> Result<TorchFrozen> {
        let refuse = |why: String| Err(Error::config("learn.reference.path", of.folder.display(), why));
        let (mine, theirs) = (self.tokenizer.hash(), of.tokenizer.hash());
        if mine != theirs {
            return refuse(format!("its tokenizer's hash is {theirs}, the policy's {mine}: ids would not mean the same"));
        }
        let (config, layout) = (of.config.clone(), of.layout.clone());
        if layout != self.layout || config.num_attention_heads != self.config.num_attention_heads {
            let (mine, theirs) = (Engine::describe(self), Engine::describe(of));
            return refuse(format!("a model of {theirs}, the policy has {mine}: it must be of the policy's layout"));
        }
        TorchFrozen::new(config, layout, of.flat()?, self.device, device::kind(learning.dtype), temperature)
    }

    /// An immutable copy of the weights.
    ///
    /// # Errors
    /// Not enough memory, or weights that were released.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::copy_of(self.flat()?)
    }

    fn flat(&self) -> Result<&Tensor> {
        self.flat.as_ref().ok_or_else(|| Error::engine("policy", "its weights were released, and no others were set"))
    }

    /// Takes other weights of the same layout.
    pub fn set_weights(&mut self, weights: &Snapshot) {
        self.flat = Some(weights.flat().shallow_clone());
    }

    /// Frees the memory of the weights. Until others are set, what needs them is an error.
    pub fn release_weights(&mut self) {
        self.flat = None;
    }

    /// Saves a folder that `load` and transformers read, tokenizer included.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn save(&self, folder: &Path) -> Result<()> {
        checkpoint::save(folder, &self.config, &self.layout, self.flat()?, &self.alongside)
    }
}
