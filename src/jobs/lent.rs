//! A learner that comes back: a dataflow drops its ports on a worker's thread, and what the learner has become is wanted after.

use std::sync::{Arc, Mutex, PoisonError};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Rollout, Step};
use tidegate_operators::train::{Learner, Trained};

/// Where a learner comes home to.
#[derive(Debug)]
pub struct Home<L>(Arc<Mutex<Option<L>>>);

impl<L> Home<L> {
    /// The learner, if its dataflow is over.
    pub fn take(&self) -> Option<L> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A learner that goes home when it is dropped.
pub struct Lent<L> {
    learner: Option<L>,
    home: Arc<Mutex<Option<L>>>,
}

impl<L> Lent<L> {
    pub fn new(learner: L) -> (Self, Home<L>) {
        let home = Arc::default();
        (Lent { learner: Some(learner), home: Arc::clone(&home) }, Home(home))
    }

    /// The learner.
    ///
    /// # Errors
    /// None is left: it is home.
    pub fn get(&mut self) -> Result<&mut L, Fault> {
        self.learner.as_mut().ok_or_else(|| Fault::new("train", "the learner is gone"))
    }
}

impl<L> Drop for Lent<L> {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = self.learner.take();
    }
}

impl<L: Learner> Learner for Lent<L> {
    type Weights = L::Weights;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        self.get()?.begin(step, batch)
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        self.get()?.work()
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        self.learner.as_mut().map(L::abandon).unwrap_or_default()
    }

    fn weights(&mut self) -> Result<L::Weights, Fault> {
        self.get()?.weights()
    }
}
