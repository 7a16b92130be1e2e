//! What pictures show of a run's rows, as sums: of each part by itself, then of the parts one after the other. What is kept grows
//! neither with the rollouts nor with the steps.

use crate::jobs::analyze::{Beside, LagLimits, LagRow, Lags, MAX_LAG_TOLD, Place};
use crate::jobs::report::picks::{Pick, Picks};
use crate::jobs::report::ratios::Ratios;
use crate::jobs::report::series::Series;
use crate::store::Footer;
use crate::store::schema::stop_text;
use crate::store::view::Row;
use std::collections::BTreeMap;
use std::ops::Range;
use tidegate_operators::record::{Metrics, Status};
use tidegate_operators::success::solves;

/// Parts of the run that pictures tell apart from left to right.
const TIMES: usize = 48;
/// Parts of a response, by position.
pub(super) const POSITIONS: usize = 20;
/// Lengths that are told apart one by one; of longer ones 64 an octave.
const LENGTHS_TOLD: u32 = 4096;

/// Of one step or tail.
#[derive(Debug, Default)]
pub(super) struct PartSums {
    place: Option<Place>,
    metrics: Option<Metrics>,
    spec: String,
    model: String,
    tokenizer: String,
    limits: LagLimits,
    began_ns: Option<i64>,
    rows: u64,
    /// Rollouts that the step took, whatever became of their tokens.
    taken: u64,
    ratios: BTreeMap<i64, Ratios>,
    time: Time,
    group: Option<Tried>,
    picks: Picks,
}

/// Of a whole run.
#[derive(Debug, Default)]
pub(super) struct RunSums {
    /// Text of the newest specification, the hash of the model that the run began with, and of its tokenizer.
    pub(super) spec: String,
    pub(super) model: String,
    pub(super) tokenizer: String,
    pub(super) bound: Option<u64>,
    /// The first admission.
    pub(super) began_ns: Option<i64>,
    /// Rollouts that count, trained or not.
    pub(super) rows: u64,
    pub(super) series: Series,
    ratios: BTreeMap<i64, Ratios>,
    times: BTreeMap<usize, Time>,
    picks: Picks,
}

/// Of some steps that follow each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Time {
    pub(super) steps: Option<(u64, u64)>,
    /// Lag of trained tokens by position in the response.
    pub(super) lag: [Lags; POSITIONS],
    /// Trained rollouts by length, tokens, and by why they ended.
    pub(super) lengths: BTreeMap<u32, u64>,
    pub(super) stops: BTreeMap<&'static str, u64>,
    /// Groups of two rollouts with a reward or more, by how many of these are solved: none, some, all. Discarded ones count.
    pub(super) groups: [u64; 3],
}

/// The group whose rows are being read: they stand side by side.
#[derive(Clone, Copy, Debug)]
struct Tried {
    number: u64,
    rollouts: u64,
    solved: u64,
}

impl Beside for PartSums {
    fn begin(&mut self, place: Place, footer: &Footer) {
        self.place = Some(place);
        self.metrics = footer.metrics.as_ref().map(|metrics| Metrics { weights: Vec::new(), ..metrics.clone() });
        self.spec.clone_from(&footer.info.spec);
        self.model.clone_from(&footer.info.model);
        self.tokenizer.clone_from(&footer.info.tokenizer);
        self.limits = LagLimits::of(footer);
    }

    fn row(&mut self, at: usize, row: &Row<'_>) {
        self.rows += 1;
        let admitted = (row.admitted_ns > 0).then_some(row.admitted_ns);
        self.began_ns = [self.began_ns, admitted].into_iter().flatten().min();
        if let Some(reward) = row.reward {
            self.tried(row.group, solves(reward));
        }
        if *row.status == Status::Trained {
            self.trained(row);
        }
        if let Some(place) = self.place {
            self.picks.offer(place, at, row, self.limits);
        }
    }
}

impl PartSums {
    fn tried(&mut self, number: u64, solved: bool) {
        if self.group.is_none_or(|group| group.number != number) {
            self.end_group();
            self.group = Some(Tried { number, rollouts: 0, solved: 0 });
        }
        if let Some(group) = &mut self.group {
            group.rollouts += 1;
            group.solved += u64::from(solved);
        }
    }

    fn end_group(&mut self) {
        if let Some(group) = self.group.take().filter(|group| group.rollouts > 1) {
            let row = if group.solved == 0 { 0 } else { 1 + usize::from(group.solved == group.rollouts) };
            self.time.groups[row] += 1;
        }
    }

    fn trained(&mut self, row: &Row<'_>) {
        self.taken += 1;
        let time = &mut self.time;
        let (first, last) = time.steps.unwrap_or((row.step, row.step));
        time.steps = Some((first.min(row.step), last.max(row.step)));
        *time.lengths.entry(length_told(row.tokens)).or_default() += 1;
        *time.stops.entry(stop_text(row.stop)).or_default() += 1;
        let length = row.version.len();
        for (tokens, lag) in self.limits.lags(row) {
            add_lag(&mut time.lag, lag, &tokens, length);
            let ratios = self.ratios.entry(lag.clamp(-1, MAX_LAG_TOLD)).or_default();
            let both = row.logp_behavior.iter().zip(row.logp_current).take(tokens.end).skip(tokens.start);
            both.for_each(|(behavior, current)| ratios.add(current - behavior));
        }
    }
}

impl RunSums {
    /// Adds the part that comes after.
    pub(super) fn part(&mut self, place: Place, mut part: PartSums) {
        part.end_group();
        if !part.spec.is_empty() {
            self.spec = part.spec;
        }
        if self.model.is_empty() {
            (self.model, self.tokenizer) = (part.model, part.tokenizer);
        }
        self.bound = part.limits.bound.or(self.bound);
        self.began_ns = [self.began_ns, part.began_ns].into_iter().flatten().min();
        self.rows += part.rows;
        part.metrics.iter().for_each(|metrics| self.series.add(metrics, part.taken));
        for (lag, ratios) in part.ratios {
            self.ratios.entry(lag).or_default().merge(&ratios);
        }
        self.times.entry(place.index * TIMES.min(place.count) / place.count).or_default().merge(part.time);
        self.picks.merge(part.picks);
    }

    /// The parts of the run that trained something, in order.
    pub(super) fn times(&self) -> impl Iterator<Item = &Time> {
        self.times.values().filter(|time| time.steps.is_some())
    }

    /// Ratios of the tokens of each row.
    pub(super) fn ratios(&self, rows: &[LagRow]) -> Vec<Ratios> {
        let of = |row: &LagRow| {
            let mut sum = Ratios::default();
            self.ratios.range(row.from..=row.to).for_each(|(_, ratios)| sum.merge(ratios));
            sum
        };
        rows.iter().map(of).collect()
    }

    /// The rollouts to show.
    pub(super) fn picked(&self) -> Vec<Pick> {
        self.picks.all()
    }
}

impl Time {
    fn merge(&mut self, other: Time) {
        if let Some((first, last)) = other.steps {
            let (before, after) = self.steps.unwrap_or((first, last));
            self.steps = Some((before.min(first), after.max(last)));
        }
        self.merge_lag(&other);
        other.lengths.into_iter().for_each(|(length, n)| *self.lengths.entry(length).or_default() += n);
        other.stops.into_iter().for_each(|(stop, n)| *self.stops.entry(stop).or_default() += n);
        self.groups.iter_mut().zip(other.groups).for_each(|(sum, n)| *sum += n);
    }
}

impl Time {
    /// Adds the lags alone.
    pub(super) fn merge_lag(&mut self, other: &Time) {
        self.lag.iter_mut().zip(other.lag).for_each(|(sum, lag)| sum.merge(lag));
    }
}

/// Adds tokens in a row, of a response of so many, where they stand in it: in a response of fewer tokens than there are positions
/// each position counts once, in a longer one each token.
fn add_lag(positions: &mut [Lags; POSITIONS], lag: i64, tokens: &Range<usize>, length: usize) {
    if length < POSITIONS {
        let [from, to] = [tokens.start, tokens.end].map(|token| (token * POSITIONS).div_ceil(length));
        positions[from..to].iter_mut().for_each(|at| at.add(lag, 1));
        return;
    }
    let mut from = tokens.start;
    while from < tokens.end {
        let position = from * POSITIONS / length;
        let to = ((position + 1) * length).div_ceil(POSITIONS).min(tokens.end);
        positions[position].add(lag, to - from);
        from = to;
    }
}

/// The length that one is counted as: itself, or beyond [`LENGTHS_TOLD`] the least of those that are counted together.
fn length_told(tokens: usize) -> u32 {
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    if tokens < LENGTHS_TOLD {
        return tokens;
    }
    // The seven highest bits are kept.
    let dropped = u32::BITS - tokens.leading_zeros() - 7;
    tokens >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a position that no token of a short response reaches, one that two reach, and a token of a long one that counts twice.
    #[test]
    fn tokens_stand_where_they_are_in_the_response() {
        let mut short = [Lags::default(); POSITIONS];
        add_lag(&mut short, 3, &(0..2), 3);
        add_lag(&mut short, 1, &(2..3), 3);
        let found = short.map(|at| (at.mean.count(), at.max));
        assert_eq!((&found[..14], &found[14..]), (&[(1, Some(3)); 14][..], &[(1, Some(1)); 6][..]));
        let mut long = [Lags::default(); POSITIONS];
        add_lag(&mut long, 5, &(0..30), 50);
        add_lag(&mut long, 4, &(30..50), 50);
        assert_eq!(long.iter().map(|at| at.mean.count()).sum::<u64>(), 50);
        assert_eq!((long[0].mean.count(), long[11].max, long[12].max), (3, Some(5), Some(4)));
    }

    #[test]
    fn long_lengths_are_told_apart_by_their_size() {
        assert_eq!([0, 1, 4095, 4096, 4097, 4159, 4160].map(length_told), [0, 1, 4095, 4096, 4096, 4096, 4160]);
        assert_eq!(length_told(100_000), 99_328);
        assert_eq!(length_told(usize::MAX), 0xFE00_0000);
    }
}
