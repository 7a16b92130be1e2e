//! Where the generators' time goes, each by itself: in decode steps, with nothing in progress, or elsewhere on their workers.

use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Step};
use tidegate_operators::train::{Learner, Trained};

/// The clocks of all generators of a run, shared between them and whoever reads them.
#[derive(Clone, Debug, Default)]
pub struct Waits(Arc<Mutex<Vec<Clock>>>);

/// One generator's time so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    worker: usize,
    started: Instant,
    sampled: Duration,
    idle: Duration,
    /// Since when it has had nothing in progress.
    idle_since: Option<Instant>,
}

/// What a generator did, as shares of its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GeneratorShares {
    pub worker: usize,
    /// In decode steps, and loading weights.
    pub sampled: f64,
    /// With nothing in progress: no group was admitted that it could have sampled.
    pub idle: f64,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Vec<Clock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A clock for the generator of `worker`.
    pub fn clock(&self, worker: usize) -> Ticking {
        let mut clocks = self.lock();
        clocks.push(Clock::at(worker, Instant::now()));
        Ticking { waits: self.clone(), place: clocks.len() - 1 }
    }

    /// All generators start to count from now.
    pub fn start(&self) {
        self.lock().iter_mut().for_each(|clock| *clock = Clock::at(clock.worker, Instant::now()));
    }

    /// Each generator's shares so far.
    pub fn shares(&self) -> Vec<GeneratorShares> {
        let now = Instant::now();
        self.lock().iter().map(|clock| clock.shares(now)).collect()
    }

    /// Sampled, idle and all time so far, of all generators together, but for the one of `worker` where there are others.
    fn sums_beside(&self, worker: usize) -> [Duration; 3] {
        let now = Instant::now();
        let clocks = self.lock();
        let counts = |clock: &&Clock| clock.worker != worker || clocks.len() == 1;
        let each = |clock: &Clock| [clock.sampled, clock.idle_until(now), now.saturating_duration_since(clock.started)];
        clocks.iter().filter(counts).map(each).fold([Duration::ZERO; 3], |sums, of| std::array::from_fn(|i| sums[i] + of[i]))
    }
}

impl Clock {
    fn at(worker: usize, now: Instant) -> Self {
        Clock { worker, started: now, sampled: Duration::ZERO, idle: Duration::ZERO, idle_since: Some(now) }
    }

    /// A group came.
    fn begin(&mut self, now: Instant) {
        self.idle = self.idle_until(now);
        self.idle_since = None;
    }

    /// Weights were loaded, or a decode step was done, which left so many rollouts in progress.
    fn work(&mut self, started: Instant, ended: Instant, running: usize) {
        if let Some(since) = self.idle_since.take() {
            self.idle += started.saturating_duration_since(since);
        }
        self.sampled += ended.saturating_duration_since(started);
        self.idle_since = (running == 0).then_some(ended);
    }

    fn idle_until(&self, now: Instant) -> Duration {
        self.idle + self.idle_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn shares(&self, now: Instant) -> GeneratorShares {
        let whole = now.saturating_duration_since(self.started).as_secs_f64().max(1e-9);
        let share = |time: Duration| time.as_secs_f64() / whole;
        GeneratorShares { worker: self.worker, sampled: share(self.sampled), idle: share(self.idle_until(now)) }
    }
}

/// The clock in its generator's hands.
#[derive(Clone, Debug)]
pub struct Ticking {
    waits: Waits,
    place: usize,
}

impl Ticking {
    fn with(&self, change: impl FnOnce(&mut Clock)) {
        if let Some(clock) = self.waits.lock().get_mut(self.place) {
            change(clock);
        }
    }

    /// A group was given to the generator.
    pub fn begin(&self) {
        self.with(|clock| clock.begin(Instant::now()));
    }

    /// It worked, and has so many rollouts in progress after it.
    pub fn work(&self, started: Instant, ended: Instant, running: usize) {
        self.with(|clock| clock.work(started, ended, running));
    }
}

/// A learner whose steps say what the generators did meanwhile.
pub struct Timed<L> {
    learner: L,
    worker: usize,
    waits: Waits,
    /// At the step before.
    before: [Duration; 3],
}

impl<L> Timed<L> {
    /// On the worker `worker`.
    pub fn new(waits: &Waits, worker: usize, learner: L) -> Self {
        Timed { learner, worker, waits: waits.clone(), before: [Duration::ZERO; 3] }
    }
}

impl<L: Learner> Learner for Timed<L> {
    type Weights = L::Weights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let mut trained = self.learner.work()?;
        if let Some(Trained { metrics, .. }) = &mut trained {
            let now = self.waits.sums_beside(self.worker);
            let since = |i: usize| u64::try_from(now[i].saturating_sub(self.before[i]).as_nanos()).unwrap_or(u64::MAX);
            *metrics =
                Metrics { sample_ns: since(0), idle_ns: since(1), generators_ns: since(2), ..std::mem::take(metrics) };
            self.before = now;
        }
        Ok(trained)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        self.learner.abandon()
    }

    fn weights(&mut self) -> Result<L::Weights, Fault> {
        self.learner.weights()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the start to the first group 10 ms, 20 ms of decode steps with 5 ms between them, 15 ms until the next group, weights of 3 ms
    /// in it, and 10 ms in the queue. Catches waiting in a queue that counts as idle, a load that counts twice, and idleness that is
    /// seen only when it is over.
    #[test]
    fn time_is_split_by_what_is_in_progress() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut clock = Clock::at(7, start);
        clock.begin(at(10));
        clock.work(at(10), at(20), 3);
        clock.work(at(25), at(35), 0);
        clock.work(at(40), at(43), 0);
        clock.begin(at(50));
        let shares = clock.shares(at(60));
        assert_eq!((clock.sampled, clock.idle), (Duration::from_millis(23), Duration::from_millis(22)));
        assert!((shares.sampled - 23.0 / 60.0).abs() < 1e-9 && (shares.idle - 22.0 / 60.0).abs() < 1e-9, "{shares:?}");
        clock.work(at(60), at(70), 0);
        assert_eq!(clock.idle_until(at(100)), Duration::from_millis(52));
    }

    struct Steps(u64);

    impl Learner for Steps {
        type Weights = u64;

        fn begin(&mut self, _: Step, _: Vec<Rollout>) -> Result<(), Fault> {
            Ok(())
        }

        fn work(&mut self) -> Result<Option<Trained>, Fault> {
            self.0 += 1;
            let metrics = Metrics { step: self.0, ..Metrics::default() };
            Ok(self.0.is_multiple_of(2).then(|| Trained { batch: Vec::new(), metrics }))
        }

        fn weights(&mut self) -> Result<u64, Fault> {
            Ok(7)
        }
    }

    /// Catches a step that says what was before it, a generator that is left out, and a metric of the learner's that is lost.
    #[test]
    fn steps_say_what_the_generators_did_meanwhile() {
        let waits = Waits::default();
        let clocks = [waits.clock(0), waits.clock(3)];
        let mut learner = Timed::new(&waits, 1, Steps(0));
        learner.begin(1, Vec::new()).unwrap();
        let step = |learner: &mut Timed<Steps>| loop {
            if let Some(trained) = learner.work().unwrap() {
                return trained.metrics;
            }
        };
        let now = Instant::now();
        clocks.iter().for_each(|clock| clock.work(now, now + Duration::from_millis(40), 1));
        let first = step(&mut learner);
        clocks[1].work(now, now + Duration::from_millis(7), 1);
        let second = step(&mut learner);
        assert_eq!((first.sample_ns, second.sample_ns), (80_000_000, 7_000_000));
        assert_eq!((first.step, second.step, second.idle_ns, learner.weights()), (2, 4, 0, Ok(7)));
        let both = second.generators_ns;
        assert!(both > 0 && both.is_multiple_of(2), "{both} ns of two generators");
        assert_eq!(waits.shares().iter().map(|of| of.worker).collect::<Vec<_>>(), [0, 3]);
        // One that shares the learner's worker is busy there; unless it is the only one, what it waits for says nothing.
        let [one, both] = [3, 1].map(|worker| waits.sums_beside(worker)[0]);
        assert_eq!((one, both), (Duration::from_millis(40), Duration::from_millis(87)));
        let alone = Waits::default();
        alone.clock(3).work(now, now + Duration::from_millis(5), 1);
        assert_eq!(alone.sums_beside(3)[0], Duration::from_millis(5));
    }
}
