//! A KL experiment as a page shows it: how far behaviors are from the current policy, by stage and lag, and by place in the completion.

use crate::jobs::experiment::design::{Cell, Design};
use crate::jobs::experiment::kl::measure::Divergence;
use crate::jobs::experiment::kl::table::measured;
use crate::jobs::experiment::kl::ways::Behavior;
use crate::jobs::experiment::results::Results;
use crate::jobs::experiment::table::{mean_and_deviation, settings};
use crate::jobs::report::series::short;
use serde::Serialize;

/// One behavior at a stage and a lag: means over seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KlPoint {
    /// The values of the experiment's own axes, and the stage.
    pub of: String,
    pub after: String,
    /// Steps that the current policy is ahead of the first token's weights, and mean lag of the tokens.
    pub lag: f64,
    pub mean_lag: Option<f64>,
    pub behavior: &'static str,
    /// KL(behavior || current), nats a token: the mean, and its standard error over completions or, of several seeds, their deviation.
    pub kl: Option<f64>,
    pub spread: Option<f64>,
    /// Of equal parts of the longest completion.
    pub by_part: Vec<Option<f64>>,
    pub seeds: usize,
}

/// What was measured, in the order of the cells; nothing of an experiment of runs.
pub fn divergences(design: &Design, cells: &[Cell], results: &Results) -> Vec<KlPoint> {
    if !design.kl.is_on() {
        return Vec::new();
    }
    let of = |setting: &Cell| {
        let at = &setting.at[..];
        let cells = cells.iter().filter(|cell| cell.at == at);
        let found: Vec<&Divergence> = cells.filter_map(|cell| measured(results, cell)).collect();
        let [own @ .., after, lag, behavior] = at else { return None };
        let behavior = Behavior::ALL.into_iter().find(|one| one.name() == behavior)?;
        let place = KlPoint { of: own.join(" · "), after: after.clone(), lag: lag.parse().ok()?, ..KlPoint::default() };
        point(place, behavior, &found)
    };
    settings(design, cells).filter_map(of).collect()
}

/// None where nothing is measured yet.
fn point(place: KlPoint, behavior: Behavior, found: &[&Divergence]) -> Option<KlPoint> {
    let mean = |of: &dyn Fn(&Divergence) -> Option<f64>| {
        mean_and_deviation(&found.iter().filter_map(|one| of(one)).collect::<Vec<_>>())
    };
    let (kl, deviation) = mean(&|one| Some(one.kl))?;
    let parts = found.iter().map(|one| one.kl_by_part.len()).max().unwrap_or(0);
    Some(KlPoint {
        behavior: behavior.name(),
        mean_lag: mean(&|one| Some(one.lag_mean)).and_then(|(lag, _)| short(lag)),
        kl: short(kl),
        spread: deviation.or(found.first()?.standard_error).and_then(short),
        by_part: (0..parts).map(|i| mean(&|one| *one.kl_by_part.get(i)?).and_then(|(kl, _)| short(kl))).collect(),
        seeds: found.len(),
        ..place
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a standard error where seeds differ, a part that only one seed has counted as two, and parts of unlike numbers.
    #[test]
    fn a_point_is_the_mean_of_its_seeds() {
        let of = |kl: f64, parts: &[Option<f64>]| Divergence {
            kl,
            standard_error: Some(9.0),
            lag_mean: 2.0,
            kl_by_part: parts.to_vec(),
            ..Divergence::default()
        };
        let (a, b) = (of(1.0, &[Some(1.0), Some(2.0)]), of(3.0, &[Some(3.0), None, Some(5.0)]));
        let point = |found: &[&Divergence]| point(KlPoint::default(), Behavior::Keep, found);
        let two = point(&[&a, &b]).unwrap();
        assert_eq!((two.kl, two.mean_lag, two.seeds, two.behavior), (Some(2.0), Some(2.0), 2, "keep"));
        assert!((two.spread.unwrap() - 2f64.sqrt()).abs() < 1e-4);
        assert_eq!(two.by_part, [Some(2.0), Some(2.0), Some(5.0)]);
        assert_eq!(point(&[&a]).unwrap().spread, Some(9.0));
        assert_eq!(point(&[]), None);
    }
}
