//! What a spec says about prompts and rewards: `[[task]]`, `[data]` and `[reward]`.

use super::fit::TooLong;
use super::generated::Kind;
pub use super::outside::spec::{CommandSpec, HttpSpec};
use super::reward::Reward;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One generated task of the mix (`[[task]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// `sorting`, `addition`, `expression` or `program`.
    pub kind: Kind,
    /// Its share of the prompts, relative to the other tasks' weights.
    #[serde(default = "one")]
    pub weight: f64,
    /// Smallest and largest size, drawn uniformly: digits (`sorting`), digits of each number (`addition`), operations
    /// (`expression`), tens of what its loop goes on to (`program`). The kind's own where left out.
    pub min_size: Option<u32>,
    pub max_size: Option<u32>,
    /// How often worked answers make the task's typical mistake where they can, 0..=1: a teacher that is not perfect, for
    /// supervised pairs. Prompts, and the answers that rewards compare with, stay right.
    #[serde(default)]
    pub slips: f64,
}

fn one() -> f64 {
    1.0
}

impl TaskSpec {
    pub fn new(kind: Kind) -> Self {
        TaskSpec { kind, weight: 1.0, min_size: None, max_size: None, slips: 0.0 }
    }

    /// The same task with its sizes spelt out, as a run's own `spec.toml` holds it.
    pub fn with_defaults(self) -> Self {
        let (low, high) = self.kind.default_sizes();
        // A spec that names one bound only moves the other one where it would be passed.
        let max_size = self.max_size.unwrap_or(high.max(self.min_size.unwrap_or(low)));
        let min_size = self.min_size.unwrap_or(low.min(max_size));
        TaskSpec { min_size: Some(min_size), max_size: Some(max_size), ..self }
    }
}

/// A file of prompts (`[data]`). What a row may look like is told in [`prompts`](super::prompts).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// JSON Lines (`.jsonl`) or Parquet (`.parquet`).
    pub file: PathBuf,
    /// The column of the prompt.
    #[serde(default = "prompt")]
    pub prompt: String,
    /// The column of the answer, with dots for what lies inside (`reward_model.ground_truth`); recognised where left out.
    pub answer: Option<String>,
    /// The task of rows that name none: it selects the reward and splits the metrics.
    #[serde(default = "data")]
    pub task: String,
    /// What a prompt that is plain text means.
    #[serde(default)]
    pub prompt_as: PromptAs,
    /// The column of the tools that the chat template shows (JSON schemas); empty for none.
    #[serde(default = "tools")]
    pub tools: String,
    /// A system message to put before each user message (`prompt_as = "user"` only).
    pub system: Option<String>,
    #[serde(default)]
    pub order: Order,
    /// Passes over the file; 0 is without end.
    #[serde(default)]
    pub epochs: u32,
    /// Most tokens of a prompt; 0 is as many as leave room for one more in the model's longest sequence.
    #[serde(default)]
    pub max_prompt_tokens: usize,
    /// What becomes of longer ones.
    #[serde(default)]
    pub too_long: TooLong,
}

fn prompt() -> String {
    "prompt".into()
}

fn tools() -> String {
    "tools".into()
}

fn data() -> String {
    "data".into()
}

/// What kind of file holds the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Read by [`jsonl`](super::jsonl).
    JsonLines,
    /// Read by the caller, who knows Parquet.
    Parquet,
}

/// What a prompt that is plain text means; a list of messages always goes through the chat template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptAs {
    /// The text itself, as the policy is to see it.
    #[default]
    Text,
    /// A user's message, for the chat template.
    User,
}

/// In which order a file's rows become prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Another order each epoch, a function of the run's seed.
    #[default]
    Shuffled,
    /// The file's own.
    File,
}

impl DataSpec {
    /// A file with every default.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        DataSpec {
            file: file.into(),
            prompt: prompt(),
            answer: None,
            task: data(),
            prompt_as: PromptAs::default(),
            tools: tools(),
            system: None,
            order: Order::default(),
            epochs: 0,
            max_prompt_tokens: 0,
            too_long: TooLong::default(),
        }
    }

    /// How the file is to be read, by its name.
    ///
    /// # Errors
    /// A name that ends in neither `.jsonl` nor `.parquet`.
    pub fn format(&self) -> Result<Format> {
        match self.file.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") => Ok(Format::JsonLines),
            Some("parquet") => Ok(Format::Parquet),
            _ => Err(Error::config("data.file", self.file.display(), "a data file's name ends in .jsonl or .parquet")),
        }
    }

    /// # Errors
    /// A system message that would go nowhere.
    pub fn check(&self) -> Result<()> {
        match (&self.system, self.prompt_as) {
            (Some(system), PromptAs::Text) => {
                Err(Error::config("data.system", system, "a system message needs data.prompt_as = \"user\""))
            }
            _ => Ok(()),
        }
    }
}

/// How a completion is rewarded (`[reward]`).
///
/// Each rule of its own gives 1.0 or 0.0: 0.0 is a reward, a wrong answer; a prompt that no rule can judge has none
/// ([`Unscorable`](super::reward::Unscorable)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RewardSpec {
    /// A generated task's own rule: the final answer, to the letter.
    #[default]
    Task,
    /// The completion, or what follows the last `after` in it, is the answer; white space around either is ignored.
    Exact {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// The last number in the completion, or the one number that follows the last `after`, is the answer's.
    Numeric {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// Largest difference, as a share of the answer's size (of 1 for answers below 1).
        #[serde(default = "tolerance")]
        tolerance: f64,
    },
    /// The pattern is found in the completion. If it has a group (the one named `answer`, or the first), the text of its
    /// last match is the answer, white space around either ignored.
    Regex { pattern: String },
    /// A program's answer.
    Command(CommandSpec),
    /// A server's answer.
    Http(HttpSpec),
}

/// Who gives rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A rule of this program: the same every time, at no cost.
    #[default]
    Rule,
    /// A program or a server: slow perhaps, and perhaps of another mind the next time.
    Outside,
}

impl RewardSpec {
    pub fn source(&self) -> Source {
        match self {
            RewardSpec::Command(_) | RewardSpec::Http(_) => Source::Outside,
            _ => Source::Rule,
        }
    }

    /// # Errors
    /// The first key that is wrong, with its value and what would be right.
    pub fn check(&self) -> Result<()> {
        match self {
            RewardSpec::Command(command) => command.check(),
            RewardSpec::Http(http) => http.check(),
            _ => Reward::new(self).map(drop),
        }
    }
}

fn tolerance() -> f64 {
    1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(text: &str) -> Result<TaskSpec, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_the_kinds() {
        let found = task("kind = \"expression\"").unwrap();
        assert_eq!(found, TaskSpec::new(Kind::Expression));
        let spelt = toml::to_string(&found.with_defaults()).unwrap();
        assert_eq!(spelt, "kind = \"expression\"\nweight = 1.0\nmin_size = 3\nmax_size = 8\nslips = 0.0\n");
        let one_bound = |text| {
            let spec = task(text).unwrap().with_defaults();
            (spec.min_size, spec.max_size)
        };
        assert_eq!(one_bound("kind = \"sorting\"\nmax_size = 3"), (Some(3), Some(3)));
        assert_eq!(one_bound("kind = \"sorting\"\nmin_size = 9"), (Some(9), Some(9)));
        assert_eq!(one_bound("kind = \"sorting\"\nmin_size = 5"), (Some(5), Some(8)));
    }

    #[test]
    fn what_is_not_a_task_is_refused() {
        assert!(task("kind = \"sortng\"").unwrap_err().contains("`sorting`, `addition`, `expression`"));
        assert!(task("kind = \"sorting\"\nmaxsize = 3").unwrap_err().contains("unknown field `maxsize`"));
    }

    #[test]
    fn rewards_by_kind() {
        let reward = |text: &str| toml::from_str::<RewardSpec>(text).map_err(|e| e.to_string());
        assert_eq!(reward("kind = \"task\""), Ok(RewardSpec::Task));
        assert_eq!(reward("kind = \"numeric\""), Ok(RewardSpec::Numeric { after: None, tolerance: 1e-6 }));
        let marked = RewardSpec::Exact { after: Some("####".into()) };
        assert_eq!(reward("kind = \"exact\"\nafter = \"####\""), Ok(marked.clone()));
        assert_eq!(reward(&toml::to_string(&marked).unwrap()), Ok(marked));
        assert!(reward("kind = \"exact\"\ntolerance = 1").unwrap_err().contains("unknown field `tolerance`"));
        assert!(reward("kind = \"regex\"").unwrap_err().contains("missing field `pattern`"));
    }

    #[test]
    fn data_files() {
        let spec: DataSpec = toml::from_str("file = \"data/prompts/arithmetic.jsonl\"").unwrap();
        assert_eq!(spec, DataSpec::new("data/prompts/arithmetic.jsonl"));
        assert!(spec.check().is_ok());
        assert_eq!(spec.format().unwrap(), Format::JsonLines);
        assert_eq!(DataSpec::new("a.b/train.parquet").format().unwrap(), Format::Parquet);
        let message = DataSpec::new("train.json").format().unwrap_err().to_string();
        assert_eq!(message, "data.file = train.json: a data file's name ends in .jsonl or .parquet");
        let lost = DataSpec { system: Some("Be short.".into()), ..spec };
        let message = lost.check().unwrap_err().to_string();
        assert_eq!(message, "data.system = Be short.: a system message needs data.prompt_as = \"user\"");
    }
}
