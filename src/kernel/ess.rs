//! Effective sample size.

/// Effective sample size of importance weights, as a share of their number: `(sum w)^2 / (n sum w^2)`, in 0..=1, 1 where all
/// weights are equal (Kish 1965; arXiv 2509.19128 measures how far off policy a batch is with it).
///
/// It keeps the three sums, not a mean, so the parts of uneven micro-batches merge to the value of the whole batch.
///
/// ```
/// use tidegate::kernel::ess::Ess;
///
/// let mut ess = Ess::default();
/// for weight in [1.0, 1.0, 0.0, 0.0] {
///     ess.add(weight);
/// }
/// assert_eq!(ess.value(), 0.5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ess {
    sum: f64,
    squares: f64,
    count: u64,
}

impl Ess {
    /// Adds one token's weight, at least 0. Masked tokens are not added.
    pub fn add(&mut self, weight: f64) {
        self.sum += weight;
        self.squares += weight * weight;
        self.count += 1;
    }

    /// Adds all that `other` has seen.
    pub fn merge(&mut self, other: Ess) {
        self.sum += other.sum;
        self.squares += other.squares;
        self.count += other.count;
    }

    /// The share, in 0..=1. 0.0 where nothing was added or all weights are 0: no sample counts. NaN if a weight was NaN.
    pub fn value(&self) -> f64 {
        if self.squares == 0.0 {
            return 0.0;
        }
        let share = self.sum * self.sum / (self.count as f64 * self.squares);
        // Equal weights can round to just above 1.
        if share > 1.0 { 1.0 } else { share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(weights: &[f64]) -> Ess {
        let mut ess = Ess::default();
        weights.iter().for_each(|&w| ess.add(w));
        ess
    }

    /// Catches a missing square, a missing n, and a share above 1.
    #[test]
    fn by_hand() {
        assert_eq!(of(&[3.0; 5]).value(), 1.0);
        assert_eq!(of(&[1.0, 0.0, 0.0, 0.0, 0.0]).value(), 0.2);
        assert_eq!(of(&[1.0, 3.0]).value(), 0.8);
        // Unbounded this rounds to 1.0000000000000002.
        assert_eq!(of(&[1.7; 3]).value(), 1.0);
    }

    /// Hard case 9. Catches 0/0; and a NaN that passes for a bad share, or for a good one.
    #[test]
    fn nothing_counts_as_zero_and_nan_stays() {
        assert_eq!(Ess::default().value(), 0.0);
        assert_eq!(of(&[0.0, 0.0]).value(), 0.0);
        assert!(of(&[1.0, f64::NAN]).value().is_nan());
    }

    /// Hard case 6. Catches a mean of the parts' shares: 1 and 1 here, though the whole is far from it.
    #[test]
    fn uneven_parts_merge_to_the_whole() {
        let mut merged = of(&[4.0]);
        merged.merge(of(&[1.0; 4]));
        merged.merge(Ess::default());
        assert_eq!(merged, of(&[4.0, 1.0, 1.0, 1.0, 1.0]));
        assert_eq!(merged.value(), 0.64);
    }

    proptest! {
        /// Catches a share outside 0..=1, one that depends on the weights' scale, and a merge that drops a sum.
        #[test]
        fn a_share_of_any_split(
            weights in prop::collection::vec(0.0f64..6.0, 1..20), cut in 0usize..20, scale in 0.01f64..100.0
        ) {
            let whole = of(&weights).value();
            prop_assert!((0.0..=1.0).contains(&whole));
            let (head, tail) = weights.split_at(cut.min(weights.len()));
            let mut merged = of(head);
            merged.merge(of(tail));
            prop_assert!((merged.value() - whole).abs() < 1e-12);
            let scaled: Vec<f64> = weights.iter().map(|w| w * scale).collect();
            prop_assert!((of(&scaled).value() - whole).abs() < 1e-12);
        }
    }
}
