//! How a critic learns, and how much it knows: the clipped value loss and explained variance.

use super::loss::value_loss;

/// [`value_loss`] bounded around the value that was recorded when the token was sampled (PPO's value clip: Schulman et al. 2017,
/// arXiv 1707.06347, in the authors' code; verl): the larger of `(value - target)^2` and the same of the value cut to within
/// `clip` of `recorded`, and its derivative with respect to `value`, which is 0 where the cut one is larger.
///
/// So a value that has moved further than `clip` towards its target moves no further, and one that has moved away from it may come
/// back. A `clip` of 0 is no bound, and `recorded` is not read then. A NaN comes out as NaN.
///
/// ```
/// use tidegate::kernel::critic::clipped_value_loss;
///
/// // From 0 to 0.5, of a target of 1, and no more than 0.25 are allowed: the loss is that at 0.25.
/// assert_eq!(clipped_value_loss(0.5, 1.0, 0.0, 0.25), (0.5625, 0.0));
/// // The other way nothing is bounded.
/// assert_eq!(clipped_value_loss(-0.5, 1.0, 0.0, 0.25), (2.25, -3.0));
/// assert_eq!(clipped_value_loss(0.5, 1.0, f32::NAN, 0.0), (0.25, -1.0));
/// ```
pub fn clipped_value_loss(value: f32, target: f32, recorded: f32, clip: f32) -> (f32, f32) {
    let plain = value_loss(value, target);
    let moved = value - recorded;
    if clip == 0.0 || moved.abs() <= clip {
        return plain;
    }
    let (bounded, _) = value_loss(recorded + clip.copysign(moved), target);
    match bounded > plain.0 {
        true => (bounded, 0.0),
        false if moved.is_nan() => (f32::NAN, f32::NAN),
        false => plain,
    }
}

/// `1 - Var(reward - value) / Var(reward)` over the tokens that are added one by one: 1 where every value is its reward, 0 where values
/// are no better than one constant, below 0 where they are worse. Merges to the number of the whole.
///
/// ```
/// use tidegate::kernel::critic::Explained;
///
/// let mut explained = Explained::default();
/// [(0.25, 0.0), (0.75, 1.0)].map(|(value, of_reward)| explained.add(value, of_reward));
/// // Returns vary by 0.25, errors of -0.25 and 0.25 by 0.0625.
/// assert_eq!(explained.variance(), Some(0.75));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Explained {
    rewards: Spread,
    errors: Spread,
}

impl Explained {
    /// Adds one token. A NaN is added like any other number.
    pub fn add(&mut self, value: f64, of_reward: f64) {
        self.rewards.add(of_reward);
        self.errors.add(of_reward - value);
    }

    /// Adds all that `other` has seen.
    pub fn merge(&mut self, other: Explained) {
        self.rewards.merge(other.rewards);
        self.errors.merge(other.errors);
    }

    /// How many tokens were added.
    pub fn count(&self) -> u64 {
        self.rewards.count
    }

    /// The explained variance; None where all rewards are equal, or there are none: nothing is there to explain.
    pub fn variance(&self) -> Option<f64> {
        (self.rewards.squares != 0.0).then(|| 1.0 - self.errors.squares / self.rewards.squares)
    }
}

/// Sum of squared distances from the mean (Welford 1962; Chan, Golub and LeVeque 1979 for parts): of equal numbers exactly 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, x: f64) {
        self.count += 1;
        let distance = x - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (x - self.mean);
    }

    fn merge(&mut self, other: Spread) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = other;
            return;
        }
        let (mine, theirs) = (self.count as f64, other.count as f64);
        let distance = other.mean - self.mean;
        self.count += other.count;
        self.squares += other.squares + distance * distance * mine * theirs / (mine + theirs);
        self.mean += distance * theirs / (mine + theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Recorded 0.2, clip 0.5. Catches a bound around the target, a bound on one side, the smaller of the two losses, and a derivative
    /// behind the bound.
    #[test]
    fn clipped_by_hand() {
        for (value, target, expected) in [
            // Within: as if nothing were bounded.
            (0.1, 0.0, (0.010_000_001, 0.2)),
            // To 0.9 of 1: as at 0.7.
            (0.9, 1.0, (0.090_000_01, 0.0)),
            // Beyond the target: 0.7 is nearer to 0.5 than 0.9, and the larger loss counts.
            (0.9, 0.5, (0.159_999_98, 0.799_999_95)),
            // Downwards: -0.4 where -0.3 is the bound.
            (-0.4, -1.0, (0.49, 0.0)),
            (-0.4, 0.0, (0.160_000_01, -0.8)),
        ] {
            let found = clipped_value_loss(value, target, 0.2, 0.5);
            let near = |a: f32, b: f32| (a - b).abs() < 1e-6;
            assert!(near(found.0, expected.0) && near(found.1, expected.1), "{value} {target}: {found:?}");
            assert_eq!(clipped_value_loss(value, target, 0.2, 0.0), value_loss(value, target));
        }
    }

    /// Catches a NaN that a comparison drops.
    #[test]
    fn a_nan_stays() {
        for (value, target, recorded) in [(f32::NAN, 1.0, 0.0), (0.5, f32::NAN, 0.0), (0.5, 1.0, f32::NAN)] {
            let (loss, d_value) = clipped_value_loss(value, target, recorded, 0.25);
            assert!(loss.is_nan() && d_value.is_nan(), "{value} {target} {recorded}: {loss} {d_value}");
        }
    }

    /// Catches a 0/0, a tiny deviation of equal numbers that something is divided by, and a NaN that becomes 0.
    #[test]
    fn nothing_explains_equal_rewards() {
        let mut explained = Explained::default();
        assert_eq!((explained.variance(), explained.count()), (None, 0));
        (0..7).for_each(|t| explained.add(f64::from(t), 0.1));
        assert_eq!((explained.variance(), explained.count()), (None, 7));
        explained.add(f64::NAN, 0.2);
        assert!(explained.variance().unwrap().is_nan());
    }

    /// Values right up to a constant explain all; constant ones nothing; opposite ones are worse than nothing.
    #[test]
    fn the_ends_of_the_scale() {
        let of = |value: fn(f64) -> f64| {
            let mut explained = Explained::default();
            [0.0, 1.0, 1.0, 0.5].into_iter().for_each(|r| explained.add(value(r), r));
            explained.variance().unwrap()
        };
        assert_eq!(of(|r| r + 4.0), 1.0);
        assert!(of(|_| 0.3).abs() < 1e-12);
        assert_eq!(of(|r| -r), -3.0);
    }

    proptest! {
        /// Catches a derivative that is not the loss's. At the corners there is none.
        #[test]
        fn derivative(value in -2.0f32..2.0, target in -2.0f32..2.0, recorded in -2.0f32..2.0, clip in 0.1f32..1.0) {
            let at = |value| f64::from(clipped_value_loss(value, target, recorded, clip).0);
            let h = 1.0 / 256.0;
            let [below, here, above] = [-h, 0.0, h].map(|h| at(value + h));
            let (left, right) = ((here - below) / f64::from(h), (above - here) / f64::from(h));
            if (right - left).abs() < 2.5 * f64::from(h) {
                let found = f64::from(clipped_value_loss(value, target, recorded, clip).1);
                prop_assert!((found - (left + right) / 2.0).abs() < 1e-2, "{found}, slopes {left} {right}");
            }
        }

        /// Catches a mean of means, and squares that forget how far the parts' means are apart.
        #[test]
        fn parts_merge_to_the_whole(
            tokens in prop::collection::vec((-3.0f64..3.0, -3.0f64..3.0), 2..20), cut in 0usize..20
        ) {
            let of = |tokens: &[(f64, f64)]| {
                let mut explained = Explained::default();
                tokens.iter().for_each(|(value, of_reward)| explained.add(*value, *of_reward));
                explained
            };
            let (first, second) = tokens.split_at(cut.min(tokens.len()));
            let mut merged = of(first);
            merged.merge(of(second));
            let (whole, merged) = (of(&tokens).variance().unwrap(), merged.variance().unwrap());
            prop_assert!((whole - merged).abs() < 1e-9 * (1.0 + whole.abs()), "{whole} {merged}");
            let mean = |of: fn(&(f64, f64)) -> f64| tokens.iter().map(of).sum::<f64>() / tokens.len() as f64;
            let spread = |of: fn(&(f64, f64)) -> f64| tokens.iter().map(|t| (of(t) - mean(of)).powi(2)).sum::<f64>();
            let literal = 1.0 - spread(|t| t.1 - t.0) / spread(|t| t.1);
            prop_assert!((whole - literal).abs() < 1e-6 * (1.0 + literal.abs()), "{whole} {literal}");
        }
    }
}
