//! A run's generate, score and train as events on a virtual clock, by the operators' own admission and selection: what the closed
//! forms ([`capacity`](crate::kernel::capacity)) leave out can be seen here, queues, stragglers, the way of weights and rewards, pauses.

use crate::engine::emulation::generator::LENGTH;
use crate::engine::sampler::uniform;
use crate::kernel::capacity::{Rate, Speed};
use crate::kernel::lengths::Lengths;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use tidegate_operators::lag::Admission;
use tidegate_operators::plan::Order;
use tidegate_operators::schedule::Schedule;
use tidegate_operators::select::{Choice, Selector};
use tidegate_operators::start::Start;

/// What is simulated. Times are in the unit of `speed`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    pub schedule: Schedule,
    /// Accelerators that generate and that train; by turns all of them do both.
    pub generators: usize,
    pub learners: usize,
    /// Sequences in progress on each generator.
    pub slots: usize,
    /// Rollouts of a group, and groups of a step.
    pub group_size: usize,
    pub batch_groups: u64,
    pub steps: u64,
    pub lengths: Lengths,
    pub speed: Speed,
    /// How long new weights hold a generator up.
    pub transfer: f64,
    /// From a rollout's last token to its reward.
    pub reward: f64,
    /// The learners' pause after every so many steps; 0 steps: none.
    pub checkpoint: f64,
    pub checkpoint_steps: u64,
    pub seed: u64,
}

/// What it came to in the [steady state](Span).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    pub rate: Rate,
    /// Shares of the time that the learners had nothing to train, and generators sampled nothing.
    pub learners_waited: f64,
    pub generators_waited: f64,
    /// Share of the slots that were in use, while the generator sampled.
    pub slots_used: f64,
}

/// A sequence in progress or done.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    group: usize,
    /// Sampled in the generator's decode steps `first + 1 ..= last`.
    first: u64,
    last: u64,
    generator: usize,
}

/// A group under way.
#[derive(Clone, Debug)]
struct Group {
    number: u64,
    due: u64,
    earlier: u64,
    oldest: u64,
    /// Sequences without a reward yet.
    open: usize,
    done: Vec<Sequence>,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A generator's decode step, or its loading of weights, is over.
    Decoded(usize),
    /// A sequence, by its place, has its reward.
    Rewarded(usize),
    Trained,
}

/// A generator.
#[derive(Clone, Debug, Default)]
struct Generator {
    /// By the decode step in which they end.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    /// Sequences that wait for weights that are young enough.
    queue: VecDeque<(usize, usize)>,
    /// Admitted to it and not done.
    taken: usize,
    /// Decode steps done.
    steps: u64,
    version: u64,
    /// Sums of the versions of decode steps 1..=i.
    versions: Vec<u64>,
    busy: bool,
    idle_since: f64,
    idle: f64,
}

/// The state of a simulation.
struct World<'a> {
    scene: &'a Scene,
    span: Span,
    now: f64,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    scheduled: u64,
    admission: Admission,
    selector: Selector<usize>,
    generators: Vec<Generator>,
    groups: Vec<Group>,
    sequences: Vec<Sequence>,
    /// Groups on their way to the selector, by due.
    on_way: BTreeMap<u64, u64>,
    version: u64,
    training: Option<Vec<usize>>,
    idle_since: f64,
    idle: f64,
    sums: Sums,
    /// Sequences in use and slots, over decode steps.
    used: (f64, f64),
    half: Option<(f64, Vec<f64>)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    tokens: f64,
    lag: f64,
    max_lag: u64,
}

/// A time that orders: never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The steps of a run that are its steady state: without those that fill the pipeline and, of a pipeline, those for which less and less
/// is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// It is measured from the end of this step, half of them and whole phases, ...
    pub after: u64,
    /// ... to the end of this one: from the next one on admission is bounded by the run's end.
    pub last: u64,
}

impl Span {
    /// Of a run of so many steps.
    pub fn of(schedule: Schedule, steps: u64) -> Span {
        let phase = schedule.phase().unwrap_or(1);
        let after = (steps / 2).div_ceil(phase) * phase;
        let full = steps - schedule.bound().min(steps);
        Span { after, last: if schedule.phase().is_some() { steps } else { full.max(after + 1) } }
    }
}

/// Runs a scene to its last step; None where it cannot: no generator, no learner, or slots below the group's size.
pub fn simulate(scene: &Scene) -> Option<Simulated> {
    if scene.generators == 0
        || scene.learners == 0
        || scene.slots < scene.group_size
        || scene.group_size == 0
        || scene.steps < 2
    {
        return None;
    }
    let mut world = World::new(scene);
    world.admit();
    world.wake();
    while let Some(Reverse((Time(now), _, event))) = world.events.pop() {
        world.now = now;
        match event {
            Event::Decoded(generator) => world.decoded(generator),
            Event::Rewarded(sequence) => world.rewarded(sequence),
            Event::Trained => world.trained(),
        }
        if world.version >= world.span.last {
            break;
        }
        world.admit();
        world.choose();
        world.wake();
    }
    world.result()
}

impl<'a> World<'a> {
    fn new(scene: &'a Scene) -> Self {
        let selector = Selector::new(Start::default(), scene.steps, scene.batch_groups, order(scene.schedule));
        let by_turns = scene.schedule.phase().is_some();
        World {
            scene,
            span: Span::of(scene.schedule, scene.steps),
            now: 0.0,
            events: BinaryHeap::new(),
            scheduled: 0,
            admission: Admission::new(scene.schedule, Start::default(), scene.steps, scene.batch_groups),
            selector: if by_turns { selector.by_turns() } else { selector },
            generators: vec![Generator { versions: vec![0], ..Generator::default() }; scene.generators],
            groups: Vec::new(),
            sequences: Vec::new(),
            on_way: BTreeMap::new(),
            version: 0,
            training: None,
            idle_since: 0.0,
            idle: 0.0,
            sums: Sums::default(),
            used: (0.0, 0.0),
            half: None,
        }
    }

    fn at(&mut self, after: f64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((Time(self.now + after), self.scheduled, event)));
    }

    /// As `admit` does: the generator with the fewest in progress gets the group.
    fn admit(&mut self) {
        loop {
            let freest = (0..self.generators.len()).min_by_key(|i| self.generators[*i].taken);
            let Some(at) = freest.filter(|at| self.generators[*at].taken < self.scene.slots) else { return };
            let Some(header) = self.admission.admit() else { return };
            let size = self.scene.group_size;
            let place = self.groups.len();
            let done = Vec::with_capacity(size);
            let (number, due, earlier, oldest) = (header.number, header.due, header.earlier, header.oldest);
            self.groups.push(Group { number, due, earlier, oldest, open: size, done });
            *self.on_way.entry(due).or_default() += 1;
            let generator = &mut self.generators[at];
            generator.taken += size;
            generator.queue.extend((0..size).map(|sample| (place, sample)));
        }
    }

    /// Generators that can sample, or load weights, and do nothing, begin.
    fn wake(&mut self) {
        for at in 0..self.generators.len() {
            if !self.generators[at].busy {
                self.begin(at);
            }
        }
    }

    /// One decode step of a generator, after it took new weights and started what waits and may.
    fn begin(&mut self, at: usize) {
        let scene = self.scene;
        let newest = if scene.schedule.phase().is_none_or(|steps| self.version.is_multiple_of(steps)) {
            self.version
        } else {
            self.generators[at].version
        };
        let generator = &mut self.generators[at];
        let stall = if newest > generator.version && !generator.idles() { scene.transfer } else { 0.0 };
        generator.version = newest;
        while generator.running.len() < scene.slots {
            let Some(&(group, sample)) = generator.queue.front() else { break };
            if self.groups[group].oldest > generator.version {
                break;
            }
            generator.queue.pop_front();
            let draw = uniform(scene.seed, self.groups[group].number, sample as u32, LENGTH);
            let last = generator.steps + scene.lengths.draw(draw) as u64;
            let place = self.sequences.len();
            self.sequences.push(Sequence { group, first: generator.steps, last, generator: at });
            generator.running.push(Reverse((last, place)));
        }
        let running = generator.running.len();
        if running == 0 {
            if generator.busy {
                generator.idle_since = self.now;
            }
            generator.busy = false;
            return;
        }
        if !generator.busy {
            generator.idle += self.now - generator.idle_since;
        }
        generator.busy = true;
        if self.half.is_some() {
            self.used.0 += running as f64;
            self.used.1 += scene.slots as f64;
        }
        self.at(stall + scene.speed.decode(running as f64), Event::Decoded(at));
    }

    fn decoded(&mut self, at: usize) {
        let generator = &mut self.generators[at];
        generator.steps += 1;
        let before = generator.versions.last().copied().unwrap_or(0);
        generator.versions.push(before + generator.version);
        let mut ended = Vec::new();
        while let Some(&Reverse((last, place))) = generator.running.peek() {
            if last > generator.steps {
                break;
            }
            generator.running.pop();
            generator.taken -= 1;
            ended.push(place);
        }
        for place in ended {
            if self.scene.reward > 0.0 {
                self.at(self.scene.reward, Event::Rewarded(place));
            } else {
                self.rewarded(place);
            }
        }
        self.admit();
        self.begin(at);
    }

    fn rewarded(&mut self, place: usize) {
        let sequence = self.sequences[place];
        let group = &mut self.groups[sequence.group];
        group.done.push(sequence);
        group.open -= 1;
        if group.open == 0 {
            let (due, earlier, number) = (group.due, group.earlier, group.number);
            let left = self.on_way.entry(due).or_default();
            *left -= 1;
            if *left == 0 {
                self.on_way.remove(&due);
            }
            // The admission keeps the rule, so nothing it sends is refused.
            let kept = self.selector.arrive(due, earlier, number, sequence.group);
            debug_assert_eq!(kept, Ok(()), "the admission keeps the rule");
        }
    }

    /// The next step, if the learners have nothing to do and the selector has one.
    fn choose(&mut self) {
        if self.training.is_some() {
            return;
        }
        let on_way = self.on_way.keys().next().copied();
        let frontier = on_way.into_iter().chain(self.admission.cap()).min();
        self.selector.frontier(frontier);
        let Choice::Step(groups) = self.selector.choose() else { return };
        let tokens: u64 = groups.iter().flat_map(|g| &self.groups[*g].done).map(|s| s.last - s.first).sum();
        let step = self.version + 1;
        let pause = self.scene.checkpoint_steps != 0 && step.is_multiple_of(self.scene.checkpoint_steps);
        let pause = if pause { self.scene.checkpoint } else { 0.0 };
        self.idle += self.now - self.idle_since;
        self.training = Some(groups);
        self.at(tokens as f64 * self.scene.speed.train / self.scene.learners as f64 + pause, Event::Trained);
    }

    fn trained(&mut self) {
        let Some(groups) = self.training.take() else { return };
        self.version += 1;
        self.idle_since = self.now;
        self.admission.see(self.version);
        if self.half.is_some() {
            for sequence in groups.iter().flat_map(|group| &self.groups[*group].done) {
                let versions = &self.generators[sequence.generator].versions;
                let of = |step: u64| versions[step as usize];
                let tokens = sequence.last - sequence.first;
                let lag = tokens * (self.version - 1) - (of(sequence.last) - of(sequence.first));
                let oldest = of(sequence.first + 1) - of(sequence.first);
                self.sums.tokens += tokens as f64;
                self.sums.lag += lag as f64;
                self.sums.max_lag = self.sums.max_lag.max(self.version - 1 - oldest);
            }
        }
        for group in groups {
            self.groups[group].done = Vec::new();
        }
        if self.half.is_none() && self.version >= self.span.after {
            self.half = Some((self.now, self.generators.iter().map(|g| g.idle_until(self.now)).collect()));
            self.idle = 0.0;
        }
    }

    fn result(self) -> Option<Simulated> {
        let (start, idle_before) = self.half?;
        let time = self.now - start;
        let idle: f64 = self.generators.iter().zip(&idle_before).map(|(g, before)| g.idle_until(self.now) - before).sum();
        (time > 0.0 && self.sums.tokens > 0.0).then(|| Simulated {
            rate: Rate {
                tokens: self.sums.tokens / time,
                max_lag: self.sums.max_lag,
                mean_lag: self.sums.lag / self.sums.tokens,
            },
            learners_waited: self.idle / time,
            generators_waited: idle / (time * self.generators.len() as f64),
            slots_used: self.used.0 / self.used.1.max(1.0),
        })
    }
}

impl Generator {
    fn idles(&self) -> bool {
        self.running.is_empty()
    }

    fn idle_until(&self, now: f64) -> f64 {
        self.idle + if self.busy { 0.0 } else { now - self.idle_since }
    }
}

/// As a run orders them.
fn order(schedule: Schedule) -> Order {
    if schedule.phase().is_some() { Order::Shuffled } else { Order::Arrival }
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod tests;
