//! The training accelerators together: a micro-batch of all of them is one sleep, and the weights are a digest of what was trained.

use super::device::Device;
use super::engine::EmulatedWeights;
use super::generator::logp;
use crate::engine::kept;
use crate::engine::spec::Learning;
use crate::engine::tally::{Said, Tally};
use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::time::Instant;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Step, Version, now_ns};
use tidegate_operators::train::{Learner, Trained};

/// The emulation's training half.
#[derive(Clone, Debug)]
pub struct EmulatedLearner {
    device: Device,
    weights: EmulatedWeights,
    learning: Learning,
    /// Steps of the whole run, for the schedule of the learning rate.
    steps: Step,
    version: Version,
    open: Option<Open>,
}

/// A step between `begin` and its update.
#[derive(Clone, Debug)]
struct Open {
    batch: Vec<Rollout>,
    /// `[batch]` weight of each rollout's tokens in the loss.
    weights: Vec<f32>,
    pieces: VecDeque<Range<usize>>,
    tally: Tally,
    slots: u64,
    digest: blake3::Hasher,
}

impl EmulatedLearner {
    /// A learner that starts from `weights` as version `version`.
    pub fn new(device: Device, weights: EmulatedWeights, learning: Learning, steps: Step, version: Version) -> Self {
        EmulatedLearner { device, weights, learning, steps, version, open: None }
    }

    /// The last step that is done.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its weights.
    pub fn digest(&self) -> EmulatedWeights {
        self.weights
    }

    /// Learns so from its next step on, towards `steps` steps.
    pub fn relearn(&mut self, learning: &Learning, steps: Step) {
        (self.learning, self.steps) = (learning.clone(), steps);
    }

    /// One piece: what a loss makes of it, and the time that it takes.
    fn piece(&self, open: &mut Open, piece: Range<usize>) {
        let started = Instant::now();
        let (mut tokens, mut coefficients) = (0, Vec::new());
        for i in piece {
            let (rollout, weight) = (&mut open.batch[i], open.weights[i]);
            if weight == 0.0 {
                continue;
            }
            let said: Said = [logp(), -logp(), 0.0];
            coefficients.clear();
            open.tally.add(&self.learning, rollout, weight, &vec![said; rollout.tokens.len()], &mut coefficients);
            open.digest.update(&rollout.group.number.to_le_bytes()).update(&rollout.sample.to_le_bytes());
            for (id, version) in rollout.tokens.iter().zip(&rollout.version) {
                open.digest.update(&id.to_le_bytes()).update(&version.to_le_bytes());
            }
            tokens += rollout.tokens.len() as u64;
        }
        open.slots += tokens;
        self.device.train(tokens, started);
    }
}

impl Learner for EmulatedLearner {
    type Weights = EmulatedWeights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        if self.open.is_some() || step != self.version + 1 {
            let state = if self.open.is_some() { "in" } else { "before" };
            return Err(Fault::new("train", format!("step {step} cannot begin {state} step {}", self.version + 1)));
        }
        let weights = kept::weights(&self.learning, &batch);
        let pieces = pieces(&batch, self.learning.micro_batch_tokens.saturating_mul(self.device.learners()));
        let mut digest = blake3::Hasher::new();
        digest.update(&self.weights.0);
        self.open = Some(Open { batch, weights, pieces, tally: Tally::of(0.0), slots: 0, digest });
        Ok(())
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let Some(mut open) = self.open.take() else {
            return Err(Fault::new("train", "work without a step that began"));
        };
        if let Some(piece) = open.pieces.pop_front() {
            self.piece(&mut open, piece);
            self.open = Some(open);
            return Ok(None);
        }
        self.version += 1;
        self.weights = EmulatedWeights(*open.digest.finalize().as_bytes());
        let metrics = Metrics {
            step: self.version,
            slots: open.slots,
            micro_batch_tokens: self.learning.micro_batch_tokens as u64,
            lr: self.learning.lr_at(self.version, self.steps),
            enlarged: 1,
            weights: self.weights.hashes(),
            finished_ns: now_ns(),
            ..open.tally.metrics(&self.learning)
        };
        Ok(Some(Trained { batch: mem::take(&mut open.batch), metrics }))
    }

    fn weights(&mut self) -> Result<EmulatedWeights, Fault> {
        Ok(self.weights)
    }
}

/// Cuts the batch into runs of rollouts of at most `most` tokens together, or of one rollout.
fn pieces(batch: &[Rollout], most: usize) -> VecDeque<Range<usize>> {
    let (mut pieces, mut start, mut tokens) = (VecDeque::new(), 0, 0);
    for (i, rollout) in batch.iter().enumerate() {
        if i > start && tokens + rollout.tokens.len() > most {
            pieces.push_back(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += rollout.tokens.len();
    }
    if start < batch.len() {
        pieces.push_back(start..batch.len());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::capacity::Speed;
    use std::sync::Arc;
    use std::time::Duration;
    use tidegate_operators::record::{Group, Reason, Status};

    fn learner(flash_s: f64) -> EmulatedLearner {
        let device = Device::new(Speed { train: 4.0, ..Speed::PAPER }, 2, 0.0, flash_s);
        let learning = Learning { micro_batch_tokens: 8, ..Learning::default() };
        EmulatedLearner::new(device, EmulatedWeights::initial(1), learning, 9, 0)
    }

    fn rollout(number: u64, length: usize) -> Rollout {
        let group = Arc::new(Group { number, size: 1, ..Group::default() });
        let (version, mask) = (vec![0; length], vec![true; length]);
        let logp_behavior = vec![logp(); length];
        Rollout {
            group,
            tokens: vec![1; length],
            version,
            mask,
            logp_behavior,
            advantage: vec![0.5; length],
            ..Rollout::default()
        }
    }

    fn step(learner: &mut EmulatedLearner, batch: Vec<Rollout>) -> Trained {
        learner.begin(learner.version() + 1, batch).unwrap();
        loop {
            if let Some(trained) = learner.work().unwrap() {
                return trained;
            }
        }
    }

    /// 12 + 6 tokens of what is trained on 2 accelerators of 8 each: two micro-batches, 18 * 4 / 2 flashes. Catches a discarded rollout that
    /// takes time, a micro-batch that does not grow with those that share it, and numbers of a loss that are not a policy's on policy.
    #[test]
    fn a_step_takes_its_tokens_time() {
        let mut learner = learner(1e-4);
        let refused = Rollout { status: Status::Discarded(Reason::NoReward), ..rollout(2, 100) };
        let trained = step(&mut learner, vec![rollout(0, 12), rollout(1, 6), refused]);
        let done = learner.device.emulated().micro_batches;
        // The one that is not trained is a micro-batch by itself, of nothing.
        assert_eq!((done.count, done.planned), (3, Duration::from_micros(3600)));
        let m = trained.metrics;
        assert_eq!((m.step, m.tokens, m.slots, m.rollouts, m.ess, m.kl_k3), (1, 18, 18, 2, 1.0, 0.0));
        assert!((m.entropy - f64::from(VOCAB_LOG)).abs() < 1e-6 && m.loss.is_finite(), "{m:?}");
        assert_eq!(trained.batch[0].logp_current, vec![logp(); 12]);
        assert_eq!(trained.batch.len(), 3);
    }

    const VOCAB_LOG: f32 = 3.526_360_5;

    /// Catches weights that do not depend on what was trained, in which order, or after what.
    #[test]
    fn weights_tell_what_was_trained() {
        let after = |batches: &[&[u64]]| {
            let mut learner = learner(0.0);
            for numbers in batches {
                step(&mut learner, numbers.iter().map(|&number| rollout(number, 4)).collect());
            }
            learner.weights().unwrap()
        };
        assert_eq!(after(&[&[1, 2], &[3]]), after(&[&[1, 2], &[3]]));
        for other in [&[&[2, 1][..], &[3]][..], &[&[1], &[2, 3]], &[&[1, 2], &[4]], &[&[1, 2]]] {
            assert_ne!(after(&[&[1, 2], &[3]]), after(other));
        }
        let mut learner = learner(0.0);
        assert!(learner.begin(2, Vec::new()).unwrap_err().message.contains("step 2 cannot begin before step 1"));
        assert!(learner.work().is_err());
    }
}
