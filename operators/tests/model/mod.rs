//! A model of a run for the lag rule: who may move is drawn, what must hold is checked after every move.

pub mod reference;

use reference::{Reading, Reference};
use tidegate_operators::lag::{Admission, Header};
use tidegate_operators::plan::Order;
use tidegate_operators::record::{Step, Version};
use tidegate_operators::schedule::Schedule;
use tidegate_operators::select::{Choice, Selector, Wait};
use tidegate_operators::start::Start;

/// How a run goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A token is trained more than M steps late, or a group past its due.
    Lag,
    /// Nothing can move, and the run is not over.
    Stuck,
    /// The run is over, with prompts left and steps not taken.
    EndsEarly,
    /// The rule forces more than B groups into one step (I3).
    ForcedTooMany,
    /// bound(d) rose (I2), fell below the live groups (I1), or was not used up by step d (I4).
    Bound,
    /// A step that is not the last has not B groups, or a group was trained twice.
    NotWhole,
}

/// An instance: sizes, and what the world does.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    pub batch: u64,
    pub max_lag: u64,
    /// By turns of so many steps.
    pub phase: Option<u64>,
    pub start: Version,
    pub steps: Step,
    pub prompts: u64,
    /// Groups that the generators run at once.
    pub room: u64,
    pub order: Order,
    /// Percent of groups discarded on the way.
    pub discards: u64,
    pub longest: u64,
    /// How often the run is stopped, or killed, and goes on: percent of the choices.
    pub stops: u64,
    pub seed: u64,
}

/// SplitMix64.
pub struct Draws(pub u64);

impl Draws {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Instance {
    pub fn schedule(&self) -> Schedule {
        match self.phase {
            None => Schedule::Pipeline { max_lag: self.max_lag },
            Some(steps) if self.max_lag < steps => Schedule::Conventional { steps },
            Some(steps) => Schedule::OneStepOff { steps },
        }
    }

    /// The same by turns, of phases of one to four steps.
    pub fn by_turns(self) -> Self {
        let mut draws = Draws(self.seed ^ 0x7a5e);
        let (phase, ahead) = (1 + draws.below(4), 1 + draws.below(2));
        let order = if draws.below(2) == 0 { Order::Shuffled } else { Order::Admission };
        let room = 1 + draws.below(2 * self.batch * phase);
        Instance { phase: Some(phase), max_lag: ahead * phase - 1, order, room, ..self }
    }

    /// Small enough that every corner is met often.
    pub fn small(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let (batch, max_lag, start) =
            (1 + draws.below(3), draws.below(4), if draws.below(3) == 0 { 1 + draws.below(3) } else { 0 });
        let steps = start + 1 + draws.below(5);
        Instance {
            batch,
            max_lag,
            phase: None,
            start,
            steps,
            prompts: if draws.below(3) == 0 { draws.below(12) } else { 1_000_000 },
            room: 1 + draws.below(2 * batch * (max_lag + 1)),
            order: if draws.below(2) == 0 { Order::Arrival } else { Order::Admission },
            discards: [0, 0, 20, 50][draws.below(4) as usize],
            longest: 1 + draws.below(4),
            stops: [0, 0, 5, 30][draws.below(4) as usize],
            seed,
        }
    }
}

/// The rule under test: the crate's own, checked against the reference at every choice, or a wrong reading of it.
pub struct Rule {
    pub reading: Reading,
    admission: Admission,
    selector: Selector<u64>,
    reference: Reference,
}

impl Rule {
    fn new(instance: &Instance, start: &Start, reading: Reading) -> Self {
        let Instance { batch, steps, order, .. } = *instance;
        Rule {
            reading,
            admission: Admission::new(instance.schedule(), start.clone(), steps, batch),
            selector: match instance.phase {
                None => Selector::new(start.clone(), steps, batch, order),
                Some(_) => Selector::new(start.clone(), steps, batch, order).by_turns(),
            },
            reference: Reference::new(instance, start, reading),
        }
    }

    fn right(&self) -> bool {
        self.reading == Reading::Right
    }

    fn see(&mut self, version: Version) {
        self.admission.see(version);
        self.reference.see(version);
    }

    fn cap(&self) -> Option<Step> {
        let cap = self.reference.cap();
        assert!(!self.right() || cap == self.admission.cap());
        cap
    }

    fn open(&self) -> bool {
        let open = self.reference.open();
        assert!(!self.right() || open == self.admission.open());
        open
    }

    fn admit(&mut self) -> Header {
        let header = self.reference.admit();
        assert!(!self.right() || self.admission.admit() == Some(header));
        header
    }

    fn returned(&mut self) {
        self.admission.returned();
        self.reference.live -= 1;
    }

    fn end(&mut self) {
        self.admission.end();
        self.reference.prompts_ended = true;
    }

    fn arrive(&mut self, header: Header, discarded: bool) -> Result<(), Failure> {
        self.reference.arrive(header, discarded);
        let Header { number, due, earlier, .. } = header;
        let seen = match discarded {
            _ if !self.right() => Ok(()),
            true => self.selector.discard(due, earlier, number),
            false => self.selector.arrive(due, earlier, number, number),
        };
        seen.map_err(|_| Failure::Bound)
    }

    fn frontier(&mut self, frontier: Option<Step>) {
        self.selector.frontier(frontier);
        self.reference.frontier = frontier;
    }

    fn ended(&mut self) {
        let groups = self.reference.groups();
        assert!(!self.right() || self.admission.groups() == groups);
        self.selector.ended(groups);
        self.reference.ended = Some(groups);
    }

    fn choose(&mut self) -> Result<Choice<u64>, Failure> {
        let choice = self.reference.choose()?;
        if self.right() {
            assert_eq!(self.selector.choose(), choice, "the selector and the definitions differ");
            assert_eq!(self.selector.next_step(), self.reference.next);
        }
        Ok(choice)
    }
}

struct Running {
    header: Header,
    tokens: Vec<Version>,
    length: u64,
    generator: usize,
}

struct Run {
    instance: Instance,
    rule: Rule,
    draws: Draws,
    /// Weights: published, and loaded by each of two generators; and what `admit` has seen.
    published: Version,
    loaded: [Version; 2],
    seen: Version,
    prompts: u64,
    admitted: u64,
    /// Number of the first group that was never admitted.
    next: u64,
    running: Vec<Running>,
    /// On the way to the selector, in any order.
    travelling: Vec<(Running, bool)>,
    /// There, and not trained: tokens by number.
    waiting: Vec<Running>,
    trained: u64,
    discarded: u64,
    /// Places on the feedback edge.
    returning: u64,
    view: Option<Step>,
    end_known: bool,
    waited: bool,
    over: bool,
    largest_lag: u64,
}

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    See,
    Hear,
    Admit,
    NoPrompt,
    Load(usize),
    Sample(usize),
    Arrive(usize),
    Frontier,
    End,
    Choose,
}

/// Runs the instance to its end under a reading of the rule; returns the largest lag of a trained token.
pub fn run(instance: Instance, reading: Reading) -> Result<u64, Failure> {
    let rule = Rule::new(&instance, &Start::at(instance.start, 0), reading);
    let mut run = Run {
        instance,
        rule,
        draws: Draws(instance.seed ^ 0x5eed),
        published: instance.start,
        loaded: [instance.start; 2],
        seen: instance.start,
        prompts: instance.prompts,
        admitted: 0,
        next: 0,
        running: Vec::new(),
        travelling: Vec::new(),
        waiting: Vec::new(),
        trained: 0,
        discarded: 0,
        returning: 0,
        view: Some(0),
        end_known: false,
        waited: false,
        over: false,
        largest_lag: 0,
    };
    // A speed of each kind of move: the slow ones are starved, as a slow edge or a slow worker would.
    let speeds: Vec<u64> = (0..10).map(|_| [1, 4, 30][run.draws.below(3) as usize]).collect();
    while !run.over {
        let moves = run.moves();
        let total: u64 = moves.iter().map(|(kind, _)| speeds[*kind]).sum();
        if total == 0 {
            return Err(Failure::Stuck);
        }
        let mut at = run.draws.below(total);
        let chosen = moves.iter().find(|(kind, _)| {
            let here = at < speeds[*kind];
            at = at.saturating_sub(speeds[*kind]);
            here
        });
        run.go(chosen.expect("a draw below the total").1)?;
    }
    let everything = run.trained + run.discarded == run.admitted;
    if !everything {
        return Err(Failure::NotWhole);
    }
    let steps = run.rule.reference.next - 1;
    if steps < instance.steps && run.prompts > 0 { Err(Failure::EndsEarly) } else { Ok(run.largest_lag) }
}

impl Run {
    fn true_frontier(&self) -> Option<Step> {
        let held = self.running.iter().chain(self.travelling.iter().map(|(group, _)| group)).map(|group| group.header.due);
        held.chain(self.rule.cap()).min()
    }

    /// The newest version that generators take.
    fn loadable(&self) -> Version {
        let versions = (0..=self.published).rev();
        versions.into_iter().find(|version| self.instance.schedule().swaps(*version)).unwrap_or(0)
    }

    fn room(&self) -> bool {
        let waiting =
            if self.rule.reading == Reading::RoomCountsWaiting { self.travelling.len() + self.waiting.len() } else { 0 };
        ((self.running.len() + waiting) as u64) < self.instance.room
    }

    /// All that can happen now, with the kind that its speed goes by.
    fn moves(&self) -> Vec<(usize, Move)> {
        let mut moves = Vec::new();
        let mut may = |condition: bool, kind, what| {
            if condition {
                moves.push((kind, what));
            }
        };
        let admits = self.rule.cap().is_some() && self.rule.open() && self.room();
        may(self.seen < self.published, 0, Move::See);
        may(self.returning > 0, 1, Move::Hear);
        may(admits && self.prompts > 0, 2, Move::Admit);
        may(admits && self.prompts == 0, 2, Move::NoPrompt);
        for generator in 0..2 {
            may(self.loaded[generator] < self.loadable(), 3 + generator, Move::Load(generator));
        }
        for (index, group) in self.running.iter().enumerate() {
            let fresh = self.loaded[group.generator] >= group.header.oldest || self.rule.reading == Reading::EarlySampling;
            may(fresh, 5, Move::Sample(index));
        }
        (0..self.travelling.len()).for_each(|index| may(true, 6, Move::Arrive(index)));
        may(self.view != self.true_frontier(), 7, Move::Frontier);
        may(self.rule.cap().is_none() && !self.end_known, 8, Move::End);
        may(!self.waited, 9, Move::Choose);
        moves
    }

    fn go(&mut self, what: Move) -> Result<(), Failure> {
        self.waited &= !matches!(what, Move::Arrive(_) | Move::Frontier | Move::End);
        match what {
            Move::See => {
                self.seen += 1 + self.draws.below(self.published - self.seen);
                self.rule.see(self.seen);
            }
            Move::Hear => {
                self.returning -= 1;
                self.rule.returned();
            }
            Move::Admit => {
                self.prompts -= 1;
                self.admitted += 1;
                let (header, length) = (self.rule.admit(), 1 + self.draws.below(self.instance.longest));
                self.next = self.next.max(header.number + 1);
                self.running.push(Running { header, tokens: Vec::new(), length, generator: (header.number % 2) as usize });
            }
            Move::NoPrompt => self.rule.end(),
            Move::Load(generator) => {
                let newer = (self.loaded[generator] + 1)..=self.loadable();
                let newer: Vec<Version> = newer.filter(|version| self.instance.schedule().swaps(*version)).collect();
                self.loaded[generator] = newer[self.draws.below(newer.len() as u64) as usize];
            }
            Move::Sample(index) => {
                let group = &mut self.running[index];
                group.tokens.push(self.loaded[group.generator]);
                if group.tokens.len() as u64 == group.length {
                    let group = self.running.swap_remove(index);
                    let discarded = self.draws.below(100) < self.instance.discards;
                    self.travelling.push((group, discarded));
                }
            }
            Move::Arrive(index) => self.arrive(index)?,
            Move::Frontier => {
                self.view = self.true_frontier();
                self.rule.frontier(self.view);
            }
            Move::End => {
                self.end_known = true;
                self.rule.ended();
            }
            Move::Choose if self.draws.below(100) < self.instance.stops => self.stop()?,
            Move::Choose => self.choose()?,
        }
        Ok(())
    }

    /// The run ends here and goes on: with the groups that wait, or, if it was killed, without.
    fn stop(&mut self) -> Result<(), Failure> {
        let Instance { batch, steps, .. } = self.instance;
        let clean = self.draws.below(2) == 0;
        let mut start = Start::at(self.published, self.next);
        let mut kept: Vec<Running> = if clean { self.waiting.drain(..).collect() } else { Vec::new() };
        kept.sort_by_key(|group| (group.header.due, group.header.number));
        for group in &kept {
            if !start.wait(group.header.due, group.header.number, self.instance.schedule(), steps, batch) {
                return Err(Failure::Bound);
            }
        }
        let lost =
            self.running.drain(..).chain(self.travelling.drain(..).map(|(group, _)| group)).chain(self.waiting.drain(..));
        start.again = lost.map(|group| group.header.number).collect();
        start.again.sort_unstable();
        self.prompts += start.again.len() as u64;
        self.admitted -= start.again.len() as u64;
        self.rule = Rule::new(&self.instance, &start, self.rule.reading);
        (self.loaded, self.seen, self.returning) = ([self.published; 2], self.published, 0);
        (self.view, self.end_known, self.waited) = (Some(0), false, false);
        for mut group in kept {
            group.header.earlier = start.earlier(group.header.due, batch);
            self.travelling.push((group, false));
        }
        Ok(())
    }

    fn arrive(&mut self, index: usize) -> Result<(), Failure> {
        let (group, discarded) = self.travelling.swap_remove(index);
        self.discarded += u64::from(discarded);
        if discarded && self.rule.reading == Reading::SilentDiscards {
            return Ok(());
        }
        self.rule.arrive(group.header, discarded)?;
        if discarded {
            self.returning += 1;
        } else {
            self.waiting.push(group);
        }
        Ok(())
    }

    fn choose(&mut self) -> Result<(), Failure> {
        let step = self.rule.reference.next;
        let (batch, last) = match self.rule.choose()? {
            Choice::Wait(Wait::Any | Wait::Forced) => {
                self.waited = true;
                return Ok(());
            }
            Choice::Done => {
                self.over = true;
                return Ok(());
            }
            Choice::Step(batch) => (batch, false),
            Choice::Last(batch) => (batch, true),
        };
        if last == (batch.len() as u64 == self.instance.batch) {
            return Err(Failure::NotWhole);
        }
        for number in batch {
            let place = self.waiting.iter().position(|group| group.header.number == number).ok_or(Failure::NotWhole)?;
            let group = self.waiting.swap_remove(place);
            for version in group.tokens {
                let lag = (step - 1).checked_sub(version).filter(|lag| *lag <= self.instance.max_lag).ok_or(Failure::Lag)?;
                self.largest_lag = self.largest_lag.max(lag);
            }
            if group.header.due < step {
                return Err(Failure::Lag);
            }
            self.trained += 1;
        }
        self.published = step;
        Ok(())
    }
}
