//! The kernel: pure maths on slices (floor 0). Knows nothing of tensors, files or operators.

pub mod advantage;
pub mod aggregation;
pub mod ess;
pub mod kl;
pub mod loss;
