//! The operators of tidegate's dataflow, free of models, files and flags: each states what it needs from the world as a
//! small trait (its *port*), so that the whole dataflow runs in a test in milliseconds.
//!
//! ```text
//! prompts -> admit -> generate -> score -> estimate -> train -> seal
//!              ^          ^                              |
//!              |          +----------- weights ----------+   in flight: between two decode steps
//!              +---------------- feedback ---------------+   version frontier = steps done
//! ```
//!
//! Floor 0 ([`record`], [`fault`], [`plan`], [`schedule`], [`lag`], [`select`], [`start`], [`batch`], [`balance`], [`success`]) knows nothing
//! of timely; the operators know nothing of each other beyond the records they pass on; [`dataflow`](dataflow::dataflow) wires them.

pub mod balance;
pub mod batch;
pub mod fault;
pub mod lag;
pub mod plan;
pub mod record;
pub mod schedule;
pub mod select;
pub mod start;
pub mod success;

mod alarm;
pub mod waker;

pub mod admit;
pub mod census;
pub mod curriculum;
pub mod estimate;
pub mod generate;
pub mod recorded;
pub mod score;
pub mod seal;
pub mod train;
pub mod waiting;

pub mod dataflow;
