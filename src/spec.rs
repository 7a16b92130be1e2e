//! The run's configuration, composed of each floor's own (floor 3). Every key has a default that is written out again.

use crate::engine::spec::{Learning, Sampling};
use crate::error::{Error, Result};
use crate::kernel::advantage::Advantage;
use crate::tasks::generated::Mix;
use crate::tasks::reward::Reward;
use crate::tasks::spec::{DataSpec, RewardSpec, TaskSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::schedule::Schedule;

/// Everything `tidegate run` needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Folder of the run; empty: `runs/NAME`, numbered where that is taken.
    pub output: PathBuf,
    /// Seed of every random draw.
    pub seed: u64,
    /// Optimizer updates of the run.
    pub steps: u64,
    pub model: ModelSpec,
    /// A file of prompts; left out: `task` are generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
    /// Generated tasks, drawn by weight.
    pub task: Vec<TaskSpec>,
    pub reward: RewardSpec,
    pub batch: BatchSpec,
    pub schedule: ScheduleSpec,
    pub workers: WorkersSpec,
    pub generate: Sampling,
    pub estimate: EstimateSpec,
    pub learn: Learning,
    pub eval: EvalSpec,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            output: PathBuf::new(),
            seed: 1,
            steps: 100,
            model: ModelSpec::default(),
            data: None,
            task: Vec::new(),
            reward: RewardSpec::default(),
            batch: BatchSpec::default(),
            schedule: ScheduleSpec::default(),
            workers: WorkersSpec::default(),
            generate: Sampling::default(),
            estimate: EstimateSpec::default(),
            learn: Learning::default(),
            eval: EvalSpec::default(),
        }
    }
}

/// The policy (`[model]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpec {
    /// A Hugging Face folder: config.json, model.safetensors, tokenizer.json.
    pub path: PathBuf,
    /// `cpu` or `cuda:N`.
    pub device: String,
}

impl Default for ModelSpec {
    fn default() -> Self {
        ModelSpec { path: PathBuf::new(), device: "cpu".into() }
    }
}

/// What one step trains (`[batch]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSpec {
    /// Rollouts a step.
    pub batch_size: usize,
    /// Rollouts a prompt.
    pub group_size: usize,
}

impl Default for BatchSpec {
    fn default() -> Self {
        BatchSpec { batch_size: 64, group_size: 8 }
    }
}

/// When groups are admitted and trained (`[schedule]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSpec {
    /// `pipeline`.
    pub kind: ScheduleKind,
    /// The bound on the lag of every trained token, steps.
    pub max_lag: u64,
    /// `arrival` (lowest mean lag) or `admission` (batches do not depend on timing).
    pub order: Order,
    /// What becomes of the prompts' last groups where they do not fill a batch: `train` or `discard`.
    pub short_batch: ShortBatch,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        ScheduleSpec { kind: ScheduleKind::Pipeline, max_lag: 4, order: Order::Arrival, short_batch: ShortBatch::Train }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Pipeline,
}

/// Which timely workers do what (`[workers]`). One index in both roles shares that worker between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersSpec {
    /// Workers that generate.
    pub generators: Vec<usize>,
    /// The worker that trains.
    pub learners: Vec<usize>,
    /// libtorch threads of each generating, and of the training worker.
    pub generator_threads: u16,
    pub learner_threads: u16,
    /// Processes of the run.
    pub processes: usize,
}

impl Default for WorkersSpec {
    fn default() -> Self {
        WorkersSpec { generators: vec![0], learners: vec![1], generator_threads: 1, learner_threads: 1, processes: 1 }
    }
}

/// How rewards become advantages (`[estimate]`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EstimateSpec {
    /// Without a critic (`learn.value_coef = 0`); with one the advantage is reward - value.
    pub advantage: Advantage,
    /// `keep`, or `discard` groups whose rewards are all equal (they are refilled).
    pub zero_variance: ZeroVariance,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroVariance {
    #[default]
    Keep,
    Discard,
}

/// Evaluation before and after the run (`[eval]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSpec {
    /// Held-out prompts; 0 leaves evaluation out.
    pub prompts: usize,
    /// A file of held-out prompts; left out: generated tasks have their own, and a file of prompts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
}

impl Default for EvalSpec {
    fn default() -> Self {
        EvalSpec { prompts: 768, data: None }
    }
}

impl Spec {
    /// Reads a spec and lays `--set` assignments over it.
    ///
    /// # Errors
    /// A file that cannot be read, TOML that cannot be parsed, a key that does not exist (the nearest is named), a value that
    /// is not one of the allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Spec> {
        let mut spec: Spec = read(&text_of(path)?, &path.display().to_string(), sets)?;
        if spec.output.as_os_str().is_empty() {
            spec.output = Path::new("runs").join(path.file_stem().unwrap_or_else(|| OsStr::new("run")));
        }
        spec.task = spec.task.into_iter().map(TaskSpec::with_defaults).collect();
        spec.validate()?;
        Ok(spec)
    }

    /// Reads a spec from its text, as a run's footer keeps it.
    ///
    /// # Errors
    /// As [`Spec::load`].
    pub fn from_text(text: &str, sets: &[String]) -> Result<Spec> {
        let spec: Spec = read(text, "spec", sets)?;
        spec.validate()?;
        Ok(spec)
    }

    /// The whole configuration as TOML, defaults spelt out.
    pub fn to_text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Groups a step: `batch_size / group_size`.
    pub fn batch_groups(&self) -> u64 {
        (self.batch.batch_size / self.batch.group_size) as u64
    }

    /// Whether the run has a critic.
    pub fn has_critic(&self) -> bool {
        self.learn.value_coef > 0.0
    }

    /// Timely workers of the run.
    pub fn worker_count(&self) -> usize {
        self.workers.generators.iter().chain(&self.workers.learners).max().map_or(1, |last| last + 1)
    }

    /// The operators' share of the configuration, for a run that starts at version `start`.
    pub fn plan(&self, start: u64) -> Plan {
        let ScheduleKind::Pipeline = self.schedule.kind;
        Plan {
            start,
            steps: self.steps,
            admitted: 0,
            batch_groups: self.batch_groups(),
            group_size: self.batch.group_size as u32,
            schedule: Schedule::Pipeline { max_lag: self.schedule.max_lag },
            order: self.schedule.order,
            short_batch: self.schedule.short_batch,
            slots: self.generate.slots,
            generators: self.workers.generators.clone(),
            learner: self.workers.learners.first().copied().unwrap_or(0),
        }
    }

    fn validate(&self) -> Result<()> {
        self.validate_batch()?;
        self.validate_workers()?;
        let g = &self.generate;
        if g.top_k != 0 {
            let why = "training needs 0: the set of tokens that top_k keeps is not recorded, so ratios would be wrong";
            return Err(Error::config("generate.top_k", g.top_k, why));
        }
        if g.top_p != 1.0 {
            let why = "training needs 1.0: the set of tokens that top_p keeps is not recorded, so ratios would be wrong";
            return Err(Error::config("generate.top_p", g.top_p, why));
        }
        if self.model.path.as_os_str().is_empty() {
            return Err(Error::config(
                "model.path",
                "\"\"",
                "name a model's folder: config.json, model.safetensors, tokenizer.json",
            ));
        }
        let l = &self.learn;
        positive("generate.temperature", g.temperature)?;
        positive("learn.lr", l.lr)?;
        positive("learn.eps", l.eps)?;
        for (key, value) in [
            ("learn.value_coef", l.value_coef),
            ("learn.weight_decay", l.weight_decay),
            ("learn.grad_clip", l.grad_clip),
            ("learn.lr_min_ratio", l.lr_min_ratio),
            ("generate.time_limit_s", g.time_limit_s),
        ] {
            within(key, value, f64::INFINITY, "a number from 0 up")?;
        }
        within("learn.beta1", l.beta1, 1.0, "a number from 0 up, below 1")?;
        within("learn.beta2", l.beta2, 1.0, "a number from 0 up, below 1")?;
        if !l.entropy_coef.is_finite() {
            return Err(Error::config("learn.entropy_coef", l.entropy_coef, "a number"));
        }
        if !l.loss.reads_behavior() {
            return Err(Error::config("learn.loss", "supervised", "it reads no reward; allowed: reinforce, ppo"));
        }
        if g.max_tokens == 0 {
            return Err(Error::config("generate.max_tokens", 0, "at least 1 token"));
        }
        if self.learn.micro_batch_tokens == 0 {
            return Err(Error::config("learn.micro_batch_tokens", 0, "at least 1 token"));
        }
        self.validate_data()
    }

    fn validate_data(&self) -> Result<()> {
        match &self.data {
            Some(data) => data.check()?,
            None if self.task.is_empty() => {
                let why = "no prompts: name a JSONL or Parquet file as data.file, or list generated tasks as [[task]]";
                return Err(Error::config("data", "\"\"", why));
            }
            None => drop(Mix::new(&self.task)?),
        }
        Reward::new(&self.reward).map(drop)
    }

    fn validate_batch(&self) -> Result<()> {
        let BatchSpec { batch_size, group_size } = self.batch;
        if group_size == 0 {
            return Err(Error::config("batch.group_size", 0, "at least 1 rollout a group"));
        }
        if batch_size == 0 || batch_size % group_size != 0 {
            let below = batch_size / group_size * group_size;
            let near = if below == 0 { group_size.to_string() } else { format!("{below} or {}", below + group_size) };
            let why = format!("not a multiple of batch.group_size = {group_size}; the nearest are {near}");
            return Err(Error::config("batch.batch_size", batch_size, why));
        }
        if self.steps == 0 {
            return Err(Error::config("steps", 0, "at least 1 step"));
        }
        if self.generate.slots < group_size {
            let why = format!("fewer slots than batch.group_size = {group_size}; a generator holds at least one group");
            return Err(Error::config("generate.slots", self.generate.slots, why));
        }
        Ok(())
    }

    fn validate_workers(&self) -> Result<()> {
        let w = &self.workers;
        if w.processes != 1 {
            let why = "more than one process does not exist yet; allowed: 1";
            return Err(Error::config("workers.processes", w.processes, why));
        }
        if w.learners.len() != 1 {
            let why = "more or fewer than one learner worker does not exist yet; allowed: a list of one index";
            return Err(Error::config("workers.learners", format!("{:?}", w.learners), why));
        }
        if w.generators.is_empty() {
            return Err(Error::config("workers.generators", "[]", "at least one worker must generate"));
        }
        if let Some(worker) =
            w.generators.iter().enumerate().find_map(|(at, w1)| w.generators[..at].contains(w1).then_some(w1))
        {
            let why = format!("worker {worker} is listed twice; list each once");
            return Err(Error::config("workers.generators", format!("{:?}", w.generators), why));
        }
        for key in [("workers.generator_threads", w.generator_threads), ("workers.learner_threads", w.learner_threads)] {
            if key.1 == 0 {
                return Err(Error::config(key.0, 0, "at least 1 thread"));
            }
        }
        if self.worker_count() > 1024 {
            let why = "indices count from 0 without gaps; 1023 is the largest";
            return Err(Error::config("workers.generators", format!("{:?}", w.generators), why));
        }
        Ok(())
    }
}

fn positive(key: &str, value: f64) -> Result<()> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { Err(Error::config(key, value, "a number above 0")) }
}

/// From 0 up to `end`, that one left out.
fn within(key: &str, value: f64, end: f64, right: &str) -> Result<()> {
    if (0.0..end).contains(&value) { Ok(()) } else { Err(Error::config(key, value, right)) }
}

/// The text of a specification.
///
/// # Errors
/// A file that cannot be read.
pub fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::config("SPEC", path.display(), e.to_string()))
}

/// Reads any specification: TOML, with `--set` assignments laid over it, refused by key where a key does not exist.
///
/// # Errors
/// As [`Spec::load`].
pub fn read<S: Serialize + DeserializeOwned + Default>(text: &str, name: &str, sets: &[String]) -> Result<S> {
    let mut table = text.parse::<toml::Table>().map_err(|e| Error::config("SPEC", name, no_toml(&e, text)))?;
    for set in sets {
        assign(&mut table, set)?;
    }
    let known = toml::Table::try_from(S::default()).map_err(|e| Error::config("SPEC", name, e.to_string()))?;
    refuse_unknown(&table, &known, "")?;
    toml::Value::Table(table.clone()).try_into().map_err(|e| explain(&e, &table))
}

/// `a.b.c=value`, the value in TOML; what is no TOML is a string.
fn assign(table: &mut toml::Table, set: &str) -> Result<()> {
    let Some((key, text)) = set.split_once('=') else {
        return Err(Error::config("--set", set, "expected key=value, for example schedule.max_lag=8"));
    };
    let (key, text) = (key.trim(), text.trim());
    let value = format!("v = {text}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("v"));
    let value = value.unwrap_or_else(|| toml::Value::String(text.to_owned()));
    let mut at = table;
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or(key);
    for part in parts {
        let entry = at.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = entry.as_table_mut().ok_or_else(|| Error::config("--set", set, format!("{part} is not a table of keys")))?;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

/// Keys whose tables have one shape or another (or are absent by default): serde checks what is in them.
const CHECKED_LATER: [&str; 5] = ["data", "eval.data", "reward", "learn.loss", "learn.aggregation"];

/// Names the first key that no spec has, with the nearest one that exists.
fn refuse_unknown(given: &toml::Table, known: &toml::Table, prefix: &str) -> Result<()> {
    for (key, value) in given {
        let full = format!("{prefix}{key}");
        if CHECKED_LATER.contains(&full.as_str()) {
            continue;
        }
        let Some(expected) = known.get(key) else {
            // Those that are absent by default are keys too.
            let later = CHECKED_LATER.iter().filter_map(|name| name.strip_prefix(prefix)).filter(|name| !name.contains('.'));
            let names: BTreeSet<&str> = known.keys().map(String::as_str).chain(later).collect();
            let nearest = names.iter().max_by(|a, b| strsim::jaro(a, key).total_cmp(&strsim::jaro(b, key)));
            let hint = nearest.map_or_else(String::new, |n| format!("did you mean {prefix}{n}? "));
            let names: Vec<&str> = names.into_iter().collect();
            return Err(Error::config(full, short(value), format!("no such key; {hint}allowed: {}", names.join(", "))));
        };
        if let (toml::Value::Table(given), toml::Value::Table(known)) = (value, expected) {
            refuse_unknown(given, known, &format!("{full}."))?;
        }
    }
    Ok(())
}

fn short(value: &toml::Value) -> String {
    let text = value.to_string().replace('\n', " ");
    if text.chars().count() > 60 { text.chars().take(57).chain("...".chars()).collect() } else { text }
}

/// toml's message ends with "in `key`"; the value stands in the table.
fn explain(error: &toml::de::Error, table: &toml::Table) -> Error {
    let text = error.to_string();
    let key = text.rsplit_once("in `").and_then(|(_, rest)| rest.split('`').next()).unwrap_or("spec").to_owned();
    let value = lookup(table, &key).map_or_else(|| "?".into(), |v| short(&v));
    Error::config(key, value, error.message().trim())
}

/// The value of a key; of a key of a list of tables (`task.kind`), the values of all.
fn lookup(table: &toml::Table, key: &str) -> Option<toml::Value> {
    key.split('.').try_fold(toml::Value::Table(table.clone()), |at, part| match at {
        toml::Value::Array(tables) => {
            Some(toml::Value::Array(tables.iter().filter_map(|table| table.get(part).cloned()).collect()))
        }
        at => at.get(part).cloned(),
    })
}

/// toml's message on one line, with the place.
fn no_toml(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, column) = (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
    format!("no TOML at line {line}, column {column}: {}", error.message().trim().replace('\n', "; "))
}
