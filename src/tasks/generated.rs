//! Generated tasks: an endless stream of training prompts, and a fixed set of held-out ones that training never sees.
//!
//! Item `i` of a stream is a function of (seed, `i`) alone, so a run that resumes goes on from an index. Which half a prompt
//! belongs to is decided by a hash of its text, 1 in [`HELD_OUT_SHARE`] being held out: whatever the seed, the sizes or the
//! other tasks of the mix, no held-out text is ever a training text.

use super::draw::{Draw, text_hash};
use super::example::{Example, Slips};
use super::item::Item;
use super::spec::TaskSpec;
use super::{addition, expression, program, sorting};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Every character of the generated tasks' prompts and completions.
pub const ALPHABET: &str = "0123456789+-*=;>:asepwhilf(){}< ";

/// One prompt in this many is held out.
pub const HELD_OUT_SHARE: u64 = 16;

/// The seed of the held-out items: not the run's, so that runs with different seeds are compared on the same prompts.
const HELD_OUT_SEED: u64 = 0;

/// A task that tidegate makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Digits in ascending order: 4 to 8 tokens.
    Sorting,
    /// Column addition with the carry written out: 20 to 41 tokens.
    Addition,
    /// A chain of operations on digits, rewritten step by step: 25 to 105 tokens.
    Expression,
    /// A small program with a loop, run by hand: mostly 8 to 73 tokens, with a tail to 348.
    Program,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Sorting, Kind::Addition, Kind::Expression, Kind::Program];

    /// The name in specs, in the `task` column and in the rewards.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sorting => "sorting",
            Kind::Addition => "addition",
            Kind::Expression => "expression",
            Kind::Program => "program",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Smallest and largest size that a spec may ask for: digits, digits of each number, operations, tens.
    pub fn sizes(self) -> (u32, u32) {
        match self {
            Kind::Sorting => sorting::SIZES,
            Kind::Addition => addition::SIZES,
            Kind::Expression => expression::SIZES,
            Kind::Program => program::SIZES,
        }
    }

    /// Smallest and largest size where the spec names none.
    pub fn default_sizes(self) -> (u32, u32) {
        match self {
            Kind::Sorting => sorting::DEFAULT_SIZES,
            Kind::Addition => addition::DEFAULT_SIZES,
            Kind::Expression => expression::DEFAULT_SIZES,
            Kind::Program => program::DEFAULT_SIZES,
        }
    }

    /// One example of the given size.
    pub fn example(self, size: u32, slips: Slips, draw: &mut Draw) -> Example {
        match self {
            Kind::Sorting => sorting::example(size, slips, draw),
            Kind::Addition => addition::example(size, slips, draw),
            Kind::Expression => expression::example(size, slips, draw),
            Kind::Program => program::example(size, slips, draw),
        }
    }

    /// How many prompts of the given size there are.
    pub fn distinct(self, size: u32) -> f64 {
        match self {
            Kind::Sorting => sorting::distinct(size),
            Kind::Addition => addition::distinct(size),
            Kind::Expression => expression::distinct(size),
            Kind::Program => program::distinct(size),
        }
    }

    /// The final answer that a completion gives: all of it, or what follows the last `>`; `None` where that mark is missing.
    pub fn answer_in(self, completion: &str) -> Option<&str> {
        match self {
            Kind::Sorting => Some(completion),
            Kind::Addition | Kind::Expression | Kind::Program => completion.rsplit_once('>').map(|(_, answer)| answer),
        }
    }
}

/// A mix of generated tasks, checked and with its sizes spelt out.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Kind, smallest and largest size, slips, and the sum of the weights up to and with this one.
    tasks: Vec<(Kind, u32, u32, Slips, f64)>,
    bins: Vec<Bin>,
}

/// Prompts of a mix that are about as hard as each other: of one task, and of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    pub kind: Kind,
    pub size: u32,
    /// Of the mix's prompts, in 0..=1.
    pub share: f64,
}

impl Mix {
    /// Checks the `[[task]]` tables of a spec.
    ///
    /// # Errors
    /// No task; a weight that is not a positive number; sizes that are the wrong way round or that the task does not have.
    pub fn new(specs: &[TaskSpec]) -> Result<Mix> {
        let mut total = 0.0;
        let mut tasks = Vec::with_capacity(specs.len());
        for (i, spec) in specs.iter().enumerate() {
            let TaskSpec { kind, weight, min_size, max_size, slips } = spec.clone().with_defaults();
            let key = |field: &str| format!("task[{i}].{field}");
            if !(weight > 0.0 && weight.is_finite()) {
                return Err(Error::config(
                    key("weight"),
                    weight,
                    "a weight is a number above 0; leave a task out to switch it off",
                ));
            }
            if !(0.0..=1.0).contains(&slips) {
                return Err(Error::config(key("slips"), slips, "a share is a number from 0 to 1"));
            }
            let (smallest, largest) = kind.sizes();
            let (low, high) = (min_size.unwrap_or(smallest), max_size.unwrap_or(largest));
            for (field, value) in [("min_size", low), ("max_size", high)] {
                if !(smallest..=largest).contains(&value) {
                    let reason = format!("{} has sizes {smallest} to {largest}", kind.name());
                    return Err(Error::config(key(field), value, reason));
                }
            }
            if low > high {
                let reason = format!("it is above max_size = {high}; the nearest legal value is {high}");
                return Err(Error::config(key("min_size"), low, reason));
            }
            total += weight;
            tasks.push((kind, low, high, Slips { rate: slips }, total));
        }
        if tasks.is_empty() {
            let names = Kind::ALL.map(Kind::name).join(", ");
            return Err(Error::config("task", "[]", format!("at least one [[task]] is needed, with kind = one of {names}")));
        }
        Ok(Mix { bins: bins(&tasks, total), tasks })
    }

    /// Its bins; an [item](Item::bin) names its own by the place in here, which is the same as long as the mix is.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// The place of the bin of a task, by name, and a size.
    pub fn bin(&self, task: &str, size: u32) -> Option<u64> {
        let kind = Kind::from_name(task)?;
        self.bins.iter().position(|bin| (bin.kind, bin.size) == (kind, size)).map(|place| place as u64)
    }

    /// An item of the training half for place `index` of the stream of `seed`, of the bin at `bin`: the stream's own where that is of
    /// it. None if there is no such bin.
    pub fn training_of(&self, seed: u64, index: u64, bin: u64) -> Option<Item> {
        let natural = self.training(seed, index);
        if natural.bin == bin {
            return Some(natural);
        }
        let Bin { kind, size, .. } = *self.bins.get(usize::try_from(bin).ok()?)?;
        let mut draw = Draw::new(&[Split::Training as u64, seed, index, bin]);
        loop {
            let example = kind.example(size, Slips::NONE, &mut draw);
            if Split::of(&example.prompt) == Split::Training {
                return Some(item(index, bin, kind, size, example));
            }
        }
    }

    /// Item `index` of the endless training stream of `seed`.
    pub fn training(&self, seed: u64, index: u64) -> Item {
        self.item(Split::Training, seed, index)
    }

    /// Held-out item `index`: the same for every run with this mix.
    pub fn held_out(&self, index: u64) -> Item {
        self.item(Split::HeldOut, HELD_OUT_SEED, index)
    }

    fn item(&self, split: Split, seed: u64, index: u64) -> Item {
        let mut draw = Draw::new(&[split as u64, seed, index]);
        let total = self.tasks.last().map_or(0.0, |&(.., sum)| sum);
        let at = draw.unit() * total;
        let (kind, low, high, slips, _) =
            *self.tasks.iter().find(|&&(.., sum)| at < sum).unwrap_or(&self.tasks[self.tasks.len() - 1]);
        // Ends: every size that a spec may ask for has prompts in both halves (checked in the tests for the smallest).
        loop {
            let size = draw.between(low, high);
            let example = kind.example(size, slips, &mut draw);
            if Split::of(&example.prompt) == split {
                let bin = self.bins.iter().position(|bin| (bin.kind, bin.size) == (kind, size));
                return item(index, bin.unwrap_or(0) as u64, kind, size, example);
            }
        }
    }
}

fn item(id: u64, bin: u64, kind: Kind, size: u32, example: Example) -> Item {
    let Example { prompt: text, completion, answer } = example;
    Item { id, task: kind.name().into(), text, answer, completion, size, bin, ..Item::default() }
}

/// By task in the order of the mix, then by size. A size that two entries have is one bin.
fn bins(tasks: &[(Kind, u32, u32, Slips, f64)], total: f64) -> Vec<Bin> {
    let mut bins: Vec<Bin> = Vec::new();
    let mut before = 0.0;
    for (kind, low, high, _, sum) in tasks.iter().copied() {
        let share = (sum - before) / total / f64::from(high - low + 1);
        before = sum;
        for size in low..=high {
            match bins.iter_mut().find(|bin| (bin.kind, bin.size) == (kind, size)) {
                Some(bin) => bin.share += share,
                None => bins.push(Bin { kind, size, share }),
            }
        }
    }
    bins
}

/// Which half a prompt belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Training,
    HeldOut,
}

impl Split {
    /// The half of a prompt text, by its hash alone.
    pub fn of(prompt: &str) -> Split {
        if text_hash(prompt).is_multiple_of(HELD_OUT_SHARE) { Split::HeldOut } else { Split::Training }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};

    fn all() -> Mix {
        Mix::new(&Kind::ALL.map(TaskSpec::new)).unwrap()
    }

    /// The mix that there was before there was another kind.
    fn three() -> Mix {
        Mix::new(&[Kind::Sorting, Kind::Addition, Kind::Expression].map(TaskSpec::new)).unwrap()
    }

    /// The stream is part of a run's record: an older run's prompts must come again.
    #[test]
    fn the_streams_are_what_they_were() {
        let texts = |item: Item| format!("{} {}", item.text, item.answer);
        let training: Vec<String> = (0..4).map(|index| texts(three().training(1, index))).collect();
        assert_eq!(training, ["a:711+701= 1412", "a:821+887= 1708", "e:4*0+9-9+1+3+2= 6", "e:7-1-6+4-3-1+3= 3"]);
        let held_out: Vec<String> = (0..2).map(|index| texts(three().held_out(index))).collect();
        assert_eq!(held_out, ["s:5860507= 0055678", "a:1081+4500= 5581"]);
    }

    #[test]
    fn held_out_texts_are_never_training_texts() {
        let small = TaskSpec { min_size: Some(2), max_size: Some(2), ..TaskSpec::new(Kind::Sorting) };
        for mix in [all(), Mix::new(&[small]).unwrap()] {
            let held_out: HashSet<String> = (0..300).map(|index| mix.held_out(index).text).collect();
            for seed in [0, 1, 42, u64::MAX] {
                assert!((0..300).all(|index| !held_out.contains(&mix.training(seed, index).text)));
            }
        }
    }

    #[test]
    fn every_size_has_prompts_in_both_halves() {
        for kind in Kind::ALL {
            // Larger sizes have more prompts.
            let (smallest, _) = kind.sizes();
            let mut draw = Draw::new(&[3]);
            let texts: BTreeSet<String> = (0..4000).map(|_| kind.example(smallest, Slips::NONE, &mut draw).prompt).collect();
            let held_out = texts.iter().filter(|text| Split::of(text) == Split::HeldOut).count();
            let share = held_out as f64 / texts.len() as f64;
            assert!((0.03..0.12).contains(&share), "{kind:?}: {held_out} of {}", texts.len());
        }
    }

    #[test]
    fn items_carry_all_that_rewards_and_supervision_need() {
        for index in 0..50 {
            let item = all().training(5, index);
            let kind = Kind::from_name(&item.task).unwrap();
            assert_eq!((item.id, item.meta.as_str()), (index, ""));
            assert_eq!(kind.answer_in(&item.completion), Some(item.answer.as_str()));
        }
    }

    #[test]
    fn the_alphabet_is_what_the_texts_use() {
        let texts = (0..300).map(|index| all().training(0, index)).map(|item| item.text + &item.completion);
        let used: BTreeSet<char> = texts.flat_map(|text| text.chars().collect::<Vec<_>>()).collect();
        assert_eq!(used, ALPHABET.chars().collect());
    }

    #[test]
    fn weights_are_shares() {
        let spec = |kind, weight| TaskSpec { weight, ..TaskSpec::new(kind) };
        let mix = Mix::new(&[spec(Kind::Sorting, 3.0), spec(Kind::Addition, 1.0)]).unwrap();
        let sorting = (0..2000).filter(|&index| mix.training(0, index).task == "sorting").count();
        // Binomial: 1500, standard deviation 19.
        assert!((1420..1580).contains(&sorting), "{sorting}");
    }

    /// Catches a size that is missing or doubled, and shares that are not the mix's: sorting of 4 and 5 with half the weight, of 5 and
    /// 6 with a quarter, addition of 2 with another quarter.
    #[test]
    fn bins_by_hand() {
        let sizes =
            |kind, weight, low, high| TaskSpec { weight, min_size: Some(low), max_size: Some(high), ..TaskSpec::new(kind) };
        let mix =
            Mix::new(&[sizes(Kind::Sorting, 2.0, 4, 5), sizes(Kind::Addition, 1.0, 2, 2), sizes(Kind::Sorting, 1.0, 5, 6)])
                .unwrap();
        let found: Vec<_> = mix.bins().iter().map(|bin| (bin.kind.name(), bin.size, bin.share)).collect();
        assert_eq!(found, [("sorting", 4, 0.25), ("sorting", 5, 0.375), ("addition", 2, 0.25), ("sorting", 6, 0.125)]);
        let counted = (0..4000).filter(|index| mix.training(7, *index).bin == 1).count();
        // Binomial: 1500, standard deviation 31. (Held-out texts are left out of each bin alike.)
        assert!((1390..1610).contains(&counted), "{counted}");
        assert_eq!([mix.bin("sorting", 6), mix.bin("sorting", 7), mix.bin("chess", 4)], [Some(3), None, None]);
    }

    /// Catches a curriculum that would train a held-out text, the wrong size, or another text for the same group; and one that changes
    /// the prompt of a group that keeps its bin.
    #[test]
    fn items_of_a_bin() {
        let mix = Mix::new(&[TaskSpec { min_size: Some(2), max_size: Some(3), ..TaskSpec::new(Kind::Sorting) }]).unwrap();
        let held_out: HashSet<String> = (0..300).map(|index| mix.held_out(index).text).collect();
        let mut texts = HashSet::new();
        for index in 0..300 {
            let natural = mix.training(5, index);
            assert_eq!(mix.bins()[natural.bin as usize].size, natural.size);
            assert_eq!(mix.training_of(5, index, natural.bin), Some(natural.clone()));
            let other = mix.training_of(5, index, 1 - natural.bin).unwrap();
            assert_eq!((other.id, other.size, other.bin), (index, 5 - natural.size, 1 - natural.bin));
            assert_eq!(other.text.len(), 3 + other.size as usize, "s:digits=");
            assert!(!held_out.contains(&other.text), "{}", other.text);
            assert_eq!(mix.training_of(5, index, other.bin), Some(other.clone()));
            texts.insert(other.text);
        }
        assert!(texts.len() > 150, "{}", texts.len());
        assert_eq!(mix.training_of(5, 0, 2), None);
    }

    /// What the README and the presets tell of the tasks: (mean, longest) completion in characters, and the distinct prompts.
    #[test]
    fn lengths_and_counts_at_the_default_sizes() {
        let of = |kind: Kind| {
            let mix = Mix::new(&[TaskSpec::new(kind)]).unwrap();
            let lengths: Vec<usize> = (0..2000).map(|index| mix.training(0, index).completion.len()).collect();
            let mean = lengths.iter().sum::<usize>() as f64 / 2000.0;
            let (low, high) = kind.default_sizes();
            let prompts = (low..=high).map(|size| kind.distinct(size)).sum::<f64>();
            (mean, lengths.into_iter().max(), prompts)
        };
        for (kind, mean, longest, prompts) in [
            (Kind::Sorting, 6.0, 8, 1.111_1e8),
            (Kind::Addition, 30.6, 41, 8.181_8e7),
            (Kind::Expression, 61.7, 105, 4.863_16e10),
            (Kind::Program, 36.0, 298, 3.932_64e6),
        ] {
            let (found_mean, found_longest, found_prompts) = of(kind);
            assert!((found_mean - mean).abs() < 0.04 * mean, "{kind:?}: {found_mean}");
            assert_eq!(found_longest, Some(longest), "{kind:?}");
            assert!((found_prompts / prompts - 1.0).abs() < 1e-4, "{kind:?}: {found_prompts}");
        }
    }

    #[test]
    fn a_wrong_mix_is_refused_by_key_and_value() {
        let refused = |spec: TaskSpec| Mix::new(&[spec]).unwrap_err().to_string();
        let sorting = TaskSpec::new(Kind::Sorting);
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let message = refused(TaskSpec { weight, ..sorting.clone() });
            assert!(message.starts_with(&format!("task[0].weight = {weight}: ")), "{message}");
        }
        let message = refused(TaskSpec { min_size: Some(6), max_size: Some(5), ..sorting.clone() });
        assert_eq!(message, "task[0].min_size = 6: it is above max_size = 5; the nearest legal value is 5");
        let message = refused(TaskSpec { min_size: Some(1), ..sorting.clone() });
        assert_eq!(message, "task[0].min_size = 1: sorting has sizes 2 to 32");
        let message = refused(TaskSpec { max_size: Some(33), ..sorting });
        assert_eq!(message, "task[0].max_size = 33: sorting has sizes 2 to 32");
        let message = Mix::new(&[]).unwrap_err().to_string();
        assert!(message.contains("sorting, addition, expression, program"), "{message}");
    }
}
