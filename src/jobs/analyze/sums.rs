//! Sums of advantages and of times.

use crate::jobs::advice::{Layout, advice};
use crate::jobs::analyze::limits::LagLimits;
use crate::jobs::analyze::report::{Advantages, Times};
use crate::jobs::shares::Steady;
use crate::kernel::mean::Mean;
use crate::spec::Spec;
use crate::store::view::Row;
use tidegate_operators::record::{Metrics, Status};

#[derive(Debug, Default)]
pub(super) struct AdvantageSums {
    mean: Mean,
    squares: Mean,
    zero: Mean,
    range: Option<(f32, f32)>,
}

impl AdvantageSums {
    /// Adds a trained rollout.
    pub(super) fn add(&mut self, row: &Row<'_>, limits: LagLimits) {
        let trained = limits.trained(row, row.advantage.len());
        // Without a critic all of a rollout are the same.
        for same in trained.flat_map(|range| row.advantage[range].chunk_by(|a, b| a.to_bits() == b.to_bits())) {
            let (a, count) = (f64::from(same[0]), same.len() as u64);
            self.mean.add_times(a, count);
            self.squares.add_times(a * a, count);
            self.zero.add_times(f64::from(u8::from(a == 0.0)), count);
            self.extend(same[0], same[0]);
        }
    }

    fn extend(&mut self, from: f32, to: f32) {
        let (low, high) = self.range.unwrap_or((from, to));
        self.range = Some((low.min(from), high.max(to)));
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, other: AdvantageSums) {
        self.mean.merge(other.mean);
        self.squares.merge(other.squares);
        self.zero.merge(other.zero);
        if let Some((low, high)) = other.range {
            self.extend(low, high);
        }
    }

    pub(super) fn finish(self) -> Advantages {
        let mean = self.mean.value();
        // Two sums suffice: advantages are centred, so little cancels. Rounding may still leave less than 0.
        let variance = mean.zip(self.squares.value()).map(|(mean, squares)| squares - mean * mean);
        Advantages {
            tokens: self.mean.count(),
            mean,
            deviation: variance.map(|v| if v < 0.0 { 0.0 } else { v.sqrt() }),
            min: self.range.map(|(low, _)| low),
            max: self.range.map(|(_, high)| high),
            zero: self.zero.value(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct TimeSums {
    first_ns: Option<i64>,
    last_ns: Option<i64>,
    rollouts: u64,
    tokens: u64,
    trained_tokens: u64,
    queued: Mean,
    generating: Mean,
    ready: Mean,
    train_ns: f64,
    wait_forced_ns: f64,
    wait_any_ns: f64,
    wait_log_ns: f64,
    held_steps: u64,
    paused_steps: u64,
    skipped_steps: u64,
    steady: Steady,
    /// Text of the newest step's specification.
    spec: Option<String>,
}

impl TimeSums {
    /// A step under these limits, and the text of its specification.
    pub(super) fn metrics(&mut self, metrics: &Metrics, limits: LagLimits, spec: &str) {
        let (steps, bound) = limits.steps.zip(limits.bound).unwrap_or((u64::MAX, 0));
        self.steady.add(metrics, steps, bound);
        self.spec = Some(spec.to_owned());
        self.train_ns += metrics.train_ns as f64;
        self.wait_forced_ns += metrics.wait_forced_ns as f64;
        self.wait_any_ns += metrics.wait_any_ns as f64;
        self.wait_log_ns += metrics.wait_log_ns as f64;
        self.held_steps += u64::from(metrics.held);
        self.paused_steps += u64::from(metrics.paused);
        self.skipped_steps += u64::from(metrics.skipped && !metrics.held && !metrics.paused);
        self.last_ns = self.last_ns.max((metrics.finished_ns > 0).then_some(metrics.finished_ns));
    }

    /// A time of 0 was never taken.
    pub(super) fn row(&mut self, row: &Row<'_>, limits: LagLimits) {
        let taken = |ns: i64| (ns > 0).then_some(ns);
        let admitted = taken(row.admitted_ns);
        // What was refused at once was not sampled, whatever its clocks say.
        let sampled = |ns: i64| taken(ns).filter(|_| row.tokens > 0);
        let (started, finished, used) = (sampled(row.started_ns), sampled(row.finished_ns), taken(row.trained_ns));
        self.first_ns = [self.first_ns, admitted, started].into_iter().flatten().min();
        self.last_ns = self.last_ns.max(finished).max(used);
        let spans = [
            (&mut self.queued, admitted, started),
            (&mut self.generating, started, finished),
            (&mut self.ready, finished, used),
        ];
        for (mean, from, to) in spans {
            from.zip(to).inspect(|(from, to)| mean.add((to - from) as f64 / 1e9));
        }
        if finished.is_some() {
            self.rollouts += 1;
            self.tokens += row.tokens as u64;
        }
        if *row.status == Status::Trained {
            self.trained_tokens += limits.trained(row, row.tokens).map(|range| range.len() as u64).sum::<u64>();
        }
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, other: TimeSums) {
        self.first_ns = [self.first_ns, other.first_ns].into_iter().flatten().min();
        self.last_ns = self.last_ns.max(other.last_ns);
        self.rollouts += other.rollouts;
        self.tokens += other.tokens;
        self.trained_tokens += other.trained_tokens;
        self.queued.merge(other.queued);
        self.generating.merge(other.generating);
        self.ready.merge(other.ready);
        self.train_ns += other.train_ns;
        self.wait_forced_ns += other.wait_forced_ns;
        self.wait_any_ns += other.wait_any_ns;
        self.wait_log_ns += other.wait_log_ns;
        self.held_steps += other.held_steps;
        self.paused_steps += other.paused_steps;
        self.skipped_steps += other.skipped_steps;
        self.steady.merge(&other.steady);
        self.spec = other.spec.or(self.spec.take());
    }

    pub(super) fn finish(self) -> Times {
        let wall_s = self.first_ns.zip(self.last_ns).map(|(first, last)| (last - first) as f64 / 1e9);
        let balance = self.steady.shares();
        let spec = self.spec.and_then(|text| Spec::from_text(&text, &[]).ok());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let layout = spec.map(|spec| Layout::of(&spec, processors));
        let rate = |count: u64| wall_s.filter(|s| *s > 0.0).map(|s| count as f64 / s);
        Times {
            wall_s,
            sampled_tokens_per_s: rate(self.tokens),
            sampled_rollouts_per_s: rate(self.rollouts),
            trained_tokens_per_s: rate(self.trained_tokens),
            queued_s: self.queued.value(),
            generating_s: self.generating.value(),
            ready_s: self.ready.value(),
            training_s: self.train_ns / 1e9,
            waiting_forced_s: self.wait_forced_ns / 1e9,
            waiting_any_s: self.wait_any_ns / 1e9,
            waiting_log_s: self.wait_log_ns / 1e9,
            held_steps: self.held_steps,
            paused_steps: self.paused_steps,
            skipped_steps: self.skipped_steps,
            advice: balance.zip(layout).and_then(|(shares, layout)| advice(&shares, &layout)),
            balance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a prompt that was refused at once and counts as a rollout that was sampled in no time.
    #[test]
    fn what_was_refused_was_not_sampled() {
        let sampled =
            Row { tokens: 4, admitted_ns: 1, started_ns: 1_000_000_000, finished_ns: 3_000_000_000, ..Row::blank() };
        let refused = Row { tokens: 0, finished_ns: 1_000_000_000, ..sampled };
        let mut sums = TimeSums::default();
        [sampled, refused].iter().for_each(|row| sums.row(row, LagLimits::default()));
        assert_eq!((sums.rollouts, sums.tokens, sums.generating.value()), (1, 4, Some(2.0)));
    }
}
