//! Which prompt a group gets by the success rates of bins: drawn by the kernel, learned from the dataflow, found again in a log.

use crate::error::{Error, Result};
use crate::jobs::say;
use crate::kernel::curriculum::{Curriculum, Tried};
use crate::spec::Spec;
use crate::store::view::Row;
use crate::store::{LogReader, Part, Viewed, scan};
use crate::tasks::draw::Draw;
use crate::tasks::item::Item;
use crate::tasks::source::{Prompts, Source};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use tidegate_operators::record::{Prompt, Status};
use tidegate_operators::start::Start;
use tidegate_operators::success::{Outcome, Rate, Recent};

/// What is known of bins, and how prompts are drawn from it.
pub struct Drawing {
    curriculum: Curriculum,
    seed: u64,
    tried: Tried,
}

impl Drawing {
    /// None where the specification draws without regard to success. What the start knows counts from the first prompt on.
    pub fn new(spec: &Spec, start: &Start, source: &Source) -> Option<Self> {
        let curriculum = spec.curriculum;
        if curriculum.kept() == 0 {
            return None;
        }
        let mut drawing = Drawing { curriculum, seed: spec.seed, tried: Tried::default() };
        let mut recent = Recent::new(curriculum.kept());
        recent.extend(start.outcomes.iter().copied());
        recent.rates().for_each(|(bin, rate)| drawing.learned(bin, rate, source));
        Some(drawing)
    }

    /// A bin has this rate now.
    pub fn learned(&mut self, bin: u64, rate: Rate, source: &Source) {
        let rate = rate.share();
        self.tried.set(bin, rate, source.share(bin) * self.curriculum.weight(rate));
    }

    /// The prompt of group `number`, its epoch, and the rate of its bin; None where the source has ended. A function of the seed,
    /// the number and what is known.
    ///
    /// # Errors
    /// As [`Source::at`].
    pub fn prompt(&self, number: u64, prompts: &mut Prompts) -> Result<Option<(u32, Item, Option<f32>)>> {
        let Some(natural) = prompts.source().bin(number) else { return Ok(None) };
        let mut draw = Draw::new(&[CURRICULUM, self.seed, number]);
        let (coin, pick) = (draw.unit(), draw.unit());
        let bin = self.curriculum.choose(natural, &self.tried, coin, pick);
        let rate = self.tried.rate(bin).map(|rate| rate as f32);
        Ok(prompts.of_bin(number, bin)?.map(|(epoch, item)| (epoch, item, rate)))
    }
}

/// Sets these draws apart from those of prompts' texts, whose keys begin with a half of the stream.
const CURRICULUM: u64 = 2;

/// The prompt that a group of the log had, made again; None where it was none of this source.
///
/// # Errors
/// As [`Source::at`].
pub fn again(spec: &Spec, number: u64, then: &Prompt, prompts: &mut Prompts) -> Result<Option<(u32, Item)>> {
    if spec.curriculum.kept() == 0 {
        return prompts.at(number);
    }
    match prompts.source().bins().of(&then.task, then.size, then.id) {
        Some(bin) => prompts.of_bin(number, bin),
        None => Ok(None),
    }
}

/// How the groups of a log went: of each bin those that count, and would count had the run never stopped. Groups that are
/// sampled again count when they have been.
///
/// A part that cannot be read is told, and what is in it does not count: prompts would be drawn a little otherwise, and nothing else.
///
/// # Errors
/// A log that cannot be listed.
pub fn outcomes(spec: &Spec, log: &LogReader, start: &Start, source: &Source) -> Result<Vec<(u64, Outcome)>> {
    let mut recent = Recent::new(spec.curriculum.kept());
    if spec.curriculum.kept() == 0 {
        return Ok(Vec::new());
    }
    let waiting: BTreeSet<u64> = start.waiting.iter().map(|(_, number)| *number).collect();
    let tails: Vec<bool> = log.parts().iter().map(|part| matches!(part, Part::Tail(_))).collect();
    let bins = source.bins();
    let bin_of = |row: &Row<'_>| bins.of(row.task, row.size, row.prompt_id);
    let make = |_: &mut (), index: usize, part: &mut Viewed<'_>| {
        let mut groups: Vec<Ended> = Vec::new();
        part.rows(|_, row| match groups.last_mut() {
            Some(group) if group.number == row.group => group.add(&row),
            _ => {
                let mut group = Ended { number: row.group, bin: bin_of(&row), waits: false, rewards: Vec::new() };
                group.add(&row);
                groups.push(group);
            }
        })?;
        // A group that waited in a tail and waits no more was trained since, or is sampled again.
        groups.retain(|group| !(tails[index] && group.waits) || waiting.contains(&group.number));
        Ok(groups.into_iter().filter_map(Ended::outcome).collect::<Vec<_>>())
    };
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    scan(
        log,
        threads,
        || (),
        make,
        |_, path, found: Result<Vec<(u64, Outcome)>>| {
            match found {
                Ok(found) => recent.extend(found),
                Err(error @ (Error::File { .. } | Error::Column { .. })) => {
                    say(format_args!("note      {error}; the success of its prompts ({}) is not counted", path.display()));
                }
                Err(error) => return Err(error),
            }
            Ok(())
        },
    )?;
    Ok(recent.outcomes().collect())
}

/// A group of the log, as far as its rows were read.
struct Ended {
    number: u64,
    bin: Option<u64>,
    waits: bool,
    rewards: Vec<Option<f32>>,
}

impl Ended {
    fn add(&mut self, row: &Row<'_>) {
        self.waits |= *row.status == Status::Waiting;
        self.rewards.push(row.reward);
    }

    fn outcome(self) -> Option<(u64, Outcome)> {
        self.bin.zip(Outcome::of(self.number, self.rewards))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::generated::Mix;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const BINS: usize = 5;

    fn spec(sets: &[&str]) -> Spec {
        let text = "[model]\nengine = \"toy\"\n[[task]]\nkind = \"sorting\"\n[curriculum]\nkind = \"success\"\n";
        Spec::from_text(text, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn prompts(spec: &Spec) -> Prompts {
        Source::Generated { mix: Mix::new(&spec.task).unwrap(), seed: spec.seed }.from(0)
    }

    /// Of each bin groups of eight, so many of them right.
    fn start(right: [&[u32]; BINS]) -> Start {
        let outcomes = (0..).zip(right).flat_map(|(bin, groups)| {
            let outcome = |(number, right): (u64, &u32)| (bin, Outcome { number, right: *right, scored: 8 });
            (0..).zip(groups).map(outcome).collect::<Vec<_>>()
        });
        Start { outcomes: Arc::new(outcomes.collect()), ..Start::default() }
    }

    fn counts(spec: &Spec, start: &Start, count: u64) -> [f64; BINS] {
        let mut prompts = prompts(spec);
        let drawing = Drawing::new(spec, start, prompts.source()).unwrap();
        let mut counts = [0.0; BINS];
        for number in 0..count {
            let (_, item, _) = drawing.prompt(number, &mut prompts).unwrap().unwrap();
            counts[item.bin as usize] += 1.0 / count as f64;
        }
        counts
    }

    /// Rates 0, 1/4, 1/2, 1 and none. Catches proportions that are not the weights', a share of the source that is left out, and a bin
    /// that was never tried and comes more or less often than by itself.
    #[test]
    fn proportions_are_the_weights() {
        let spec = spec(&[]);
        let found = counts(&spec, &start([&[0], &[2, 2], &[8, 0], &[8], &[]]), 20_000);
        let weights = [0.0, 0.25, 0.5, 1.0].map(|rate| spec.curriculum.weight(rate));
        let drawn = 0.8 * 0.9 / weights.iter().sum::<f64>();
        let expected = [weights.map(|weight| 0.02 + drawn * weight).to_vec(), vec![0.2]].concat();
        // Binomial: a standard deviation is at most 0.0035.
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.013), "{found:?}, not {expected:?}");
    }

    /// Catches an outcome that has aged and still counts: a bin that was never solved, and is half of the time now, is drawn as one that
    /// always was.
    #[test]
    fn an_aged_outcome_counts_no_more() {
        let spec = spec(&["curriculum.window=2"]);
        let rest: &[u32] = &[8, 8];
        let changed = counts(&spec, &start([&[0, 0, 0, 0, 3, 5], rest, rest, rest, rest]), 2000);
        let always = counts(&spec, &start([&[4, 4], rest, rest, rest, rest]), 2000);
        assert_eq!(changed, always);
        let before = counts(&spec, &start([&[0, 0, 0, 0], rest, rest, rest, rest]), 2000);
        assert!(changed[0] > 0.6 && before[0] < 0.25, "{changed:?}, {before:?}");
    }

    /// Catches a draw that depends on what was drawn before, on how rates came about, or not on the seed; a rate that is not the one that
    /// was known; and one that is kept where nothing is drawn by it.
    #[test]
    fn a_draw_is_a_function_of_seed_number_and_rates() {
        let one = spec(&[]);
        let known = start([&[0], &[2], &[4], &[8], &[8]]);
        let of = |spec: &Spec, known: &Start, numbers: &[u64]| -> Vec<(u64, String, Option<f32>)> {
            let mut prompts = prompts(spec);
            let drawing = Drawing::new(spec, known, prompts.source()).unwrap();
            let mut at = |number: &u64| drawing.prompt(*number, &mut prompts).unwrap().unwrap();
            numbers.iter().map(&mut at).map(|(_, item, rate)| (item.bin, item.text, rate)).collect()
        };
        let (up, down): (Vec<u64>, Vec<u64>) = ((0..50).collect(), (0..50).rev().collect());
        let drawn = of(&one, &known, &up);
        assert_eq!(drawn, of(&one, &known, &down).into_iter().rev().collect::<Vec<_>>());
        assert_ne!(drawn, of(&spec(&["seed=2"]), &known, &up));
        let rates = [0.0, 0.25, 0.5, 1.0, 1.0];
        assert!(drawn.iter().all(|(bin, _, rate)| *rate == Some(rates[*bin as usize])));
        let (mut prompts, mut drawing) =
            (prompts(&one), Drawing::new(&one, &Start::default(), prompts(&one).source()).unwrap());
        let natural: Vec<_> = up.iter().map(|number| prompts.at(*number).unwrap().unwrap().1.text).collect();
        let untried: Vec<_> =
            up.iter().map(|number| drawing.prompt(*number, &mut prompts).unwrap().unwrap().1.text).collect();
        assert_eq!(natural, untried, "what nothing is known of comes as it would");
        for right in [7, 3, 0] {
            (0..5).for_each(|bin| drawing.learned(bin, Rate { right, scored: 8 }, prompts.source()));
        }
        for (bin, right) in [(0, 0), (4, 8), (3, 8), (1, 2), (2, 4)] {
            drawing.learned(bin, Rate { right, scored: 8 }, prompts.source());
        }
        let told: Vec<_> = up.iter().map(|number| drawing.prompt(*number, &mut prompts).unwrap().unwrap().1.text).collect();
        assert_eq!(told, drawn.into_iter().map(|(_, text, _)| text).collect::<Vec<_>>());
        assert!(Drawing::new(&spec(&["curriculum.kind=off"]), &known, prompts.source()).is_none());
    }

    /// Catches a prompt of the log that is refused as another's, or one of another source that is not.
    #[test]
    fn a_prompt_of_the_log_is_made_again() {
        let spec = spec(&[]);
        let mut prompts = prompts(&spec);
        let drawing = Drawing::new(&spec, &start([&[0], &[0], &[4], &[0], &[0]]), prompts.source()).unwrap();
        let mut replaced = BTreeMap::new();
        for number in 0..60 {
            let (epoch, item, _) = drawing.prompt(number, &mut prompts).unwrap().unwrap();
            replaced.insert(item.text != prompts.at(number).unwrap().unwrap().1.text, number);
            let then = item.clone().into_prompt(epoch, Vec::new());
            // As it is read: without its bin.
            let then = Prompt { bin: 0, ..then };
            assert_eq!(again(&spec, number, &then, &mut prompts).unwrap(), Some((epoch, item)));
            let other = Prompt { size: 9, ..then };
            assert_eq!(again(&spec, number, &other, &mut prompts).unwrap(), None);
        }
        assert_eq!(replaced.len(), 2, "some prompts are drawn, some are the source's own");
    }
}
