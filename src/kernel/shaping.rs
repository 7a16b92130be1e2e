//! Reward shaping: what is made of a reward before advantages are estimated from it.

/// How rewards are shaped: `clip(reward) + what its length brings`. The default changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaping {
    /// The least and the largest that a reward counts for; `least <= largest`, neither NaN.
    pub bounds: [f32; 2],
    /// Added for each token: above 0 a bonus on length, below 0 a cost.
    pub per_token: f32,
    /// The soft penalty near the length limit; None: there is none.
    pub overlong: Option<Overlong>,
}

/// The soft penalty near the length limit, see [`overlong_penalty`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlong {
    /// Most tokens of a rollout.
    pub limit: usize,
    /// Over how many tokens before the limit the penalty grows.
    pub buffer: usize,
    /// What it is at the limit, 0 or more.
    pub penalty: f32,
}

impl Default for Shaping {
    fn default() -> Self {
        Shaping { bounds: [f32::NEG_INFINITY, f32::INFINITY], per_token: 0.0, overlong: None }
    }
}

impl Shaping {
    /// The reward between the bounds. NaN, which is no reward, stays so.
    ///
    /// # Panics
    /// If the bounds are not in order.
    pub fn clipped(&self, reward: f32) -> f32 {
        let [least, largest] = self.bounds;
        reward.clamp(least, largest)
    }

    /// What is added to a reward for a rollout of so many tokens.
    pub fn by_length(&self, tokens: usize) -> f32 {
        let soft = |o: Overlong| o.penalty * overlong_penalty(tokens, o.limit, o.buffer);
        self.per_token * tokens as f32 + self.overlong.map_or(0.0, soft)
    }

    /// The reward that advantages are estimated from.
    ///
    /// ```
    /// use tidegate::kernel::shaping::{Overlong, Shaping};
    ///
    /// let overlong = Some(Overlong { limit: 16, buffer: 4, penalty: 1.0 });
    /// let shaping = Shaping { bounds: [-1.0, 1.0], overlong, ..Shaping::default() };
    /// assert_eq!([4, 14, 16].map(|tokens| shaping.shaped(3.0, tokens)), [1.0, 0.5, 0.0]);
    /// ```
    pub fn shaped(&self, reward: f32, tokens: usize) -> f32 {
        self.clipped(reward) + self.by_length(tokens)
    }
}

/// The soft penalty near the length limit (DAPO, arXiv 2503.14476, equation 13), to be added to a reward: 0 up to
/// `limit - buffer` tokens, then falling evenly to -1 at `limit`, and -1 above it. A buffer of 0 is a step
/// just above `limit`.
pub fn overlong_penalty(tokens: usize, limit: usize, buffer: usize) -> f32 {
    let over = tokens.saturating_add(buffer).saturating_sub(limit);
    match over {
        0 => 0.0,
        _ if over >= buffer => -1.0,
        _ => -(over as f32) / buffer as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hard case 5. Catches a ramp that begins at the limit, is turned round, or goes on beyond -1.
    #[test]
    fn falls_evenly_over_the_buffer() {
        let at = |tokens| overlong_penalty(tokens, 16, 4);
        assert_eq!([0, 12, 13, 14, 15, 16, 17].map(at), [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0]);
        assert_eq!([16, 17].map(|tokens| overlong_penalty(tokens, 16, 0)), [0.0, -1.0]);
        assert_eq!([0, 1, 4].map(|tokens| overlong_penalty(tokens, 4, 8)), [-0.5, -0.625, -1.0]);
    }

    /// Catches a penalty that is clipped away with the reward (1 for 0.5), or that misses its factor.
    #[test]
    fn length_counts_after_the_clip() {
        let overlong = Some(Overlong { limit: 16, buffer: 4, penalty: 0.5 });
        let shaping = Shaping { bounds: [0.0, 1.0], per_token: 0.25, overlong };
        assert_eq!([0, 2, 14].map(|tokens| shaping.by_length(tokens)), [0.0, 0.5, 3.25]);
        assert_eq!(shaping.shaped(7.0, 2), 1.5);
        assert_eq!(shaping.shaped(-7.0, 14), 3.25);
        let cost = Shaping { per_token: -0.125, ..Shaping::default() };
        assert_eq!((cost.shaped(1.0, 2), cost.shaped(0.0, 8)), (0.75, -1.0));
    }

    /// Catches bounds that are swapped, a default that changes a reward, and a NaN that becomes a bound.
    #[test]
    fn rewards_are_clipped() {
        let shaping = Shaping { bounds: [-0.5, 2.0], ..Shaping::default() };
        assert_eq!([-3.0, -0.5, 0.0, 2.5].map(|reward| shaping.clipped(reward)), [-0.5, -0.5, 0.0, 2.0]);
        assert_eq!([f32::MIN, -0.0, f32::MAX].map(|reward| Shaping::default().shaped(reward, 9)), [f32::MIN, 0.0, f32::MAX]);
        assert!(shaping.shaped(f32::NAN, 1).is_nan());
    }
}
