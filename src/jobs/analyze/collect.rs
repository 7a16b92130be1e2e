//! Sums over the rows of a run: of each step by itself, then of the steps one after the other.

use crate::error::{Error, Result};
use crate::jobs::analyze::kept::{Bar, PromptCounts, Top, logp_mean};
use crate::jobs::analyze::lag::{Distance, LagSums, Lags};
use crate::jobs::analyze::limits::LagLimits;
use crate::jobs::analyze::report::{Files, Interval, Rewards, RunReport, Task, Versions};
use crate::jobs::analyze::sizes::Sizes;
use crate::jobs::analyze::sums::{AdvantageSums, TimeSums};
use crate::jobs::analyze::values::ValueSums;
use crate::jobs::analyze::{Beside, Place};
use crate::kernel::mean::Mean;
use crate::store::schema::stop_text;
use crate::store::view::Row;
use crate::store::{LogReader, Viewed};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use tidegate_operators::record::Status;
use tidegate_operators::success::solves;

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
    sums: Sums,
    intervals: BTreeMap<usize, IntervalSums>,
}

/// What is kept of some steps.
#[derive(Debug, Default)]
struct Sums {
    steps: Option<(u64, u64)>,
    statuses: BTreeMap<String, u64>,
    reward: Mean,
    success: Mean,
    reward_sampled: Mean,
    success_sampled: Mean,
    lag: LagSums,
    advantage: AdvantageSums,
    value: ValueSums,
    time: TimeSums,
    mixed: Mean,
    tasks: Tasks,
    sizes: Sizes,
    prompts: PromptCounts,
    longest: Top,
    surprising: Top,
}

/// Tasks in the order in which they were first seen.
#[derive(Debug, Default)]
struct Tasks(Vec<(String, TaskSums)>);

/// What of some steps goes to their interval.
#[derive(Debug, Default)]
struct IntervalSums {
    steps: Option<(u64, u64)>,
    reward: Mean,
    success: Mean,
    length: Mean,
    stops: BTreeMap<&'static str, u64>,
    lags: Lags,
    distance: Distance,
    reference: Distance,
    sizes: Sizes,
}

#[derive(Debug, Default)]
struct TaskSums {
    length: Mean,
    success: Mean,
    mixed: Mean,
}

/// A step or a tail, summed up. Steps are summed each by itself, and then in order: so the sums are the same to the last bit,
/// whatever files the steps are in and whoever reads them.
#[derive(Debug)]
pub(super) struct Summed {
    path: PathBuf,
    notes: Vec<String>,
    sums: Sums,
    interval: IntervalSums,
}

/// What completions need not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Bars {
    longest: Bar,
    surprising: Bar,
}

impl Summed {
    /// Reads a part of a log, and makes what else is made of it.
    ///
    /// # Errors
    /// A damaged file; a column or value that is not the log's.
    pub(super) fn read<B: Beside>(
        part: &mut Viewed<'_>,
        source: Source,
        place: Place,
        bars: &mut Bars,
    ) -> Result<(Summed, B)> {
        let footer = part.footer()?;
        let (index, limits, mut beside) = (place.index, LagLimits::of(&footer), B::default());
        beside.begin(place, &footer);
        let mut summed = Summed {
            path: part.path().to_owned(),
            notes: Vec::new(),
            sums: Sums { lag: LagSums::new(limits), ..Sums::default() },
            interval: IntervalSums::default(),
        };
        if let Some(metrics) = &footer.metrics {
            summed.sums.time.metrics(metrics, limits, &footer.info.spec);
        }
        summed.notes = part.rows(|place, row| {
            if source == Source::Current || *row.status != Status::Waiting {
                summed.sums.row(place, &row, limits, &mut summed.interval);
                beside.row(place, &row);
            }
        })?;
        let Sums { lag, longest, surprising, .. } = &mut summed.sums;
        (summed.interval.lags, summed.interval.distance) = (lag.all, lag.distance);
        summed.interval.reference = lag.reference;
        longest.read(&bars.longest, index, |place| part.completion(place))?;
        surprising.read(&bars.surprising, index, |place| part.completion(place))?;
        summed.raise(bars, index);
        Ok((summed, beside))
    }

    /// Raises the bars for parts that count beside this one.
    pub(super) fn raise(&self, bars: &mut Bars, index: usize) {
        self.sums.longest.raise(&mut bars.longest, index);
        self.sums.surprising.raise(&mut bars.surprising, index);
    }
}

impl Sums {
    fn row(&mut self, place: usize, row: &Row<'_>, limits: LagLimits, interval: &mut IntervalSums) {
        *self.statuses.entry(row.status.kind()).or_default() += 1;
        self.time.row(row, limits);
        let solved = row.reward.map(|reward| u64::from(solves(reward)));
        if let (Some(reward), Some(solved)) = (row.reward, solved) {
            self.reward_sampled.add(reward.into());
            self.success_sampled.add(solved as f64);
            self.prompts.add(row, solved);
            self.sizes.add(row, solved);
            interval.sizes.add(row, solved);
        }
        if row.tokens > 0 {
            self.with_tokens(place, row, solved);
        }
        if *row.status == Status::Trained {
            self.trained(row, solved, limits, interval);
        }
    }

    fn with_tokens(&mut self, place: usize, row: &Row<'_>, solved: Option<u64>) {
        let mixed = f64::from(u8::from(row.version.runs(0..row.version.len()).nth(1).is_some()));
        self.mixed.add(mixed);
        let task = self.tasks.of(row.task);
        task.mixed.add(mixed);
        task.length.add(row.tokens as f64);
        solved.inspect(|solved| task.success.add(*solved as f64));
        self.longest.offer(row.tokens as f64, place, row);
        logp_mean(row).inspect(|mean| self.surprising.offer(-mean, place, row));
    }

    fn trained(&mut self, row: &Row<'_>, solved: Option<u64>, limits: LagLimits, interval: &mut IntervalSums) {
        self.lag.add(row);
        self.advantage.add(row, limits);
        self.value.add(row, limits);
        extend(&mut self.steps, row.step);
        extend(&mut interval.steps, row.step);
        interval.length.add(row.tokens as f64);
        *interval.stops.entry(stop_text(row.stop)).or_default() += 1;
        if let (Some(reward), Some(solved)) = (row.reward, solved) {
            for (sum, value) in [(&mut self.reward, f64::from(reward)), (&mut self.success, solved as f64)] {
                sum.add(value);
            }
            interval.reward.add(reward.into());
            interval.success.add(solved as f64);
        }
    }

    /// Adds what comes after.
    fn merge(&mut self, other: Sums) {
        if let Some((first, last)) = other.steps {
            extend(&mut self.steps, first);
            extend(&mut self.steps, last);
        }
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.reward.merge(other.reward);
        self.success.merge(other.success);
        self.reward_sampled.merge(other.reward_sampled);
        self.success_sampled.merge(other.success_sampled);
        self.lag.merge(other.lag);
        self.advantage.merge(other.advantage);
        self.value.merge(other.value);
        self.time.merge(other.time);
        self.mixed.merge(other.mixed);
        self.tasks.merge(other.tasks);
        self.sizes.merge(other.sizes);
        self.prompts.merge(other.prompts);
        self.longest.merge(other.longest);
        self.surprising.merge(other.surprising);
    }
}

impl Tasks {
    /// The sums of a task of one step.
    fn of(&mut self, name: &str) -> &mut TaskSums {
        // Rows of a group stand side by side.
        let place = match self.0.iter().rposition(|(known, _)| known == name) {
            Some(place) => place,
            None => {
                self.0.push((name.to_owned(), TaskSums::default()));
                self.0.len() - 1
            }
        };
        &mut self.0[place].1
    }

    /// Adds what comes after; tasks beyond those that are told apart are counted together.
    fn merge(&mut self, other: Tasks) {
        for (name, sums) in other.0 {
            let known = self.0.len() < MAX_TASKS || self.0.iter().any(|(known, _)| *known == name);
            let task = self.of(if known { &name } else { OTHER_TASKS });
            task.length.merge(sums.length);
            task.success.merge(sums.success);
            task.mixed.merge(sums.mixed);
        }
    }
}

impl Collector {
    pub(super) fn new(run: &Path) -> Self {
        Collector {
            run: run.to_owned(),
            files: Files::default(),
            read: HashSet::new(),
            skipped: HashSet::new(),
            sums: Sums::default(),
            intervals: BTreeMap::new(),
        }
    }

    /// Notes steps that are between others and not there.
    pub(super) fn gaps(&mut self, log: &LogReader) {
        let (mut count, mut ends) = (0, None);
        log.steps().for_each(|step| {
            count += 1;
            extend(&mut ends, step);
        });
        let Some((first, last)) = ends else { return };
        let missing = (last - first + 1).saturating_sub(count);
        if missing > 0 {
            self.files.notes.push(format!("{missing} of the steps {first} to {last} are not in the log"));
        }
    }

    /// Adds a step or a tail, the `index`-th of `count`, after those before it.
    pub(super) fn part(&mut self, part: Summed, index: usize, count: usize) {
        self.read.insert(part.path);
        for note in part.notes {
            if self.files.notes.len() < NAMED && !self.files.notes.contains(&note) {
                self.files.notes.push(note);
            }
        }
        self.sums.merge(part.sums);
        if part.interval.steps.is_some() {
            self.intervals.entry(index * INTERVALS.min(count) / count).or_default().merge(part.interval);
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

    pub(super) fn finish(mut self) -> RunReport {
        self.files.read = self.read.difference(&self.skipped).count() as u64;
        self.files.skipped = self.skipped.len() as u64;
        let Sums { lag, mut tasks, .. } = self.sums;
        tasks.0.sort_by(|(a, _), (b, _)| a.cmp(b));
        let task = |(task, sums): (String, TaskSums)| Task {
            task,
            rollouts: sums.length.count(),
            length: sums.length.value(),
            success: sums.success.value(),
            mixed: sums.mixed.value(),
        };
        let tasks: Vec<Task> = tasks.0.into_iter().map(task).collect();
        let length = |task: &&Task| task.length.unwrap_or(0.0);
        let longest_task = tasks.iter().max_by(|a, b| length(a).total_cmp(&length(b))).map(|task| task.task.clone());
        RunReport {
            run: self.run,
            files: self.files,
            first_step: self.sums.steps.map(|(first, _)| first),
            last_step: self.sums.steps.map(|(_, last)| last),
            statuses: self.sums.statuses,
            reward: Rewards {
                trained: self.sums.reward.value(),
                success: self.sums.success.value(),
                sampled: self.sums.reward_sampled.value(),
                success_sampled: self.sums.success_sampled.value(),
            },
            over_steps: self.intervals.into_values().filter_map(IntervalSums::finish).collect(),
            lag: lag.lag(),
            off_policy: lag.off_policy(),
            advantage: self.sums.advantage.finish(),
            value: self.sums.value.finish(),
            time: self.sums.time.finish(),
            versions: Versions { mixed: self.sums.mixed.value(), longest_task, tasks },
            sizes: self.sums.sizes.finish(),
            prompts: self.sums.prompts.finish(),
            longest: self.sums.longest.finish(),
            most_surprising: self.sums.surprising.finish(),
        }
    }
}

impl IntervalSums {
    /// Adds what comes after.
    fn merge(&mut self, other: IntervalSums) {
        if let Some((first, last)) = other.steps {
            extend(&mut self.steps, first);
            extend(&mut self.steps, last);
        }
        self.reward.merge(other.reward);
        self.success.merge(other.success);
        self.length.merge(other.length);
        for (stop, count) in other.stops {
            *self.stops.entry(stop).or_default() += count;
        }
        self.lags.merge(other.lags);
        self.distance.merge(other.distance);
        self.reference.merge(other.reference);
        self.sizes.merge(other.sizes);
    }

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
            lag_mean: self.lags.mean.value(),
            lag_max: self.lags.max,
            ess: self.distance.ess(),
            reference_k3: self.reference.k3(),
            sizes: self.sizes.finish(),
        })
    }
}

fn extend(range: &mut Option<(u64, u64)>, step: u64) {
    let (first, last) = range.unwrap_or((step, step));
    *range = Some((first.min(step), last.max(step)));
}
