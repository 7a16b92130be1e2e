//! A run that stops when it diverges: a wrapper around its learner that looks at each step and, after enough bad ones, begins no more.
//!
//! What was trained stays: the last of these steps is sealed as every step is, the batch that would have come next waits in the
//! log, and the run ends as after any fault. A replay is not wrapped: there is nothing to stop.

use crate::jobs::say;
use crate::kernel::divergence::{Seen, Sign, Streaks};
use crate::kernel::safeguard::Safeguard;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Step};
use tidegate_operators::train::{Learner, Trained};

/// A learner that stops at the limits of a run's safeguards.
pub struct Stopping<L> {
    learner: L,
    safeguard: Safeguard,
    streaks: Streaks,
    /// Why no more steps begin.
    diverged: Option<String>,
    /// A batch that never reached the learner.
    refused: Vec<Rollout>,
}

impl<L: Learner> Stopping<L> {
    /// Of a run that goes on after steps that measured `before`, in order: limits that these passed count on, but a run that
    /// was stopped there has all its steps to recover in.
    pub fn new(safeguard: Safeguard, before: &[Metrics], learner: L) -> Self {
        let mut streaks = Streaks::default();
        for seen in before.iter().filter_map(seen) {
            streaks.add(&safeguard, seen);
        }
        Stopping { learner, safeguard, streaks, diverged: None, refused: Vec::new() }
    }

    fn look(&mut self, metrics: &Metrics) {
        let Some(seen) = seen(metrics) else { return };
        skipped(metrics, &self.safeguard).into_iter().for_each(|why| say(format_args!("note      {why}")));
        let sign = self.streaks.add(&self.safeguard, seen);
        self.diverged = sign.map(|sign| why(sign, seen, metrics.step, &self.safeguard));
    }
}

/// What a step says of its run; nothing where no token was trained.
fn seen(metrics: &Metrics) -> Option<Seen> {
    let Metrics { entropy, kl_k3: kl, ess, tokens, .. } = *metrics;
    (tokens > 0).then_some(Seen { entropy, kl, ess })
}

/// Why a step was skipped, if it was; one that holds its gradient is no loss.
fn skipped(metrics: &Metrics, safeguard: &Safeguard) -> Option<String> {
    let Metrics { step, skipped, held, paused, .. } = *metrics;
    let (ess, norm) = (metrics.ess as f32, metrics.grad_norm as f32);
    if paused && ess < safeguard.skip_ess as f32 {
        let limit = safeguard.skip_ess;
        return Some(format!("step {step} was skipped: its ESS is {ess}, below learn.safeguard.skip_ess = {limit}"));
    }
    if paused {
        let until = "until a batch was sampled by the newest weights alone (learn.safeguard.skip_ess)";
        return Some(format!("step {step} was skipped: the run pauses {until}; its ESS is {ess}"));
    }
    let Safeguard { skip_norm, skip_window, .. } = safeguard;
    (skipped && !held).then(|| {
        format!(
            "step {step} was skipped: its gradient's norm is {norm}, above learn.safeguard.skip_norm = {skip_norm} times the median of \
             the {skip_window} before"
        )
    })
}

/// What was seen, and what to try, in a sentence or two.
fn why(sign: Sign, seen: Seen, step: Step, safeguard: &Safeguard) -> String {
    let closer = "a lower learn.lr, learn.safeguard.lr_scale = \"sqrt_ess\" or a learn.safeguard.max_lag; in a new run a lower \
                  schedule.max_lag";
    let (what, side, key, limit, means, cure) = match sign {
        Sign::Entropy => (
            format!("entropy is {} nats a token", seen.entropy as f32),
            "below",
            "stop_entropy",
            safeguard.stop_entropy,
            "the policy hardly chooses any more",
            "a lower learn.lr or a learn.entropy_coef above 0",
        ),
        Sign::Kl => (
            format!("KL (k3) is {} nats a token", seen.kl as f32),
            "above",
            "stop_kl",
            safeguard.stop_kl,
            "the policy is far from the one that sampled",
            closer,
        ),
        Sign::Ess => (
            format!("ESS is {}", seen.ess as f32),
            "below",
            "stop_ess",
            safeguard.stop_ess,
            "few tokens outweigh all others",
            closer,
        ),
    };
    let row = match safeguard.stop_steps {
        0 | 1 => String::new(),
        steps => format!(", as in each of the last {steps} steps"),
    };
    format!(
        "the run diverges: at step {step} {what}, {side} learn.safeguard.{key} = {limit}{row}: {means}. All steps are sealed; go on \
         with `tidegate resume` and other keys (--set): {cure}; or begin anew from an earlier checkpoint (model.path)"
    )
}

impl<L: Learner> Learner for Stopping<L> {
    type Weights = L::Weights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        if let Some(why) = &self.diverged {
            self.refused = batch;
            return Err(Fault::new("safeguard", why));
        }
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let trained = self.learner.work()?;
        if let Some(Trained { metrics, .. }) = &trained {
            self.look(metrics);
        }
        Ok(trained)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        if self.refused.is_empty() { self.learner.abandon() } else { std::mem::take(&mut self.refused) }
    }

    fn weights(&mut self) -> Result<L::Weights, Fault> {
        self.learner.weights()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures what it is given, a step a call.
    struct Measures(Vec<Metrics>);

    impl Learner for Measures {
        type Weights = u64;

        fn begin(&mut self, _: Step, _: Vec<Rollout>) -> Result<(), Fault> {
            Ok(())
        }

        fn work(&mut self) -> Result<Option<Trained>, Fault> {
            Ok(Some(Trained { batch: Vec::new(), metrics: self.0.remove(0) }))
        }

        fn abandon(&mut self) -> Vec<Rollout> {
            vec![Rollout { sample: 9, ..Rollout::default() }]
        }

        fn weights(&mut self) -> Result<u64, Fault> {
            Ok(7)
        }
    }

    fn metrics(step: Step, entropy: f64, kl: f64, ess: f64) -> Metrics {
        Metrics { step, tokens: 5, entropy, kl_k3: kl, ess, ..Metrics::default() }
    }

    /// How many steps are taken, and the fault that ends them.
    fn taken(safeguard: Safeguard, before: &[Metrics], steps: Vec<Metrics>) -> (usize, Option<Fault>) {
        let count = steps.len();
        let mut learner = Stopping::new(safeguard, before, Measures(steps));
        for step in 0..count {
            let batch = vec![Rollout { sample: 1, ..Rollout::default() }];
            if let Err(fault) = learner.begin(step as Step, batch.clone()) {
                assert_eq!(learner.abandon(), batch, "its rows go to the log");
                assert_eq!(learner.abandon()[0].sample, 9, "and what is left is the learner's");
                return (step, Some(fault));
            }
            learner.work().unwrap().unwrap();
        }
        (count, None)
    }

    /// Catches a stop that is late or early, a limit that is not the one that was passed, and a sentence without the numbers.
    #[test]
    fn it_stops_before_the_next_step_and_says_why() {
        let safeguard = Safeguard { stop_entropy: 0.1, stop_kl: 0.5, stop_ess: 0.2, stop_steps: 2, ..Safeguard::default() };
        let well = |step| metrics(step, 1.0, 0.1, 0.9);
        for (bad, says) in [
            (
                metrics(3, 0.0625, 0.1, 0.9),
                "the run diverges: at step 3 entropy is 0.0625 nats a token, below learn.safeguard.stop_entropy = 0.1, as in \
                 each of the last 2 steps: ",
            ),
            (
                metrics(3, 1.0, 0.75, 0.9),
                "the run diverges: at step 3 KL (k3) is 0.75 nats a token, above learn.safeguard.stop_kl = 0.5, as in each of \
                 the last 2 steps: ",
            ),
            (
                metrics(3, 1.0, 0.1, 0.125),
                "the run diverges: at step 3 ESS is 0.125, below learn.safeguard.stop_ess = 0.2, as in each of the last 2 steps: ",
            ),
        ] {
            let before = Metrics { step: 2, ..bad.clone() };
            let (steps, fault) = taken(safeguard, &[], vec![well(1), before.clone(), bad.clone(), well(4), well(5)]);
            let fault = fault.unwrap();
            assert_eq!((steps, fault.operator.as_str()), (3, "safeguard"));
            assert!(fault.message.starts_with(says) && fault.message.contains("tidegate resume"), "{fault}");
            assert_eq!(taken(safeguard, &[], vec![before.clone(), well(2), bad.clone(), well(4)]), (4, None));
            // A run that was killed after one bad step, and one that was stopped after two.
            assert_eq!(taken(safeguard, std::slice::from_ref(&before), vec![bad.clone(), well(4)]).0, 1);
            let stopped = [before.clone(), bad.clone()];
            assert_eq!(taken(safeguard, &stopped, vec![bad.clone(), well(5), well(6)]), (3, None));
            assert_eq!(taken(safeguard, &stopped, vec![bad.clone(), bad.clone(), well(6)]).0, 2);
        }
    }

    /// Catches a step that had nothing to train, whose entropy of 0 is none, and a safeguard that is off and stops.
    #[test]
    fn a_step_without_tokens_says_nothing() {
        let safeguard = Safeguard { stop_entropy: 0.1, stop_steps: 2, ..Safeguard::default() };
        let (low, none) = (metrics(1, 0.0, 0.0, 0.0), Metrics { tokens: 0, ..metrics(2, 0.0, 0.0, 0.0) });
        let steps = || vec![low.clone(), none.clone(), none.clone()];
        assert_eq!(taken(safeguard, &[], steps()), (3, None));
        let counted_on = [steps(), vec![low.clone(), none.clone()]].concat();
        assert_eq!(taken(safeguard, &[], counted_on).0, 4, "nor does it end a row");
        let off = Safeguard { stop_steps: 1, ..Safeguard::default() };
        assert_eq!(taken(off, &[], vec![low.clone(), metrics(2, 0.0, f64::MAX, 0.0), low]), (3, None));
    }

    /// Catches a step that is told for the wrong reason, and one that is told although nothing is lost by it.
    #[test]
    fn a_step_that_is_skipped_says_why() {
        let safeguard = Safeguard { skip_ess: 0.5, skip_norm: 4.0, ..Safeguard::default() };
        let of = |ess, paused, held| Metrics { skipped: true, paused, held, grad_norm: 8.0, ..metrics(3, 1.0, 0.0, ess) };
        let says = |metrics: &Metrics| skipped(metrics, &safeguard).unwrap_or_default();
        assert_eq!(
            says(&of(0.25, true, false)),
            "step 3 was skipped: its ESS is 0.25, below learn.safeguard.skip_ess = 0.5"
        );
        let pauses = "step 3 was skipped: the run pauses until a batch was sampled by the newest weights alone \
                      (learn.safeguard.skip_ess); its ESS is 0.75";
        assert_eq!(says(&of(0.75, true, false)), pauses);
        let outlier = "step 3 was skipped: its gradient's norm is 8, above learn.safeguard.skip_norm = 4 times the median of the 32 \
                       before";
        assert_eq!(says(&of(0.75, false, false)), outlier);
        assert_eq!((says(&of(0.75, false, true)), says(&metrics(3, 1.0, 0.0, 0.9))), (String::new(), String::new()));
    }

    #[test]
    fn weights_are_the_learners() {
        assert_eq!(Stopping::new(Safeguard::default(), &[], Measures(Vec::new())).weights(), Ok(7));
    }
}
