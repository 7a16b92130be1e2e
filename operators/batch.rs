//! What `train` does to a batch before and after the learner has it (floor 0: no timely).

use crate::fault::Fault;
use crate::record::{Estimated, Metrics, Reason, Rollout, Status, Step, now_ns};

/// The rollouts of step `step` in batch order, which is by admission number and sample, so that it does not depend on how
/// they arrived.
///
/// # Errors
/// With a `bound`, a trained token of a larger lag; always, a token sampled by a version that the step does not start from yet.
pub fn assemble(step: Step, mut groups: Vec<Estimated>, bound: Option<u64>) -> Result<Vec<Rollout>, Fault> {
    groups.sort_unstable_by_key(|estimated| estimated.group.number);
    let mut batch: Vec<Rollout> = groups.into_iter().flat_map(|estimated| estimated.rollouts).collect();
    for (order, rollout) in batch.iter_mut().enumerate() {
        check(step, rollout, bound)?;
        rollout.step = step;
        rollout.order = u32::try_from(order).unwrap_or(u32::MAX);
    }
    Ok(batch)
}

/// The run's promise, looked at once more where it counts.
fn check(step: Step, rollout: &Rollout, bound: Option<u64>) -> Result<(), Fault> {
    let oldest = (step - 1).saturating_sub(bound.unwrap_or(u64::MAX));
    let tokens = rollout.version.iter().zip(&rollout.mask).enumerate();
    match tokens.filter(|(_, (_, mask))| **mask).find(|(_, (version, _))| **version < oldest || **version >= step) {
        None => Ok(()),
        Some((token, (version, _))) => {
            let (number, sample) = (rollout.group.number, rollout.sample);
            let which = format!("token {token} of group {number}, sample {sample}, was sampled by version {version}");
            Err(Fault::new("train", format!("{which}; step {step} may train versions {oldest} to {}", step - 1)))
        }
    }
}

/// Marks what step `step` has trained.
pub fn mark_trained(batch: &mut [Rollout]) {
    let now = now_ns();
    for rollout in batch {
        rollout.trained_ns = now;
        if rollout.trainable() {
            rollout.status = Status::Trained;
        }
    }
}

/// The rollouts of a discarded group; one that was discarded for a reason of its own keeps that.
pub fn discard(mut rollouts: Vec<Rollout>, reason: &Reason) -> Vec<Rollout> {
    for rollout in rollouts.iter_mut().filter(|rollout| rollout.trainable()) {
        rollout.status = Status::Discarded(reason.clone());
    }
    rollouts
}

/// Gives the rollouts that are sealed with step `step`, but not trained by it, their places after the batch's.
pub fn append(step: Step, batch: &mut Vec<Rollout>, others: impl IntoIterator<Item = Rollout>) {
    for mut rollout in others {
        rollout.step = step;
        rollout.order = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        batch.push(rollout);
    }
}

/// Fills what the learner cannot know: rewards, lengths and lags of the batch that step `metrics.step` trained. A mean over
/// nothing is NaN.
pub fn measure(metrics: &mut Metrics, batch: &[Rollout]) {
    let rewarded: Vec<(f64, usize)> =
        batch.iter().filter_map(|rollout| Some((f64::from(rollout.reward?), rollout.tokens.len()))).collect();
    let count = rewarded.len() as f64;
    metrics.reward = rewarded.iter().map(|(reward, _)| reward).sum::<f64>() / count;
    metrics.success = rewarded.iter().filter(|(reward, _)| *reward >= 1.0).count() as f64 / count;
    metrics.length = rewarded.iter().map(|(_, length)| *length as f64).sum::<f64>() / count;
    let drawn =
        batch.chunk_by(|a, b| a.group.number == b.group.number).filter_map(|rows| rows[0].group.prompt.drawn_success);
    let drawn: Vec<f64> = drawn.map(f64::from).collect();
    metrics.drawn_success = drawn.iter().sum::<f64>() / drawn.len() as f64;
    let trained = batch.iter().filter(|rollout| rollout.trainable());
    let tokens = trained.flat_map(|rollout| rollout.version.iter().zip(&rollout.mask)).filter(|(_, mask)| **mask);
    let (mut sum, mut tokens_with_lag) = (0, 0_u64);
    for lag in tokens.map(|(version, _)| (metrics.step - 1).saturating_sub(*version)) {
        sum += lag;
        tokens_with_lag += 1;
        metrics.lag_max = metrics.lag_max.max(lag);
    }
    metrics.lag_mean = sum as f64 / tokens_with_lag as f64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Group, Prompt};
    use std::sync::Arc;

    fn rollout(number: u64, sample: u32, version: Vec<u64>, reward: Option<f32>) -> Rollout {
        let group = Arc::new(Group { number, ..Group::default() });
        let (tokens, mask) = (vec![0; version.len()], vec![true; version.len()]);
        Rollout { group, sample, tokens, mask, version, reward, ..Rollout::default() }
    }

    fn group(rollouts: Vec<Rollout>) -> Estimated {
        Estimated { group: Arc::clone(&rollouts[0].group), rollouts, discarded: None }
    }

    /// Catches a batch in order of arrival.
    #[test]
    fn batch_order_is_by_number_and_sample() {
        let groups = [5, 2].map(|n| group(vec![rollout(n, 0, vec![], None), rollout(n, 1, vec![], None)]));
        let batch = assemble(3, groups.into(), None).unwrap();
        let order: Vec<_> = batch.iter().map(|r| (r.group.number, r.sample, r.order, r.step)).collect();
        assert_eq!(order, [(2, 0, 0, 3), (2, 1, 1, 3), (5, 0, 2, 3), (5, 1, 3, 3)]);
    }

    /// Catches a check that is one step off on either side, or that looks at masked tokens.
    #[test]
    fn lag_is_checked_token_by_token() {
        let batch = |version| assemble(6, vec![group(vec![rollout(0, 0, version, None)])], Some(2));
        assert!(batch(vec![3, 4, 5]).is_ok());
        let message = batch(vec![3, 2]).unwrap_err().message;
        assert_eq!(message, "token 1 of group 0, sample 0, was sampled by version 2; step 6 may train versions 3 to 5");
        assert!(batch(vec![6]).is_err(), "a version from the future");
        let mut masked = rollout(0, 0, vec![0, 5], None);
        masked.mask[0] = false;
        assert!(assemble(6, vec![group(vec![masked])], Some(2)).is_ok());
    }

    /// Catches means over the wrong set: rollouts without a reward, or tokens of discarded rollouts.
    #[test]
    fn metrics_of_a_batch() {
        let mut batch = vec![
            rollout(0, 0, vec![3, 3, 4], Some(1.0)),
            rollout(0, 1, vec![5], Some(0.5)),
            rollout(0, 2, vec![1; 9], None),
        ];
        batch[2].status = Status::Discarded(Reason::NoReward);
        let drawn = |number, drawn_success| {
            let prompt = Prompt { drawn_success, ..Prompt::default() };
            Arc::new(Group { number, prompt, ..Group::default() })
        };
        for (rollout, group) in batch.iter_mut().zip([drawn(0, Some(0.75)), drawn(0, Some(0.75)), drawn(1, None)]) {
            rollout.group = group;
        }
        batch.push(Rollout { group: drawn(2, Some(0.25)), ..batch[2].clone() });
        let mut metrics = Metrics { step: 6, ..Metrics::default() };
        measure(&mut metrics, &batch);
        assert_eq!((metrics.reward, metrics.success, metrics.length), (0.75, 0.5, 2.0));
        assert_eq!((metrics.lag_mean, metrics.lag_max), ((2 + 2 + 1) as f64 / 4.0, 2));
        assert_eq!(metrics.drawn_success, 0.5, "a group counts once, one that knew nothing does not");
        let mut nothing = Metrics { step: 1, ..Metrics::default() };
        measure(&mut nothing, &[]);
        assert!(nothing.reward.is_nan() && nothing.lag_mean.is_nan());
    }

    /// Catches a rollout's own reason being overwritten by its group's.
    #[test]
    fn own_reason_stays() {
        let mut own = rollout(0, 0, vec![], None);
        own.status = Status::Discarded(Reason::NoReward);
        let discarded = discard(vec![own, rollout(0, 1, vec![], None)], &Reason::ZeroVariance);
        let reasons: Vec<_> = discarded.into_iter().map(|rollout| rollout.status).collect();
        assert_eq!(reasons, [Status::Discarded(Reason::NoReward), Status::Discarded(Reason::ZeroVariance)]);
    }
}
