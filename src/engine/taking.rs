//! Whether a step takes its gradient: now, with those of the steps after it, or not at all.
//!
//! The same for every engine, and a function of what this and earlier steps measured: a learner that goes on from a checkpoint
//! remembers it from the log ([`Taking::recall`]), and decides what one that never stopped does. The gradients themselves are the
//! learner's: it adds them up as [`Sum`] says.

use crate::engine::spec::Learning;
use crate::kernel::held::Batches;
use crate::kernel::norms::Norms;
use tidegate_operators::record::Metrics;

/// What a learner goes by, step after step.
#[derive(Clone, Debug, Default)]
pub struct Taking {
    /// Of the gradients of the last steps.
    norms: Norms,
    /// What is held.
    held: Batches,
    /// Whether the step before was skipped for its ESS, or for that of one before it.
    paused: bool,
    /// How many versions are equal to the newest, itself aside.
    still: u64,
}

/// What is asked of a step's batch, once all of it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Computed {
    pub batch: Batches,
    /// The largest lag of a trained token, steps.
    pub lag_max: u64,
}

/// What becomes of a step's gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// What the gradient held so far, if there is one, and the batch's own are multiplied by before they are added.
    pub held: f64,
    pub own: f64,
    /// All that the sum is of; nothing where the batch's own gradient is left out and none is held.
    pub batches: Batches,
    pub then: Then,
}

impl Sum {
    /// ESS of all that the sum is of; where it is of nothing, that of the batch whose `own` it is.
    pub fn ess(&self, own: f64) -> f64 {
        if self.then == Then::Nothing { own } else { self.batches.ess.value() }
    }
}

/// What becomes of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The weights move by it, unless its norm is an outlier's.
    Take,
    /// It waits for the next step.
    Hold,
    /// There is none.
    Nothing,
}

/// Whether a step is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Within,
    Last,
}

impl Place {
    /// Of step `step` of `steps`.
    pub fn of(step: u64, steps: u64) -> Self {
        if step < steps { Place::Within } else { Place::Last }
    }
}

impl Taking {
    /// Goes by what these steps measured, those before the next one; the last of them holds nothing.
    pub fn recall(&mut self, learning: &Learning, before: &[Metrics]) {
        self.norms = before.iter().map(|metrics| judged_norm(learning, metrics)).collect();
        self.held = Batches::default();
        self.paused = before.last().is_some_and(|metrics| metrics.paused);
        self.still = before.iter().rev().take_while(|metrics| metrics.skipped).count() as u64;
    }

    /// What becomes of the gradient of a batch. Fills `paused`, `held` and `enlarged`.
    ///
    /// A batch of which nothing is trained says nothing of ESS: a pause that was goes on. At the last step what is held is
    /// taken, with the batch's own gradient or without.
    pub fn sum(&mut self, learning: &Learning, computed: Computed, place: Place, metrics: &mut Metrics) -> Sum {
        let Computed { batch, lag_max } = computed;
        let safeguard = &learning.safeguard;
        // A critic that learns alone is guarded against nothing.
        if learning.warms_up(metrics.step) {
            let (then, batches) = if batch.tokens > 0 { (Then::Take, batch) } else { (Then::Nothing, Batches::default()) };
            metrics.enlarged = batches.batches;
            return Sum { held: 0.0, own: 1.0, batches, then };
        }
        if batch.tokens > 0 {
            self.paused = safeguard.pauses(batch.ess.value(), self.paused, lag_max <= self.still);
            metrics.paused = self.paused;
        }
        let trains = batch.tokens > 0 && !self.paused;
        let [held, own] = match (self.held.batches > 0, trains) {
            (true, true) => Batches::factors(learning.aggregation, self.held, batch),
            (true, false) => [1.0, 0.0],
            (false, _) => [0.0, 1.0],
        };
        let batches = if trains { self.held.and(batch) } else { self.held };
        let waits = place == Place::Within && (!trains || safeguard.enlarges(batches));
        let then = match batches.batches {
            0 => Then::Nothing,
            _ if waits => Then::Hold,
            _ => Then::Take,
        };
        self.held = if then == Then::Hold { batches } else { Batches::default() };
        (metrics.held, metrics.enlarged) = (then == Then::Hold, batches.batches);
        Sum { held, own, batches, then }
    }

    /// Whether the sum that was to be taken is an outlier by its norm.
    pub fn outlies(&mut self, learning: &Learning, metrics: &Metrics) -> bool {
        !learning.warms_up(metrics.step) && learning.safeguard.skips(metrics.grad_norm, &mut self.norms)
    }

    /// The step is done: the weights stayed as they were where it is `skipped`.
    pub fn done(&mut self, metrics: &Metrics) {
        self.still = if metrics.skipped { self.still + 1 } else { 0 };
    }
}

/// The norm of a step's gradient where the step was judged by it, else 0, which is none: of one that is held, the sum will be; and
/// of a critic that learns alone none is.
pub fn judged_norm(learning: &Learning, metrics: &Metrics) -> f64 {
    let nothing = metrics.paused && metrics.enlarged == 0;
    if metrics.held || nothing || learning.warms_up(metrics.step) { 0.0 } else { metrics.grad_norm }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::safeguard::Safeguard;

    fn batch(weights: &[f64], lag: u64) -> Computed {
        let mut batch = Batches { batches: 1, sequences: 1, tokens: weights.len() as u64, ..Batches::default() };
        weights.iter().for_each(|&weight| batch.ess.add(weight));
        batch.lag.add(lag as f64);
        Computed { batch, lag_max: lag }
    }

    const EVEN: [f64; 2] = [1.0, 1.0];
    const UNEVEN: [f64; 4] = [1.0, 0.0, 0.0, 0.0];

    fn learning(safeguard: Safeguard) -> Learning {
        Learning { safeguard, ..Learning::default() }
    }

    /// One step after the other, as a learner takes them: what became of each, and what it measured.
    fn steps(taking: &mut Taking, safeguard: Safeguard, batches: &[Computed], steps: u64) -> Vec<(Then, Metrics)> {
        let taken = batches.iter().zip(1..).map(|(&computed, step)| {
            let mut metrics = Metrics { tokens: computed.batch.tokens, grad_norm: 1.0, ..Metrics::default() };
            let sum = taking.sum(&learning(safeguard), computed, Place::of(step, steps), &mut metrics);
            metrics.skipped = sum.then != Then::Take || taking.outlies(&learning(safeguard), &metrics);
            taking.done(&metrics);
            (sum.then, metrics)
        });
        taken.collect()
    }

    fn thens(safeguard: Safeguard, batches: &[Computed], last: u64) -> Vec<Then> {
        steps(&mut Taking::default(), safeguard, batches, last).into_iter().map(|(then, _)| then).collect()
    }

    #[test]
    fn by_default_each_step_takes_its_gradient() {
        let off = Safeguard::default();
        let none = Computed { batch: Batches { batches: 1, ..Batches::default() }, lag_max: 0 };
        let found = thens(off, &[batch(&EVEN, 3), batch(&UNEVEN, 9), none, batch(&EVEN, 0)], 9);
        assert_eq!(found, [Then::Take, Then::Take, Then::Nothing, Then::Take]);
        let sum = Taking::default().sum(&learning(off), batch(&EVEN, 3), Place::Within, &mut Metrics::default());
        assert_eq!((sum.held, sum.own, sum.batches), (0.0, 1.0, batch(&EVEN, 3).batch), "as if there were no safeguards");
    }

    /// A batch is worth a quarter, and 0.6 is asked: three are enough. Catches a sum that is held past what is asked, past
    /// `enlarge_most` or past the run's end, one that is taken and stays, and a batch without tokens that counts as one.
    #[test]
    fn gradients_wait_until_they_are_worth_a_step() {
        let safeguard = Safeguard { enlarge_ess: 0.6, ..Safeguard::default() };
        let uneven = batch(&UNEVEN, 1);
        let (hold, take) = (Then::Hold, Then::Take);
        assert_eq!(thens(safeguard, &[uneven; 7], 9), [hold, hold, take, hold, hold, take, hold]);
        assert_eq!(thens(safeguard, &[uneven; 5], 5), [hold, hold, take, hold, take]);
        assert_eq!(thens(safeguard, &[uneven, batch(&EVEN, 1), uneven], 9), [hold, take, hold]);
        assert_eq!(thens(Safeguard { enlarge_most: 2, ..safeguard }, &[uneven; 4], 9), [hold, take, hold, take]);
        let none = Computed { batch: Batches { batches: 1, ..Batches::default() }, lag_max: 0 };
        let mut taking = Taking::default();
        let found = steps(&mut taking, safeguard, &[uneven, none, uneven, uneven], 9);
        let seen: Vec<_> = found.iter().map(|(then, m)| (*then, m.enlarged, m.held, m.skipped)).collect();
        assert_eq!(seen, [(hold, 1, true, true), (hold, 1, true, true), (hold, 2, true, true), (take, 3, false, false)]);
        assert_eq!(thens(safeguard, &[uneven, none], 2), [hold, take], "the last step takes what is held");
    }

    /// Catches parts that count the same whatever is in them.
    #[test]
    fn parts_weigh_as_the_aggregation_has_it() {
        let safeguard = Safeguard { enlarge_lag: 0.0, enlarge_most: 3, ..Safeguard::default() };
        let learning = learning(safeguard);
        let mut taking = Taking::default();
        let sizes = [(2, 10), (6, 10), (8, 1)];
        let sums = sizes.map(|(sequences, tokens)| {
            let mut computed = batch(&EVEN, 1);
            (computed.batch.sequences, computed.batch.tokens) = (sequences, tokens);
            taking.sum(&learning, computed, Place::Within, &mut Metrics::default())
        });
        assert_eq!(sums.map(|sum| (sum.held, sum.own)), [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5)]);
    }

    /// Steps of lag 2 in a pipeline whose weights stand still from step 3 on: versions 2, 3 and 4 are equal, and the batch of step 5 is
    /// the first that was sampled by none before them. Catches a pause that ends with the first good ESS, that lasts too
    /// long, or that its own end begins again.
    #[test]
    fn a_pause_ends_with_a_batch_of_equal_weights() {
        let safeguard = Safeguard { skip_ess: 0.5, ..Safeguard::default() };
        let (even, uneven) = (batch(&EVEN, 2), batch(&UNEVEN, 2));
        let (take, nothing) = (Then::Take, Then::Nothing);
        let mut taking = Taking::default();
        let found = steps(&mut taking, safeguard, &[even, even, uneven, even, uneven, even, uneven], 99);
        let seen: Vec<_> = found.iter().map(|(then, m)| (*then, m.paused)).collect();
        let expected = [(take, false), (take, false), (nothing, true), (nothing, true), (take, false), (take, false)];
        assert_eq!(seen[..6], expected);
        assert_eq!(seen[6], (nothing, true));
        assert_eq!(thens(safeguard, &[batch(&UNEVEN, 0); 3], 99), [take; 3], "on policy there is nothing to wait for");
    }

    /// Catches a pause that takes what is held with it, or a last step that leaves it.
    #[test]
    fn what_is_held_outlasts_a_pause() {
        let safeguard = Safeguard { skip_ess: 0.3, enlarge_ess: 0.8, ..Safeguard::default() };
        let (half, uneven) = (batch(&[1.0, 0.0], 1), batch(&UNEVEN, 3));
        let mut taking = Taking::default();
        let found = steps(&mut taking, safeguard, &[half, uneven, uneven], 3);
        let seen: Vec<_> = found.iter().map(|(then, m)| (*then, m.paused, m.enlarged)).collect();
        assert_eq!(seen, [(Then::Hold, false, 1), (Then::Hold, true, 1), (Then::Take, true, 1)]);
    }

    /// Catches a learner that goes on from a checkpoint and decides otherwise.
    #[test]
    fn it_goes_on_from_what_the_log_says() {
        let safeguard = Safeguard { skip_ess: 0.5, skip_norm: 3.0, skip_window: 2, ..Safeguard::default() };
        let batches = [batch(&EVEN, 4), batch(&EVEN, 4), batch(&UNEVEN, 4), batch(&EVEN, 4)];
        let mut first = Taking::default();
        let measured: Vec<_> = steps(&mut first, safeguard, &batches, 99).into_iter().map(|(_, metrics)| metrics).collect();
        let mut again = Taking::default();
        again.recall(&learning(safeguard), &measured);
        assert_eq!((again.still, again.paused, &again.norms), (2, true, &first.norms));
        assert_eq!(again.norms, [1.0, 1.0].into_iter().collect(), "no norm was judged in the pause");
    }
}
