//! What an experiment came to: a row for each setting, means and deviations over its seeds.

use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Figures, Outcome, Results, Row};
use comfy_table::{CellAlignment, Table, presets};

/// A column: its name, what it takes of a run, and how it is written.
struct Column {
    name: &'static str,
    of: fn(&Figures) -> Option<f64>,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Of 1, in percent with one digit.
    Percent,
    /// With so many digits.
    Digits(usize),
}

const COLUMNS: [Column; 9] = [
    Column { name: "success %", of: |f| f.success, unit: Unit::Percent },
    Column { name: "greedy %", of: |f| f.success_greedy, unit: Unit::Percent },
    Column { name: "reward", of: |f| f.reward_last, unit: Unit::Digits(3) },
    Column { name: "lag", of: |f| f.lag_mean, unit: Unit::Digits(2) },
    Column { name: "max lag", of: |f| f.lag_max.map(|lag| lag as f64), unit: Unit::Digits(0) },
    Column { name: "ESS", of: |f| f.ess_mean, unit: Unit::Digits(3) },
    Column { name: "least ESS", of: |f| f.ess_min, unit: Unit::Digits(3) },
    Column { name: "rollouts/s", of: |f| Some(f.trained_rollouts as f64 / f.training_s.max(1e-9)), unit: Unit::Digits(0) },
    Column { name: "training s", of: |f| Some(f.training_s), unit: Unit::Digits(1) },
];

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Terminal,
    Markdown,
}

/// A row a setting, in the order of the axes. A mean is followed by the sample deviation where there are two results or more.
pub fn table(design: &Design, cells: &[Cell], results: &Results, form: Form) -> Table {
    let mut table = Table::new();
    table.load_style(if form == Form::Markdown { presets::ASCII_MARKDOWN } else { presets::UTF8_HORIZONTAL_ONLY });
    table.set_header(header(design));
    for column in table.column_iter_mut().skip(design.axis.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (at, row) in rows(design, cells, results) {
        table.add_row(at.into_iter().chain(row));
    }
    table
}

/// The names of the table's columns: the axes, then the figures.
pub fn header(design: &Design) -> Vec<String> {
    let axes = design.axes().into_iter().map(|axis| axis.name);
    let columns = ["runs", "failed"].into_iter().chain(COLUMNS.iter().map(|column| column.name)).map(str::to_owned);
    axes.chain(columns).collect()
}

/// The settings, in the order of the axes, each with what stands behind it in the table.
pub fn rows(design: &Design, cells: &[Cell], results: &Results) -> Vec<(Vec<String>, Vec<String>)> {
    let row = |setting: &Cell| {
        let rows: Vec<&Row> =
            cells.iter().filter(|cell| cell.at == setting.at).filter_map(|cell| results.of(cell)).collect();
        let done: Vec<&Figures> = rows.iter().filter_map(|row| figures(row)).collect();
        let mut line = vec![rows.len().to_string(), (rows.len() - done.len()).to_string()];
        line.extend(COLUMNS.iter().map(|column| told(column, &done)));
        (setting.at.clone(), line)
    };
    cells.iter().filter(|cell| Some(&cell.seed) == design.seeds.first()).map(row).collect()
}

fn figures(row: &Row) -> Option<&Figures> {
    match &row.outcome {
        Outcome::Done(figures) => Some(figures),
        Outcome::Failed { .. } | Outcome::Measured(_) => None,
    }
}

/// `mean ± deviation` over the runs that have the number.
fn told(column: &Column, done: &[&Figures]) -> String {
    let values: Vec<f64> = done.iter().filter_map(|figures| (column.of)(figures)).collect();
    let (factor, digits) = match column.unit {
        Unit::Percent => (100.0, 1),
        Unit::Digits(digits) => (1.0, digits),
    };
    let Some((mean, deviation)) = mean_and_deviation(&values) else { return "-".to_owned() };
    let mean = format!("{:.digits$}", factor * mean);
    deviation.map_or_else(|| mean.clone(), |deviation| format!("{mean} ± {:.digits$}", factor * deviation))
}

/// Mean and sample deviation (n - 1): None of nothing, no deviation of one.
pub fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let n = values.len() as f64;
    let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / n)?;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    Some((mean, (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a deviation over n, one of a single run, and a failed run's numbers in a mean.
    #[test]
    fn means_have_deviations_where_there_are_two() {
        assert_eq!(mean_and_deviation(&[]), None);
        assert_eq!(mean_and_deviation(&[2.0]), Some((2.0, None)));
        assert_eq!(mean_and_deviation(&[1.0, 3.0, 5.0]), Some((3.0, Some(2.0))));
        let figures = |success| Figures { success, ..Figures::default() };
        let (a, b, none) = (figures(Some(0.5)), figures(Some(0.75)), figures(None));
        assert_eq!(told(&COLUMNS[0], &[&a, &none, &b]), "62.5 ± 17.7");
        assert_eq!((told(&COLUMNS[0], &[&a]), told(&COLUMNS[0], &[&none])), ("50.0".to_owned(), "-".to_owned()));
    }
}
