//! The dataflow, top to bottom.
