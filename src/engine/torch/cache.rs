//! Keys and values of the sequences in progress: a fixed slot each.
//!
//! A sequence stays in its slot until it ends, so no key moves. Slots cost memory for as many positions as the longest sequence
//! has, and time for their own alone.

use crate::engine::torch::config::Config;
use crate::error::Result;
use tch::{Device, Kind, Tensor};

/// A sequence's first keys and values: one pair a layer, `[kv_heads, t, head_dim]` each.
pub type Prefix = Vec<[Tensor; 2]>;

/// Per layer, keys and values `[slots, kv_heads, length, head_dim]`, where `length` grows with the longest sequence: a model that
/// takes 128k tokens costs what its rollouts have, not what they might.
pub struct Cache {
    layers: Vec<[Tensor; 2]>,
    /// Positions that there is room for, and the most there may be.
    length: i64,
    max_len: i64,
    kind: Kind,
    /// Positions of all slots together that fit into memory.
    #[cfg(test)]
    pub room: i64,
}

/// Positions a slot has room for at first.
const FIRST_LENGTH: i64 = 128;

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(config: &Config, slots: i64, max_len: i64, kind: Kind, device: Device) -> Result<Cache> {
        let length = FIRST_LENGTH.min(max_len);
        let shape = [slots, config.num_key_value_heads, length, config.head_dim];
        let zeros = || Tensor::f_zeros(shape, (kind, device));
        Ok(Cache {
            layers: (0..config.num_hidden_layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<_>>()?,
            length,
            max_len,
            kind,
            #[cfg(test)]
            room: i64::MAX,
        })
    }

    /// Makes room for `length` positions a slot: at least twice what there was, so that growing costs little in the end.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn grow(&mut self, length: i64) -> Result<()> {
        if length <= self.length {
            return Ok(());
        }
        let length = length.max(2 * self.length).min(self.max_len.max(length));
        #[cfg(test)]
        tests::fits(self, length)?;
        for cache in self.layers.as_flattened_mut() {
            let (slots, heads, old, dim) = cache.size4()?;
            let larger = Tensor::f_zeros([slots, heads, length, dim], (cache.kind(), cache.device()))?;
            larger.f_narrow(2, 0, old)?.f_copy_(cache)?;
            *cache = larger;
        }
        self.length = length;
        Ok(())
    }

    /// Gives up all slots but these, which become the first ones in this order. Positions that a failed [`grow`](Cache::grow) made
    /// room for in some layers go too.
    ///
    /// # Errors
    /// No memory for the slots that are left of one layer.
    pub fn keep(&mut self, slots: &[i64]) -> Result<()> {
        for cache in self.layers.as_flattened_mut() {
            let slots = Tensor::f_from_slice(slots)?.f_to_device(cache.device())?;
            *cache = cache.f_narrow(2, 0, self.length)?.f_index_select(0, &slots)?;
        }
        Ok(())
    }

    /// A copy of the first `t` positions of `slot`.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn prefix(&self, slot: i64, t: i64) -> Result<Prefix> {
        let copy = |cache: &Tensor| cache.f_select(0, slot)?.f_narrow(1, 0, t)?.f_detach_copy();
        self.layers.iter().map(|[keys, values]| Ok([copy(keys)?, copy(values)?])).collect()
    }

    /// Puts a prefix at the start of `slot`.
    ///
    /// # Errors
    /// Not enough memory for its length and a position more.
    pub fn fill(&mut self, slot: i64, prefix: &Prefix) -> Result<()> {
        if let Some([keys, _]) = prefix.first() {
            self.grow(keys.size3()?.1 + 1)?;
        }
        for (cache, new) in self.layers.as_flattened_mut().iter_mut().zip(prefix.as_flattened()) {
            cache.f_select(0, slot)?.f_narrow(1, 0, new.size3()?.1)?.f_copy_(new)?;
        }
        Ok(())
    }

    /// The type of keys and values.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Keys and values of a layer, which a step writes to and reads: `[slots, kv_heads, length, head_dim]` each.
    pub fn layer(&self, layer: usize) -> [&Tensor; 2] {
        self.layers[layer].each_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::device::tests::device;
    use crate::engine::torch::memory;

    /// A cache that would not find the memory.
    pub(super) fn fits(cache: &Cache, length: i64) -> Result<()> {
        if cache.layers[0][0].size()[0] * length <= cache.room { Ok(()) } else { Err(memory::tests::refusal()) }
    }

    /// Catches keys that end up in another's slot, and layers that have grown while others have not.
    #[test]
    fn kept_slots_move_together_and_half_grown_layers_shrink() {
        let config = tiny(Family::Llama);
        let mut cache = Cache::new(&config, 4, 1 << 10, Kind::Float, device()).unwrap();
        let kind = (Kind::Float, device());
        let prefix = |_: usize| Tensor::rand([config.num_key_value_heads, 50, config.head_dim], kind);
        let prefixes: Vec<Tensor> = (0..4).map(prefix).collect();
        for (slot, one) in prefixes.iter().enumerate() {
            let layers = (0..config.num_hidden_layers).map(|_| [one.shallow_clone(), one.shallow_clone()]);
            cache.fill(slot as i64, &layers.collect()).unwrap();
        }
        cache.layers[0][0] = Tensor::cat(&[&cache.layers[0][0], &cache.layers[0][0]], 2);
        cache.keep(&[3, 1]).unwrap();
        for layer in cache.layers.as_flattened() {
            assert_eq!(layer.size()[..3], [2, config.num_key_value_heads, FIRST_LENGTH]);
            for (slot, one) in [(0, &prefixes[3]), (1, &prefixes[1])] {
                assert!(layer.select(0, slot).narrow(1, 0, 50).equal(one));
            }
        }
        cache.grow(301).unwrap();
    }

    /// Catches a cache that takes at once what the longest sequence of a long model would need, and one that loses keys when
    /// it grows.
    #[test]
    fn memory_follows_the_longest_sequence() {
        let config = tiny(Family::Llama);
        let mut cache = Cache::new(&config, 3, 1 << 20, Kind::Float, device()).unwrap();
        assert_eq!(cache.layers[0][0].size()[2], FIRST_LENGTH);
        let prefix = Tensor::rand([config.num_key_value_heads, 100, config.head_dim], (Kind::Float, device()));
        let layers = (0..config.num_hidden_layers).map(|_| [prefix.shallow_clone(), prefix.shallow_clone()]);
        cache.fill(2, &layers.collect()).unwrap();
        cache.grow(301).unwrap();
        assert_eq!(cache.layers[1][1].size()[2], 301);
        assert!(cache.prefix(2, 100).unwrap().as_flattened().iter().all(|kept| kept.equal(&prefix)));
        cache.grow(302).unwrap();
        assert_eq!(cache.layers[1][1].size()[2], 602);
    }
}
