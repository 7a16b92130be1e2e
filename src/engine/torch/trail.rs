//! Activation checkpointing: of a forward pass only what went into each layer is kept, and a layer is computed again when its
//! gradient is wanted (Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174).

use crate::engine::torch::model::Model;
use crate::engine::torch::trees::Trees;
use crate::error::Result;
use tch::{Kind, Tensor, no_grad};

/// What went into each layer of a forward pass.
pub struct Trail<'a> {
    trees: &'a Trees,
    /// One a layer, `[n, d]`.
    inputs: Vec<Tensor>,
    /// What came out of the last one: a leaf of the graph that follows it.
    last: Tensor,
}

impl<'a> Trail<'a> {
    /// [`Model::hidden`] of `trees`, and the trail back.
    ///
    /// # Errors
    /// As there.
    pub fn walk(model: &Model, trees: &'a Trees) -> Result<(Tensor, Trail<'a>)> {
        model.takes(trees)?;
        let mut inputs = Vec::with_capacity(model.depth());
        let last = no_grad(|| -> Result<Tensor> {
            let mut x = model.embedded(trees)?;
            for l in 0..model.depth() {
                let out = model.layer(l, &x, trees)?;
                inputs.push(std::mem::replace(&mut x, out));
            }
            Ok(x)
        })?;
        let last = last.f_set_requires_grad(true)?;
        let hidden = model.normed(&last)?;
        Ok((hidden, Trail { trees, inputs, last }))
    }

    /// Goes back to the embedding, after the backward pass of what followed the hidden states. Nothing to do where there was none.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn back(mut self, model: &Model) -> Result<()> {
        let mut gradient = self.last.f_grad()?;
        if !gradient.defined() {
            return Ok(());
        }
        for (l, input) in self.inputs.drain(..).enumerate().rev() {
            let leaf = input.f_detach()?.f_set_requires_grad(true)?;
            backward(&model.layer(l, &leaf, self.trees)?, &gradient)?;
            gradient = leaf.f_grad()?;
        }
        backward(&model.embedded(self.trees)?, &gradient)
    }
}

/// The backward pass from `y`, whose gradient is given.
fn backward(y: &Tensor, gradient: &Tensor) -> Result<()> {
    Ok(y.f_mul(gradient)?.f_sum(Kind::Float)?.f_backward()?)
}
