//! Rewards that are computed from the completion's text.

use super::generated::Kind;
use super::number;
use super::spec::RewardSpec;
use crate::error::{Error, Result};
use regex::Regex;
use tidegate_operators::record::Prompt;

/// A reward rule, checked and compiled.
#[derive(Clone, Debug)]
pub struct Reward {
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    Task,
    Exact { after: Option<String> },
    Numeric { after: Option<String>, tolerance: f64 },
    Regex { regex: Regex, group: Option<usize> },
}

/// A completion's reward, and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// 1.0 or 0.0.
    pub reward: f32,
    /// `correct`: whether the answer is right; `format`: whether there was an answer to look at.
    pub parts: Vec<(String, f32)>,
}

/// Why a completion has no reward: its prompt cannot be judged by the rule, whatever the completion says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unscorable {
    #[error("task {task:?} is not a generated one ({}): set reward.kind to exact, numeric or regex", Kind::ALL.map(Kind::name).join(", "))]
    UnknownTask { task: String },
    #[error("prompt {id} has no answer to compare with")]
    NoAnswer { id: u64 },
    #[error("prompt {id} has the answer {answer:?}, which is not one finite number")]
    NotANumber { id: u64, answer: String },
}

impl Reward {
    /// # Errors
    /// A pattern that is no regular expression, a tolerance that is no number from 0 up, an empty `after`.
    pub fn new(spec: &RewardSpec) -> Result<Reward> {
        let rule = match spec.clone() {
            RewardSpec::Task => Rule::Task,
            RewardSpec::Exact { after } => Rule::Exact { after: mark(after)? },
            RewardSpec::Numeric { after, tolerance } => {
                if !(tolerance >= 0.0 && tolerance.is_finite()) {
                    return Err(Error::config("reward.tolerance", tolerance, "a tolerance is a number from 0 up"));
                }
                Rule::Numeric { after: mark(after)?, tolerance }
            }
            RewardSpec::Regex { pattern } => {
                let regex = Regex::new(&pattern).map_err(|e| Error::config("reward.pattern", &pattern, e.to_string()))?;
                let named = regex.capture_names().position(|name| name == Some("answer"));
                let group = named.or((regex.captures_len() > 1).then_some(1));
                Rule::Regex { regex, group }
            }
        };
        Ok(Reward { rule })
    }

    /// The reward of `completion`, the policy's text without an end-of-sequence token, as an answer to `prompt`.
    ///
    /// # Errors
    /// Where the prompt cannot be judged; what is wrong with the completion is a reward of 0.
    pub fn score(&self, prompt: &Prompt, completion: &str) -> Result<Score, Unscorable> {
        match &self.rule {
            Rule::Task => {
                let kind = Kind::from_name(&prompt.task);
                let kind = kind.ok_or_else(|| Unscorable::UnknownTask { task: prompt.task.clone() })?;
                let expected = answer_of(prompt)?;
                Ok(judged(kind.answer_in(completion).map(|given| given == expected)))
            }
            Rule::Exact { after } => {
                let expected = answer_of(prompt)?.trim();
                Ok(judged(part_after(completion, after.as_deref()).map(|given| given.trim() == expected)))
            }
            Rule::Numeric { after, tolerance } => {
                let expected = expected_number(prompt, after.as_deref())?;
                let given = match after {
                    Some(_) => part_after(completion, after.as_deref()).and_then(number::parse),
                    None => number::last_in(completion),
                };
                let allowed = tolerance * expected.abs().max(1.0);
                Ok(judged(given.map(|given| (given - expected).abs() <= allowed)))
            }
            Rule::Regex { regex, group: None } => Ok(judged(regex.is_match(completion).then_some(true))),
            Rule::Regex { regex, group: Some(group) } => {
                let expected = answer_of(prompt)?.trim();
                let last = regex.captures_iter(completion).last();
                let given = last.and_then(|captures| captures.get(*group));
                Ok(judged(given.map(|given| given.as_str().trim() == expected)))
            }
        }
    }
}

fn mark(after: Option<String>) -> Result<Option<String>> {
    match after.as_deref() {
        Some("") => {
            Err(Error::config("reward.after", "\"\"", "give the mark that stands before the answer, or leave it out"))
        }
        _ => Ok(after),
    }
}

fn judged(correct: Option<bool>) -> Score {
    let reward = if correct == Some(true) { 1.0 } else { 0.0 };
    let format = if correct.is_some() { 1.0 } else { 0.0 };
    Score { reward, parts: vec![("correct".into(), reward), ("format".into(), format)] }
}

/// What follows the last `mark` in `text`; all of it without a mark to look for; `None` where the mark is missing.
fn part_after<'a>(text: &'a str, mark: Option<&str>) -> Option<&'a str> {
    match mark {
        Some(mark) => text.rsplit_once(mark).map(|(_, part)| part),
        None => Some(text),
    }
}

fn answer_of(prompt: &Prompt) -> Result<&str, Unscorable> {
    if prompt.answer.trim().is_empty() { Err(Unscorable::NoAnswer { id: prompt.id }) } else { Ok(&prompt.answer) }
}

/// The answer as a number. Data sets that mark the answer in completions often keep the worked text as the answer: what
/// follows the mark counts there too.
fn expected_number(prompt: &Prompt, after: Option<&str>) -> Result<f64, Unscorable> {
    let answer = answer_of(prompt)?;
    let part = part_after(answer, after).unwrap_or(answer);
    number::parse(part).ok_or_else(|| Unscorable::NotANumber { id: prompt.id, answer: answer.into() })
}
