//! What a job asks of an engine, whichever it is.

use crate::engine::spec::{Learning, Sampling};
use crate::error::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Metrics, Rollout, Step, Version};
use tidegate_operators::train::Learner;

/// How texts become ids.
pub trait Tokenize: Send + Sync {
    /// The ids of a text.
    ///
    /// # Errors
    /// A text that has none.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The first character of the text, whose ids are `ids`, that the vocabulary lacks.
    fn unknown(&self, _text: &str, _ids: &[u32]) -> Option<char> {
        None
    }
}

/// Hashes of what a run starts from, as the log keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub model: String,
    pub tokenizer: String,
    /// Of the models that it was given besides, for a critic and for a reference policy; empty where it was given none.
    pub critic: String,
    pub reference: String,
}

/// A policy in memory, and what makes its two halves. It need not be `Sync`; all that it makes can go to another thread.
pub trait Engine {
    /// An immutable snapshot; clones share its memory.
    type Weights: Clone + Send + Serialize + DeserializeOwned + 'static;
    type Generator: Generator<Weights = Self::Weights> + Send + 'static;
    type Learner: Learner<Weights = Self::Weights> + Send + 'static;
    /// What the learner remembers from step to step besides its weights; immutable.
    type Optimizer: Send + 'static;
    type Frozen: Frozen<Weights = Self::Weights> + Send + 'static;
    type Writer: Writer<Self::Weights, Self::Optimizer> + Send + 'static;

    /// The model's size in a few words.
    fn describe(&self) -> String;
    fn identity(&self) -> Identity;
    /// The longest sequence, tokens, prompt included.
    fn longest(&self) -> usize;
    fn tokenizer(&self) -> Arc<dyn Tokenize>;
    /// What a user should know of the model's folder, a sentence each.
    fn notes(&self) -> &[String];
    /// The model's folder, where what belongs to its tokenizer lies; None where it needs none.
    fn folder(&self) -> Option<&Path>;
    /// The hash of each tensor, as in [`Metrics::weights`](tidegate_operators::record::Metrics::weights).
    ///
    /// # Errors
    /// A device that refuses.
    fn hashes(&self) -> Result<Vec<(String, String)>>;
    /// How many numbers the model has.
    fn parameters(&self) -> u64;

    /// # Errors
    /// Not enough memory.
    fn snapshot(&self) -> Result<Self::Weights>;
    /// Takes other weights of the same layout.
    fn set_weights(&mut self, weights: &Self::Weights);
    /// Frees the memory of its own weights, as far as it is worth it: they may not be asked for again before others are set.
    fn release_weights(&mut self);

    /// A generator without weights yet, for the worker `worker`.
    ///
    /// # Errors
    /// Not enough memory.
    fn generator(&self, sampling: &Sampling, seed: u64, worker: usize) -> Result<Self::Generator>;
    /// How many rollouts the generator samples at once: fewer than it was told where memory ran out.
    fn slots(generator: &Self::Generator) -> usize;
    /// Nanoseconds that the generator spent in the engine's tensor library.
    fn library_ns(generator: &Self::Generator) -> u64;

    /// A learner that starts from a copy of the weights as version `version`, towards `steps` steps.
    ///
    /// # Errors
    /// Not enough memory.
    fn learner(&self, learning: &Learning, sampling: &Sampling, steps: Step, version: Version) -> Result<Self::Learner>;
    /// A policy that nothing trains, with the weights of `of`: it computes as a learner of `learning` does, and scores what was
    /// sampled as `sampling` says.
    ///
    /// # Errors
    /// Weights of another layout, or of another tokenizer; not enough memory.
    fn frozen(&self, of: &Self, learning: &Learning, sampling: &Sampling) -> Result<Self::Frozen>;
    /// The weights that [`Writer::write_reference`] wrote into `folder`; None where it wrote none.
    ///
    /// # Errors
    /// A file that is not of this model.
    fn reference(&self, folder: &Path) -> Result<Option<Self::Weights>>;
    /// The learner's version: the last step that it finished.
    fn version(learner: &Self::Learner) -> Version;
    /// From its next step on the learner learns so, towards `steps` steps. It keeps its weights and what it remembers.
    fn relearn(learner: &mut Self::Learner, learning: &Learning, steps: Step);
    /// Tells a learner that stands at a checkpoint what the steps before measured, in order: what its safeguards go by.
    fn recall(learner: &mut Self::Learner, before: &[Metrics]);
    /// A copy of what the learner remembers besides its weights, between two steps.
    ///
    /// # Errors
    /// Not enough memory.
    fn optimizer(learner: &mut Self::Learner) -> Result<Self::Optimizer>;
    /// A learner's weights and what it remembers, when it has done its last step: no copies, where copies would be large. A step that is
    /// open is dropped, and the weights are those of its version.
    ///
    /// # Errors
    /// Not enough memory.
    fn take_apart(learner: Self::Learner) -> Result<(Self::Weights, Self::Optimizer)>;
    /// Gives the learner back what [`Writer::write`] wrote into `folder` beside the weights.
    ///
    /// # Errors
    /// A file that is missing, or not of this model.
    fn restore(&self, folder: &Path, learner: &mut Self::Learner) -> Result<()>;

    /// What writes checkpoints, on any thread.
    fn writer(&self) -> Self::Writer;
    /// Sets how many threads this thread's work in the tensor library uses. A pool of threads is made for each thread that uses more than
    /// one and stays as long as it: where all pools together are more than the processors, their threads sleep between any two loops
    /// instead of waiting for the next, which halves the rate of small steps. So a thread that is not a worker takes one.
    fn set_threads(threads: u16);
}

/// A policy that nothing trains, which says how likely it finds what another has chosen.
pub trait Frozen {
    type Weights;
    /// What is computed at once.
    type Piece: Send;

    /// Parts the rollouts `which` of a batch into pieces, each of at most `most_tokens` tokens or of one rollout.
    ///
    /// # Errors
    /// A rollout that it cannot compute.
    fn pieces(&self, batch: &[Rollout], which: &[usize], most_tokens: usize) -> Result<Vec<Self::Piece>>;

    /// Fills `logp_reference` (`[T]`, nats) of the rollouts of one piece.
    ///
    /// # Errors
    /// Whatever the device says.
    fn score(&mut self, batch: &mut [Rollout], piece: &Self::Piece) -> Result<()>;

    /// Takes other weights.
    ///
    /// # Errors
    /// Not enough memory.
    fn load(&mut self, weights: &Self::Weights) -> Result<()>;

    /// Nanoseconds that it spent in the engine's tensor library.
    fn library_ns(&self) -> u64;
}

/// Writes a learner's state as files.
pub trait Writer<W, O> {
    /// Writes the model (a folder that the engine opens, and that others read where there are others) and the optimizer into
    /// `folder`, which exists and is seen by nobody yet.
    ///
    /// # Errors
    /// A disk that refuses.
    fn write(&self, folder: &Path, weights: &W, optimizer: &O) -> Result<()>;

    /// Writes a reference's weights beside them.
    ///
    /// # Errors
    /// A disk that refuses.
    fn write_reference(&self, folder: &Path, weights: &W) -> Result<()>;
}
