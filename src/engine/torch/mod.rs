//! The torch engine: the only folder that names tch.
