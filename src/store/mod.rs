//! The rollout log on disk: the only home of arrow and parquet.
