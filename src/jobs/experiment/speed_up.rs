//! How much faster one value of an axis is than another: measured, and where accelerators are emulated, as a plan has it.

use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Figures, Outcome, Results};
use crate::jobs::experiment::table::{mean_and_deviation, settings};
use crate::jobs::lines::Lines;

/// Throughput of a run, by who says so.
type Says = fn(&Figures) -> Option<f64>;

/// Columns: what is measured, then what the closed forms and the simulation say.
const COLUMNS: [(&str, Says); 3] = [
    ("speed-up", |f| f.emulation.as_ref().map(|of| of.measured.tokens).or(Some(f.tokens_a_second()))),
    ("formulas", |f| f.emulation.as_ref()?.formula.map(|of| of.tokens)),
    ("simulation", |f| f.emulation.as_ref()?.simulated.map(|of| of.tokens)),
];

/// What the first value has over the second, of one setting of the other axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratios {
    /// The others' values.
    pub at: Vec<String>,
    /// Seeds of which both runs are done.
    pub runs: usize,
    /// A ratio a seed, by who says so: measured, formulas, simulation.
    pub of: [Vec<f64>; 3],
}

/// A row for each setting of the other axes, in their order: means and sample deviations.
pub fn lines(design: &Design, cells: &[Cell], results: &Results) -> Lines {
    let own = &design.speed_up.axis;
    let others = design.axis.iter().map(|axis| axis.name.clone()).filter(|name| name != own);
    let heads = others.chain(["runs".to_owned()]).chain(COLUMNS.iter().map(|(name, _)| (*name).to_owned()));
    let line = |Ratios { mut at, runs, of }: Ratios| {
        at.push(runs.to_string());
        at.extend(of.iter().map(|ratios| told(ratios)));
        at
    };
    let rows = ratios(design, cells, results).into_iter().map(line).collect();
    Lines { header: heads.collect(), rows, words: design.axis.len().saturating_sub(1) }
}

/// The ratios of each setting of the other axes, in their order.
pub fn ratios(design: &Design, cells: &[Cell], results: &Results) -> Vec<Ratios> {
    let speed_up = &design.speed_up;
    let place = design.axis.iter().position(|axis| axis.name == speed_up.axis).unwrap_or(design.axis.len());
    let is = |cell: &Cell, value: &str| cell.at.get(place).is_some_and(|at| at == value);
    let of_setting = |setting: &Cell| {
        let with = |value: &str| {
            let mut at = setting.at.clone();
            at.iter_mut().skip(place).take(1).for_each(|own| value.clone_into(own));
            at
        };
        let (of, over) = (with(&speed_up.of), with(&speed_up.over));
        let run = |at: &[String], seed: u64| {
            let cell = cells.iter().find(|cell| cell.at == at && cell.seed == seed)?;
            match &results.of(cell)?.outcome {
                Outcome::Done(figures) => Some(figures),
                Outcome::Measured(_) | Outcome::Failed { .. } => None,
            }
        };
        let pairs: Vec<_> = design.seeds.iter().filter_map(|&seed| run(&of, seed).zip(run(&over, seed))).collect();
        let ratio = |(_, says): &(&str, Says)| pairs.iter().filter_map(|(of, over)| Some(says(of)? / says(over)?)).collect();
        let others = setting.at.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, name)| name.clone());
        Ratios { at: others.collect(), runs: pairs.len(), of: COLUMNS.each_ref().map(ratio) }
    };
    settings(design, cells).filter(|cell| is(cell, &speed_up.over)).map(of_setting).collect()
}

fn told(ratios: &[f64]) -> String {
    match mean_and_deviation(ratios) {
        None => "-".to_owned(),
        Some((mean, None)) => format!("{mean:.2}"),
        Some((mean, Some(deviation))) => format!("{mean:.2} ± {deviation:.2}"),
    }
}
