//! A critic's values against what came of them, as sums: a fine histogram that grows no further than a few hundred bins.

use crate::jobs::analyze::limits::LagLimits;
use crate::jobs::analyze::report::{Values, ValuesRow};
use crate::kernel::critic::Explained;
use crate::kernel::mean::Mean;
use crate::store::view::Row;
use std::collections::BTreeMap;

/// Bins that are kept; beyond them two become one.
const BINS: usize = 256;
/// Of the narrowest bins, as a power of two: a thousandth.
const NARROWEST: i32 = -10;
/// Rows of the report's table.
const ROWS: usize = 10;

/// Sums of some steps.
#[derive(Debug)]
pub(super) struct ValueSums {
    explained: Explained,
    /// Width of the bins, as a power of two.
    width: i32,
    /// By value, counted in widths and rounded down.
    bins: BTreeMap<i64, Bin>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    value: Mean,
    of_reward: Mean,
}

impl Bin {
    fn merge(&mut self, other: Bin) {
        self.value.merge(other.value);
        self.of_reward.merge(other.of_reward);
    }
}

impl Default for ValueSums {
    fn default() -> Self {
        ValueSums { explained: Explained::default(), width: NARROWEST, bins: BTreeMap::new() }
    }
}

impl ValueSums {
    /// Adds a trained rollout: each trained token that has a value, against the reward that was used. Numbers that are
    /// not finite are not counted.
    pub(super) fn add(&mut self, row: &Row<'_>, limits: LagLimits) {
        let Some(reward) = row.reward_shaped.or(row.reward).filter(|reward| reward.is_finite()) else { return };
        let trained = limits.trained(row, row.value.len()).flat_map(|range| &row.value[range]);
        for value in trained.filter(|value| value.is_finite()) {
            let (value, of_reward) = (f64::from(*value), f64::from(reward));
            self.explained.add(value, of_reward);
            let place = (value * (-f64::from(self.width)).exp2()).floor();
            let bin = self.bins.entry(place as i64).or_default();
            bin.value.add(value);
            bin.of_reward.add(of_reward);
            if self.bins.len() > BINS {
                self.widen(self.width + 1);
            }
        }
    }

    /// Makes bins of this width, or of the next in which they are few enough.
    fn widen(&mut self, width: i32) {
        while self.width < width || self.bins.len() > BINS {
            let mut wider: BTreeMap<i64, Bin> = BTreeMap::new();
            for (place, bin) in std::mem::take(&mut self.bins) {
                wider.entry(place.div_euclid(2)).or_default().merge(bin);
            }
            (self.bins, self.width) = (wider, self.width + 1);
        }
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, mut other: ValueSums) {
        self.explained.merge(other.explained);
        let width = self.width.max(other.width);
        self.widen(width);
        other.widen(width);
        for (place, bin) in other.bins {
            self.bins.entry(place).or_default().merge(bin);
        }
        self.widen(width);
    }

    /// None of a run without values.
    pub(super) fn finish(self) -> Option<Values> {
        let tokens = self.explained.count();
        if tokens == 0 {
            return None;
        }
        let mut rows: Vec<Bin> = vec![Bin::default()];
        let mut before = 0;
        for bin in self.bins.into_values() {
            // Into the tenth of the tokens in which the bin's middle lies.
            let middle = before + bin.value.count() / 2;
            let row = (middle as u128 * ROWS as u128 / u128::from(tokens)) as usize;
            before += bin.value.count();
            rows.resize(rows.len().max(row + 1), Bin::default());
            rows[row].merge(bin);
        }
        let row = |bin: Bin| {
            let means = bin.value.value().zip(bin.of_reward.value());
            means.map(|(value, of_reward)| ValuesRow { tokens: bin.value.count(), value, of_reward })
        };
        let by_value = rows.into_iter().filter_map(row).collect();
        Some(Values { tokens, explained_variance: self.explained.variance(), by_value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::view::Mask;

    fn row<'a>(value: &'a [f32], reward: Option<f32>, reward_shaped: Option<f32>) -> Row<'a> {
        Row { tokens: value.len(), mask: Mask::All(value.len()), value, reward, reward_shaped, ..Row::blank() }
    }

    /// Catches a table by reward, a row that mixes values, the reward as given where it was shaped, and a NaN that is counted.
    #[test]
    fn rows_are_tenths_by_value() {
        let mut sums = ValueSums::default();
        // Values 0.0 to 1.9 in twentieths of the tokens; below 1 half of them come to 1, above all.
        for i in 0..20u8 {
            let value = f32::from(i) * 0.1;
            let reward = f32::from(u8::from(i >= 10 || i.is_multiple_of(2)));
            sums.add(&row(&[value, f32::NAN], Some(9.0), Some(reward)), LagLimits::default());
        }
        sums.add(&row(&[5.0], None, None), LagLimits::default());
        let found = sums.finish().unwrap();
        assert_eq!((found.tokens, found.by_value.len()), (20, 10));
        for (i, row) in found.by_value.iter().enumerate() {
            assert!((row.value - (0.2 * i as f64 + 0.05)).abs() < 1e-6, "{row:?}");
            assert_eq!((row.tokens, row.of_reward), (2, if i < 5 { 0.5 } else { 1.0 }));
        }
        assert!(found.explained_variance.unwrap() < 0.3, "{found:?}");
        assert_eq!(ValueSums::default().finish(), None);
    }

    /// Values of any size are told apart, and few bins are kept. Catches tokens that are lost as bins become wider, and bins of unlike
    /// widths that are added.
    #[test]
    fn bins_stay_few() {
        let mut all = ValueSums::default();
        for step in 0..30i32 {
            let mut sums = ValueSums::default();
            let values: Vec<f32> = (-200..200).map(|i| (i * (step + 1)) as f32 * 0.37).collect();
            sums.add(&row(&values, Some(0.5), None), LagLimits::default());
            assert!(sums.bins.len() <= BINS);
            all.merge(sums);
            assert!(all.bins.len() <= BINS);
        }
        let found = all.finish().unwrap();
        assert_eq!((found.tokens, found.by_value.iter().map(|row| row.tokens).sum()), (12_000, 12_000));
        assert!(found.by_value.is_sorted_by(|a, b| a.value < b.value) && found.by_value.len() >= 8, "{found:?}");
        assert_eq!(found.explained_variance, None);
    }
}
