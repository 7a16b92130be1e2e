//! A mean with its standard error.

/// Mean of numbers that are independent of each other, and how far it may be off: the deviation of the numbers over the root of how
/// many they are. What is not independent, such as several rollouts of a prompt, is made one number first; then this is the standard
/// error clustered by prompt (Miller 2024, arXiv 2411.00640, section 2).
///
/// One number at a time, without the difference of two large sums (Welford 1962).
///
/// ```
/// use tidegate::kernel::standard_error::MeanAndError;
///
/// let mut rewards = MeanAndError::default();
/// [1.0, 0.0, 1.0, 0.0, 0.5].map(|mean_of_a_prompt| rewards.add(mean_of_a_prompt));
/// assert_eq!(rewards.mean(), Some(0.5));
/// // The variance is 4 * 0.25 / 4 = 0.25.
/// assert_eq!(rewards.standard_error(), Some((0.25f64 / 5.0).sqrt()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanAndError {
    count: u64,
    /// Of the numbers: over their count it is the mean, exactly where they are whole numbers.
    sum: f64,
    mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl MeanAndError {
    /// Adds one number. A NaN is added like any other.
    pub fn add(&mut self, x: f64) {
        self.count += 1;
        self.sum += x;
        let before = x - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (x - self.mean);
    }

    /// How many numbers were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// None where nothing was added (which is not 0), NaN if a NaN was.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Of the mean, with the variance over n - 1; None of fewer than two numbers, which do not say how far apart they are.
    pub fn standard_error(&self) -> Option<f64> {
        let n = self.count as f64;
        (self.count > 1).then(|| (self.squares / (n - 1.0) / n).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(numbers: &[f64]) -> MeanAndError {
        let mut all = MeanAndError::default();
        numbers.iter().for_each(|&x| all.add(x));
        all
    }

    /// Catches a mean with a rounding error in each number (0.35000000000000003), n for n - 1 (0.25), a deviation that is not divided by the root of n (0.577), and a variance (0.083).
    #[test]
    fn by_hand() {
        let all = of(&[0.0, 0.0, 1.0, 1.0]);
        assert_eq!((all.mean(), all.count()), (Some(0.5), 4));
        assert!((all.standard_error().unwrap() - (1.0f64 / 12.0).sqrt()).abs() < 1e-15);
        assert_eq!(of(&[1.0; 3]).standard_error(), Some(0.0));
        let solved: Vec<f64> = (0..20).map(|i| f64::from(u8::from(i % 3 == 1))).collect();
        assert_eq!(of(&solved).mean(), Some(0.35));
        // By the difference of two sums of squares this would be 0, or not a number.
        let far = of(&[1e9, 1e9 + 1.0, 1e9 + 2.0]);
        assert!((far.standard_error().unwrap() - (1.0f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    /// Catches an error of 0 where nothing is known of it, and a NaN that is lost.
    #[test]
    fn few_numbers_and_nan() {
        assert_eq!((of(&[]).mean(), of(&[]).standard_error()), (None, None));
        assert_eq!((of(&[2.0]).mean(), of(&[2.0]).standard_error()), (Some(2.0), None));
        let nan = of(&[1.0, f64::NAN]);
        assert!(nan.mean().unwrap().is_nan() && nan.standard_error().unwrap().is_nan());
    }

    proptest! {
        #[test]
        fn as_by_two_passes(numbers in prop::collection::vec(-3.0f64..3.0, 2..30)) {
            let n = numbers.len() as f64;
            let mean = numbers.iter().sum::<f64>() / n;
            let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let all = of(&numbers);
            prop_assert!((all.mean().unwrap() - mean).abs() < 1e-12);
            prop_assert!((all.standard_error().unwrap() - (variance / n).sqrt()).abs() < 1e-12);
        }
    }
}
