//! A shuffled order without a list: a keyed permutation of `0..len`, any place of which is computed on its own.

use super::draw::mix;

const ROUNDS: u64 = 6;

/// A pseudorandom permutation of `0..len`, a function of its key: a Feistel network over the next even power of two, walked until
/// it falls inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). No memory; a resumed run needs
/// no more than the place it had reached.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half: u32,
    key: u64,
}

impl Permutation {
    /// The order of `epoch` under `seed`.
    pub fn new(len: u64, seed: u64, epoch: u32) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Permutation { len, half: bits.div_ceil(2).max(1), key: mix(mix(seed) ^ u64::from(epoch)) }
    }

    /// The element at `place`, which must be below `len`.
    ///
    /// # Panics
    /// `place` is not below `len`: the walk of such a place need not end.
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} of a permutation of {}", self.len);
        let mut value = place;
        loop {
            value = self.network(value);
            // The network is a bijection of a larger range, so the walk comes back to where it began at the latest.
            if value < self.len {
                return value;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half, value & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(self.key ^ mix(right ^ (round << 40))) & mask));
        }
        (left << self.half) | right
    }
}
