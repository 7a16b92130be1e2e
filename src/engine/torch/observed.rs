//! The torch engine's whole distributions.

use crate::engine::observed::{Drawn, Observable};
use crate::engine::torch::frozen::TorchFrozen;
use crate::engine::torch::generator::TorchGenerator;
use crate::engine::torch::policy::Policy;
use crate::error::Result;
use tch::{Kind, Tensor};
use tidegate_operators::record::Rollout;

impl Observable for Policy {
    fn observe(generator: &mut TorchGenerator) {
        generator.observe();
    }

    fn drawn(generator: &mut TorchGenerator) -> Vec<Drawn> {
        generator.drawn()
    }

    fn distributions(frozen: &mut TorchFrozen, rollout: &Rollout) -> Result<Vec<f32>> {
        frozen.distributions(rollout)
    }
}

/// `[n * V]` natural log-probabilities on the host, row by row, of logits `[n, V]` at a temperature (at 1 where that is 0).
///
/// # Errors
/// Whatever libtorch says.
pub(super) fn log_probabilities(logits: &Tensor, temperature: f64) -> Result<Vec<f32>> {
    let divisor = if temperature == 0.0 { 1.0 } else { temperature };
    let logps = logits.f_div_scalar(divisor)?.f_log_softmax(-1, Kind::Float)?;
    Ok(Vec::<f32>::try_from(logps.f_flatten(0, -1)?)?)
}
