//! What an experiment came to: a row for each setting, means and deviations over its seeds.

use crate::jobs::emulation::{Emulation, Throughput};
use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::reached::reached;
use crate::jobs::experiment::results::{Figures, Outcome, Results, Row};
use crate::jobs::lines::Lines;

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

/// Where accelerators are emulated: what was measured beside what a plan says, and what coordination added to a decode step and to the
/// training of a step.
const EMULATED: [Column; 12] = [
    Column { name: "tokens/flash", of: |f| emulated(f, |e| e.measured.tokens), unit: Unit::Digits(3) },
    Column { name: "formulas", of: |f| f.emulation.as_ref()?.formula.map(|of| of.tokens), unit: Unit::Digits(3) },
    Column { name: "simulation", of: |f| f.emulation.as_ref()?.simulated.map(|of| of.tokens), unit: Unit::Digits(3) },
    Column { name: "of formulas %", of: |f| share(f, |e| e.formula), unit: Unit::Percent },
    Column { name: "of simulation %", of: |f| share(f, |e| e.simulated), unit: Unit::Percent },
    Column { name: "max lag", of: |f| f.lag_max.map(|lag| lag as f64), unit: Unit::Digits(0) },
    Column { name: "bound", of: |f| Some(f.lag_bound as f64), unit: Unit::Digits(0) },
    Column { name: "lag", of: |f| emulated(f, |e| e.measured.mean_lag), unit: Unit::Digits(1) },
    Column { name: "decode ms", of: |f| emulated(f, |e| 1e3 * e.decode_step.planned_s), unit: Unit::Digits(0) },
    Column { name: "added ms", of: |f| emulated(f, |e| 1e3 * e.decode_step.added_s), unit: Unit::Digits(1) },
    Column { name: "step ms", of: |f| emulated(f, |e| 1e3 * e.training_step.planned_s), unit: Unit::Digits(0) },
    Column { name: "processors", of: |f| emulated(f, |e| e.processor), unit: Unit::Digits(2) },
];

fn emulated(figures: &Figures, of: fn(&Emulation) -> f64) -> Option<f64> {
    figures.emulation.as_deref().map(of)
}

/// What is measured over what is said.
fn share(figures: &Figures, said: fn(&Emulation) -> Option<Throughput>) -> Option<f64> {
    let emulation = figures.emulation.as_deref()?;
    said(emulation).map(|said| emulation.measured.tokens / said.tokens)
}

/// A row a setting, in the order of the axes. A mean is followed by the sample deviation where there are two results or more. For each
/// reward that a design has to reach there are three more columns: how many runs reached it, and when those did.
pub fn lines(design: &Design, cells: &[Cell], results: &Results) -> Lines {
    let rows = settings(design, cells).map(|setting| {
        let rows: Vec<&Row> =
            cells.iter().filter(|cell| cell.at == setting.at).filter_map(|cell| results.of(cell)).collect();
        let done: Vec<&Figures> = rows.iter().filter_map(|row| figures(row)).collect();
        let mut line = setting.at.clone();
        line.extend([rows.len().to_string(), (rows.len() - done.len()).to_string()]);
        line.extend(columns(cells, results).iter().map(|column| told(column, &done)));
        line.extend(design.reach.iter().flat_map(|reward| when(&rows, *reward)));
        line
    });
    Lines { header: header(design, cells, results), rows: rows.collect(), words: design.axes().len() }
}

/// One cell of each setting, in the order of the axes.
pub fn settings<'a>(design: &Design, cells: &'a [Cell]) -> impl Iterator<Item = &'a Cell> + use<'a> {
    let first = design.seeds.first().copied();
    cells.iter().filter(move |cell| Some(cell.seed) == first)
}

/// The columns of figures: those of emulated accelerators where a run has some.
fn columns(cells: &[Cell], results: &Results) -> &'static [Column] {
    let emulates = |cell: &Cell| results.of(cell).and_then(figures).is_some_and(|figures| figures.emulation.is_some());
    if cells.iter().any(emulates) { &EMULATED } else { &COLUMNS }
}

/// The names of the table's columns: the axes, then the figures.
fn header(design: &Design, cells: &[Cell], results: &Results) -> Vec<String> {
    let axes = design.axes().into_iter().map(|axis| axis.name);
    let names = ["runs", "failed"].into_iter().chain(columns(cells, results).iter().map(|column| column.name));
    let reach = design.reach.iter().flat_map(|r| [format!("reached {r}"), format!("s to {r}"), format!("rollouts to {r}")]);
    axes.chain(names.map(str::to_owned)).chain(reach).collect()
}

fn figures(row: &Row) -> Option<&Figures> {
    match &row.outcome {
        Outcome::Done(figures) => Some(figures),
        Outcome::Failed { .. } | Outcome::Measured(_) => None,
    }
}

/// How many runs reached a reward, the seconds that those took, and the rollouts. A run that failed afterwards reached it all the same.
fn when(rows: &[&Row], reward: f64) -> [String; 3] {
    let there: Vec<_> = rows.iter().filter_map(|row| reached(row, reward)).collect();
    let seconds: Vec<f64> = there.iter().filter_map(|reached| reached.seconds).collect();
    let rollouts: Vec<f64> = there.iter().map(|reached| reached.rollouts).collect();
    let of = format!("{} of {}", there.len(), rows.len());
    [of, written(&seconds, Unit::Digits(1)), written(&rollouts, Unit::Digits(0))]
}

/// `mean ± deviation` over the runs that have the number.
fn told(column: &Column, done: &[&Figures]) -> String {
    let values: Vec<f64> = done.iter().filter_map(|figures| (column.of)(figures)).collect();
    written(&values, column.unit)
}

fn written(values: &[f64], unit: Unit) -> String {
    let (factor, digits) = match unit {
        Unit::Percent => (100.0, 1),
        Unit::Digits(digits) => (1.0, digits),
    };
    let Some((mean, deviation)) = mean_and_deviation(values) else { return "-".to_owned() };
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
    use crate::jobs::experiment::reached::tests::row;
    use crate::jobs::lines::Form;

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

    /// A run whose reward rises by 0.1 a second from `start`, by 10 rollouts each, and that has its first step after 2 s.
    fn rising(start: f64) -> Row {
        let points: Vec<_> = (0..5).map(|i| (i as f64, 10 * (i + 1), Some(start + 0.1 * i as f64))).collect();
        row(Some(2.0), &points)
    }

    /// Running means of the first: 0.2 at 4 s and 30 rollouts, 0.3 a second later, 0.4; of the second 0.1 less; of the third 0.6 less.
    #[test]
    fn times_to_a_reward_are_of_those_that_reach_it() {
        let failed = Outcome::Failed { exit: 1, error: String::new() };
        let rows = [rising(0.1), Row { outcome: failed, ..rising(0.0) }, rising(-0.5)];
        let rows: Vec<&Row> = rows.iter().collect();
        assert_eq!(when(&rows, 0.25), ["2 of 3", "5.0 ± 0.7", "40 ± 7"]);
        assert_eq!(when(&rows, 0.35), ["1 of 3", "5.5", "45"]);
        assert_eq!(when(&rows, 0.5), ["0 of 3", "-", "-"]);
    }

    /// Catches columns that stand under the wrong heads.
    #[test]
    fn a_reward_to_reach_has_columns() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(&folder.path().join("x.jsonl")).unwrap();
        results.keep(rising(0.1)).unwrap();
        let cell = Cell { at: Vec::new(), added: Vec::new(), seed: 1, sets: Vec::new(), settings: String::new() };
        let design = Design { seeds: vec![1], reach: vec![0.35], ..Design::default() };
        let text = lines(&design, &[cell], &results).framed(Form::Markdown).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        let last = |line: usize| lines[line][lines[line].len() - 4..lines[line].len() - 1].to_vec();
        assert_eq!(last(0), ["reached 0.35", "s to 0.35", "rollouts to 0.35"]);
        assert_eq!(last(2), ["1 of 1", "5.5", "45"]);
    }
}
