//! Whitening: advantages of a whole batch, to a mean of 0 and a deviation of 1 over its trained tokens.

/// What is added to the variance before its root is taken; verl's value.
const EPSILON: f64 = 1e-8;

/// One rollout of a batch: `[T]` advantages, and which of them are trained.
#[derive(Debug)]
pub struct Row<'a> {
    pub advantage: &'a mut [f32],
    pub mask: &'a [bool],
}

/// Replaces every trained token's advantage by `(advantage - mean) / sqrt(variance + 1e-8)`, over the trained tokens of all
/// rows together, with the sample variance (n - 1 in the denominator): every token weighs the same, as it does in the loss
/// (REINFORCE++, arXiv 2501.03262; verl's masked whitening). Masked tokens get 0.0.
///
/// Where all are equal, or there is one alone, each becomes exactly 0.0. A NaN at a trained token makes all of them NaN, so
/// that it is seen.
///
/// # Panics
/// If the lengths of a row differ.
///
/// ```
/// use tidegate::kernel::whiten::{Row, whiten};
///
/// let (mut one, mut other) = ([1.0, 1.0, 9.0], [0.0]);
/// whiten(&mut [Row { advantage: &mut one, mask: &[true, true, false] }, Row { advantage: &mut other, mask: &[true] }]);
/// // Of 1, 1, 0: the mean is 2/3, the deviation sqrt(1/3).
/// assert_eq!((one, other), ([0.577_350_26, 0.577_350_26, 0.0], [-1.154_700_5]));
/// ```
pub fn whiten(rows: &mut [Row<'_>]) {
    for Row { advantage, mask } in &*rows {
        assert_eq!(advantage.len(), mask.len(), "advantage and mask are of the same tokens");
    }
    let chosen = || {
        let pairs = rows.iter().flat_map(|row| row.advantage.iter().zip(row.mask));
        pairs.filter(|(_, chosen)| **chosen).map(|(advantage, _)| f64::from(*advantage))
    };
    let count = chosen().count() as f64;
    let equal = chosen().next().is_none_or(|first| chosen().all(|advantage| advantage == first));
    let mean = chosen().sum::<f64>() / count;
    // Two tokens at least, where it is read.
    let variance = chosen().map(|advantage| (advantage - mean) * (advantage - mean)).sum::<f64>() / (count - 1.0);
    let deviation = (variance + EPSILON).sqrt();
    for Row { advantage, mask } in rows {
        for (advantage, &chosen) in advantage.iter_mut().zip(*mask) {
            *advantage = if chosen && !equal { ((f64::from(*advantage) - mean) / deviation) as f32 } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All rows as one, masks true.
    fn whitened(rows: &[&[f32]]) -> Vec<Vec<f32>> {
        let mut rows: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
        let masks: Vec<Vec<bool>> = rows.iter().map(|row| vec![true; row.len()]).collect();
        let mut all: Vec<Row<'_>> = rows.iter_mut().zip(&masks).map(|(advantage, mask)| Row { advantage, mask }).collect();
        whiten(&mut all);
        rows
    }

    /// Hard case 1 over a batch, and hard case 2. Catches 0/0, and a rounding error over a tiny deviation.
    #[test]
    fn equal_advantages_and_a_lone_one_give_exact_zeros() {
        assert_eq!(whitened(&[&[0.1; 3], &[0.1; 4]]), [vec![0.0; 3], vec![0.0; 4]]);
        assert_eq!(whitened(&[&[0.7]]), [vec![0.0]]);
        assert_eq!(whitened(&[&[0.0, -0.0]]), [vec![0.0; 2]]);
        assert_eq!(whitened(&[&[], &[]]), [vec![0.0; 0], vec![]]);
    }

    /// Hard case 9. Catches a masked token that counts, is divided, or leaks its NaN.
    #[test]
    fn masked_tokens_are_not_there() {
        let (mut one, mut other) = ([f32::NAN, 2.0], [0.0, 5.0, 2.0]);
        let rows = &mut [
            Row { advantage: &mut one, mask: &[false, true] },
            Row { advantage: &mut other, mask: &[true, false, true] },
        ];
        whiten(rows);
        // Of 2, 0, 2: mean 4/3, deviation sqrt(4/3).
        assert_eq!((one, other), ([0.0, 0.577_350_26], [-1.154_700_5, 0.0, 0.577_350_26]));
        let mut none = [3.0, f32::NAN];
        whiten(&mut [Row { advantage: &mut none, mask: &[false; 2] }]);
        assert_eq!(none, [0.0; 2]);
    }

    /// Rows of unequal length: a token weighs the same wherever it is. Catches a mean of the rows' means (0.5 here), whose
    /// result for the lone token would be -0.707.
    #[test]
    fn every_token_weighs_the_same() {
        let found = whitened(&[&[1.0; 3], &[0.0]]);
        // Mean 3/4, variance (3/16 + 9/16) / 3 = 1/4.
        assert_eq!(found, [vec![0.5; 3], vec![-1.5]]);
    }

    /// Catches a NaN that is left out of the mean.
    #[test]
    fn a_nan_is_seen_everywhere() {
        assert!(whitened(&[&[1.0, f32::NAN], &[0.0]]).iter().flatten().all(|advantage| advantage.is_nan()));
    }

    proptest! {
        /// Catches a sum that overflows, a wrong centre and a wrong scale.
        #[test]
        fn mean_0_and_deviation_1(
            rows in prop::collection::vec(prop::collection::vec(-100.0f32..100.0, 0..6), 0..6)
        ) {
            let all: Vec<f32> = rows.iter().flatten().copied().collect();
            let spread = all.iter().any(|x| (x - all[0]).abs() > 1.0);
            let found: Vec<f64> =
                whitened(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>()).into_iter().flatten().map(f64::from).collect();
            if spread {
                let mean = found.iter().sum::<f64>() / found.len() as f64;
                let squares = found.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
                prop_assert!(mean.abs() < 1e-6, "{:?}", found);
                prop_assert!((squares / (found.len() as f64 - 1.0) - 1.0).abs() < 1e-5, "{:?}", found);
            }
        }

        #[test]
        fn the_ends_of_the_range_stay_finite(rows in prop::collection::vec(any::<f32>(), 0..6)) {
            let finite: Vec<f32> = rows.into_iter().filter(|x| x.is_finite()).collect();
            prop_assert!(whitened(&[&finite]).iter().flatten().all(|x| x.is_finite()));
        }
    }
}
