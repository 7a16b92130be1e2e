//! Prompts and rewards: texts in, texts and numbers out. Nothing here knows a tokenizer, a model or Parquet.
//!
//! | module | what it is |
//! |---|---|
//! | [`spec`] | `[[task]]`, `[data]` and `[reward]` of the run's configuration |
//! | [`item`] | one task text with its answer: what every source gives |
//! | [`source`] | a run's prompts: the n-th is a function of n |
//! | [`generated`] | tasks made here, in a training and a held-out half |
//! | [`sorting`], [`addition`], [`expression`], [`program`] | the generated tasks: short, medium, long, and with a long tail; [`example`] what each gives |
//! | [`prompts`], [`table`], [`jsonl`], [`template`] | data sets of others: rows, where they lie, JSON Lines, chat templates (`messages` for them, `python_json` in them) |
//! | [`fit`] | prompts that are too long |
//! | [`reward`], [`number`] | what a completion is worth, by rule |
//! | [`outside`] | what a completion is worth, asked of a program or a server |
//! | [`draw`], [`shuffle`] | deterministic randomness |

pub mod addition;
pub mod draw;
pub mod example;
pub mod expression;
pub mod fit;
pub mod generated;
pub mod item;
pub mod jsonl;
mod messages;
pub mod number;
pub mod outside;
pub mod program;
pub mod prompts;
mod python_json;
pub mod reward;
pub mod shuffle;
pub mod sorting;
pub mod source;
pub mod spec;
pub mod table;
pub mod template;
