//! Lag of trained tokens, and how far off policy they are, as sums.

use crate::jobs::analyze::limits::LagLimits;
use crate::jobs::analyze::report::{Lag, LagRow, OffPolicy, PositionRow};
use crate::kernel::ess::Ess;
use crate::kernel::kl::{k1, k3};
use crate::kernel::mean::Mean;
use crate::kernel::ratio::ratio;
use crate::store::view::Row;
use std::collections::BTreeMap;
use std::ops::Range;

/// Lags that are told apart; those beyond count as the last.
pub(crate) const MAX_LAG_TOLD: i64 = 4096;
/// Rows of the report's table by lag.
const ROWS: usize = 16;
const TENTHS: usize = 10;

/// A lag in steps, its mean and maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lags {
    pub(crate) mean: Mean,
    pub(crate) max: Option<i64>,
}

impl Lags {
    /// Of so many tokens.
    pub(crate) fn add(&mut self, lag: i64, tokens: usize) {
        self.mean.add_times(lag as f64, tokens as u64);
        self.max = self.max.max(Some(lag));
    }

    pub(crate) fn merge(&mut self, other: Lags) {
        self.mean.merge(other.mean);
        self.max = self.max.max(other.max);
    }
}

/// How far off policy some tokens are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Distance {
    pub(super) ess: Ess,
    k1: Mean,
    k3: Mean,
}

impl Distance {
    /// Of tokens in a row; where one of the lists is shorter, of those that both have.
    fn of(behavior: &[f32], current: &[f32]) -> Self {
        let mut distance = Distance::default();
        for (behavior, current) in behavior.iter().zip(current) {
            distance.ess.add(ratio(*current, *behavior).into());
            distance.k1.add(k1(*behavior, *current).into());
            distance.k3.add(k3(*behavior, *current).into());
        }
        distance
    }

    pub(super) fn merge(&mut self, other: Distance) {
        self.ess.merge(other.ess);
        self.k1.merge(other.k1);
        self.k3.merge(other.k3);
    }

    /// The k3 estimate; None where there were no tokens.
    pub(super) fn k3(&self) -> Option<f64> {
        self.k3.value()
    }

    /// None where there were no tokens.
    pub(super) fn ess(&self) -> Option<f64> {
        (self.k1.count() > 0).then(|| self.ess.value())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct AtLag {
    tokens: u64,
    distance: Distance,
}

/// Sums of some steps.
#[derive(Debug, Default)]
pub(super) struct LagSums {
    limits: LagLimits,
    /// Tokens that were chosen and left out.
    left_out: u64,
    pub(super) all: Lags,
    broken: u64,
    by_lag: BTreeMap<i64, AtLag>,
    by_position: [Lags; TENTHS],
    pub(super) distance: Distance,
    /// Of the behavior policy from its reference.
    pub(super) reference: Distance,
}

impl LagSums {
    /// Under the limits of a file.
    pub(super) fn new(limits: LagLimits) -> Self {
        LagSums { limits, ..LagSums::default() }
    }

    /// Adds a trained rollout.
    pub(super) fn add(&mut self, row: &Row<'_>) {
        self.left_out += self.limits.left_out(row);
        let length = row.version.len();
        for (tokens, lag) in self.limits.lags(row) {
            self.all.add(lag, tokens.len());
            let above = self.limits.bound.is_some_and(|bound| lag > bound as i64);
            self.broken += if above || lag < 0 { tokens.len() as u64 } else { 0 };
            let mut from = tokens.start;
            while from < tokens.end {
                let tenth = from * TENTHS / length;
                let to = ((tenth + 1) * length).div_ceil(TENTHS).min(tokens.end);
                self.by_position[tenth].add(lag, to - from);
                from = to;
            }
            let distance = Distance::of(part(row.logp_behavior, &tokens), part(row.logp_current, &tokens));
            let at = self.by_lag.entry(lag.clamp(-1, MAX_LAG_TOLD)).or_default();
            at.tokens += tokens.len() as u64;
            at.distance.merge(distance);
            self.distance.merge(distance);
            let reference = Distance::of(part(row.logp_behavior, &tokens), part(row.logp_reference, &tokens));
            self.reference.merge(reference);
        }
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, other: LagSums) {
        // The last bound that was said.
        self.limits.bound = other.limits.bound.or(self.limits.bound);
        self.left_out += other.left_out;
        self.all.merge(other.all);
        self.broken += other.broken;
        for (lag, at) in other.by_lag {
            let sum = self.by_lag.entry(lag).or_default();
            sum.tokens += at.tokens;
            sum.distance.merge(at.distance);
        }
        for (sum, lags) in self.by_position.iter_mut().zip(other.by_position) {
            sum.merge(lags);
        }
        self.distance.merge(other.distance);
        self.reference.merge(other.reference);
    }

    pub(super) fn lag(&self) -> Lag {
        let position = |(tenth, lags): (usize, &Lags)| PositionRow {
            from: tenth as f64 / TENTHS as f64,
            lag_mean: lags.mean.value(),
            lag_max: lags.max,
        };
        Lag {
            bound: self.limits.bound,
            left_out: self.left_out,
            mean: self.all.mean.value(),
            max: self.all.max,
            broken: self.broken,
            by_lag: self.rows(),
            by_position: self.by_position.iter().enumerate().map(position).collect(),
        }
    }

    pub(super) fn off_policy(&self) -> OffPolicy {
        let Distance { k1, k3, .. } = self.distance;
        let (reference_k1, reference_k3) = (self.reference.k1.value(), self.reference.k3());
        let (tokens, ess) = (k1.count(), self.distance.ess());
        OffPolicy { tokens, ess, k1: k1.value(), k3: k3.value(), reference_k1, reference_k3 }
    }

    /// One row a lag where they fit, else as many equally wide ones as do.
    fn rows(&self) -> Vec<LagRow> {
        let Some((first, last)) = self.by_lag.keys().next().zip(self.by_lag.keys().next_back()) else { return Vec::new() };
        let width = ((last - first) as u64 + 1).div_ceil(ROWS as u64) as i64;
        let mut rows: BTreeMap<i64, AtLag> = BTreeMap::new();
        for (lag, at) in &self.by_lag {
            let row = rows.entry((lag - first) / width).or_default();
            row.tokens += at.tokens;
            row.distance.merge(at.distance);
        }
        let row = |(index, at): (i64, AtLag)| LagRow {
            from: first + index * width,
            to: (first + (index + 1) * width - 1).min(*last),
            tokens: at.tokens,
            share: at.tokens as f64 / self.all.mean.count() as f64,
            ess: at.distance.ess(),
            k1: at.distance.k1.value(),
            k3: at.distance.k3.value(),
        };
        rows.into_iter().map(row).collect()
    }
}

/// What of a list is of these tokens: nothing of one that ends before them.
fn part<'a>(list: &'a [f32], tokens: &Range<usize>) -> &'a [f32] {
    &list[tokens.start.min(list.len())..tokens.end.min(list.len())]
}
