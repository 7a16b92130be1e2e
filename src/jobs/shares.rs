//! What the learner and the generators waited for, as shares of time.

use serde::Serialize;
use std::collections::VecDeque;
use tidegate_operators::record::Metrics;

/// Nanoseconds of some steps, by what they went into.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spending {
    train: f64,
    forced: f64,
    any: f64,
    log: f64,
    elsewhere: f64,
    sample: f64,
    idle: f64,
    generators: f64,
}

/// The same as shares: of the learner's time, and of all generators' together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    pub trained: f64,
    /// The learner waited for groups that the lag bound forces, for any groups, for the log.
    pub waited_forced: f64,
    pub waited_any: f64,
    pub waited_log: f64,
    /// Its worker did something else: on one that also generates, decode steps while a step was open.
    pub elsewhere: f64,
    /// The generators, but for one on the learner's worker where there are others, were in decode steps and loading weights; had nothing in
    /// progress. None in logs that do not say.
    pub sampled: Option<f64>,
    pub idle: Option<f64>,
}

impl Spending {
    pub fn add(&mut self, m: &Metrics) {
        let numbers = [m.train_ns, m.wait_forced_ns, m.wait_any_ns, m.wait_log_ns, m.elsewhere_ns];
        let [train, forced, any, log, elsewhere] = numbers.map(|ns| ns as f64);
        let [sample, idle, generators] = [m.sample_ns, m.idle_ns, m.generators_ns].map(|ns| ns as f64);
        *self = self.and(&Spending { train, forced, any, log, elsewhere, sample, idle, generators });
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Spending) -> Spending {
        Spending {
            train: self.train + other.train,
            forced: self.forced + other.forced,
            any: self.any + other.any,
            log: self.log + other.log,
            elsewhere: self.elsewhere + other.elsewhere,
            sample: self.sample + other.sample,
            idle: self.idle + other.idle,
            generators: self.generators + other.generators,
        }
    }

    /// None where no time was spent.
    pub fn shares(&self) -> Option<Shares> {
        let whole = self.train + self.forced + self.any + self.log + self.elsewhere;
        let of_generators = |ns: f64| (self.generators > 0.0).then(|| ns / self.generators);
        (whole > 0.0).then(|| Shares {
            trained: self.train / whole,
            waited_forced: self.forced / whole,
            waited_any: self.any / whole,
            waited_log: self.log / whole,
            elsewhere: self.elsewhere / whole,
            sampled: of_generators(self.sample),
            idle: of_generators(self.idle),
        })
    }
}

/// Steps that shares are shown of while a run goes on.
const WINDOW: usize = 32;

/// What the last steps spent.
#[derive(Clone, Debug, Default)]
pub struct Window(VecDeque<Spending>);

impl Window {
    /// Adds a step; the oldest goes when there are enough. What those that are left spent.
    pub fn add(&mut self, metrics: &Metrics) -> Spending {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        let mut step = Spending::default();
        step.add(metrics);
        self.0.push_back(step);
        self.0.iter().fold(Spending::default(), |sum, step| sum.and(step))
    }
}

/// A run's steps, and those among them whose waits say something of its balance: at the start there is nothing to train, and at the
/// end nothing more to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Steady {
    all: Spending,
    steady: Spending,
}

impl Steady {
    /// Adds a step of a run of `steps`, whose lag is bounded by `bound`.
    pub fn add(&mut self, metrics: &Metrics, steps: u64, bound: u64) {
        self.all.add(metrics);
        if metrics.step > 1 && metrics.step.saturating_add(bound) <= steps {
            self.steady.add(metrics);
        }
    }

    /// Both together.
    pub fn merge(&mut self, other: &Steady) {
        *self = Steady { all: self.all.and(&other.all), steady: self.steady.and(&other.steady) };
    }

    /// Of the steps that say something, or of all where none does.
    pub fn shares(&self) -> Option<Shares> {
        self.steady.shares().or_else(|| self.all.shares())
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64, train_ns: u64, wait_any_ns: u64, idle_ns: u64) -> Metrics {
        Metrics { step, train_ns, wait_any_ns, idle_ns, generators_ns: 200, sample_ns: 100, ..Metrics::default() }
    }

    /// Catches shares of a sum without all its parts, means of shares, and a window that never forgets.
    #[test]
    fn shares_are_of_sums() {
        let all = Metrics { wait_forced_ns: 20, wait_log_ns: 5, elsewhere_ns: 15, ..metrics(1, 50, 10, 60) };
        let mut window = Window::default();
        let found = window.add(&all).shares().unwrap();
        let expected = Shares {
            trained: 0.5,
            waited_forced: 0.2,
            waited_any: 0.1,
            waited_log: 0.05,
            elsewhere: 0.15,
            sampled: Some(0.5),
            idle: Some(0.3),
        };
        assert_eq!(found, expected);
        let uneven = window.add(&metrics(2, 100, 800, 0)).shares().unwrap();
        assert_eq!((uneven.trained, uneven.waited_any, uneven.idle), (0.15, 0.81, Some(0.15)));
        for step in 0..31 {
            let _ = window.add(&metrics(step, 1, 0, 0));
        }
        assert_eq!(window.add(&metrics(9, 1, 0, 0)).shares().unwrap().trained, 1.0);
        assert_eq!(Spending::default().shares(), None);
        let older = Metrics { generators_ns: 0, ..all };
        assert_eq!(Window::default().add(&older).shares().unwrap().idle, None);
    }

    /// Of 10 steps with a bound of 2: the first, and those after the eighth, for which all is admitted. Catches a run's ends that count.
    #[test]
    fn the_ends_of_a_run_say_nothing() {
        let mut steady = Steady::default();
        for step in 1..=10 {
            let waits = if (2..=8).contains(&step) { 0 } else { 100 };
            steady.add(&metrics(step, 100, waits, waits), 10, 2);
        }
        let found = steady.shares().unwrap();
        assert_eq!((found.waited_any, found.idle), (0.0, Some(0.0)));
        let mut short = Steady::default();
        short.add(&metrics(1, 50, 50, 0), 1, 4);
        assert_eq!(short.shares().unwrap().waited_any, 0.5, "all there is");
        let mut both = Steady::default();
        both.merge(&steady);
        both.merge(&short);
        assert_eq!(both.shares(), steady.shares());
    }
}
