//! Generated tasks: an endless stream of training prompts, and a fixed set of held-out ones that training never sees.
//!
//! Item `i` of a stream is a function of (seed, `i`) alone, so a run that resumes goes on from an index. Which half a prompt
//! belongs to is decided by a hash of its text, 1 in [`HELD_OUT_SHARE`] being held out: whatever the seed, the sizes or the
//! other tasks of the mix, no held-out text is ever a training text.

use super::draw::{Draw, text_hash};
use super::item::Item;
use super::spec::TaskSpec;
use super::{addition, expression, sorting};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Every character of the generated tasks' prompts and completions.
pub const ALPHABET: &str = "0123456789+-*=;>:ase";

/// One prompt in this many is held out.
pub const HELD_OUT_SHARE: u64 = 16;

/// The seed of the held-out items: not the run's, so that runs with different seeds are compared on the same prompts.
const HELD_OUT_SEED: u64 = 0;

/// A generated prompt and how it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    pub prompt: String,
    /// The full answer, steps included, without an end-of-sequence token.
    pub completion: String,
    /// The final answer alone.
    pub answer: String,
}

/// A task that tidegate makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Digits in ascending order: 4 to 8 tokens.
    Sorting,
    /// Column addition with the carry written out: 21 to 52 tokens.
    Addition,
    /// A chain of operations modulo 10, rewritten step by step: 19 to 109 tokens.
    Expression,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Sorting, Kind::Addition, Kind::Expression];

    /// The name in specs, in the `task` column and in the rewards.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sorting => "sorting",
            Kind::Addition => "addition",
            Kind::Expression => "expression",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Smallest and largest size that a spec may ask for: digits, digits of each number, operations.
    pub fn sizes(self) -> (u32, u32) {
        match self {
            Kind::Sorting => sorting::SIZES,
            Kind::Addition => addition::SIZES,
            Kind::Expression => expression::SIZES,
        }
    }

    /// Smallest and largest size where the spec names none.
    pub fn default_sizes(self) -> (u32, u32) {
        match self {
            Kind::Sorting => sorting::DEFAULT_SIZES,
            Kind::Addition => addition::DEFAULT_SIZES,
            Kind::Expression => expression::DEFAULT_SIZES,
        }
    }

    /// One example of the given size.
    pub fn example(self, size: u32, draw: &mut Draw) -> Example {
        match self {
            Kind::Sorting => sorting::example(size, draw),
            Kind::Addition => addition::example(size, draw),
            Kind::Expression => expression::example(size, draw),
        }
    }

    /// How many prompts of the given size there are.
    pub fn distinct(self, size: u32) -> f64 {
        match self {
            Kind::Sorting => sorting::distinct(size),
            Kind::Addition => addition::distinct(size),
            Kind::Expression => expression::distinct(size),
        }
    }

    /// The final answer that a completion gives: all of it, or what follows the last `>`; `None` where that mark is missing.
    pub fn answer_in(self, completion: &str) -> Option<&str> {
        match self {
            Kind::Sorting => Some(completion),
            Kind::Addition | Kind::Expression => completion.rsplit_once('>').map(|(_, answer)| answer),
        }
    }
}

/// A mix of generated tasks, checked and with its sizes spelt out.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Kind, smallest and largest size, and the sum of the weights up to and with this one.
    tasks: Vec<(Kind, u32, u32, f64)>,
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
            let TaskSpec { kind, weight, min_size, max_size } = spec.clone().with_defaults();
            let key = |field: &str| format!("task[{i}].{field}");
            if !(weight > 0.0 && weight.is_finite()) {
                return Err(Error::config(
                    key("weight"),
                    weight,
                    "a weight is a number above 0; leave a task out to switch it off",
                ));
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
            tasks.push((kind, low, high, total));
        }
        if tasks.is_empty() {
            let names = Kind::ALL.map(Kind::name).join(", ");
            return Err(Error::config("task", "[]", format!("at least one [[task]] is needed, with kind = one of {names}")));
        }
        Ok(Mix { tasks })
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
        let (kind, low, high, _) =
            *self.tasks.iter().find(|&&(.., sum)| at < sum).unwrap_or(&self.tasks[self.tasks.len() - 1]);
        // Ends: every size that a spec may ask for has prompts in both halves (checked in the tests for the smallest).
        loop {
            let size = draw.between(low, high);
            let Example { prompt, completion, answer } = kind.example(size, &mut draw);
            if Split::of(&prompt) == split {
                return Item { id: index, task: kind.name().into(), text: prompt, answer, completion, meta: String::new() };
            }
        }
    }
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
