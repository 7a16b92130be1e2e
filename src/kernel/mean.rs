//! A mean that micro-batches can merge.

/// A mean over whatever is added one by one (usually tokens): it keeps the sum and the count, so that the parts of uneven
/// micro-batches merge to the mean of the whole, never to a mean of means.
///
/// ```
/// use tidegate::kernel::mean::Mean;
///
/// let mut mean = Mean::default();
/// mean.add(1.0);
/// let mut other = Mean::default();
/// [0.0, 0.0, 0.0].map(|x| other.add(x));
/// mean.merge(other);
/// assert_eq!(mean.value(), Some(0.25));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    /// Adds one number. A NaN is added like any other.
    pub fn add(&mut self, x: f64) {
        self.sum += x;
        self.count += 1;
    }

    /// Adds one number `count` times, at least once: exactly what adding it one by one comes to where sums are whole numbers below 2^53.
    pub fn add_times(&mut self, x: f64, count: u64) {
        self.sum += x * count as f64;
        self.count += count;
    }

    /// Adds all that `other` has seen.
    pub fn merge(&mut self, other: Mean) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// The mean: None where nothing was added (which is not 0), NaN if a NaN was.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// How many numbers were added.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f64]) -> Mean {
        let mut mean = Mean::default();
        numbers.iter().for_each(|&x| mean.add(x));
        mean
    }

    /// Hard case 6. Catches a mean of means, which is 0.5 here.
    #[test]
    fn uneven_parts_merge_to_the_whole() {
        let mut merged = of(&[1.0]);
        merged.merge(of(&[0.0, 0.0, 0.0]));
        merged.merge(Mean::default());
        assert_eq!((merged.value(), merged.count()), (Some(0.25), 4));
    }

    #[test]
    fn a_number_counts_as_often_as_it_was_added() {
        let mut mean = of(&[1.0]);
        mean.add_times(-3.0, 3);
        assert_eq!(mean, of(&[1.0, -3.0, -3.0, -3.0]));
    }

    /// Catches NaN turned into 0 (or left out), and the mean of nothing passed off as a number.
    #[test]
    fn nan_stays_and_nothing_is_none() {
        assert_eq!(Mean::default().value(), None);
        assert!(of(&[1.0, f64::NAN]).value().unwrap().is_nan());
        let mut merged = of(&[f64::NAN]);
        merged.merge(of(&[1.0]));
        assert!(merged.value().unwrap().is_nan());
    }
}
