//! Where a job's rewards come from, as the port of `score`: a rule, something outside this program, or the log.

use crate::error::Result;
use crate::tasks::outside::{Client, Meter, Outside, command, http};
use crate::tasks::reward::Reward;
use crate::tasks::spec::{RewardSpec, Source};
use std::time::Duration;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::Rollout;
use tidegate_operators::score::Scorer;
use tidegate_operators::waker::Waker;

/// What a job's specification says about rewards, ready to be asked. Programs that it started end with its last clone.
#[derive(Clone)]
pub enum Rewards {
    Rule(Reward),
    Outside(Outside),
}

impl Rewards {
    /// # Errors
    /// A rule that is not as it must be; a program that cannot be started.
    pub fn start(spec: &RewardSpec) -> Result<Rewards> {
        match spec {
            RewardSpec::Command(spec) => command::start(spec).map(Rewards::Outside),
            RewardSpec::Http(spec) => http::start(spec).map(Rewards::Outside),
            rule => Reward::new(rule).map(Rewards::Rule),
        }
    }

    /// The rule, where it is one: it can be asked what it thinks of a prompt at no cost.
    pub fn rule(&self) -> Option<&Reward> {
        match self {
            Rewards::Rule(rule) => Some(rule),
            Rewards::Outside(_) => None,
        }
    }

    /// What it costs to ask outside.
    pub fn meter(&self) -> Option<Meter> {
        match self {
            Rewards::Rule(_) => None,
            Rewards::Outside(outside) => Some(outside.meter()),
        }
    }

    /// A port, for one worker or for an evaluation.
    pub fn scorer(&self) -> RewardScorer {
        match self {
            Rewards::Rule(rule) => RewardScorer::Rule(rule.clone()),
            Rewards::Outside(outside) => RewardScorer::Outside(outside.client()),
        }
    }
}

/// The port of `score`.
pub enum RewardScorer {
    Rule(Reward),
    Outside(Client),
    /// Leaves the reward that the log has.
    Recorded,
}

impl RewardScorer {
    /// The scorer of a replay. What came from outside is not asked again: it may be slow, gone, or of another mind today.
    ///
    /// # Errors
    /// As [`Rewards::start`].
    pub fn of_replay(spec: &RewardSpec) -> Result<RewardScorer> {
        match spec.source() {
            Source::Outside => Ok(RewardScorer::Recorded),
            Source::Rule => Reward::new(spec).map(RewardScorer::Rule),
        }
    }

    /// Waits until something is [`finished`](Scorer::finished), `most` at the longest.
    pub fn wait(&self, most: Duration) {
        if let RewardScorer::Outside(client) = self {
            client.wait(most);
        }
    }
}

impl Scorer for RewardScorer {
    fn score(&mut self, mut rollout: Rollout) -> Result<Option<Rollout>, Fault> {
        match self {
            RewardScorer::Rule(rule) => {
                (rollout.reward, rollout.reward_parts, rollout.reward_error) =
                    match rule.score(&rollout.group.prompt, &rollout.text) {
                        Ok(score) => (Some(score.reward), score.parts, None),
                        Err(why) => (None, Vec::new(), Some(why.to_string())),
                    };
                Ok(Some(rollout))
            }
            RewardScorer::Outside(client) => {
                client.send(rollout);
                Ok(None)
            }
            RewardScorer::Recorded => Ok(Some(rollout)),
        }
    }

    fn finished(&mut self) -> Result<Vec<Rollout>, Fault> {
        match self {
            RewardScorer::Outside(client) => client.finished(),
            RewardScorer::Rule(_) | RewardScorer::Recorded => Ok(Vec::new()),
        }
    }

    fn pending(&self) -> usize {
        match self {
            RewardScorer::Outside(client) => client.pending(),
            RewardScorer::Rule(_) | RewardScorer::Recorded => 0,
        }
    }

    fn wake_with(&mut self, waker: Waker) {
        if let RewardScorer::Outside(client) = self {
            client.wake_with(move || waker.wake());
        }
    }
}
