//! A log that also writes TensorBoard's events of each step that it has sealed.

use crate::error::Result;
use crate::jobs::say;
use crate::spec::Spec;
use crate::store::RunFolder;
use crate::store::events::Events;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, SealedStep};
use tidegate_operators::seal::Log;

/// The log, and the events where the specification wants them.
pub struct TensorBoard<D> {
    log: D,
    events: Option<Events>,
}

impl<D> TensorBoard<D> {
    /// Around the log of a run that starts or goes on: the events agree with what is sealed from here on. A run does not need them, so
    /// what cannot be written is said, and made up for when the run goes on later.
    pub fn new(spec: &Spec, folder: &RunFolder, log: D) -> Self {
        let events = spec.metrics.tensorboard.then(|| Events::open(folder));
        TensorBoard { log, events: events.and_then(|events| events.map_err(|e| missed(&e)).ok()) }
    }

    fn add(&mut self, metrics: &Metrics) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.add(metrics))
    }
}

fn missed(error: &crate::error::Error) {
    say(format_args!("note      no TensorBoard events from here on: {error}; a resume adds what is missing"));
}

impl<D: Log> Log for TensorBoard<D> {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        let metrics = self.events.as_ref().and(step.metrics.as_ref()).cloned();
        self.log.seal(step)?;
        if let Some(Err(error)) = metrics.map(|metrics| self.add(&metrics)) {
            missed(&error);
            self.events = None;
        }
        Ok(())
    }
}
