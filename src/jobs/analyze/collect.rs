//! Sums over the rows of a run, one step after the other.

use crate::error::Error;
use crate::jobs::analyze::kept::{PromptCounts, Top, logp_mean};
use crate::jobs::analyze::lag::{LagSums, Part};
use crate::jobs::analyze::report::{Files, Interval, Rewards, RunReport, Task, Versions};
use crate::jobs::analyze::sums::{AdvantageSums, TimeSums};
use crate::kernel::mean::Mean;
use crate::store::schema::stop_text;
use crate::store::{Footer, StepFile};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use tidegate_operators::record::{Rollout, Status};

const INTERVALS: usize = 12;
/// Skipped files and notes that are named; all are counted.
const NAMED: usize = 20;
/// Tasks that are told apart; further ones are counted together.
const MAX_TASKS: usize = 64;
const OTHER_TASKS: &str = "(other tasks)";

/// Which rows of a step or tail count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// All.
    Current,
    /// A tail that a later step follows: what waited in it was used since, or sampled again. What was discarded counts.
    Superseded,
}

/// A run as far as it was read.
#[derive(Debug)]
pub(super) struct Collector {
    run: PathBuf,
    files: Files,
    read: HashSet<PathBuf>,
    skipped: HashSet<PathBuf>,
    steps: Option<(u64, u64)>,
    statuses: BTreeMap<String, u64>,
    reward: Mean,
    success: Mean,
    reward_sampled: Mean,
    success_sampled: Mean,
    intervals: BTreeMap<usize, IntervalSums>,
    lag: LagSums,
    advantage: AdvantageSums,
    time: TimeSums,
    mixed: Mean,
    tasks: BTreeMap<String, TaskSums>,
    prompts: PromptCounts,
    longest: Top,
    surprising: Top,
}

#[derive(Debug, Default)]
struct IntervalSums {
    steps: Option<(u64, u64)>,
    reward: Mean,
    success: Mean,
    length: Mean,
    stops: BTreeMap<&'static str, u64>,
    part: Part,
}

#[derive(Debug, Default)]
struct TaskSums {
    length: Mean,
    success: Mean,
    mixed: Mean,
}

impl Collector {
    pub(super) fn new(run: &Path) -> Self {
        Collector {
            run: run.to_owned(),
            files: Files::default(),
            read: HashSet::new(),
            skipped: HashSet::new(),
            steps: None,
            statuses: BTreeMap::new(),
            reward: Mean::default(),
            success: Mean::default(),
            reward_sampled: Mean::default(),
            success_sampled: Mean::default(),
            intervals: BTreeMap::new(),
            lag: LagSums::default(),
            advantage: AdvantageSums::default(),
            time: TimeSums::default(),
            mixed: Mean::default(),
            tasks: BTreeMap::new(),
            prompts: PromptCounts::default(),
            longest: Top::default(),
            surprising: Top::default(),
        }
    }

    /// Adds a step or a tail, the `index`-th of `count`.
    pub(super) fn part(&mut self, file: StepFile, source: Source, index: usize, count: usize) {
        self.read.insert(file.path);
        for note in file.notes {
            if self.files.notes.len() < NAMED && !self.files.notes.contains(&note) {
                self.files.notes.push(note);
            }
        }
        self.lag.set_bound(max_lag(&file.footer));
        if let Some(metrics) = &file.footer.metrics {
            self.time.metrics(metrics);
        }
        let interval = index * INTERVALS.min(count) / count;
        for rollout in &file.rollouts {
            if source == Source::Current || rollout.status != Status::Waiting {
                self.rollout(rollout, interval);
            }
        }
    }

    /// Whether a file gave an error and nothing else: it holds more steps, and would be read whole for each of them.
    pub(super) fn gave_up(&self, path: &Path) -> bool {
        self.skipped.contains(path) && !self.read.contains(path)
    }

    pub(super) fn skip(&mut self, path: &Path, error: &Error) {
        if self.skipped.insert(path.to_owned()) && self.files.skipped_names.len() < NAMED {
            let text = error.to_string();
            // Its own name first, also where the error is of another file.
            let name = path.display().to_string();
            self.files.skipped_names.push(if text.starts_with(&name) { text } else { format!("{name}: {text}") });
        }
    }

    fn rollout(&mut self, rollout: &Rollout, interval: usize) {
        *self.statuses.entry(rollout.status.kind()).or_default() += 1;
        self.time.rollout(rollout);
        let solved = rollout.reward.map(|reward| u64::from(reward >= 1.0));
        if let (Some(reward), Some(solved)) = (rollout.reward, solved) {
            self.reward_sampled.add(reward.into());
            self.success_sampled.add(solved as f64);
            self.prompts.add(rollout, solved);
        }
        if !rollout.tokens.is_empty() {
            self.with_tokens(rollout, solved);
        }
        if rollout.status == Status::Trained {
            self.trained(rollout, solved, interval);
        }
    }

    fn with_tokens(&mut self, rollout: &Rollout, solved: Option<u64>) {
        let mixed = f64::from(u8::from(rollout.version.iter().any(|v| *v != rollout.version[0])));
        self.mixed.add(mixed);
        let name = &rollout.group.prompt.task;
        let known = self.tasks.len() < MAX_TASKS || self.tasks.contains_key(name);
        let task = self.tasks.entry(if known { name.clone() } else { OTHER_TASKS.to_owned() }).or_default();
        task.mixed.add(mixed);
        task.length.add(rollout.tokens.len() as f64);
        solved.inspect(|solved| task.success.add(*solved as f64));
        self.longest.offer(rollout.tokens.len() as f64, rollout);
        logp_mean(rollout).inspect(|mean| self.surprising.offer(-mean, rollout));
    }

    fn trained(&mut self, rollout: &Rollout, solved: Option<u64>, interval: usize) {
        let part = self.lag.add(rollout);
        self.advantage.add(rollout);
        extend(&mut self.steps, rollout.step);
        let interval = self.intervals.entry(interval).or_default();
        extend(&mut interval.steps, rollout.step);
        interval.length.add(rollout.tokens.len() as f64);
        *interval.stops.entry(stop_text(rollout.stop)).or_default() += 1;
        interval.part.merge(part);
        if let (Some(reward), Some(solved)) = (rollout.reward, solved) {
            for (sum, value) in [(&mut self.reward, f64::from(reward)), (&mut self.success, solved as f64)] {
                sum.add(value);
            }
            interval.reward.add(reward.into());
            interval.success.add(solved as f64);
        }
    }

    pub(super) fn finish(mut self) -> RunReport {
        self.files.read = self.read.difference(&self.skipped).count() as u64;
        self.files.skipped = self.skipped.len() as u64;
        let task = |(task, sums): (String, TaskSums)| Task {
            task,
            rollouts: sums.length.count(),
            length: sums.length.value(),
            success: sums.success.value(),
            mixed: sums.mixed.value(),
        };
        let tasks: Vec<Task> = self.tasks.into_iter().map(task).collect();
        let length = |task: &&Task| task.length.unwrap_or(0.0);
        let longest_task = tasks.iter().max_by(|a, b| length(a).total_cmp(&length(b))).map(|task| task.task.clone());
        RunReport {
            run: self.run,
            files: self.files,
            first_step: self.steps.map(|(first, _)| first),
            last_step: self.steps.map(|(_, last)| last),
            statuses: self.statuses,
            reward: Rewards {
                trained: self.reward.value(),
                success: self.success.value(),
                sampled: self.reward_sampled.value(),
                success_sampled: self.success_sampled.value(),
            },
            over_steps: self.intervals.into_values().filter_map(IntervalSums::finish).collect(),
            lag: self.lag.lag(),
            off_policy: self.lag.off_policy(),
            advantage: self.advantage.finish(),
            time: self.time.finish(),
            versions: Versions { mixed: self.mixed.value(), longest_task, tasks },
            prompts: self.prompts.finish(),
            longest: self.longest.finish(),
            most_surprising: self.surprising.finish(),
        }
    }
}

impl IntervalSums {
    fn finish(self) -> Option<Interval> {
        let (first_step, last_step) = self.steps?;
        let rollouts = self.length.count();
        Some(Interval {
            first_step,
            last_step,
            rollouts,
            reward: self.reward.value(),
            success: self.success.value(),
            length: self.length.value(),
            stops: self.stops.into_iter().map(|(stop, n)| (stop, n as f64 / rollouts as f64)).collect(),
            lag_mean: self.part.lags.mean.value(),
            lag_max: self.part.lags.max,
            ess: self.part.distance.ess(),
        })
    }
}

fn extend(range: &mut Option<(u64, u64)>, step: u64) {
    let (first, last) = range.unwrap_or((step, step));
    *range = Some((first.min(step), last.max(step)));
}

/// `schedule.max_lag` of the spec in the footer.
fn max_lag(footer: &Footer) -> Option<u64> {
    let spec: toml::Table = footer.info.spec.parse().ok()?;
    u64::try_from(spec.get("schedule")?.get("max_lag")?.as_integer()?).ok()
}
