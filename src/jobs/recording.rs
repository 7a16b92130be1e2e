//! A run's log as the source of a replay: its batches in order, and what each step must come to.

use crate::error::{Error, Result};
use crate::store::{RunFolder, StepFile, steps_after};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, Status, Step};
use tidegate_operators::recorded::Recorded;

/// One step as it was recorded.
#[derive(Clone, Debug, Default)]
pub struct RecordedStep {
    pub metrics: Metrics,
    /// The batch, in its order; discarded groups are left out.
    pub batch: Vec<Rollout>,
    /// Text of the specification that it was trained under.
    pub spec: String,
}

/// The recorded steps that were read and not yet compared: a handful, since a replay reads just ahead of itself.
#[derive(Clone, Debug, Default)]
pub struct Expected(Arc<Mutex<BTreeMap<Step, RecordedStep>>>);

impl Expected {
    /// The recorded step, out of the list.
    pub fn take(&self, step: Step) -> Option<RecordedStep> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&step)
    }

    /// How a step that was read was trained: under which specification, in micro-batches of how many tokens, the policy's and those of a
    /// separate critic.
    pub fn trained(&self, step: Step) -> Option<(String, [u64; 2])> {
        let recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = |m: &Metrics| [m.micro_batch_tokens, m.critic_micro_batch_tokens];
        recorded.get(&step).map(|recorded| (recorded.spec.clone(), tokens(&recorded.metrics)))
    }

    fn put(&self, step: Step, recorded: RecordedStep) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(step, recorded);
    }
}

/// The groups of a log's batches, read one step at a time.
pub struct Recording {
    steps: Box<dyn Iterator<Item = Result<StepFile>> + Send>,
    groups: VecDeque<Vec<Rollout>>,
    expected: Expected,
    next: Step,
}

impl Recording {
    /// Some steps of a run.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn open(folder: &RunFolder, wanted: RangeInclusive<Step>) -> Result<Recording> {
        let (next, last) = wanted.into_inner();
        let steps = steps_after(folder, next - 1)?.take((last + 1).saturating_sub(next) as usize);
        Ok(Recording { steps: Box::new(steps), groups: VecDeque::new(), expected: Expected::default(), next })
    }

    /// What the steps must come to, filled as they are read.
    pub fn expected(&self) -> Expected {
        self.expected.clone()
    }

    fn read(&mut self, file: StepFile) -> Result<()> {
        let StepFile { path, footer, rollouts, .. } = file;
        if footer.step != self.next {
            let why = format!("seals step {}, expected step {}: a file of the log is missing", footer.step, self.next);
            return Err(Error::file(path, why));
        }
        self.next += 1;
        let Some(metrics) = footer.metrics else {
            return Err(Error::file(path, "its footer has no metrics to compare with"));
        };
        let trained: HashSet<u64> =
            rollouts.iter().filter(|r| r.status == Status::Trained).map(|r| r.group.number).collect();
        let batch: Vec<Rollout> = rollouts.into_iter().filter(|r| trained.contains(&r.group.number)).collect();
        self.groups.extend(batch.chunk_by(|a, b| a.group.number == b.group.number).map(<[Rollout]>::to_vec));
        self.expected.put(footer.step, RecordedStep { metrics, batch, spec: footer.info.spec });
        Ok(())
    }
}

impl Recorded for Recording {
    fn next(&mut self) -> Result<Option<Vec<Rollout>>, Fault> {
        while self.groups.is_empty() {
            let Some(step) = self.steps.next() else { return Ok(None) };
            step.and_then(|step| self.read(step)).map_err(|e| Fault::new("recorded", e))?;
        }
        Ok(self.groups.pop_front())
    }
}
