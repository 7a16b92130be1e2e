//! What is measured: at which stages, how far behind, and by which weights each token is sampled.

use crate::engine::spec::KvAfterUpdate;
use crate::error::{Error, Result};
use crate::jobs::experiment::design::{Axis, Value};
use crate::spec::{EngineKind, Spec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Debug;
use tidegate_operators::record::Version;

/// An experiment's `[kl]`: with it the cells are one stage, one lag and one behavior each. Off without stages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kl {
    /// Stages of training: the version C whose weights sample the first tokens.
    pub after: Vec<Version>,
    /// How many steps the current policy is ahead of it, g.
    pub lags: Vec<u64>,
    /// Longest completion, over which the g updates are spread, tokens, L.
    pub length: usize,
    /// Completions a cell, one a prompt.
    pub prompts: usize,
}

/// By which weights the tokens of a completion are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Newer ones as it goes on, over the keys and values that are there.
    Keep,
    /// The same, over keys and values of the newest weights.
    Recompute,
    /// All by the first.
    Conventional,
}

impl Behavior {
    pub const ALL: [Behavior; 3] = [Behavior::Keep, Behavior::Recompute, Behavior::Conventional];

    /// As a value of its axis.
    pub fn name(self) -> &'static str {
        match self {
            Behavior::Keep => "keep",
            Behavior::Recompute => "recompute",
            Behavior::Conventional => "conventional",
        }
    }

    /// What becomes of keys and values.
    pub fn keys(self) -> KvAfterUpdate {
        match self {
            Behavior::Recompute => KvAfterUpdate::Recompute,
            Behavior::Keep | Behavior::Conventional => KvAfterUpdate::Keep,
        }
    }
}

/// One cell of the three axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub after: Version,
    pub lag: u64,
    pub behavior: Behavior,
    length: usize,
}

impl Place {
    /// How many versions after the first the weights are that sample the token at `position`, from 0. In flight the first `2L / g` tokens
    /// are of the first version, and every `L / g` from there of the next one: the last token has a lag of 2 where the first has g.
    pub fn ahead(&self, position: usize) -> u64 {
        match self.behavior {
            Behavior::Conventional => 0,
            Behavior::Keep | Behavior::Recompute => {
                (position as u64 * self.lag / self.length.max(1) as u64).saturating_sub(1).min(self.lag)
            }
        }
    }

    /// The lag of that token when the current policy trains it.
    pub fn lag_at(&self, position: usize) -> u64 {
        self.lag - self.ahead(position)
    }
}

/// The axes that a `[kl]` adds behind those of its design.
const AXES: [&str; 3] = ["after", "lag", "behavior"];

impl Kl {
    pub fn is_on(&self) -> bool {
        !self.after.is_empty()
    }

    /// Its axes; none where it is off.
    pub fn axes(&self) -> Vec<Axis> {
        if !self.is_on() {
            return Vec::new();
        }
        let values = [
            self.after.iter().map(ToString::to_string).collect(),
            self.lags.iter().map(ToString::to_string).collect(),
            Behavior::ALL.map(|behavior| behavior.name().to_owned()).to_vec(),
        ];
        let axis = |(name, names): (&str, Vec<String>)| Axis {
            name: name.to_owned(),
            value: names.into_iter().map(|name| Value { name, set: Vec::new() }).collect(),
        };
        AXES.into_iter().zip(values).map(axis).collect()
    }

    /// What a cell is made of besides its run's settings; nothing where it is off.
    pub fn settings(&self, at: &[String]) -> Vec<String> {
        if !self.is_on() {
            return Vec::new();
        }
        let own = at[at.len() - AXES.len()..].iter().cloned();
        own.chain([format!("kl of {} prompts to {} tokens", self.prompts, self.length)]).collect()
    }

    /// The place that the last three names of a cell are.
    ///
    /// # Errors
    /// Names that are not of these axes.
    pub fn place(&self, at: &[String]) -> Result<Place> {
        let place = || {
            let [after, lag, behavior] = at.last_chunk::<3>()?;
            let behavior = Behavior::ALL.into_iter().find(|known| known.name() == behavior)?;
            Some(Place { after: after.parse().ok()?, lag: lag.parse().ok()?, behavior, length: self.length })
        };
        place().ok_or_else(|| Error::config("kl", at.join(" "), format!("a cell of {}", AXES.join(", "))))
    }

    /// Whether all that it says by itself can be.
    ///
    /// # Errors
    /// Names the key, its value and what would be right.
    pub fn check(&self) -> Result<()> {
        if *self == Kl::default() {
            return Ok(());
        }
        let lists = [("kl.after", &self.after, "[0, 64, 120]"), ("kl.lags", &self.lags, "[1, 2, 4, 8, 16, 32]")];
        for (key, values, example) in lists {
            if values.is_empty() || values.iter().collect::<BTreeSet<_>>().len() != values.len() {
                return wrong(key, values, format!("at least one, each once, for example {example}"));
            }
        }
        if self.length == 0 {
            return wrong("kl.length", self.length, "at least 1 token");
        }
        if self.prompts < 2 {
            return wrong("kl.prompts", self.prompts, "at least 2: of one completion there is no standard error");
        }
        Ok(())
    }

    /// Whether a run of `spec` leaves what is measured.
    ///
    /// # Errors
    /// As [`check`](Kl::check).
    pub fn fits(&self, spec: &Spec) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        if spec.model.engine == EngineKind::Emulation {
            return Err(no_distribution());
        }
        if self.length > spec.generate.max_tokens {
            let why = format!("at most generate.max_tokens = {}: no completion is longer", spec.generate.max_tokens);
            return wrong("kl.length", self.length, why);
        }
        let last = |values: &[u64]| values.iter().copied().max().unwrap_or(0);
        let last = last(&self.after).saturating_add(last(&self.lags));
        if last > spec.steps {
            return wrong("steps", spec.steps, format!("kl reads the weights after step {last}; at least as many"));
        }
        if spec.checkpoint.every_steps != 1 {
            let why = "kl reads the weights after every step; set = [\"checkpoint.every_steps=1\", ..]";
            return wrong("checkpoint.every_steps", spec.checkpoint.every_steps, why);
        }
        if (spec.checkpoint.keep as u64) < spec.steps {
            let why = format!("kl reads the weights after every step; at least steps = {}", spec.steps);
            return wrong("checkpoint.keep", spec.checkpoint.keep, why);
        }
        Ok(())
    }
}

/// An emulated policy has nothing to measure.
pub fn no_distribution() -> Error {
    let why = "an emulated policy has no distribution to measure; torch or toy have one";
    Error::config("model.engine", "emulation", why)
}

fn wrong(key: &str, value: impl Debug, why: impl Into<String>) -> Result<()> {
    Err(Error::config(key, format!("{value:?}"), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(behavior: Behavior, lag: u64, length: usize) -> Place {
        Place { after: 3, lag, behavior, length }
    }

    fn ahead(behavior: Behavior, lag: u64, length: usize) -> Vec<u64> {
        (0..length).map(|position| place(behavior, lag, length).ahead(position)).collect()
    }

    /// METHOD by hand: L = 8, g = 4 has four tokens of C, two of C + 1, two of C + 2. Catches a schedule that begins with L / g, one that ends with
    /// the current policy itself, and one that rounds L / g.
    #[test]
    fn in_flight_the_first_two_parts_are_of_the_first_version() {
        for behavior in [Behavior::Keep, Behavior::Recompute] {
            assert_eq!(ahead(behavior, 4, 8), [0, 0, 0, 0, 1, 1, 2, 2]);
            assert_eq!(ahead(behavior, 8, 8), [0, 0, 1, 2, 3, 4, 5, 6]);
            // A third of 8 is 2.67: parts of 3, 3 and 2 tokens.
            assert_eq!(ahead(behavior, 3, 8), [0, 0, 0, 0, 0, 0, 1, 1]);
            // Several updates a token.
            assert_eq!(ahead(behavior, 8, 2), [0, 3]);
            for lag in [0, 1, 2] {
                assert_eq!(ahead(behavior, lag, 4), [0; 4], "lag {lag}");
            }
        }
        assert_eq!(ahead(Behavior::Conventional, 8, 4), [0; 4]);
        let of = |lag| (0..8).map(|position| place(Behavior::Keep, lag, 8).lag_at(position)).collect::<Vec<_>>();
        assert_eq!((of(8), of(4)), (vec![8, 8, 7, 6, 5, 4, 3, 2], vec![4, 4, 4, 4, 3, 3, 2, 2]));
        // Beyond L nothing is newer than the current policy.
        assert_eq!((place(Behavior::Keep, 4, 8).lag_at(7), place(Behavior::Keep, 4, 8).lag_at(99)), (2, 0));
    }

    #[test]
    fn a_cell_names_its_place() {
        let kl = Kl { after: vec![0, 64], lags: vec![2], length: 8, prompts: 4 };
        let names: Vec<_> = kl.axes().into_iter().map(|axis| (axis.name, axis.value.len())).collect();
        assert_eq!(names, [("after".to_owned(), 2), ("lag".to_owned(), 1), ("behavior".to_owned(), 3)]);
        let at = ["of another axis", "64", "2", "recompute"].map(str::to_owned);
        assert_eq!(kl.place(&at).unwrap(), Place { after: 64, lag: 2, behavior: Behavior::Recompute, length: 8 });
        assert_eq!(kl.settings(&at), ["64", "2", "recompute", "kl of 4 prompts to 8 tokens"]);
        let refused = kl.place(&["64".to_owned()]).unwrap_err().to_string();
        assert_eq!(refused, "kl = 64: a cell of after, lag, behavior");
        assert!(Kl::default().axes().is_empty() && Kl::default().settings(&at).is_empty());
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_key() {
        let kl = || Kl { after: vec![0, 4], lags: vec![1, 8], length: 8, prompts: 4 };
        kl().check().unwrap();
        Kl::default().check().unwrap();
        for (wrong, message) in [
            (Kl { after: Vec::new(), ..kl() }, "kl.after = []: at least one, each once"),
            (Kl { lags: vec![2, 2], ..kl() }, "kl.lags = [2, 2]: at least one, each once"),
            (Kl { length: 0, ..kl() }, "kl.length = 0: at least 1 token"),
            (Kl { prompts: 1, ..kl() }, "kl.prompts = 1: at least 2"),
        ] {
            let found = wrong.check().unwrap_err().to_string();
            assert!(found.starts_with(message), "{found}");
        }
        let spec = |steps, every_steps, keep| {
            let mut spec = Spec { steps, ..Spec::default() };
            (spec.checkpoint.every_steps, spec.checkpoint.keep) = (every_steps, keep);
            spec
        };
        kl().fits(&spec(12, 1, 12)).unwrap();
        Kl::default().fits(&Spec::default()).unwrap();
        for (spec, message) in [
            (spec(11, 1, 12), "steps = 11: kl reads the weights after step 12"),
            (spec(12, 2, 12), "checkpoint.every_steps = 2: kl reads"),
            (spec(12, 1, 11), "checkpoint.keep = 11: kl reads"),
        ] {
            let found = kl().fits(&spec).unwrap_err().to_string();
            assert!(found.starts_with(message), "{found}");
        }
    }
}
