//! Effective sample size.
