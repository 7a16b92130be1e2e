//! What both engines are told: how to sample and how to learn.

use crate::engine::critic::{Critic, Objective};
use crate::engine::reference::Reference;
use crate::kernel::aggregation::Aggregation;
use crate::kernel::loss::Loss;
use crate::kernel::safeguard::Safeguard;
use serde::{Deserialize, Serialize};
use tidegate_operators::record::Prompt;

/// The type of numbers that products are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    #[default]
    Fp32,
    Bf16,
}

/// What becomes of a running sequence's keys and values when new weights come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvAfterUpdate {
    /// They stay, as the weights before made them (PipelineRL, arXiv 2509.19128).
    #[default]
    Keep,
    /// The sequence enters anew, some of it in each step as a prompt does, before its next token is sampled.
    Recompute,
}

/// How rollouts are sampled (`[generate]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Rollouts in progress on each generator.
    pub slots: usize,
    /// Most new tokens of a rollout.
    pub max_tokens: usize,
    /// What logits are divided by; 0 is greedy (evaluation only).
    pub temperature: f64,
    /// Keep the k likeliest tokens; 0 keeps all (training needs 0).
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probabilities reach p; 1 keeps all (training needs 1).
    pub top_p: f64,
    /// Strings that end a rollout (kept in its text).
    pub stop: Vec<String>,
    /// Longest time of one rollout, seconds; 0 is no limit.
    pub time_limit_s: f64,
    /// Whether rollouts cut at the length limit are left out of training.
    pub mask_truncated: bool,
    /// Whether an end-of-sequence token is a token like any other: for measurements.
    pub ignore_eos: bool,
    pub kv_after_update: KvAfterUpdate,
    /// What weights, keys and values are held and multiplied in. Logits and log-probabilities are fp32 whichever.
    pub dtype: Dtype,
}

impl Sampling {
    /// Whether the distribution is cut before a token is drawn.
    pub fn cuts(&self) -> bool {
        self.temperature != 0.0 && (self.top_k > 0 || self.top_p < 1.0)
    }

    /// Most tokens of an answer to `prompt`.
    pub fn limit(&self, prompt: &Prompt) -> usize {
        prompt.max_tokens.map_or(self.max_tokens, |own| self.max_tokens.min(own as usize))
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            slots: 64,
            max_tokens: 256,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            stop: Vec::new(),
            time_limit_s: 0.0,
            mask_truncated: false,
            ignore_eos: false,
            kv_after_update: KvAfterUpdate::Keep,
            dtype: Dtype::Fp32,
        }
    }
}

/// How a batch becomes a gradient step (`[learn]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Learning {
    pub loss: Loss,
    pub aggregation: Aggregation,
    /// Coefficient of the value loss; 0 means no critic.
    pub value_coef: f64,
    pub entropy_coef: f64,
    /// Learning rate after warm-up; its floor as a share of it, reached by cosine at the last step.
    pub lr: f64,
    pub lr_min_ratio: f64,
    pub warmup_steps: u64,
    /// `constant` or `cosine`.
    pub lr_schedule: LrSchedule,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Largest norm of the gradient; 0 is no limit.
    pub grad_clip: f64,
    /// Most tokens of one micro-batch, of which a prompt that several of its rollouts share counts once.
    pub micro_batch_tokens: usize,
    /// What products are computed in; weights, gradients and the optimizer's state are fp32 whichever.
    pub dtype: Dtype,
    /// Whether what goes on inside a layer is computed again on the way back instead of kept.
    pub activation_checkpointing: bool,
    /// Against high lag (`[learn.safeguard]`).
    pub safeguard: Safeguard,
    /// What the policy is to stay near (`[learn.reference]`).
    pub reference: Reference,
    /// The critic, where there is one (`[learn.critic]`).
    pub critic: Critic,
    /// What of it one learner does: no key.
    #[serde(skip)]
    pub objective: Objective,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    Constant,
    #[default]
    Cosine,
}

impl Default for Learning {
    fn default() -> Self {
        Learning {
            loss: Loss::default(),
            aggregation: Aggregation::default(),
            value_coef: 0.0,
            entropy_coef: 0.0,
            lr: 1e-6,
            lr_min_ratio: 0.0,
            warmup_steps: 50,
            lr_schedule: LrSchedule::Cosine,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
            grad_clip: 0.3,
            micro_batch_tokens: 8192,
            dtype: Dtype::Fp32,
            activation_checkpointing: false,
            safeguard: Safeguard::default(),
            reference: Reference::default(),
            critic: Critic::default(),
            objective: Objective::default(),
        }
    }
}

impl Learning {
    /// Learning rate of step `step` (from 1) of `steps`, before a safeguard scales it: 0 in the steps in which the critic alone learns, and
    /// then as if they had not been.
    pub fn lr_at(&self, step: u64, steps: u64) -> f64 {
        let alone = self.critic.alone_steps;
        self.rate(self.lr, step.saturating_sub(alone), steps.saturating_sub(alone))
    }

    /// What the schedule makes of the rate `lr` in step `step` of `steps`.
    pub(super) fn rate(&self, lr: f64, step: u64, steps: u64) -> f64 {
        if step == 0 {
            return 0.0;
        }
        if step <= self.warmup_steps {
            return lr * step as f64 / self.warmup_steps as f64;
        }
        match self.lr_schedule {
            LrSchedule::Constant => lr,
            LrSchedule::Cosine => {
                let span = steps.saturating_sub(self.warmup_steps).max(1) as f64;
                let done = ((step - self.warmup_steps) as f64 / span).min(1.0);
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
                lr * (self.lr_min_ratio + (1.0 - self.lr_min_ratio) * cosine)
            }
        }
    }
}
