//! The toy's whole distributions.

use super::engine::ToyEngine;
use super::frozen::ToyFrozen;
use super::generator::ToyGenerator;
use crate::engine::observed::{Drawn, Observable};
use crate::error::Result;
use tidegate_operators::record::Rollout;

impl Observable for ToyEngine {
    fn observe(generator: &mut ToyGenerator) {
        generator.observe();
    }

    fn drawn(generator: &mut ToyGenerator) -> Vec<Drawn> {
        generator.drawn()
    }

    fn distributions(frozen: &mut ToyFrozen, rollout: &Rollout) -> Result<Vec<f32>> {
        frozen.distributions(rollout)
    }
}
