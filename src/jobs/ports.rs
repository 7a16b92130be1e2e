//! The dataflow's ports on this side: prompts and estimator of a run. Its rewards are in [`rewards`](super::rewards).

use crate::jobs::encode::Encoder;
use crate::kernel::advantage::{Advantage, group_advantages, value_advantages};
use crate::spec::{EstimateSpec, ZeroVariance};
use crate::tasks::source;
use tidegate_operators::admit::Prompts;
use tidegate_operators::estimate::Estimator;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Prompt, Reason, Rollout, Status};

/// A run's prompts, tokenized as they are admitted.
pub struct TokenizedPrompts {
    pub prompts: source::Prompts,
    pub encoder: Encoder,
}

impl Prompts for TokenizedPrompts {
    fn prompt(&mut self, number: u64) -> Result<Option<Prompt>, Fault> {
        let at = self.prompts.at(number).transpose();
        let prompt = at.map(|at| at.and_then(|(epoch, item)| self.encoder.prompt(epoch, item))).transpose();
        prompt.map_err(|e| Fault::new("admit", e))
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
#[derive(Clone, Debug)]
pub struct GroupEstimator {
    baseline: Baseline,
    zero_variance: ZeroVariance,
    discard_limit: u64,
    /// Groups discarded since the last one that was not.
    discarded: u64,
}

impl GroupEstimator {
    pub fn new(spec: &EstimateSpec, baseline: Baseline) -> Self {
        let EstimateSpec { zero_variance, discard_limit, .. } = *spec;
        GroupEstimator { baseline, zero_variance, discard_limit, discarded: 0 }
    }

    /// Ends a run whose prompts teach nothing any more: it would sample for ever and never take a step.
    fn count(&mut self, reason: Option<&Reason>, rollouts: &[Rollout]) -> Result<(), Fault> {
        let Some(reason) = reason else {
            self.discarded = 0;
            return Ok(());
        };
        self.discarded += 1;
        if self.discarded != self.discard_limit {
            return Ok(());
        }
        let why = rollouts.iter().find_map(|rollout| rollout.reward_error.clone());
        let cure = match (reason, why) {
            (Reason::ZeroVariance, _) => {
                "are the prompts all solved, or none? estimate.zero_variance = \"keep\" trains them".into()
            }
            (_, Some(why)) => why,
            _ => "estimate.discard_limit says how many are too many".to_owned(),
        };
        let what = format!("{} groups in a row were discarded, the last one as {reason}", self.discarded);
        Err(Fault::new("estimate", format!("{what}: {cure}")))
    }

    fn advantages(&self, rollouts: &mut [Rollout]) -> Option<Reason> {
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
        match (estimate.scored, self.zero_variance, self.baseline) {
            (0, ..) => Some(shared_reason(rollouts)),
            (_, ZeroVariance::Discard, Baseline::Group(_)) if estimate.zero_variance => Some(Reason::ZeroVariance),
            _ => None,
        }
    }
}

impl Estimator for GroupEstimator {
    fn estimate(&mut self, rollouts: &mut [Rollout]) -> Result<Option<Reason>, Fault> {
        let reason = self.advantages(rollouts);
        self.count(reason.as_ref(), rollouts)?;
        Ok(reason)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(sample: u32, reward: Option<f32>) -> Rollout {
        Rollout {
            sample,
            reward,
            tokens: vec![5, 6],
            mask: vec![true, true],
            logp_behavior: vec![-0.5, -0.25],
            version: vec![0, 0],
            ..Rollout::default()
        }
    }

    fn estimator(advantage: Advantage, zero_variance: ZeroVariance, discard_limit: u64) -> GroupEstimator {
        let spec = EstimateSpec { advantage, zero_variance, discard_limit };
        GroupEstimator::new(&spec, Baseline::Group(advantage))
    }

    /// Catches a missing reward that takes its siblings along, or that is taken for 0 (hard case 3).
    #[test]
    fn a_missing_reward_leaves_alone() {
        let mut group = [rollout(0, Some(f32::NAN)), rollout(1, Some(1.0)), rollout(2, Some(0.0))];
        let mut estimator = estimator(Advantage::GroupMean, ZeroVariance::Discard, 0);
        assert_eq!(estimator.estimate(&mut group), Ok(None));
        assert_eq!(group[0].status, Status::Discarded(Reason::NoReward));
        assert_eq!([&group[1].advantage, &group[2].advantage], [&vec![0.5, 0.5], &vec![-0.5, -0.5]]);
        let mut none = [rollout(0, None), rollout(1, Some(f32::NAN))];
        assert_eq!(estimator.estimate(&mut none), Ok(Some(Reason::Unscorable)));
    }

    /// Catches NaN, -inf, +0.3 or a list of another length being trained, and a rounding error being refused (hard case 10).
    #[test]
    fn bad_log_probabilities_are_refused_by_rollout() {
        for bad in [f32::NAN, f32::NEG_INFINITY, 0.3] {
            let mut group = [rollout(0, Some(1.0)), rollout(1, Some(0.0)), rollout(2, Some(1.0))];
            group[0].logp_behavior[1] = bad;
            let mut estimator = estimator(Advantage::GroupMean, ZeroVariance::Keep, 0);
            assert_eq!(estimator.estimate(&mut group), Ok(None));
            let Status::Discarded(Reason::BadTokens(why)) = &group[0].status else { panic!("{bad} was accepted") };
            assert!(why.starts_with("logp_behavior[1] ="), "{why}");
            assert_eq!(group[2].advantage, [0.5, 0.5], "the refused one is not in the mean");
        }
        let mut group = [rollout(0, Some(1.0)), rollout(1, Some(0.0))];
        group[0].logp_behavior[0] = 5e-4;
        group[1].logp_behavior.pop();
        assert_eq!(estimator(Advantage::GroupMean, ZeroVariance::Keep, 0).estimate(&mut group), Ok(None));
        assert_eq!(group[0].logp_behavior[0], 0.0);
        let why = Reason::BadTokens("logp_behavior has 1 entries for 2 tokens".into());
        assert_eq!(group[1].status, Status::Discarded(why));
    }

    /// Catches equal rewards being trained where the spec filters them, and a run that samples for ever.
    #[test]
    fn zero_variance_is_filtered_and_has_a_limit() {
        let equal = || [rollout(0, Some(1.0)), rollout(1, Some(1.0))];
        let mut keeps = estimator(Advantage::LeaveOneOut, ZeroVariance::Keep, 2);
        let mut discards = estimator(Advantage::LeaveOneOut, ZeroVariance::Discard, 2);
        for _ in 0..3 {
            assert_eq!(keeps.estimate(&mut equal()), Ok(None));
            assert_eq!(discards.estimate(&mut equal()), Ok(Some(Reason::ZeroVariance)));
            assert_eq!(discards.estimate(&mut [rollout(0, Some(1.0)), rollout(1, Some(0.0))]), Ok(None));
        }
        assert_eq!(discards.estimate(&mut equal()), Ok(Some(Reason::ZeroVariance)));
        let fault = discards.estimate(&mut equal()).unwrap_err();
        assert!(fault.message.starts_with("2 groups in a row were discarded, the last one as zero variance"), "{fault}");
    }

    /// Catches a critic's run that filters groups (a group of one has no variance, and teaches).
    #[test]
    fn with_a_critic_the_value_is_the_baseline() {
        let spec = EstimateSpec { zero_variance: ZeroVariance::Discard, ..EstimateSpec::default() };
        let mut critic = GroupEstimator::new(&spec, Baseline::Critic);
        let mut group = [Rollout { value: vec![0.25, 0.5], ..rollout(0, Some(1.0)) }];
        assert_eq!(critic.estimate(&mut group), Ok(None));
        assert_eq!(group[0].advantage, [0.75, 0.5]);
    }
}
