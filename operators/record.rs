//! The records that travel on the dataflow: prompts, groups, rollouts, weights, sealed steps.
//!
//! Words and units, once for the whole program: a *step* `k` (from 1) turns *version* `k - 1` into version `k`; times are
//! nanoseconds since the Unix epoch; log-probabilities are natural logarithms; one *row* of the log is one [`Rollout`].

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The k-th optimizer update, from 1. Also the timely timestamp: a group travels at the last step that may train it.
pub type Step = u64;

/// How many updates a set of weights has had; 0 is the start.
pub type Version = u64;

/// A task text that the policy is to answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Row of the data set (two rows with the same text are two prompts).
    pub id: u64,
    /// How many full passes over the data set came before.
    pub epoch: u32,
    /// Name of the task, as in the data set: it selects the reward.
    pub task: String,
    /// The text as the policy sees it, template applied.
    pub text: String,
    /// The ids of `text`.
    pub tokens: Vec<u32>,
    /// What the reward compares with; empty where the task needs none.
    pub answer: String,
    /// The rest of the data set's row, as a JSON object, for rewards that want it; empty if there is none.
    pub meta: String,
    /// Most tokens of an answer to it, where that is fewer than the run allows.
    pub max_tokens: Option<u32>,
    /// Why it cannot be answered, where whoever read it has found that already: generators refuse it with these words.
    pub refused: Option<String>,
    /// Size of a generated task: its digits, or operations; 0 for a row of a data set.
    pub size: u32,
    /// What its success counts for: prompts of one bin are about as hard as each other. A row of a data set is a bin of its own, a
    /// generated task has one for each size. Not in the log, where `id`, or `task` and `size`, say it.
    pub bin: u64,
    /// The success rate of its bin that was known when it was drawn, in 0..=1; None where none was, or none is kept.
    pub drawn_success: Option<f32>,
}

/// One admitted prompt: the header that its rollouts share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Admission number, from 0, without gaps over the whole run.
    pub number: u64,
    /// The last step that may train the group: the timestamp of everything about it.
    pub due: Step,
    /// How many groups were admitted with a smaller `due`.
    pub earlier: u64,
    /// The oldest version that may sample a token of the group.
    pub oldest: Version,
    /// How many rollouts are sampled.
    pub size: u32,
    /// The timely worker that generates it.
    pub generator: usize,
    pub prompt: Prompt,
    pub admitted_ns: i64,
}

/// Why a rollout ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// An end-of-sequence token, kept as the last one.
    #[default]
    Eos,
    /// A stop string of the spec.
    StopString,
    /// The limit on new tokens, or the model's longest sequence.
    Length,
    /// The limit on a rollout's time.
    Time,
    /// Nothing was sampled: the generator refused the prompt, the status says why.
    Refused,
}

/// Why a rollout is not trained.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its reward is missing or not a number.
    NoReward,
    /// No rollout of its group has a reward.
    Unscorable,
    /// All rewards of its group are equal, and the spec filters such groups.
    ZeroVariance,
    /// `logp_behavior` is not a log-probability, or lists of its tokens differ in length; the text says which.
    BadTokens(String),
    /// The prompt leaves no room for an answer, or is not what the generator can take; the text says why.
    BadPrompt(String),
    /// The prompts ended inside a batch and the spec leaves short batches out.
    DataEnded,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoReward => f.write_str("no reward"),
            Reason::Unscorable => f.write_str("unscorable"),
            Reason::ZeroVariance => f.write_str("zero variance"),
            Reason::BadTokens(why) => write!(f, "bad tokens: {why}"),
            Reason::BadPrompt(why) => write!(f, "bad prompt: {why}"),
            Reason::DataEnded => f.write_str("data ended"),
        }
    }
}

/// What became of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// On its way, or complete and not yet chosen when the run stopped.
    #[default]
    Waiting,
    /// A gradient step used it.
    Trained,
    /// No step will use it.
    Discarded(Reason),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Waiting => f.write_str("waiting"),
            Status::Trained => f.write_str("trained"),
            Status::Discarded(reason) => write!(f, "discarded: {reason}"),
        }
    }
}

impl Status {
    /// The status without what a reason says of the single rollout: there are few of these, whatever a run meets.
    pub fn kind(&self) -> String {
        match self {
            Status::Discarded(Reason::BadTokens(_)) => "discarded: bad tokens".to_owned(),
            Status::Discarded(Reason::BadPrompt(_)) => "discarded: bad prompt".to_owned(),
            other => other.to_string(),
        }
    }
}

/// One sampled completion. Lists marked `[T]` have one entry a completion token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub group: Arc<Group>,
    /// Index in the group, from 0.
    pub sample: u32,
    pub status: Status,
    /// `[T]` completion ids as sampled.
    pub tokens: Vec<u32>,
    /// The completion's text: lossy UTF-8, for reading and for rewards.
    pub text: String,
    /// `[T]` true where the policy chose the token and it is to be trained.
    pub mask: Vec<bool>,
    /// `[T]` log-probability under the distribution that was sampled from.
    pub logp_behavior: Vec<f32>,
    /// `[T]` version of the weights that sampled the token.
    pub version: Vec<Version>,
    /// `[T]` the critic's estimate before the token, made when it was sampled or, by a critic with a model of its own, when its step
    /// began; empty where nothing made one.
    pub value: Vec<f32>,
    pub stop: Stop,
    pub started_ns: i64,
    pub finished_ns: i64,
    /// The timely worker that sampled it.
    pub worker: usize,
    /// Filled by `score`: the reward, and its named parts.
    pub reward: Option<f32>,
    pub reward_parts: Vec<(String, f32)>,
    /// Filled by `score` where there is no reward: why.
    pub reward_error: Option<String>,
    /// Filled by `estimate` where rewards are shaped: what advantages are made of in place of the reward.
    pub reward_shaped: Option<f32>,
    /// `[T]` filled by `estimate`; empty before.
    pub advantage: Vec<f32>,
    /// `[T]` filled by `train`: log-probability under the weights the step started from; empty before.
    pub logp_current: Vec<f32>,
    /// `[T]` filled by `train` where the run has a reference policy: log-probability under that; empty without.
    pub logp_reference: Vec<f32>,
    /// The step that trains it, filled before the learner has it (or the step that sealed it, for a rollout that was not trained);
    /// 0 before.
    pub step: Step,
    /// Place in its batch, from 0.
    pub order: u32,
    pub trained_ns: i64,
}

impl Rollout {
    /// Whether the learner may use it.
    pub fn trainable(&self) -> bool {
        !matches!(self.status, Status::Discarded(_))
    }

    /// What it is trained on: the shaped reward where there is one, else the reward.
    pub fn used_reward(&self) -> Option<f32> {
        self.reward_shaped.or(self.reward)
    }
}

/// All rollouts of one group, scored and estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimated {
    pub group: Arc<Group>,
    /// In order of `sample`.
    pub rollouts: Vec<Rollout>,
    /// Set where no step may use the group. The rollouts stay with it, for the log alone.
    pub discarded: Option<Reason>,
}

/// An immutable snapshot of the model, taken once after a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Weights<W> {
    pub version: Version,
    pub payload: W,
}

/// What one step was like. Means are over what their doc names, never means of means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    pub step: Step,
    /// Rollouts that had a gradient; tokens that had one.
    pub rollouts: u64,
    pub tokens: u64,
    /// Tokens that the policy chose and a safeguard left out for their lag (0 in logs that do not say).
    pub left_out: u64,
    /// Tokens that the learner computed, prompts included, those that rollouts of a micro-batch share once; the most it computed at
    /// once, as it was told or as memory allowed (0 in logs that do not say).
    pub slots: u64,
    pub micro_batch_tokens: u64,
    /// The total that was minimised, and its parts (aggregated over the batch as the spec says).
    pub loss: f64,
    pub policy_loss: f64,
    pub value_loss: f64,
    /// `1 - Var(reward - value) / Var(reward)` over trained tokens, with the values that advantages were made of; NaN where all
    /// returns are equal, 0 without a critic.
    pub explained_variance: f64,
    /// Mean over trained tokens, nats.
    pub entropy: f64,
    /// Effective sample size of the importance weights, in 0..=1.
    pub ess: f64,
    /// Mean over trained tokens of `-(logp_current - logp_behavior)` and of `exp(d) - 1 - d` with d that difference.
    pub kl_k1: f64,
    pub kl_k3: f64,
    /// Mean over trained tokens of the importance weight times `exp(d) - 1 - d`, d being `logp_reference - logp_current`: the current
    /// policy's divergence from the reference; and the coefficient that the step had for it. 0 without a reference.
    pub kl_reference: f64,
    pub kl_coef: f64,
    /// Mean over trained tokens of `|logp_current - logp_behavior|`.
    pub logp_gap: f64,
    /// Share of trained tokens whose ratio was cut.
    pub clipped: f64,
    /// Norm of the gradient before clipping; learning rate used.
    pub grad_norm: f64,
    pub lr: f64,
    /// Learning rate of the critic; of one with a model of its own, the norm of its gradient before clipping too, and the most
    /// tokens that it computed at once. 0 without.
    pub critic_lr: f64,
    pub critic_grad_norm: f64,
    pub critic_micro_batch_tokens: u64,
    /// True where the policy learned nothing: the batch held nothing to train, the gradient was an outlier, or one of the next two.
    pub skipped: bool,
    /// True where a safeguard keeps the gradient for the step after this one; where it paused the run for a low ESS.
    pub held: bool,
    pub paused: bool,
    /// Batches whose gradients were added up to the step's, its own among them (0 in logs that do not say).
    pub enlarged: u64,
    /// Mean over rollouts that have a reward; share of them with reward at least 1.
    pub reward: f64,
    pub success: f64,
    /// Mean completion length over rollouts, tokens.
    pub length: f64,
    /// Mean over groups of [`Prompt::drawn_success`], of those that have one (0 in logs that do not say).
    pub drawn_success: f64,
    /// Of trained tokens, in steps.
    pub lag_mean: f64,
    pub lag_max: u64,
    /// Nanoseconds of the learner's worker: in the learner; waiting for a group that the rule forces, for any group, for the log.
    pub train_ns: u64,
    /// Nanoseconds on the processor inside the engine's tensor library.
    pub torch_ns: u64,
    pub wait_forced_ns: u64,
    pub wait_any_ns: u64,
    pub wait_log_ns: u64,
    /// Of the same worker, what is left of the step: in other operators while a step was open.
    pub elsewhere_ns: u64,
    /// Of all generators together, but for one on the learner's worker where there are others, since the step before: in decode steps and
    /// loading weights; with nothing in progress; all their time (0 in logs that do not say).
    pub sample_ns: u64,
    pub idle_ns: u64,
    pub generators_ns: u64,
    /// When the step ended.
    pub finished_ns: i64,
    /// Hash of every tensor after the step (name, first 16 hexadecimal digits of BLAKE3 over its little-endian bytes).
    pub weights: Vec<(String, String)>,
}

/// All that one step makes durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SealedStep {
    pub step: Step,
    /// Trained rollouts in batch order, then those discarded since the step before.
    pub rollouts: Vec<Rollout>,
    /// None for the tail of a run: rollouts that no step trained.
    pub metrics: Option<Metrics>,
}

/// Nanoseconds since the Unix epoch.
pub fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}
