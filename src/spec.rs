//! The run's configuration, composed of each floor's own.
