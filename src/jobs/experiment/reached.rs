//! When a run of an experiment first got to a reward, by its result.

use crate::jobs::experiment::results::{Point, Row};
use crate::jobs::reached::{Reached, Trained, WINDOW, first};

/// Where a run's reward first got to `reward`, by its curve. Points without a reward are passed over.
pub fn reached(row: &Row, reward: f64) -> Option<Reached> {
    first(&trained(row), WINDOW, reward)
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
