//! Choosing a token: counter-based randomness, and the distribution that is sampled from.
//!
//! Every draw is a function of (run seed, group, sample, position), so that it does not depend on which other rollouts
//! share the batch.

/// A uniform draw in `[0, 1)`: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) keyed by
/// the seed, with (group, sample, position) as its counter. 53 random bits.
pub fn uniform(seed: u64, group: u64, sample: u32, position: u32) -> f64 {
    let counter = [group as u32, (group >> 32) as u32, sample, position];
    let [a, b, ..] = philox4x32_10(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

fn philox4x32_10(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(c[0]) * 0xD251_1F53;
        let p1 = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (kat_vectors).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32_10([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }
}
