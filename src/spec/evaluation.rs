//! What an evaluation reads of a specification: model, prompts, reward, and how answers are sampled. The rest may be missing.

use super::check::{MOST, check_sampling, not_negative};
use super::{EngineKind, Spec, read, schedule};
use crate::engine::spec::Sampling;
use crate::error::{Error, Result};
use crate::tasks::generated::Mix;
use crate::tasks::spec::TaskSpec;

impl Spec {
    /// Reads a specification, that of a run or a part of one, with `sets` laid over it; `name` is its file's. What it says is not
    /// checked here: see [`check_evaluation`](Spec::check_evaluation).
    ///
    /// # Errors
    /// TOML that cannot be parsed, a key that does not exist (the nearest is named), a value that is not one of the allowed.
    pub fn of_evaluation(text: &str, name: &str, sets: &[String]) -> Result<Spec> {
        let mut table = read::parsed(text, name)?;
        schedule::leave_out_what_is_not_read(&mut table);
        schedule::give_way(&mut table, sets);
        let mut spec: Spec = read::laid_over(table, name, sets)?;
        spec.task = spec.task.into_iter().map(TaskSpec::with_defaults).collect();
        Ok(spec)
    }

    /// Checks what an evaluation reads. It allows what training does not: greedy answers (a temperature of 0), `top_k` and
    /// `top_p`. `data` is the file of its prompts.
    ///
    /// # Errors
    /// Names the first key that is wrong, its value, and what would be right.
    pub fn check_evaluation(&self) -> Result<()> {
        if self.model.engine == EngineKind::Toy {
            self.validate_toy()?;
        }
        let g = &self.generate;
        not_negative("generate.temperature", g.temperature)?;
        // A temperature of 0 is right here.
        let temperature = if g.temperature > 0.0 { g.temperature } else { 1.0 };
        check_sampling(&Sampling { temperature, ..g.clone() })?;
        if !(g.top_p > 0.0 && g.top_p <= 1.0) {
            return Err(Error::config("generate.top_p", g.top_p, "a number above 0, at most 1"));
        }
        for (key, value) in [("generate.slots", g.slots), ("eval.prompts", self.eval.prompts)] {
            if !(1..=MOST).contains(&value) {
                return Err(Error::config(key, value, format!("at least 1, at most {MOST}")));
            }
        }
        match &self.data {
            Some(data) => data.check()?,
            None => drop(Mix::new(&self.task)?),
        }
        self.reward.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sets: &[&str]) -> String {
        let sets: Vec<String> = ["task=[{kind='sorting'}]"].iter().chain(sets).map(|set| (*set).to_owned()).collect();
        let spec = Spec::of_evaluation("", "x.toml", &sets);
        spec.and_then(|spec| spec.check_evaluation()).unwrap_err().to_string()
    }

    /// Catches a check of training that an evaluation has to pass, and a number that nothing checks.
    #[test]
    fn errors_name_key_value_and_what_is_right() {
        for (set, message) in [
            ("generate.temperature=-1", "generate.temperature = -1: a number from 0 up"),
            ("generate.temperature=inf", "generate.temperature = inf: a number from 0 up"),
            ("generate.top_p=0", "generate.top_p = 0: a number above 0, at most 1"),
            ("generate.top_p=nan", "generate.top_p = NaN: a number above 0, at most 1"),
            ("generate.slots=0", "generate.slots = 0: at least 1, at most 16777216"),
            ("generate.max_tokens=0", "generate.max_tokens = 0: at least 1 token"),
            ("eval.prompts=0", "eval.prompts = 0: at least 1, at most 16777216"),
            (
                "task=[]",
                "task = []: at least one [[task]] is needed, with kind = one of sorting, addition, expression, program",
            ),
            ("data={file='a.jsonl',system='x'}", "data.system = x: a system message needs data.prompt_as = \"user\""),
        ] {
            assert_eq!(refused(&[set]), message);
        }
        let toy = refused(&["model.engine=toy", "model.device=cuda:0"]);
        assert_eq!(toy, "model.device = cuda:0: the toy engine is on the cpu; allowed: cpu");
        assert!(refused(&["reward={kind='regex',pattern='('}"]).starts_with("reward.pattern = (: "));
        assert!(refused(&["generate.tempreature=1"]).contains("did you mean generate.temperature?"));
    }

    #[test]
    fn what_only_training_needs_may_be_missing_or_be_against_it() {
        let sets = ["generate={temperature=0,top_k=5,top_p=0.5,slots=3}", "task=[{kind='sorting',min_size=9}]", "steps=0"];
        let spec = Spec::of_evaluation("", "x.toml", &sets.map(str::to_owned)).unwrap();
        spec.check_evaluation().unwrap();
        assert_eq!((spec.task[0].min_size, spec.task[0].max_size), (Some(9), Some(9)));
    }
}
