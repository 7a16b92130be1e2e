//! The dataflow's ports on this side: prompts, reward and estimator of a run.

use crate::engine::tokenizer::Tokenizer;
use crate::error::Error;
use crate::kernel::advantage::{Advantage, group_advantages, reward_minus_value};
use crate::spec::{EstimateSpec, ZeroVariance};
use crate::tasks;
use crate::tasks::Item;
use crate::tasks::spec::RewardSpec;
use tidegate_operators::admit::Prompts;
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Prompt, Reason, Rollout, Status};
use tidegate_operators::score::Scorer;

/// A stream of items, tokenized as they are admitted.
pub struct TokenizedPrompts {
    pub items: Box<dyn Iterator<Item = Result<Item, Error>> + Send>,
    pub tokenizer: Tokenizer,
}

impl Prompts for TokenizedPrompts {
    fn next(&mut self) -> Result<Option<Prompt>, Fault> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let item = item.map_err(|e| Fault::new("admit", e))?;
        Ok(Some(tokenize(item, &self.tokenizer).map_err(|e| Fault::new("admit", e))?))
    }
}

/// The prompt of an item, with its ids.
///
/// # Errors
/// A text that the tokenizer refuses.
pub fn tokenize(item: Item, tokenizer: &Tokenizer) -> Result<Prompt, Error> {
    let tokens = tokenizer.encode(&item.text)?;
    let Item { id, epoch, task, text, answer, meta, .. } = item;
    Ok(Prompt { id, epoch, task, text, tokens, answer, meta })
}

/// The reward that the spec names.
#[derive(Clone, Debug)]
pub struct TaskScorer {
    pub reward: RewardSpec,
}

impl Scorer for TaskScorer {
    fn score(&mut self, rollout: &mut Rollout) -> Result<(), Fault> {
        let prompt = &rollout.group.prompt;
        match tasks::score(&self.reward, &prompt.task, &prompt.answer, &prompt.meta, &rollout.text) {
            Ok(score) => {
                rollout.reward = Some(score.reward);
                rollout.reward_parts = score.parts;
                rollout.reward_error = None;
            }
            Err(why) => {
                rollout.reward = None;
                rollout.reward_error = Some(why.to_string());
            }
        }
        Ok(())
    }
}

/// What advantages are measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The rewards of the group.
    Group(Advantage),
    /// The critic's value at each token, recorded when it was sampled.
    Critic,
}

/// Groups' advantages, by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct GroupEstimator {
    pub baseline: Baseline,
    pub zero_variance: ZeroVariance,
}

impl GroupEstimator {
    pub fn new(spec: &EstimateSpec, baseline: Baseline) -> Self {
        GroupEstimator { baseline, zero_variance: spec.zero_variance }
    }
}

impl Estimator for GroupEstimator {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        for rollout in rollouts.iter_mut().filter(|r| r.trainable()) {
            if let Some(why) = bad_tokens(rollout, self.baseline) {
                rollout.status = Status::Discarded(Reason::BadTokens(why));
            }
        }
        let reward = |r: &Rollout| if r.trainable() { r.reward.filter(|x| x.is_finite()) } else { None };
        let rewards: Vec<Option<f32>> = rollouts.iter().map(reward).collect();
        let kind = match self.baseline {
            Baseline::Group(kind) => kind,
            Baseline::Critic => Advantage::GroupMean,
        };
        let estimate = group_advantages(kind, &rewards);
        for ((rollout, reward), advantage) in rollouts.iter_mut().zip(&rewards).zip(&estimate.advantages) {
            let Some(reward) = *reward else {
                rollout.advantage = vec![0.0; rollout.tokens.len()];
                if rollout.trainable() {
                    rollout.status = Status::Discarded(Reason::NoReward);
                }
                continue;
            };
            rollout.advantage = match self.baseline {
                Baseline::Group(_) => vec![*advantage; rollout.tokens.len()],
                Baseline::Critic => reward_minus_value(reward, &rollout.value, &rollout.mask),
            };
        }
        Ok(match (estimate.scored, self.zero_variance) {
            (0, _) => Some(shared_reason(rollouts)),
            (_, ZeroVariance::Discard) if estimate.zero_variance => Some(Reason::ZeroVariance),
            _ => None,
        })
    }
}

/// Why a group of which nothing can be trained is discarded: its rollouts' own reason where it is not the reward.
fn shared_reason(rollouts: &[Rollout]) -> Reason {
    match rollouts.first().map(|r| &r.status) {
        Some(Status::Discarded(reason)) if *reason != Reason::NoReward => reason.clone(),
        _ => Reason::Unscorable,
    }
}

/// The largest rounding error above 0 that a log-probability may show; it is clamped.
const LOGP_SLACK: f32 = 1e-3;

/// Says what is wrong with a rollout's lists, if anything; clamps rounding errors of `logp_behavior` to 0.
fn bad_tokens(rollout: &mut Rollout, baseline: Baseline) -> Option<String> {
    let n = rollout.tokens.len();
    let mut lists = vec![
        ("mask", rollout.mask.len()),
        ("logp_behavior", rollout.logp_behavior.len()),
        ("version", rollout.version.len()),
    ];
    if baseline == Baseline::Critic {
        lists.push(("value", rollout.value.len()));
    }
    if let Some((name, len)) = lists.into_iter().find(|(_, len)| *len != n) {
        return Some(format!("{name} has {len} entries for {n} tokens"));
    }
    for (at, logp) in rollout.logp_behavior.iter_mut().enumerate() {
        if !logp.is_finite() || *logp > LOGP_SLACK {
            return Some(format!("logp_behavior[{at}] = {logp}, expected a finite number of at most 0"));
        }
        *logp = logp.min(0.0);
    }
    None
}
