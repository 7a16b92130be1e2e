//! What rewards from outside cost: counts, latencies, and the share of the last requests that failed.

use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// What was asked of a reward from outside, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Requests that came to an end, evaluations included.
    pub requests: u64,
    /// Those without a reward.
    pub failures: u64,
    /// Programs started again.
    pub restarts: u64,
    /// POSTs sent again.
    pub retries: u64,
    /// From asking to the answer, of requests that were answered. None without one.
    pub latency_mean_s: Option<f64>,
    /// 99 of 100 took no longer (to 2 %).
    pub latency_p99_s: Option<f64>,
}

/// Latencies in buckets of 2 %, and the longest as it was.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    count: u64,
    sum: Duration,
    longest: Duration,
    buckets: Vec<u64>,
}

const STEP: f64 = 1.02;

impl Latencies {
    pub fn add(&mut self, latency: Duration) {
        let micros = latency.as_secs_f64() * 1e6;
        let bucket = (micros.max(1.0).ln() / STEP.ln()) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += latency;
        self.longest = self.longest.max(latency);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn sum_s(&self) -> f64 {
        self.sum.as_secs_f64()
    }

    /// None where there is none, as with the others.
    pub fn longest_s(&self) -> Option<f64> {
        (self.count > 0).then_some(self.longest.as_secs_f64())
    }

    pub fn mean_s(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.as_secs_f64() / self.count as f64)
    }

    /// The upper end of the bucket that holds the `percent`-th of 100, no further than the longest.
    pub fn percentile_s(&self, percent: u64) -> Option<f64> {
        let wanted = (self.count * percent).div_ceil(100);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|n| {
            below += n;
            below >= wanted.max(1)
        })?;
        Some((STEP.powf(bucket as f64 + 1.0) * 1e-6).min(self.longest_s()?))
    }
}

/// How the last requests ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    failed: VecDeque<bool>,
    failures: usize,
}

/// Requests that the window holds; and as many as it takes to judge, where some were answered and where none was.
const LAST: usize = 200;
const ENOUGH: usize = 20;
const ENOUGH_IF_ALL: usize = 8;

impl Window {
    /// Takes one in. Some (failures, requests) where they are more than the share `limit`.
    pub fn add(&mut self, failed: bool, limit: f64) -> Option<(usize, usize)> {
        self.failed.push_back(failed);
        self.failures += usize::from(failed);
        if self.failed.len() > LAST && self.failed.pop_front() == Some(true) {
            self.failures -= 1;
        }
        let (failures, requests) = (self.failures, self.failed.len());
        let enough = requests >= ENOUGH || (requests >= ENOUGH_IF_ALL && failures == requests);
        (enough && failures as f64 > limit * requests as f64).then_some((failures, requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_by_hand() {
        let mut latencies = Latencies::default();
        assert_eq!((latencies.mean_s(), latencies.percentile_s(99), latencies.longest_s()), (None, None, None));
        (0..99).for_each(|_| latencies.add(Duration::from_millis(10)));
        latencies.add(Duration::from_secs(1));
        let (mean, p99) = (latencies.mean_s().unwrap(), latencies.percentile_s(99).unwrap());
        assert!((mean - 0.0199).abs() < 1e-9, "{mean}");
        assert!((0.01..0.0103).contains(&p99), "{p99}");
        let (median, longest) = (latencies.percentile_s(50).unwrap(), latencies.longest_s().unwrap());
        assert!((0.01..0.0103).contains(&median) && longest == 1.0, "{median} {longest}");
        assert!((latencies.sum_s() - 1.99).abs() < 1e-9 && latencies.count() == 100);
        latencies.add(Duration::from_secs(1));
        let p99 = latencies.percentile_s(99).unwrap();
        assert_eq!(p99, 1.0, "a bucket's end is no latency that there was");
        latencies.add(Duration::ZERO);
    }

    /// Catches a limit that a single failure passes, one that is never passed, and failures that are never forgotten.
    #[test]
    fn a_share_above_the_limit_is_seen() {
        let mut window = Window::default();
        assert!((0..7).all(|_| window.add(true, 0.5).is_none()));
        assert_eq!(window.add(true, 0.5), Some((8, 8)), "nothing works at all");
        let mut window = Window::default();
        assert!((0..40).all(|i| window.add(i % 2 == 1, 0.5).is_none()), "half is not more than half");
        assert_eq!(window.add(true, 0.5), Some((21, 41)));
        let mut window = Window::default();
        (0..10).for_each(|_| assert!(window.add(false, 0.1).is_none()));
        (0..2).for_each(|_| assert!(window.add(true, 0.1).is_none()));
        (0..188).for_each(|_| assert!(window.add(false, 0.1).is_none()));
        (0..20).for_each(|i| assert!(window.add(true, 0.1).is_none() || i >= 18, "{i}: two are forgotten"));
        let mut window = Window::default();
        assert!((0..500).all(|_| window.add(true, 1.0).is_none()), "a limit of 1 is none");
    }
}
