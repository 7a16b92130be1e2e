//! Which rollouts a page shows: a few of each kind that one would look for, chosen while the log is read; only where they stand is
//! kept.

use crate::jobs::analyze::{LagLimits, Place, logp_mean};
use crate::kernel::mean::Mean;
use crate::store::Part;
use crate::store::view::Row;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use tidegate_operators::record::Status;

/// Rollouts of a kind.
const OF_A_KIND: usize = 40;

/// Why a rollout is shown, and what its place among its kind goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Evenly over the run, by a hash of its number.
    Drawn,
    First,
    Last,
    /// By reward; of equal ones by the hash.
    Best,
    Worst,
    /// By the mean lag of its trained tokens.
    MostLag,
    Longest,
    /// By mean `logp_behavior`, the lowest first.
    Surprising,
}

const KINDS: [Kind; 8] =
    [Kind::Drawn, Kind::First, Kind::Last, Kind::Best, Kind::Worst, Kind::MostLag, Kind::Longest, Kind::Surprising];

impl Kind {
    /// As the page calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Drawn => "drawn evenly",
            Kind::First => "first",
            Kind::Last => "last",
            Kind::Best => "best",
            Kind::Worst => "worst",
            Kind::MostLag => "most lag",
            Kind::Longest => "longest",
            Kind::Surprising => "surprising",
        }
    }

    /// Of so many: what is first and last is soon seen.
    fn share(self, most: usize) -> usize {
        if matches!(self, Kind::First | Kind::Last) { most.div_ceil(3) } else { most }
    }

    /// The larger, the sooner it is shown; None of one that is none of these.
    fn measure(self, place: Place, row: &Row<'_>, limits: LagLimits) -> Option<f64> {
        let measure = match self {
            Kind::Drawn => 0.0,
            Kind::First => -(place.index as f64),
            Kind::Last => place.index as f64,
            Kind::Best => row.reward?.into(),
            Kind::Worst => (-row.reward?).into(),
            Kind::MostLag => lag_mean(row, limits)?,
            Kind::Longest => row.tokens as f64,
            Kind::Surprising => -logp_mean(row)?,
        };
        (!measure.is_nan()).then_some(measure)
    }
}

/// A rollout to show: where it stands, and why.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pick {
    pub(super) part: Part,
    pub(super) at: usize,
    pub(super) tokens: usize,
    /// Of its step.
    pub(super) limits: LagLimits,
    pub(super) kinds: Vec<Kind>,
}

/// The first few of each kind so far.
#[derive(Clone, Debug)]
pub(super) struct Picks {
    of: [Vec<Candidate>; KINDS.len()],
    most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    measure: f64,
    /// Of equal measures the larger hash, so that they are from all over the run.
    hash: u64,
    index: usize,
    part: Part,
    at: usize,
    tokens: usize,
    limits: LagLimits,
}

impl Default for Picks {
    fn default() -> Self {
        Picks { of: Default::default(), most: OF_A_KIND }
    }
}

impl Picks {
    /// Takes note of a row that has tokens.
    pub(super) fn offer(&mut self, place: Place, at: usize, row: &Row<'_>, limits: LagLimits) {
        if row.tokens == 0 {
            return;
        }
        let hash = hash(row.group, row.sample);
        for (of, kind) in self.of.iter_mut().zip(KINDS) {
            if let Some(measure) = kind.measure(place, row, limits) {
                let Place { index, part, .. } = place;
                let candidate = Candidate { measure, hash, index, part, at, tokens: row.tokens, limits };
                keep(of, candidate, kind.share(self.most));
            }
        }
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, other: Picks) {
        for ((of, others), kind) in self.of.iter_mut().zip(other.of).zip(KINDS) {
            others.into_iter().for_each(|candidate| keep(of, candidate, kind.share(self.most)));
        }
    }

    /// Each rollout once, in the order of the log.
    pub(super) fn all(&self) -> Vec<Pick> {
        let mut picks: BTreeMap<(usize, usize), Pick> = BTreeMap::new();
        for (of, kind) in self.of.iter().zip(KINDS) {
            for candidate in of {
                let Candidate { part, at, index, tokens, limits, .. } = *candidate;
                let pick = picks.entry((index, at)).or_insert_with(|| Pick { part, at, tokens, limits, kinds: Vec::new() });
                pick.kinds.push(kind);
            }
        }
        picks.into_values().collect()
    }
}

fn keep(of: &mut Vec<Candidate>, candidate: Candidate, most: usize) {
    let place = of.partition_point(|other| order(other, &candidate) != Ordering::Greater);
    if place < most {
        of.insert(place, candidate);
        of.truncate(most);
    }
}

/// What is shown first is less.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.measure.total_cmp(&a.measure).then(b.hash.cmp(&a.hash)).then((a.index, a.at).cmp(&(b.index, b.at)))
}

/// Of trained tokens; None where there are none.
fn lag_mean(row: &Row<'_>, limits: LagLimits) -> Option<f64> {
    let mut mean = Mean::default();
    if *row.status == Status::Trained {
        limits.lags(row).for_each(|(tokens, lag)| mean.add_times(lag as f64, tokens.len() as u64));
    }
    mean.value()
}

/// Spreads rollouts evenly.
fn hash(group: u64, sample: u32) -> u64 {
    let hash = blake3::hash(&(u128::from(group) << 32 | u128::from(sample)).to_le_bytes());
    let (first, _) = hash.as_bytes().split_at(8);
    first.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::view::Versions;

    fn row<'a>(group: u64, reward: f32, version: &'a [i32], logp_behavior: &'a [f32]) -> Row<'a> {
        let (reward, tokens, version) = (Some(reward), version.len(), Versions::Narrow(version));
        Row { step: 9, status: &Status::Trained, group, tokens, logp_behavior, version, reward, ..Row::blank() }
    }

    fn place(index: usize) -> Place {
        Place { index, count: 100, part: Part::Step(index as u64 + 1) }
    }

    /// One of each kind, of five parts of one row. Catches a measure that is taken the wrong way round, a rollout that is shown twice,
    /// one without tokens, and a NaN that is the best.
    #[test]
    fn each_kind_has_its_own() {
        let mut picks = Picks { most: 1, ..Picks::default() };
        let rows = [
            row(0, 0.5, &[8, 8], &[-1.0, -1.0]),
            row(1, 1.0, &[8], &[-1.0]),
            row(2, f32::NAN, &[6, 7], &[-1.0, -1.0]),
            row(3, 0.0, &[8, 8, 8], &[-1.0, -1.0, -1.0]),
            row(4, 0.5, &[8], &[-9.0]),
            row(5, 2.0, &[], &[]),
        ];
        for (index, row) in rows.iter().enumerate() {
            let mut part = Picks { most: 1, ..Picks::default() };
            part.offer(place(index), 0, row, LagLimits::default());
            picks.merge(part);
        }
        let mut found = picks.all();
        found.iter_mut().for_each(|pick| pick.kinds.retain(|kind| *kind != Kind::Drawn));
        let of = |pick: &Pick| (pick.part, pick.tokens, pick.kinds.clone());
        let mut found: Vec<_> = found.iter().map(of).collect();
        found.retain(|(_, _, kinds)| !kinds.is_empty());
        let step = |k, tokens, kinds: &[Kind]| (Part::Step(k), tokens, kinds.to_vec());
        assert_eq!(
            found,
            [
                step(1, 2, &[Kind::First]),
                step(2, 1, &[Kind::Best]),
                step(3, 2, &[Kind::MostLag]),
                step(4, 3, &[Kind::Worst, Kind::Longest]),
                step(5, 1, &[Kind::Last, Kind::Surprising]),
            ]
        );
    }

    /// Which ones are drawn depends neither on the parts nor on their order, and they are from all over.
    #[test]
    fn some_are_drawn_evenly() {
        let drawn = |parts: usize| {
            let mut picks = Picks { most: 40, ..Picks::default() };
            let each = 1000 / parts;
            for index in 0..parts {
                let mut part = Picks { most: 40, ..Picks::default() };
                for at in 0..each {
                    let row = row((index * each + at) as u64, 1.0, &[8], &[-1.0]);
                    part.offer(place(index), at, &row, LagLimits::default());
                }
                picks.merge(part);
            }
            let all = picks.all().into_iter().filter(|pick| pick.kinds.contains(&Kind::Drawn));
            all.map(|pick| match pick.part {
                Part::Step(k) | Part::Tail(k) => (k as usize - 1) * each + pick.at,
            })
            .collect::<Vec<_>>()
        };
        let one = drawn(1);
        assert_eq!((one.len(), drawn(10), drawn(100)), (40, one.clone(), one.clone()));
        let quarters = [0, 1, 2, 3].map(|q| one.iter().filter(|n| **n / 250 == q).count());
        assert!(quarters.iter().all(|n| (4..=18).contains(n)), "{quarters:?}");
    }
}
