//! What a critic is told (`[learn.critic]`), and how one run's keys become what each of its learners learns.

use crate::engine::reference::Reference;
use crate::engine::spec::Learning;
use crate::kernel::safeguard::Safeguard;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The critic of a run, where `learn.value_coef` gives it one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Critic {
    pub model: CriticModel,
    /// Folder of a separate critic's model; empty: that of the policy.
    pub path: PathBuf,
    /// Its learning rate after warm-up; 0 is the policy's.
    pub lr: f64,
    /// The first steps, in which it alone learns.
    pub alone_steps: u64,
    /// How far from the recorded value a value may be moved; 0 is no limit.
    pub clip: f64,
    /// Most tokens of one micro-batch of a separate critic; 0: as the policy's.
    pub micro_batch_tokens: usize,
}

/// Where the critic's estimates come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CriticModel {
    /// A head on the policy's last hidden state: made when a token is sampled.
    #[default]
    Trunk,
    /// A model of its own: made when a step takes its batch.
    Separate,
}

/// What a learner makes of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Log-probabilities, and values where there is a head for them.
    #[default]
    Policy,
    /// Values alone: they are filled in, and the value loss is all that is minimised.
    Values,
}

impl Learning {
    /// What the learner of the policy learns: no values, where the critic is a model of its own.
    pub fn of_policy(&self) -> Learning {
        let value_coef = if self.critic.model == CriticModel::Separate { 0.0 } else { self.value_coef };
        Learning { value_coef, objective: Objective::Policy, ..self.clone() }
    }

    /// What the learner of a separate critic learns: values, of every token that was chosen, whatever its lag; from the first step on.
    pub fn of_critic(&self) -> Learning {
        let Critic { lr, micro_batch_tokens, .. } = self.critic;
        let own = |own: usize, other: usize| if own > 0 { own } else { other };
        Learning {
            lr: if lr > 0.0 { lr } else { self.lr },
            entropy_coef: 0.0,
            micro_batch_tokens: own(micro_batch_tokens, self.micro_batch_tokens),
            safeguard: Safeguard::default(),
            reference: Reference::default(),
            critic: Critic { alone_steps: 0, ..self.critic.clone() },
            objective: Objective::Values,
            ..self.clone()
        }
    }

    /// Whether the critic alone learns in this step.
    pub fn warms_up(&self, step: u64) -> bool {
        (1..=self.critic.alone_steps).contains(&step)
    }

    /// Learning rate of the critic in step `step` (from 1) of `steps`, before a safeguard scales it.
    pub fn critic_lr_at(&self, step: u64, steps: u64) -> f64 {
        let lr = if self.critic.lr > 0.0 { self.critic.lr } else { self.lr };
        self.rate(lr, step, steps)
    }

    /// Whether `logp_behavior` and the advantage are read, which a demonstration does not have.
    pub fn reads_behavior(&self) -> bool {
        self.objective == Objective::Policy && self.loss.reads_behavior()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spec::LrSchedule;

    fn learning(critic: Critic) -> Learning {
        Learning { lr: 0.5, warmup_steps: 4, value_coef: 0.1, entropy_coef: 0.2, critic, ..Learning::default() }
    }

    /// Catches a policy that learns in the critic's steps, or whose own warm-up they use up, and a critic that waits too.
    #[test]
    fn rates_by_hand() {
        let learning = learning(Critic { lr: 2.0, alone_steps: 2, ..Critic::default() });
        let learning = Learning { lr_schedule: LrSchedule::Constant, ..learning };
        let rates = |of: fn(&Learning, u64, u64) -> f64| [1, 2, 3, 4, 6, 7].map(|step| of(&learning, step, 9));
        assert_eq!(rates(Learning::lr_at), [0.0, 0.0, 0.125, 0.25, 0.5, 0.5]);
        assert_eq!(rates(Learning::critic_lr_at), [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        assert_eq!([0, 1, 2, 3].map(|step| learning.warms_up(step)), [false, true, true, false]);
        // Both end their cosine at the last step.
        let cosine = Learning { lr_schedule: LrSchedule::Cosine, ..learning };
        assert!(cosine.lr_at(9, 9).abs() < 1e-12 && cosine.critic_lr_at(9, 9).abs() < 1e-12);
        assert!((cosine.lr_at(6, 10) - 0.5).abs() < 1e-12, "{}", cosine.lr_at(6, 10));
    }

    #[test]
    fn without_its_own_keys_a_critic_does_as_the_policy() {
        let learning = learning(Critic::default());
        assert_eq!(learning.of_policy(), learning);
        assert!((1..9).all(|k| learning.critic_lr_at(k, 9) == learning.lr_at(k, 9)));
    }

    /// Catches a separate critic whose values the policy's learner asks too, and one that takes over what is the policy's.
    #[test]
    fn a_separate_critic_has_what_is_its_own() {
        let critic =
            Critic { model: CriticModel::Separate, lr: 2.0, alone_steps: 3, micro_batch_tokens: 7, ..Critic::default() };
        let learning = learning(critic);
        let (policy, critic) = (learning.of_policy(), learning.of_critic());
        assert_eq!((policy.value_coef, policy.lr, policy.warms_up(3)), (0.0, 0.5, true));
        assert_eq!((critic.value_coef, critic.lr, critic.warms_up(3)), (0.1, 2.0, false));
        assert_eq!((critic.entropy_coef, critic.micro_batch_tokens, critic.objective), (0.0, 7, Objective::Values));
        assert!(policy.reads_behavior() && !critic.reads_behavior());
        assert_eq!(critic.lr_at(1, 9), learning.critic_lr_at(1, 9));
    }
}
