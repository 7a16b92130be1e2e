//! The lag rule as its definitions say, by scanning all there ever was: what the counting one must equal, and, misread, what
//! the model must catch.

use super::{Draws, Failure, Instance};
use tidegate_operators::lag::Header;
use tidegate_operators::plan::Order;
use tidegate_operators::record::{Step, Version};
use tidegate_operators::select::{Choice, Wait};
use tidegate_operators::start::Start;

/// How the rule is read. All but the first break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Right,
    /// The capability goes past v+M+1 once the budget is used up.
    CapabilityLowered,
    /// The capability is dropped once N*B groups are admitted.
    DroppedAtBudget,
    /// A generator samples a group before it has loaded the weights that the group was admitted under.
    EarlySampling,
    /// bound(d) counts what has arrived, not what may still come.
    ArrivedOnly,
    /// Only what is due at the next step is looked at.
    NoLookAhead,
    /// Waiting groups use room.
    RoomCountsWaiting,
    /// Stamps are forgotten once their groups are trained.
    StampsForgotten,
    /// bound(d) is not capped at min(d, N)*B.
    Uncapped,
    /// The selector is not told of discards.
    SilentDiscards,
    /// Two learners choose half a batch each, from what comes to them.
    TwoSelectors,
    /// On a resume, what the runs before trained is not counted.
    CountersFromZero,
    /// By turns, a phase is whole once the frontier has passed it.
    WholeWhenPassed,
    /// By turns, a phase is whole once as many groups arrived as its steps train.
    WholeWhenFull,
}

pub struct Reference {
    instance: Instance,
    reading: Reading,
    pub seen: Version,
    pub live: u64,
    pub prompts_ended: bool,
    /// Of the groups admitted now, by turns.
    due: Step,
    start: Start,
    /// Number and due of every group since the start, those that waited then first, in order of admission.
    groups: Vec<(u64, Step)>,
    pub next: Step,
    pub frontier: Option<Step>,
    pub ended: Option<u64>,
    /// In order of arrival.
    waiting: Vec<Header>,
    trained: Vec<Header>,
    discarded: Vec<Header>,
    bounds: Vec<u64>,
}

impl Reference {
    pub fn new(instance: &Instance, start: &Start, reading: Reading) -> Self {
        let mut reference = Reference {
            instance: *instance,
            reading,
            start: start.clone(),
            seen: start.version,
            live: 0,
            prompts_ended: false,
            due: 0,
            groups: start.waiting.iter().map(|(due, number)| (*number, *due)).collect(),
            next: start.version + 1,
            frontier: Some(0),
            ended: None,
            waiting: Vec::new(),
            trained: Vec::new(),
            discarded: Vec::new(),
            bounds: vec![u64::MAX; (instance.steps + 2 * (instance.max_lag + 2)) as usize],
        };
        reference.live = reference.before() + start.waiting.len() as u64;
        let waiting = start.waiting.iter().map(|(due, _)| *due).max().unwrap_or(0);
        reference.due = waiting.max(reference.phase_of(reference.live));
        reference
    }

    /// How many groups there are since the start.
    pub fn groups(&self) -> u64 {
        self.groups.len() as u64
    }

    /// Groups trained before the start.
    fn before(&self) -> u64 {
        if self.reading == Reading::CountersFromZero { 0 } else { self.start.version * self.instance.batch }
    }

    fn due(&self) -> Step {
        if self.instance.phase.is_some() { self.due } else { self.seen + self.instance.max_lag + 1 }
    }

    /// The end of the phase that the place after `live` others belongs to, or of the one that runs.
    fn phase_of(&self, live: u64) -> Step {
        let Some(phase) = self.instance.phase else { return 0 };
        (live / (phase * self.instance.batch)).max(self.seen / phase) * phase + phase
    }

    fn budget(&self) -> u64 {
        let last = match self.instance.phase {
            None => self.due(),
            // One phase at a time, or the next one too.
            Some(phase) => (self.seen / phase) * phase + self.instance.max_lag + 1,
        };
        last.min(self.instance.steps) * self.instance.batch
    }

    pub fn see(&mut self, version: Version) {
        self.seen = self.seen.max(version);
        self.due = self.due.max(self.phase_of(0));
    }

    pub fn cap(&self) -> Option<Step> {
        let all = self.groups.len() as u64 + self.before() >= self.instance.steps * self.instance.batch;
        let ended = self.prompts_ended || self.seen >= self.instance.steps;
        if ended || all && self.reading == Reading::DroppedAtBudget {
            return None;
        }
        let used = self.groups.len() as u64 + self.before() >= self.budget();
        Some(self.due() + u64::from(used && self.reading == Reading::CapabilityLowered))
    }

    pub fn open(&self) -> bool {
        self.cap() == Some(self.due()) && self.live < self.budget()
    }

    pub fn admit(&mut self) -> Header {
        let admitted = self.groups.len() - self.start.waiting.len();
        let new = |after: usize| self.start.next + after as u64;
        self.due = self.due.max(self.phase_of(self.live));
        let number = self.start.again.get(admitted).copied().unwrap_or_else(|| new(admitted - self.start.again.len()));
        let due = self.due();
        let earlier = self.before() + self.groups.iter().filter(|(_, other)| *other < due).count() as u64;
        self.live += 1;
        self.groups.push((number, due));
        Header { number, due, earlier, oldest: due.saturating_sub(self.instance.max_lag + 1) }
    }

    pub fn arrive(&mut self, header: Header, discarded: bool) {
        if discarded { self.discarded.push(header) } else { self.waiting.push(header) }
    }

    fn count(groups: &[Header], due: Step) -> u64 {
        groups.iter().filter(|group| group.due <= due).count() as u64
    }

    fn trained(&self, due: Step) -> u64 {
        self.before() + Self::count(&self.trained, due)
    }

    /// bound(d), as it is defined.
    fn bound(&self, due: Step) -> u64 {
        let arrived = self.trained(due) + Self::count(&self.waiting, due);
        if self.reading == Reading::ArrivedOnly || self.frontier.is_none_or(|frontier| frontier > due) {
            return arrived;
        }
        let trained = if self.reading == Reading::StampsForgotten { &[][..] } else { &self.trained };
        let seen = self.waiting.iter().chain(trained).chain(&self.discarded).filter(|group| group.due > due);
        let stamped = seen.map(|group| group.earlier - Self::count(&self.discarded, group.due - 1)).min();
        let most = due.min(self.instance.steps) * self.instance.batch;
        match (self.reading, stamped) {
            (Reading::Uncapped, None) => self.before() + self.groups.len() as u64,
            (Reading::Uncapped, Some(stamped)) => stamped,
            (_, stamped) => most.min(stamped.unwrap_or(u64::MAX)),
        }
    }

    fn need(&self, due: Step) -> u64 {
        self.bound(due).saturating_sub(self.trained(due) + (due - self.next) * self.instance.batch)
    }

    /// Invariants I1 and I2, which a right reading keeps at every moment.
    fn check_bounds(&mut self) -> Result<(), Failure> {
        for due in self.next..self.bounds.len() as u64 {
            let bound = self.bound(due);
            let dead = Self::count(&self.discarded, due);
            let live = self.before() + self.groups.iter().filter(|(_, other)| *other <= due).count() as u64 - dead;
            let last = &mut self.bounds[due as usize];
            if self.reading == Reading::Right && (bound > *last || live > bound) {
                return Err(Failure::Bound);
            }
            *last = bound;
        }
        Ok(())
    }

    pub fn choose(&mut self) -> Result<Choice<u64>, Failure> {
        self.check_bounds()?;
        let accounted = self.frontier.is_none()
            && self.ended == Some((self.waiting.len() + self.trained.len() + self.discarded.len()) as u64);
        if (self.waiting.len() as u64) < self.instance.batch || self.next > self.instance.steps {
            return Ok(match (accounted, self.waiting.is_empty()) {
                (false, _) => Choice::Wait(Wait::Any),
                (true, true) => Choice::Done,
                (true, false) => {
                    let mut batch = self.waiting.clone();
                    batch.sort_by_key(|group| self.key(group));
                    Choice::Last(self.train(batch)?)
                }
            });
        }
        let batch = match (self.reading, self.instance.order) {
            (Reading::TwoSelectors, _) => self.halves(),
            (_, Order::Arrival | Order::Shuffled) => self.forced()?,
            (_, Order::Admission) => self.in_order(),
        };
        match batch {
            Some(batch) => Ok(Choice::Step(self.train(batch)?)),
            None => Ok(Choice::Wait(Wait::Forced)),
        }
    }

    /// What free places go by, among those that wait in order of arrival.
    fn key(&self, group: &Header) -> u64 {
        let place = self.groups.iter().position(|(number, _)| *number == group.number).unwrap_or(0) as u64;
        match self.instance.order {
            Order::Arrival => 0,
            Order::Admission => place,
            // As SplitMix64 mixes it.
            Order::Shuffled => Draws(group.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next(),
        }
    }

    /// Whether a group may be trained now: by turns, if all that is due with it or before is there.
    fn whole(&self, due: Step) -> bool {
        let Some(phase) = self.instance.phase else { return true };
        let waiting = Self::count(&self.waiting, due);
        match self.reading {
            Reading::WholeWhenPassed => self.frontier.is_none_or(|frontier| frontier > due),
            Reading::WholeWhenFull => {
                let here = |groups: &[Header]| groups.iter().filter(|group| group.due == due).count() as u64;
                here(&self.waiting) + here(&self.trained) + here(&self.discarded) >= phase * self.instance.batch
            }
            _ => self.bound(due).saturating_sub(self.trained(due)) == waiting,
        }
    }

    fn forced(&self) -> Result<Option<Vec<Header>>, Failure> {
        let looked_at = if self.reading == Reading::NoLookAhead { self.next + 1 } else { self.bounds.len() as u64 };
        if (self.next..looked_at).any(|due| self.need(due) > self.instance.batch) {
            return Err(Failure::ForcedTooMany);
        }
        // From the newest waiting due on, any B do.
        let newest = self.waiting.iter().map(|group| group.due).max().unwrap_or(0);
        let mut batch: Vec<Header> = Vec::new();
        let mut rest: Vec<Header> = self.waiting.iter().filter(|group| self.whole(group.due)).copied().collect();
        // By turns those of a phase before what the next one has to lend it.
        rest.sort_by_key(|group| (self.instance.phase.map(|_| group.due), self.key(group)));
        if (rest.len() as u64) < self.instance.batch {
            return Ok(None);
        }
        for due in self.next..newest.min(looked_at) {
            while Self::count(&batch, due) < self.need(due) {
                let earliest = (0..rest.len()).filter(|index| rest[*index].due <= due).min_by_key(|index| rest[*index].due);
                let Some(index) = earliest else { return Ok(None) };
                batch.push(rest.remove(index));
            }
        }
        let free = self.instance.batch as usize - batch.len();
        batch.extend(rest.into_iter().take(free));
        Ok(Some(batch))
    }

    fn in_order(&self) -> Option<Vec<Header>> {
        let done = |number: u64| self.trained.iter().chain(&self.discarded).any(|group| group.number == number);
        let numbers = self.groups.iter().map(|(number, _)| *number);
        let numbers = numbers.filter(|number| !done(*number)).take(self.instance.batch as usize);
        let batch: Vec<Header> =
            numbers.map_while(|number| self.waiting.iter().find(|group| group.number == number).copied()).collect();
        let whole: Vec<&Header> = self.waiting.iter().filter(|group| self.whole(group.due)).collect();
        if whole.len() < batch.len() || batch.iter().any(|group| !self.whole(group.due)) {
            return None;
        }
        (batch.len() as u64 == self.instance.batch).then_some(batch)
    }

    fn halves(&self) -> Option<Vec<Header>> {
        let half = |parity| {
            self.waiting
                .iter()
                .filter(move |group| group.number % 2 == parity)
                .copied()
                .take(self.instance.batch as usize / 2)
        };
        let batch: Vec<Header> = half(0).chain(half(1)).collect();
        (batch.len() as u64 == self.instance.batch).then_some(batch)
    }

    fn train(&mut self, batch: Vec<Header>) -> Result<Vec<u64>, Failure> {
        self.waiting.retain(|group| !batch.contains(group));
        self.trained.extend(&batch);
        let step = self.next;
        self.next += 1;
        if self.reading == Reading::Right && self.bound(step) != self.trained(step) {
            return Err(Failure::Bound);
        }
        Ok(batch.into_iter().map(|group| group.number).collect())
    }
}
