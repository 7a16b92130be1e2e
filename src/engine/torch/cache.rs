//! Keys and values of the sequences in progress: a fixed slot each.
//!
//! A sequence stays in its slot until it ends, so no key moves. A decode step works on the first slots up to the highest
//! used one, and over as many positions as the longest sequence has.

use crate::engine::torch::config::Config;
use crate::engine::torch::model::KeysAndValues;
use crate::error::Result;
use tch::{Device, Kind, Tensor};

/// Per layer, keys and values `[slots, kv_heads, length, head_dim]`, where `length` grows with the longest sequence: a model that
/// takes 128k tokens costs what its rollouts have, not what they might.
pub struct Cache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    /// Positions that there is room for, and the most there may be.
    length: i64,
    max_len: i64,
    /// `[max(slots, max_len)]`: 0, 1, 2, ...
    counting: Tensor,
    /// `[1]`: minus infinity and zero, what the mask is made of.
    hidden: Tensor,
    shown: Tensor,
    step: Step,
    /// Positions of all slots together that fit into memory.
    #[cfg(test)]
    pub room: i64,
}

/// Positions a slot has room for at first.
const FIRST_LENGTH: i64 = 128;

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
        let length = FIRST_LENGTH.min(max_len);
        let shape = [slots, config.num_key_value_heads, length, config.head_dim];
        let options = (Kind::Float, device);
        let layers = || (0..config.num_hidden_layers).map(|_| Ok(Tensor::f_zeros(shape, options)?)).collect::<Result<_>>();
        let constant = |x: f64| Tensor::f_full([1], x, options);
        let step = Step { rows: 0, length: 0, slots: Tensor::new(), positions: Tensor::new(), mask: Tensor::new() };
        Ok(Cache {
            keys: layers()?,
            values: layers()?,
            length,
            max_len,
            counting: Tensor::f_arange(slots.max(max_len), (Kind::Int64, device))?,
            hidden: constant(f64::NEG_INFINITY)?,
            shown: constant(0.0)?,
            step,
            #[cfg(test)]
            room: i64::MAX,
        })
    }

    /// Makes room for `length` positions a slot: at least twice what there was, so that growing costs little in the end.
    fn grow(&mut self, length: i64) -> Result<()> {
        if length <= self.length {
            return Ok(());
        }
        let length = length.max(2 * self.length).min(self.max_len.max(length));
        #[cfg(test)]
        tests::fits(self, length)?;
        for cache in self.keys.iter_mut().chain(&mut self.values) {
            let (slots, heads, old, dim) = cache.size4()?;
            let larger = Tensor::f_zeros([slots, heads, length, dim], (cache.kind(), cache.device()))?;
            larger.f_narrow(2, 0, old)?.f_copy_(cache)?;
            *cache = larger;
        }
        self.length = length;
        Ok(())
    }

    /// Gives up all slots but these, which become the first ones in this order. Positions that a failed [`open`](Cache::open) or
    /// [`fill`](Cache::fill) made room for in some layers go too.
    ///
    /// # Errors
    /// No memory for the slots that are left of one layer.
    pub fn keep(&mut self, slots: &[i64]) -> Result<()> {
        let slots = Tensor::f_from_slice(slots)?.f_to_device(self.counting.device())?;
        for cache in self.keys.iter_mut().chain(&mut self.values) {
            *cache = cache.f_narrow(2, 0, self.length)?.f_index_select(0, &slots)?;
        }
        Ok(())
    }

    /// Puts a prompt's keys and values (one pair a layer, `[kv_heads, t, head_dim]`) at the start of `slot`.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn fill(&mut self, slot: i64, prefix: &[(Tensor, Tensor)]) -> Result<()> {
        if let Some((keys, _)) = prefix.first() {
            self.grow(keys.size3()?.1 + 1)?;
        }
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
        self.grow(length)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::memory;

    /// A cache that would not find the memory.
    pub(super) fn fits(cache: &Cache, length: i64) -> Result<()> {
        if cache.keys[0].size()[0] * length <= cache.room { Ok(()) } else { Err(memory::tests::refusal()) }
    }

    /// Catches keys that end up in another's slot, and layers that have grown while others have not.
    #[test]
    fn kept_slots_move_together_and_half_grown_layers_shrink() {
        let config = tiny(Family::Llama);
        let mut cache = Cache::new(&config, 4, 1 << 10, Device::Cpu).unwrap();
        let kind = (Kind::Float, Device::Cpu);
        let prefix = |_: usize| Tensor::rand([config.num_key_value_heads, 50, config.head_dim], kind);
        let prefixes: Vec<Tensor> = (0..4).map(prefix).collect();
        for (slot, one) in prefixes.iter().enumerate() {
            let layers = (0..config.num_hidden_layers).map(|_| (one.shallow_clone(), one.shallow_clone()));
            cache.fill(slot as i64, &layers.collect::<Vec<_>>()).unwrap();
        }
        cache.keys[0] = Tensor::cat(&[&cache.keys[0], &cache.keys[0]], 2);
        cache.keep(&[3, 1]).unwrap();
        for layer in cache.keys.iter().chain(&cache.values) {
            assert_eq!(layer.size()[..3], [2, config.num_key_value_heads, FIRST_LENGTH]);
            for (slot, one) in [(0, &prefixes[3]), (1, &prefixes[1])] {
                assert!(layer.select(0, slot).narrow(1, 0, 50).equal(one));
            }
        }
        cache.open(&Tensor::from_slice(&[50_i64, 300]), 300).unwrap();
    }

    /// Catches a cache that takes at once what the longest sequence of a long model would need, and one that loses keys when
    /// it grows.
    #[test]
    fn memory_follows_the_longest_sequence() {
        let config = tiny(Family::Llama);
        let mut cache = Cache::new(&config, 3, 1 << 20, Device::Cpu).unwrap();
        assert_eq!(cache.keys[0].size()[2], FIRST_LENGTH);
        let prefix = Tensor::rand([config.num_key_value_heads, 100, config.head_dim], (Kind::Float, Device::Cpu));
        let layers = (0..config.num_hidden_layers).map(|_| (prefix.shallow_clone(), prefix.shallow_clone()));
        cache.fill(2, &layers.collect::<Vec<_>>()).unwrap();
        cache.open(&Tensor::from_slice(&[5_i64, 6, 300]), 300).unwrap();
        assert_eq!(cache.values[1].size()[2], 301);
        assert!(cache.keys[1].select(0, 2).narrow(1, 0, 100).equal(&prefix));
        cache.open(&Tensor::from_slice(&[5_i64, 6, 301]), 301).unwrap();
        assert_eq!(cache.values[1].size()[2], 602);
    }
}
