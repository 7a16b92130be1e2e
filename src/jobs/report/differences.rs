//! What sets runs apart, what matters first: what they learned, then how fast, then what may be why.

use crate::jobs::analyze::RunReport;
use crate::jobs::reached::{Reached, Trained, WINDOW, first, running};
use crate::jobs::report::runs::RunData;
use crate::jobs::report::series::{Columns, End, Series, short};
use crate::jobs::report::story::{Sentence, count, duration, number, percent, plain, sentence};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use toml::Value;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Differences {
    /// Those that matter first.
    pub figures: Vec<Difference>,
    pub settings: Vec<Setting>,
}

/// One figure of all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub what: String,
    pub told: Sentence,
    /// Of each run, as it is written; None where it has none.
    pub values: Vec<Option<String>>,
    /// How many times larger than what is no difference the largest one from the first run is: from 1 on it matters.
    pub size: Option<f64>,
}

/// A key of the specification that runs have other values of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    pub key: String,
    pub values: Vec<Option<String>>,
}

/// What a figure says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    Learning,
    Speed,
    Cause,
}

/// When two numbers of a figure are no longer the same.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Where they are apart by so much, and by twice the standard error of their difference.
    Apart(f64),
    /// Where one is larger by a tenth.
    Times,
}

/// A factor that is larger says nothing but that one of the two is about 0.
const MOST_TIMES: f64 = 1000.0;

/// A figure of a run, with the standard error of a mean or 0.
type Figure = Option<(f64, f64)>;

struct Measure {
    what: String,
    about: About,
    scale: Scale,
    write: fn(f64) -> String,
    of: Vec<Figure>,
}

impl Differences {
    /// Of two runs or more.
    pub(super) fn of(runs: &[RunData], reports: &[RunReport]) -> Differences {
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        let mut measures = measures(runs, reports);
        measures.retain(|measure| measure.of.iter().any(Option::is_some));
        measures.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(Ordering::Equal));
        let specs: Vec<&str> = runs.iter().map(|run| run.spec.as_str()).collect();
        Differences {
            figures: measures.iter().map(|measure| measure.difference(&names)).collect(),
            settings: settings(&specs),
        }
    }
}

/// What matters before what does not, by what it is about, the largest first.
fn order(measure: &Measure) -> (bool, About, f64) {
    let size = measure.size().unwrap_or(0.0);
    (size < 1.0, measure.about, -size)
}

fn measures(runs: &[RunData], reports: &[RunReport]) -> Vec<Measure> {
    use About::{Cause, Learning, Speed};
    use Scale::{Apart, Times};
    let columns = |name: &str| runs.iter().map(|run| Series::tenth(&run.steps, name, End::Last)).collect::<Vec<_>>();
    let report = |of: fn(&RunReport) -> Option<f64>| exact(reports.iter().map(of));
    let held_out = |of: fn(&RunData) -> Option<f64>| exact(runs.iter().map(of));
    let measure =
        |what: &str, about, scale, write: fn(f64) -> String, of| Measure { what: what.to_owned(), about, scale, write, of };
    let mut all = vec![
        measure("Mean reward of the last tenth of the steps", Learning, Apart(0.01), number, columns("reward")),
        measure("Success in the last tenth of the steps", Learning, Apart(0.01), percent, columns("success")),
        measure(
            "Held-out success after training, sampled",
            Learning,
            Apart(0.01),
            percent,
            held_out(|run| run.held_out.after.as_ref()?.sampled),
        ),
        measure(
            "Held-out success after training, greedy",
            Learning,
            Apart(0.01),
            percent,
            held_out(|run| run.held_out.after.as_ref()?.greedy),
        ),
        measure("Time of the run", Speed, Times, duration, held_out(|run| run.seconds)),
        measure("Rollouts sampled a second", Speed, Times, number, report(|r| r.time.sampled_rollouts_per_s)),
        measure("Trained tokens a second", Speed, Times, number, report(|r| r.time.trained_tokens_per_s)),
        measure("Mean lag of trained tokens, steps", Cause, Times, number, report(|r| r.lag.mean)),
        measure("Largest lag of a trained token, steps", Cause, Times, number, report(|r| Some(r.lag.max? as f64))),
        measure(
            "Effective sample size of ratios before truncation",
            Cause,
            Apart(0.01),
            percent,
            report(|r| r.off_policy.ess),
        ),
        measure(
            "KL of the behavior from the current policy, nats a token",
            Cause,
            Apart(0.001),
            number,
            report(|r| r.off_policy.k3),
        ),
        measure("Entropy in the last tenth of the steps, nats a token", Cause, Times, number, columns("entropy")),
        measure("Length in the last tenth of the steps, tokens", Cause, Times, number, columns("length")),
        measure(
            "Share of its time that the learner waited",
            Cause,
            Apart(0.02),
            percent,
            report(|r| r.time.balance.map(|b| b.waited_any + b.waited_forced + b.waited_log)),
        ),
        measure(
            "Share of their time that generators had nothing to do",
            Cause,
            Apart(0.02),
            percent,
            report(|r| r.time.balance?.idle),
        ),
        measure("Rollouts that were not trained", Cause, Apart(0.01), percent, report(not_trained)),
    ];
    all.extend(reached_by(runs));
    all
}

fn exact(of: impl Iterator<Item = Option<f64>>) -> Vec<Figure> {
    of.map(|x| x.filter(|x| x.is_finite()).map(|x| (x, 0.0))).collect()
}

fn not_trained(report: &RunReport) -> Option<f64> {
    let all: u64 = report.statuses.values().sum();
    let trained = report.statuses.get("trained").copied().unwrap_or(0);
    (all > 0).then(|| (all - trained) as f64 / all as f64)
}

/// How soon each run reached the reward that all of them reach: by time, and by rollouts. None where one had it from the start.
fn reached_by(runs: &[RunData]) -> Vec<Measure> {
    let curves: Vec<Vec<Trained>> = runs.iter().map(|run| trained(&run.steps)).collect();
    // As of an experiment's curves, which have about 40 points, of the longest run: of a short one a share would be a lucky step or two.
    let all = |of: &Vec<Trained>| of.iter().map(|point| point.rollouts).sum::<u64>();
    let width = curves.iter().map(all).max().unwrap_or(0) as f64 * WINDOW as f64 / 40.0;
    let window = |of: &Vec<Trained>| (width * of.len() as f64 / (all(of).max(1)) as f64).round().max(1.0) as usize;
    let means: Vec<Vec<f64>> =
        curves.iter().map(|of| running(of, window(of)).into_iter().map(|(_, mean)| mean).collect()).collect();
    let most = |of: &Vec<f64>| of.iter().copied().reduce(f64::max);
    let Some(mosts) = means.iter().map(most).collect::<Option<Vec<_>>>() else { return Vec::new() };
    let target = (mosts.into_iter().fold(f64::INFINITY, f64::min) * 100.0).floor() / 100.0;
    if means.iter().any(|of| of[0] >= target) {
        return Vec::new();
    }
    let there: Vec<Option<Reached>> = curves.iter().map(|of| first(of, window(of), target)).collect();
    let of = |figure: fn(&Reached) -> Option<f64>| exact(there.iter().map(|there| there.as_ref().and_then(figure)));
    let measure = |what: String, write: fn(f64) -> String, of| Measure {
        what,
        about: About::Learning,
        scale: Scale::Times,
        write,
        of,
    };
    let whole = |x: f64| count(x.round() as u64);
    vec![
        measure(format!("Time to a mean reward of {target}"), duration, of(|there| there.seconds)),
        measure(format!("Rollouts to a mean reward of {target}"), whole, of(|there| Some(there.rollouts))),
    ]
}

/// Points that have a reward.
fn trained(columns: &Columns) -> Vec<Trained> {
    let column = |name: &str| columns.of.get(name).map_or(&[][..], Vec::as_slice);
    let (reward, seconds, until) = (column("reward"), column("seconds"), column("rollouts"));
    let mut before = 0.0;
    let of = |i: usize| {
        let until = until.get(i).copied().flatten()?;
        let rollouts = (until - before).max(0.0) as u64;
        before = until;
        let seconds = seconds.get(i).copied().flatten();
        reward[i].map(|reward| Trained { seconds, until, rollouts, reward })
    };
    (0..reward.len()).filter_map(of).collect()
}

impl Measure {
    /// The largest difference from the first run; None where there are no two to compare.
    fn size(&self) -> Option<f64> {
        let (first, others) = self.of.split_first()?;
        let (a, error_a) = (*first)?;
        let size = |(b, error_b): (f64, f64)| match self.scale {
            Scale::Apart(least) => (a - b).abs() / least.max(2.0 * error_a.hypot(error_b)),
            Scale::Times if a == b => 0.0,
            // One is 0: that is a difference, however small the other is.
            Scale::Times if a * b <= 0.0 => 10.0,
            Scale::Times => (a / b).ln().abs() / 1.1f64.ln(),
        };
        others.iter().flatten().map(|b| size(*b)).reduce(f64::max)
    }

    fn difference(&self, names: &[&str]) -> Difference {
        let write = |figure: &Figure| figure.map(|(x, _)| (self.write)(x));
        let values: Vec<Option<String>> = self.of.iter().map(write).collect();
        let mut text = plain(&self.what) + ":";
        let mut figures = Vec::new();
        for (i, (name, value)) in names.iter().zip(&values).enumerate() {
            let comma = if i > 0 { "," } else { "" };
            text += &format!("{comma} {{}} in {}", plain(name));
            figures.push(value.clone().unwrap_or_else(|| "-".to_owned()));
        }
        if let (Scale::Times, [Some((a, _)), Some((b, _))]) = (self.scale, &self.of[..])
            && a * b > 0.0
            && (a / b).max(b / a) < MOST_TIMES
        {
            text += " ({} times)";
            figures.push(number((a / b).max(b / a)));
        }
        text.push('.');
        let size = self.size().and_then(short);
        Difference { what: self.what.clone(), told: sentence(&text, &figures), values, size }
    }
}

/// Keys of which not all runs have the same value, but for where they were written to.
fn settings(specs: &[&str]) -> Vec<Setting> {
    let flat: Vec<BTreeMap<String, String>> = specs
        .iter()
        .map(|text| {
            let mut keys = BTreeMap::new();
            text.parse::<toml::Table>().into_iter().for_each(|table| flatten("", &Value::Table(table), &mut keys));
            keys.remove("output");
            keys
        })
        .collect();
    let mut keys: Vec<&String> = flat.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let setting = |key: &String| {
        let values: Vec<Option<String>> = flat.iter().map(|keys| keys.get(key).cloned()).collect();
        values.iter().any(|value| *value != values[0]).then(|| Setting { key: key.clone(), values })
    };
    keys.into_iter().filter_map(setting).collect()
}

fn flatten(name: &str, value: &Value, keys: &mut BTreeMap<String, String>) {
    let inner = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Table(table) => table.iter().for_each(|(key, value)| flatten(&inner(key), value, keys)),
        Value::Array(all) if all.iter().any(Value::is_table) => {
            all.iter().enumerate().for_each(|(i, value)| flatten(&inner(&i.to_string()), value, keys));
        }
        Value::String(text) => drop(keys.insert(name.to_owned(), text.clone())),
        other => drop(keys.insert(name.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(scale: Scale, of: &[f64], error: f64) -> Measure {
        let of = of.iter().map(|x| Some((*x, error))).collect();
        Measure { what: "x".to_owned(), about: About::Speed, scale, write: number, of }
    }

    /// Catches noise that is a difference, a small difference of a small number that is none, and 0 against something.
    #[test]
    fn a_difference_is_as_large_as_it_is_sure() {
        let size = |scale, of: &[f64], error| measure(scale, of, error).size().unwrap();
        assert!((size(Scale::Apart(0.01), &[0.5, 0.53], 0.0) - 3.0).abs() < 1e-9);
        assert!((size(Scale::Apart(0.01), &[0.5, 0.53], 0.03) - 0.03 / (0.06 * 2f64.sqrt())).abs() < 1e-9);
        assert!((size(Scale::Times, &[10.0, 11.0], 0.0) - 1.0).abs() < 1e-9);
        assert!((size(Scale::Times, &[11.0, 10.0, 11.0], 0.0) - 1.0).abs() < 1e-9);
        assert_eq!((size(Scale::Times, &[0.0, 0.0], 0.0), size(Scale::Times, &[0.0, 1e-3], 0.0)), (0.0, 10.0));
        let lacking = Measure { of: vec![Some((1.0, 0.0)), None], ..measure(Scale::Times, &[], 0.0) };
        assert_eq!(lacking.size(), None);
    }

    #[test]
    fn what_was_learned_comes_first_where_it_matters() {
        let of = |about, b: f64| Measure { about, ..measure(Scale::Times, &[1.0, b], 0.0) };
        let mut all = [of(About::Cause, 9.0), of(About::Learning, 1.01), of(About::Speed, 3.0), of(About::Learning, 2.0)];
        all.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap());
        let found = all.map(|measure| (measure.about, measure.of[1].unwrap().0));
        assert_eq!(found, [(About::Learning, 2.0), (About::Speed, 3.0), (About::Cause, 9.0), (About::Learning, 1.01)]);
    }

    #[test]
    fn a_difference_is_told_with_its_factor() {
        let told = measure(Scale::Times, &[2.0, 4.2], 0.0).difference(&["a", "b{}"]).told;
        assert_eq!(told, sentence("x: {} in a, {} in b{ } ({} times).", &["2.00", "4.20", "2.10"].map(str::to_owned)));
    }

    /// Catches a key that only one run has, a table that hides its keys, and the folder that always differs.
    #[test]
    fn settings_that_differ_are_named() {
        let a = "output='x'\nseed=1\n[learn]\nlr=0.1\n[learn.loss.ppo]\nclip=0.2\n[[task]]\nkind='a'\n";
        let b = "output='y'\nseed=1\n[learn]\nlr=0.2\n[[task]]\nkind='b'\n";
        let found = settings(&[a, b]);
        let told = |s: &Setting| (s.key.clone(), s.values.iter().map(|v| v.clone().unwrap_or_default()).collect::<Vec<_>>());
        let right = [("learn.loss.ppo.clip", ["0.2", ""]), ("learn.lr", ["0.1", "0.2"]), ("task.0.kind", ["a", "b"])];
        assert_eq!(
            found.iter().map(told).collect::<Vec<_>>(),
            right.map(|(key, values)| (key.to_owned(), values.map(str::to_owned).to_vec()))
        );
    }
}
