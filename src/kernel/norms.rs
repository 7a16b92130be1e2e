//! Norms of the gradients of the last steps, and what is usual among them.

/// Most norms that are kept: the longest window that they can be asked for.
pub const MOST: usize = 256;

/// The norms of the last steps whose gradient was not 0, up to [`MOST`], oldest first.
///
/// ```
/// use tidegate::kernel::norms::Norms;
///
/// let norms: Norms = [9.0, 1.0, 0.0, 2.0, 4.0].into_iter().collect();
/// assert_eq!((norms.median(3), norms.median(4), norms.median(5)), (Some(2.0), Some(3.0), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Norms {
    last: Vec<f64>,
}

impl Norms {
    /// Whether a norm says what is usual: that of a batch that taught nothing is 0 (whatever the model is like), and one that is
    /// not finite is no number.
    pub fn counts(norm: f64) -> bool {
        norm > 0.0 && norm.is_finite()
    }

    /// Adds the norm of the next step, if it counts.
    pub fn add(&mut self, norm: f64) {
        if Norms::counts(norm) {
            if self.last.len() == MOST {
                self.last.remove(0);
            }
            self.last.push(norm);
        }
    }

    /// The median of the last `count` norms; of an even number the mean of the two in the middle. None where there are fewer, or
    /// `count` is 0.
    pub fn median(&self, count: usize) -> Option<f64> {
        let start = self.last.len().checked_sub(count)?;
        let mut sorted = self.last[start..].to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let upper = *sorted.get(count / 2)?;
        let even = count.is_multiple_of(2);
        Some(if even { 0.5 * sorted[count / 2 - 1] + 0.5 * upper } else { upper })
    }
}

impl FromIterator<f64> for Norms {
    fn from_iter<I: IntoIterator<Item = f64>>(norms: I) -> Self {
        let mut all = Norms::default();
        norms.into_iter().for_each(|norm| all.add(norm));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(norms: &[f64]) -> Norms {
        norms.iter().copied().collect()
    }

    /// Catches a mean, a median of all, of the first ones, or of a list that is not sorted.
    #[test]
    fn the_median_is_of_the_last_ones() {
        let norms = of(&[100.0, 100.0, 3.0, 1.0, 50.0, 2.0]);
        assert_eq!(norms.median(1), Some(2.0));
        assert_eq!(norms.median(2), Some(26.0));
        assert_eq!(norms.median(3), Some(2.0));
        assert_eq!(norms.median(4), Some(2.5));
        assert_eq!(norms.median(6), Some(26.5));
        assert_eq!((norms.median(7), norms.median(0), of(&[]).median(1)), (None, None, None));
    }

    /// Catches batches that taught nothing taking the median to 0, so that every step after them is an outlier.
    #[test]
    fn what_is_no_norm_does_not_count() {
        assert_eq!(of(&[0.0, 2.0, f64::NAN, 0.0, f64::INFINITY, 4.0, 0.0]), of(&[2.0, 4.0]));
    }

    /// Catches a history without end, and one that drops its newest.
    #[test]
    fn the_oldest_go_first() {
        let norms: Norms = (1..=MOST + 10).map(|norm| norm as f64).collect();
        assert_eq!(norms.median(MOST + 1), None);
        assert_eq!(norms.median(MOST), Some(10.5 + MOST as f64 / 2.0));
        assert_eq!(norms.median(1), Some(MOST as f64 + 10.0));
    }
}
