//! The dataflow's ports on this side: prompts, reward and estimator of a run.

use crate::engine::tokenizer::Tokenizer;
use crate::jobs::data;
use crate::kernel::advantage::{Advantage, group_advantages, value_advantages};
use crate::spec::{EstimateSpec, ZeroVariance};
use crate::tasks::reward::Reward;
use crate::tasks::source;
use tidegate_operators::admit::Prompts;
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Prompt, Reason, Rollout, Status};
use tidegate_operators::score::Scorer;

/// A run's prompts, tokenized as they are admitted.
pub struct TokenizedPrompts {
    pub prompts: source::Prompts,
    pub tokenizer: Tokenizer,
}

impl Prompts for TokenizedPrompts {
    fn next(&mut self) -> Result<Option<Prompt>, Fault> {
        let Some((epoch, item)) = self.prompts.next() else { return Ok(None) };
        data::prompt(epoch, item, &self.tokenizer).map(Some).map_err(|e| Fault::new("admit", e))
    }
}

/// The reward rule of the spec.
#[derive(Clone, Debug)]
pub struct RuleScorer(pub Reward);

impl Scorer for RuleScorer {
    fn score(&mut self, rollout: &mut Rollout) -> Result<(), Fault> {
        (rollout.reward, rollout.reward_parts, rollout.reward_error) =
            match self.0.score(&rollout.group.prompt, &rollout.text) {
                Ok(score) => (Some(score.reward), score.parts, None),
                Err(why) => (None, Vec::new(), Some(why.to_string())),
            };
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
                Baseline::Critic => value_advantages(reward, &rollout.value, &rollout.mask),
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
