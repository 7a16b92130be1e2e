//! The learner: a batch of rollouts becomes one update of the weights, a micro-batch at a time.
//!
//! It knows no loss by name: of each token it asks the kernel for coefficients, and back-propagates
//! `sum(coefficient * output)` over log-probability, entropy and value.

use crate::clock::thread_ns;
use crate::engine::critic::Objective;
use crate::engine::kept;
use crate::engine::reference::Drift;
use crate::engine::spec::Learning;
use crate::engine::tally::Tally;
use crate::engine::torch::config::Config;
use crate::engine::torch::device;
use crate::engine::torch::layout::{Layout, ValueHead};
use crate::engine::torch::memory;
use crate::engine::torch::micro_batch::{MicroBatch, branch, planned, refused, to_host};
use crate::engine::torch::model::{Form, Model};
use crate::engine::torch::optimizer::{AdamW, State, clip};
use crate::engine::torch::pack::{Plan, smaller};
use crate::engine::torch::trail::Trail;
use crate::engine::torch::weights::{Snapshot, hashes};
use crate::error::{Error, Result};
use crate::kernel::norms::Norms;
use std::fmt::Display;
use tch::{Device, Kind, Tensor, no_grad};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Status, Step, Version};
use tidegate_operators::train::{Learner, Trained};

/// The training half of the torch engine: weights in one flat buffer that AdamW updates in place.
pub struct TorchLearner {
    config: Config,
    layout: Layout,
    learning: Learning,
    temperature: f64,
    steps: Step,
    version: Version,
    flat: Tensor,
    /// The weights in the type that is computed in, where that is another: rounded anew after each update.
    computed: Option<Tensor>,
    model: Model,
    /// The sum of the gradients of a step, `[layout.total]` f32.
    gradient: Tensor,
    optimizer: AdamW,
    /// Of the gradients of the last steps.
    norms: Norms,
    /// From the reference policy, in the last step.
    drift: Drift,
    open: Option<Open>,
    /// The batch of a step that failed.
    failed: Vec<Rollout>,
    /// Tokens that fit into memory at once.
    #[cfg(test)]
    room: usize,
}

/// A step that has begun.
struct Open {
    step: Step,
    batch: Vec<Rollout>,
    /// What each rollout's tokens weigh in the loss: 0 for those without a gradient.
    weights: Vec<f32>,
    plan: Plan,
    /// Micro-batches done.
    done: usize,
    tally: Tally,
    /// Nanoseconds spent in libtorch, on the processor.
    torch_ns: u64,
}

impl TorchLearner {
    /// A learner of `config`'s model with the weights `flat` (`[layout.total]`, f32; moved to `device`), which have had
    /// `version` of `steps` updates. `temperature` is the one that the rollouts were sampled at.
    ///
    /// # Errors
    /// A temperature not above 0, a critic's coefficient for a model without one, weights that are not the layout's, or a
    /// device without the room.
    #[expect(clippy::too_many_arguments, reason = "each is one fact of the run, and it is called in one place")]
    pub fn new(
        config: Config,
        layout: Layout,
        flat: Tensor,
        device: Device,
        learning: Learning,
        temperature: f64,
        steps: Step,
        version: Version,
    ) -> Result<Self> {
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::config("generate.temperature", temperature, "training needs a number above 0"));
        }
        if learning.value_coef != 0.0 && layout.value_head() == ValueHead::None {
            return Err(Error::config("learn.value_coef", learning.value_coef, "the model has no value head: 0 is right"));
        }
        if flat.size() != [layout.total] || flat.kind() != Kind::Float {
            let found = format!("{:?} of {:?}, expected [{}] of Float", flat.size(), flat.kind(), layout.total);
            return Err(Error::engine("learner's weights", found));
        }
        let flat = flat.f_to_device(device)?;
        let kind = device::kind(learning.dtype);
        let computed = if kind == Kind::Float { None } else { Some(flat.f_to_kind(kind)?) };
        let gradient = flat.f_zeros_like()?;
        let model = Model::new(&config, &layout, computed.as_ref().unwrap_or(&flat), Form::Learning(&gradient))?;
        let optimizer = AdamW::new(&flat, &learning)?.with_head(layout.head());
        let (open, failed) = (None, Vec::new());
        Ok(TorchLearner {
            config,
            layout,
            learning,
            temperature,
            steps,
            version,
            flat,
            computed,
            model,
            gradient,
            optimizer,
            norms: Norms::default(),
            drift: Drift::default(),
            open,
            failed,
            #[cfg(test)]
            room: usize::MAX,
        })
    }

    /// The newest weights, `[layout.total]` f32 on the learner's device. The next step changes them in place.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Where each tensor lies in [`flat`](TorchLearner::flat).
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The optimizer, whose state a checkpoint holds.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// Its weights and its optimizer's state, in the memory where they are. A step that is open is dropped: the weights are those of
    /// [`version`](TorchLearner::version). Not to be asked of one that failed in its update.
    pub fn take_apart(self) -> (Snapshot, State) {
        (Snapshot::of(self.flat), self.optimizer.into_state())
    }

    /// Learns so from its next step on, towards `steps` steps. A critic stays what it is.
    pub fn relearn(&mut self, learning: &Learning, steps: Step) {
        self.optimizer.relearn(learning);
        (self.learning, self.steps) = (learning.clone(), steps);
    }

    /// Goes by what these steps measured, those before its next one.
    pub fn recall(&mut self, before: &[Metrics]) {
        let judged = |metrics: &&Metrics| !self.learning.warms_up(metrics.step);
        self.norms = before.iter().filter(judged).map(|metrics| metrics.grad_norm).collect();
        self.drift = Drift::after(before);
    }

    /// For going on from a checkpoint.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// How many updates the weights have had.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Refuses a rollout that would break a step or, worse, not be seen to.
    fn check(&self, rollout: &Rollout) -> Result<(), Fault> {
        let n = rollout.tokens.len();
        // A demonstration has none of what only a sampled token has.
        let demonstration = !self.learning.reads_behavior();
        for (name, length, may_be_empty) in [
            ("mask", rollout.mask.len(), false),
            ("logp_behavior", rollout.logp_behavior.len(), demonstration),
            ("advantage", rollout.advantage.len(), demonstration),
            ("logp_reference", rollout.logp_reference.len(), !self.learning.reference.is_on()),
            ("value", rollout.value.len(), self.learning.critic.clip == 0.0),
        ] {
            if length != n && !(may_be_empty && length == 0) {
                return Err(refusal(rollout, format!("{n} tokens but {length} of {name}")));
            }
        }
        if let Some(why) = refused(rollout, &self.config) {
            return Err(refusal(rollout, why));
        }
        let Rollout { logp_behavior, advantage, logp_reference, .. } = rollout;
        for (name, numbers) in
            [("logp_behavior", logp_behavior), ("advantage", advantage), ("logp_reference", logp_reference)]
        {
            let broken = numbers.iter().zip(&rollout.mask).position(|(x, &chosen)| chosen && !x.is_finite());
            if let Some(t) = broken {
                return Err(refusal(rollout, format!("{name} of token {t} is {}", numbers[t])));
            }
        }
        if self.learning.value_coef != 0.0 && !rollout.used_reward().is_some_and(f32::is_finite) {
            return Err(refusal(rollout, format!("reward {:?}: the critic needs a number", rollout.used_reward())));
        }
        Ok(())
    }

    /// Forgets the gradient.
    fn clear(&mut self) -> Result<()> {
        let _ = self.gradient.f_zero_()?;
        Ok(())
    }

    /// Plans the step: weights over the whole batch, then micro-batches of what has a gradient.
    fn planned(&self, batch: &[Rollout]) -> Result<(Vec<f32>, Plan), Fault> {
        let weights = kept::weights(&self.learning, batch);
        let trained: Vec<usize> = (0..batch.len()).filter(|&i| weights[i] != 0.0).collect();
        trained.iter().try_for_each(|&i| self.check(&batch[i]))?;
        let plan = planned(batch, &trained, self.learning.micro_batch_tokens);
        Ok((weights, plan))
    }

    /// Adds one micro-batch to the gradient.
    fn micro_batch(&self, open: &mut Open) -> Result<()> {
        let trees = &open.plan.micro_batches[open.done].trees;
        let device = self.flat.device();
        let started = thread_ns();
        let micro_batch = MicroBatch::new(&open.batch, trees, device)?;
        let (outputs, trail) = self.forward(&micro_batch, open.step)?;
        let said = to_host(&outputs)?;
        open.torch_ns += thread_ns() - started;
        let mut coefficients = Vec::with_capacity(said.len());
        for &i in trees.iter().flatten() {
            let rollout = &mut open.batch[i];
            let of_rollout = &said[coefficients.len()..][..rollout.tokens.len()];
            open.tally.add(&self.learning, rollout, open.weights[i], of_rollout, &mut coefficients);
        }
        open.done += 1;
        // Nothing to learn from: a group whose advantages are all 0; or nothing that learns in this step.
        if !outputs.requires_grad() || coefficients.as_flattened().iter().all(|&c| c == 0.0) {
            return Ok(());
        }
        let started = thread_ns();
        let coefficients = Tensor::f_from_slice(coefficients.as_flattened())?.f_view([-1, 3])?.f_to_device(device)?;
        outputs.f_mul(&coefficients)?.f_sum(Kind::Float)?.f_backward()?;
        if let Some(trail) = trail {
            trail.back(&self.model)?;
        }
        open.torch_ns += thread_ns() - started;
        Ok(())
    }

    /// What the model says of the micro-batch's tokens, with a graph of what learns in this step; and the trail back through it.
    fn forward<'a>(&self, micro_batch: &'a MicroBatch, step: Step) -> Result<(Tensor, Option<Trail<'a>>)> {
        let (model, trees) = (&self.model, micro_batch.trees());
        if self.learning.warms_up(step) {
            let hidden = no_grad(|| model.hidden(trees))?;
            return Ok((micro_batch.outputs_for_head(model, &hidden, self.temperature)?, None));
        }
        let (hidden, trail) = if self.learning.activation_checkpointing {
            let (hidden, trail) = Trail::walk(model, trees)?;
            (hidden, Some(trail))
        } else {
            (model.hidden(trees)?, None)
        };
        let outputs = match self.learning.objective {
            Objective::Policy => micro_batch.outputs(model, &hidden, self.temperature)?,
            Objective::Values => micro_batch.values(model, &hidden)?,
        };
        Ok((outputs, trail))
    }

    /// Learning rates of a step, and what they come to for the optimizer: of the policy, of the critic's head.
    fn rates(&self, metrics: &mut Metrics) -> [Option<f64>; 2] {
        let (step, factor) = (metrics.step, self.learning.safeguard.lr_factor(metrics.ess));
        metrics.lr = self.learning.lr_at(step, self.steps) * factor;
        if self.learning.objective == Objective::Values {
            return [Some(metrics.lr); 2];
        }
        if self.learning.value_coef != 0.0 {
            metrics.critic_lr = self.learning.critic_lr_at(step, self.steps) * factor;
        }
        let learns = |lr| (!self.learning.warms_up(step)).then_some(lr);
        [learns(metrics.lr), if self.learning.value_coef != 0.0 { Some(metrics.critic_lr) } else { learns(metrics.lr) }]
    }

    /// Clips, updates, measures.
    fn update(&mut self, open: &mut Open) -> Result<Metrics> {
        let Open { step, batch, plan, tally, torch_ns, .. } = open;
        let (step, torch_ns) = (*step, *torch_ns);
        let started = thread_ns();
        let micro_batch_tokens = self.learning.micro_batch_tokens as u64;
        let mut metrics = Metrics { step, slots: plan.slots, micro_batch_tokens, ..tally.metrics(&self.learning) };
        let safeguard = self.learning.safeguard;
        metrics.left_out = kept::left_out(&self.learning, batch);
        let rates = self.rates(&mut metrics);
        metrics.skipped = plan.micro_batches.is_empty();
        if !metrics.skipped {
            metrics.grad_norm = clip(&mut self.gradient, self.learning.grad_clip)?;
            if !metrics.grad_norm.is_finite() {
                return Err(Error::engine(format!("gradient of step {step}"), format!("its norm is {}", metrics.grad_norm)));
            }
            // The critic's alone is none of those.
            metrics.skipped = !self.learning.warms_up(step) && safeguard.skips(metrics.grad_norm, &mut self.norms);
        }
        if !metrics.skipped {
            // From here on the weights are no longer those of the version before, whatever comes.
            self.version = step;
            self.optimizer.step_parts(&self.flat, &self.gradient, rates)?;
            if let Some(computed) = &mut self.computed {
                computed.f_copy_(&self.flat)?;
            }
            // A sum is finite only where all are: one pass, and nothing is kept.
            if !self.flat.f_sum(Kind::Float)?.f_double_value(&[])?.is_finite() {
                let why = format!("not finite after an update at learning rate {}: the run has diverged", metrics.lr);
                return Err(Error::engine(format!("weights of step {step}"), why));
            }
        }
        metrics.torch_ns = torch_ns + (thread_ns() - started);
        self.version = step;
        metrics.weights = hashes(&self.flat, &self.layout)?;
        self.drift.see(&metrics);
        if self.learning.objective == Objective::Policy {
            batch.iter_mut().filter(|rollout| rollout.trainable()).for_each(|rollout| rollout.status = Status::Trained);
        }
        Ok(metrics)
    }

    /// One piece of the open step: None while there is more to do.
    fn piece(&mut self, open: &mut Open) -> Result<Option<Metrics>> {
        if open.done == open.plan.micro_batches.len() {
            return self.update(open).map(Some);
        }
        let at = open.done;
        let done = self.micro_batch(open);
        #[cfg(test)]
        let done = done.and_then(|()| memory_tests::fits(self.room, open, at));
        match done {
            Err(error) if memory::ran_out(&error) => self.begin_smaller(open, at, error)?,
            done => done?,
        }
        Ok(None)
    }

    /// Begins the step anew, after the micro-batch `at` found no memory, with smaller ones from now on. What had been added goes: so the
    /// step is a function of its batch and of `micro_batch_tokens`, and a replay comes to its bits.
    fn begin_smaller(&mut self, open: &mut Open, at: usize, error: Error) -> Result<()> {
        let micro_batch = &open.plan.micro_batches[at];
        if micro_batch.rollouts() < 2 {
            return Err(Error::engine(format!("one rollout of {} tokens", micro_batch.tokens), error));
        }
        let lengths = |i: usize| (open.batch[i].group.prompt.tokens.len(), branch(&open.batch[i]).len());
        self.learning.micro_batch_tokens = smaller(micro_batch, lengths);
        let (weights, plan) = self.planned(&open.batch)?;
        self.clear()?;
        (open.weights, open.plan, open.done, open.tally) = (weights, plan, 0, self.tally());
        Ok(())
    }

    /// Of a step that begins.
    fn tally(&self) -> Tally {
        Tally::of(self.learning.reference.coefficient(self.drift))
    }
}

impl Learner for TorchLearner {
    type Weights = Snapshot;

    /// As the port says. Tokens that are masked have no gradient and count in no mean; a rollout without any other is not
    /// computed (its `logp_current` stays empty), and a batch of them leaves the weights as they are, at the next version.
    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        if self.open.is_some() || step != self.version + 1 {
            let state = if self.open.is_some() { "in the middle of a step" } else { "between steps" };
            return Err(fault(format!("step {step} cannot begin at version {}, {state}", self.version)));
        }
        match self.planned(&batch).and_then(|planned| self.clear().map(|()| planned).map_err(fault)) {
            Ok((weights, plan)) => {
                self.open = Some(Open { step, batch, weights, plan, done: 0, tally: self.tally(), torch_ns: 0 });
                Ok(())
            }
            Err(fault) => {
                self.failed = batch;
                Err(fault)
            }
        }
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let Some(mut open) = self.open.take() else { return Err(fault("no step has begun")) };
        match self.piece(&mut open) {
            Ok(Some(metrics)) => return Ok(Some(Trained { batch: open.batch, metrics })),
            Ok(None) => self.open = Some(open),
            Err(error) => {
                self.failed = open.batch;
                return Err(fault(error));
            }
        }
        Ok(None)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        std::mem::take(&mut self.failed)
    }

    fn weights(&mut self) -> Result<Snapshot, Fault> {
        Snapshot::copy_of(&self.flat).map_err(fault)
    }
}

fn refusal(rollout: &Rollout, reason: impl Display) -> Fault {
    fault(format!("group {} sample {}: {reason}", rollout.group.number, rollout.sample))
}

fn fault(message: impl Display) -> Fault {
    Fault::new("train", message)
}

#[cfg(test)]
mod critic_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod safeguard_tests;
#[cfg(test)]
pub(super) mod tests;
