//! A run's steps as points of curves, each of a few steps that follow each other: few points, however many steps there are.

use crate::kernel::mean::Mean;
use crate::kernel::standard_error::MeanAndError;
use serde::Serialize;
use std::collections::BTreeMap;
use tidegate_operators::record::Metrics;

/// Most points of a curve: about as many as a picture is wide.
const MOST: usize = 600;

/// The points so far.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Steps of a point.
    width: u64,
    points: Vec<Point>,
    most: usize,
}

/// Sums over some steps.
#[derive(Clone, Debug, Default)]
struct Point {
    steps: u64,
    first: u64,
    last: u64,
    finished_ns: i64,
    rollouts: u64,
    /// Weighed by rollouts, then by tokens.
    of_rollouts: [Mean; 3],
    of_tokens: [Mean; 5],
    /// Of tokens that were left out, too, as the largest is.
    lag: Mean,
    lag_max: u64,
    /// The largest: a spike is what one looks for.
    grad_norm: Option<f64>,
    lr: f64,
    skipped: u64,
    /// Nanoseconds, in the order of [`SPENT`].
    spent: [u64; 8],
}

/// Means over rollouts and tokens, and times, as they are called in the page.
const OF_ROLLOUTS: [&str; 3] = ["reward", "success", "length"];
const OF_TOKENS: [&str; 5] = ["entropy", "ess", "kl_k1", "kl_k3", "clipped"];
const SPENT: [&str; 8] = ["train", "forced", "any", "log", "elsewhere", "sample", "idle", "generators"];

/// The points as columns of equal length; null where no step of a point has the number.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Columns {
    /// Steps of a point, but for the last, which may have fewer.
    pub steps_a_point: u64,
    /// `step` the last of the point, `first` its first; `seconds` since the run began; `rollouts` trained until then; means over the
    /// rollouts or tokens of the point's steps; `lag_max` and `grad_norm` the largest; times in seconds.
    #[serde(flatten)]
    pub of: BTreeMap<&'static str, Vec<Option<f64>>>,
}

impl Default for Series {
    fn default() -> Self {
        Series { width: 1, points: Vec::new(), most: MOST }
    }
}

impl Series {
    /// Adds the step that comes after, which took so many rollouts: with a safeguard not each of them need have a gradient.
    pub(super) fn add(&mut self, metrics: &Metrics, taken: u64) {
        let step = Point::of(metrics, taken);
        match self.points.last_mut().filter(|last| last.steps < self.width) {
            Some(last) => last.merge(&step),
            None => self.points.push(step),
        }
        if self.points.len() > self.most {
            let pairs = self.points.chunks(2).map(|pair| {
                let mut point = pair[0].clone();
                pair[1..].iter().for_each(|next| point.merge(next));
                point
            });
            self.points = pairs.collect();
            self.width *= 2;
        }
    }

    /// When the last step ended.
    pub(super) fn ended_ns(&self) -> Option<i64> {
        self.points.last().map(|point| point.finished_ns)
    }

    /// When the run began, as near as is known: the first step's end less the time that its learner took for it.
    pub(super) fn began_ns(&self) -> Option<i64> {
        let first = self.points.first()?;
        // Of one step only: of more, the times are theirs together and the end is the last one's, which comes to the same.
        Some(first.finished_ns - first.spent[..5].iter().sum::<u64>() as i64)
    }

    /// The curves, times counted from `began_ns`.
    pub(super) fn columns(&self, began_ns: i64) -> Columns {
        let mut of: BTreeMap<&'static str, Vec<Option<f64>>> = BTreeMap::new();
        let mut rollouts = 0;
        for point in &self.points {
            rollouts += point.rollouts;
            let mut put = |name, value: Option<f64>| of.entry(name).or_default().push(value.and_then(short));
            let seconds = |ns: u64| Some(ns as f64 / 1e9);
            put("first", Some(point.first as f64));
            put("step", Some(point.last as f64));
            put("seconds", Some((point.finished_ns - began_ns) as f64 / 1e9));
            put("rollouts", Some(rollouts as f64));
            OF_ROLLOUTS.iter().zip(&point.of_rollouts).for_each(|(name, mean)| put(name, mean.value()));
            OF_TOKENS.iter().zip(&point.of_tokens).for_each(|(name, mean)| put(name, mean.value()));
            put("lag_mean", point.lag.value());
            put("lag_max", Some(point.lag_max as f64));
            put("grad_norm", point.grad_norm);
            put("lr", Some(point.lr));
            put("skipped", Some(point.skipped as f64));
            SPENT.iter().zip(point.spent).for_each(|(name, ns)| put(name, seconds(ns)));
        }
        Columns { steps_a_point: self.width, of }
    }

    /// Mean of a column over the first or the last tenth of the points, at least one, with the standard error of that mean over
    /// points: 0 where there is one.
    pub(super) fn tenth(columns: &Columns, name: &str, end: End) -> Option<(f64, f64)> {
        let all: Vec<f64> = columns.of.get(name)?.iter().flatten().copied().collect();
        let n = all.len().div_ceil(10);
        let part = match end {
            End::First => &all[..n],
            End::Last => &all[all.len() - n..],
        };
        mean_and_error(part)
    }
}

/// Which end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    First,
    Last,
}

/// None of nothing.
fn mean_and_error(of: &[f64]) -> Option<(f64, f64)> {
    let mut sums = MeanAndError::default();
    of.iter().for_each(|x| sums.add(*x));
    Some((sums.mean()?, sums.standard_error().unwrap_or(0.0)))
}

impl Point {
    fn of(m: &Metrics, taken: u64) -> Point {
        let mean = |x: f64, weight: u64| {
            let mut mean = Mean::default();
            if x.is_finite() && weight > 0 {
                mean.add_times(x, weight);
            }
            mean
        };
        Point {
            steps: 1,
            first: m.step,
            last: m.step,
            finished_ns: m.finished_ns,
            rollouts: m.rollouts,
            of_rollouts: [m.reward, m.success, m.length].map(|x| mean(x, taken)),
            of_tokens: [m.entropy, m.ess, m.kl_k1, m.kl_k3, m.clipped].map(|x| mean(x, m.tokens)),
            lag: mean(m.lag_mean, m.tokens + m.left_out),
            lag_max: m.lag_max,
            grad_norm: m.grad_norm.is_finite().then_some(m.grad_norm),
            lr: m.lr,
            skipped: u64::from(m.skipped),
            spent: [
                m.train_ns,
                m.wait_forced_ns,
                m.wait_any_ns,
                m.wait_log_ns,
                m.elsewhere_ns,
                m.sample_ns,
                m.idle_ns,
                m.generators_ns,
            ],
        }
    }

    /// Adds what comes after.
    fn merge(&mut self, next: &Point) {
        self.steps += next.steps;
        (self.last, self.finished_ns, self.lr) = (next.last, next.finished_ns, next.lr);
        self.rollouts += next.rollouts;
        self.of_rollouts.iter_mut().zip(next.of_rollouts).for_each(|(sum, of)| sum.merge(of));
        self.of_tokens.iter_mut().zip(next.of_tokens).for_each(|(sum, of)| sum.merge(of));
        self.lag.merge(next.lag);
        self.lag_max = self.lag_max.max(next.lag_max);
        self.grad_norm = [self.grad_norm, next.grad_norm].into_iter().flatten().reduce(f64::max);
        self.skipped += next.skipped;
        self.spent.iter_mut().zip(next.spent).for_each(|(sum, ns)| *sum += ns);
    }
}

/// Five significant digits, which is what a picture shows; None where it is no number.
pub fn short(x: f64) -> Option<f64> {
    let whole = x.fract() == 0.0 && x.abs() < 1e15;
    x.is_finite().then(|| if whole { x } else { format!("{x:.4e}").parse().unwrap_or(x) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> Metrics {
        Metrics {
            step,
            rollouts: if step == 2 { 12 } else { 4 },
            tokens: 10,
            reward: step as f64,
            ess: if step == 3 { f64::NAN } else { 0.5 },
            lag_max: 7 - step,
            grad_norm: 10.0 - step as f64,
            train_ns: 1_500_000_000,
            wait_any_ns: 500_000_000,
            finished_ns: 100_000_000_000 + 2_000_000_000 * step as i64,
            ..Metrics::default()
        }
    }

    /// Five steps into at most three points: of two steps, two and one. Catches a mean of means (step 2 has three times the
    /// rollouts), a NaN in a mean, a maximum that is the last, a sum that leaves a point out.
    #[test]
    fn points_are_few_and_leave_nothing_out() {
        let mut series = Series { most: 3, ..Series::default() };
        (1..=5).for_each(|k| series.add(&step(k), step(k).rollouts));
        assert_eq!((series.began_ns(), series.ended_ns()), (Some(100_000_000_000), Some(110_000_000_000)));
        let columns = series.columns(100_000_000_000);
        assert_eq!(columns.steps_a_point, 2);
        let of = |name: &str| columns.of[name].iter().map(|x| x.unwrap()).collect::<Vec<_>>();
        assert_eq!(
            (of("first"), of("step"), of("seconds")),
            (vec![1.0, 3.0, 5.0], vec![2.0, 4.0, 5.0], vec![4.0, 8.0, 10.0])
        );
        assert_eq!((of("rollouts"), of("reward")), (vec![16.0, 24.0, 28.0], vec![1.75, 3.5, 5.0]));
        assert_eq!((of("ess"), of("lag_max"), of("grad_norm")), (vec![0.5; 3], vec![6.0, 4.0, 2.0], vec![9.0, 7.0, 5.0]));
        assert_eq!((of("train"), of("any")), (vec![3.0, 3.0, 1.5], vec![1.0, 1.0, 0.5]));
    }

    /// Catches a step that is lost because a safeguard left all its tokens out.
    #[test]
    fn a_step_without_a_gradient_has_a_reward_and_a_lag() {
        let mut series = Series::default();
        let m = Metrics { rollouts: 0, tokens: 0, left_out: 30, lag_mean: 2.5, ..step(2) };
        series.add(&m, 6);
        let columns = series.columns(0);
        let of = |name: &str| columns.of[name][0];
        assert_eq!((of("reward"), of("lag_mean"), of("ess"), of("rollouts")), (Some(2.0), Some(2.5), None, Some(0.0)));
    }

    #[test]
    fn ends_are_tenths_with_the_error_of_their_mean() {
        assert_eq!(mean_and_error(&[1.0, 3.0]), Some((2.0, 1.0)));
        assert_eq!((mean_and_error(&[4.0]), mean_and_error(&[])), (Some((4.0, 0.0)), None));
        let columns = Columns {
            steps_a_point: 1,
            of: BTreeMap::from([("reward", (0..12).map(|x| (x != 1).then_some(f64::from(x))).collect())]),
        };
        assert_eq!(Series::tenth(&columns, "reward", End::First), Some((1.0, 1.0)), "0 and 2: what is null is not counted");
        assert_eq!(Series::tenth(&columns, "reward", End::Last).unwrap().0, 10.5);
        assert_eq!(Series::tenth(&columns, "entropy", End::Last), None);
    }

    #[test]
    fn numbers_are_short_and_finite() {
        assert_eq!(
            [0.123_456_789, 123_456.0, f64::NAN, f64::INFINITY].map(short),
            [Some(0.123_46), Some(123_456.0), None, None]
        );
    }
}
