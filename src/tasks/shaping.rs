//! Reward shaping that needs nothing but lengths.

/// The soft penalty near the length limit (DAPO, arXiv 2503.14476, equation 13), to be added to a reward: 0 up to
/// `limit - buffer` tokens, then falling evenly to -1 at `limit`, and -1 above it. A buffer of 0 is a step
/// just above `limit`.
pub fn overlong_penalty(tokens: usize, limit: usize, buffer: usize) -> f32 {
    let over = (tokens + buffer).saturating_sub(limit);
    match over {
        0 => 0.0,
        _ if over >= buffer => -1.0,
        _ => -(over as f32) / buffer as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::overlong_penalty;

    #[test]
    fn falls_evenly_over_the_buffer() {
        let at = |tokens| overlong_penalty(tokens, 16, 4);
        assert_eq!([0, 12, 13, 14, 15, 16, 17].map(at), [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0]);
        assert_eq!([16, 17].map(|tokens| overlong_penalty(tokens, 16, 0)), [0.0, -1.0]);
        assert_eq!([0, 1, 4].map(|tokens| overlong_penalty(tokens, 4, 8)), [-0.5, -0.625, -1.0]);
    }
}
