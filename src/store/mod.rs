//! The rollout log on disk: the only home of arrow and parquet.
//!
//! A run's folder ([`layout`]) holds one Parquet file a sealed step, one row a rollout ([`schema`]). The [`writer`] makes them
//! visible all or nothing; [`compact`](compact()) makes many small ones few; the [`reader`] takes steps back from whatever file they
//! are in, also those of older writers, and refuses by file and column.
//! Knows nothing of models, of the dataflow or of what the spec in the footer means.

mod compact;
mod decode;
mod encode;
mod encodings;
pub mod events;
mod file;
mod footer;
mod guard;
pub mod layout;
pub mod ledger;
pub mod lock;
mod merge;
pub mod metrics;
mod pages;
mod positioned;
pub mod reader;
pub mod room;
pub mod rows;
mod scan;
pub mod schema;
mod seal;
pub mod size;
pub mod table;
pub mod view;
pub mod writer;

#[cfg(test)]
mod tests;

pub use compact::{Compacted, Limits, compact};
pub use footer::{Footer, FooterInfo};
pub use layout::RunFolder;
pub use metrics::write_metrics;
pub use reader::{LogReader, Part, StepFile, metrics, read_footer, read_step, steps, steps_after};
pub use room::Room;
pub use rows::read_json_rows;
pub use scan::{Viewed, scan};
pub use table::{Blocks, RowTable};
pub use writer::{ParquetLog, write_rollouts};
