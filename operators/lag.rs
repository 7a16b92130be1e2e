//! The lag rule (floor 0: pure).
