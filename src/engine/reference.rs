//! The reference policy as both engines are told of it (`[learn.reference]`), and the coefficient of a step.

use crate::kernel::reference::{KlEstimator, KlIn, next_coefficient};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tidegate_operators::record::Metrics;

/// What the policy is to stay near, and how (`[learn.reference]`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reference {
    /// Coefficient of the divergence; 0 means no reference.
    pub kl_coef: f64,
    /// `loss` or `reward`.
    pub kl_in: KlIn,
    /// `k1`, `k2` or `k3`.
    pub kl_estimator: KlEstimator,
    /// What the coefficient moves towards, nats a token, starting at `kl_coef`; 0 leaves it.
    pub target_kl: f64,
    /// After every so many steps the newest weights become the reference; 0 is never.
    pub refresh_steps: u64,
    /// A model folder of the policy's layout; empty: the weights that the run starts from.
    pub path: PathBuf,
}

impl Reference {
    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        self.kl_coef > 0.0
    }

    /// Whether the weights after `step` become the reference.
    pub fn refreshes(&self, step: u64) -> bool {
        self.is_on() && self.refresh_steps > 0 && step.is_multiple_of(self.refresh_steps)
    }

    /// The coefficient of the next step; 0 without a reference.
    pub fn coefficient(&self, drift: Drift) -> f64 {
        match drift.0 {
            Some((coefficient, kl)) if self.is_on() && self.target_kl > 0.0 => {
                next_coefficient(coefficient, kl, self.target_kl)
            }
            _ => self.kl_coef,
        }
    }
}

/// Coefficient and divergence of the last step that had both: all that the next coefficient depends on. It comes back from the log's
/// metrics, so that a run that goes on, and a replay, have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift(Option<(f64, f64)>);

impl Drift {
    /// Goes by a step that is done. One that moved no weights of the policy says nothing: its divergence is that of the step before.
    pub fn see(&mut self, metrics: &Metrics) {
        let moved = metrics.tokens > 0 && !metrics.skipped && metrics.lr > 0.0;
        if moved {
            self.0 = (metrics.kl_coef > 0.0).then_some((metrics.kl_coef, metrics.kl_reference));
        }
    }

    /// After these steps, in their order.
    pub fn after(before: &[Metrics]) -> Drift {
        let mut drift = Drift::default();
        before.iter().for_each(|metrics| drift.see(metrics));
        drift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kl_coef: f64, target_kl: f64) -> Reference {
        Reference { kl_coef, target_kl, ..Reference::default() }
    }

    fn seen(kl_coef: f64, kl_reference: f64, tokens: u64) -> Metrics {
        Metrics { kl_coef, kl_reference, tokens, lr: 1e-3, ..Metrics::default() }
    }

    /// Catches a constant coefficient that moves, one that begins anew, and a step without tokens that is taken for one of no KL.
    /// Catches a coefficient that moves on while the weights stand still: where a batch is held, paused or skipped, or the critic alone
    /// learns.
    #[test]
    fn a_step_that_moved_nothing_says_nothing() {
        let moved = seen(0.5, 0.2, 9);
        let still =
            [Metrics { skipped: true, ..seen(0.6, 9.0, 9) }, Metrics { lr: 0.0, ..seen(0.6, 9.0, 9) }, seen(0.6, 9.0, 0)];
        for metrics in still {
            assert_eq!(Drift::after(&[moved.clone(), metrics]), Drift::after(std::slice::from_ref(&moved)));
        }
    }

    #[test]
    fn the_coefficient_follows_the_last_step() {
        let last = Drift::after(&[seen(0.5, 9.0, 3), seen(0.4, 9.0, 3), seen(0.4, 0.0, 0)]);
        assert_eq!(of(0.1, 0.0).coefficient(last), 0.1);
        assert_eq!(of(0.1, 1.0).coefficient(last), 0.4 * 1.02);
        assert_eq!(of(0.0, 1.0).coefficient(last), 0.0);
        assert_eq!(of(0.1, 1.0).coefficient(Drift::default()), 0.1);
        let off = Drift::after(&[seen(0.5, 9.0, 3), seen(0.0, 0.0, 3)]);
        assert_eq!(of(0.1, 1.0).coefficient(off), 0.1, "it was off in between");
    }

    #[test]
    fn it_is_refreshed_every_few_steps() {
        let every = |kl_coef, refresh_steps| Reference { kl_coef, refresh_steps, ..Reference::default() };
        assert_eq!([1, 3, 4, 6].map(|step| every(0.1, 3).refreshes(step)), [false, true, false, true]);
        assert!(!every(0.1, 0).refreshes(3) && !every(0.0, 3).refreshes(3));
    }
}
