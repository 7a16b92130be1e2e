//! KL by stage and lag, a column a behavior.

use super::measure::Divergence;
use super::ways::Behavior;
use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::results::{Outcome, Results};
use crate::jobs::experiment::table::mean_and_deviation;
use crate::jobs::lines::Lines;

/// A row for each stage and lag. Of one seed a mean is followed by its standard error over completions, of several by the sample deviation
/// over them; both in thousandths of a nat.
pub fn lines(design: &Design, cells: &[Cell], results: &Results) -> Lines {
    let own = design.axis.iter().map(|axis| axis.name.as_str());
    let columns = ["after step", "lag", "in flight: mean lag", "keys kept", "keys recomputed", "conventional"];
    let header = own.chain(columns).map(str::to_owned).collect();
    let mut lines = Lines { header, rows: Vec::new(), words: design.axis.len() };
    let is = |cell: &Cell, at: &[String], behavior: Behavior| {
        cell.at.split_last().is_some_and(|(last, rest)| rest == at && last == behavior.name())
    };
    let mut told: Vec<&[String]> = Vec::new();
    for at in cells.iter().filter_map(|cell| cell.at.split_last().map(|(_, at)| at)) {
        if told.contains(&at) {
            continue;
        }
        told.push(at);
        let of = |behavior| -> Vec<&Divergence> {
            let cells = cells.iter().filter(|cell| is(cell, at, behavior));
            cells.filter_map(|cell| measured(results, cell)).collect()
        };
        let [keep, recompute, conventional] = Behavior::ALL.map(of);
        let in_flight = if keep.is_empty() { &recompute } else { &keep };
        let lags: Vec<f64> = in_flight.iter().map(|one| one.lag_mean).collect();
        let lag = mean_and_deviation(&lags).map_or_else(|| "-".to_owned(), |(lag, _)| format!("{lag:.1}"));
        let mut line = at.to_vec();
        line.push(lag);
        line.extend([keep, recompute, conventional].map(|all| shown(&all)));
        lines.rows.push(line);
    }
    lines
}

/// What a cell came to.
pub fn measured<'a>(results: &'a Results, cell: &Cell) -> Option<&'a Divergence> {
    match &results.of(cell)?.outcome {
        Outcome::Measured(divergence) => Some(divergence),
        Outcome::Done(_) | Outcome::Failed { .. } => None,
    }
}

fn shown(all: &[&Divergence]) -> String {
    let kls: Vec<f64> = all.iter().map(|one| one.kl).collect();
    let Some((mean, deviation)) = mean_and_deviation(&kls) else { return "-".to_owned() };
    in_thousandths(mean, deviation.or_else(|| all.first()?.standard_error))
}

/// Three digits of the mean, and as many places of what follows it.
fn in_thousandths(mean: f64, spread: Option<f64>) -> String {
    let (mean, spread) = (1e3 * mean, spread.map(|spread| 1e3 * spread));
    let whole = if mean > 0.0 { mean.log10().floor() } else { 0.0 };
    let places = (2.0 - whole).clamp(0.0, 9.0) as usize;
    let mean = format!("{mean:.places$}");
    spread.map_or_else(|| mean.clone(), |spread| format!("{mean} ± {spread:.places$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a standard error that stands where seeds differ, and digits that are lost in small numbers.
    #[test]
    fn means_are_told_with_their_spread() {
        let of = |kl, standard_error| Divergence { kl, standard_error, ..Divergence::default() };
        let (a, b) = (of(0.001, Some(0.000_12)), of(0.003, Some(9.0)));
        assert_eq!(shown(&[]), "-");
        assert_eq!(shown(&[&a]), "1.00 ± 0.12");
        assert_eq!(shown(&[&a, &b]), "2.00 ± 1.41");
        assert_eq!(in_thousandths(0.123_4, Some(0.004)), "123 ± 4");
        assert_eq!((in_thousandths(1.234e-6, None), in_thousandths(0.0, None)), ("0.00123".to_owned(), "0.00".to_owned()));
    }
}
