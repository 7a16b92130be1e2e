//! A run's reference policy: a wrapper around the learner that asks it for the log-probabilities of each batch, and renews it.
//!
//! A step's batch is first known as the learner takes it, as for [`whitening`](super::whitening): so this is where it is scored, a
//! micro-batch at a time, and where penalties go into advantages (before they are whitened). The numbers are kept in the log. What
//! has them already, in a replay or when a run goes on, is not scored again.

use crate::engine::contract::{Engine, Frozen, Identity};
use crate::engine::kept::kept;
use crate::engine::reference::Drift;
use crate::engine::spec::Learning;
use crate::error::{Error, Result};
use crate::jobs::as_taken::AsTaken;
use crate::jobs::identity::same_model;
use crate::jobs::whitening::Whitening;
use crate::kernel::advantage::Advantage;
use crate::kernel::reference::{KlIn, Penalty};
use crate::spec::Spec;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Rollout, Step, Version};
use tidegate_operators::train::{Learner, Trained};

/// Weights that have become the reference since the start; None while it is the first one. Clones are one place.
#[derive(Debug)]
pub struct Refreshed<W>(Arc<Mutex<Option<W>>>);

impl<W> Default for Refreshed<W> {
    fn default() -> Self {
        Refreshed(Arc::default())
    }
}

impl<W> Clone for Refreshed<W> {
    fn clone(&self) -> Self {
        Refreshed(Arc::clone(&self.0))
    }
}

impl<W: Clone> Refreshed<W> {
    pub fn get(&self) -> Option<W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, weights: Option<W>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = weights;
    }
}

/// What a replay makes of log-probabilities that the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recorded {
    #[default]
    Kept,
    /// They are of another reference than the one that is asked for.
    Dropped,
}

/// The reference of a run, and where its coefficient stands.
#[derive(Debug)]
pub struct Referee<F, W> {
    /// None where there is no reference, or where the log has all that it would say.
    pub frozen: Option<F>,
    pub refreshed: Refreshed<W>,
    pub drift: Drift,
    pub recorded: Recorded,
}

impl<F, W> Default for Referee<F, W> {
    fn default() -> Self {
        Referee { frozen: None, refreshed: Refreshed::default(), drift: Drift::default(), recorded: Recorded::Kept }
    }
}

/// Where an engine's weights come from.
#[derive(Clone, Copy, Debug)]
pub enum Loaded<'a> {
    /// They are those that the run starts from.
    First,
    /// A checkpoint; the run started from the model of this identity.
    Later(&'a Identity),
}

/// Makes the reference that a specification asks for: the weights that were refreshed, those of its path, or those that the run
/// starts from. `open` makes the engine of a model folder, or of the run's own. With it the hash of the model that was given, if one was.
///
/// # Errors
/// A folder that is no model of the policy's layout, or no longer the one that the run started with; not enough memory.
pub fn frozen<E: Engine>(
    spec: &Spec,
    engine: &E,
    loaded: Loaded<'_>,
    refreshed: &Refreshed<E::Weights>,
    open: impl Fn(Option<&Path>) -> Result<E>,
) -> Result<(Option<E::Frozen>, String)> {
    let reference = &spec.learn.reference;
    let of = |other: &E| engine.frozen(other, &spec.learn, &spec.generate).map(Some);
    let own = |frozen| (frozen, String::new());
    if !reference.is_on() {
        return Ok(own(None));
    }
    if let Some(weights) = refreshed.get() {
        let mut frozen = engine.frozen(engine, &spec.learn, &spec.generate)?;
        frozen.load(&weights)?;
        return Ok(own(Some(frozen)));
    }
    if !reference.path.as_os_str().is_empty() {
        let path = &reference.path;
        let named = |e: Error| Error::config("learn.reference.path", path.display(), e.to_string());
        let given = open(Some(path)).map_err(named)?;
        let hash = given.identity().model;
        return Ok((of(&given)?, hash));
    }
    let Loaded::Later(first) = loaded else { return of(engine).map(own) };
    let start = open(None)?;
    same_model(&spec.model.path, &first.model, &start.identity().model)?;
    of(&start).map(own)
}

/// The weights that are the reference of a run at a checkpoint, if they are not the first ones any more. `engine` has the
/// checkpoint's weights.
///
/// # Errors
/// A file that is missing or damaged.
pub fn refreshed_at<E: Engine>(spec: &Spec, engine: &E, folder: &Path, version: Version) -> Result<Refreshed<E::Weights>> {
    let reference = &spec.learn.reference;
    let refreshed = Refreshed::default();
    if reference.is_on() && reference.refresh_steps > 0 && version >= reference.refresh_steps {
        let own = reference.refreshes(version).then(|| engine.snapshot()).transpose()?;
        let weights = own.map_or_else(|| engine.reference(folder), |own| Ok(Some(own)))?;
        let missing = || Error::file(folder, "has no reference.safetensors, and its reference was refreshed");
        refreshed.set(Some(weights.ok_or_else(missing)?));
    }
    Ok(refreshed)
}

/// What a specification says of its reference, for a person.
pub fn described(spec: &Spec) -> Option<String> {
    let r = &spec.learn.reference;
    let of =
        if r.path.as_os_str().is_empty() { "the weights it starts from".to_owned() } else { r.path.display().to_string() };
    let place = match r.kl_in {
        KlIn::Loss => "loss",
        KlIn::Reward => "reward",
    };
    let refreshed = if r.refresh_steps > 0 { format!(", refreshed every {} steps", r.refresh_steps) } else { String::new() };
    let target = if r.target_kl > 0.0 { format!(" at first, towards {} nats a token", r.target_kl) } else { String::new() };
    r.is_on().then(|| format!("reference {of}{refreshed}; KL in the {place}, coefficient {}{target}", r.kl_coef))
}

/// What changes in `[learn]` with a step; None where it stays what it was.
pub type Follow = Box<dyn FnMut(Step) -> Result<Option<Learning>, Fault> + Send>;

/// A learner whose batches a reference scores first, where there is one.
pub struct Referring<L: Learner, F: Frozen> {
    learner: L,
    referee: Referee<F, L::Weights>,
    follow: Follow,
    learning: Learning,
    /// What a token's penalty counts for the token before it.
    discount: f64,
    open: Option<Open<F::Piece>>,
    taken: AsTaken,
    /// The frozen policy's time in the tensor library that is counted.
    library_ns: u64,
}

/// A batch that is being scored.
struct Open<P> {
    step: Step,
    batch: Vec<Rollout>,
    /// The next one last.
    pieces: Vec<P>,
}

impl<L, F> Referring<Whitening<L>, F>
where
    L: Learner,
    L::Weights: Clone,
    F: Frozen<Weights = L::Weights>,
{
    /// All that belongs to a whole batch, around a learner: penalties are in the advantages before these are whitened.
    pub fn around(spec: &Spec, referee: Referee<F, L::Weights>, learner: L) -> Self {
        Referring::new(spec, referee, Whitening::new(spec, learner))
    }
}

impl<L, F> Referring<L, F>
where
    L: Learner,
    L::Weights: Clone,
    F: Frozen<Weights = L::Weights>,
{
    pub fn new(spec: &Spec, referee: Referee<F, L::Weights>, learner: L) -> Self {
        let discount = match spec.estimate.advantage {
            Advantage::Gae(gae) if spec.has_critic() => f64::from(gae.gamma) * f64::from(gae.lambda),
            _ => 1.0,
        };
        let (open, taken) = (None, AsTaken::default());
        let (follow, learning): (Follow, _) = (Box::new(|_| Ok(None)), spec.learn.clone());
        Referring { learner, referee, follow, learning, discount, open, taken, library_ns: 0 }
    }

    /// Of a run whose `[learn]` changes with its steps.
    #[must_use]
    pub fn following(self, follow: Follow) -> Self {
        Referring { follow, ..self }
    }

    /// What of a batch is to be scored; what it has already stays, unless it is of another reference, or there is none.
    fn pieces(&mut self, step: Step, batch: &mut [Rollout]) -> Result<Vec<F::Piece>, Fault> {
        if let Some(learning) = (self.follow)(step)? {
            self.learning = learning;
        }
        if !self.learning.reference.is_on() || self.referee.recorded == Recorded::Dropped {
            batch.iter_mut().for_each(|rollout| rollout.logp_reference.clear());
        }
        if !self.learning.reference.is_on() {
            return Ok(Vec::new());
        }
        let trains = |r: &Rollout| r.trainable() && kept(&self.learning, r).contains(&true);
        let missing = |r: &Rollout| trains(r) && r.logp_reference.len() != r.tokens.len();
        let which: Vec<usize> = (0..batch.len()).filter(|&i| missing(&batch[i])).collect();
        let Some(first) = which.first().map(|&i| &batch[i]) else { return Ok(Vec::new()) };
        let Some(frozen) = &self.referee.frozen else {
            let (group, sample) = (first.group.number, first.sample);
            return Err(fault(format!(
                "group {group}, sample {sample}: the log has no logp_reference, and there is no reference"
            )));
        };
        let mut pieces = frozen.pieces(batch, &which, self.learning.micro_batch_tokens).map_err(fault)?;
        pieces.reverse();
        Ok(pieces)
    }

    /// Takes the penalties from the advantages where they are part of the reward.
    fn penalise(&mut self, batch: &mut [Rollout]) -> Result<(), Fault> {
        let reference = &self.learning.reference;
        if !reference.is_on() || reference.kl_in == KlIn::Loss {
            return Ok(());
        }
        let coefficient = reference.coefficient(self.referee.drift);
        let penalty = Penalty { estimator: reference.kl_estimator, coefficient, discount: self.discount };
        let scored = |rollout: &Rollout| rollout.trainable() && !rollout.logp_reference.is_empty();
        for rollout in batch.iter().filter(|rollout| scored(rollout)) {
            let n = rollout.mask.len();
            let lists = [
                ("advantage", rollout.advantage.len()),
                ("logp_behavior", rollout.logp_behavior.len()),
                ("logp_reference", rollout.logp_reference.len()),
            ];
            if let Some((name, length)) = lists.into_iter().find(|(_, length)| *length != n) {
                let place = format!("group {}, sample {}", rollout.group.number, rollout.sample);
                return Err(fault(format!("{place}: {name} has {length} entries and mask {n}")));
            }
        }
        self.taken.keep(batch);
        for rollout in batch.iter_mut().filter(|rollout| scored(rollout)) {
            let Rollout { advantage, logp_behavior, logp_reference, mask, .. } = rollout;
            penalty.take_from(advantage, logp_behavior, logp_reference, mask);
        }
        Ok(())
    }

    /// Gives a batch that is scored to the learner.
    fn hand_over(&mut self, step: Step, mut batch: Vec<Rollout>) -> Result<(), Fault> {
        match self.penalise(&mut batch) {
            Ok(()) => self.learner.begin(step, batch),
            Err(fault) => Err(self.taken.refuse(batch, fault)),
        }
    }

    /// One piece of the batch, or its way to the learner.
    fn score(&mut self, mut open: Open<F::Piece>) -> Result<(), Fault> {
        let Some((piece, frozen)) = open.pieces.pop().zip(self.referee.frozen.as_mut()) else {
            return self.hand_over(open.step, open.batch);
        };
        match frozen.score(&mut open.batch, &piece) {
            Ok(()) => self.open = Some(open),
            Err(error) => return Err(self.taken.refuse(open.batch, fault(error))),
        }
        Ok(())
    }

    /// The newest weights become the reference. Whoever copies the learner meanwhile copies these weights, and no reference.
    fn refresh(&mut self) -> Result<(), Fault> {
        self.referee.refreshed.set(None);
        let weights = self.learner.weights()?;
        if let Some(frozen) = &mut self.referee.frozen {
            frozen.load(&weights).map_err(fault)?;
        }
        self.referee.refreshed.set(Some(weights));
        Ok(())
    }
}

fn fault(why: impl Display) -> Fault {
    Fault::new("reference", why)
}

impl<L, F> Learner for Referring<L, F>
where
    L: Learner,
    L::Weights: Clone,
    F: Frozen<Weights = L::Weights>,
{
    type Weights = L::Weights;

    fn begin(&mut self, step: Step, mut batch: Vec<Rollout>) -> Result<(), Fault> {
        self.taken.forget();
        match self.pieces(step, &mut batch) {
            Ok(pieces) if pieces.is_empty() => self.hand_over(step, batch),
            Ok(pieces) => {
                self.open = Some(Open { step, batch, pieces });
                Ok(())
            }
            Err(fault) => Err(self.taken.refuse(batch, fault)),
        }
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        if let Some(open) = self.open.take() {
            return self.score(open).map(|()| None);
        }
        let Some(mut trained) = self.learner.work()? else { return Ok(None) };
        let metrics = &mut trained.metrics;
        let library_ns = self.referee.frozen.as_ref().map_or(0, F::library_ns);
        metrics.torch_ns += library_ns.saturating_sub(self.library_ns);
        self.library_ns = library_ns;
        self.referee.drift.see(metrics);
        if self.learning.reference.refreshes(metrics.step) {
            self.refresh()?;
        }
        Ok(Some(trained))
    }

    /// As the batch was taken: when it is taken again, the reference and its coefficient may be others.
    fn abandon(&mut self) -> Vec<Rollout> {
        let mut batch = self.taken.give_back(|| match self.open.take() {
            Some(open) => open.batch,
            None => self.learner.abandon(),
        });
        batch.iter_mut().for_each(|rollout| rollout.logp_reference.clear());
        batch
    }

    fn weights(&mut self) -> Result<L::Weights, Fault> {
        self.learner.weights()
    }
}

#[cfg(test)]
mod tests;
