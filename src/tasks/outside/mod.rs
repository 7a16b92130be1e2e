//! Rewards from outside this program: a program that is asked in lines, or a server that is asked in batches.
//!
//! ```text
//! Client::send -> queue -> a thread a process (or connection) -> Client::finished
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`spec`] | the keys of `[reward]` for both |
//! | [`protocol`] | what is asked and answered, in JSON |
//! | [`failure`] | why a rollout has no reward |
//! | [`pool`] | the queue, who waits for what, and when too much has failed |
//! | [`meter`] | counts and latencies |
//! | [`command`], [`program`] | threads that ask programs; one running program |
//! | [`guard`] | no program outlives this one |
//! | [`http`] | threads that ask a server |
//!
//! Nothing here blocks who sends or collects. A crash, a hang, garbage or silence costs the rollout that was asked about, and
//! nothing else, until [`failure_limit`](spec::CommandSpec::failure_limit) is passed.

pub mod command;
pub mod failure;
pub mod guard;
pub mod http;
pub mod meter;
pub mod pool;
pub mod program;
pub mod protocol;
pub mod spec;

pub use pool::{Client, Meter, Outside, Waits};

#[cfg(test)]
mod tests;
