//! Keys and values of the sequences in progress: a fixed slot each.
//!
//! A sequence stays in its slot until it ends, so no key moves. A decode step works on the first slots up to the highest
//! used one, and over as many positions as the longest sequence has.

use crate::engine::torch::config::Config;
use crate::engine::torch::model::KeysAndValues;
use crate::error::Result;
use tch::{Device, Kind, Tensor};

/// Per layer, keys and values `[slots, kv_heads, max_len, head_dim]`.
pub struct Cache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    /// `[max(slots, max_len)]`: 0, 1, 2, ...
    counting: Tensor,
    /// `[1]`: minus infinity and zero, what the mask is made of.
    hidden: Tensor,
    shown: Tensor,
    step: Step,
}

/// What one decode step works on.
struct Step {
    /// Slots, and positions attended to.
    rows: i64,
    length: i64,
    /// `[rows]`: each slot, and where its new key goes.
    slots: Tensor,
    positions: Tensor,
    /// `[rows, 1, 1, length]`.
    mask: Tensor,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(config: &Config, slots: i64, max_len: i64, device: Device) -> Result<Cache> {
        let shape = [slots, config.num_key_value_heads, max_len, config.head_dim];
        let options = (Kind::Float, device);
        let layers = || (0..config.num_hidden_layers).map(|_| Ok(Tensor::f_zeros(shape, options)?)).collect::<Result<_>>();
        let constant = |x: f64| Tensor::f_full([1], x, options);
        let step = Step { rows: 0, length: 0, slots: Tensor::new(), positions: Tensor::new(), mask: Tensor::new() };
        Ok(Cache {
            keys: layers()?,
            values: layers()?,
            counting: Tensor::f_arange(slots.max(max_len), (Kind::Int64, device))?,
            hidden: constant(f64::NEG_INFINITY)?,
            shown: constant(0.0)?,
            step,
        })
    }

    /// Puts a prompt's keys and values (one pair a layer, `[kv_heads, t, head_dim]`) at the start of `slot`.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn fill(&mut self, slot: i64, prefix: &[(Tensor, Tensor)]) -> Result<()> {
        for (l, (keys, values)) in prefix.iter().enumerate() {
            for (cache, new) in [(&self.keys[l], keys), (&self.values[l], values)] {
                cache.f_select(0, slot)?.f_narrow(1, 0, new.size3()?.1)?.f_copy_(new)?;
            }
        }
        Ok(())
    }

    /// Opens a decode step over the first slots: `positions[slot]` (`[rows]` i64) is where each one's new token goes, and
    /// `longest` is the largest of them.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn open(&mut self, positions: &Tensor, longest: i64) -> Result<()> {
        let (rows, length) = (positions.size1()?, longest + 1);
        let later = self.counting.f_narrow(0, 0, length)?.f_gt_tensor(&positions.f_unsqueeze(1)?)?;
        let mask = self.hidden.f_where_self(&later, &self.shown)?.f_view([rows, 1, 1, length])?;
        let slots = self.counting.f_narrow(0, 0, rows)?;
        self.step = Step { rows, length, slots, positions: positions.shallow_clone(), mask };
        Ok(())
    }
}

impl KeysAndValues for Cache {
    fn extend(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let Step { rows, length, slots, positions, .. } = &self.step;
        let put = |cache: &mut Tensor, new: &Tensor| -> Result<Tensor> {
            let _ = cache.f_index_put_(&[Some(slots), None, Some(positions)], new, false)?;
            Ok(cache.f_narrow(0, 0, *rows)?.f_narrow(2, 0, *length)?)
        };
        Ok((put(&mut self.keys[layer], keys)?, put(&mut self.values[layer], values)?))
    }

    fn mask(&self) -> &Tensor {
        &self.step.mask
    }
}
