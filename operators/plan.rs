//! The plan of a run: its size, its schedule, and which worker does what (floor 0).

use crate::balance::Balance;
use crate::record::Step;
use crate::schedule::{Schedule, WeightsUpdate};
use crate::start::Start;
use serde::{Deserialize, Serialize};
use std::fmt;

/// In which order waiting groups that the lag bound does not force are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As they arrive: short rollouts train at once, so the mean lag is low.
    #[default]
    Arrival,
    /// By admission number, waiting for each: batches do not depend on timing.
    Admission,
    /// By a fixed draw for each number: for schedules by turns, where all are there and the order of arrival is that of length.
    Shuffled,
}

/// What becomes of the last groups when the prompts end inside a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShortBatch {
    /// One more step, with fewer groups.
    #[default]
    Train,
    /// They are discarded, reason "data ended".
    Discard,
}

/// The plan of a run. Every worker must have the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Where the run starts, or goes on.
    pub start: Start,
    /// The run's last step; steps `start.version + 1 ..= steps` are taken.
    pub steps: Step,
    /// Groups that one step trains, B.
    pub batch_groups: u64,
    /// Rollouts of one group.
    pub group_size: u32,
    pub schedule: Schedule,
    pub weights_update: WeightsUpdate,
    pub order: Order,
    pub short_batch: ShortBatch,
    /// Rollouts in progress on each generator.
    pub slots: usize,
    /// The timely workers that generate, score and estimate.
    pub generators: Vec<usize>,
    /// The timely worker that trains and seals.
    pub learner: usize,
    /// How many groups of a bin count for its success rate, the last ones; 0: no rates are kept.
    pub window: usize,
    /// Of a worker that trains and generates beside others: how much it generates.
    pub balance: Balance,
}

/// A plan that cannot be run: the field, its value and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    pub key: &'static str,
    pub value: String,
    pub reason: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.reason)
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// The worker that admits: the first generator, since it must refill slots between two decode steps (a micro-batch of the
    /// learner is many of these long); where the balance is found, the first that does not train, which is why it is one.
    pub fn admitter(&self) -> usize {
        let apart = self.generators.iter().find(|worker| self.balance == Balance::Auto && **worker != self.learner);
        apart.or(self.generators.first()).copied().unwrap_or(self.learner)
    }

    /// The generator whose share of the groups is found while the run goes on, if there is one.
    pub fn balanced(&self) -> Option<usize> {
        let shared = self.generators.contains(&self.learner) && self.generators.len() > 1;
        // On policy and by turns one side waits while the other works, whoever does what.
        let overlaps = self.schedule.phase().is_none() && self.schedule.bound() > 0;
        (self.balance == Balance::Auto && shared && overlaps).then_some(self.learner)
    }

    /// Whether `peers` workers can run the plan.
    ///
    /// # Errors
    /// Names the first field that is wrong.
    pub fn validate(&self, peers: usize) -> Result<(), PlanError> {
        let wrong = |key, value: String, reason: String| Err(PlanError { key, value, reason });
        if self.steps <= self.start.version {
            let done = format!("must be above the {} steps already done", self.start.version);
            return wrong("steps", self.steps.to_string(), done);
        }
        if self.batch_groups == 0 {
            return wrong("batch_groups", "0".to_owned(), "a step needs at least one group".to_owned());
        }
        if self.group_size == 0 {
            return wrong("group_size", "0".to_owned(), "a group needs at least one rollout".to_owned());
        }
        if self.learner >= peers {
            return wrong("learner", self.learner.to_string(), format!("workers are 0..={}", peers.saturating_sub(1)));
        }
        if self.generators.is_empty() {
            return wrong("generators", "[]".to_owned(), "at least one worker must generate".to_owned());
        }
        if let Some(worker) = self.generators.iter().find(|worker| **worker >= peers) {
            return wrong("generators", worker.to_string(), format!("workers are 0..={}", peers.saturating_sub(1)));
        }
        let mut sorted = self.generators.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong("generators", pair[0].to_string(), "a worker can be listed once".to_owned());
        }
        if self.slots < self.group_size as usize {
            let reason = format!("must hold one whole group, group_size = {}", self.group_size);
            return wrong("slots", self.slots.to_string(), reason);
        }
        if self.schedule.phase() == Some(0) {
            return wrong("schedule", format!("{:?}", self.schedule), "a phase has at least one step".to_owned());
        }
        if let Some(reason) = self.start.wrong(self.schedule, self.steps, self.batch_groups) {
            return wrong("start", format!("version {}", self.start.version), reason);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            start: Start::default(),
            steps: 4,
            batch_groups: 2,
            group_size: 4,
            schedule: Schedule::Pipeline { max_lag: 1 },
            weights_update: WeightsUpdate::InFlight,
            order: Order::Arrival,
            short_batch: ShortBatch::Train,
            slots: 8,
            generators: vec![0],
            learner: 1,
            window: 0,
            balance: Balance::Fixed,
        }
    }

    fn key(change: impl Fn(&mut Plan)) -> &'static str {
        let mut plan = plan();
        change(&mut plan);
        plan.validate(2).unwrap_err().key
    }

    /// Catches a sole generator whose groups are taken away, and an admission that waits for micro-batches although it need not.
    #[test]
    fn only_one_beside_others_is_balanced() {
        let of = |balance, generators: &[usize], learner| {
            let plan = Plan { generators: generators.to_vec(), learner, balance, ..plan() };
            (plan.admitter(), plan.balanced())
        };
        assert_eq!(of(Balance::Fixed, &[0, 1], 0), (0, None));
        assert_eq!(of(Balance::Auto, &[0, 1], 0), (1, Some(0)));
        assert_eq!(of(Balance::Auto, &[2, 1], 1), (2, Some(1)));
        assert_eq!(of(Balance::Auto, &[0], 0), (0, None));
        assert_eq!(of(Balance::Auto, &[0, 1], 2), (0, None));
        let on_policy = Schedule::Pipeline { max_lag: 0 };
        let plan = Plan { generators: vec![0, 1], balance: Balance::Auto, schedule: on_policy, ..plan() };
        assert_eq!(plan.balanced(), None);
    }

    /// Catches a plan that would hang or lose groups being accepted (a generator that does not exist gets groups that no
    /// one samples).
    #[test]
    fn errors_name_the_field() {
        assert_eq!(plan().validate(2), Ok(()));
        assert_eq!(key(|p| p.steps = 0), "steps");
        assert_eq!(key(|p| p.start.version = 4), "steps");
        assert_eq!(key(|p| p.batch_groups = 0), "batch_groups");
        assert_eq!(key(|p| p.group_size = 0), "group_size");
        assert_eq!(key(|p| p.learner = 2), "learner");
        assert_eq!(key(|p| p.generators.clear()), "generators");
        assert_eq!(key(|p| p.generators.push(2)), "generators");
        assert_eq!(key(|p| p.generators.push(0)), "generators");
        assert_eq!(key(|p| p.slots = 3), "slots");
        assert_eq!(key(|p| p.schedule = Schedule::OneStepOff { steps: 0 }), "schedule");
        assert_eq!(key(|p| p.start.again.push(1)), "start");
        let text = plan().validate(1).unwrap_err().to_string();
        assert_eq!(text, "learner = 1: workers are 0..=0");
    }
}
