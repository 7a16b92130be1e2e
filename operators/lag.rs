//! The lag rule: no token is trained more than `max_lag` steps after the weights that sampled it (floor 0: no timely, no
//! clocks; the operators drive it, and so may a simulator).
//!
//! Two small machines keep it: [`Admission`] gives every group its `due`, the last step that may train it, and limits how
//! many are under way; [`Selector`](crate::select::Selector) chooses each step's batch so that no group is ever left past
//! its due. Below, N is the run's last step, M the bound, B the groups of a batch, c the version that the run starts from.
//!
//! # State
//! * `Admission`: `v`, the newest version it has *seen* (views may be late and may skip); `live`, groups admitted and not
//!   returned, starting at c\*B and those that [wait](crate::start) since before; and the capability, a promise to admit
//!   nothing with an earlier due.
//! * Every group carries `due` and `earlier`: how many groups were admitted with a smaller due, counting c\*B for those of
//!   the runs before. `earlier` is the same for all groups of one due.
//! * Every generator: `u`, the version of the weights it samples with.
//! * The selector: the next step `k`; cumulative by due, T(d) trained (c\*B included), W(d) waiting, X(d) discarded; the
//!   *stamp* `earlier(e)` of every due e of which any group was seen, also of those since trained or discarded; and F, the
//!   frontier of its input.
//! * `bound(d)` = T(d) + W(d) if F has passed d, otherwise the least of min(d, N)\*B and, over all stamped dues e > d,
//!   `earlier(e)` - X(e-1). `left(d)` = `bound(d)` - T(d). `need(d)` = `left(d)` - (d-k)\*B.
//!
//! # Events and guards
//! 1. *See a version*: v rises to it, and the capability to v+M+1; no higher as long as v is the newest seen, be the budget
//!    used up or N\*B groups admitted, since a place may come back.
//! 2. *Admit*: a prompt is there, the capability is held, `live` < min(v+M+1, N)\*B, and a generator has room (waiting
//!    groups take none). Then due = v+M+1, and `live` rises.
//! 3. *Drop the capability*: the prompts have ended, or v >= N.
//! 4. *Sample a token*: only with weights of version u >= due-M-1; until they are loaded, the group queues.
//! 5. *Discard*, anywhere on the way: the group still goes to the selector, at its own time; that counts it in X and returns
//!    its place: `live` falls when the admission hears of it.
//! 6. *Step k*: takes B waiting groups of which, for every d >= k, at least `need(d)` are due at d or before; if there are
//!    no such B, it waits. Free places go by [`Order`](crate::plan::Order).
//! 7. *Last step*: the frontier is empty, the admission's end record says that every admitted group is accounted for, and
//!    0 < W < B wait: they are trained or discarded.
//!
//! # Invariants
//! * I1: live groups with due <= d, over all time, number at most `bound(d)` <= min(d, N)\*B.
//! * I2: `bound(d)` never rises.
//! * I3: `need(d)` <= B for every d >= k.
//! * I4: after step k, `left(k)` = 0.
//! * I5: admitted = trained + discarded + in flight + waiting.
//! * I6: every step but the last has B groups.
//!
//! # Why the bound holds
//! *I1, I2.* Dues are given in rising order, so whatever is due at d or before was admitted while v+M+1 <= d, that is when
//! `live` < min(d, N)\*B. A returned place is used again at the current due, which can only lower the count below it. A
//! stamp of e > d tells how many groups had a due < e when the first of e was admitted, none can follow, and X(e-1) of them
//! are dead. When F passes d, nothing of d is on its way, and T(d) + W(d) is the number itself. Stamps are kept and X only
//! grows, so nothing rises.
//!
//! *I3.* At k = c+1, T = c\*B and `bound(d)` <= d\*B give `need(d)` <= B. Step k leaves `left(d)` <= (d-k)\*B, which is
//! `need(d)` <= B for step k+1, and `bound` only falls in between. The needs are nested (what is due at d is due at every
//! d' > d), so the earliest dues first meet all of them with at most B groups.
//!
//! *I4 and the bound.* d = k in guard 6 leaves nothing that is due at k, here or on its way. So every group is trained at a
//! step k <= due, and guard 4 makes its oldest token of version >= due-M-1: its lag is at most (k-1) - (due-M-1) <= M. A late
//! view of F only makes `bound` larger and forces more: delay cannot break it.
//!
//! # Why it never hangs
//! Every rollout ends, so let all in flight arrive and the admission see v = k-1. Then F = k+M, its capability, or F is
//! empty. Below F all is exact: left(d) = W(d), and what is needed is there. For d >= F every group so far is due at d or
//! before, T(d) = (k-1)\*B and `need(d)` <= B: any B do. So W >= B allows a step. If W < B, `live` = (k-1)\*B + W <
//! min(k+M, N)\*B and all room is free: a prompt is admitted, or there is none, the capability is dropped, F empties, and
//! guard 7 applies. Nothing runs in circles either: every event moves forward, and only a discard makes new work, of one
//! prompt. (Endless prompts that are all discarded never make a step; a limit on the discarded share is for others to set.)
//!
//! # By turns
//! [`Conventional`](Schedule::Conventional) and [`OneStepOff`](Schedule::OneStepOff) differ in two things. A group's due is the end of
//! the phase, of G steps, that its place belongs to: the place after `live` others is due at G (`live` div G\*B + 1), or at the end of
//! the phase that runs, if that is later, and never before the due of the group admitted before it; the budget is that of this
//! phase, or of the next one too. So dues still rise, and what is due at d or before was admitted while `live` < d\*B, which is what I1
//! needs. And step k takes only groups of dues up to which all is there, left(d) = W(d): neither on its way, nor to be admitted in
//! another's place. That the frontier passed d would be too much to ask (the capability stays at d as long as a place of the phase
//! may come back), that G\*B groups arrived too little. A step takes the earliest dues first, so that where discards left a phase short, and
//! what took their places belongs to the next one, no more than that is taken from it. Generators take the weights of the versions between
//! two phases alone, and those that a run starts from.
//!
//! # What each part is for
//! Leave one out and a run breaks; `tests/lag_rule.rs` plants each of these and finds the failure:
//! lowering the capability once the budget is used, or dropping it at N\*B admitted (stuck after a discard); sampling before
//! the weights are loaded (lag M+1); `bound` from what has arrived only, or from d = k only (lag M+1); counting waiting
//! groups as using room (stuck); forgetting stamps once trained, or not capping at d\*B (more than B forced); silent discards
//! (stuck in admission order); two selectors (stuck); counters from 0 on a resume (the bound breaks); by turns, a phase that is
//! whole when the frontier passed it, or when G\*B of its groups arrived (stuck).

use crate::record::{Step, Version};
use crate::schedule::Schedule;
use crate::start::Start;

/// What [`Admission::admit`] gives a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number in the order of first admission, without gaps over the whole run.
    pub number: u64,
    /// The last step that may train the group.
    pub due: Step,
    /// Groups admitted with a smaller due.
    pub earlier: u64,
    /// The oldest version that may sample a token of the group.
    pub oldest: Version,
}

/// Guards 1 to 3: who may start, and until which step it must be trained.
///
/// ```
/// use tidegate_operators::lag::Admission;
/// use tidegate_operators::schedule::Schedule;
/// use tidegate_operators::start::Start;
///
/// // On policy, one group a step: the second group waits for version 1.
/// let mut admission = Admission::new(Schedule::Pipeline { max_lag: 0 }, Start::default(), 3, 1);
/// assert_eq!(admission.admit().map(|header| header.due), Some(1));
/// assert_eq!(admission.admit(), None);
/// admission.see(1);
/// assert_eq!(admission.admit().map(|header| (header.due, header.earlier)), Some((2, 1)));
/// ```
#[derive(Clone, Debug)]
pub struct Admission {
    schedule: Schedule,
    steps: Step,
    batch_groups: u64,
    version: Version,
    live: u64,
    start: Start,
    /// Of the groups admitted now. It never falls.
    due: Step,
    /// Admitted since the start.
    admitted: u64,
    /// Admitted with a smaller due than the current one, over all time.
    earlier: u64,
    ended: bool,
}

impl Admission {
    /// An admission at the start of a run of `steps` steps with `batch_groups` groups each.
    pub fn new(schedule: Schedule, start: Start, steps: Step, batch_groups: u64) -> Self {
        let (version, live) = (start.version, start.live(batch_groups));
        // No group may get a smaller due than one that waits, whose stamp says how many have a smaller one.
        let waiting = start.waiting.last().map_or(0, |(due, _)| *due);
        let due = schedule.due(version, live, batch_groups).max(waiting);
        let earlier = start.earlier(due, batch_groups);
        Admission { schedule, steps, batch_groups, version, live, start, due, admitted: 0, earlier, ended: false }
    }

    /// From now on groups are due at `due`, if that is later.
    fn raise(&mut self, due: Step) {
        if due > self.due {
            self.due = due;
            self.earlier = self.start.live(self.batch_groups) + self.admitted;
        }
    }

    /// A version was published. Older ones than the newest seen change nothing.
    pub fn see(&mut self, version: Version) {
        if version > self.version {
            self.version = version;
            self.raise(self.schedule.due(version, 0, self.batch_groups));
        }
    }

    /// The due below which no group will be admitted; None after the end.
    pub fn cap(&self) -> Option<Step> {
        (!self.ended && self.version < self.steps).then_some(self.due)
    }

    /// Whether the budget allows one more group.
    pub fn open(&self) -> bool {
        self.cap().is_some() && self.live < self.schedule.budget(self.version, self.steps, self.batch_groups)
    }

    /// Admits one group, if the budget allows.
    pub fn admit(&mut self) -> Option<Header> {
        if !self.open() {
            return None;
        }
        self.raise(self.schedule.due(self.version, self.live, self.batch_groups));
        let (due, earlier) = (self.due, self.earlier);
        let header = Header { number: self.next(), due, earlier, oldest: self.schedule.oldest(due) };
        self.live += 1;
        self.admitted += 1;
        Some(header)
    }

    /// The place of a discarded group came back.
    pub fn returned(&mut self) {
        self.live = self.live.saturating_sub(1);
    }

    /// There are no more prompts.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The number of the next group.
    pub fn next(&self) -> u64 {
        self.start.number(self.admitted)
    }

    /// How many groups there are since the start: those that waited then, and those admitted.
    pub fn groups(&self) -> u64 {
        self.start.waiting.len() as u64 + self.admitted
    }
}
