//! Leaves of the graph over one flat buffer of weights, and one flat buffer that their gradients add up in.

use crate::engine::torch::layout::Layout;
use crate::error::Result;
use tch::{Kind, Tensor};

/// The flat gradient of flat weights (both `[layout.total]`, f32).
#[derive(Debug)]
pub struct Gradient {
    flat: Tensor,
}

impl Gradient {
    /// One leaf an entry of `layout`, sharing the memory of `flat`, so that an update of `flat` in place is one of the model.
    /// Their gradients are views on the flat gradient: libtorch adds to a gradient that is there in place, so a backward pass
    /// writes straight into it and nothing is gathered afterwards.
    ///
    /// # Errors
    /// A buffer that is not the layout's, or a device without the room.
    pub fn with_leaves(layout: &Layout, flat: &Tensor) -> Result<(Gradient, Vec<Tensor>)> {
        let gradient = flat.f_zeros_like()?;
        let tie = |(weights, place): (Tensor, Tensor)| {
            let leaf = weights.f_detach()?.f_set_requires_grad(true)?;
            // A backward pass makes the gradient exist; its memory is then exchanged.
            leaf.f_sum(Kind::Float)?.f_backward()?;
            leaf.f_grad()?.f_set_data(&place)?;
            Ok(leaf)
        };
        let leaves = layout.views(flat)?.into_iter().zip(layout.views(&gradient)?).map(tie).collect::<Result<_>>()?;
        Ok((Gradient { flat: gradient }, leaves))
    }

    /// Forgets what was added.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn clear(&mut self) -> Result<()> {
        let _ = self.flat.f_zero_()?;
        Ok(())
    }

    /// The sum of all gradients since it was cleared, `[layout.total]`.
    pub fn flat(&mut self) -> &mut Tensor {
        &mut self.flat
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::layout::ValueHead;
    use tch::Device;

    #[test]
    fn backward_adds_into_the_flat_buffer_and_updates_reach_the_leaves() {
        let layout = Layout::of(&tiny(Family::Qwen2), ValueHead::Present);
        let mut flat = Tensor::ones([layout.total], (Kind::Float, Device::Cpu));
        let (mut gradient, leaves) = Gradient::with_leaves(&layout, &flat).unwrap();
        assert_eq!(gradient.flat().abs().max().double_value(&[]), 0.0);
        for pass in 1..=3 {
            for (i, leaf) in leaves.iter().enumerate() {
                ((leaf * leaf).sum(Kind::Float) * (0.5 * i as f64)).backward();
            }
            for (i, view) in layout.views(gradient.flat()).unwrap().iter().enumerate() {
                let (least, most) = (view.min().double_value(&[]), view.max().double_value(&[]));
                assert_eq!((least, most), (f64::from(pass) * i as f64, f64::from(pass) * i as f64));
            }
        }
        gradient.clear().unwrap();
        assert_eq!(leaves[3].grad().abs().max().double_value(&[]), 0.0);
        let _ = tch::no_grad(|| flat.f_add_scalar_(1.0)).unwrap();
        assert_eq!(leaves[3].min().double_value(&[]), 2.0);
    }
}
