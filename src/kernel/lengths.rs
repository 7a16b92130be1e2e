//! How long responses are: a distribution over 1 to L tokens, as what throughput and lag are a matter of.

/// A distribution of response lengths, tokens: what share of rollouts is longer than l, for each l below the longest.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// Entry l: the share longer than l tokens. The first is 1, none is 0, and none is above the one before.
    longer: Vec<f64>,
    /// Of a length and of its square: a plan asks for them a thousand times.
    mean: f64,
    second_moment: f64,
}

impl Lengths {
    /// All lengths from 1 to `longest` alike likely. None for 0.
    pub fn uniform(longest: usize) -> Option<Lengths> {
        Self::between(1, longest)
    }

    /// All lengths from `least` to `longest` alike likely. None where they are not in this order, or are 0.
    pub fn between(least: usize, longest: usize) -> Option<Lengths> {
        let count = (longest + 1).checked_sub(least).filter(|count| *count > 0 && least > 0)?;
        let longer = |l: usize| if l < least { 1.0 } else { (longest - l) as f64 / count as f64 };
        Self::of((0..longest).map(longer).collect())
    }

    /// All of one length. None for 0.
    pub fn fixed(length: usize) -> Option<Lengths> {
        Self::of(vec![1.0; length])
    }

    /// Log-normal with this mean and deviation (of the lengths, not of their logarithm), rounded up to whole tokens and cut at
    /// `longest`, as a limit on tokens cuts. None where they are not above 0.
    pub fn log_normal(mean: f64, deviation: f64, longest: usize) -> Option<Lengths> {
        if !(mean > 0.0 && deviation > 0.0 && mean.is_finite() && deviation.is_finite()) {
            return None;
        }
        let variance = (1.0 + (deviation / mean).powi(2)).ln();
        let (location, scale) = (mean.ln() - variance / 2.0, variance.sqrt());
        let longer = |l: usize| if l == 0 { 1.0 } else { upper_normal(((l as f64).ln() - location) / scale) };
        // So far out that a float is 0, nothing is sampled either.
        Self::of((0..longest).map(longer).take_while(|share| *share > 0.0).collect())
    }

    /// Lengths that were seen; those of 0 tokens are left out. None of nothing.
    pub fn counted(lengths: impl IntoIterator<Item = usize>) -> Option<Lengths> {
        let mut counts: Vec<u64> = Vec::new();
        for length in lengths.into_iter().filter(|length| *length > 0) {
            if counts.len() < length {
                counts.resize(length, 0);
            }
            counts[length - 1] += 1;
        }
        let all: u64 = counts.iter().sum();
        let longer = counts.iter().scan(all, |left, count| Some(std::mem::replace(left, *left - count)));
        Self::of(longer.map(|left| left as f64 / all as f64).collect())
    }

    fn of(longer: Vec<f64>) -> Option<Lengths> {
        let mean = longer.iter().sum();
        let second_moment = (0..).zip(&longer).map(|(l, share)| f64::from(2 * l + 1) * share).sum();
        (!longer.is_empty()).then_some(Lengths { longer, mean, second_moment })
    }

    /// The same shape, `factor` times as long. None where nothing is left.
    pub fn stretched(&self, factor: f64) -> Option<Lengths> {
        let longest = (self.longest() as f64 * factor).round() as usize;
        // What is longer than l here was longer than l / factor, between two whole lengths on the line between them.
        let longer = |l: usize| {
            let at = l as f64 / factor;
            let share = |i: usize| self.longer.get(i).copied().unwrap_or(0.0);
            share(at as usize) + at.fract() * (share(at as usize + 1) - share(at as usize))
        };
        Self::of((0..longest).map(longer).take_while(|share| *share > 0.0).collect())
    }

    /// L, tokens.
    pub fn longest(&self) -> usize {
        self.longer.len()
    }

    /// Tokens.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Of the squared length.
    pub fn second_moment(&self) -> f64 {
        self.second_moment
    }

    /// The share of rollouts longer than l tokens, l from 0 up.
    pub fn longer(&self) -> &[f64] {
        &self.longer
    }

    /// The length that a uniform draw from [0, 1) gives.
    pub fn draw(&self, uniform: f64) -> usize {
        // Longer than l exactly where the draw is below that share.
        self.longer.partition_point(|share| uniform < *share).max(1)
    }
}

/// The share of a standard normal above `x`: Abramowitz and Stegun 7.1.26 for |x|, which is good to 1.5e-7.
fn upper_normal(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let series = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let erfc = series.iter().rev().fold(0.0, |sum, c| (sum + c) * t) * (-z * z).exp();
    if x >= 0.0 { erfc / 2.0 } else { 1.0 - erfc / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, within: f64) {
        assert!((found - expected).abs() <= within, "{found}, expected {expected}");
    }

    /// Catches a length that is one off: of 1, 2, 3, 4 the mean is 2.5 and the mean square 7.5.
    #[test]
    fn moments_by_hand() {
        let uniform = Lengths::uniform(4).unwrap();
        assert_eq!((uniform.longest(), uniform.mean(), uniform.second_moment()), (4, 2.5, 7.5));
        let fixed = Lengths::fixed(3).unwrap();
        assert_eq!((fixed.longest(), fixed.mean(), fixed.second_moment()), (3, 3.0, 9.0));
        let counted = Lengths::counted([1, 0, 4, 4, 3]).unwrap();
        assert_eq!((counted.longest(), counted.mean(), counted.second_moment()), (4, 3.0, 10.5));
        assert_eq!(counted.longer(), [1.0, 0.75, 0.75, 0.5]);
        let between = Lengths::between(2, 4).unwrap();
        assert_eq!((between.mean(), between.second_moment(), between.longest()), (3.0, 29.0 / 3.0, 4));
        assert_eq!(
            (Lengths::between(1, 9), Lengths::between(3, 2), Lengths::between(0, 2)),
            (Lengths::uniform(9), None, None)
        );
        let double = Lengths::uniform(2).unwrap().stretched(2.0).unwrap();
        assert_eq!(double.longer(), [1.0, 0.75, 0.5, 0.25]);
        assert_eq!(Lengths::uniform(4).unwrap().stretched(0.5).unwrap().longer(), [1.0, 0.5]);
        assert_eq!((Lengths::uniform(0), Lengths::fixed(0), Lengths::counted([0, 0])), (None, None, None));
    }

    #[test]
    fn draws_have_the_shares() {
        let counted = Lengths::counted([1, 4, 4, 3]).unwrap();
        assert_eq!([0.0, 0.49, 0.5, 0.74, 0.75, 0.999].map(|u| counted.draw(u)), [4, 4, 3, 3, 1, 1]);
        let n = 100_000;
        let mean =
            (0..n).map(|i| Lengths::uniform(9).unwrap().draw((f64::from(i) + 0.5) / f64::from(n)) as f64).sum::<f64>();
        near(mean / f64::from(n), 5.0, 1e-3);
    }

    /// Means of rounded-up numbers are half a token more than theirs.
    #[test]
    fn log_normal_has_its_mean_and_deviation() {
        let lengths = Lengths::log_normal(400.0, 200.0, 8000).unwrap();
        near(lengths.mean(), 400.5, 0.05);
        near((lengths.second_moment() - lengths.mean().powi(2)).sqrt(), 200.0, 0.2);
        let cut = Lengths::log_normal(400.0, 200.0, 500).unwrap();
        assert_eq!(cut.longest(), 500);
        assert!(cut.mean() < 380.0);
        assert_eq!(Lengths::log_normal(0.0, 1.0, 5), None);
        near(upper_normal(1.0), 0.158_655_25, 2e-7);
        near(upper_normal(-1.0), 0.841_344_75, 2e-7);
    }
}
