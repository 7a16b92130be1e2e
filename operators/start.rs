//! Where a run starts: at nothing, or where an earlier part of it ended (floor 0).
//!
//! In the terms of the lag rule ([`lag`](crate::lag)) a run that goes on at version c is one in which c\*B groups were
//! trained, those that waited are on their way with the dues that they had, and all else that was under way was never
//! admitted. Its counts start there: `live` at c\*B + W, T at c\*B, and `earlier` of a due at c\*B plus the waiting groups
//! with a smaller due, since nothing else can have one.

use crate::record::{Step, Version};
use crate::schedule::Schedule;
use crate::success::Outcome;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a run starts. The default is the beginning of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// The weights' version: the last step that is done.
    pub version: Version,
    /// Due and number, ascending, of groups that were complete and not trained: they still are to be.
    pub waiting: Vec<(Step, u64)>,
    /// Numbers, ascending, of groups that were admitted and came to nothing: they are admitted again, before new ones.
    pub again: Vec<u64>,
    /// Number of the first group that is new.
    pub next: u64,
    /// When the last step ended, nanoseconds since the Unix epoch: later steps end later, whatever the clock says.
    pub finished_ns: i64,
    /// How groups went that are done or wait, by bin, where success rates are kept: of each bin those that still count.
    pub outcomes: Arc<Vec<(u64, Outcome)>>,
}

impl Start {
    /// After step `version`, with nothing under way; `next` is the number of the first group.
    pub fn at(version: Version, next: u64) -> Self {
        Start { version, next, ..Start::default() }
    }

    /// Counts a group that waited: it still does, if the lag rule of these sizes can still train it by its due; otherwise it is
    /// admitted again. Call it in order of (due, number). Says which.
    ///
    /// Under the sizes that the group was admitted with, it always can; a run that goes on with fewer steps may not.
    pub fn wait(&mut self, due: Step, number: u64, schedule: Schedule, steps: Step, batch_groups: u64) -> bool {
        let before = self.waiting.partition_point(|(other, _)| *other <= due) as u64;
        // At the largest due that is not above this one's there is room for all that must be trained until then.
        let room = due.min(steps).saturating_sub(self.version).saturating_mul(batch_groups);
        let fits = due > self.version && due <= schedule.newest(self.version) && before < room;
        if fits {
            let place = self.waiting.partition_point(|other| *other < (due, number));
            self.waiting.insert(place, (due, number));
        } else {
            let place = self.again.partition_point(|other| *other < number);
            self.again.insert(place, number);
        }
        fits
    }

    /// Groups admitted and not discarded, those of the steps that are done included.
    pub fn live(&self, batch_groups: u64) -> u64 {
        self.version * batch_groups + self.waiting.len() as u64
    }

    /// How many of them have a smaller due than `due`.
    pub fn earlier(&self, due: Step, batch_groups: u64) -> u64 {
        self.version * batch_groups + self.waiting.partition_point(|(other, _)| *other < due) as u64
    }

    /// The number of the group that is admitted after `admitted` others.
    pub fn number(&self, admitted: u64) -> u64 {
        let again = self.again.len() as u64;
        self.again.get(admitted as usize).copied().unwrap_or(self.next + admitted.saturating_sub(again))
    }

    /// A group's place in the order of admission, from 0; those that waited at the start come first. Dues rise with it.
    pub fn place(&self, due: Step, number: u64) -> u64 {
        let waiting = self.waiting.len() as u64;
        if let Ok(place) = self.waiting.binary_search(&(due, number)) {
            return place as u64;
        }
        match self.again.binary_search(&number) {
            Ok(place) => waiting + place as u64,
            Err(_) => waiting + self.again.len() as u64 + number.saturating_sub(self.next),
        }
    }

    /// Why this cannot be the start of a run, if it cannot.
    pub(crate) fn wrong(&self, schedule: Schedule, steps: Step, batch_groups: u64) -> Option<String> {
        let mut again = Start::at(self.version, self.next);
        for &(due, number) in &self.waiting {
            if !again.wait(due, number, schedule, steps, batch_groups) {
                return Some(format!(
                    "group {number} waits for step {due}, which cannot train it after step {}",
                    self.version
                ));
            }
        }
        if again.waiting != self.waiting || !self.again.is_sorted_by(|a, b| a < b) {
            return Some("the groups under way must be in order, each once".to_owned());
        }
        let numbers = self.waiting.iter().map(|(_, number)| number).chain(&self.again);
        let new = numbers.copied().find(|number| *number >= self.next);
        new.map(|number| format!("group {number} was admitted, but new ones begin at {}", self.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Schedule = Schedule::Pipeline { max_lag: 2 };

    /// Catches a count that is off by those that waited: two a step, three steps done, groups 7 and 9 wait, 6 and 8 were lost.
    #[test]
    fn counts_by_hand() {
        let mut start = Start { again: vec![6, 8], ..Start::at(3, 10) };
        assert!(start.wait(5, 7, LAG, 9, 2) && start.wait(4, 9, LAG, 9, 2));
        assert_eq!(start.waiting, [(4, 9), (5, 7)]);
        assert_eq!((start.live(2), start.earlier(4, 2), start.earlier(5, 2), start.earlier(6, 2)), (8, 6, 7, 8));
        assert_eq!((0..4).map(|n| start.number(n)).collect::<Vec<_>>(), [6, 8, 10, 11]);
        let places = [(4, 9), (5, 7), (6, 6), (6, 8), (6, 10), (7, 11)].map(|(due, number)| start.place(due, number));
        assert_eq!(places, [0, 1, 2, 3, 4, 5]);
        assert_eq!(start.wrong(LAG, 9, 2), None);
    }

    /// Catches a group that waits for a step that is over or cannot be reached, and more of them than the steps can train.
    #[test]
    fn what_cannot_wait_is_admitted_again() {
        let mut start = Start::at(3, 20);
        let waits = [(3, 1), (4, 2), (4, 3), (5, 4), (5, 5), (5, 6), (7, 7)];
        let kept = waits.map(|(due, number)| start.wait(due, number, LAG, 5, 1));
        assert_eq!(kept, [false, true, false, true, false, false, false]);
        assert_eq!((start.waiting, start.again), (vec![(4, 2), (5, 4)], vec![1, 3, 5, 6, 7]));
    }

    #[test]
    fn a_wrong_start_says_why() {
        let why = |start: Start| start.wrong(LAG, 9, 1).unwrap();
        assert!(why(Start { waiting: vec![(3, 1)], ..Start::at(3, 5) }).starts_with("group 1 waits for step 3"));
        assert!(why(Start { waiting: vec![(5, 2), (4, 1)], ..Start::at(3, 5) }).contains("in order"));
        assert!(why(Start { again: vec![2, 2], ..Start::at(3, 5) }).contains("each once"));
        assert_eq!(why(Start { again: vec![5], ..Start::at(3, 5) }), "group 5 was admitted, but new ones begin at 5");
    }
}
