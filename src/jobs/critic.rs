//! A critic that is a model of its own: it values a step's batch, learns from it, and then the policy learns.
//!
//! Its values are a matter of the step and not of the sampling, so nothing of it goes to the generators. What learns is a pair: the
//! policy's learner and, where a run has a separate critic, a second one of the same engine that learns values alone. The batch goes
//! through both, each in its bounded pieces. The values that the critic's weights had at the step's beginning are recorded, advantages
//! are made of them, and whitened where that is asked; one forward pass serves them and the critic's gradient. A replay does the same
//! with the recorded batch, and so comes to the same, bit for bit.

pub mod engine;

use crate::engine::contract::Engine;
use crate::engine::spec::Learning;
use crate::jobs::as_taken::AsTaken;
use crate::jobs::estimator::Valued;
use crate::jobs::whitening::{Whitens, whiten_batch};
use crate::spec::Spec;
use std::mem;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Step, Version};
use tidegate_operators::train::{Learner, Trained};

/// What names of a critic's tensors begin with in the log and in checkpoints.
const PREFIX: &str = "critic.";

/// The learner of a policy, and that of its critic where that is a model of its own.
pub struct PolicyAndCritic<E: Engine> {
    policy: E::Learner,
    critic: Option<Critic<E>>,
}

struct Critic<E: Engine> {
    learner: E::Learner,
    advantages: Advantages,
    stage: Stage,
    taken: AsTaken,
}

/// What is made of values.
#[derive(Clone, Copy, Debug)]
struct Advantages {
    kind: Valued,
    whitens: Whitens,
}

/// Who works on the open step.
#[derive(Debug)]
enum Stage {
    Critic(Step),
    /// What the critic measured.
    Policy(Box<Metrics>),
}

impl Advantages {
    fn of(spec: &Spec) -> Self {
        Advantages { kind: Valued::of(spec.estimate.advantage), whitens: Whitens::of(spec) }
    }

    /// Advantages from the values that the batch has now. Each of those that came was the reward less the penalties to come of a
    /// reference policy, where those are in the reward: they stay.
    fn make(self, batch: &mut [Rollout], taken: &AsTaken) -> Result<(), Fault> {
        for (rollout, came) in batch.iter_mut().zip(taken.advantages()).filter(|(rollout, _)| rollout.trainable()) {
            let Some(reward) = rollout.used_reward().filter(|reward| reward.is_finite()) else {
                let (group, sample) = (rollout.group.number, rollout.sample);
                return Err(Fault::new("train", format!("group {group} sample {sample} has no reward to learn from")));
            };
            // Without a token to train there are no values, and nothing reads the advantages.
            rollout.advantage = match rollout.value.len() == rollout.mask.len() {
                true => {
                    let mut advantages = self.kind.advantages(rollout, reward);
                    advantages.iter_mut().zip(came).for_each(|(advantage, came)| *advantage += came - reward);
                    advantages
                }
                false => vec![0.0; rollout.mask.len()],
            };
        }
        if self.whitens == Whitens::Batch { whiten_batch(batch) } else { Ok(()) }
    }
}

impl<E: Engine> Critic<E> {
    /// One piece of the critic's work; with the last one the policy's learner has the batch.
    fn work(&mut self, step: Step, policy: &mut E::Learner) -> Result<(), Fault> {
        let Some(Trained { mut batch, metrics }) = self.learner.work()? else {
            self.stage = Stage::Critic(step);
            return Ok(());
        };
        if let Err(fault) = self.advantages.make(&mut batch, &self.taken) {
            return Err(self.taken.refuse(batch, fault));
        }
        self.stage = Stage::Policy(Box::new(metrics));
        policy.begin(step, batch)
    }
}

/// What a step was like, policy and critic together: the loss stays the policy's, which was minimised by itself.
fn together(policy: &mut Metrics, critic: Metrics) {
    policy.value_loss = critic.value_loss;
    policy.explained_variance = critic.explained_variance;
    policy.critic_lr = critic.lr;
    policy.critic_grad_norm = critic.grad_norm;
    policy.critic_micro_batch_tokens = critic.micro_batch_tokens;
    policy.slots += critic.slots;
    policy.torch_ns += critic.torch_ns;
    policy.weights.extend(named(critic.weights));
}

/// Hashes of a critic's tensors, under the names that they have beside the policy's.
fn named(hashes: Vec<(String, String)>) -> impl Iterator<Item = (String, String)> {
    hashes.into_iter().map(|(name, hash)| (format!("{PREFIX}{name}"), hash))
}

impl<E: Engine> PolicyAndCritic<E> {
    /// The last step that both have done. In between it is none that the log has: what the two are then is nothing to keep.
    fn version(&self) -> Version {
        let critic = self.critic.as_ref().map_or(0, |critic| E::version(&critic.learner));
        E::version(&self.policy).max(critic)
    }

    fn relearn(&mut self, learning: &Learning, steps: Step) {
        E::relearn(&mut self.policy, &learning.of_policy(), steps);
        if let Some(critic) = &mut self.critic {
            E::relearn(&mut critic.learner, &learning.of_critic(), steps);
        }
    }
}

impl<E: Engine> Learner for PolicyAndCritic<E> {
    type Weights = E::Weights;

    fn begin(&mut self, step: Step, mut batch: Vec<Rollout>) -> Result<(), Fault> {
        let Some(critic) = &mut self.critic else { return self.policy.begin(step, batch) };
        critic.taken.keep(&batch);
        batch.iter_mut().for_each(|rollout| rollout.value.clear());
        critic.stage = Stage::Critic(step);
        critic.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let Some(critic) = &mut self.critic else { return self.policy.work() };
        if let Stage::Critic(step) = critic.stage {
            return critic.work(step, &mut self.policy).map(|()| None);
        }
        let Some(mut trained) = self.policy.work()? else { return Ok(None) };
        if let Stage::Policy(measured) = mem::replace(&mut critic.stage, Stage::Critic(0)) {
            together(&mut trained.metrics, *measured);
        }
        critic.taken.forget();
        Ok(Some(trained))
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        let Some(critic) = &mut self.critic else { return self.policy.abandon() };
        critic.taken.give_back(|| match self.policy.abandon() {
            nothing if nothing.is_empty() => critic.learner.abandon(),
            batch => batch,
        })
    }

    fn weights(&mut self) -> Result<E::Weights, Fault> {
        self.policy.weights()
    }
}

#[cfg(test)]
mod tests;
