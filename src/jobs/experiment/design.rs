//! What an experiment is: axes of settings, and the cells that they make with the seeds.

use crate::error::{Error, Result};
use crate::jobs::experiment::kl::ways::Kl;
use crate::spec::{Spec, read, text_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// An experiment's file. A cell is one value of each axis and a seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Design {
    /// What it asks, in a sentence or two.
    pub about: String,
    /// The run's specification that all cells share, from where the command is started.
    pub base: PathBuf,
    /// Assignments, as with `--set`, that are laid over it in every cell.
    pub set: Vec<String>,
    pub seeds: Vec<u64>,
    pub axis: Vec<Axis>,
    /// Mean rewards: the table has the time and the rollouts to each.
    pub reach: Vec<f64>,
    /// Axes that no file has, by name ([`vary`](Design::vary)). They are the last of `axis`.
    #[serde(skip)]
    pub added: Vec<String>,
    /// What of each run is measured, where the cells are measurements and not runs.
    pub kl: Kl,
    /// Two values of an axis whose throughput is compared; none by default.
    pub speed_up: SpeedUp,
}

/// How much faster `of` is than `over`, both values of the axis `axis`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeedUp {
    pub axis: String,
    pub of: String,
    pub over: String,
}

/// One thing that differs between cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Axis {
    pub name: String,
    pub value: Vec<Value>,
}

/// One of its values: a name, and the assignments that make it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Value {
    pub name: String,
    pub set: Vec<String>,
}

/// One run of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The value's name on each axis, in the axes' order.
    pub at: Vec<String>,
    /// Which axes are not the file's.
    pub added: Vec<String>,
    pub seed: u64,
    /// All its assignments, the seed's among them.
    pub sets: Vec<String>,
    /// Hash of its settings: the text of the base and the assignments.
    pub settings: String,
}

impl Design {
    /// Reads an experiment's file.
    ///
    /// # Errors
    /// A file that cannot be read or is not as it must be.
    pub fn load(path: &Path) -> Result<Design> {
        let named = |error| match error {
            Error::Config { key, value, reason } if key == "SPEC" => Error::config("EXPERIMENT", value, reason),
            other => other,
        };
        let text = text_of(path).map_err(named)?;
        let design: Design = read(&text, &path.display().to_string(), &[]).map_err(named)?;
        design.check()?;
        Ok(design)
    }

    /// All its cells, each with a specification that a run accepts.
    ///
    /// # Errors
    /// A base that cannot be read; a cell that no run could be.
    pub fn all(&self) -> Result<Vec<Cell>> {
        let text = text_of(&self.base).map_err(|error| match error {
            Error::Config { value, reason, .. } => Error::config("base", value, reason),
            other => other,
        })?;
        let cells = self.cells(&text);
        for cell in cells.iter().filter(|cell| Some(&cell.seed) == self.seeds.first()) {
            let spec = Spec::load(&self.base, &cell.sets);
            spec.and_then(|spec| self.kl.fits(&spec)).map_err(|error| match error {
                Error::Config { key, value, reason } => {
                    Error::config(key, value, format!("{reason} (in the cell {})", self.told(cell)))
                }
                other => other,
            })?;
        }
        Ok(cells)
    }

    /// Adds an axis for each key of `assignments`, each `KEY=VALUE`, with all values that it is given there, laid over all else.
    ///
    /// # Errors
    /// An assignment that is none, or of a key that the experiment or its axes own.
    pub fn vary(&mut self, assignments: &[String]) -> Result<()> {
        let own = self.axis.len();
        for set in assignments {
            let parts = set.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            let Some((key, value)) = parts.filter(|(key, value)| !key.is_empty() && !value.is_empty()) else {
                let reason = "KEY=VALUE, as of a run; values of the same key are compared";
                return Err(Error::config("--set", set, reason));
            };
            let value = Value { name: value.to_owned(), set: vec![set.clone()] };
            match self.axis[own..].iter_mut().find(|axis| axis.name == key) {
                Some(axis) => axis.value.push(value),
                None => self.axis.push(Axis { name: key.to_owned(), value: vec![value] }),
            }
        }
        self.added = self.axis[own..].iter().map(|axis| axis.name.clone()).collect();
        self.check()
    }

    /// Whether all that it says by itself can be.
    ///
    /// # Errors
    /// Names the key, its value and what would be right.
    pub fn check(&self) -> Result<()> {
        let names = |names: Vec<&str>| {
            let known: BTreeSet<&str> = names.iter().copied().collect();
            known.len() == names.len() && !known.contains("")
        };
        if self.base.as_os_str().is_empty() {
            return Err(Error::config("base", "\"\"", "a run's specification, for example data/demo.toml"));
        }
        if self.seeds.is_empty() || self.seeds.iter().collect::<BTreeSet<_>>().len() != self.seeds.len() {
            return Err(Error::config(
                "seeds",
                format!("{:?}", self.seeds),
                "at least one, each once, for example [1, 2, 3]",
            ));
        }
        self.kl.check()?;
        let all = self.axes();
        let axes: Vec<&str> = all.iter().map(|axis| axis.name.as_str()).collect();
        if !names(axes.clone()) {
            return Err(Error::config("axis.name", axes.join(", "), "each axis has a name of its own"));
        }
        for axis in &self.axis {
            let values: Vec<&str> = axis.value.iter().map(|value| value.name.as_str()).collect();
            if values.is_empty() || !names(values.clone()) {
                let key = format!("axis.value of {}", axis.name);
                return Err(Error::config(key, values.join(", "), "at least one, each with a name of its own"));
            }
        }
        if let Some(reach) = self.reach.iter().find(|reach| !reach.is_finite()) {
            return Err(Error::config("reach", reach, "mean rewards, for example [0.75]"));
        }
        let SpeedUp { axis, of, over } = &self.speed_up;
        if self.speed_up != SpeedUp::default() {
            let known = self.axis.iter().find(|known| known.name == *axis);
            let has = |name: &String| known.is_some_and(|axis| axis.value.iter().any(|value| value.name == *name));
            if !has(of) || !has(over) {
                let told = format!("{axis}: {of} over {over}");
                return Err(Error::config("speed_up", told, "an axis, and two of its values: of is divided by over"));
            }
        }
        let sets = self.axis.iter().flat_map(|axis| &axis.value).flat_map(|value| &value.set).chain(&self.set);
        let owned = |set: &str| set.split_once('=').is_some_and(|(key, _)| matches!(key.trim(), "seed" | "output"));
        match sets.into_iter().find(|set| owned(set)) {
            Some(set) => Err(Error::config("set", set, "the experiment sets seed and output itself: seeds = [..]")),
            None => Ok(()),
        }
    }

    /// Its own axes, and those of its measurements.
    pub fn axes(&self) -> Vec<Axis> {
        self.axis.iter().cloned().chain(self.kl.axes()).collect()
    }

    /// All cells, the last axis fastest but for the seed, which is slowest: the first results are of all settings.
    fn cells(&self, base: &str) -> Vec<Cell> {
        let mut rows: Vec<(Vec<String>, Vec<String>)> = vec![(Vec::new(), self.set.clone())];
        for axis in &self.axes() {
            let with = |(at, sets): &(Vec<String>, Vec<String>), value: &Value| {
                let at = at.iter().chain([&value.name]).cloned().collect();
                (at, sets.iter().chain(&value.set).cloned().collect())
            };
            rows = rows.iter().flat_map(|row| axis.value.iter().map(move |value| with(row, value))).collect();
        }
        let cell = |seed: u64, (at, sets): &(Vec<String>, Vec<String>)| {
            let sets: Vec<String> = sets.iter().cloned().chain([format!("seed={seed}")]).collect();
            let mut hash = blake3::Hasher::new();
            let measured = self.kl.settings(at);
            for part in [base].into_iter().chain(sets.iter().chain(&measured).map(String::as_str)) {
                hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
            let settings = hash.finalize().to_hex()[..16].to_owned();
            Cell { at: at.clone(), added: self.added.clone(), seed, sets, settings }
        };
        self.seeds.iter().flat_map(|&seed| rows.iter().map(move |row| cell(seed, row))).collect()
    }

    /// A cell as a person calls it: `loss=ppo max_lag=8 seed=1`.
    pub fn told(&self, cell: &Cell) -> String {
        let axes = self.axes();
        let at = axes.iter().zip(&cell.at).map(|(axis, value)| format!("{}={value} ", axis.name));
        format!("{}seed={}", at.collect::<String>(), cell.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn design(text: &str) -> Design {
        read(text, "x.toml", &[]).unwrap()
    }

    const TWO: &str = "base='b.toml'\nset=['steps=3']\nseeds=[5,7]\n\
        [[axis]]\nname='lag'\nvalue=[{name='0',set=['schedule.max_lag=0']},{name='8',set=['schedule.max_lag=8']}]\n\
        [[axis]]\nname='lr'\nvalue=[{name='low'},{name='high',set=['learn.lr=1.0','learn.warmup_steps=0']}]\n";

    /// Catches a seed that runs before the settings are through, an assignment of another value, a hash that two cells share
    /// or that does not know the base.
    #[test]
    fn cells_are_the_product_of_axes_and_seeds() {
        let (two, base) = (design(TWO), "seed = 1");
        let cells = two.cells(base);
        let told: Vec<String> = cells.iter().map(|cell| two.told(cell)).collect();
        let of =
            |seed| ["lag=0 lr=low", "lag=0 lr=high", "lag=8 lr=low", "lag=8 lr=high"].map(|at| format!("{at} seed={seed}"));
        assert_eq!(told, [of(5), of(7)].concat());
        assert_eq!(cells[7].sets, ["steps=3", "schedule.max_lag=8", "learn.lr=1.0", "learn.warmup_steps=0", "seed=7"]);
        let hashes: BTreeSet<&str> = cells.iter().map(|cell| cell.settings.as_str()).collect();
        assert_eq!((hashes.len(), cells[0].settings.len()), (8, 16));
        assert_eq!(two.cells(base), cells);
        assert_ne!(two.cells("seed = 2")[0].settings, cells[0].settings);
        assert_eq!(design("base='b'\nseeds=[1]\n").cells(base).len(), 1);
    }

    /// Catches an axis that the file's hide, values of one key that become axes of their own, and assignments that do not come last.
    #[test]
    fn assignments_from_outside_are_axes() {
        let mut two = design(TWO);
        two.vary(&["learn.lr=2.0", "batch.group_size = 4", "learn.lr=3.0"].map(str::to_owned)).unwrap();
        let cells = two.cells("");
        assert_eq!((cells.len(), two.added.as_slice()), (16, &["learn.lr".to_owned(), "batch.group_size".to_owned()][..]));
        assert_eq!(two.told(&cells[3]), "lag=0 lr=high learn.lr=3.0 batch.group_size=4 seed=5");
        let sets = [
            "steps=3",
            "schedule.max_lag=0",
            "learn.lr=1.0",
            "learn.warmup_steps=0",
            "learn.lr=3.0",
            "batch.group_size = 4",
            "seed=5",
        ];
        assert_eq!((cells[3].sets.as_slice(), &cells[3].added), (&sets.map(str::to_owned)[..], &two.added));
        for (set, message) in [
            ("lr", "--set = lr: KEY=VALUE, as of a run"),
            ("lr=", "--set = lr=: KEY=VALUE, as of a run"),
            ("lr=low", "axis.name = lag, lr, lr: each axis has a name of its own"),
            ("seed=4", "set = seed=4: the experiment sets seed and output itself"),
        ] {
            let refused = design(TWO).vary(&[set.to_owned()]).unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
        let twice = design(TWO).vary(&["steps=3", "steps=3"].map(str::to_owned)).unwrap_err().to_string();
        assert!(twice.starts_with("axis.value of steps = 3, 3: at least one, each with a name of its own"), "{twice}");
    }

    /// Catches an experiment of this repository that a change of keys has broken, long before anybody runs it.
    #[test]
    fn those_of_this_repository_can_be_run() {
        let folder = Path::new("data/experiments");
        let names = crate::durable::names(folder).unwrap();
        let files: Vec<&String> = names.iter().filter(|name| name.ends_with(".toml")).collect();
        assert!(files.len() > 4, "{files:?}");
        for file in files {
            let cells = Design::load(&folder.join(file)).and_then(|design| design.all());
            assert!(cells.as_ref().is_ok_and(|cells| cells.len() > 1), "{file}: {cells:?}");
        }
    }

    #[test]
    fn what_is_no_experiment_is_refused_by_key() {
        for (text, message) in [
            ("seeds=[1]", "base = \"\": a run's specification"),
            ("base='b'", "seeds = []: at least one"),
            ("base='b'\nseeds=[1,1]", "seeds = [1, 1]: at least one, each once"),
            ("base='b'\nseeds=[1]\nset=['seed = 3']", "set = seed = 3: the experiment sets seed and output itself"),
            (
                "base='b'\nseeds=[1]\nspeed_up={axis='a',of='x',over='y'}\n[[axis]]\nname='a'\nvalue=[{name='x'}]",
                "speed_up = a: x over y: an axis, and two of its values",
            ),
            ("base='b'\nseeds=[1]\n[[axis]]\nname='a'", "axis.value of a = : at least one"),
            ("base='b'\nseeds=[1]\nreach=[0.5,inf]", "reach = inf: mean rewards"),
            ("base='b'\nseeds=[1]\n[[axis]]\nvalue=[{name='x'}]", "axis.name = : each axis has a name"),
            (
                "base='b'\nseeds=[1]\n[[axis]]\nname='a'\nvalue=[{name='x'},{name='x'}]",
                "axis.value of a = x, x: at least one, each with a name of its own",
            ),
        ] {
            let found = design(text).check().unwrap_err().to_string();
            assert!(found.starts_with(message), "{found}");
        }
    }
}
