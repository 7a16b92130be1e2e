//! Advantages that are a matter of the whole batch: whitened where the batch is first known, as the learner takes it.
//!
//! `estimate` sees a group at a time, on the worker that sampled it, and batches are formed by `train`. So a step's batch is
//! whitened between the two, by this wrapper around the learner: the step trains on what it made, and the log keeps that. A
//! replay forms the same batches from the log, in the same order, and so makes the same of them, bit for bit.

use crate::jobs::as_taken::AsTaken;
use crate::kernel::whiten::{Row, whiten};
use crate::spec::Spec;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Rollout, Step};
use tidegate_operators::train::{Learner, Trained};

/// A learner whose batches are whitened first, where the specification says so.
pub struct Whitening<L> {
    learner: L,
    whitens: Whitens,
    taken: AsTaken,
}

/// Whether batches are whitened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whitens {
    Nothing,
    Batch,
}

impl Whitens {
    /// As the specification says.
    pub fn of(spec: &Spec) -> Self {
        if spec.whitens() { Whitens::Batch } else { Whitens::Nothing }
    }
}

/// Whitens the advantages of a batch over its trained tokens.
///
/// # Errors
/// A rollout whose advantages are not as many as its tokens; the batch is as it was then.
pub fn whiten_batch(batch: &mut [Rollout]) -> Result<(), Fault> {
    let lists = |rollout: &&Rollout| rollout.trainable() && rollout.advantage.len() != rollout.mask.len();
    if let Some(Rollout { group, sample, advantage, mask, .. }) = batch.iter().find(lists) {
        let why = format!("advantage has {} entries and mask {}", advantage.len(), mask.len());
        return Err(Fault::new("train", format!("group {}, sample {sample}: {why}", group.number)));
    }
    let trained = batch.iter_mut().filter(|rollout| rollout.trainable());
    let mut rows: Vec<Row<'_>> = trained.map(|r| Row { advantage: &mut r.advantage, mask: &r.mask }).collect();
    whiten(&mut rows);
    Ok(())
}

impl<L: Learner> Whitening<L> {
    /// Where a separate critic makes the advantages of a batch, later, they are whitened there.
    pub fn new(spec: &Spec, learner: L) -> Self {
        let whitens = if spec.has_separate_critic() { Whitens::Nothing } else { Whitens::of(spec) };
        Whitening { learner, whitens, taken: AsTaken::default() }
    }
}

impl<L: Learner> Learner for Whitening<L> {
    type Weights = L::Weights;

    fn begin(&mut self, step: Step, mut batch: Vec<Rollout>) -> Result<(), Fault> {
        if self.whitens == Whitens::Batch {
            self.taken.keep(&batch);
            if let Err(fault) = whiten_batch(&mut batch) {
                return Err(self.taken.refuse(batch, fault));
            }
        }
        self.learner.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let trained = self.learner.work()?;
        if trained.is_some() {
            self.taken.forget();
        }
        Ok(trained)
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        self.taken.give_back(|| self.learner.abandon())
    }

    fn weights(&mut self) -> Result<L::Weights, Fault> {
        self.learner.weights()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::{Group, Metrics, Reason, Status};

    /// Gives a batch back as it took it, after one call that only works; or fails in it.
    #[derive(Default)]
    struct Echo {
        batch: Vec<Rollout>,
        calls: u64,
        fails: Option<Fault>,
    }

    impl Learner for Echo {
        type Weights = u64;

        fn begin(&mut self, _: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
            self.batch = batch;
            Ok(())
        }

        fn work(&mut self) -> Result<Option<Trained>, Fault> {
            self.calls += 1;
            if let Some(fault) = self.fails.take() {
                return Err(fault);
            }
            let done = self.calls.is_multiple_of(2);
            Ok(done.then(|| Trained { batch: std::mem::take(&mut self.batch), metrics: Metrics::default() }))
        }

        fn abandon(&mut self) -> Vec<Rollout> {
            std::mem::take(&mut self.batch)
        }

        fn weights(&mut self) -> Result<u64, Fault> {
            Ok(7)
        }
    }

    fn spec(advantage: &str, whiten: &str) -> Spec {
        let text = "model.engine = \"toy\"\n[[task]]\nkind = \"sorting\"\n";
        Spec::from_text(text, &[format!("estimate.advantage={advantage}"), format!("estimate.whiten={whiten}")]).unwrap()
    }

    fn rollout(number: u64, reward: f32, mask: &[bool]) -> Rollout {
        let group = Arc::new(Group { number, ..Group::default() });
        Rollout { group, advantage: vec![reward; mask.len()], mask: mask.to_vec(), ..Rollout::default() }
    }

    fn batch() -> Vec<Rollout> {
        let refused = Rollout { status: Status::Discarded(Reason::NoReward), ..rollout(1, 9.0, &[true]) };
        vec![rollout(0, 1.0, &[true, true, false]), refused, rollout(2, 0.0, &[true]), rollout(3, 5.0, &[false])]
    }

    fn trained(whitening: &mut Whitening<Echo>) -> Vec<Vec<f32>> {
        whitening.begin(1, batch()).unwrap();
        assert!(whitening.work().unwrap().is_none());
        let trained = whitening.work().unwrap().unwrap();
        trained.batch.into_iter().map(|rollout| rollout.advantage).collect()
    }

    /// Of 1, 1, 0 over two groups: mean 2/3, deviation sqrt(1/3). Catches statistics of each group by itself (all 0), a
    /// masked token or a rollout that is not trained in them, and either of them changed to something that is not 0.
    #[test]
    fn a_batch_is_whitened_over_its_trained_tokens() {
        for (advantage, whiten) in [("batch_normalised", "off"), ("reinforce", "batch"), ("batch_normalised", "batch")] {
            let mut whitening = Whitening::new(&spec(advantage, whiten), Echo::default());
            let found = trained(&mut whitening);
            assert_eq!(found, [vec![0.577_350_26, 0.577_350_26, 0.0], vec![9.0], vec![-1.154_700_5], vec![0.0]]);
            assert_eq!(whitening.weights(), Ok(7));
        }
    }

    #[test]
    fn without_the_key_a_batch_is_as_it_was() {
        let found = trained(&mut Whitening::new(&spec("reinforce", "off"), Echo::default()));
        assert_eq!(found, batch().into_iter().map(|rollout| rollout.advantage).collect::<Vec<_>>());
    }

    /// Catches a batch that goes to the log whitened, and would be whitened again when the run goes on.
    #[test]
    fn a_step_that_fails_gives_its_batch_back_as_it_was() {
        let fails = Some(Fault::new("train", "planted"));
        let mut whitening = Whitening::new(&spec("batch_normalised", "off"), Echo { fails, ..Echo::default() });
        whitening.begin(1, batch()).unwrap();
        assert!(whitening.work().is_err());
        assert_eq!(whitening.abandon(), batch());
    }

    /// Catches a panic on rows whose lists differ, and rows that are lost with the fault.
    #[test]
    fn lists_of_different_lengths_are_a_fault() {
        let mut whitening = Whitening::new(&spec("batch_normalised", "off"), Echo::default());
        let mut wrong = batch();
        wrong[2].advantage.clear();
        let fault = whitening.begin(1, wrong.clone()).unwrap_err();
        assert_eq!(fault.message, "group 2, sample 0: advantage has 0 entries and mask 1");
        assert_eq!(whitening.abandon(), wrong, "its rows go to the log all the same");
    }
}
