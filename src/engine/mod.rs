//! Engines: what samples and what learns (floor 2). Two real ones behind one [contract]: [`toy`] (plain Rust) and
//! [`torch`] (libtorch).

pub mod contract;
pub mod critic;
pub mod kept;
pub mod observed;
pub mod reference;
pub mod sampler;
pub mod spec;
pub mod taking;
pub mod tally;
pub mod text_file;
pub mod tokenizer;
pub mod torch;
pub mod toy;
