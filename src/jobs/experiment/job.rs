//! `experiment`: runs the cells that have no result yet, and prints what all of them came to.

use crate::durable::check_place;
use crate::error::{Error, Result};
use crate::jobs::emulation::Throughput;
use crate::jobs::experiment::cell::run;
use crate::jobs::experiment::design::{Cell, Design, SpeedUp};
use crate::jobs::experiment::results::{Figures, Outcome, Results, Row};
use crate::jobs::experiment::table::lines;
use crate::jobs::experiment::{kl, page, speed_up};
use crate::jobs::lines::Form;
use crate::jobs::{print, say, signals};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to run of which experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The experiment's file, or the name of one in `data/experiments/`.
    pub experiment: PathBuf,
    /// In place of the experiment's seeds; empty: those.
    pub seeds: Vec<u64>,
    /// Only cells with these values, `AXIS=VALUE`.
    pub only: Vec<String>,
    /// Axes beside the experiment's own, `KEY=VALUE` each value.
    pub sets: Vec<String>,
    /// Where the runs go; None: `runs/experiments/NAME`.
    pub output: Option<PathBuf>,
    /// Where the results are kept; None: beside the experiment's file.
    pub results: Option<PathBuf>,
    pub work: Work,
    pub form: Form,
    /// Where a page with its table and curves goes.
    pub html: Option<PathBuf>,
}

/// What is done about cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs those without a result.
    Missing,
    /// Runs all of them anew.
    Again,
    /// Runs none: what is there is printed.
    Nothing,
}

/// Of a folder, bytes, as file systems have it.
const LONGEST_NAME: usize = 255;
/// Where experiments are looked for by name.
const SHELF: &str = "data/experiments";

/// Runs an experiment's cells one after the other, keeps what each came to at once, and prints the table of all.
///
/// # Errors
/// An experiment that is not as it must be, a disk that refuses, a signal (results so far are kept). A run that fails is a result.
pub fn experiment(options: &Options) -> Result<()> {
    let path = find(&options.experiment)?;
    let mut design = Design::load(&path)?;
    if !options.seeds.is_empty() {
        design.seeds.clone_from(&options.seeds);
        design.check()?;
    }
    design.vary(&options.sets)?;
    let cells = chosen(&design, design.all()?, &options.only)?;
    apart(&design, &cells)?;
    // Results are whole at every moment: who only looks at them may.
    let _alone = (options.work != Work::Nothing).then(|| alone(&path)).transpose()?;
    options.html.as_deref().map_or(Ok(()), check_place)?;
    let mut results = Results::open(&options.results.clone().unwrap_or_else(|| path.with_extension("jsonl")))?;
    let open: Vec<&Cell> = match options.work {
        Work::Missing => cells.iter().filter(|cell| results.of(cell).is_none()).collect(),
        Work::Again => cells.iter().collect(),
        Work::Nothing => Vec::new(),
    };
    if !design.about.is_empty() {
        say(format_args!("about     {}", design.about.trim()));
    }
    match options.work {
        Work::Nothing => {
            let with = cells.iter().filter(|cell| results.of(cell).is_some()).count();
            say(format_args!("cells     {}, of which {with} have a result in {}", cells.len(), results.path().display()));
        }
        Work::Missing | Work::Again => say(format_args!("cells     {} of {} to run", open.len(), cells.len())),
    }
    let stem = path.file_stem().unwrap_or_default();
    let runs = options.output.clone().unwrap_or_else(|| Path::new("runs/experiments").join(stem));
    if !open.is_empty() {
        results.make_place()?;
        let interrupt = signals::listen("ending the cell, which has no result then", "; results so far are kept")?;
        let started = Instant::now();
        for (done, cell) in open.iter().enumerate() {
            let folder = runs.join(folder_name(&design, cell));
            say(format_args!("cell      {} of {}: {} in {}", done + 1, open.len(), design.told(cell), folder.display()));
            let row = match design.kl.is_on() {
                true => kl::cell::run(&design, cell, &folder, &interrupt)?,
                false => run(&design, cell, &folder, &interrupt)?,
            };
            let left = started.elapsed().as_secs_f64() / (done + 1) as f64 * (open.len() - done - 1) as f64 / 60.0;
            say(format_args!("          {}; about {left:.0} min left", told(&row)));
            results.keep(row)?;
        }
    }
    if let Some(file) = &options.html {
        page::write(&stem.to_string_lossy(), &design, &cells, &results, file)?;
    }
    let lines = match design.kl.is_on() {
        true => kl::table::lines(&design, &cells, &results),
        false => lines(&design, &cells, &results),
    };
    print(lines.framed(options.form))?;
    if design.speed_up == SpeedUp::default() {
        return Ok(());
    }
    print(format_args!("\n{}", speed_up::lines(&design, &cells, &results).framed(options.form)))
}

/// Holds an experiment's file as long as its cells run: two at once would take each other's results, and each other's runs.
///
/// # Errors
/// Another process has it.
fn alone(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Error::file(path, "another process runs this experiment; wait for it, or stop it"))
        }
        // A file system without locks: who runs two there must see to it.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Refuses values whose names make the same folder. Measurements of one run share it.
fn apart(design: &Design, cells: &[Cell]) -> Result<()> {
    let mut places = BTreeMap::new();
    for cell in cells {
        if folder_name(design, cell).iter().any(|part| part.len() > LONGEST_NAME) {
            let why =
                format!("its folder's name would be longer than {LONGEST_NAME} bytes: shorter names of axes and values");
            return Err(Error::config("axis", design.told(cell), why));
        }
        let of_another = |other: &&Cell| !design.kl.is_on() || run_of(design, other) != run_of(design, cell);
        if let Some(other) = places.insert(folder_name(design, cell), cell).filter(of_another) {
            let why = format!(
                "its folder would be that of {}: names may differ in letters, digits, and . _ -",
                design.told(other)
            );
            return Err(Error::config("axis.value", design.told(cell), why));
        }
    }
    Ok(())
}

/// The names on the design's own axes, and the seed.
fn run_of<'a>(design: &Design, cell: &'a Cell) -> (&'a [String], u64) {
    (&cell.at[..design.axis.len()], cell.seed)
}

/// A path, or a name on the shelf.
fn find(experiment: &Path) -> Result<PathBuf> {
    if experiment.is_file() {
        return Ok(experiment.to_owned());
    }
    let named = Path::new(SHELF).join(experiment).with_extension("toml");
    if named.is_file() {
        return Ok(named);
    }
    let names = crate::durable::names(Path::new(SHELF)).unwrap_or_default();
    let mut names: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(".toml")).collect();
    names.sort_unstable();
    let there = if names.is_empty() { "holds none".to_owned() } else { format!("holds {}", names.join(", ")) };
    let reason = format!("no such file, and no experiment of that name: {SHELF} {there}");
    Err(Error::config("EXPERIMENT", experiment.display(), reason))
}

/// The cells that have all the values asked for.
fn chosen(design: &Design, cells: Vec<Cell>, only: &[String]) -> Result<Vec<Cell>> {
    let axes = design.axes();
    let mut wanted: Vec<(usize, Vec<&str>)> = Vec::new();
    for text in only {
        let place = text.split_once('=').and_then(|(name, value)| {
            let axis = axes.iter().position(|axis| axis.name == name)?;
            axes[axis].value.iter().any(|known| known.name == value).then_some((axis, value))
        });
        let Some((axis, value)) = place else {
            let known = axes.iter().map(|axis| {
                let values: Vec<&str> = axis.value.iter().map(|value| value.name.as_str()).collect();
                format!("{}={}", axis.name, values.join("|"))
            });
            return Err(Error::config("--only", text, format!("AXIS=VALUE, of {}", known.collect::<Vec<_>>().join(", "))));
        };
        match wanted.iter_mut().find(|(of, _)| *of == axis) {
            Some((_, values)) => values.push(value),
            None => wanted.push((axis, vec![value])),
        }
    }
    let is = |cell: &Cell| wanted.iter().all(|(axis, values)| values.contains(&cell.at[*axis].as_str()));
    Ok(cells.into_iter().filter(is).collect())
}

/// `loss=ppo,max_lag=8/seed-1`, without what a folder's name cannot have.
fn folder_name(design: &Design, cell: &Cell) -> PathBuf {
    let plain = |text: &str| text.replace(|c: char| !(c.is_alphanumeric() || "._-".contains(c)), "_");
    let at = design.axis.iter().zip(&cell.at).map(|(axis, value)| format!("{}={}", plain(&axis.name), plain(value)));
    Path::new(&at.collect::<Vec<_>>().join(",")).join(format!("seed-{}", cell.seed))
}

/// What a cell came to, in a line.
fn told(row: &Row) -> String {
    match &row.outcome {
        Outcome::Failed { exit, error } => format!("failed with exit code {exit} after {:.0} s: {error}", row.seconds),
        Outcome::Done(Figures { emulation: Some(of), .. }) => {
            let share =
                |formula: Throughput| format!(", {:.1} % of the formulas'", 100.0 * of.measured.tokens / formula.tokens);
            let said = of.formula.map_or_else(String::new, share);
            format!("{:.3} tokens a flash{said}, {:.0} s", of.measured.tokens, row.seconds)
        }
        Outcome::Done(figures) => {
            let percent = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", 100.0 * rate));
            let lag = figures.lag_mean.map_or_else(|| "-".to_owned(), |lag| format!("{lag:.2}"));
            let (success, greedy) = (percent(figures.success), percent(figures.success_greedy));
            format!("success {success} sampled, {greedy} greedy, mean lag {lag}, {:.0} s", row.seconds)
        }
        Outcome::Measured(divergence) => {
            let error = divergence.standard_error.map_or_else(String::new, |error| format!(" ± {error:.1e}"));
            let (kl, tokens) = (divergence.kl, divergence.tokens);
            format!("KL {kl:.2e}{error} nats over {tokens} tokens, {:.0} s", row.seconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::experiment::design::{Axis, Value};

    fn design() -> Design {
        let value = |name: &str| Value { name: name.to_owned(), set: Vec::new() };
        let axis =
            |name: &str, values: &[&str]| Axis { name: name.to_owned(), value: values.iter().map(|v| value(v)).collect() };
        Design { seeds: vec![1], axis: vec![axis("loss", &["a/b", "c"]), axis("lag", &["0", "8"])], ..Design::default() }
    }

    fn cell(at: [&str; 2]) -> Cell {
        let at = at.map(str::to_owned).into();
        Cell { at, added: Vec::new(), seed: 1, sets: Vec::new(), settings: String::new() }
    }

    /// Values of one axis are alternatives, axes narrow each other.
    #[test]
    fn some_cells_can_be_chosen() {
        let all = || [["a/b", "0"], ["a/b", "8"], ["c", "0"], ["c", "8"]].map(cell).to_vec();
        let of = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|text| (*text).to_owned()).collect();
            chosen(&design(), all(), &only).map(|cells| cells.into_iter().map(|cell| cell.at.join(" ")).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]).unwrap().len(), 4);
        assert_eq!(of(&["lag=8"]).unwrap(), ["a/b 8", "c 8"]);
        assert_eq!(of(&["loss=c", "lag=8", "lag=0"]).unwrap(), ["c 0", "c 8"]);
        let refused = of(&["lag=9"]).unwrap_err().to_string();
        assert_eq!(refused, "--only = lag=9: AXIS=VALUE, of loss=a/b|c, lag=0|8");
    }

    #[test]
    fn a_cell_has_a_folder_of_its_own() {
        let mut two = design();
        two.axis[0].value[1].name = "a_b".to_owned();
        let refused = apart(&two, &[cell(["a/b", "8"]), cell(["a_b", "8"])]).unwrap_err().to_string();
        assert!(
            refused.starts_with("axis.value = loss=a_b lag=8 seed=1: its folder would be that of loss=a/b"),
            "{refused}"
        );
        apart(&two, &[cell(["a/b", "8"]), cell(["a_b", "0"])]).unwrap();
        assert_eq!(folder_name(&design(), &cell(["a/b", "8"])), Path::new("loss=a_b,lag=8/seed-1"));
    }
}
