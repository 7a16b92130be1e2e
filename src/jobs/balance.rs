//! What the learner and the generators waited for, as shares of time, and a sentence on what to change.

use crate::spec::Spec;
use serde::Serialize;
use std::collections::VecDeque;
use tidegate_operators::balance::Balance;
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

/// Which workers do what, and how many there could be.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    generators: Vec<usize>,
    learner: usize,
    generator_threads: usize,
    learner_threads: usize,
    balance: Balance,
    /// Sides take turns by the schedule.
    by_turns: bool,
    max_lag: u64,
    processors: usize,
}

impl Layout {
    /// Of a run on a machine with so many processors.
    pub fn of(spec: &Spec, processors: usize) -> Self {
        let plan = spec.plan();
        let w = &spec.workers;
        Layout {
            learner: plan.learner,
            generators: plan.generators,
            generator_threads: usize::from(w.generator_threads),
            learner_threads: usize::from(w.learner_threads),
            balance: w.balance,
            by_turns: plan.schedule.phase().is_some(),
            max_lag: spec.schedule.max_lag,
            processors,
        }
    }

    fn shared(&self) -> bool {
        self.generators.contains(&self.learner)
    }

    /// Whether `workers.balance = "auto"` would change something.
    fn could_be_balanced(&self) -> bool {
        let beside = self.shared() && self.generators.len() > 1;
        beside && self.balance == Balance::Fixed && !self.by_turns && self.max_lag > 0
    }

    /// Whether so many generators beside the learner's worker have a processor for each thread.
    fn fits(&self, generators: usize) -> bool {
        generators * self.generator_threads + self.learner_threads <= self.processors
    }
}

/// From which share on a wait is worth a word.
const WORTH: f64 = 0.1;

/// What to change so that neither side waits; None where nothing is to be gained, or where the log does not say enough.
pub fn advice(shares: &Shares, layout: &Layout) -> Option<String> {
    let (starved, held) = (shares.waited_any + shares.waited_forced, shares.idle?);
    let [of_learner, of_generators] = [starved, held].map(|share| format!("{:.0} % of the time", 100.0 * share));
    match (starved >= WORTH, held >= WORTH) {
        (false, false) => None,
        (_, true) if layout.could_be_balanced() => Some(format!(
            "generators were held back by the lag bound {of_generators}, and the learner's worker sampled what they had time for: \
             workers.balance = \"auto\" leaves it to them"
        )),
        (true, true) if layout.by_turns => Some(format!(
            "the learner starved {of_learner} and generators had nothing to do {of_generators}: by turns each side waits for the \
             other; with schedule.kind = \"pipeline\" both work at once"
        )),
        (true, true) => Some(format!(
            "the learner starved {of_learner} and generators were held back by the lag bound {of_generators}: neither can work ahead \
             of the other; a larger schedule.max_lag ({} now) lets them",
            layout.max_lag
        )),
        (true, false) => {
            generate_more(starved, held, layout).map(|what| format!("the learner starved {of_learner}: {what}"))
        }
        (false, true) => {
            let what = train_more(held, layout);
            Some(format!("generators were held back by the lag bound {of_generators}: {what}"))
        }
    }
}

/// Generation is short: how many generators would feed a learner that works all the time, or what else there is.
fn generate_more(starved: f64, held: f64, layout: &Layout) -> Option<String> {
    let now = layout.generators.len();
    // One that shares its worker with the learner has what the learner leaves.
    let apart = now - usize::from(layout.shared());
    let wanted = up(now as f64 * (1.0 - held) / (1.0 - starved).max(0.05));
    let most = (apart + 1..=wanted.max(apart + 1)).rev().find(|&generators| layout.fits(generators));
    if let Some(more) = most {
        let list: Vec<usize> = (0..more).collect();
        return Some(format!(
            "give generation {more} of {} workers (workers.generators = {list:?}, workers.learners = [{more}])",
            more + 1
        ));
    }
    if layout.shared() {
        return None;
    }
    let list: Vec<usize> = layout.generators.iter().copied().chain([layout.learner]).collect();
    Some(format!("let its worker generate in that time (workers.generators = {list:?}, workers.balance = \"auto\")"))
}

/// To a whole number, up; what is above one by less than can be measured is it.
fn up(count: f64) -> usize {
    (count - 1e-3).ceil() as usize
}

/// Training is short.
fn train_more(held: f64, layout: &Layout) -> String {
    // One that shares its worker with the learner has no threads to give.
    let now = layout.generators.len() - usize::from(layout.shared() && layout.generators.len() > 1);
    let enough = up(now as f64 * (1.0 - held)).max(1);
    let threads = layout.learner_threads;
    if enough < now {
        return format!(
            "{enough} of the {now} generators would do; training is what is short, so give it their threads (workers.learner_threads, \
             {threads} now)"
        );
    }
    format!("training is what is short, so give it more threads (workers.learner_threads, {threads} now)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(generators: &[usize], learner: usize, processors: usize) -> Layout {
        Layout {
            generators: generators.to_vec(),
            learner,
            generator_threads: 1,
            learner_threads: 1,
            balance: Balance::Fixed,
            by_turns: false,
            max_lag: 4,
            processors,
        }
    }

    fn shares(starved: f64, held: f64) -> Shares {
        Shares { waited_any: starved, idle: Some(held), ..Shares::default() }
    }

    /// Catches advice that needs processors that are not there, more generators than feed the learner, and advice where there is
    /// nothing to gain.
    #[test]
    fn a_learner_that_starves_gets_generators() {
        let says = |starved, held, layout: &Layout| advice(&shares(starved, held), layout).unwrap_or_default();
        assert_eq!(
            says(0.41, 0.02, &layout(&[0], 1, 4)),
            "the learner starved 41 % of the time: give generation 2 of 3 workers (workers.generators = [0, 1], workers.learners = [2])"
        );
        let shared = "let its worker generate in that time (workers.generators = [0, 1], workers.balance = \"auto\")";
        assert_eq!(says(0.41, 0.02, &layout(&[0], 1, 2)), format!("the learner starved 41 % of the time: {shared}"));
        assert!(says(0.8, 0.0, &layout(&[0], 1, 16)).contains("5 of 6 workers"));
        assert!(says(0.8, 0.0, &layout(&[0], 1, 4)).contains("3 of 4 workers"));
        assert!(
            says(0.3, 0.0, &layout(&[0, 1], 1, 3)).contains("2 of 3 workers"),
            "the learner's worker is a generator by half"
        );
        assert_eq!(says(0.3, 0.0, &layout(&[0, 1], 1, 2)), "", "every processor is busy");
        assert_eq!(says(0.09, 0.09, &layout(&[0], 1, 16)), "");
    }

    #[test]
    fn generators_that_are_held_back_give_way() {
        let says = |held, layout: &Layout| advice(&shares(0.02, held), layout).unwrap_or_default();
        let held = "generators were held back by the lag bound 38 % of the time: ";
        assert_eq!(
            says(0.38, &layout(&[0], 1, 2)),
            format!("{held}training is what is short, so give it more threads (workers.learner_threads, 1 now)")
        );
        assert!(says(0.38, &layout(&[0, 1, 2], 3, 4)).starts_with(&format!("{held}2 of the 3 generators would do; ")));
        let shared = layout(&[0, 1], 1, 2);
        assert!(says(0.38, &shared).ends_with("workers.balance = \"auto\" leaves it to them"));
        let starves = advice(&shares(0.3, 0.38), &shared).unwrap();
        assert!(starves.contains("\"auto\""), "what is waited for is with the learner's worker: {starves}");
        for other in [Layout { balance: Balance::Auto, ..shared.clone() }, Layout { max_lag: 0, ..shared }] {
            assert!(!says(0.38, &other).contains("auto"));
        }
    }

    /// Catches advice on the split where the schedule is what both wait for.
    #[test]
    fn both_waiting_is_the_schedule() {
        let says = |layout: &Layout| advice(&shares(0.3, 0.4), layout).unwrap_or_default();
        assert!(says(&layout(&[0], 1, 4)).ends_with("a larger schedule.max_lag (4 now) lets them"));
        assert!(says(&Layout { by_turns: true, ..layout(&[0], 1, 4) }).contains("\"pipeline\""));
        assert_eq!(advice(&Shares { idle: None, ..shares(0.9, 0.0) }, &layout(&[0], 1, 4)), None, "an older log");
    }

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
