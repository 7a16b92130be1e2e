//! A shuffled order without a list: a keyed permutation of `0..len`, any place of which is computed on its own.

use super::draw::mix;
use super::table::Spread;

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
        Permutation::keyed(len, mix(mix(seed) ^ u64::from(epoch)))
    }

    fn keyed(len: u64, key: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Permutation { len, half: bits.div_ceil(2).max(1), key }
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

    /// The same order's `part`: one more permutation, of `0..len`.
    fn part(&self, len: u64, part: u64) -> Permutation {
        Permutation::keyed(len, mix(self.key ^ mix(part + 1)))
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

/// The row at `place` of `epoch`'s order of `rows` rows; `place` is below `rows`. A function of its arguments alone.
///
/// Where rows are read in blocks, the blocks are shuffled, and rows are among those of as many blocks as are kept: the order
/// goes through one such window after the other. The last block, which may be shorter, is always in the last window.
pub fn shuffled(rows: u64, spread: Spread, seed: u64, epoch: u32, place: u64) -> u64 {
    let all = Permutation::new(rows, seed, epoch);
    let Spread::Blocks { rows: block, kept } = spread else { return all.at(place) };
    let (block, whole) = (block.max(1), rows / block.max(1));
    let window = block.saturating_mul(kept.max(1));
    let (number, start) = (place / window, place / window * window);
    let place = all.part(window.min(rows - start), number).at(place - start);
    let nth = number * kept.max(1) + place / block;
    let blocks = Permutation::keyed(whole, all.key);
    (if nth < whole { blocks.at(nth) } else { whole }) * block + place % block
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn order(len: u64, seed: u64, epoch: u32) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).map(|place| permutation.at(place)).collect()
    }

    proptest! {
        #[test]
        fn every_element_once(len in 1u64..600, seed: u64, epoch: u32) {
            let mut order = order(len, seed, epoch);
            order.sort_unstable();
            prop_assert_eq!(order, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seeds_and_epochs_have_their_own_orders() {
        let orders = [order(50, 1, 0), order(50, 1, 1), order(50, 2, 0), (0..50).collect()];
        for (i, one) in orders.iter().enumerate() {
            assert!(orders[..i].iter().all(|other| other != one));
        }
    }

    /// Each of the 24 orders of 4 about 100 times in 2400 (binomial, standard deviation 9.8: within 5 of them).
    #[test]
    fn all_orders_are_alike_likely() {
        let mut counts = BTreeMap::new();
        for seed in 0..2400 {
            *counts.entry(order(4, seed, 0)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|count| (51..=149).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn every_row_once_whatever_the_blocks(rows in 1u64..600, block in 1u64..40, kept in 1u64..6, seed: u64, epoch in 0u32..3) {
            let spread = Spread::Blocks { rows: block, kept };
            let mut order: Vec<_> = (0..rows).map(|place| shuffled(rows, spread, seed, epoch, place)).collect();
            for window in order.chunks((block * kept) as usize) {
                let blocks: std::collections::BTreeSet<_> = window.iter().map(|row| row / block).collect();
                prop_assert!(blocks.len() as u64 <= kept, "{:?}", window);
            }
            order.sort_unstable();
            prop_assert_eq!(order, (0..rows).collect::<Vec<_>>());
        }
    }

    /// Rows that lie evenly have the order that they always had; others another one, which differs by epoch.
    #[test]
    fn the_order_of_few_rows_is_the_old_one() {
        let of = |spread, epoch| -> Vec<u64> { (0..50).map(|place| shuffled(50, spread, 1, epoch, place)).collect() };
        assert_eq!(of(Spread::Even, 0), order(50, 1, 0));
        assert_eq!(order(50, 1, 0)[..8], [26, 18, 14, 46, 48, 5, 33, 43]);
        let blocks = Spread::Blocks { rows: 5, kept: 3 };
        assert_ne!(of(blocks, 0), of(blocks, 1));
        assert_ne!(of(blocks, 0)[..15], (0..15).collect::<Vec<_>>()[..]);
        let first: Vec<u64> = of(blocks, 0)[..15].to_vec();
        assert_ne!(
            first.iter().map(|row| row % 5).collect::<Vec<_>>()[..5],
            first[5..10].iter().map(|row| row % 5).collect::<Vec<_>>()[..]
        );
    }

    #[test]
    fn works_at_the_largest_sizes() {
        let permutation = Permutation::new(u64::MAX, 7, 0);
        assert_ne!(permutation.at(0), permutation.at(u64::MAX - 1));
    }
}
