//! From what the model says of a rollout's tokens to what is back-propagated, and what is measured on the way.
//!
//! The same for every engine. Knows nothing of tensors, and no loss by name: the kernel gives each token's loss and derivatives.

use crate::engine::critic::Objective;
use crate::engine::kept::{kept, lags};
use crate::engine::spec::Learning;
use crate::kernel::critic::{Explained, clipped_value_loss};
use crate::kernel::ess::Ess;
use crate::kernel::kl;
use crate::kernel::loss::{Term, Tokens, policy_loss};
use crate::kernel::mean::Mean;
use crate::kernel::reference::{KlIn, reference_loss, weight};
use tidegate_operators::record::{Metrics, Rollout};

/// What a model says of one completion token: log-probability, entropy of the distribution it was chosen from, value before it (0
/// for a model without a critic).
pub type Said = [f32; 3];

/// Sums over the trained tokens of a step, micro-batch after micro-batch.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    rollouts: u64,
    policy_loss: f64,
    value_loss: f64,
    explained: Explained,
    entropy_sum: f64,
    entropy: Mean,
    ess: Ess,
    kl_k1: Mean,
    kl_k3: Mean,
    logp_gap: Mean,
    clipped: Mean,
    kl_coef: f64,
    reference_loss: f64,
    kl_reference: Mean,
    terms: Vec<Term>,
    lag: Vec<u64>,
}

impl Tally {
    /// Of a step whose coefficient for the divergence from a reference is this one; 0 without.
    pub fn of(kl_coef: f64) -> Self {
        Tally { kl_coef, ..Tally::default() }
    }

    /// Adds a rollout whose tokens weigh `weight` in the batch. Fills its `logp_current`, or its `value` where values are the
    /// objective, and appends to `coefficients`, for each of its tokens, what multiplies each number of [`Said`] in the sum that is
    /// back-propagated: 0 for tokens that are masked or that a safeguard leaves out, which count nowhere. The critic's target is the
    /// reward that was used.
    pub fn add(
        &mut self,
        learning: &Learning,
        rollout: &mut Rollout,
        weight: f32,
        said: &[Said],
        coefficients: &mut Vec<Said>,
    ) {
        match learning.objective {
            Objective::Policy => rollout.logp_current = said.iter().map(|&[logp, ..]| logp).collect(),
            Objective::Values => rollout.value = said.iter().map(|&[.., value]| value).collect(),
        }
        let rollout = &*rollout;
        let kept = kept(learning, rollout);
        self.terms(learning, rollout, &kept);
        let (value_coef, entropy_coef) = (learning.value_coef as f32, learning.entropy_coef as f32);
        let target = rollout.used_reward().filter(|_| learning.value_coef != 0.0);
        for (t, (term, &[_, entropy, value])) in self.terms.iter().zip(said).enumerate() {
            if !kept[t] {
                coefficients.push([0.0; 3]);
                continue;
            }
            let recorded = rollout.value.get(t).copied();
            let of_target =
                |target| clipped_value_loss(value, target, recorded.unwrap_or(value), learning.critic.clip as f32);
            let (loss, d_value) = target.map_or((0.0, 0.0), of_target);
            if let (Some(target), Some(recorded)) = (target, recorded) {
                self.explained.add(recorded.into(), target.into());
            }
            coefficients.push([weight * term.d_logp, -weight * entropy_coef, weight * value_coef * d_value]);
            self.policy_loss += f64::from(weight * term.loss);
            self.value_loss += f64::from(weight * loss);
            self.entropy_sum += f64::from(weight * entropy);
            self.entropy.add(f64::from(entropy));
            self.ess.add(f64::from(term.weight));
            self.clipped.add(f64::from(u8::from(term.clipped)));
        }
        self.rollouts += 1;
        if learning.objective == Objective::Policy {
            self.divergence(rollout, &kept);
        }
        if self.kl_coef > 0.0 {
            let first = coefficients.len() - said.len();
            self.reference(learning, rollout, weight, &kept, &mut coefficients[first..]);
        }
    }

    /// Adds how far the current policy is from the reference, and what that has to do with the gradient where it is in the loss.
    fn reference(&mut self, learning: &Learning, rollout: &Rollout, weight: f32, kept: &[bool], coefficients: &mut [Said]) {
        let Rollout { logp_current, logp_behavior, logp_reference, .. } = rollout;
        let estimator = learning.reference.kl_estimator;
        for t in (0..kept.len()).filter(|&t| kept[t]) {
            let (current, behavior, reference) = (logp_current[t], logp_behavior[t], logp_reference[t]);
            self.kl_reference.add(f64::from(self::weight(current, behavior)) * f64::from(kl::k3(current, reference)));
            if learning.reference.kl_in == KlIn::Loss {
                let (loss, d_logp) = reference_loss(estimator, current, behavior, reference);
                coefficients[t][0] += weight * self.kl_coef as f32 * d_logp;
                self.reference_loss += f64::from(weight * loss);
            }
        }
    }

    /// The policy's part of each token; nothing where values are the objective.
    fn terms(&mut self, learning: &Learning, rollout: &Rollout, kept: &[bool]) {
        if learning.objective == Objective::Values {
            self.terms.clear();
            return self.terms.resize(kept.len(), Term::default());
        }
        self.lag.clear();
        self.lag.extend(lags(rollout));
        let tokens = Tokens {
            logp_current: &rollout.logp_current,
            logp_behavior: &rollout.logp_behavior,
            advantage: &rollout.advantage,
            lag: &self.lag,
            mask: kept,
        };
        policy_loss(learning.loss, tokens, &mut self.terms);
    }

    /// How far the current policy is from the one that sampled; a demonstration, which nothing sampled, adds nothing.
    fn divergence(&mut self, rollout: &Rollout, kept: &[bool]) {
        let pairs = rollout.logp_behavior.iter().zip(&rollout.logp_current);
        for ((&behavior, &current), _) in pairs.zip(kept).filter(|&(_, &chosen)| chosen) {
            self.kl_k1.add(f64::from(kl::k1(behavior, current)));
            self.kl_k3.add(f64::from(kl::k3(behavior, current)));
            self.logp_gap.add(f64::from((current - behavior).abs()));
        }
    }

    /// The learner's metrics, but for those of the update. Means over nothing are 0, as the record's defaults are.
    pub fn metrics(&self, learning: &Learning) -> Metrics {
        let mean = |mean: Mean| mean.value().unwrap_or_default();
        let mut parts = learning.value_coef * self.value_loss - learning.entropy_coef * self.entropy_sum;
        if self.kl_coef > 0.0 {
            parts += self.kl_coef * self.reference_loss;
        }
        Metrics {
            rollouts: self.rollouts,
            tokens: self.entropy.count(),
            loss: self.policy_loss + parts,
            policy_loss: self.policy_loss,
            value_loss: self.value_loss,
            explained_variance: if self.explained.count() == 0 {
                0.0
            } else {
                self.explained.variance().unwrap_or(f64::NAN)
            },
            entropy: mean(self.entropy),
            ess: self.ess.value(),
            kl_k1: mean(self.kl_k1),
            kl_k3: mean(self.kl_k3),
            logp_gap: mean(self.logp_gap),
            clipped: mean(self.clipped),
            kl_reference: mean(self.kl_reference),
            kl_coef: self.kl_coef,
            ..Metrics::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::critic::Critic;
    use crate::kernel::loss::Loss;
    use crate::kernel::safeguard::Safeguard;

    /// Step 5 trains version 4. Of two tokens whose ratio is 1.2 cubed, the one three steps old has moved by 1.2 in the last of
    /// them, the one two steps old by more than its bound. Catches a lag that does not reach the loss, or is off by one.
    #[test]
    fn a_tokens_lag_reaches_the_loss() {
        let loss = Loss::DecoupledPpo { clip_low: 0.2, clip_high: 0.28, cap: 5.0 };
        let learning = Learning { loss, ..Learning::default() };
        let log_ratio = 3.0 * 1.2f32.ln();
        let mut rollout = Rollout {
            step: 5,
            mask: vec![true; 2],
            version: vec![1, 2],
            logp_behavior: vec![-1.0 - log_ratio; 2],
            advantage: vec![1.0; 2],
            ..Rollout::default()
        };
        let (mut tally, mut coefficients) = (Tally::default(), Vec::new());
        tally.add(&learning, &mut rollout, 0.5, &[[-1.0, 0.0, 0.0]; 2], &mut coefficients);
        assert!((coefficients[0][0] + 0.5 * 1.728).abs() < 1e-5 && coefficients[1][0] == 0.0, "{coefficients:?}");
        assert_eq!(tally.metrics(&learning).clipped, 0.5);
    }

    /// Recorded 0.25 and 0.75 of a return of 1. Catches a bound around what is said now, and an explained variance of the values that
    /// are said now where advantages were made of those before.
    #[test]
    fn values_are_bounded_around_the_recorded_ones() {
        let critic = Critic { clip: 0.125, ..Critic::default() };
        let learning = Learning { value_coef: 0.5, critic, ..Learning::default() };
        let rollout = |value: f32, reward| Rollout {
            mask: vec![true],
            logp_behavior: vec![-1.0],
            advantage: vec![0.0],
            value: vec![value],
            reward: Some(reward),
            ..Rollout::default()
        };
        let (mut tally, mut coefficients) = (Tally::default(), Vec::new());
        // From 0.25 to 0.5, of which half is allowed: as at 0.375, without a slope. The other has not moved.
        tally.add(&learning, &mut rollout(0.25, 1.0), 1.0, &[[-1.0, 0.0, 0.5]], &mut coefficients);
        tally.add(&learning, &mut rollout(0.75, 0.5), 1.0, &[[-1.0, 0.0, 0.75]], &mut coefficients);
        assert_eq!(coefficients.iter().map(|c| c[2]).collect::<Vec<_>>(), [0.0, 0.25]);
        let m = tally.metrics(&learning);
        // Returns vary by 0.0625, errors 0.75 and -0.25 by 0.25.
        assert_eq!((m.value_loss, m.explained_variance), (0.625 * 0.625 + 0.0625, -3.0));
    }

    /// Catches a critic that overwrites what the policy's learner says, and one that learns anything but values.
    #[test]
    fn of_values_nothing_else_is_learned() {
        let learning = Learning { value_coef: 0.5, entropy_coef: 0.3, ..Learning::default() }.of_critic();
        let mut rollout = Rollout { mask: vec![true, false], reward: Some(1.0), ..Rollout::default() };
        let (mut tally, mut coefficients) = (Tally::default(), Vec::new());
        tally.add(&learning, &mut rollout, 0.5, &[[0.0, 0.0, 0.25], [0.0, 0.0, 0.75]], &mut coefficients);
        assert_eq!((rollout.value, rollout.logp_current.len()), (vec![0.25, 0.75], 0));
        assert_eq!(coefficients, [[0.0, 0.0, -0.375], [0.0; 3]]);
        let m = tally.metrics(&learning);
        assert_eq!((m.value_loss, m.loss, m.tokens), (0.28125, 0.140625, 1));
    }

    /// Step 5, lags 3 and 2. Catches a token that is left out and back-propagated, or that counts in a mean.
    #[test]
    fn what_is_left_out_counts_nowhere() {
        let safeguard = Safeguard { max_lag: 2.0, ..Safeguard::default() };
        let learning = Learning { safeguard, entropy_coef: 0.1, value_coef: 0.5, ..Learning::default() };
        let mut rollout = Rollout {
            step: 5,
            mask: vec![true; 2],
            version: vec![1, 2],
            logp_behavior: vec![-9.0, -1.0],
            advantage: vec![1.0, 2.0],
            reward: Some(1.0),
            ..Rollout::default()
        };
        let (mut tally, mut coefficients) = (Tally::default(), Vec::new());
        tally.add(&learning, &mut rollout, 0.5, &[[-1.0, 7.0, 9.0], [-1.0, 2.0, 0.5]], &mut coefficients);
        assert_eq!(coefficients, [[0.0; 3], [-1.0, -0.05, -0.25]]);
        let m = tally.metrics(&learning);
        assert_eq!((m.rollouts, m.tokens, m.entropy, m.ess, m.kl_k3, m.logp_gap), (1, 1, 2.0, 1.0, 0.0, 0.0));
        assert_eq!((m.policy_loss, m.value_loss), (1.0, 0.125));
        assert_eq!((rollout.mask, rollout.logp_current), (vec![true; 2], vec![-1.0; 2]));
    }
}
