//! Prompts and rewards, one file a task.
