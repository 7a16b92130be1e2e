//! When a pipeline pays: one thing is changed, all else stays.

use crate::kernel::capacity::{Job, Rate, Split};
use crate::kernel::lengths::Lengths;
use serde::Serialize;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Curve {
    /// The largest lag that is allowed.
    Lag,
    /// How many accelerators.
    Accelerators,
    /// How long the longest response is, the shape of the lengths being the same.
    Longest,
    /// How far lengths are apart: evenly from the mean less so many times it to the mean and as much.
    Spread,
    /// Rollouts a step.
    Batch,
    /// How many accelerators train, whatever the lag comes to.
    Split,
}

/// A point of a curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// What was changed: as a number, and as it is told.
    pub x: f64,
    pub at: String,
    pub generators: usize,
    pub slots: usize,
    pub tokens: f64,
    pub max_lag: u64,
    pub mean_lag: f64,
    /// Of the conventional schedule with the same largest lag, and with no more mean lag.
    pub conventional: f64,
    pub conventional_at_mean: f64,
}

impl Point {
    /// How many times the conventional schedule's tokens of the same largest lag.
    pub fn speed_up(&self) -> f64 {
        self.tokens / self.conventional
    }

    fn new((x, at): (f64, String), job: &Job, split: Split, rate: Rate) -> Point {
        Point {
            x,
            at,
            generators: split.generators,
            slots: split.slots,
            tokens: rate.tokens,
            max_lag: rate.max_lag,
            mean_lag: rate.mean_lag,
            conventional: job.conventional(rate.max_lag + 1).tokens,
            conventional_at_mean: job.conventional_at_mean(rate.mean_lag).tokens,
        }
    }

    /// The best split of a job; None where there is none. It is compared at the lag that was allowed.
    fn best(at: (f64, String), job: &Job, max_lag: u64) -> Option<Point> {
        let (split, rate) = job.best_split(max_lag)?;
        let conventional = job.conventional(max_lag + 1).tokens;
        Some(Point { conventional, ..Point::new(at, job, split, rate) })
    }
}

/// How many points a curve has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// A few, for a table.
    Told,
    /// So many that straight lines between them will do.
    Drawn,
}

impl Grid {
    /// Times what is in the middle: from an eighth to four times it.
    fn factors(self) -> Vec<f64> {
        match self {
            Grid::Told => vec![0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0],
            Grid::Drawn => (-12..=8).map(|quarter| (f64::from(quarter) / 4.0).exp2()).collect(),
        }
    }

    /// Equal parts of what goes from 0 to 1.
    fn parts(self) -> usize {
        match self {
            Grid::Told => 5,
            Grid::Drawn => 20,
        }
    }

    /// Equal parts of the accelerators.
    fn shares(self) -> usize {
        match self {
            Grid::Told => 8,
            Grid::Drawn => 32,
        }
    }
}

impl Curve {
    pub const ALL: [Curve; 6] = [Curve::Lag, Curve::Accelerators, Curve::Longest, Curve::Spread, Curve::Batch, Curve::Split];
    /// What each is called, in that order.
    pub const NAMES: [&str; 6] = ["lag", "accelerators", "longest", "spread", "batch", "split"];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Curve> {
        Self::ALL.into_iter().zip(Self::NAMES).find(|(_, own)| *own == name).map(|(curve, _)| curve)
    }

    /// The curve through `job`, at a largest lag of `max_lag`.
    pub fn points(self, job: &Job, max_lag: u64, grid: Grid) -> Vec<Point> {
        let whole = |n: usize| (n as f64, n.to_string());
        let scaled = |x: usize| {
            let mut all: Vec<usize> = grid.factors().iter().map(|factor| (x as f64 * factor).round() as usize).collect();
            all.dedup();
            all
        };
        match self {
            Curve::Lag => {
                let lags = scaled(max_lag as usize).into_iter().map(|lag| lag as u64);
                lags.filter_map(|lag| Point::best(whole(lag as usize), job, lag)).collect()
            }
            Curve::Accelerators => {
                let of = |n: usize| Point::best(whole(n), &Job { accelerators: n, ..job.clone() }, max_lag);
                scaled(job.accelerators).into_iter().filter(|n| *n > 1).filter_map(of).collect()
            }
            Curve::Batch => {
                let of = |n: usize| Point::best(whole(n), &Job { batch_size: n, ..job.clone() }, max_lag);
                scaled(job.batch_size).into_iter().filter(|n| *n > 0).filter_map(of).collect()
            }
            Curve::Longest => {
                let of = |factor: &f64| {
                    let lengths = job.lengths.stretched(*factor)?;
                    Point::best(whole(lengths.longest()), &Job { lengths, ..job.clone() }, max_lag)
                };
                let mut all: Vec<Point> = grid.factors().iter().filter_map(of).collect();
                all.dedup_by(|next, before| next.at == before.at);
                all
            }
            Curve::Spread => {
                let mean = job.lengths.mean();
                let of = |part: usize| {
                    let spread = part as f64 / grid.parts() as f64;
                    let [least, longest] =
                        [mean * (1.0 - spread), mean * (1.0 + spread)].map(|x| (x.round() as usize).max(1));
                    Point::best(
                        (spread, format!("{spread:.1}")),
                        &Job { lengths: Lengths::between(least, longest)?, ..job.clone() },
                        max_lag,
                    )
                };
                (0..=grid.parts()).filter_map(of).collect()
            }
            Curve::Split => {
                let slots = job.best_split(max_lag).map_or(1, |(split, _)| split.slots);
                let mut all: Vec<usize> = (1..grid.shares()).map(|i| job.accelerators * i / grid.shares()).collect();
                all.dedup();
                let shares = all.into_iter().filter(|n| (1..job.accelerators).contains(n));
                let of = |learners: usize| {
                    let split = Split { generators: job.accelerators - learners, learners, slots };
                    Point::new(whole(learners), job, split, job.pipeline(split))
                };
                shares.map(of).collect()
            }
        }
    }

    /// What its first column is.
    pub fn heading(self) -> &'static str {
        match self {
            Curve::Lag => "max lag",
            Curve::Accelerators => "accelerators",
            Curve::Longest => "longest",
            Curve::Spread => "spread",
            Curve::Batch => "rollouts a step",
            Curve::Split => "learners",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::capacity::Speed;

    /// What the paper's appendix says of each, at its case study: more lag pays until generators are enough; equal lengths gain least;
    /// an accelerator more costs as much as it brings where the lag is bounded.
    #[test]
    fn curves_say_when_it_pays() {
        let lengths = Lengths::uniform(1000).unwrap();
        let job = Job { accelerators: 128, batch_size: 128, lengths, speed: Speed::PAPER };
        let lag = Curve::Lag.points(&job, 133, Grid::Told);
        let ups: Vec<f64> = lag.iter().map(Point::speed_up).collect();
        assert!(ups[0] < 1.1 && ups[4] > 1.55 && ups[8] < ups[4], "{ups:?}");
        let spread = Curve::Spread.points(&job, 133, Grid::Told);
        assert_eq!((spread[0].at.as_str(), spread[0].max_lag), ("0.0", 75));
        assert!(spread[..5].windows(2).all(|pair| pair[1].speed_up() > pair[0].speed_up() + 0.05), "{spread:?}");
        assert!(spread[0].speed_up() < 1.25, "equal lengths leave the overlap");
        let batch = Curve::Batch.points(&job, 16, Grid::Told);
        assert!(batch.windows(2).all(|pair| pair[1].tokens >= pair[0].tokens), "larger batches are younger");
        let longest = Curve::Longest.points(&job, 133, Grid::Told);
        assert_eq!((longest[0].at.as_str(), longest.len()), ("125", 9));
        let split = Curve::Split.points(&job, 133, Grid::Told);
        assert_eq!((split.len(), split[0].generators), (7, 112));
        let accelerators = Curve::Accelerators.points(&job, 133, Grid::Told);
        assert!(accelerators.len() == 9 && accelerators[8].at == "512", "{accelerators:?}");
        // What is drawn goes through what is told.
        for (curve, told) in [(Curve::Lag, lag), (Curve::Spread, spread), (Curve::Split, split)] {
            let drawn = curve.points(&job, 133, Grid::Drawn);
            assert!(drawn.len() > 2 * told.len() && drawn.windows(2).all(|pair| pair[0].x < pair[1].x), "{curve:?}");
            let on = |point: &&Point| drawn.iter().any(|other| other.x == point.x && other.tokens == point.tokens);
            assert!(told.iter().filter(on).count() >= told.len() / 2, "{curve:?}");
        }
    }
}
