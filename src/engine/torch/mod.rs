//! The torch engine: the only folder that names tch.

pub mod optimizer;
pub mod pack;
