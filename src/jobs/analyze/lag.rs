//! Lag of trained tokens, and how far off policy they are, as sums.

use crate::jobs::analyze::report::{Lag, LagRow, OffPolicy, PositionRow};
use crate::kernel::ess::Ess;
use crate::kernel::kl::{k1, k3};
use crate::kernel::mean::Mean;
use crate::kernel::ratio::ratio;
use std::collections::BTreeMap;
use tidegate_operators::record::Rollout;

/// Lags that are told apart; those beyond count as the last.
const MAX_LAG_TOLD: i64 = 4096;
/// Rows of the report's table by lag.
const ROWS: usize = 16;
const TENTHS: usize = 10;

/// A lag in steps, its mean and maximum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lags {
    pub(super) mean: Mean,
    pub(super) max: Option<i64>,
}

impl Lags {
    fn add(&mut self, lag: i64) {
        self.mean.add(lag as f64);
        self.max = self.max.max(Some(lag));
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
    fn add(&mut self, behavior: f32, current: f32) {
        self.ess.add(ratio(current, behavior).into());
        self.k1.add(k1(behavior, current).into());
        self.k3.add(k3(behavior, current).into());
    }

    fn merge(&mut self, other: Distance) {
        self.ess.merge(other.ess);
        self.k1.merge(other.k1);
        self.k3.merge(other.k3);
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

/// Sums of a run.
#[derive(Debug, Default)]
pub(super) struct LagSums {
    bound: Option<u64>,
    all: Lags,
    broken: u64,
    by_lag: BTreeMap<i64, AtLag>,
    by_position: [Lags; TENTHS],
    distance: Distance,
}

/// What one trained rollout adds to its interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub(super) lags: Lags,
    pub(super) distance: Distance,
}

impl Part {
    pub(super) fn merge(&mut self, other: Part) {
        self.lags.mean.merge(other.lags.mean);
        self.lags.max = self.lags.max.max(other.lags.max);
        self.distance.merge(other.distance);
    }
}

impl LagSums {
    pub(super) fn set_bound(&mut self, bound: Option<u64>) {
        self.bound = bound.or(self.bound);
    }

    /// Adds a trained rollout; a token counts where `mask` says so, and where there is no mask (an older file).
    pub(super) fn add(&mut self, rollout: &Rollout) -> Part {
        let mut part = Part::default();
        let newest = rollout.step as i64 - 1;
        for (position, version) in rollout.version.iter().enumerate().filter(|(i, _)| trained(rollout, *i)) {
            let lag = newest - *version as i64;
            let at = self.by_lag.entry(lag.clamp(-1, MAX_LAG_TOLD)).or_default();
            at.tokens += 1;
            self.all.add(lag);
            self.by_position[position * TENTHS / rollout.version.len()].add(lag);
            part.lags.add(lag);
            let above = self.bound.is_some_and(|bound| lag > bound as i64);
            self.broken += u64::from(above || lag < 0);
            if let (Some(behavior), Some(current)) =
                (rollout.logp_behavior.get(position), rollout.logp_current.get(position))
            {
                at.distance.add(*behavior, *current);
                self.distance.add(*behavior, *current);
                part.distance.add(*behavior, *current);
            }
        }
        part
    }

    pub(super) fn lag(&self) -> Lag {
        let position = |(tenth, lags): (usize, &Lags)| PositionRow {
            from: tenth as f64 / TENTHS as f64,
            lag_mean: lags.mean.value(),
            lag_max: lags.max,
        };
        Lag {
            bound: self.bound,
            mean: self.all.mean.value(),
            max: self.all.max,
            broken: self.broken,
            by_lag: self.rows(),
            by_position: self.by_position.iter().enumerate().map(position).collect(),
        }
    }

    pub(super) fn off_policy(&self) -> OffPolicy {
        let Distance { k1, k3, .. } = self.distance;
        OffPolicy { tokens: k1.count(), ess: self.distance.ess(), k1: k1.value(), k3: k3.value() }
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

/// Whether a token of a trained rollout was trained.
pub(super) fn trained(rollout: &Rollout, position: usize) -> bool {
    rollout.mask.is_empty() || rollout.mask.get(position) == Some(&true)
}
