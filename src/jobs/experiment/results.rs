//! What cells came to, a JSON line each: small enough to be kept beside the experiment and read by anything.

use crate::durable::write_sealed;
use crate::error::{Error, Result};
use crate::jobs::emulation::Emulation;
use crate::jobs::experiment::design::Cell;
use crate::jobs::experiment::kl::measure::Divergence;
use crate::kernel::mean::Mean;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_operators::record::Metrics;

/// One run's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The value's name on each axis.
    pub at: Vec<String>,
    /// Names of the axes that were not the experiment's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    pub seed: u64,
    /// Hash of the cell's settings: a result of others is not the cell's.
    pub settings: String,
    /// Of tidegate.
    pub version: String,
    /// The processor, and how many of them.
    pub machine: String,
    /// Wall time of the whole run, evaluations included, seconds.
    pub seconds: f64,
    pub outcome: Outcome,
    /// From the first admission to the end of the first step, seconds; None where the log has no first step, or the result is of an
    /// earlier version.
    #[serde(default)]
    pub first_s: Option<f64>,
    /// Over the run, at most [`POINTS`] points.
    pub curve: Vec<Point>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done(Figures),
    /// It said this, with this exit code.
    Failed {
        exit: i32,
        error: String,
    },
    /// It is a measurement of a run.
    Measured(Divergence),
}

/// What a run came to: what the table shows, out of its summary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    pub steps: u64,
    pub training_s: f64,
    pub trained_rollouts: u64,
    pub trained_tokens: u64,
    pub generated_tokens: u64,
    /// Mean reward of the last tenth of the steps.
    pub reward_last: Option<f64>,
    pub lag_mean: Option<f64>,
    pub lag_max: Option<u64>,
    pub lag_bound: u64,
    pub ess_mean: Option<f64>,
    pub ess_min: Option<f64>,
    /// Held-out success, in 0..=1: sampled before and after, and greedy after.
    pub success_before: Option<f64>,
    pub success: Option<f64>,
    pub success_greedy: Option<f64>,
    /// Of accelerators that are emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Box<Emulation>>,
}

impl Figures {
    /// Tokens trained.
    pub fn tokens_a_second(&self) -> f64 {
        self.trained_tokens as f64 / self.training_s.max(1e-9)
    }
}

/// The steps from the last point to `step`, this one included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub step: u64,
    /// From the end of the first step to that of this one.
    pub seconds: f64,
    /// Trained until here.
    pub rollouts: u64,
    /// Means over the steps' rollouts. These and the next: None where no step has the number.
    pub reward: Option<f64>,
    pub success: Option<f64>,
    pub length: Option<f64>,
    /// Means over the steps' tokens.
    pub entropy: Option<f64>,
    pub ess: Option<f64>,
    pub kl_k3: Option<f64>,
    pub lag_mean: Option<f64>,
    /// The most of them.
    pub lag_max: u64,
    pub grad_norm: Option<f64>,
}

/// Most points of a curve.
pub const POINTS: usize = 50;

/// A run's steps as a curve. `metrics` are in the order of the steps.
pub fn curve(metrics: &[Metrics]) -> Vec<Point> {
    let start = metrics.first().map_or(0, |first| first.finished_ns);
    let mut rollouts = 0;
    let point = |steps: &[Metrics]| {
        let last = steps.last()?;
        let mean = |of: fn(&Metrics) -> f64, weigh: fn(&Metrics) -> u64| {
            let mut mean = Mean::default();
            let counted = steps.iter().filter(|step| of(step).is_finite());
            counted.for_each(|step| mean.add_times(of(step), weigh(step)));
            mean.value().map(rounded)
        };
        // All tokens of a step may be left out by a safeguard: it has a reward all the same.
        let rollouts_of: fn(&Metrics) -> u64 = |step| step.rollouts.max(u64::from(step.left_out > 0));
        let chosen_of: fn(&Metrics) -> u64 = |step| step.tokens + step.left_out;
        let tokens_of: fn(&Metrics) -> u64 = |step| step.tokens;
        rollouts += steps.iter().map(|step| step.rollouts).sum::<u64>();
        let norms = steps.iter().map(|step| step.grad_norm).filter(|norm| norm.is_finite());
        Some(Point {
            step: last.step,
            seconds: rounded((last.finished_ns - start) as f64 / 1e9),
            rollouts,
            reward: mean(|step| step.reward, rollouts_of),
            success: mean(|step| step.success, rollouts_of),
            length: mean(|step| step.length, rollouts_of),
            entropy: mean(|step| step.entropy, tokens_of),
            ess: mean(|step| step.ess, tokens_of),
            kl_k3: mean(|step| step.kl_k3, tokens_of),
            lag_mean: mean(|step| step.lag_mean, chosen_of),
            lag_max: steps.iter().map(|step| step.lag_max).max().unwrap_or(0),
            grad_norm: norms.reduce(f64::max).map(rounded),
        })
    };
    metrics.chunks(metrics.len().div_ceil(POINTS).max(1)).filter_map(point).collect()
}

/// Five significant digits: what a picture shows, and a file that people read.
fn rounded(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

/// To a tenth.
pub(super) fn rounded_seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// The results of an experiment, in a file.
#[derive(Clone, Debug)]
pub struct Results {
    path: PathBuf,
    rows: Vec<Row>,
}

impl Results {
    /// Reads those that are there; a file that is not is empty.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is no result.
    pub fn open(path: &Path) -> Result<Results> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Error::file(path, e)),
        };
        let row = |(i, line): (usize, &str)| {
            serde_json::from_str(line).map_err(|e| Error::file(path, format!("line {}: {e}; remove the line", i + 1)))
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        Ok(Results { path: path.to_owned(), rows: lines.map(row).collect::<Result<_>>()? })
    }

    /// Makes the folder that they go to: known before the first cell has run for nothing.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn make_place(&self) -> Result<()> {
        self.path.parent().map_or(Ok(()), fs::create_dir_all).map_err(|e| Error::file(&self.path, e))
    }

    /// Where they are kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A cell's result, where there is one of its settings.
    pub fn of(&self, cell: &Cell) -> Option<&Row> {
        self.rows.iter().find(|row| row.at == cell.at && row.settings == cell.settings)
    }

    /// Keeps a result, in place of an older one of the cell. The file is whole at every moment.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn keep(&mut self, row: Row) -> Result<()> {
        self.rows.retain(|old| old.at != row.at || old.added != row.added || old.seed != row.seed);
        self.rows.push(row);
        let mut lines = String::new();
        for row in &self.rows {
            lines += &serde_json::to_string(row).map_err(|e| Error::file(&self.path, e))?;
            lines.push('\n');
        }
        write_sealed(&self.path, |file| file.write_all(lines.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: &str, seed: u64, settings: &str) -> Row {
        Row {
            at: vec![at.to_owned()],
            added: Vec::new(),
            seed,
            settings: settings.to_owned(),
            version: "0".to_owned(),
            machine: "m".to_owned(),
            seconds: 1.5,
            outcome: Outcome::Failed { exit: 1, error: "error: x".to_owned() },
            first_s: None,
            curve: Vec::new(),
        }
    }

    fn cell(at: &str, seed: u64, settings: &str) -> Cell {
        Cell { at: vec![at.to_owned()], added: Vec::new(), seed, sets: Vec::new(), settings: settings.to_owned() }
    }

    /// Catches a result of other settings that is taken for the cell's, and one that stays beside its successor.
    #[test]
    fn a_result_is_of_its_settings_and_replaces_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.jsonl");
        let mut results = Results::open(&path).unwrap();
        results.keep(row("a", 1, "s")).unwrap();
        results.keep(row("a", 2, "t")).unwrap();
        let done = Outcome::Done(Figures { success: Some(0.5), ..Figures::default() });
        results.keep(Row { outcome: done, settings: "new".to_owned(), ..row("a", 1, "s") }).unwrap();
        let read = Results::open(&path).unwrap();
        assert_eq!(read.rows, results.rows);
        assert_eq!(read.rows.len(), 2);
        assert_eq!(read.of(&cell("a", 1, "s")), None);
        assert!(read.of(&cell("a", 1, "new")).is_some() && read.of(&cell("b", 1, "new")).is_none());

        // The same values of axes that were added are of other cells.
        for key in ["steps", "learn.lr"] {
            results.keep(Row { added: vec![key.to_owned()], settings: key.to_owned(), ..row("a", 1, "") }).unwrap();
        }
        let read = Results::open(&path).unwrap();
        assert!(["steps", "learn.lr", "new"].iter().all(|settings| read.of(&cell("a", 1, settings)).is_some()));

        std::fs::write(&path, "\n{\"at\": 3}\n").unwrap();
        let refused = Results::open(&path).unwrap_err().to_string();
        assert!(refused.contains("x.jsonl: line 2: "), "{refused}");
    }

    /// 101 steps are 34 points of 3, the last of 2: means over the steps of a point, sums over all before.
    #[test]
    fn a_curve_has_few_points_that_leave_nothing_out() {
        let step = |step: u64| Metrics {
            step,
            rollouts: 4,
            tokens: 9,
            reward: if step == 1 { f64::NAN } else { step as f64 },
            entropy: f64::NAN,
            lag_max: step % 7,
            grad_norm: if step == 2 { f64::NAN } else { step as f64 },
            finished_ns: step as i64 * 1_000_000_000,
            ..Metrics::default()
        };
        let points = curve(&(1..=101).map(step).collect::<Vec<_>>());
        assert_eq!(points.len(), 34);
        let first = &points[0];
        assert_eq!((first.step, first.rollouts, first.seconds), (3, 12, 2.0));
        assert_eq!((first.reward, first.lag_max, first.grad_norm), (Some(2.5), 3, Some(3.0)));
        assert_eq!((first.entropy, first.ess), (None, Some(0.0)), "what no step has is not 0");
        let last = &points[33];
        assert_eq!((last.step, last.rollouts, last.seconds, last.reward), (101, 404, 100.0, Some(100.5)));
        assert_eq!(curve(&[]), []);
        assert_eq!(rounded(0.123_456_789), 0.123_46);
    }
}
