//! When a run first got to a reward: in time and in rollouts.

use crate::jobs::experiment::results::{Point, Row};
use crate::kernel::mean::Mean;

/// How many points of a curve the running mean is of: of a run of 160 steps, 12 steps.
pub const WINDOW: usize = 3;

/// Where the running mean of a run's reward first was at least what was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// From the first admission, seconds: None where the result does not say when that was.
    pub seconds: Option<f64>,
    /// Trained until there.
    pub rollouts: f64,
}

/// The mean reward of some rollouts that were trained one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trained {
    /// From the first admission until they were trained, seconds.
    pub seconds: Option<f64>,
    /// How many were trained by then, and how many of them these are.
    pub until: f64,
    pub rollouts: u64,
    pub reward: f64,
}

/// Where a run's reward first got to `reward`, by its curve. Points without a reward are passed over.
pub fn reached(row: &Row, reward: f64) -> Option<Reached> {
    first(&trained(row), WINDOW, reward)
}

/// Where the line between the running means of two points, each over the rollouts of the last `window` points, first crosses `reward`. A
/// mean stands at the end of its window, so that nothing is told to be reached before it was seen. None where it never does.
pub fn first(points: &[Trained], window: usize, reward: f64) -> Option<Reached> {
    let means = running(points, window);
    let place = means.iter().position(|(_, mean)| *mean >= reward)?;
    let (point, mean) = means[place];
    // At once: at the end of the first window.
    let (before, share) = match place.checked_sub(1).map(|before| means[before]) {
        Some((before, low)) => (before, (reward - low) / (mean - low)),
        None => (point, 1.0),
    };
    let between = |from: f64, to: f64| from + share * (to - from);
    let seconds = before.seconds.zip(point.seconds).map(|(from, to)| between(from, to));
    Some(Reached { seconds, rollouts: between(before.until, point.until) })
}

/// The last point of each window, and the mean over the window's rollouts.
pub fn running(points: &[Trained], window: usize) -> Vec<(Trained, f64)> {
    let of = |window: &[Trained]| {
        let mut mean = Mean::default();
        window.iter().for_each(|point| mean.add_times(point.reward, point.rollouts));
        Some((*window.last()?, mean.value()?))
    };
    points.windows(window.max(1)).filter_map(of).collect()
}

fn trained(row: &Row) -> Vec<Trained> {
    let mut before = 0;
    let of = |point: &Point| {
        let rollouts = point.rollouts.saturating_sub(before);
        before = point.rollouts;
        let seconds = row.first_s.map(|first| first + point.seconds);
        point.reward.map(|reward| Trained { seconds, until: point.rollouts as f64, rollouts, reward })
    };
    row.curve.iter().filter_map(of).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::jobs::experiment::results::{Figures, Outcome};

    /// A run with these points: `(seconds, rollouts until here, reward)`.
    pub(crate) fn row(first_s: Option<f64>, points: &[(f64, u64, Option<f64>)]) -> Row {
        let point =
            |&(seconds, rollouts, reward): &(f64, u64, Option<f64>)| Point { seconds, rollouts, reward, ..Point::default() };
        Row {
            at: Vec::new(),
            added: Vec::new(),
            seed: 1,
            settings: String::new(),
            version: String::new(),
            machine: String::new(),
            seconds: 0.0,
            outcome: Outcome::Done(Figures::default()),
            first_s,
            curve: points.iter().map(point).collect(),
        }
    }

    /// Running means of three points of 10 rollouts each: 0.3 at 2 s, 0.4 at 3 s, 0.6 at 5 s, then 0.5, then 0.7. Catches a mean of one
    /// point (0.9 at 5 s), a window that is not at its end, the last crossing in place of the first, and time from the first step's end.
    #[test]
    fn crossings_by_hand() {
        let rewards = [0.2, 0.3, 0.4, 0.5, 0.9, 0.1, 1.1];
        let seconds = [0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 8.0];
        let points: Vec<_> = (0..7).map(|i| (seconds[i], 10 * (i as u64 + 1), Some(rewards[i]))).collect();
        let told = row(Some(4.0), &points);
        let at = |reward| {
            reached(&told, reward).map(|r| (r.seconds.map(|s| (s * 1e6).round() / 1e6), (r.rollouts * 1e6).round() / 1e6))
        };
        assert_eq!(at(0.35), Some((Some(6.5), 35.0)), "halfway from 0.3 to 0.4");
        assert_eq!(at(0.55), Some((Some(8.5), 47.5)), "three quarters from 0.4 to 0.6, and not later again");
        assert_eq!(at(0.65), Some((Some(11.5), 67.5)), "from 0.5 to 0.7");
        assert_eq!(at(0.1), Some((Some(6.0), 30.0)), "from the start: the end of the first window");
        assert_eq!(at(0.71), None);
        assert_eq!(
            reached(&row(None, &points), 0.35),
            Some(Reached { seconds: None, rollouts: reached(&told, 0.35).unwrap().rollouts })
        );
    }

    /// Points are of as many rollouts as they are: 0.2 of 10, 0.8 of 30 and 0.8 of 20 are 0.7. A point without a reward is none.
    #[test]
    fn a_running_mean_is_over_rollouts() {
        let told = row(Some(0.0), &[(1.0, 10, Some(0.2)), (2.0, 15, None), (3.0, 45, Some(0.8)), (4.0, 65, Some(0.8))]);
        let found = reached(&told, 0.69).unwrap();
        assert_eq!(found, Reached { seconds: Some(4.0), rollouts: 65.0 });
        assert_eq!(reached(&told, 0.71), None);
        assert_eq!(reached(&row(Some(0.0), &[]), 0.0), None);
    }
}
