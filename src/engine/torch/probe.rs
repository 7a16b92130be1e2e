//! What a device can do, and what a model says there: what measurements hold the engine to.

use crate::engine::spec::Dtype;
use crate::engine::torch::config::Config;
use crate::engine::torch::device::kind;
use crate::engine::torch::layout::Layout;
use crate::engine::torch::model::{Form, Model};
use crate::engine::torch::trees::{Tree, Trees};
use crate::engine::torch::weights::Snapshot;
use crate::error::Result;
use std::time::Instant;
use tch::{Cuda, Device, Kind, Tensor, no_grad};

/// What a device reaches, without anything of a model around it.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Bytes read and bytes written, a second, by a copy in its memory.
    pub bytes_s: f64,
    /// Multiplications and additions a second in a product of square matrices.
    pub flops_s: f64,
}

/// Times that each is done; the best one counts.
const TIMES: usize = 5;

/// Measures `device`, products in the type `dtype`: about a second.
///
/// # Errors
/// A device that is not there, or has no room for the 4 GiB (on the CPU, 256 MiB) that this takes.
pub fn rates(device: Device, dtype: Dtype) -> Result<Rates> {
    let (bytes, side) = if device == Device::Cpu { (1i64 << 27, 1024i64) } else { (1i64 << 31, 8192i64) };
    no_grad(|| {
        let from = Tensor::f_ones([bytes / 4], (Kind::Float, device))?;
        let mut to = from.f_zeros_like()?;
        let copy = best(device, || Ok(to.f_copy_(&from)?))?;
        drop((from, to));
        let x = Tensor::f_ones([side, side], (Kind::Float, device))?.f_to_kind(kind(dtype))?;
        let y = x.f_zeros_like()?;
        let product = best(device, || Ok(y.f_matmul_out(&x, &x).map(drop)?))?;
        Ok(Rates { bytes_s: 2.0 * bytes as f64 / copy, flops_s: 2.0 * (side as f64).powi(3) / product })
    })
}

/// Seconds of the fastest of some times, after one that is not counted.
fn best(device: Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    f()?;
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        wait(device);
        let begun = Instant::now();
        f()?;
        wait(device);
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Until a device has done what it was given.
pub fn wait(device: Device) {
    if let Device::Cuda(number) = device {
        Cuda::synchronize(number as i64);
    }
}

/// Random weights of a layout, made where they will be: normal with deviation 0.02, norms 1, biases 0.
///
/// # Errors
/// Not enough memory.
pub fn random_weights(layout: &Layout, device: Device, seed: i64) -> Result<Snapshot> {
    no_grad(|| {
        tch::manual_seed(seed);
        let mut flat = Tensor::f_zeros([layout.total], (Kind::Float, device))?;
        let _ = flat.f_normal_(0.0, 0.02)?;
        for part in &layout.parts {
            if part.shape.len() == 1 {
                let _ = part.view(&flat)?.f_fill_(if part.name.ends_with(".bias") { 0.0 } else { 1.0 })?;
            }
        }
        Snapshot::copy_of(&flat)
    })
}

/// The logits of all tokens of `sequences`, `[tokens * V]`, computed on `device` in `dtype` and brought to the host.
///
/// # Errors
/// As [`Model::new`] and [`Model::hidden`].
pub fn logits(
    config: &Config,
    layout: &Layout,
    weights: &Snapshot,
    device: Device,
    dtype: Dtype,
    sequences: &[Vec<u32>],
) -> Result<Vec<f32>> {
    no_grad(|| {
        let flat = weights.flat().f_to_device(device)?.f_to_kind(kind(dtype))?;
        let model = Model::new(config, layout, &flat, Form::Views)?;
        let trees: Vec<Tree> = sequences.iter().map(|trunk| Tree { trunk, branches: Vec::new() }).collect();
        let logits = model.logits(&model.hidden(&Trees::new(&trees, device)?)?)?;
        Ok(Vec::try_from(logits.f_flatten(0, -1)?)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::device::tests::device;
    use crate::engine::torch::layout::ValueHead;

    /// Catches weights under which a model says nothing, and a device that says something else than the CPU.
    #[test]
    fn a_device_says_what_the_cpu_says() {
        let config = tiny(Family::Qwen3);
        let layout = Layout::of(&config, ValueHead::None);
        let weights = random_weights(&layout, Device::Cpu, 1).unwrap();
        let of = |device, dtype| logits(&config, &layout, &weights, device, dtype, &[vec![1, 2, 3], vec![9, 8, 7]]).unwrap();
        let right = of(Device::Cpu, Dtype::Fp32);
        assert_eq!(right.len(), 6 * 50);
        assert!(right.iter().any(|x| x.abs() > 0.1));
        for (dtype, tolerance) in [(Dtype::Fp32, 1e-5), (Dtype::Bf16, 2e-2)] {
            let far = of(device(), dtype).iter().zip(&right).fold(0f32, |far, (a, b)| far.max((a - b).abs()));
            assert!(far < tolerance, "{far}");
        }
    }

    #[test]
    fn rates_are_of_this_world() {
        let rates = rates(device(), Dtype::Fp32).unwrap();
        assert!((1e8..1e14).contains(&rates.bytes_s) && (1e8..1e17).contains(&rates.flops_s), "{rates:?}");
    }
}
