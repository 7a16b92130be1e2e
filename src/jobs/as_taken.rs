//! A step's batch as it was taken: what a wrapper around the learner gives back of a step that fails, so that it can be taken again.

use tidegate_operators::fault::Fault;
use tidegate_operators::record::Rollout;

/// What wrappers change of a batch's rollouts, as it came; and a batch that went no further than the wrapper.
#[derive(Debug, Default)]
pub struct AsTaken {
    lists: Vec<Lists>,
    refused: Vec<Rollout>,
}

#[derive(Debug)]
struct Lists {
    value: Vec<f32>,
    advantage: Vec<f32>,
}

impl AsTaken {
    /// Keeps the values and advantages of a batch that is about to be changed.
    pub fn keep(&mut self, batch: &[Rollout]) {
        let lists = |r: &Rollout| Lists { value: r.value.clone(), advantage: r.advantage.clone() };
        self.lists = batch.iter().map(lists).collect();
    }

    /// The advantages that are kept, in the batch's order.
    pub fn advantages(&self) -> impl Iterator<Item = &[f32]> {
        self.lists.iter().map(|lists| lists.advantage.as_slice())
    }

    /// The step is done, or a new one begins.
    pub fn forget(&mut self) {
        self.lists.clear();
    }

    /// Keeps a batch that a fault kept from going further, and hands on the fault.
    pub fn refuse(&mut self, batch: Vec<Rollout>, fault: Fault) -> Fault {
        self.refused = batch;
        fault
    }

    /// The batch as it came: the refused one, or the one that `further`, the wrapped learner, gives back.
    pub fn give_back(&mut self, further: impl FnOnce() -> Vec<Rollout>) -> Vec<Rollout> {
        let mut batch = std::mem::take(&mut self.refused);
        if batch.is_empty() {
            batch = further();
        }
        if batch.len() == self.lists.len() {
            for (rollout, Lists { value, advantage }) in batch.iter_mut().zip(self.lists.drain(..)) {
                (rollout.value, rollout.advantage) = (value, advantage);
            }
        }
        batch
    }
}
