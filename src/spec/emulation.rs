//! `[emulation]`: accelerators that only take time, what they take, and which worker stands for which of them.

use super::responses::Responses;
use super::{EngineKind, ScheduleKind, Spec, WorkersSpec};
use crate::engine::spec::{Dtype, KvAfterUpdate};
use crate::error::{Error, Result};
use crate::kernel::capacity::{Job, Speed, Split};
use crate::kernel::lengths::Lengths;
use crate::kernel::safeguard::Safeguard;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tidegate_operators::schedule::Schedule;

/// What is emulated, where `model.engine` is `emulation`. Times are in flashes, as in a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulationSpec {
    /// N: a timely worker each.
    pub accelerators: usize,
    /// I, those that generate; the others train. By turns (`conventional`) all do both, and it is N. 0: the layout that a plan finds best,
    /// with at most `generate.slots` rollouts in progress on each.
    pub generators: usize,
    /// How long responses are, as `tidegate plan` takes them.
    pub lengths: String,
    /// What a flash lasts, seconds.
    pub flash_s: f64,
    /// A decode step of h rollouts takes the larger of `decode[0] + decode[1] * h` and `decode[2] * h`.
    pub decode: [f64; 3],
    /// Training one token on one accelerator, tau.
    pub train: f64,
    /// How long new weights hold a generator up that has rollouts in progress.
    pub transfer: f64,
}

impl Default for EmulationSpec {
    fn default() -> Self {
        let Speed { step, token, least, train, .. } = Speed::PAPER;
        EmulationSpec {
            accelerators: 128,
            generators: 0,
            lengths: "uniform:100".to_owned(),
            flash_s: 0.001,
            decode: [step, token, least],
            train,
            transfer: 0.0,
        }
    }
}

impl EmulationSpec {
    /// What one accelerator takes.
    pub fn speed(&self, slots: usize) -> Speed {
        let [step, token, least] = self.decode;
        Speed { step, token, least, train: self.train, slots }
    }
}

/// Beyond this a number of flashes means nothing.
const LEAST_TIME: f64 = 1e-12;
const MOST_TIME: f64 = 1e12;

/// What an accelerator takes must be times; `keys` are those of its decode steps and of training.
///
/// # Errors
/// Names the key whose time is none.
pub fn check_speed(speed: &Speed, keys: [&str; 2]) -> Result<()> {
    let [decode, train] = keys;
    if let Some((key, x)) =
        [(decode, speed.step), (train, speed.train)].into_iter().find(|(_, x)| !(*x >= LEAST_TIME && x.is_finite()))
    {
        return Err(Error::config(key, format!("{x:?}"), format!("a time above 0, at least {LEAST_TIME:e}")));
    }
    if let Some(x) = [speed.token, speed.least].into_iter().find(|x| !(*x >= 0.0 && x.is_finite())) {
        return Err(Error::config(decode, x, "times from 0 up"));
    }
    let all = [(decode, speed.step), (decode, speed.token), (decode, speed.least), (train, speed.train)];
    match all.into_iter().find(|(_, x)| *x > MOST_TIME) {
        Some((key, x)) => Err(Error::config(key, format!("{x:e}"), format!("at most {MOST_TIME:e}"))),
        None => Ok(()),
    }
}

/// More threads than this no machine carries.
const MOST_ACCELERATORS: usize = 4096;
/// The longest flash, seconds.
const LONGEST_FLASH: f64 = 3600.0;

impl Spec {
    /// The emulation's keys, where the run has one.
    pub fn emulated(&self) -> Option<&EmulationSpec> {
        self.emulation.as_ref().filter(|_| self.model.engine == EngineKind::Emulation)
    }

    /// The accelerators as a plan has them: how many generate and train, and with how many slots.
    pub fn emulated_split(&self) -> Option<Split> {
        let emulation = self.emulated()?;
        let (n, i) = (emulation.accelerators, emulation.generators);
        let learners = if self.schedule.kind == ScheduleKind::Conventional { n } else { n.saturating_sub(i) };
        Some(Split { generators: i, learners, slots: self.generate.slots })
    }

    /// What a plan is made for, to be compared with what the run comes to.
    pub fn emulated_job(&self, lengths: Lengths) -> Option<Job> {
        let emulation = self.emulated()?;
        let speed = emulation.speed(self.generate.slots);
        Some(Job { accelerators: emulation.accelerators, batch_size: self.batch.batch_size, lengths, speed })
    }

    /// Fills in what an emulation leaves out, and gives each accelerator its worker: first those that generate, then those that train, of
    /// which the first stands for all; by turns the first that generates also trains.
    ///
    /// # Errors
    /// Workers that were asked for otherwise; an emulation that another engine does not read.
    pub(super) fn emulate(&mut self) -> Result<()> {
        if self.model.engine != EngineKind::Emulation {
            let reads = "means nothing with another model.engine than emulation";
            return if self.emulation.is_some() { Err(Error::config("emulation", "a table", reads)) } else { Ok(()) };
        }
        if self.emulation.get_or_insert_default().generators == 0 {
            self.lay_out()?;
        }
        let generators = self.emulation.as_ref().map_or(0, |emulation| emulation.generators);
        let learner = if self.schedule.kind == ScheduleKind::Conventional { 0 } else { generators };
        let workers =
            WorkersSpec { generators: (0..generators).collect(), learners: vec![learner], ..WorkersSpec::default() };
        if self.workers != WorkersSpec::default() && self.workers != workers {
            let why = "the workers of an emulation are emulation.accelerators; leave [workers] out";
            return Err(Error::config("workers", format!("{:?}", self.workers.generators), why));
        }
        self.workers = workers;
        Ok(())
    }

    /// Takes the layout that a plan finds best at the schedule's largest lag. By turns each accelerator samples its share of a phase at
    /// once.
    fn lay_out(&mut self) -> Result<()> {
        let (n, most, group_size) =
            (self.emulation.as_ref().map_or(0, |of| of.accelerators), self.generate.slots, self.batch.group_size);
        self.validate_accelerators()?;
        let schedule = self.schedule.schedule();
        let (generators, slots) = match (schedule, self.lengths()?) {
            (Schedule::Conventional { steps }, _) => {
                (n, self.batch.batch_size.saturating_mul(steps.min(self.steps) as usize).div_ceil(n))
            }
            (_, None) => {
                let lengths = self.emulation.as_ref().map_or("", |of| &of.lengths);
                if !Path::new(lengths).exists() {
                    let why = format!("no such run; allowed: {}", Responses::FORMS);
                    return Err(Error::config("emulation.lengths", lengths, why));
                }
                let why =
                    "a plan of a run's lengths is not made here: tidegate plan --lengths RUN says how many should generate";
                return Err(Error::config("emulation.generators", 0, why));
            }
            (_, Some(lengths)) => {
                let best = self.emulated_job(lengths).and_then(|job| job.best_split(schedule.bound()));
                let none = || {
                    let why = "no pipeline keeps it by the closed forms: raise it, or batch.batch_size; emulation.generators lays one out \
                               all the same";
                    Error::config("schedule.max_lag", schedule.bound(), why)
                };
                best.map(|(split, _)| (split.generators, split.slots)).ok_or_else(none)?
            }
        };
        self.generate.slots = slots.max(group_size).min(most);
        self.emulation.iter_mut().for_each(|emulation| emulation.generators = generators);
        Ok(())
    }

    /// None of a run's, which are in its log.
    fn lengths(&self) -> Result<Option<Lengths>> {
        let of = |emulation: &EmulationSpec| Responses::parse("emulation.lengths", &emulation.lengths);
        self.emulation.as_ref().map(of).transpose().map(|of| of.and_then(|responses| responses.lengths()))
    }

    /// How many there are, and what they take.
    fn validate_accelerators(&self) -> Result<()> {
        let Some(emulation) = self.emulated() else { return Ok(()) };
        let EmulationSpec { accelerators, flash_s, transfer, .. } = *emulation;
        if !(2..=MOST_ACCELERATORS).contains(&accelerators) {
            return Err(Error::config("emulation.accelerators", accelerators, format!("from 2 to {MOST_ACCELERATORS}")));
        }
        if !(flash_s > 0.0 && flash_s <= LONGEST_FLASH) {
            return Err(Error::config("emulation.flash_s", flash_s, format!("seconds, above 0, at most {LONGEST_FLASH}")));
        }
        if !(0.0..=MOST_TIME).contains(&transfer) {
            return Err(Error::config("emulation.transfer", transfer, "flashes, from 0 up"));
        }
        check_speed(&emulation.speed(self.generate.slots), ["emulation.decode", "emulation.train"])
    }

    /// What emulated accelerators would take and do nothing with.
    pub(super) fn validate_emulation(&self) -> Result<()> {
        let Some(emulation) = self.emulated() else { return Ok(()) };
        let EmulationSpec { accelerators, generators, .. } = *emulation;
        self.validate_accelerators()?;
        let by_turns = self.schedule.kind == ScheduleKind::Conventional;
        let right = if by_turns { accelerators..=accelerators } else { 1..=accelerators - 1 };
        if !right.contains(&generators) {
            let why = if by_turns {
                format!("by turns all accelerators generate, then all train: emulation.accelerators = {accelerators}")
            } else {
                format!("at least 1, and fewer than emulation.accelerators = {accelerators}: the others train")
            };
            return Err(Error::config("emulation.generators", generators, why));
        }
        let lengths = self.lengths()?;
        let (longest, most) = (lengths.map_or(0, |lengths| lengths.longest()), self.generate.max_tokens);
        if longest > most {
            let why = format!("responses would be cut, and are to be up to {longest} tokens long (emulation.lengths)");
            return Err(Error::config("generate.max_tokens", most, why));
        }
        self.validate_without_a_model()
    }

    fn validate_without_a_model(&self) -> Result<()> {
        let (g, l) = (&self.generate, &self.learn);
        let why = |what: &str| format!("emulated accelerators {what}");
        let no_model = "have no model";
        let keys = [
            ("model.path", !self.model.path.as_os_str().is_empty(), no_model, "\"\""),
            ("model.device", self.model.device != "cpu", no_model, "cpu"),
            ("generate.dtype", g.dtype != Dtype::Fp32, no_model, "fp32"),
            ("learn.dtype", l.dtype != Dtype::Fp32, no_model, "fp32"),
            ("learn.activation_checkpointing", l.activation_checkpointing, no_model, "false"),
            ("generate.kv_after_update", g.kv_after_update != KvAfterUpdate::Keep, "have no keys and values", "keep"),
            ("generate.temperature", g.temperature != 1.0, "draw all tokens alike", "1.0"),
            ("generate.stop", !g.stop.is_empty(), "end rollouts by emulation.lengths", "[]"),
            ("generate.time_limit_s", g.time_limit_s != 0.0, "end rollouts by emulation.lengths", "0.0"),
            ("generate.ignore_eos", g.ignore_eos, "end rollouts by emulation.lengths", "false"),
            ("learn.value_coef", l.value_coef != 0.0, "have no critic", "0.0"),
            ("learn.reference.kl_coef", l.reference.is_on(), "hold no policy", "0.0"),
            ("learn.safeguard", l.safeguard != Safeguard::default(), "take no gradient", "its defaults"),
            ("eval.prompts", self.eval.prompts != 0, "answer nothing", "0"),
        ];
        match keys.into_iter().find(|(_, wrong, ..)| *wrong) {
            Some((key, _, what, allowed)) => {
                let value = self.keys().remove(key).unwrap_or_else(|| "set".to_owned());
                Err(Error::config(key, value, format!("{}; allowed: {allowed}", why(what))))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "model.engine = \"emulation\"\neval.prompts = 0\n[[task]]\nkind = \"sorting\"\n\
        [emulation]\naccelerators = 6\ngenerators = 2\n";

    fn spec(sets: &[&str]) -> Result<Spec> {
        Spec::from_text(START, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>())
    }

    /// Catches accelerators without a worker, and one that is two; a spec that cannot be read again.
    #[test]
    fn every_accelerator_is_a_worker() {
        let pipeline = spec(&[]).unwrap();
        let plan = pipeline.plan();
        assert_eq!((plan.generators, plan.learner, pipeline.worker_count()), (vec![0, 1], 2, 6));
        assert_eq!(pipeline.emulated_split(), Some(Split { generators: 2, learners: 4, slots: 64 }));
        assert_eq!(Spec::from_text(&pipeline.to_text(), &[]).unwrap(), pipeline);
        let turns = spec(&["schedule.kind=conventional", "emulation.generators=6"]).unwrap();
        let plan = turns.plan();
        assert_eq!((plan.generators, plan.learner, turns.worker_count()), (vec![0, 1, 2, 3, 4, 5], 0, 6));
        assert_eq!(turns.emulated_split(), Some(Split { generators: 6, learners: 6, slots: 64 }));
        let toy = Spec::from_text("model.engine = \"toy\"\n[[task]]\nkind = \"sorting\"\n", &[]).unwrap();
        assert_eq!((toy.emulated_split(), toy.emulation), (None, None));
    }

    /// As `tidegate plan` has them. Catches a layout that is made anew when a run goes on, with other slots.
    #[test]
    fn a_plan_lays_out_what_is_left_open() {
        let base = ["emulation={accelerators=16,generators=0}", "batch={batch_size=16,group_size=1}", "generate.slots=1024"];
        let of = |sets: &[&str]| spec(&[&base[..], sets].concat()).unwrap();
        let pipeline = of(&["schedule.max_lag=133"]);
        assert_eq!(pipeline.emulated_split(), Some(Split { generators: 5, learners: 11, slots: 214 }));
        assert_eq!(Spec::from_text(&pipeline.to_text(), &[]).unwrap(), pipeline);
        let turns = of(&["schedule.kind=conventional", "schedule.steps=134", "steps=268"]);
        assert_eq!(turns.emulated_split(), Some(Split { generators: 16, learners: 16, slots: 134 }));
        let refused = spec(&[&base[..], &["schedule.max_lag=0"]].concat()).unwrap_err().to_string();
        assert!(
            refused.starts_with("schedule.max_lag = 0: no pipeline keeps it by the closed forms: raise it"),
            "{refused}"
        );
    }

    #[test]
    fn what_cannot_be_emulated_is_refused_by_key() {
        for (set, message) in [
            ("emulation.accelerators=1", "emulation.accelerators = 1: from 2 to 4096"),
            ("emulation.generators=6", "emulation.generators = 6: at least 1, and fewer than emulation.accelerators = 6"),
            ("schedule.kind=conventional", "emulation.generators = 2: by turns all accelerators generate, then all train"),
            ("emulation.flash_s=0", "emulation.flash_s = 0: seconds, above 0, at most 3600"),
            ("emulation.decode=[0,1,1]", "emulation.decode = 0.0: a time above 0"),
            ("emulation.train=-1", "emulation.train = -1.0: a time above 0"),
            ("emulation.transfer=-1", "emulation.transfer = -1: flashes, from 0 up"),
            ("emulation.lengths='uniform:x'", "emulation.lengths = uniform:x: uniform:LONGEST, "),
            (
                "generate.max_tokens=99",
                "generate.max_tokens = 99: responses would be cut, and are to be up to 100 tokens long",
            ),
            ("workers.generators=[0,1,2]", "workers = [0, 1, 2]: the workers of an emulation are emulation.accelerators"),
            ("generate.dtype=bf16", "generate.dtype = \"bf16\": emulated accelerators have no model; allowed: fp32"),
            ("learn.value_coef=0.5", "learn.value_coef = 0.5: emulated accelerators have no critic; allowed: 0.0"),
            (
                "learn.safeguard.skip_ess=0.5",
                "learn.safeguard = set: emulated accelerators take no gradient; allowed: its defaults",
            ),
            ("eval.prompts=3", "eval.prompts = 3: emulated accelerators answer nothing; allowed: 0"),
            ("model.engine=toy", "emulation = a table: means nothing with another model.engine than emulation"),
        ] {
            let refused = spec(&[set]).unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
    }
}
