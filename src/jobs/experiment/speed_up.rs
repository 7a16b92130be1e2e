//! How much faster one value of an axis is than another: measured, and where accelerators are emulated, as a plan has it.

use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Figures, Outcome, Results};
use crate::jobs::experiment::table::{Form, framed, mean_and_deviation};
use comfy_table::Table;

/// Throughput of a run, by who says so.
type Says = fn(&Figures) -> Option<f64>;

/// Columns: what is measured, then what the closed forms and the simulation say.
const COLUMNS: [(&str, Says); 3] = [
    ("speed-up", |f| f.emulation.as_ref().map(|of| of.measured.tokens).or(Some(f.tokens_a_second()))),
    ("formulas", |f| f.emulation.as_ref()?.formula.map(|of| of.tokens)),
    ("simulation", |f| f.emulation.as_ref()?.simulated.map(|of| of.tokens)),
];

/// A row for each setting of the other axes, in their order: means and sample deviations over seeds of which both runs are done.
pub fn table(design: &Design, cells: &[Cell], results: &Results, form: Form) -> Table {
    let speed_up = &design.speed_up;
    let place = design.axis.iter().position(|axis| axis.name == speed_up.axis).unwrap_or(design.axis.len());
    let names = design.axis.iter().map(|axis| axis.name.clone());
    let others = names.enumerate().filter(|(i, _)| *i != place).map(|(_, name)| name);
    let heads = others.chain(["runs".to_owned()]).chain(COLUMNS.iter().map(|(name, _)| (*name).to_owned()));
    let mut table = framed(heads.collect(), design.axis.len().saturating_sub(1), form);
    let is = |cell: &Cell, value: &str| cell.at.get(place).is_some_and(|at| at == value);
    let first = |cell: &&Cell| Some(&cell.seed) == design.seeds.first() && is(cell, &speed_up.over);
    for setting in cells.iter().filter(first) {
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
        let mut line: Vec<String> =
            setting.at.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, name)| name.clone()).collect();
        line.push(pairs.len().to_string());
        line.extend(COLUMNS.iter().map(|(_, says)| {
            let ratios: Vec<f64> = pairs.iter().filter_map(|(of, over)| Some(says(of)? / says(over)?)).collect();
            told(&ratios)
        }));
        table.add_row(line);
    }
    table
}

fn told(ratios: &[f64]) -> String {
    match mean_and_deviation(ratios) {
        None => "-".to_owned(),
        Some((mean, None)) => format!("{mean:.2}"),
        Some((mean, Some(deviation))) => format!("{mean:.2} ± {deviation:.2}"),
    }
}
