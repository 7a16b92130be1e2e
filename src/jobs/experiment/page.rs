//! An experiment as a page shows it: its table, and for each setting curves with means and deviations over its seeds.

use crate::error::Result;
use crate::jobs::emulation::Emulation;
use crate::jobs::experiment::design::{Cell, Design, SpeedUp};
use crate::jobs::experiment::kl::page::{KlPoint, divergences};
use crate::jobs::experiment::results::{Outcome, Point, Results, Row};
use crate::jobs::experiment::table;
use crate::jobs::experiment::{kl, speed_up};
use crate::jobs::lines::Lines;
use crate::jobs::report::series::short;
use crate::jobs::report::{Other, write_other};
use serde::Serialize;
use std::path::Path;

/// Points of a mean's curve.
const POINTS: usize = 60;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExperimentData {
    pub about: String,
    /// Names of the axes.
    pub axes: Vec<String>,
    pub seeds: usize,
    /// Processors that cells ran on, each once.
    pub machines: Vec<String>,
    /// Wall time of all its cells, seconds.
    pub seconds: f64,
    pub table: Lines,
    /// How much faster one value of an axis is than another.
    pub speed_up: Option<SpeedUpData>,
    /// Tokens a flash by setting, where accelerators are emulated.
    pub emulated: Vec<Compared>,
    /// Of a KL experiment, whose settings have no curves.
    pub kl: Vec<KlPoint>,
    pub settings: Vec<SettingData>,
    /// What the pictures leave out.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpeedUpData {
    pub what: String,
    pub table: Lines,
    pub points: Vec<Compared>,
}

/// What was measured, mean over seeds, beside what a plan says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Compared {
    /// The values' names.
    pub at: Vec<String>,
    pub measured: Option<MeanData>,
    pub formulas: Option<f64>,
    pub simulation: Option<f64>,
    /// What coordination added to a decode step and to the training of a step, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_added_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_added_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MeanData {
    pub mean: f64,
    /// Sample deviation over seeds; None of one seed.
    pub deviation: Option<f64>,
}

impl MeanData {
    fn of(values: &[f64]) -> Option<MeanData> {
        let (mean, deviation) = table::mean_and_deviation(values)?;
        Some(MeanData { mean: short(mean)?, deviation: deviation.and_then(short) })
    }
}

fn mean_of(values: &[f64]) -> Option<f64> {
    MeanData::of(values).map(|of| of.mean)
}

/// One value of each axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SettingData {
    /// The value's name on each axis.
    pub at: Vec<String>,
    /// Curves by their names.
    pub curves: Vec<Curve>,
    /// What runs that failed said, each once.
    pub failed: Vec<String>,
}

/// Means over the seeds that have a curve, where all of them have one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    pub name: &'static str,
    pub seeds: usize,
    pub x: Vec<f64>,
    pub mean: Vec<f64>,
    /// Sample deviation over the seeds; empty of one seed.
    pub deviation: Vec<f64>,
}

/// A number of a point of a run's curve.
type Of = fn(&Row, &Point) -> Option<f64>;

/// From the first admission, so that a schedule by turns pays for sampling its first phase; of an older result from its first step's end.
fn seconds(row: &Row, point: &Point) -> Option<f64> {
    Some(row.first_s.unwrap_or(0.0) + point.seconds)
}

/// The curves: what is drawn, against what.
const CURVES: [(&str, Of, Of); 5] = [
    ("reward by seconds", seconds, |_, p| p.reward),
    ("reward by rollouts", |_, p| Some(p.rollouts as f64), |_, p| p.reward),
    ("rollouts by seconds", seconds, |_, p| Some(p.rollouts as f64)),
    ("lag_max by step", |_, p| Some(p.step as f64), |_, p| Some(p.lag_max as f64)),
    ("ess by step", |_, p| Some(p.step as f64), |_, p| p.ess),
];

/// Writes a page of an experiment.
///
/// # Errors
/// A disk that refuses.
pub fn write(name: &str, design: &Design, cells: &[Cell], results: &Results, file: &Path) -> Result<()> {
    write_other(file, name.to_owned(), Other::Experiment, &ExperimentData::of(design, cells, results))
}

impl ExperimentData {
    fn of(design: &Design, cells: &[Cell], results: &Results) -> ExperimentData {
        let is_kl = design.kl.is_on();
        let mut data = ExperimentData {
            about: design.about.trim().to_owned(),
            axes: design.axes().into_iter().map(|axis| axis.name).collect(),
            seeds: design.seeds.len(),
            table: if is_kl { kl::table::lines(design, cells, results) } else { table::lines(design, cells, results) },
            speed_up: speed_up(design, cells, results),
            kl: divergences(design, cells, results),
            ..ExperimentData::default()
        };
        for setting in table::settings(design, cells) {
            let same = cells.iter().filter(|cell| cell.at == setting.at);
            let rows: Vec<&Row> = same.filter_map(|cell| results.of(cell)).collect();
            for row in &rows {
                data.seconds += row.seconds;
                if !data.machines.contains(&row.machine) {
                    data.machines.push(row.machine.clone());
                }
            }
            data.emulated.extend(emulated(&setting.at, &rows));
            data.settings.push(setting_data(setting.at.clone(), &rows));
        }
        let cut = data.settings.iter().flat_map(|setting| &setting.curves).any(|curve| curve.seeds > 1);
        if cut {
            data.notes.push(
                "A mean is drawn where every seed of its setting has a value: a seed that ended sooner ends its setting's curve."
                    .to_owned(),
            );
        }
        data
    }
}

fn speed_up(design: &Design, cells: &[Cell], results: &Results) -> Option<SpeedUpData> {
    let of = &design.speed_up;
    let what = format!("Throughput of {} over that of {}, by seed; means ± sample deviations over seeds.", of.of, of.over);
    let points = || {
        let ratios = speed_up::ratios(design, cells, results).into_iter();
        let compared = |found: speed_up::Ratios| {
            let [measured, formulas, simulation] = &found.of;
            let (formulas, simulation) = (mean_of(formulas), mean_of(simulation));
            Compared { measured: MeanData::of(measured), at: found.at, formulas, simulation, ..Compared::default() }
        };
        ratios.map(compared).collect()
    };
    (*of != SpeedUp::default()).then(|| SpeedUpData {
        what,
        table: speed_up::lines(design, cells, results),
        points: points(),
    })
}

/// None of runs whose accelerators are real, and where none is done.
fn emulated(at: &[String], rows: &[&Row]) -> Option<Compared> {
    let of = |row: &&Row| match &row.outcome {
        Outcome::Done(figures) => figures.emulation.as_deref().cloned(),
        Outcome::Failed { .. } | Outcome::Measured(_) => None,
    };
    let found: Vec<Emulation> = rows.iter().filter_map(of).collect();
    let all = |of: &dyn Fn(&Emulation) -> Option<f64>| found.iter().filter_map(of).collect::<Vec<f64>>();
    Some(Compared {
        at: at.to_vec(),
        measured: Some(MeanData::of(&all(&|of| Some(of.measured.tokens)))?),
        formulas: mean_of(&all(&|of| Some(of.formula?.tokens))),
        simulation: mean_of(&all(&|of| Some(of.simulated?.tokens))),
        decode_added_ms: mean_of(&all(&|of| Some(1e3 * of.decode_step.added_s))),
        step_added_ms: mean_of(&all(&|of| Some(1e3 * of.training_step.added_s))),
    })
}

fn setting_data(at: Vec<String>, rows: &[&Row]) -> SettingData {
    let mut failed: Vec<String> = Vec::new();
    for row in rows {
        if let Outcome::Failed { error, .. } = &row.outcome
            && !failed.contains(error)
        {
            failed.push(error.clone());
        }
    }
    // Of failed runs too: how far they came is what one looks for.
    let curves = CURVES.iter().filter_map(|(name, x, y)| {
        let lines: Vec<Vec<(f64, f64)>> = rows.iter().map(|row| line(row, *x, *y)).collect();
        mean(name, &lines)
    });
    SettingData { at, curves: curves.collect(), failed }
}

/// The points that have both numbers; x rises.
fn line(row: &Row, x: Of, y: Of) -> Vec<(f64, f64)> {
    let mut line: Vec<(f64, f64)> = row.curve.iter().filter_map(|point| x(row, point).zip(y(row, point))).collect();
    line.dedup_by(|next, before| next.0 <= before.0);
    line
}

/// Of the lines that have two points or more: on a grid over what all of them have, straight between points.
fn mean(name: &'static str, lines: &[Vec<(f64, f64)>]) -> Option<Curve> {
    let lines: Vec<&Vec<(f64, f64)>> = lines.iter().filter(|line| line.len() > 1).collect();
    let from = lines.iter().map(|line| line[0].0).fold(f64::NEG_INFINITY, f64::max);
    let to = lines.iter().filter_map(|line| Some(line.last()?.0)).fold(f64::INFINITY, f64::min);
    if lines.is_empty() || to <= from {
        return None;
    }
    let mut curve = Curve { name, seeds: lines.len(), ..Curve::default() };
    for i in 0..POINTS {
        let x = from + (to - from) * i as f64 / (POINTS - 1) as f64;
        let at: Vec<f64> = lines.iter().map(|line| between(line, x)).collect();
        let (mean, deviation) = table::mean_and_deviation(&at)?;
        curve.x.extend(short(x));
        curve.mean.extend(short(mean));
        curve.deviation.extend(deviation.and_then(short));
    }
    Some(curve)
}

/// The line's height at `x`, which is not outside of it.
fn between(line: &[(f64, f64)], x: f64) -> f64 {
    let next = line.partition_point(|point| point.0 < x).clamp(1, line.len() - 1);
    let ((x0, y0), (x1, y1)) = (line[next - 1], line[next]);
    y0 + (y1 - y0) * ((x - x0) / (x1 - x0)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::experiment::reached::tests::row;

    #[test]
    fn a_line_is_straight_between_its_points() {
        let line = [(0.0, 1.0), (2.0, 3.0), (3.0, 0.0)];
        assert_eq!([0.0, 0.5, 2.0, 2.5, 3.0].map(|x| between(&line, x)), [1.0, 1.5, 3.0, 1.5, 0.0]);
    }

    /// One seed from 0 to 10, the other from 2 to 8. Catches a mean of one seed where the other has nothing, and a deviation over n.
    #[test]
    fn a_mean_is_drawn_where_all_seeds_are() {
        let found = mean("x", &[vec![(0.0, 0.0), (10.0, 10.0)], vec![(2.0, 4.0), (8.0, 10.0)], vec![(1.0, 1.0)]]).unwrap();
        assert_eq!((found.seeds, found.x.len(), found.x[0], found.x[POINTS - 1]), (2, POINTS, 2.0, 8.0));
        assert_eq!((found.mean[0], found.mean[POINTS - 1]), (3.0, 9.0));
        assert!(found.deviation.iter().all(|d| (d - 2f64.sqrt()).abs() < 1e-4), "{:?}", found.deviation);
        let one = mean("x", &[vec![(0.0, 0.0), (10.0, 10.0)]]).unwrap();
        assert!(one.deviation.is_empty() && one.seeds == 1);
        assert_eq!(mean("x", &[vec![(0.0, 0.0), (1.0, 1.0)], vec![(5.0, 0.0), (6.0, 1.0)]]), None);
        assert_eq!(mean("x", &[]), None);
    }

    #[test]
    fn what_a_point_lacks_is_left_out() {
        let points = [(0.0, 8, Some(1.0)), (1.0, 16, None), (1.0, 16, Some(2.0)), (1.0, 16, Some(9.0))];
        let of = |first_s| line(&row(first_s, &points), CURVES[0].1, CURVES[0].2);
        assert_eq!((of(None), of(Some(2.0))), (vec![(0.0, 1.0), (1.0, 2.0)], vec![(2.0, 1.0), (3.0, 2.0)]));
    }
}
