//! An engine and, where the run has a separate critic, the engine of the critic's model beside it: what makes, keeps and restores the pair.

use super::{Advantages, Critic, PolicyAndCritic, Stage, named};
use crate::engine::contract::{Engine, Identity, Tokenize, Writer};
use crate::engine::spec::{Learning, Sampling};
use crate::error::{Error, Result};
use crate::jobs::as_taken::AsTaken;
use crate::spec::Spec;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Metrics, Step, Version};
use tidegate_operators::train::Learner;

/// The critic's folder in a checkpoint: a model folder as the policy's, with its optimizer's state.
pub const FOLDER: &str = "critic";

/// A policy's engine with its critic's.
pub struct WithCritic<E: Engine> {
    policy: E,
    critic: Option<E>,
    /// Hash of the critic, where it is another model than the policy.
    given: String,
    advantages: Advantages,
}

impl<E: Engine> WithCritic<E> {
    /// Of a specification: `policy` opens a model for the policy, `critic` one for the critic, which is only asked where the run has one of
    /// its own.
    ///
    /// # Errors
    /// A model that cannot be opened; a critic's that does not take what the policy's does.
    pub fn open(
        spec: &Spec,
        policy: impl FnOnce() -> Result<E>,
        critic: impl FnOnce() -> Result<E>,
    ) -> Result<WithCritic<E>> {
        let policy = policy()?;
        let critic = if spec.has_separate_critic() { Some(critic()?) } else { None };
        if let Some(critic) = &critic {
            let refuse = |why: String| Err(Error::config("learn.critic.path", spec.learn.critic.path.display(), why));
            let [mine, theirs] = [&policy, critic].map(|engine| engine.identity().tokenizer);
            if mine != theirs {
                return refuse(format!(
                    "its tokenizer (hash {theirs}) is not the policy's ({mine}): the same ids would be other texts to it"
                ));
            }
            if critic.longest() < policy.longest() {
                let (longest, needed) = (critic.longest(), policy.longest());
                return refuse(format!(
                    "its longest sequence is {longest} tokens, the policy's {needed}: it needs at least as many"
                ));
            }
        }
        let given = critic.as_ref().filter(|_| !spec.learn.critic.path.as_os_str().is_empty());
        let given = given.map_or_else(String::new, |critic| critic.identity().model);
        Ok(WithCritic { policy, critic, given, advantages: Advantages::of(spec) })
    }
}

/// What policy and critic remember; the weights of the critic are of it, since nobody else takes them.
pub struct Remembered<E: Engine> {
    policy: E::Optimizer,
    critic: Option<(E::Weights, E::Optimizer)>,
}

impl<E: Engine + 'static> Engine for WithCritic<E> {
    type Weights = E::Weights;
    type Generator = E::Generator;
    type Learner = PolicyAndCritic<E>;
    type Optimizer = Remembered<E>;
    type Frozen = E::Frozen;
    type Writer = BothWriter<E>;

    fn describe(&self) -> String {
        let critic = self.critic.as_ref().map(|critic| format!("; its critic: {}", critic.describe()));
        self.policy.describe() + &critic.unwrap_or_default()
    }

    fn identity(&self) -> Identity {
        Identity { critic: self.given.clone(), ..self.policy.identity() }
    }

    fn longest(&self) -> usize {
        self.policy.longest()
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        self.policy.tokenizer()
    }

    fn notes(&self) -> &[String] {
        self.policy.notes()
    }

    fn folder(&self) -> Option<&Path> {
        self.policy.folder()
    }

    fn hashes(&self) -> Result<Vec<(String, String)>> {
        let mut hashes = self.policy.hashes()?;
        if let Some(critic) = &self.critic {
            hashes.extend(named(critic.hashes()?));
        }
        Ok(hashes)
    }

    fn parameters(&self) -> u64 {
        self.policy.parameters() + self.critic.as_ref().map_or(0, E::parameters)
    }

    fn snapshot(&self) -> Result<E::Weights> {
        self.policy.snapshot()
    }

    fn set_weights(&mut self, weights: &E::Weights) {
        self.policy.set_weights(weights);
    }

    fn release_weights(&mut self) {
        self.policy.release_weights();
        if let Some(critic) = &mut self.critic {
            critic.release_weights();
        }
    }

    fn generator(&self, sampling: &Sampling, seed: u64, worker: usize) -> Result<E::Generator> {
        self.policy.generator(sampling, seed, worker)
    }

    fn slots(generator: &E::Generator) -> usize {
        E::slots(generator)
    }

    fn library_ns(generator: &E::Generator) -> u64 {
        E::library_ns(generator)
    }

    fn learner(
        &self,
        learning: &Learning,
        sampling: &Sampling,
        steps: Step,
        version: Version,
    ) -> Result<PolicyAndCritic<E>> {
        let policy = self.policy.learner(&learning.of_policy(), sampling, steps, version)?;
        let critic = |engine: &E| -> Result<Critic<E>> {
            let learner = engine.learner(&learning.of_critic(), sampling, steps, version)?;
            Ok(Critic { learner, advantages: self.advantages, stage: Stage::Critic(0), taken: AsTaken::default() })
        };
        Ok(PolicyAndCritic { policy, critic: self.critic.as_ref().map(critic).transpose()? })
    }

    fn frozen(&self, of: &Self, learning: &Learning, sampling: &Sampling) -> Result<E::Frozen> {
        self.policy.frozen(&of.policy, learning, sampling)
    }

    fn reference(&self, folder: &Path) -> Result<Option<E::Weights>> {
        self.policy.reference(folder)
    }

    fn version(learner: &PolicyAndCritic<E>) -> Version {
        learner.version()
    }

    fn relearn(learner: &mut PolicyAndCritic<E>, learning: &Learning, steps: Step) {
        learner.relearn(learning, steps);
    }

    fn recall(learner: &mut PolicyAndCritic<E>, before: &[Metrics]) {
        E::recall(&mut learner.policy, before);
    }

    fn optimizer(learner: &mut PolicyAndCritic<E>) -> Result<Remembered<E>> {
        let critic = |critic: &mut Critic<E>| -> Result<_> {
            let weights = critic.learner.weights().map_err(Error::Fault)?;
            Ok((weights, E::optimizer(&mut critic.learner)?))
        };
        let policy = E::optimizer(&mut learner.policy)?;
        Ok(Remembered { policy, critic: learner.critic.as_mut().map(critic).transpose()? })
    }

    fn take_apart(learner: PolicyAndCritic<E>) -> Result<(E::Weights, Remembered<E>)> {
        let (weights, policy) = E::take_apart(learner.policy)?;
        let critic = learner.critic.map(|critic| E::take_apart(critic.learner)).transpose()?;
        Ok((weights, Remembered { policy, critic }))
    }

    fn restore(&self, folder: &Path, learner: &mut PolicyAndCritic<E>) -> Result<()> {
        self.policy.restore(folder, &mut learner.policy)?;
        match (&self.critic, &mut learner.critic) {
            (Some(engine), Some(critic)) => engine.restore(&folder.join(FOLDER), &mut critic.learner),
            _ => Ok(()),
        }
    }

    fn writer(&self) -> BothWriter<E> {
        BothWriter { policy: self.policy.writer(), critic: self.critic.as_ref().map(E::writer) }
    }

    fn set_threads(threads: u16) {
        E::set_threads(threads);
    }
}

/// Writes the policy's folder, and the critic's in it.
pub struct BothWriter<E: Engine> {
    policy: E::Writer,
    critic: Option<E::Writer>,
}

impl<E: Engine> Writer<E::Weights, Remembered<E>> for BothWriter<E> {
    fn write(&self, folder: &Path, weights: &E::Weights, optimizer: &Remembered<E>) -> Result<()> {
        self.policy.write(folder, weights, &optimizer.policy)?;
        let Some((writer, (weights, optimizer))) = self.critic.as_ref().zip(optimizer.critic.as_ref()) else {
            return Ok(());
        };
        let folder = folder.join(FOLDER);
        fs::create_dir_all(&folder).map_err(|e| Error::write(&folder, &e))?;
        writer.write(&folder, weights, optimizer)
    }

    fn write_reference(&self, folder: &Path, weights: &E::Weights) -> Result<()> {
        self.policy.write_reference(folder, weights)
    }
}
