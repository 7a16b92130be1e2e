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
    /// A pattern that is no regular expression, a tolerance that is no number from 0 up, an empty `after`; a kind that is no
    /// rule but comes from [`outside`](super::outside).
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
            RewardSpec::Command(_) | RewardSpec::Http(_) => {
                let why = "comes from outside the program; a rule is task, exact, numeric or regex";
                return Err(Error::config("reward.kind", "command, http", why));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(task: &str, answer: &str) -> Prompt {
        Prompt { id: 3, task: task.into(), answer: answer.into(), ..Prompt::default() }
    }

    /// (reward, format) of a completion.
    fn score(spec: &RewardSpec, answer: &str, completion: &str) -> (f32, f32) {
        let score = Reward::new(spec).unwrap().score(&prompt("data", answer), completion).unwrap();
        assert_eq!(score.parts[0], ("correct".into(), score.reward));
        assert_eq!(score.parts[1].0, "format");
        (score.reward, score.parts[1].1)
    }

    const RIGHT: (f32, f32) = (1.0, 1.0);
    const WRONG: (f32, f32) = (0.0, 1.0);
    const NONE: (f32, f32) = (0.0, 0.0);

    #[test]
    fn generated_tasks_are_judged_to_the_letter() {
        let cases = [
            ("sorting", "12579", "12579", RIGHT),
            ("sorting", "12579", "12579 ", WRONG),
            ("sorting", "12579", "125799", WRONG),
            ("sorting", "12579", "", WRONG),
            ("addition", "834", "8+6+0=14;7+5+1=13;4+3+1=08>834", RIGHT),
            ("addition", "834", ">834", RIGHT),
            ("addition", "834", "8+6+0=14;7+5+1=13;4+3+1=08>0834", WRONG),
            ("addition", "834", "8+6+0=14>834;", WRONG),
            ("addition", "834", "834", NONE),
            ("expression", "4", "7-5=2*2;2*2=4>4", RIGHT),
            ("expression", "4", "7-5=2*2;2*2=4>4>", WRONG),
            ("expression", "4", "7-5=2*2;2*2=4>4>5", WRONG),
            ("expression", "4", "4", NONE),
        ];
        let reward = Reward::new(&RewardSpec::Task).unwrap();
        for (task, answer, completion, expected) in cases {
            let score = reward.score(&prompt(task, answer), completion).unwrap();
            assert_eq!((score.reward, score.parts[1].1), expected, "{task} {completion}");
        }
    }

    #[test]
    fn exact_ignores_white_space_around_and_nothing_else() {
        let whole = RewardSpec::Exact { after: None };
        assert_eq!(score(&whole, "Paris", " Paris\n"), RIGHT);
        assert_eq!(score(&whole, " Paris", "Paris"), RIGHT);
        assert_eq!(score(&whole, "Paris", "paris"), WRONG);
        assert_eq!(score(&whole, "0", "0.0"), WRONG);
        let marked = RewardSpec::Exact { after: Some("A:".into()) };
        assert_eq!(score(&marked, "Paris", "A: Rome? No. A: Paris"), RIGHT);
        assert_eq!(score(&marked, "Paris", "A: Paris, I think"), WRONG);
        assert_eq!(score(&marked, "Paris", "Paris"), NONE);
    }

    #[test]
    fn numeric_compares_values() {
        let last = RewardSpec::Numeric { after: None, tolerance: 1e-6 };
        assert_eq!(score(&last, "1", "it is 1"), RIGHT);
        assert_eq!(score(&last, "1", "true"), NONE);
        assert_eq!(score(&last, "1", "1e400"), NONE);
        assert_eq!(score(&last, "0", "-0.0"), RIGHT);
        assert_eq!(score(&last, "0", "0"), RIGHT);
        assert_eq!(score(&last, "0", "NaN"), NONE);
        assert_eq!(score(&last, "950", "1,250 - 300 = 950."), RIGHT);
        assert_eq!(score(&last, "950", "950 is 1250 - 300"), WRONG);
        let close = RewardSpec::Numeric { after: None, tolerance: 0.01 };
        assert_eq!(score(&close, "200", "198"), RIGHT);
        assert_eq!(score(&close, "200", "197.9"), WRONG);
        assert_eq!(score(&close, "0.5", "0.509"), RIGHT);
        let marked = RewardSpec::Numeric { after: Some("####".into()), tolerance: 0.0 };
        assert_eq!(score(&marked, "she has 3 + 4 = 7 #### 7", "3+4=7 #### 7"), RIGHT);
        assert_eq!(score(&marked, "7", "#### 7 8"), NONE);
        assert_eq!(score(&marked, "7", "7"), NONE);
    }

    #[test]
    fn regex_finds_or_compares() {
        let found = RewardSpec::Regex { pattern: "^<think>.*</think>".into() };
        assert_eq!(score(&found, "", "<think>so</think> yes"), RIGHT);
        assert_eq!(score(&found, "", "yes"), NONE);
        let boxed = RewardSpec::Regex { pattern: r"\\boxed\{([^}]*)\}".into() };
        assert_eq!(score(&boxed, "7", r"\boxed{8}, no, \boxed{ 7 }"), RIGHT);
        assert_eq!(score(&boxed, "7", r"\boxed{7}, no, \boxed{8}"), WRONG);
        assert_eq!(score(&boxed, "7", "7"), NONE);
        let named = RewardSpec::Regex { pattern: "(a|the) word is (?<answer>[a-z]+)".into() };
        assert_eq!(score(&named, "yes", "the word is yes"), RIGHT);
    }

    #[test]
    fn what_cannot_be_judged_has_no_reward() {
        let error = |spec: RewardSpec, task: &str, answer: &str| {
            Reward::new(&spec).unwrap().score(&prompt(task, answer), "7").unwrap_err().to_string()
        };
        let message = error(RewardSpec::Task, "gsm8k", "7");
        assert!(message.contains("\"gsm8k\"") && message.contains("sorting, addition, expression, program"), "{message}");
        assert_eq!(error(RewardSpec::Exact { after: None }, "data", " "), "prompt 3 has no answer to compare with");
        for answer in ["true", "1e400", "seven", "1 2"] {
            let message = error(RewardSpec::Numeric { after: None, tolerance: 0.0 }, "data", answer);
            assert_eq!(message, format!("prompt 3 has the answer {answer:?}, which is not one finite number"));
        }
    }

    #[test]
    fn a_wrong_spec_is_refused_by_key_and_value() {
        let refused = |spec: RewardSpec| Reward::new(&spec).unwrap_err().to_string();
        let message = refused(RewardSpec::Regex { pattern: "(".into() });
        assert!(message.starts_with("reward.pattern = (: "), "{message}");
        for tolerance in [-1.0, f64::NAN, f64::INFINITY] {
            let message = refused(RewardSpec::Numeric { after: None, tolerance });
            assert_eq!(message, format!("reward.tolerance = {tolerance}: a tolerance is a number from 0 up"));
        }
        assert!(refused(RewardSpec::Exact { after: Some(String::new()) }).starts_with("reward.after = \"\": "));
    }
}
