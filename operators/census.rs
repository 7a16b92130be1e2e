//! `census`: how many groups are in each state, kept incrementally.
