//! What an evaluation came to: reward, success and pass@k with their standard errors, by task and in total.

use crate::engine::spec::Sampling;
use crate::jobs::eval::solves;
use crate::kernel::pass_at_k::pass_at_k;
use crate::kernel::standard_error::MeanAndError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidegate_operators::record::{Rollout, Stop, Version};

/// A mean over prompts, each of which counts once, however many rollouts it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measure {
    /// None without a prompt that counts.
    pub mean: Option<f64>,
    /// Of the mean, as prompts differ; None of fewer than two.
    pub standard_error: Option<f64>,
    /// How many prompts count.
    pub prompts: u64,
}

impl From<MeanAndError> for Measure {
    fn from(all: MeanAndError) -> Self {
        Measure { mean: all.mean(), standard_error: all.standard_error(), prompts: all.count() }
    }
}

/// A task's answers, or all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskReport {
    pub prompts: u64,
    pub rollouts: u64,
    /// Rollouts without a reward, and those of them whose prompt could not be answered. They are in no mean.
    pub unscored: u64,
    pub refused: u64,
    /// Of a prompt: the mean reward of its rollouts; the share of them that solve it (reward of at least 1).
    pub reward: Measure,
    pub success: Measure,
    /// By k; of prompts with k rollouts that have a reward, or more.
    pub pass_at: BTreeMap<u64, Measure>,
    /// Completion tokens; their mean over rollouts that were sampled, and the share of those that a limit on length or time cut.
    pub tokens: u64,
    pub length: Option<f64>,
    pub cut: Option<f64>,
}

/// What was evaluated, how, and what it came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The folder of the weights; None for new tables of the toy engine.
    pub model: Option<PathBuf>,
    pub described: String,
    /// The step of a run after which they were such; 0 for a model that is no checkpoint.
    pub version: Version,
    /// Hash of the model as it was loaded.
    pub model_hash: String,
    /// The file of the prompts; None for generated ones.
    pub data: Option<PathBuf>,
    /// Rollouts a prompt.
    pub samples: u32,
    pub seed: u64,
    pub device: String,
    pub threads: u16,
    pub generate: Sampling,
    pub seconds: f64,
    pub tokens_per_s: f64,
    pub tasks: BTreeMap<String, TaskReport>,
    pub total: TaskReport,
    /// Where the rollouts are kept.
    pub rollouts: Option<PathBuf>,
}

/// The answers that have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    /// By number of the prompt's group: whenever they came, they are added up in one order.
    asked: BTreeMap<u64, Asked>,
    done: u64,
    scored: u64,
    solved: u64,
    tokens: u64,
    /// Why the first one that has no reward has none.
    unscored: Option<String>,
}

/// The answers to one prompt.
#[derive(Clone, Debug, Default)]
struct Asked {
    task: String,
    /// By sample.
    rewards: Vec<Option<f32>>,
    refused: u64,
    sampled: u64,
    tokens: u64,
    cut: u64,
}

impl Answers {
    pub(super) fn add(&mut self, rollout: &Rollout) {
        let group = &rollout.group;
        let asked = self.asked.entry(group.number).or_default();
        if asked.rewards.is_empty() {
            asked.task.clone_from(&group.prompt.task);
            asked.rewards = vec![None; group.size as usize];
        }
        if let Some(reward) = asked.rewards.get_mut(rollout.sample as usize) {
            *reward = rollout.reward;
        }
        let tokens = rollout.tokens.len() as u64;
        match rollout.stop {
            Stop::Refused => asked.refused += 1,
            stop => {
                asked.sampled += 1;
                asked.tokens += tokens;
                asked.cut += u64::from(matches!(stop, Stop::Length | Stop::Time));
            }
        }
        self.done += 1;
        self.tokens += tokens;
        self.scored += u64::from(rollout.reward.is_some());
        self.solved += u64::from(rollout.reward.is_some_and(solves));
        if rollout.reward.is_none() && self.unscored.is_none() {
            self.unscored = Some(rollout.reward_error.clone().unwrap_or_else(|| rollout.status.to_string()));
        }
    }

    /// Rollouts that have come.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Why the first rollout that has no reward has none, and how many have none.
    pub(super) fn unscored(&self) -> Option<(u64, &str)> {
        self.unscored.as_deref().map(|why| (self.done - self.scored, why))
    }

    /// Whether none has a reward.
    pub(super) fn says_nothing(&self) -> bool {
        self.scored == 0
    }

    /// For the display.
    pub(super) fn so_far(&self, seconds: f64) -> String {
        let success = match self.scored {
            0 => "-".to_owned(),
            scored => format!("{:.1} %", 100.0 * self.solved as f64 / scored as f64),
        };
        format!("success {success}  tok/s {:.1}k", self.tokens as f64 / seconds.max(1e-3) / 1e3)
    }

    /// By task, and of all.
    pub(super) fn report(&self, ks: &[u64]) -> (BTreeMap<String, TaskReport>, TaskReport) {
        let mut tasks: BTreeMap<&str, Vec<&Asked>> = BTreeMap::new();
        for asked in self.asked.values() {
            tasks.entry(&asked.task).or_default().push(asked);
        }
        let by_task = tasks.into_iter().map(|(task, asked)| (task.to_owned(), of(asked.into_iter(), ks)));
        (by_task.collect(), of(self.asked.values(), ks))
    }
}

fn of<'a>(prompts: impl Iterator<Item = &'a Asked>, ks: &[u64]) -> TaskReport {
    let mut report = TaskReport::default();
    let [mut reward, mut success] = [MeanAndError::default(); 2];
    let mut pass_at: BTreeMap<u64, MeanAndError> = ks.iter().map(|k| (*k, MeanAndError::default())).collect();
    let (mut sampled, mut cut) = (0, 0);
    for asked in prompts {
        let rewards: Vec<f32> = asked.rewards.iter().copied().flatten().collect();
        let (n, solved) = (rewards.len() as u64, rewards.iter().filter(|reward| solves(**reward)).count() as u64);
        report.prompts += 1;
        report.rollouts += asked.rewards.len() as u64;
        report.unscored += asked.rewards.len() as u64 - n;
        report.refused += asked.refused;
        report.tokens += asked.tokens;
        sampled += asked.sampled;
        cut += asked.cut;
        if n > 0 {
            reward.add(rewards.iter().map(|reward| f64::from(*reward)).sum::<f64>() / n as f64);
            success.add(solved as f64 / n as f64);
        }
        pass_at.iter_mut().filter(|(k, _)| **k <= n).for_each(|(k, mean)| mean.add(pass_at_k(n, solved, *k)));
    }
    let share = |part: u64| (sampled > 0).then(|| part as f64 / sampled as f64);
    TaskReport {
        reward: reward.into(),
        success: success.into(),
        pass_at: pass_at.into_iter().map(|(k, mean)| (k, mean.into())).collect(),
        length: share(report.tokens),
        cut: share(cut),
        ..report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::{Group, Prompt, Reason, Status};

    /// A rollout of a prompt with four.
    fn answer(number: u64, task: &str, sample: u32, reward: Option<f32>, tokens: usize, stop: Stop) -> Rollout {
        let prompt = Prompt { task: task.to_owned(), ..Prompt::default() };
        let group = Arc::new(Group { number, size: 4, prompt, ..Group::default() });
        Rollout { group, sample, reward, tokens: vec![1; tokens], stop, ..Rollout::default() }
    }

    fn rewarded(number: u64, task: &str, rewards: [f32; 4]) -> impl Iterator<Item = Rollout> {
        (0..4).zip(rewards).map(move |(sample, reward)| answer(number, task, sample, Some(reward), 5, Stop::Eos))
    }

    fn added(rollouts: impl IntoIterator<Item = Rollout>) -> Answers {
        let mut answers = Answers::default();
        rollouts.into_iter().for_each(|rollout| answers.add(&rollout));
        answers
    }

    fn close(measure: Measure, mean: f64, error: f64, prompts: u64) -> bool {
        let near = |found: Option<f64>, right: f64| found.is_some_and(|found| (found - right).abs() < 1e-12);
        near(measure.mean, mean) && near(measure.standard_error, error) && measure.prompts == prompts
    }

    /// Three prompts of four rollouts, solved by 4, 1 and 0 of them: success 1, 1/4, 0.
    fn three() -> Vec<Rollout> {
        let all = rewarded(0, "a", [1.0; 4]).chain(rewarded(1, "a", [0.5, 0.0, 2.0, 0.5])).chain(rewarded(2, "b", [0.0; 4]));
        all.collect()
    }

    /// Catches an error over rollouts, as if those of one prompt were independent (0.149 for the first); pass@k from the mean
    /// success (1 - (1 - 5/12)^2 = 0.66 for 0.5); a reward above 1 that counts as more than one solved.
    #[test]
    fn means_and_errors_are_over_prompts() {
        let (tasks, total) = added(three()).report(&[1, 2, 4]);
        let deviation = |numbers: [f64; 3]| {
            let mean = numbers.iter().sum::<f64>() / 3.0;
            (numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2.0 / 3.0).sqrt()
        };
        let success = [1.0, 0.25, 0.0];
        assert!(close(total.success, 1.25 / 3.0, deviation(success), 3), "{total:?}");
        assert!((deviation(success) - 0.300_462_606_288_665_8).abs() < 1e-12);
        assert_eq!(total.pass_at[&1], total.success);
        assert!(close(total.pass_at[&2], 0.5, deviation([1.0, 0.5, 0.0]), 3), "{total:?}");
        assert!(close(total.pass_at[&4], 2.0 / 3.0, deviation([1.0, 1.0, 0.0]), 3), "{total:?}");
        assert!(close(total.reward, 1.75 / 3.0, deviation([1.0, 0.75, 0.0]), 3), "{total:?}");
        assert_eq!((total.prompts, total.rollouts, total.unscored, total.tokens), (3, 12, 0, 60));
        assert_eq!(tasks.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((tasks["a"].success.mean, tasks["b"].success.mean), (Some(0.625), Some(0.0)));
        // One prompt says nothing of how prompts differ.
        assert_eq!(tasks["b"].success.standard_error, None);
    }

    /// Catches sums whose last bits depend on which answer came first.
    #[test]
    fn the_order_in_which_answers_come_does_not_matter() {
        let odd = || rewarded(3, "a", [0.1, 0.7, 1e-8, 3e7]).chain(three());
        let mut turned: Vec<_> = odd().collect();
        turned.reverse();
        assert_eq!(added(turned).report(&[1, 3]), added(odd()).report(&[1, 3]));
    }

    /// Catches an answer without a reward that counts as wrong, pass@k of too few, and a cut share or a length of prompts that
    /// were never answered.
    #[test]
    fn what_has_no_reward_is_counted_and_in_no_mean() {
        let refused = |sample| Rollout {
            status: Status::Discarded(Reason::BadPrompt("too long".to_owned())),
            ..answer(7, "a", sample, None, 0, Stop::Refused)
        };
        let some = [
            answer(6, "a", 0, Some(1.0), 9, Stop::Length),
            answer(6, "a", 1, None, 3, Stop::Time),
            answer(6, "a", 2, Some(0.0), 4, Stop::StopString),
            answer(6, "a", 3, None, 4, Stop::Eos),
        ];
        let answers = added((0..4).map(refused).chain(some).chain(rewarded(8, "a", [0.0, 0.0, 1.0, 0.0])));
        let (_, total) = answers.report(&[1, 2, 3]);
        assert_eq!((total.prompts, total.rollouts, total.unscored, total.refused), (3, 12, 6, 4));
        assert_eq!((total.success.mean, total.success.prompts), (Some(0.375), 2));
        assert_eq!((total.pass_at[&2].mean, total.pass_at[&2].prompts), (Some(0.75), 2));
        assert_eq!((total.pass_at[&3].mean, total.pass_at[&3].prompts), (Some(0.75), 1));
        assert_eq!((total.tokens, total.length, total.cut), (40, Some(5.0), Some(0.25)));
        assert_eq!(answers.unscored(), Some((6, "discarded: bad prompt: too long")));
        assert_eq!(answers.so_far(0.02), "success 33.3 %  tok/s 2.0k");
        let nothing = added((0..4).map(refused));
        assert!(nothing.says_nothing() && nothing.so_far(1.0).starts_with("success -"));
        let (_, none) = nothing.report(&[1]);
        assert_eq!((none.success, none.length, none.cut), (Measure::default(), None, None));
    }
}
