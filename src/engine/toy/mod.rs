//! The toy engine: a table policy with a small critic in plain Rust.
