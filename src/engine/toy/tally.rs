//! What a step's metrics are counted from: tokens as they are trained. Rewards, lengths and lags are not the engine's to count.

use crate::engine::spec::Learning;
use crate::kernel::ess::Ess;
use crate::kernel::kl;
use crate::kernel::loss::Term;
use crate::kernel::mean::Mean;
use tidegate_operators::record::{Metrics, Rollout, Step};

/// Sums over the trained tokens of a batch.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    slots: u64,
    policy_loss: f64,
    value_loss: f64,
    entropy_sum: f64,
    entropy: Mean,
    ess: Ess,
    kl_k1: Mean,
    kl_k3: Mean,
    logp_gap: Mean,
    clipped: Mean,
}

/// One trained token.
pub struct Trace<'a> {
    pub rollout: &'a Rollout,
    /// Place of the token in the completion.
    pub t: usize,
    pub term: Term,
    /// What the token weighs in the batch's loss.
    pub weight: f32,
    pub entropy: f32,
    /// The critic's loss at the token; 0 without a critic.
    pub value_loss: f32,
}

impl Tally {
    /// Counts the token slots that were computed.
    pub fn slots(&mut self, slots: usize) {
        self.slots += slots as u64;
    }

    /// Counts one trained token.
    pub fn token(&mut self, trace: &Trace<'_>) {
        let weight = f64::from(trace.weight);
        self.policy_loss += weight * f64::from(trace.term.loss);
        self.value_loss += weight * f64::from(trace.value_loss);
        self.entropy_sum += weight * f64::from(trace.entropy);
        self.entropy.add(f64::from(trace.entropy));
        self.ess.add(f64::from(trace.term.ratio));
        self.clipped.add(if trace.term.clipped { 1.0 } else { 0.0 });
        let Rollout { logp_current, logp_behavior, .. } = trace.rollout;
        if let Some(&behavior) = logp_behavior.get(trace.t) {
            let current = logp_current[trace.t];
            self.kl_k1.add(f64::from(kl::k1(behavior, current)));
            self.kl_k3.add(f64::from(kl::k3(behavior, current)));
            self.logp_gap.add(f64::from((current - behavior).abs()));
        }
    }

    /// The metrics of the step, as far as they come from the loss. A mean of nothing is 0.
    pub fn metrics(&self, step: Step, batch: &[Rollout], learning: &Learning) -> Metrics {
        let trained = |r: &&Rollout| r.trainable() && r.mask.contains(&true);
        let of = |mean: &Mean| mean.value().unwrap_or(0.0);
        let value_loss = learning.value_coef * self.value_loss;
        Metrics {
            step,
            rollouts: batch.iter().filter(trained).count() as u64,
            tokens: self.entropy.count(),
            slots: self.slots,
            loss: self.policy_loss + value_loss - learning.entropy_coef * self.entropy_sum,
            policy_loss: self.policy_loss,
            value_loss: self.value_loss,
            entropy: of(&self.entropy),
            ess: self.ess.value(),
            kl_k1: of(&self.kl_k1),
            kl_k3: of(&self.kl_k3),
            logp_gap: of(&self.logp_gap),
            clipped: of(&self.clipped),
            ..Metrics::default()
        }
    }
}
