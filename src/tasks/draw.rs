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
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
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

/// SplitMix64's finalizer: a bijection of 64-bit words that spreads every input bit over all output bits.
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
