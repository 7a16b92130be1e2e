//! How long work takes on an accelerator, and the sleep that stands for it.

use crate::kernel::capacity::Speed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pieces of work of one kind, all accelerators together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    pub count: u64,
    /// How long they were to take, and how long they took: from the call to its return.
    pub planned: Duration,
    pub took: Duration,
}

/// What emulated accelerators did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulated {
    pub decode_steps: Pieces,
    pub micro_batches: Pieces,
}

#[derive(Debug, Default)]
struct Counted {
    count: AtomicU64,
    planned_ns: AtomicU64,
    took_ns: AtomicU64,
}

impl Counted {
    fn add(&self, planned: Duration, took: Duration) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.planned_ns.fetch_add(nanoseconds(planned), Ordering::Relaxed);
        self.took_ns.fetch_add(nanoseconds(took), Ordering::Relaxed);
    }

    fn pieces(&self) -> Pieces {
        let time = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        Pieces { count: self.count.load(Ordering::Relaxed), planned: time(&self.planned_ns), took: time(&self.took_ns) }
    }
}

/// An accelerator: its speed in flashes, what a flash lasts, and the counts that all of them share.
#[derive(Clone, Debug)]
pub struct Device {
    speed: Speed,
    /// How many train together.
    learners: usize,
    /// How long new weights hold a generator up, flashes.
    transfer: f64,
    flash_s: f64,
    decode_steps: Arc<Counted>,
    micro_batches: Arc<Counted>,
}

impl Device {
    /// `flash_s` seconds a flash; 0 makes work take no time, for what only looks at its result.
    pub fn new(speed: Speed, learners: usize, transfer: f64, flash_s: f64) -> Self {
        let (decode_steps, micro_batches) = Default::default();
        Device { speed, learners, transfer, flash_s, decode_steps, micro_batches }
    }

    /// How many train together.
    pub fn learners(&self) -> usize {
        self.learners
    }

    /// What all of them did so far.
    pub fn emulated(&self) -> Emulated {
        Emulated { decode_steps: self.decode_steps.pieces(), micro_batches: self.micro_batches.pieces() }
    }

    /// One token for each of `rollouts`, counted from `started`.
    pub fn decode(&self, rollouts: usize, started: Instant) {
        let planned = self.time(self.speed.decode(rollouts as f64));
        self.decode_steps.add(planned, sleep(started, planned));
    }

    /// Training `tokens`, by all that train together, counted from `started`.
    pub fn train(&self, tokens: u64, started: Instant) {
        let planned = self.time(tokens as f64 * self.speed.train / self.learners as f64);
        self.micro_batches.add(planned, sleep(started, planned));
    }

    /// New weights that hold up a generator with rollouts in progress.
    pub fn transfer(&self, started: Instant) {
        sleep(started, self.time(self.transfer));
    }

    fn time(&self, flashes: f64) -> Duration {
        // What does not fit, no specification asks for.
        Duration::try_from_secs_f64(flashes * self.flash_s).unwrap_or(Duration::MAX)
    }
}

/// Until `planned` after `started`, what was done since then included: an accelerator's work begins with the call, when its inputs are
/// there. Returns how long it was in the end.
fn sleep(started: Instant, planned: Duration) -> Duration {
    thread::sleep(planned.saturating_sub(started.elapsed()));
    started.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(flash_s: f64) -> Device {
        let speed = Speed { step: 6.0, token: 0.5, least: 1.0, train: 2.0, slots: 16 };
        Device::new(speed, 4, 3.0, flash_s)
    }

    /// A decode step of 4 is 6 + 2 flashes, one of 100 is bounded by 1 flash a token; 10 tokens on 4 accelerators train in 5. Catches a
    /// sleep that begins when the bookkeeping before it is over, and time of one kind that counts as the other's.
    #[test]
    fn work_takes_the_time_that_it_should() {
        let device = device(1e-3);
        let started = Instant::now();
        thread::sleep(Duration::from_millis(2));
        device.decode(4, started);
        device.clone().decode(100, Instant::now());
        device.train(10, Instant::now());
        let Emulated { decode_steps, micro_batches } = device.emulated();
        assert_eq!((decode_steps.count, decode_steps.planned), (2, Duration::from_millis(108)));
        assert_eq!((micro_batches.count, micro_batches.planned), (1, Duration::from_millis(5)));
        assert!(decode_steps.took >= decode_steps.planned && micro_batches.took >= micro_batches.planned);
        let whole = started.elapsed();
        assert!(whole >= Duration::from_millis(113), "{whole:?}");
        assert!(decode_steps.took + micro_batches.took <= whole, "the first 2 ms are part of the first step");
    }

    #[test]
    fn without_time_nothing_sleeps() {
        let device = device(0.0);
        let started = Instant::now();
        (0..1000).for_each(|_| device.train(1 << 40, started));
        assert_eq!(device.emulated().micro_batches.planned, Duration::ZERO);
        device.transfer(started);
    }
}
