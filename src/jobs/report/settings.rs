//! An experiment as a page shows it: its table, and for each setting curves with means and deviations over its seeds.

use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Outcome, Point, Results, Row};
use crate::jobs::experiment::table;
use crate::jobs::report::series::short;
use serde::Serialize;

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
    pub header: Vec<String>,
    pub settings: Vec<SettingData>,
    /// What the pictures leave out.
    pub notes: Vec<String>,
}

/// One value of each axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SettingData {
    /// The value's name on each axis.
    pub at: Vec<String>,
    /// Its row of the table.
    pub row: Vec<String>,
    /// Curves by their names: see [`CURVES`].
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
type Of = fn(&Point) -> Option<f64>;

/// The curves: what is drawn, against what.
const CURVES: [(&str, Of, Of); 6] = [
    ("reward by seconds", |p| Some(p.seconds), |p| p.reward),
    ("reward by rollouts", |p| Some(p.rollouts as f64), |p| p.reward),
    ("rollouts by seconds", |p| Some(p.seconds), |p| Some(p.rollouts as f64)),
    ("lag_max by step", |p| Some(p.step as f64), |p| Some(p.lag_max as f64)),
    ("ess by step", |p| Some(p.step as f64), |p| p.ess),
    ("success by seconds", |p| Some(p.seconds), |p| p.success),
];

impl ExperimentData {
    pub(super) fn of(design: &Design, cells: &[Cell], results: &Results) -> ExperimentData {
        let mut data = ExperimentData {
            about: design.about.trim().to_owned(),
            axes: design.axes().into_iter().map(|axis| axis.name).collect(),
            seeds: design.seeds.len(),
            header: table::header(design, cells, results),
            ..ExperimentData::default()
        };
        for (at, row) in table::rows(design, cells, results) {
            let rows: Vec<&Row> = cells.iter().filter(|cell| cell.at == at).filter_map(|cell| results.of(cell)).collect();
            for row in &rows {
                data.seconds += row.seconds;
                if !data.machines.contains(&row.machine) {
                    data.machines.push(row.machine.clone());
                }
            }
            data.settings.push(setting(at, row, &rows));
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

fn setting(at: Vec<String>, row: Vec<String>, rows: &[&Row]) -> SettingData {
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
        let lines: Vec<Vec<(f64, f64)>> = rows.iter().map(|row| line(&row.curve, *x, *y)).collect();
        mean(name, &lines)
    });
    SettingData { at, row, curves: curves.collect(), failed }
}

/// The points that have both numbers; x rises.
fn line(points: &[Point], x: Of, y: Of) -> Vec<(f64, f64)> {
    let mut line: Vec<(f64, f64)> = points.iter().filter_map(|point| x(point).zip(y(point))).collect();
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
        let point = |seconds, reward| Point {
            step: 1,
            seconds,
            rollouts: 1,
            reward,
            success: None,
            length: None,
            entropy: None,
            ess: None,
            kl_k3: None,
            lag_mean: None,
            lag_max: 0,
            grad_norm: None,
        };
        let points = [point(0.0, Some(1.0)), point(1.0, None), point(1.0, Some(2.0)), point(1.0, Some(9.0))];
        assert_eq!(line(&points, CURVES[0].1, CURVES[0].2), [(0.0, 1.0), (1.0, 2.0)]);
    }
}
