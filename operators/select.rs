//! The selector: chooses each step's batch so that the lag bound holds ([`lag`](crate::lag) has the rule and its proof).
//!
//! It counts and never scans: a step costs O(B log B + M), however many groups are in flight. Dues below the next step are
//! settled (invariant I4: nothing of them waits or is on its way), so only the window of dues from the next step to the
//! newest seen, at most M+1 wide, is kept.

use crate::plan::Order;
use crate::record::Step;
use crate::start::Start;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::fmt;

/// A group that cannot be: the records do not come from an admission that keeps the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A group arrived after the last step that might have trained it.
    Late { number: u64, due: Step, next: Step },
    /// Two groups of one due disagree on how many were admitted before.
    Stamp { number: u64, due: Step, earlier: u64, seen: u64 },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breach::Late { number, due, next } => write!(f, "group {number}, due at step {due}, arrived before step {next}"),
            Breach::Stamp { number, due, earlier, seen } => {
                write!(f, "group {number}, due at step {due}, says {earlier} were admitted earlier, others say {seen}")
            }
        }
    }
}

impl std::error::Error for Breach {}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<G> {
    /// Train these B groups.
    Step(Vec<G>),
    /// Nothing to do until more arrives.
    Wait(Wait),
    /// The prompts ended inside a batch: these fewer than B groups are all that is left.
    Last(Vec<G>),
    /// Every admitted group is accounted for and none waits.
    Done,
}

/// What the next step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// B groups are there, but the bound (or the order) needs one that is not.
    Forced,
    /// Fewer than B groups are there.
    Any,
}

/// Counts of one due.
#[derive(Clone, Debug, Default)]
struct Tally {
    trained: u64,
    waiting: u64,
    discarded: u64,
    earlier: Option<u64>,
}

/// Guards 5 to 7: counts what arrives and chooses what trains.
///
/// ```
/// use tidegate_operators::plan::Order;
/// use tidegate_operators::select::{Choice, Selector, Wait};
/// use tidegate_operators::start::Start;
///
/// // One group a step. Group 1 is due at step 2 and came first, but group 0 is due at step 1 and still on its way.
/// let mut selector = Selector::new(Start::default(), 2, 1, Order::Arrival);
/// selector.arrive(2, 1, 1, "group 1").unwrap();
/// assert_eq!(selector.choose(), Choice::Wait(Wait::Forced));
/// selector.arrive(1, 0, 0, "group 0").unwrap();
/// assert_eq!(selector.choose(), Choice::Step(vec!["group 0"]));
/// assert_eq!(selector.choose(), Choice::Step(vec!["group 1"]));
/// ```
#[derive(Clone, Debug)]
pub struct Selector<G> {
    steps: Step,
    batch_groups: u64,
    next: Step,
    /// Trained and discarded groups with a due below `next`.
    past_trained: u64,
    past_discarded: u64,
    /// Entry i is due `next + i`.
    window: VecDeque<Tally>,
    /// None once the input is empty.
    frontier: Option<Step>,
    waiting: u64,
    start: Start,
    /// Groups seen.
    seen: u64,
    ended: Option<u64>,
    queue: Queue<G>,
    /// Whether a step takes only groups of phases that are whole.
    by_turns: bool,
}

/// What is known of a due.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// left(d) and W(d).
    left: u64,
    waiting: u64,
    /// need(d), 0 where it is negative.
    need: u64,
}

impl<G> Selector<G> {
    /// A selector at the start of a run of `steps` steps. The groups that waited then arrive as all others do.
    pub fn new(start: Start, steps: Step, batch_groups: u64, order: Order) -> Self {
        Selector {
            steps,
            batch_groups,
            next: start.version + 1,
            past_trained: start.version * batch_groups,
            past_discarded: 0,
            window: VecDeque::new(),
            frontier: Some(0),
            waiting: 0,
            start,
            seen: 0,
            ended: None,
            queue: Queue::new(order),
            by_turns: false,
        }
    }

    /// For a schedule by turns: a step takes only groups of dues up to which nothing is missing, neither on its way nor to be
    /// admitted in the place of another: left(d) = W(d).
    pub fn by_turns(self) -> Self {
        Selector { by_turns: true, ..self }
    }

    /// The next step.
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// A group that can be trained arrived.
    ///
    /// # Errors
    /// A group that an admission under the rule cannot have sent.
    pub fn arrive(&mut self, due: Step, earlier: u64, number: u64, group: G) -> Result<(), Breach> {
        self.tally(due, earlier, number)?.waiting += 1;
        self.waiting += 1;
        self.queue.arrive(due, self.start.place(due, number), number, group);
        Ok(())
    }

    /// A group arrived that no step will train.
    ///
    /// # Errors
    /// A group that an admission under the rule cannot have sent.
    pub fn discard(&mut self, due: Step, earlier: u64, number: u64) -> Result<(), Breach> {
        self.tally(due, earlier, number)?.discarded += 1;
        self.queue.discard(self.start.place(due, number));
        Ok(())
    }

    fn tally(&mut self, due: Step, earlier: u64, number: u64) -> Result<&mut Tally, Breach> {
        let Some(index) = due.checked_sub(self.next) else { return Err(Breach::Late { number, due, next: self.next }) };
        let index = index as usize;
        if self.window.len() <= index {
            self.window.resize_with(index + 1, Tally::default);
        }
        let tally = &mut self.window[index];
        let seen = *tally.earlier.get_or_insert(earlier);
        if seen != earlier {
            return Err(Breach::Stamp { number, due, earlier, seen });
        }
        self.seen += 1;
        Ok(tally)
    }

    /// The input frontier is now `frontier`: nothing with a smaller due is on its way. None: nothing at all is.
    pub fn frontier(&mut self, frontier: Option<Step>) {
        self.frontier = frontier;
    }

    /// The admission ended; there are `groups` groups since the start, those that waited then included.
    pub fn ended(&mut self, groups: u64) {
        self.ended = Some(groups);
    }

    /// The groups of step [`next_step`](Selector::next_step), which is done with the call as far as the selector is
    /// concerned, or why there is none.
    pub fn choose(&mut self) -> Choice<G> {
        if self.waiting < self.batch_groups || self.next > self.steps {
            return self.choose_last();
        }
        let known = self.known();
        let whole = known.iter().rposition(|known| known.left == known.waiting);
        let (until, there) = match whole {
            _ if !self.by_turns => (Step::MAX, self.waiting),
            Some(index) => (self.next + index as u64, known[index].waiting),
            None => (0, 0),
        };
        let forced = match &self.queue {
            _ if there < self.batch_groups => None,
            Queue::Keyed { .. } if self.by_turns => Some(self.earliest()),
            Queue::Keyed { .. } => self.forced(&known),
            // The next B in order of admission meet every need that can be met: dues rise with the place.
            Queue::Admission { ready, .. } => {
                (ready.get(self.batch_groups as usize - 1).is_some_and(|(due, _)| *due <= until)).then(Vec::new)
            }
        };
        let Some(forced) = forced else { return Choice::Wait(Wait::Forced) };
        let batch = self.queue.take(forced, self.batch_groups, self.next, until);
        debug_assert_eq!(batch.len() as u64, self.batch_groups);
        Choice::Step(self.train(batch))
    }

    fn choose_last(&mut self) -> Choice<G> {
        let accounted = self.frontier.is_none() && self.ended == Some(self.seen);
        match (accounted, self.waiting) {
            (false, _) => Choice::Wait(Wait::Any),
            (true, 0) => Choice::Done,
            (true, waiting) => {
                let batch = self.queue.take(Vec::new(), waiting, self.next, Step::MAX);
                Choice::Last(self.train(batch))
            }
        }
    }

    /// All groups that wait, out of the selector: for the end of a run that was stopped.
    pub fn drain(&mut self) -> Vec<G> {
        let waiting = std::mem::take(&mut self.waiting);
        self.window.iter_mut().for_each(|tally| tally.waiting = 0);
        self.queue.close_all();
        self.queue.take(Vec::new(), waiting, self.next, Step::MAX).into_iter().map(|(_, group)| group).collect()
    }

    /// How many groups of each due (from `next`) the needs force, earliest due first; None if one of them has not arrived.
    fn forced(&self, known: &[Known]) -> Option<Vec<u64>> {
        let mut forced = vec![0; self.window.len()];
        // From the newest waiting due on, all that waits is early enough, and any B do.
        let newest = self.window.iter().rposition(|tally| tally.waiting > 0).unwrap_or(0);
        // The earliest due with groups left, and how many are taken by now: those have a due of at most `d`.
        let (mut earliest, mut taken) = (0, 0);
        for (d, &Known { need, .. }) in known.iter().take(newest).enumerate() {
            while taken < need {
                if earliest > d {
                    return None;
                }
                let more = (self.window[earliest].waiting - forced[earliest]).min(need - taken);
                forced[earliest] += more;
                taken += more;
                if taken < need {
                    earliest += 1;
                }
            }
        }
        debug_assert!(taken <= self.batch_groups, "invariant I3");
        Some(forced)
    }

    /// How many groups of each due (from `next`) a step takes that takes the earliest: those of a phase before what the next one has to
    /// lend it. That meets all needs that can be met.
    fn earliest(&self) -> Vec<u64> {
        let mut left = self.batch_groups;
        let take = |tally: &Tally| {
            let taken = tally.waiting.min(left);
            left -= taken;
            taken
        };
        self.window.iter().map(take).collect()
    }

    /// Of every due of the window.
    fn known(&self) -> Vec<Known> {
        // Cumulative counts, then, from above, the least over stamps e > d of earlier(e) - X(e-1).
        let mut trained = self.past_trained;
        let mut waiting = 0;
        let mut discarded = self.past_discarded;
        let mut all = Vec::with_capacity(self.window.len());
        let mut sums = Vec::with_capacity(self.window.len());
        for tally in &self.window {
            let before = tally.earlier.map(|earlier| earlier.saturating_sub(discarded));
            trained += tally.trained;
            waiting += tally.waiting;
            discarded += tally.discarded;
            sums.push((trained, waiting, before));
        }
        let mut stamped = u64::MAX;
        for (index, (trained, waiting, before)) in sums.into_iter().enumerate().rev() {
            let due = self.next + index as u64;
            let passed = self.frontier.is_none_or(|frontier| frontier > due);
            let bound = if passed { trained + waiting } else { stamped.min(due.min(self.steps) * self.batch_groups) };
            let left = bound.saturating_sub(trained);
            all.push(Known { left, waiting, need: left.saturating_sub(index as u64 * self.batch_groups) });
            stamped = stamped.min(before.unwrap_or(u64::MAX));
        }
        all.reverse();
        all
    }

    /// Counts `batch` as trained at the next step, and goes on to the one after.
    fn train(&mut self, batch: Vec<(Step, G)>) -> Vec<G> {
        for (due, _) in &batch {
            let tally = &mut self.window[(due - self.next) as usize];
            tally.waiting -= 1;
            tally.trained += 1;
        }
        self.waiting -= batch.len() as u64;
        if let Some(settled) = self.window.pop_front() {
            debug_assert_eq!(settled.waiting, 0, "invariant I4");
            self.past_trained += settled.trained;
            self.past_discarded += settled.discarded;
        }
        self.next += 1;
        batch.into_iter().map(|(_, group)| group).collect()
    }
}

/// A number that looks drawn, and is the same for a group in every run (SplitMix64's mixing of it).
fn draw(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The waiting groups, in the order that free places go by.
#[derive(Clone, Debug)]
enum Queue<G> {
    /// By due, each in the order of a key: how many arrived before, or a draw.
    Keyed { arrived: u64, shuffled: bool, by_due: HashMap<Step, BTreeMap<(u64, u64), G>> },
    /// By place. `ready` are the groups just below `next`, in order; `ahead` those above a gap, `discarded` likewise.
    Admission { next: u64, ready: VecDeque<(Step, G)>, ahead: HashMap<u64, (Step, G)>, discarded: BTreeSet<u64> },
}

impl<G> Queue<G> {
    fn new(order: Order) -> Self {
        match order {
            Order::Arrival => Queue::Keyed { arrived: 0, shuffled: false, by_due: HashMap::new() },
            Order::Shuffled => Queue::Keyed { arrived: 0, shuffled: true, by_due: HashMap::new() },
            Order::Admission => {
                let (ready, ahead, discarded) = (VecDeque::new(), HashMap::new(), BTreeSet::new());
                Queue::Admission { next: 0, ready, ahead, discarded }
            }
        }
    }

    fn arrive(&mut self, due: Step, place: u64, number: u64, group: G) {
        match self {
            Queue::Keyed { arrived, shuffled, by_due } => {
                let key = if *shuffled { draw(number) } else { *arrived };
                by_due.entry(due).or_default().insert((key, number), group);
                *arrived += 1;
            }
            Queue::Admission { ahead, .. } => {
                ahead.insert(place, (due, group));
                self.close_gap();
            }
        }
    }

    fn discard(&mut self, place: u64) {
        if let Queue::Admission { discarded, .. } = self {
            discarded.insert(place);
            self.close_gap();
        }
    }

    fn close_gap(&mut self) {
        let Queue::Admission { next, ready, ahead, discarded } = self else { return };
        loop {
            if let Some(group) = ahead.remove(next) {
                ready.push_back(group);
            } else if !discarded.remove(next) {
                return;
            }
            *next += 1;
        }
    }

    /// Gives up waiting for what is missing.
    fn close_all(&mut self) {
        if let Queue::Admission { ready, ahead, .. } = self {
            let mut rest: Vec<_> = ahead.drain().collect();
            rest.sort_unstable_by_key(|(place, _)| *place);
            ready.extend(rest.into_iter().map(|(_, group)| group));
        }
    }

    /// Takes `forced[i]` groups of due `next + i` and fills up to `count` by the order, of dues up to `until`.
    fn take(&mut self, forced: Vec<u64>, count: u64, next: Step, until: Step) -> Vec<(Step, G)> {
        let mut batch = Vec::with_capacity(count as usize);
        match self {
            Queue::Keyed { by_due, .. } => {
                for (due, forced) in (next..).zip(forced).filter(|(_, forced)| *forced > 0) {
                    let Some(groups) = by_due.get_mut(&due) else { continue };
                    batch.extend((0..forced).map_while(|_| Some((due, groups.pop_first()?.1))));
                }
                let first = |due: Step, groups: &BTreeMap<(u64, u64), G>| Some(Reverse((*groups.first_key_value()?.0, due)));
                let heads = by_due.iter().filter(|(due, _)| **due <= until);
                let mut heads: BinaryHeap<_> = heads.filter_map(|(due, groups)| first(*due, groups)).collect();
                while (batch.len() as u64) < count
                    && let Some(Reverse((_, due))) = heads.pop()
                    && let Some(groups) = by_due.get_mut(&due)
                    && let Some((_, group)) = groups.pop_first()
                {
                    batch.push((due, group));
                    heads.extend(first(due, groups));
                }
                by_due.retain(|_, groups| !groups.is_empty());
            }
            Queue::Admission { ready, .. } => batch.extend(ready.drain(..ready.len().min(count as usize))),
        }
        batch
    }
}
