//! The dataflow's port of `estimate`: what is made of a group's rewards, by the kernel; and when too many groups teach nothing.
//!
//! A group is estimated where it was sampled. What needs the whole batch comes later: see [`whitening`](super::whitening).

use crate::kernel::advantage::{Advantage, group_advantages, value_advantages};
use crate::kernel::gae::{Ending, Gae, reward_gae};
use crate::kernel::shaping::Shaping;
use crate::spec::{Spec, ZeroVariance};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Reason, Rollout, Status, Stop};
use tidegate_operators::success::solves;

/// What advantages are measured against.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Baseline {
    /// The rewards of the group, or nothing.
    Group(Advantage),
    /// The critic's values, recorded when tokens were sampled.
    Values(Valued),
    /// The critic's values, which a model of its own makes when a step takes its batch: until then rewards stand for advantages.
    Later,
}

/// What is made of a critic's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Valued {
    /// The reward, less the value at each token.
    Baseline,
    /// By the values at this token and all later ones.
    Gae(Gae),
}

impl Valued {
    pub fn of(advantage: Advantage) -> Self {
        if let Advantage::Gae(gae) = advantage { Valued::Gae(gae) } else { Valued::Baseline }
    }

    /// `[T]` of a rollout that has as many values as tokens.
    pub fn advantages(self, rollout: &Rollout, reward: f32) -> Vec<f32> {
        match self {
            Valued::Baseline => value_advantages(reward, &rollout.value, &rollout.mask),
            Valued::Gae(gae) => reward_gae(gae, reward, &rollout.value, &rollout.mask, ending(rollout.stop)),
        }
    }
}

impl Baseline {
    fn of(spec: &Spec) -> Self {
        match spec.estimate.advantage {
            _ if spec.has_separate_critic() => Baseline::Later,
            kind if spec.has_critic() => Baseline::Values(Valued::of(kind)),
            kind => Baseline::Group(kind),
        }
    }
}

/// Groups' advantages, by the kernel.
#[derive(Clone, Debug)]
pub struct GroupEstimator {
    baseline: Baseline,
    zero_variance: ZeroVariance,
    /// None: rewards count as they are.
    shaping: Option<Shaping>,
    limits: Limits,
    discards: Discards,
}

impl GroupEstimator {
    /// An estimator of one worker. Those of a run share `discards`.
    pub fn new(spec: &Spec, discards: Discards) -> Self {
        let estimate = &spec.estimate;
        let limits =
            Limits { groups: estimate.discard_limit, batches: estimate.refill_limit, batch_groups: spec.batch_groups() };
        let baseline = Baseline::of(spec);
        let shaping = Some(spec.shaping()).filter(|shaping| *shaping != Shaping::default());
        GroupEstimator { baseline, zero_variance: estimate.zero_variance, shaping, limits, discards }
    }

    /// Of a replay: what a filter would have kept out is not in the recorded batches' place.
    pub fn of_replay(spec: &Spec) -> Self {
        GroupEstimator { zero_variance: ZeroVariance::Keep, ..GroupEstimator::new(spec, Discards::default()) }
    }

    fn advantages(&self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        for rollout in rollouts.iter_mut().filter(|r| r.trainable()) {
            if let Some(why) = bad_tokens(rollout, self.baseline) {
                rollout.status = Status::Discarded(Reason::BadTokens(why));
            }
        }
        for rollout in rollouts.iter_mut() {
            let reward = rollout.reward.filter(|reward| reward.is_finite());
            let shaped = |(shaping, reward): (Shaping, f32)| shaping.shaped(reward, rollout.tokens.len());
            rollout.reward_shaped = self.shaping.zip(reward).map(shaped);
        }
        let rewards: Vec<Option<f32>> = rollouts.iter().map(|r| present(r, r.used_reward())).collect();
        let kind = match self.baseline {
            Baseline::Group(kind) => kind,
            Baseline::Values(_) | Baseline::Later => Advantage::Reinforce,
        };
        if kind == Advantage::MaxRl {
            not_negative(rollouts, &rewards)?;
        }
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
                Baseline::Group(_) | Baseline::Later => vec![*advantage; rollout.tokens.len()],
                Baseline::Values(kind) => kind.advantages(rollout, reward),
            };
        }
        let filtered = self.zero_variance == ZeroVariance::Discard && matches!(self.baseline, Baseline::Group(_));
        Ok(match estimate.scored {
            0 => Some(shared_reason(rollouts)),
            _ if filtered && (estimate.zero_variance || self.equal(rollouts)) => Some(Reason::ZeroVariance),
            _ => None,
        })
    }

    /// Whether rewards are equal but for what lengths brought: the task itself then teaches nothing.
    fn equal(&self, rollouts: &[Rollout]) -> bool {
        let shaping = self.shaping.unwrap_or_default();
        let mut rewards = rollouts.iter().filter_map(|r| present(r, r.reward)).map(|reward| shaping.clipped(reward));
        rewards.next().is_some_and(|first| rewards.all(|reward| reward == first))
    }
}

impl Estimator for GroupEstimator {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        let reason = self.advantages(rollouts)?;
        self.discards.count(reason.as_ref(), rollouts, self.limits)?;
        Ok(reason)
    }
}

/// The reward of a rollout that is to be trained, if it is one.
fn present(rollout: &Rollout, reward: Option<f32>) -> Option<f32> {
    reward.filter(|reward| reward.is_finite() && rollout.trainable())
}

/// A mean that rewards below 0 take to 0, or below, is nothing to divide by.
fn not_negative(rollouts: &[Rollout], rewards: &[Option<f32>]) -> Result<(), Fault> {
    let negative = rollouts.iter().zip(rewards).find(|(_, reward)| reward.is_some_and(|reward| reward < 0.0));
    let Some((rollout, reward)) = negative else { return Ok(()) };
    let (number, sample, reward) = (rollout.group.number, rollout.sample, reward.unwrap_or_default());
    Err(Fault::new(
        "estimate",
        format!(
            "group {number}, sample {sample} has the reward {reward}, and estimate.advantage = \"max_rl\" divides by the mean \
             of a group: it needs rewards from 0 up (estimate.reward_min = 0.0 cuts them; another estimator takes them)"
        ),
    ))
}

fn ending(stop: Stop) -> Ending {
    match stop {
        Stop::Length | Stop::Time => Ending::Cut,
        Stop::Eos | Stop::StopString | Stop::Refused => Ending::Own,
    }
}

/// How many discards in a row are too many; 0 is no limit.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For another reason than zero variance.
    groups: u64,
    /// Of zero variance, in batches of so many groups.
    batches: u64,
    batch_groups: u64,
}

/// Groups discarded since the last one that was not, over all generators of a run.
#[derive(Clone, Debug, Default)]
pub struct Discards(Arc<Discarded>);

#[derive(Debug, Default)]
struct Discarded {
    zero_variance: AtomicU64,
    /// Of these, those with a reward of at least 1 throughout.
    solved: AtomicU64,
    others: AtomicU64,
}

impl Discards {
    /// Ends a run whose prompts teach nothing any more: it would sample for ever and never take a step.
    fn count(&self, reason: Option<&Reason>, rollouts: &[Rollout], limits: Limits) -> Result<(), Fault> {
        let Discarded { zero_variance, solved, others } = &*self.0;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let next = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed) + 1;
        match reason {
            None => [zero_variance, solved, others].map(|counter| counter.store(0, Ordering::Relaxed)),
            Some(Reason::ZeroVariance) => {
                if rollouts.iter().all(|rollout| present(rollout, rollout.reward).is_none_or(solves)) {
                    next(solved);
                }
                let groups = next(zero_variance);
                if groups == limits.batches.saturating_mul(limits.batch_groups) {
                    return Err(barren(limits.batches, groups, read(solved), read(others)));
                }
                return Ok(());
            }
            Some(reason) => {
                if next(others) == limits.groups {
                    let why = rollouts.iter().find_map(|rollout| rollout.reward_error.clone());
                    let cure = why.unwrap_or_else(|| "estimate.discard_limit says how many are too many".to_owned());
                    let what =
                        format!("{} groups were discarded and none was kept, the last one as {reason}", limits.groups);
                    return Err(Fault::new("estimate", format!("{what}: {cure}")));
                }
                return Ok(());
            }
        };
        Ok(())
    }
}

/// Batch after batch was sampled, and every group had equal rewards.
fn barren(batches: u64, groups: u64, solved: u64, others: u64) -> Fault {
    let share = 100 * groups / (groups + others);
    let advice = match groups.saturating_sub(solved) {
        0 => "every rollout was right: take harder prompts, the policy learns nothing more from these",
        unsolved if unsolved == groups => {
            "no group had both right and wrong answers, and none was right throughout: take easier prompts, a larger \
             batch.group_size, or begin with `tidegate sft`"
        }
        _ => "prompts are solved always or never: take others, or a larger batch.group_size",
    };
    Fault::new(
        "estimate",
        format!(
            "{batches} batches, {share} % zero-variance: {groups} groups and none was kept ({solved} with a reward of at \
             least 1 throughout); {advice}. estimate.refill_limit says how many batches are too many, estimate.zero_variance = \
             \"keep\" trains such groups as they are"
        ),
    )
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
    if matches!(baseline, Baseline::Values(_)) {
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

#[cfg(test)]
mod tests;
