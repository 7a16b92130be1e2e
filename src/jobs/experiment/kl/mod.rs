//! KL by lag: how far the behavior distribution is from the current policy when weights change in flight, with keys kept or recomputed, and
//! when they do not (PipelineRL, arXiv 2509.19128, figure 7). The cells of a design that has a `[kl]` are measurements of one run, which keeps
//! a checkpoint after every step.
//!
//! * [`ways`] which weights sample which token; [`measure`] one sequence, token by token; [`cell`] the run where it is missing, and a
//!   measurement of it; [`table`] and [`page`] what they came to.

pub mod cell;
pub mod measure;
pub mod page;
pub mod table;
pub mod ways;
