//! The toy engine: a table policy with a small critic in plain Rust, so that a whole run takes milliseconds.
//!
//! ```text
//! policy      the weights: logits and values by (first token of the prompt, previous token)
//! generator   samples rollouts with them; samples recorded ones again
//! learner     one gradient step a batch, in micro-batches
//! frozen      a reference that nothing trains
//! observed    whole distributions of both, for measurements
//! engine      makes them, and keeps their tables in files
//! task        a tokenizer, prompts and a reward that the table can learn
//! ```
//!
//! It is a second engine beside [`torch`](super::torch), not a stand-in: what holds for the dataflow must hold with both.

pub mod engine;
pub mod frozen;
pub mod generator;
pub mod learner;
mod observed;
pub mod policy;
pub mod task;

pub use engine::ToyEngine;
pub use frozen::ToyFrozen;
pub use generator::{ToyGenerator, resample};
pub use learner::ToyLearner;
pub use policy::ToyWeights;
pub use task::{ToyPrompts, ToyScorer, ToyTokenizer};
