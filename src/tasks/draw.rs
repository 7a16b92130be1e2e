//! Deterministic draws for task texts: a function of a key, so that any item of a stream can be made on its own.

/// A small generator of uniform integers: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014), started from a key.
#[derive(Clone, Debug)]
pub struct Draw {
    state: u64,
}

impl Draw {
    /// The draws of `key`: equal keys give equal draws.
    pub fn new(key: &[u64]) -> Self {
        Draw { state: key.iter().fold(0x7469_6465_6761_7465, |state, &part| mix(state ^ mix(part))) }
    }

    fn next(&mut self) -> u64 {
        let drawn = mix(self.state);
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        drawn
    }

    /// A uniform integer in `0..bound` (multiply and shift: the bias is at most `bound / 2^64`); 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform integer in `low..=high`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(u64::from(high.saturating_sub(low)) + 1) as u32
    }

    /// A uniform number in `0.0..1.0`, 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// One output of SplitMix64 from the state `z`: a bijection of 64-bit words that spreads every input bit over all output bits.
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A hash of a text that is the same on every machine and in every version: FNV-1a, finalized by [`mix`].
pub fn text_hash(text: &str) -> u64 {
    let fnv = text
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of Vigna's splitmix64.c from state 1234567, and FNV-1a's published value of "foobar".
    #[test]
    fn known_answers() {
        let mut draw = Draw { state: 1_234_567 };
        assert_eq!([draw.next(), draw.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_eq!(text_hash("foobar"), mix(0x8594_4171_F739_67E8));
    }

    #[test]
    fn draws_stay_in_range_and_reach_its_ends() {
        let mut draw = Draw::new(&[1, 2]);
        let seen: std::collections::BTreeSet<u32> = (0..200).map(|_| draw.between(3, 7)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
        assert_eq!([draw.below(0), draw.below(1)], [0, 0]);
        let mean = (0..1000).map(|_| draw.unit()).sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
    }

    #[test]
    fn the_order_of_a_key_matters() {
        assert_ne!(Draw::new(&[1, 2]).next(), Draw::new(&[2, 1]).next());
        assert_eq!(Draw::new(&[1, 2]).next(), Draw::new(&[1, 2]).next());
    }
}
