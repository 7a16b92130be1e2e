//! Gradient steps on the tables: AdamW, one micro-batch a call, the same bits every time.

use super::policy::{ToyWeights, divisor, log_softmax};
use crate::engine::critic::Objective;
use crate::engine::kept;
use crate::engine::reference::Drift;
use crate::engine::spec::{Learning, Sampling};
use crate::engine::taking::{Computed, Place, Taking, Then};
use crate::engine::tally::{Said, Tally};
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Step, Version, now_ns};
use tidegate_operators::train::{Learner, Trained};

/// The toy engine's training half. A clone goes on from where the original was: it serves as a checkpoint.
#[derive(Clone, Debug)]
pub struct ToyLearner {
    learning: Learning,
    /// Steps of the whole run, for the schedule of the learning rate.
    steps: u64,
    temperature: f32,
    version: Version,
    weights: ToyWeights,
    /// Of the logits, then of the values.
    moments: [Moments; 2],
    /// Steps in which each was updated.
    updates: [i32; 2],
    /// What decides whether a step takes its gradient, and the gradient that waits for the next one's.
    taking: Taking,
    held: Option<[Vec<f32>; 2]>,
    /// From the reference policy, in the last step.
    drift: Drift,
    open: Option<Open>,
    /// The batch of a step that failed.
    failed: Vec<Rollout>,
}

impl ToyLearner {
    /// A learner that starts from `weights` as version `version`. A value coefficient above 0 gives them a critic where they
    /// have none.
    pub fn new(weights: ToyWeights, version: Version, learning: Learning, sampling: &Sampling, steps: u64) -> Self {
        let lacks = learning.value_coef > 0.0 && weights.values.is_empty();
        let weights = if lacks { weights.with_critic() } else { weights };
        let moments = [Moments::new(weights.logits.len()), Moments::new(weights.values.len())];
        let temperature = divisor(sampling);
        let (taking, drift) = (Taking::default(), Drift::default());
        ToyLearner {
            learning,
            steps,
            temperature,
            version,
            weights,
            moments,
            updates: [0; 2],
            taking,
            held: None,
            drift,
            open: None,
            failed: Vec::new(),
        }
    }

    /// The last step that is done.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Learns so from its next step on, towards `steps` steps.
    pub fn relearn(&mut self, learning: &Learning, steps: Step) {
        (self.learning, self.steps) = (learning.clone(), steps);
    }

    /// Goes by what these steps measured, those before its next one.
    pub fn recall(&mut self, before: &[Metrics]) {
        self.taking.recall(&self.learning, before);
        self.drift = Drift::after(before);
    }

    /// Why a step's gradient or weights may not be published, where they may not.
    fn lost(&self, metrics: &Metrics) -> Option<String> {
        if !metrics.grad_norm.is_finite() {
            return Some(format!("the norm of its gradient is {}", metrics.grad_norm));
        }
        let mut weights = self.weights.logits.iter().chain(self.weights.values.iter());
        let broken = weights.any(|weight| !weight.is_finite());
        broken.then(|| {
            format!("its weights are not finite after an update at learning rate {}: the run has diverged", metrics.lr)
        })
    }

    /// What it remembers besides its weights.
    pub fn optimizer(&self) -> ToyOptimizer {
        let moments = self.moments.clone().map(|Moments { first, second }| [first, second]);
        ToyOptimizer { moments, updates: self.updates.map(|updates| updates as u64) }
    }

    /// Goes on with what another remembered.
    ///
    /// # Errors
    /// Moments of other tables.
    pub fn restore(&mut self, optimizer: ToyOptimizer) -> Result<(), String> {
        for (mine, [first, second]) in self.moments.iter().zip(&optimizer.moments) {
            if [first.len(), second.len()] != [mine.first.len(); 2] {
                return Err(format!(
                    "moments of {} and {} numbers, expected {}",
                    first.len(),
                    second.len(),
                    mine.first.len()
                ));
            }
        }
        self.moments = optimizer.moments.map(|[first, second]| Moments { first, second });
        self.updates = optimizer.updates.map(|updates| i32::try_from(updates).unwrap_or(i32::MAX));
        Ok(())
    }

    /// Why a rollout that is to be trained cannot be.
    fn refuse(&self, rollout: &Rollout) -> Option<String> {
        let n = rollout.tokens.len();
        let sampled = self.learning.reads_behavior();
        let lists = [
            ("mask", rollout.mask.len(), true),
            ("version", rollout.version.len(), sampled),
            ("logp_behavior", rollout.logp_behavior.len(), sampled),
            ("advantage", rollout.advantage.len(), sampled),
            ("logp_reference", rollout.logp_reference.len(), self.learning.reference.is_on() && self.trains(rollout)),
            ("value", rollout.value.len(), self.learning.critic.clip > 0.0),
        ];
        if let Some((name, length, _)) = lists.iter().find(|(_, length, needed)| *needed && *length != n) {
            return Some(format!("{name} has {length} entries for {n} tokens"));
        }
        let ids = rollout.group.prompt.tokens.iter().chain(&rollout.tokens);
        if let Some(id) = ids.into_iter().find(|&&id| id as usize >= self.weights.vocab) {
            return Some(format!("id {id} is not below the vocabulary's {}", self.weights.vocab));
        }
        let newest = rollout.version.iter().max().filter(|&&newest| newest > self.version)?;
        Some(format!("a token was sampled by version {newest}, later than the learner's {}", self.version))
    }

    /// Whether some token of a rollout is trained: what is not computed has no reference either.
    fn trains(&self, rollout: &Rollout) -> bool {
        kept::kept(&self.learning, rollout).contains(&true)
    }

    /// Forward and backward of one rollout, whose tokens weigh `weight` each in the batch's loss.
    fn backward(&self, rollout: &mut Rollout, weight: f32, gradient: &mut [Vec<f32>; 2], tally: &mut Tally) {
        let prompt = &rollout.group.prompt.tokens;
        let contexts = (0..rollout.tokens.len()).map(|t| self.weights.context(prompt, &rollout.tokens[..t]));
        let contexts = contexts.collect::<Vec<_>>();
        let logps = contexts.iter().map(|&c| log_softmax(self.weights.row(c), self.temperature)).collect::<Vec<_>>();
        let entropies = logps.iter().map(|logps| -logps.iter().map(|l| l.exp() * l).sum::<f32>()).collect::<Vec<_>>();
        let said = (0..contexts.len()).map(|t| {
            let value = self.weights.value(contexts[t]).unwrap_or_default();
            [logps[t][rollout.tokens[t] as usize], entropies[t], value]
        });
        let said = said.collect::<Vec<Said>>();
        let mut coefficients = Vec::with_capacity(said.len());
        tally.add(&self.learning, rollout, weight, &said, &mut coefficients);
        let (policy, critic) = gradient.split_at_mut(1);
        for (t, [logp, entropy, value]) in coefficients.into_iter().enumerate().filter(|&(t, _)| rollout.mask[t]) {
            let row = contexts[t] * self.weights.vocab..(contexts[t] + 1) * self.weights.vocab;
            let coefficients = Coefficients { logp, entropy, temperature: self.temperature };
            coefficients.spread(&logps[t], rollout.tokens[t], entropies[t], &mut policy[0][row]);
            if let Some(slot) = critic[0].get_mut(contexts[t]) {
                *slot += value;
            }
        }
    }

    /// Learning rates of a step for logits and values; what has none does not learn.
    fn rates(&self, metrics: &mut Metrics, factor: f64) -> [Option<f64>; 2] {
        let learning = &self.learning;
        metrics.lr = learning.lr_at(self.version, self.steps) * factor;
        if learning.objective == Objective::Values {
            return [None, Some(metrics.lr)];
        }
        if learning.value_coef != 0.0 {
            metrics.critic_lr = learning.critic_lr_at(self.version, self.steps) * factor;
        }
        [Some(metrics.lr).filter(|_| !learning.warms_up(self.version)), Some(metrics.critic_lr)]
    }

    /// The optimizer step. Without a token to train, or with a gradient that waits, or that is an outlier, the weights stay as they
    /// are.
    fn update(&mut self, mut gradient: [Vec<f32>; 2], computed: Computed, metrics: &mut Metrics) {
        let safeguard = self.learning.safeguard;
        self.version += 1;
        let sum = self.taking.sum(&self.learning, computed, Place::of(self.version, self.steps), metrics);
        if let Some(held) = self.held.take() {
            for (own, held) in gradient.iter_mut().flatten().zip(held.iter().flatten()) {
                *own = (sum.own * f64::from(*own) + sum.held * f64::from(*held)) as f32;
            }
        }
        let factor = safeguard.lr_factor(sum.ess(metrics.ess));
        let rates = self.rates(metrics, factor);
        for (gradient, _) in gradient.iter_mut().zip(rates).filter(|(_, rate)| rate.is_none()) {
            gradient.fill(0.0);
        }
        let squares = gradient.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
        metrics.grad_norm = squares.sqrt();
        metrics.skipped = sum.then != Then::Take || self.taking.outlies(&self.learning, metrics);
        if sum.then == Then::Hold {
            self.held = Some(gradient.clone());
        }
        if !metrics.skipped {
            let clip = self.learning.grad_clip;
            let cut = if clip > 0.0 && metrics.grad_norm > clip { clip / metrics.grad_norm } else { 1.0 };
            let tables = [&mut self.weights.logits, &mut self.weights.values];
            let parts = tables.into_iter().zip(&mut self.moments).zip(&gradient).zip(&mut self.updates).zip(rates);
            for ((((table, moments), gradient), updates), rate) in parts {
                let Some(lr) = rate else { continue };
                *updates += 1;
                let rule = AdamW { learning: &self.learning, lr, cut, updates: *updates };
                // Copies the table where a snapshot still shares it.
                let table: &mut Vec<f32> = Arc::make_mut(table);
                rule.update(table, moments, gradient);
            }
        }
        self.taking.done(metrics);
        metrics.weights = self.weights.hashes();
        metrics.finished_ns = now_ns();
    }
}

impl Learner for ToyLearner {
    type Weights = ToyWeights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        if self.open.is_some() || step != self.version + 1 {
            let state = if self.open.is_some() { "in" } else { "before" };
            return Err(Fault::new("train", format!("step {step} cannot begin {state} step {}", self.version + 1)));
        }
        for rollout in batch.iter().filter(|r| r.trainable()) {
            if let Some(why) = self.refuse(rollout) {
                let (group, sample) = (rollout.group.number, rollout.sample);
                return Err(Fault::new("train", format!("rollout {sample} of group {group}: {why}")));
            }
        }
        let weights = kept::weights(&self.learning, &batch);
        let pieces = pieces(&batch, self.learning.micro_batch_tokens);
        let gradient = [vec![0.0; self.weights.logits.len()], vec![0.0; self.weights.values.len()]];
        let tally = Tally::of(self.learning.reference.coefficient(self.drift));
        self.open = Some(Open { step, batch, weights, pieces, gradient, slots: 0, tally });
        Ok(())
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let Some(mut open) = self.open.take() else {
            return Err(Fault::new("train", "work without a step that began"));
        };
        if let Some(piece) = open.pieces.pop() {
            let computed = |&i: &usize| open.weights[i] != 0.0;
            for i in piece.filter(computed).collect::<Vec<_>>() {
                open.slots += open.batch[i].tokens.len() as u64;
                self.backward(&mut open.batch[i], open.weights[i], &mut open.gradient, &mut open.tally);
            }
            self.open = Some(open);
            return Ok(None);
        }
        let metrics = open.tally.metrics(&self.learning);
        let micro_batch_tokens = self.learning.micro_batch_tokens as u64;
        let left_out = kept::left_out(&self.learning, &open.batch);
        let mut metrics = Metrics { step: open.step, slots: open.slots, micro_batch_tokens, left_out, ..metrics };
        self.update(mem::take(&mut open.gradient), open.tally.computed(), &mut metrics);
        if let Some(why) = self.lost(&metrics) {
            self.failed = open.batch;
            return Err(Fault::new("train", format!("step {}: {why}", metrics.step)));
        }
        self.drift.see(&metrics);
        Ok(Some(Trained { batch: open.batch, metrics }))
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        mem::take(&mut self.failed)
    }

    fn weights(&mut self) -> Result<ToyWeights, Fault> {
        Ok(self.weights.clone())
    }
}

/// A step between `begin` and its update.
#[derive(Clone, Debug)]
struct Open {
    step: Step,
    batch: Vec<Rollout>,
    /// `[batch]` weight of each rollout's tokens in the loss.
    weights: Vec<f32>,
    /// Micro-batches to do, the next one last.
    pieces: Vec<Range<usize>>,
    gradient: [Vec<f32>; 2],
    /// Tokens computed.
    slots: u64,
    tally: Tally,
}

/// Cuts the batch into runs of rollouts of at most `most` tokens together, or of one rollout; the first comes last.
fn pieces(batch: &[Rollout], most: usize) -> Vec<Range<usize>> {
    let (mut pieces, mut start, mut tokens) = (Vec::new(), 0, 0);
    for (i, rollout) in batch.iter().enumerate() {
        if i > start && tokens + rollout.tokens.len() > most {
            pieces.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += rollout.tokens.len();
    }
    if start < batch.len() {
        pieces.push(start..batch.len());
    }
    pieces.reverse();
    pieces
}

/// What one token's log-probability and entropy are multiplied by in the loss.
struct Coefficients {
    logp: f32,
    entropy: f32,
    temperature: f32,
}

impl Coefficients {
    /// Adds the gradient with respect to the `[V]` logits behind `logps`, of which `token` was chosen.
    ///
    /// With `p = softmax(logits / T)`: d logp / d logit_j = (1 if j is the token, else 0, - p_j) / T, and
    /// d entropy / d logit_j = -p_j (log p_j + entropy) / T.
    fn spread(&self, logps: &[f32], token: u32, entropy: f32, gradient: &mut [f32]) {
        for (j, (slot, logp)) in gradient.iter_mut().zip(logps).enumerate() {
            let p = logp.exp();
            let chosen = if j == token as usize { 1.0 } else { 0.0 };
            *slot += (self.logp * (chosen - p) - self.entropy * p * (logp + entropy)) / self.temperature;
        }
    }
}

/// What the learner remembers between steps.
#[derive(Clone, Debug, PartialEq)]
pub struct ToyOptimizer {
    /// Of the logits, then of the values: running means of the gradient, and of its square.
    pub moments: [[Vec<f32>; 2]; 2],
    /// Steps in which each was updated.
    pub updates: [u64; 2],
}

/// Running means of the gradient and of its square.
#[derive(Clone, Debug)]
struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
}

impl Moments {
    fn new(n: usize) -> Self {
        Moments { first: vec![0.0; n], second: vec![0.0; n] }
    }
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).
struct AdamW<'a> {
    learning: &'a Learning,
    lr: f64,
    /// What the gradient is multiplied by, so that its norm keeps the limit.
    cut: f64,
    /// Updates so far, this one included.
    updates: i32,
}

impl AdamW<'_> {
    fn update(&self, table: &mut [f32], moments: &mut Moments, gradient: &[f32]) {
        let Learning { beta1, beta2, eps, weight_decay, .. } = *self.learning;
        let (bias1, bias2) = (1.0 - beta1.powi(self.updates), 1.0 - beta2.powi(self.updates));
        let moments = moments.first.iter_mut().zip(&mut moments.second);
        for ((weight, (first, second)), gradient) in table.iter_mut().zip(moments).zip(gradient) {
            let g = f64::from(*gradient) * self.cut;
            let m = beta1 * f64::from(*first) + (1.0 - beta1) * g;
            let v = beta2 * f64::from(*second) + (1.0 - beta2) * g * g;
            let step = m / bias1 / ((v / bias2).sqrt() + eps) + weight_decay * f64::from(*weight);
            (*first, *second) = (m as f32, v as f32);
            *weight = (f64::from(*weight) - self.lr * step) as f32;
        }
    }
}

#[cfg(test)]
#[path = "learner_tests.rs"]
mod tests;
