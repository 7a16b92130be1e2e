//! tidegate post-trains language models with reinforcement learning as one timely dataflow.
//!
//! Read bottom to top: each module uses those before it in this list, never those after it, never its siblings.

pub mod clock;
pub mod crash;
pub mod durable;
pub mod error;
pub mod kernel;

pub mod engine;
pub mod store;
pub mod tasks;

pub mod spec;

pub mod jobs;
pub mod pipeline;

pub mod cli;
