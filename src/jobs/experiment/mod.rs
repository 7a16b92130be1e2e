//! `experiment`: the same run under several settings and seeds, cell by cell, each a process of its own; what they came to is kept,
//! so that it goes on where it stopped.
//!
//! * [`design`] which cells there are; [`cell`] runs one; [`results`] keeps what it came to; [`table`] means and deviations, [`speed_up`] ratios;
//!   [`reached`] when a run got to a reward; [`page`] pictures; [`job`] all of them in turn;
//! * [`kl`] cells that are measurements of a run in place of runs.

pub mod cell;
pub mod design;
pub mod job;
pub mod kl;
pub mod page;
pub mod reached;
pub mod results;
pub mod speed_up;
pub mod table;
