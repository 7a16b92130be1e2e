//! Model folders: Hugging Face's layout of `config.json`, safetensors and tokenizer files.

use crate::engine::sampler::uniform;
use crate::engine::torch::layout::{Entry, Layout};
use crate::error::Result;
use tch::Tensor;

/// Random weights for a new model, `[layout.total]` f32 on the CPU: normal with deviation 0.02, norms 1, biases and the value
/// head 0. A function of the seed and the layout alone.
///
/// # Errors
/// Not enough memory.
pub fn init(layout: &Layout, seed: u64) -> Result<Tensor> {
    let mut flat = vec![0f32; usize::try_from(layout.total).unwrap_or(0)];
    for (number, entry) in layout.entries.iter().enumerate() {
        let (offset, len) = (entry.offset as usize, entry.len as usize);
        fill(entry, number as u64, seed, &mut flat[offset..offset + len]);
    }
    Ok(Tensor::f_from_slice(&flat)?)
}

fn fill(entry: &Entry, number: u64, seed: u64, numbers: &mut [f32]) {
    if entry.is_value_head() || entry.name.ends_with(".bias") {
        return numbers.fill(0.0);
    }
    if entry.shape.len() == 1 {
        return numbers.fill(1.0);
    }
    for (i, pair) in numbers.chunks_mut(2).enumerate() {
        // Box and Muller 1958; 1 - u is in (0, 1].
        let draw = |sample| uniform(seed, number << 40 | i as u64, sample, 0);
        let (radius, angle) = ((-2.0 * (1.0 - draw(0)).ln()).sqrt(), std::f64::consts::TAU * draw(1));
        let normals = [radius * angle.cos(), radius * angle.sin()];
        for (x, normal) in pair.iter_mut().zip(normals) {
            *x = (0.02 * normal) as f32;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Weights whose logits lie a few nats apart, with norms, biases and value head that matter too: under [`init`] every token
    /// is about as likely, and a test would see little.
    pub(crate) fn spread(layout: &Layout, seed: u64) -> Tensor {
        let flat = init(layout, seed).unwrap();
        for (entry, mut view) in layout.entries.iter().zip(layout.views(&flat).unwrap()) {
            if entry.shape.len() == 1 || entry.is_value_head() {
                let same_shape = Entry { name: "noise".to_owned(), shape: vec![1, entry.len], ..entry.clone() };
                let mut noise = vec![0f32; entry.len as usize];
                fill(&same_shape, entry.offset as u64, seed, &mut noise);
                view += Tensor::from_slice(&noise).view_as(&view) * 5.0;
            } else {
                view *= 10.0;
            }
        }
        flat
    }
}
