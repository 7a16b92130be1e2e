//! What `analyze` finds: the report that `--json` prints and the text is rendered from.
//!
//! Unless it says otherwise a number is over trained rollouts or over their trained tokens: those that `mask` names, without those
//! that `learn.safeguard.max_lag` left out; `null` where there was nothing to take it over.

use crate::jobs::shares::Shares;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Of all runs that were named.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub runs: Vec<RunReport>,
}

/// Of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    pub run: PathBuf,
    pub files: Files,
    /// First and last step that were read.
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    /// Rollouts by what became of them; discarded ones by reason.
    pub statuses: BTreeMap<String, u64>,
    pub reward: Rewards,
    /// The run in at most 12 parts of about equally many steps.
    pub over_steps: Vec<Interval>,
    pub lag: Lag,
    pub off_policy: OffPolicy,
    pub advantage: Advantages,
    /// None of a run without a critic.
    pub value: Option<Values>,
    pub time: Times,
    pub versions: Versions,
    /// Of generated tasks, by task and size.
    pub sizes: Vec<Size>,
    pub prompts: Prompts,
    /// Of all rollouts: the most tokens first.
    pub longest: Vec<Sample>,
    /// Of all rollouts: the lowest mean `logp_behavior` first.
    pub most_surprising: Vec<Sample>,
}

/// Files of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Files {
    pub read: u64,
    pub skipped: u64,
    /// The first few that were skipped, with the reason.
    pub skipped_names: Vec<String>,
    /// What files lacked, each once, the first few.
    pub notes: Vec<String>,
}

/// Rewards over the whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rewards {
    pub trained: Option<f64>,
    /// Share with a reward of at least 1.
    pub success: Option<f64>,
    /// Over all rollouts that have a reward, discarded and waiting ones too.
    pub sampled: Option<f64>,
    pub success_sampled: Option<f64>,
}

/// Some steps that follow each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    pub first_step: u64,
    pub last_step: u64,
    pub rollouts: u64,
    pub reward: Option<f64>,
    pub success: Option<f64>,
    /// Mean completion length, tokens.
    pub length: Option<f64>,
    /// Shares of the rollouts by stop reason.
    pub stops: BTreeMap<&'static str, f64>,
    pub lag_mean: Option<f64>,
    pub lag_max: Option<i64>,
    pub ess: Option<f64>,
    /// As that of the whole run.
    pub reference_k3: Option<f64>,
    /// As those of the whole run.
    pub sizes: Vec<Size>,
}

/// Lag of trained tokens, steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lag {
    /// Of the schedule of the spec in the footer.
    pub bound: Option<u64>,
    pub mean: Option<f64>,
    pub max: Option<i64>,
    /// Tokens that the policy chose and `learn.safeguard.max_lag` left out: they are in no figure of trained tokens.
    pub left_out: u64,
    /// Tokens whose lag is above the bound or below 0: there should be none.
    pub broken: u64,
    /// By lag, in at most 16 rows.
    pub by_lag: Vec<LagRow>,
    /// By position: tenths of the response, its first tenth first.
    pub by_position: Vec<PositionRow>,
}

/// Trained tokens with a lag of `from..=to` steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LagRow {
    pub from: i64,
    pub to: i64,
    pub tokens: u64,
    pub share: f64,
    pub ess: Option<f64>,
    pub k1: Option<f64>,
    pub k3: Option<f64>,
}

/// Tokens of one tenth of the responses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionRow {
    /// Where the tenth begins, as a share of the response.
    pub from: f64,
    pub lag_mean: Option<f64>,
    pub lag_max: Option<i64>,
}

/// How far the current policy is from the one that sampled, and that one from its reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OffPolicy {
    pub tokens: u64,
    /// Effective sample size of the ratios, before truncation, as a share of the tokens.
    pub ess: Option<f64>,
    /// Estimates of KL(behavior || current), nats a token (Schulman 2020).
    pub k1: Option<f64>,
    pub k3: Option<f64>,
    /// Estimates of KL(behavior || reference), nats a token; none without a reference.
    pub reference_k1: Option<f64>,
    pub reference_k3: Option<f64>,
}

/// Advantages of trained tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advantages {
    pub tokens: u64,
    pub mean: Option<f64>,
    /// Over all tokens, not of a sample.
    pub deviation: Option<f64>,
    pub min: Option<f32>,
    pub max: Option<f32>,
    /// Share of tokens whose advantage is exactly 0: no gradient.
    pub zero: Option<f64>,
}

/// A critic's values against the rewards that came of them; all that were used, of the run's first steps too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Values {
    pub tokens: u64,
    /// `1 - Var(reward - value) / Var(reward)`; None where all rewards are equal.
    pub explained_variance: Option<f64>,
    /// About equally many tokens each, in at most 10 rows, the lowest values first.
    pub by_value: Vec<ValuesRow>,
}

/// Trained tokens of about one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValuesRow {
    pub tokens: u64,
    /// Means.
    pub value: f64,
    #[serde(rename = "reward")]
    pub of_reward: f64,
}

/// Where the time went, by the rows' clocks and the footers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// From the first admission to the last step, seconds; a pause before a resume counts.
    pub wall_s: Option<f64>,
    /// All that was sampled, discarded rollouts too.
    pub sampled_tokens_per_s: Option<f64>,
    pub sampled_rollouts_per_s: Option<f64>,
    pub trained_tokens_per_s: Option<f64>,
    /// Means over rollouts, seconds: a slot awaited, generation, and (of trained ones) a step awaited.
    pub queued_s: Option<f64>,
    pub generating_s: Option<f64>,
    pub ready_s: Option<f64>,
    /// Of the learner, seconds: training; waiting for groups that the lag rule forces, for any groups, for the log.
    pub training_s: f64,
    pub waiting_forced_s: f64,
    pub waiting_any_s: f64,
    pub waiting_log_s: f64,
    /// Steps that left the weights as they were: their gradient was held for a later one; a safeguard paused the run; or they are neither
    /// (nothing to train, an outlier).
    pub held_steps: u64,
    pub paused_steps: u64,
    pub skipped_steps: u64,
    /// Where the time of the learner and of the generators went in the steps between a run's start and its end, and what to change on this
    /// machine, where something is to be gained.
    pub balance: Option<Shares>,
    pub advice: Option<String>,
}

/// Rollouts whose tokens come from two or more versions, of those that have tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Versions {
    pub mixed: Option<f64>,
    /// The task with the longest completions on average.
    pub longest_task: Option<String>,
    pub tasks: Vec<Task>,
}

/// Of one task; all its rollouts that have tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Task {
    pub task: String,
    pub rollouts: u64,
    pub length: Option<f64>,
    pub success: Option<f64>,
    pub mixed: Option<f64>,
}

/// Of one task and size: all its rollouts that have a reward, discarded and waiting ones too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    pub task: String,
    pub size: u32,
    pub groups: u64,
    pub success: Option<f64>,
}

/// Rows of [`Prompts::by_success`].
pub const SUCCESS_ROWS: usize = 12;

/// How often prompts were solved (reward at least 1), over all rollouts that have a reward.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prompts {
    /// Prompts that were seen and are counted here.
    pub counted: u64,
    /// Rollouts of prompts beyond those that fit; 0 unless there are very many prompts.
    pub rollouts_not_counted: u64,
    /// Prompts by the share of their rollouts that solved them: 0, then ten equal parts of what is between 0 and 1, then 1.
    pub by_success: [u64; SUCCESS_ROWS],
    pub most_solved: Vec<Solved>,
    pub least_solved: Vec<Solved>,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Solved {
    pub prompt_id: u64,
    pub rollouts: u64,
    pub solved: u64,
    /// Its text, cut.
    pub prompt: String,
}

/// One rollout, to be read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub step: u64,
    pub group: u64,
    pub sample: u32,
    pub prompt_id: u64,
    pub status: String,
    pub stop: &'static str,
    pub tokens: usize,
    /// Over the tokens that the policy chose, nats.
    pub logp_mean: Option<f64>,
    pub reward: Option<f32>,
    /// Texts, cut in the middle.
    pub prompt: String,
    pub completion: String,
}
