//! When a run first got to a reward: in time and in rollouts.

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
