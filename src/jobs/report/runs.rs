//! One run as a page shows it.

use crate::error::{Error, Result};
use crate::jobs::analyze::{Interval, RunReport, SkipBad, Solved, open, report_beside, threads};
use crate::jobs::eval::Evaluation;
use crate::jobs::outcome::{self, Answers, Busy, Told};
use crate::jobs::report::series::{Columns, short};
use crate::jobs::report::shown::{self, Rollouts, Texts};
use crate::jobs::report::story::{self, Known, Sentence};
use crate::jobs::report::sums::{POSITIONS, PartSums, RunSums, Time};
use crate::jobs::report::timeline::{self, Timeline};
use crate::spec::{EngineKind, Spec};
use crate::store::RunFolder;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rows of the picture of lengths.
const LENGTH_ROWS: u32 = 40;

/// What a page shows of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunData {
    /// What sets its path apart from the others'.
    pub name: String,
    pub path: PathBuf,
    pub story: Vec<Sentence>,
    /// What a reader must know of the pictures: files that were left out, and what the log does not say.
    pub notes: Vec<String>,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    /// When the first prompt was admitted, nanoseconds since the Unix epoch.
    pub began_ns: Option<i64>,
    /// From then to the end of the last step.
    pub seconds: Option<f64>,
    pub statuses: BTreeMap<String, u64>,
    /// Its accelerators are emulated: nothing is learned, and its tokens are random.
    pub emulated: bool,
    /// Tokens that were left out for their lag.
    pub left_out: u64,
    pub steps: Columns,
    pub bound: Option<u64>,
    pub over_steps: Vec<Interval>,
    pub by_lag: Vec<ByLag>,
    pub by_position: Vec<ByPosition>,
    pub times: Vec<TimeData>,
    /// The least length of each row of `times[].lengths`, and their width, tokens.
    pub length_width: u32,
    pub stops: Vec<&'static str>,
    pub prompts: Prompts,
    pub held_out: HeldOut,
    pub generators: Vec<Busy>,
    pub timeline: Option<Timeline>,
    pub rollouts: Rollouts,
    pub spec: String,
}

/// Trained tokens with a lag of `from..=to` steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ByLag {
    pub from: i64,
    pub to: i64,
    pub tokens: u64,
    pub share: f64,
    pub ess: Option<f64>,
    pub k1: Option<f64>,
    pub k3: Option<f64>,
    /// Importance ratios below which 1, 10, 50, 90 and 99 percent of the tokens have theirs.
    pub ratios: Vec<Option<f64>>,
}

/// Tokens of one part of the responses, over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ByPosition {
    /// Where the part begins and ends, as shares of the response.
    pub from: f64,
    pub to: f64,
    pub mean: Option<f64>,
    pub max: Option<i64>,
}

/// Some steps that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TimeData {
    pub first: u64,
    pub last: u64,
    /// Mean lag by position in the response.
    pub lag: Vec<Option<f64>>,
    /// Trained rollouts by length; the 10th, 50th and 90th percentile, tokens.
    pub lengths: Vec<u64>,
    pub quantiles: Vec<u32>,
    /// Shares of the rollouts by why they ended, in the order of [`RunData::stops`].
    pub stops: Vec<f64>,
    /// Groups of which none, some or all rollouts are solved.
    pub groups: [u64; 3],
}

/// How often prompts were solved.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Prompts {
    pub counted: u64,
    pub by_success: Vec<u64>,
    pub most: Vec<Solved>,
    pub least: Vec<Solved>,
}

/// Held-out success.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeldOut {
    pub before: Option<Rates>,
    pub after: Option<Rates>,
    /// Sampled, of checkpoints that were evaluated: step and success.
    pub checkpoints: Vec<(u64, f64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    pub prompts: u64,
    pub sampled: Option<f64>,
    pub greedy: Option<f64>,
}

/// Reads a run; its rollouts have room for so many tokens.
///
/// # Errors
/// As `analyze`.
pub(super) fn read(run: &Path, name: String, skip_bad: SkipBad, room: usize) -> Result<(RunData, RunReport)> {
    let mut sums = RunSums::default();
    let report = report_beside(run, skip_bad, threads(), |place, part: PartSums| sums.part(place, part))?;
    let began_ns = sums.began_ns.or_else(|| sums.series.began_ns());
    let columns = sums.series.columns(began_ns.unwrap_or(0));
    let seconds = began_ns.zip(sums.series.ended_ns()).map(|(began, ended)| (ended - began) as f64 / 1e9);
    let spec = Spec::from_text(&sums.spec, &[]).ok();
    let told = outcome::read(run);
    let known = Known { report: &report, columns: &columns, spec: spec.as_ref(), told: told.as_ref(), seconds };
    let story = story::story(&known);
    let (by_lag, by_position) = (by_lag(&report, &sums), by_position(&sums));
    let (times, length_width, stops) = times(&sums);
    let mut notes = notes(run, &report, spec.as_ref(), told.as_ref());
    let shown = seen(run, &sums, spec.as_ref(), &report, room);
    let (timeline, rollouts) = match shown {
        // Damaged files were named before.
        Err(Error::File { .. } | Error::Column { .. }) if skip_bad == SkipBad::Yes => {
            notes.push("Single rollouts and moments are not shown: a file that holds them is damaged.".to_owned());
            (None, Rollouts { of: sums.rows, ..Rollouts::default() })
        }
        shown => shown?,
    };
    let data = RunData {
        name,
        path: run.to_owned(),
        story,
        notes,
        first_step: report.first_step,
        last_step: report.last_step,
        began_ns,
        seconds,
        statuses: report.statuses.clone(),
        emulated: spec.as_ref().is_some_and(|spec| spec.model.engine == EngineKind::Emulation),
        left_out: report.lag.left_out,
        steps: columns,
        bound: report.lag.bound,
        over_steps: report.over_steps.clone(),
        by_lag,
        by_position,
        times,
        length_width,
        stops,
        prompts: Prompts {
            counted: report.prompts.counted,
            by_success: report.prompts.by_success.to_vec(),
            most: report.prompts.most_solved.clone(),
            least: report.prompts.least_solved.clone(),
        },
        held_out: held_out(run, told.as_ref()),
        generators: told.map(|told| told.generators).unwrap_or_default(),
        timeline,
        rollouts,
        spec: sums.spec,
    };
    Ok((data, report))
}

/// What is shown as it is in the log.
fn seen(
    run: &Path,
    sums: &RunSums,
    spec: Option<&Spec>,
    report: &RunReport,
    room: usize,
) -> Result<(Option<Timeline>, Rollouts)> {
    let picks = sums.picked();
    if picks.is_empty() {
        return Ok((None, Rollouts { of: sums.rows, ..Rollouts::default() }));
    }
    let mut log = open(run)?;
    let began_ns = sums.began_ns.or_else(|| sums.series.began_ns()).unwrap_or(0);
    let lag_max = report.lag.max.and_then(|lag| u64::try_from(lag).ok()).unwrap_or(0);
    let timeline = timeline::timeline(&mut log, began_ns, lag_max, spec)?;
    let texts = Texts { run, spec, hash: &sums.tokenizer };
    Ok((timeline, shown::rollouts(&mut log, &picks, sums.rows, room, &texts)?))
}

fn by_lag(report: &RunReport, sums: &RunSums) -> Vec<ByLag> {
    let rows = &report.lag.by_lag;
    let of = |(row, ratios): (&crate::jobs::analyze::LagRow, super::ratios::Ratios)| ByLag {
        from: row.from,
        to: row.to,
        tokens: row.tokens,
        share: row.share,
        ess: row.ess.and_then(short),
        k1: row.k1.and_then(short),
        k3: row.k3.and_then(short),
        ratios: [0.01, 0.1, 0.5, 0.9, 0.99].map(|share| ratios.quantile(share).and_then(short)).to_vec(),
    };
    rows.iter().zip(sums.ratios(rows)).map(of).collect()
}

fn by_position(sums: &RunSums) -> Vec<ByPosition> {
    let mut all = Time::default();
    sums.times().for_each(|time| all.merge_lag(time));
    let share = |position: usize| position as f64 / POSITIONS as f64;
    let of = |position: usize| ByPosition {
        from: share(position),
        to: share(position + 1),
        mean: all.lag[position].mean.value().and_then(short),
        max: all.lag[position].max,
    };
    (0..POSITIONS).map(of).collect()
}

/// The parts of the run, the width of a row of lengths, and the reasons to end.
fn times(sums: &RunSums) -> (Vec<TimeData>, u32, Vec<&'static str>) {
    let longest = sums.times().filter_map(|time| time.lengths.keys().next_back()).max().copied().unwrap_or(0);
    let width = (longest + 1).div_ceil(LENGTH_ROWS).max(1);
    let mut stops: Vec<&'static str> = sums.times().flat_map(|time| time.stops.keys().copied()).collect();
    stops.sort_unstable();
    stops.dedup();
    let of = |time: &Time| {
        let (first, last) = time.steps.unwrap_or_default();
        let rollouts: u64 = time.lengths.values().sum();
        let mut lengths = vec![0; (longest / width + 1) as usize];
        time.lengths.iter().for_each(|(length, n)| lengths[(length / width) as usize] += n);
        let share = |stop: &&'static str| time.stops.get(stop).map_or(0.0, |n| *n as f64 / rollouts.max(1) as f64);
        TimeData {
            first,
            last,
            lag: time.lag.iter().map(|lag| lag.mean.value().and_then(short)).collect(),
            lengths,
            quantiles: [0.1, 0.5, 0.9].map(|share| quantile(&time.lengths, rollouts, share)).to_vec(),
            stops: stops.iter().map(share).filter_map(short).collect(),
            groups: time.groups,
        }
    };
    (sums.times().map(of).collect(), width, stops)
}

/// The least length that this share of so many rollouts does not exceed.
fn quantile(lengths: &BTreeMap<u32, u64>, rollouts: u64, share: f64) -> u32 {
    let wanted = ((share * rollouts as f64).ceil() as u64).max(1);
    let mut before = 0;
    let found = lengths.iter().find(|(_, n)| {
        before += **n;
        before >= wanted
    });
    found.map_or(0, |(length, _)| *length)
}

fn notes(run: &Path, report: &RunReport, spec: Option<&Spec>, told: Option<&Told>) -> Vec<String> {
    let files = &report.files;
    let mut notes: Vec<String> = files.skipped_names.iter().map(|name| format!("Left out: {name}")).collect();
    notes.extend(files.notes.iter().map(|note| format!("The log: {note}")));
    if told.is_none() && run.join("summary.json").exists() {
        notes.push(
            "Its summary.json cannot be read: what it says of the model and of held-out prompts is missing.".to_owned(),
        );
    }
    if spec.is_none() && report.files.read > 0 {
        notes.push("The log's specification cannot be read by this version: settings are shown as text.".to_owned());
    }
    if report.prompts.rollouts_not_counted > 0 {
        let (counted, rest) = (story::count(report.prompts.counted), story::count(report.prompts.rollouts_not_counted));
        notes.push(format!("Prompts are counted one by one up to {counted}; {rest} rollouts of others are not among them."));
    }
    notes
}

fn held_out(run: &Path, told: Option<&Told>) -> HeldOut {
    let rates = |answers: &Answers| Rates {
        prompts: answers.sampled.total().prompts,
        sampled: answers.sampled.total().rate(),
        greedy: answers.greedy.total().rate(),
    };
    let folder = RunFolder::view(run).ok();
    let steps = folder.as_ref().and_then(|folder| folder.checkpointed_steps().ok()).unwrap_or_default();
    let evaluated = |step: u64| {
        let text = fs::read_to_string(folder.as_ref()?.checkpoint(step).join("evaluation.json")).ok()?;
        Some((step, serde_json::from_str::<Evaluation>(&text).ok()?.total().rate()?))
    };
    HeldOut {
        before: told.and_then(|told| told.before.as_ref()).map(rates),
        after: told.and_then(|told| told.after.as_ref()).map(rates),
        checkpoints: steps.into_iter().filter_map(evaluated).collect(),
    }
}

/// Names that tell paths apart, as short as they can be: what they share at their beginning and at their end is left out, and of
/// parts that are settings (`loss=ppo,max_lag=8`) those that are the same.
pub(super) fn names(runs: &[PathBuf]) -> Vec<String> {
    let mut names = short_names(runs);
    for i in 1..names.len() {
        let before = names[..i].iter().filter(|name| **name == names[i]).count();
        if before > 0 {
            names[i] = format!("{} ({})", names[i], before + 1);
        }
    }
    names
}

fn short_names(runs: &[PathBuf]) -> Vec<String> {
    let whole = |run: &PathBuf| run.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let mut parts: Vec<Vec<String>> = runs.iter().map(whole).collect();
    for _ in 0..2 {
        let shortest = parts.iter().map(Vec::len).min().unwrap_or(0);
        let alike = |i: &usize| parts.iter().all(|part| part[*i] == parts[0][*i]);
        // The same run twice, or a run and what is in it: a name all the same.
        let shared = (0..shortest.saturating_sub(1)).take_while(alike).count();
        parts.iter_mut().for_each(|part| drop(part.drain(..shared)));
        // Then from the end.
        parts.iter_mut().for_each(|part| part.reverse());
    }
    let joined: Vec<String> = parts.iter().map(|part| part.join("/")).collect();
    let settings: Vec<Vec<&str>> = joined.iter().map(|name| name.split(',').collect()).collect();
    let differs = |i: &usize| settings.iter().any(|of| of[*i] != settings[0][*i]);
    let count = settings.first().map_or(0, Vec::len);
    let kept: Vec<usize> = match settings.iter().all(|of| of.len() == count) {
        true => (0..count).filter(differs).collect(),
        false => Vec::new(),
    };
    match kept.is_empty() {
        true => joined,
        false => settings.iter().map(|of| kept.iter().map(|i| of[*i]).collect::<Vec<_>>().join(",")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_differs() {
        let of = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["runs/demo"]), ["demo"]);
        assert_eq!(of(&["runs/a", "runs/b"]), ["a", "b"]);
        assert_eq!(of(&["x/lag=0/seed-1", "x/lag=8/seed-1"]), ["lag=0", "lag=8"]);
        assert_eq!(of(&["x/loss=a,lag=0/seed-1", "x/loss=a,lag=8/seed-2"]), ["lag=0/seed-1", "lag=8/seed-2"]);
        assert_eq!(of(&["runs/a", "runs/a/rollouts/step-00000001.parquet"]), ["a", "a/rollouts/step-00000001.parquet"]);
        assert_eq!(of(&["runs/a", "runs/a"]), ["a", "a (2)"]);
    }

    #[test]
    fn quantiles_are_lengths_that_there_are() {
        let lengths = BTreeMap::from([(3, 1), (10, 8), (90, 1)]);
        assert_eq!([0.1, 0.5, 0.9, 1.0].map(|share| quantile(&lengths, 10, share)), [3, 10, 10, 90]);
        assert_eq!(quantile(&BTreeMap::new(), 0, 0.5), 0);
    }
}
