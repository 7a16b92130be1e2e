//! A plan as a page shows it: its layouts, and when a pipeline pays.

use crate::error::Result;
use crate::jobs::lines::Lines;
use crate::jobs::plan::{Curve, Grid, LayoutReport, Point, Report};
use crate::jobs::report::series::short;
use crate::jobs::report::story::{Sentence, count, number, sentence};
use crate::jobs::report::{Other, write_other};
use crate::kernel::capacity::Job;
use serde::Serialize;
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlanData {
    pub story: Vec<Sentence>,
    /// Of time.
    pub unit: &'static str,
    pub layouts: Lines,
    pub curves: Vec<PlanCurve>,
    /// What was planned for, and the layout that is best: `x` is how many accelerators train.
    pub max_lag: u64,
    pub accelerators: usize,
    pub planned: Option<PlanPoint>,
    /// Layouts as they were simulated.
    pub simulated: Vec<SimulatedPoint>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanCurve {
    pub of: Curve,
    pub points: Vec<PlanPoint>,
}

/// A layout, by what was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlanPoint {
    pub x: Option<f64>,
    pub generators: usize,
    pub slots: usize,
    pub max_lag: u64,
    pub mean_lag: Option<f64>,
    /// Tokens a unit of time: of the pipeline, and of the conventional schedule with the same largest and with no more mean lag.
    pub pipeline: Option<f64>,
    pub conventional: Option<f64>,
    pub at_mean: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulatedPoint {
    pub name: &'static str,
    pub max_lag: u64,
    pub mean_lag: f64,
    pub tokens: f64,
}

/// Writes a page of a plan for a job.
///
/// # Errors
/// A disk that refuses.
pub fn write(report: &Report, job: &Job, file: &Path) -> Result<()> {
    let title = format!("Plan for {} accelerators", report.accelerators);
    write_other(file, title, Other::Plan, &PlanData::of(report, job))
}

impl PlanData {
    fn of(report: &Report, job: &Job) -> PlanData {
        let (header, rows) = report.layouts();
        let curve = |of: Curve| {
            let points = of.points(job, report.max_lag, Grid::Drawn).iter().map(PlanPoint::of).collect();
            PlanCurve { of, points }
        };
        let simulated = |(name, layout): (&'static str, &LayoutReport)| {
            let found = layout.simulated?;
            Some(SimulatedPoint { name, max_lag: found.max_lag, mean_lag: found.mean_lag, tokens: found.tokens })
        };
        let of = [
            ("pipeline", report.pipeline.as_ref()),
            ("conventional", Some(&report.conventional)),
            ("at_mean", report.conventional_at_mean.as_ref()),
        ];
        PlanData {
            story: story(report),
            unit: report.unit,
            layouts: Lines { header, rows, words: 1 },
            curves: Curve::ALL.into_iter().map(curve).collect(),
            max_lag: report.max_lag,
            accelerators: report.accelerators,
            planned: report.pipeline.map(|layout| PlanPoint::planned(report, &layout)),
            simulated: of.into_iter().filter_map(|(name, layout)| Some((name, layout?))).filter_map(simulated).collect(),
        }
    }
}

impl PlanPoint {
    fn planned(report: &Report, layout: &LayoutReport) -> PlanPoint {
        PlanPoint {
            x: Some(layout.learners as f64),
            generators: layout.generators,
            slots: layout.slots,
            max_lag: layout.max_lag,
            mean_lag: short(layout.mean_lag),
            pipeline: short(layout.tokens),
            conventional: short(report.conventional.tokens),
            at_mean: report.conventional_at_mean.and_then(|at_mean| short(at_mean.tokens)),
        }
    }

    fn of(point: &Point) -> PlanPoint {
        PlanPoint {
            x: short(point.x),
            generators: point.generators,
            slots: point.slots,
            max_lag: point.max_lag,
            mean_lag: short(point.mean_lag),
            pipeline: short(point.tokens),
            conventional: short(point.conventional),
            at_mean: short(point.conventional_at_mean),
        }
    }
}

fn story(report: &Report) -> Vec<Sentence> {
    let job = sentence(
        "{} accelerators, {} rollouts a step, a lag of at most {} steps, responses of {} tokens on average and {} at most.",
        &[
            count(report.accelerators as u64),
            count(report.batch_size as u64),
            count(report.max_lag),
            number(report.mean_length),
            count(report.longest as u64),
        ],
    );
    let Some(pipeline) = &report.pipeline else {
        return vec![job, sentence(&format!("{}.", capital(&report.sentence())), &[])];
    };
    let layout = sentence(
        &format!(
            "The best pipeline has {{}} accelerators generate, with up to {{}} sequences in progress each, and {{}} train: {{}} tokens \
             a {}, at a lag of {{}} steps on average and {{}} at most.",
            report.unit
        ),
        &[
            count(pipeline.generators as u64),
            count(pipeline.slots as u64),
            count(pipeline.learners as u64),
            number(pipeline.tokens),
            number(pipeline.mean_lag),
            count(pipeline.max_lag),
        ],
    );
    let played = |of: &LayoutReport| of.simulated.map_or(of.tokens, |played| played.tokens);
    let up = |of: &LayoutReport| format!("{:.2} times", played(pipeline) / played(of));
    let mut all = vec![job, layout];
    if let Some(found) = pipeline.simulated {
        all.push(sentence(
            "Played through event by event it comes to {} of these tokens; learners wait {} of their time, and the lag is {} steps on \
             average and {} at most.",
            &[
                format!("{:.1} %", 100.0 * found.tokens / pipeline.tokens),
                format!("{:.1} %", 100.0 * found.learners_waited),
                number(found.mean_lag),
                count(found.max_lag),
            ],
        ));
    }
    let mut text = "So it trains {} the tokens of the conventional schedule at the same largest lag".to_owned();
    let mut figures = vec![up(&report.conventional)];
    if let Some(at_mean) = &report.conventional_at_mean {
        text += ", and {} at no more mean lag ({} steps)";
        figures.extend([up(at_mean), number(at_mean.mean_lag)]);
    }
    all.push(sentence(&(text + "."), &figures));
    all
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}
