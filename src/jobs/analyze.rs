//! `analyze` (being built).
