//! How steadily the generators work: how long their decode steps take, and how long new weights hold them up.

use crate::tasks::outside::meter::Latencies;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What all generators of a run did: one handle, cloned to each.
#[derive(Clone, Debug, Default)]
pub struct Pace(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    steps: Latencies,
    gaps: Latencies,
    loads: Latencies,
    loads_processor: Latencies,
    stalls: Latencies,
}

/// The generators' pace, over all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pacing {
    pub decode_steps: u64,
    /// Seconds in decode steps; seconds of the median one (to 2 %).
    pub decode_s: f64,
    pub decode_median_s: Option<f64>,
    /// From the end of a decode step to the start of the next, where rollouts were in progress and no weights came; median.
    pub gap_median_s: Option<f64>,
    /// How often weights were loaded, and the median time of it: by the clock, and on the processor.
    pub loads: u64,
    pub load_median_s: Option<f64>,
    pub load_processor_median_s: Option<f64>,
    /// How often that was between two decode steps, with rollouts in progress. From the end of the one to the start of the other:
    /// half took no longer than the median, 99 of 100 no longer than the p99 (to 2 %), none longer than the maximum.
    pub stalls: u64,
    pub stall_median_s: Option<f64>,
    pub stall_p99_s: Option<f64>,
    pub stall_max_s: Option<f64>,
}

impl Pace {
    fn with(&self, change: impl FnOnce(&mut Times)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn pacing(&self) -> Pacing {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Times { steps, gaps, loads, loads_processor, stalls } = &*times;
        Pacing {
            decode_steps: steps.count(),
            decode_s: steps.sum_s(),
            decode_median_s: steps.percentile_s(50),
            gap_median_s: gaps.percentile_s(50),
            loads: loads.count(),
            load_median_s: loads.percentile_s(50),
            load_processor_median_s: loads_processor.percentile_s(50),
            stalls: stalls.count(),
            stall_median_s: stalls.percentile_s(50),
            stall_p99_s: stalls.percentile_s(99),
            stall_max_s: stalls.longest_s(),
        }
    }
}

/// The watch of one generator.
#[derive(Debug, Default)]
pub struct Watch {
    pace: Pace,
    /// When the last decode step ended, where it left rollouts in progress.
    stepped: Option<Instant>,
    /// Whether weights came since.
    loaded: bool,
}

impl Watch {
    pub fn new(pace: &Pace) -> Self {
        Watch { pace: pace.clone(), stepped: None, loaded: false }
    }

    /// Weights were loaded, which took so long, and so long of the processor.
    pub fn load(&mut self, took: Duration, processor: Duration) {
        self.loaded = true;
        self.pace.with(|times| {
            times.loads.add(took);
            times.loads_processor.add(processor);
        });
    }

    /// A decode step went from `started` to `ended` and left so many rollouts in progress.
    pub fn step(&mut self, started: Instant, ended: Instant, running: usize) {
        let stepped = std::mem::replace(&mut self.stepped, (running > 0).then_some(ended));
        let loaded = std::mem::take(&mut self.loaded);
        self.pace.with(|times| {
            times.steps.add(ended - started);
            if let Some(stepped) = stepped {
                let between = if loaded { &mut times.stalls } else { &mut times.gaps };
                between.add(started - stepped);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a stall that is counted where nothing was in progress or nothing was loaded, and one that leaves out what is
    /// around the loading.
    #[test]
    fn a_stall_is_from_step_to_step() {
        let pace = Pace::default();
        let mut watch = Watch::new(&pace);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // The first weights come before any step.
        watch.load(Duration::from_millis(3), Duration::from_millis(2));
        watch.step(at(10), at(20), 2);
        watch.step(at(21), at(31), 2);
        watch.load(Duration::from_millis(3), Duration::from_millis(2));
        watch.step(at(36), at(46), 0);
        // Idle until weights came, and for longer.
        watch.load(Duration::from_millis(3), Duration::from_millis(2));
        watch.step(at(90), at(100), 1);
        watch.step(at(140), at(150), 0);
        let pacing = pace.pacing();
        assert_eq!((pacing.decode_steps, pacing.loads, pacing.stalls), (5, 3, 1));
        assert_eq!((pacing.stall_median_s, pacing.stall_max_s), (Some(0.005), Some(0.005)));
        let (gap, processor) = (pacing.gap_median_s.unwrap(), pacing.load_processor_median_s.unwrap());
        assert!((0.001..0.00102).contains(&gap) && processor == 0.002, "{gap} {processor}");
        assert_eq!((pacing.decode_s, pacing.decode_median_s, pacing.load_median_s), (0.05, Some(0.01), Some(0.003)));
    }
}
