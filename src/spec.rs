//! The run's configuration, composed of each floor's own (floor 3). Every key has a default that is written out again.

mod balance;
mod check;
mod critic;
mod curriculum;
mod emulation;
mod evaluation;
mod explain;
mod metrics;
#[cfg(test)]
mod numbers_tests;
mod read;
mod reference;
mod responses;
mod safeguard;
mod schedule;

pub use check::{check_counts, check_learning, check_sampling, check_threads};
pub use emulation::{EmulationSpec, check_speed};
pub use metrics::MetricsSpec;
pub use read::{read, text_of};
pub use reference::check_no_reference;
pub use responses::Responses;
pub use safeguard::without_effect as safeguards_without_effect;

use crate::engine::critic::CriticModel;
use crate::engine::spec::{Learning, Sampling};
use crate::error::Result;
use crate::kernel::advantage::Advantage;
use crate::kernel::curriculum::Curriculum;
use crate::kernel::shaping::{Overlong, Shaping};
use crate::tasks::spec::{DataSpec, RewardSpec, TaskSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tidegate_operators::balance::Balance;
use tidegate_operators::plan::{Order, Plan, ShortBatch};
use tidegate_operators::schedule::{Schedule, WeightsUpdate};
use tidegate_operators::start::Start;

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
    /// Accelerators that only take time, with `model.engine = "emulation"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulation: Option<EmulationSpec>,
    /// A file of prompts; left out: `task` are generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
    /// Generated tasks, drawn by weight.
    pub task: Vec<TaskSpec>,
    pub curriculum: Curriculum,
    pub reward: RewardSpec,
    pub batch: BatchSpec,
    pub schedule: ScheduleSpec,
    pub workers: WorkersSpec,
    pub generate: Sampling,
    pub estimate: EstimateSpec,
    pub learn: Learning,
    pub checkpoint: CheckpointSpec,
    pub metrics: MetricsSpec,
    pub eval: EvalSpec,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            output: PathBuf::new(),
            seed: 1,
            steps: 100,
            model: ModelSpec::default(),
            emulation: None,
            data: None,
            task: Vec::new(),
            curriculum: Curriculum::default(),
            reward: RewardSpec::default(),
            batch: BatchSpec::default(),
            schedule: ScheduleSpec::default(),
            workers: WorkersSpec::default(),
            generate: Sampling::default(),
            estimate: EstimateSpec::default(),
            learn: Learning::default(),
            checkpoint: CheckpointSpec::default(),
            metrics: MetricsSpec::default(),
            eval: EvalSpec::default(),
        }
    }
}

/// The policy (`[model]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpec {
    /// `torch`; `toy`: a table of logits, which needs no folder and shows the machinery at work in milliseconds; or `emulation`:
    /// accelerators that only take time.
    pub engine: EngineKind,
    /// A Hugging Face folder: config.json, model.safetensors, tokenizer.json.
    pub path: PathBuf,
    /// `cpu` or `cuda:N`.
    pub device: String,
}

impl Default for ModelSpec {
    fn default() -> Self {
        ModelSpec { engine: EngineKind::Torch, path: PathBuf::new(), device: "cpu".into() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    #[default]
    Torch,
    Toy,
    Emulation,
}

/// When the run's state is kept (`[checkpoint]`). A run that ends, however cleanly, also keeps it then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSpec {
    /// After every so many steps; 0 is not by steps.
    pub every_steps: u64,
    /// After the first step that ends so many minutes after the last checkpoint; 0 is not by time.
    pub every_minutes: f64,
    /// The newest so many are kept, the others removed.
    pub keep: usize,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        CheckpointSpec { every_steps: 0, every_minutes: 10.0, keep: 2 }
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

/// When groups are admitted and trained (`[schedule]`). Written out without the keys that its kind does not read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSpec {
    /// `pipeline`; or by turns, `conventional` or `one_step_off`.
    pub kind: ScheduleKind,
    /// Of a pipeline: the bound on the lag of every trained token, steps.
    pub max_lag: u64,
    /// Of a pipeline: when generators take new weights, `in_flight` or `drain`.
    pub weights_update: WeightsUpdate,
    /// By turns: steps of a phase.
    pub steps: u64,
    /// `arrival` (lowest mean lag; by turns, shuffled), `admission` (batches do not depend on timing) or `shuffled`.
    pub order: Order,
    /// What becomes of the prompts' last groups where they do not fill a batch: `train` or `discard`.
    pub short_batch: ShortBatch,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        let (kind, weights_update) = (ScheduleKind::Pipeline, WeightsUpdate::InFlight);
        ScheduleSpec { kind, max_lag: 4, weights_update, steps: 1, order: Order::Arrival, short_batch: ShortBatch::Train }
    }
}

impl ScheduleSpec {
    /// What the operators run by.
    pub fn schedule(&self) -> Schedule {
        let ScheduleSpec { kind, max_lag, steps, .. } = *self;
        match kind {
            ScheduleKind::Pipeline => Schedule::Pipeline { max_lag },
            ScheduleKind::Conventional => Schedule::Conventional { steps },
            ScheduleKind::OneStepOff => Schedule::OneStepOff { steps },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Generation and training run all the time.
    Pipeline,
    /// The groups of so many steps are sampled, then these steps are taken.
    Conventional,
    /// The groups of the next phase are sampled while those of this one are trained.
    OneStepOff,
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
    /// How much a worker that generates and trains generates: `fixed`, or `auto`.
    pub balance: Balance,
    /// Processes of the run.
    pub processes: usize,
}

impl Default for WorkersSpec {
    fn default() -> Self {
        WorkersSpec {
            generators: vec![0],
            learners: vec![1],
            generator_threads: 1,
            learner_threads: 1,
            balance: Balance::default(),
            processes: 1,
        }
    }
}

/// How rewards become advantages (`[estimate]`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EstimateSpec {
    /// Without a critic (`learn.value_coef = 0`), all but `gae`; with one the advantage is reward - value, unless it is `gae`.
    pub advantage: Advantage,
    /// `off`, or `batch`: advantages are brought to mean 0 and deviation 1 over the trained tokens of each step.
    pub whiten: Whiten,
    /// The least and the largest that a reward counts for.
    pub reward_min: f64,
    pub reward_max: f64,
    /// Added to a reward for each token of its completion: a bonus above 0, a cost below.
    pub length_coef: f64,
    /// Over so many tokens before `generate.max_tokens` a penalty grows to `overlong_penalty`; 0 is none.
    pub overlong_buffer: usize,
    pub overlong_penalty: f64,
    /// `keep`, or `discard` groups whose rewards are all equal (others are sampled in their place; without a critic only: with
    /// one, equal rewards teach too).
    pub zero_variance: ZeroVariance,
    /// The run fails when so many batches of groups were discarded as zero variance and no group was kept; 0 is no limit.
    pub refill_limit: u64,
    /// The run fails when so many groups were discarded for another reason and none was kept; 0 is no limit.
    pub discard_limit: u64,
}

impl Default for EstimateSpec {
    fn default() -> Self {
        EstimateSpec {
            advantage: Advantage::default(),
            whiten: Whiten::default(),
            reward_min: f64::NEG_INFINITY,
            reward_max: f64::INFINITY,
            length_coef: 0.0,
            overlong_buffer: 0,
            overlong_penalty: 1.0,
            zero_variance: ZeroVariance::default(),
            refill_limit: 100,
            discard_limit: 1000,
        }
    }
}

/// Over what advantages are whitened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whiten {
    #[default]
    Off,
    Batch,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroVariance {
    #[default]
    Keep,
    Discard,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalWhen {
    #[default]
    Ends,
    Checkpoints,
}

/// Evaluation before and after the run (`[eval]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSpec {
    /// Held-out prompts; 0 leaves evaluation out.
    pub prompts: usize,
    /// `ends`, or `checkpoints`: each of them too, beside training; the best is kept.
    pub when: EvalWhen,
    /// A file of held-out prompts; left out: generated tasks have their own, and a file of prompts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
}

impl Default for EvalSpec {
    fn default() -> Self {
        EvalSpec { prompts: 768, when: EvalWhen::Ends, data: None }
    }
}

impl Spec {
    /// Reads a spec and lays `--set` assignments over it.
    ///
    /// # Errors
    /// A file that cannot be read, TOML that cannot be parsed, a key that does not exist (the nearest is named), a value that
    /// is not one of the allowed.
    pub fn load(path: &Path, sets: &[String]) -> Result<Spec> {
        let name = path.display().to_string();
        let mut table = read::parsed(&text_of(path)?, &name)?;
        schedule::give_way(&mut table, sets);
        let mut spec: Spec = read::laid_over(table, &name, sets)?;
        if spec.output.as_os_str().is_empty() {
            spec.output = Path::new("runs").join(path.file_stem().unwrap_or_else(|| OsStr::new("run")));
        }
        spec.task = spec.task.into_iter().map(TaskSpec::with_defaults).collect();
        spec.emulate()?;
        spec.validate()?;
        Ok(spec)
    }

    /// Reads a spec from its text, as a run's footer keeps it.
    ///
    /// # Errors
    /// As [`Spec::load`].
    pub fn from_text(text: &str, sets: &[String]) -> Result<Spec> {
        let mut table = read::parsed(text, "spec")?;
        schedule::leave_out_what_is_not_read(&mut table);
        let mut spec: Spec = read::laid_over(table, "spec", sets)?;
        spec.emulate()?;
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

    /// Whether that is a head on the policy's trunk, whose values are made when a token is sampled.
    pub fn has_value_head(&self) -> bool {
        self.has_critic() && self.learn.critic.model == CriticModel::Trunk
    }

    /// Whether that is a model of its own, whose values are made when a step takes its batch.
    pub fn has_separate_critic(&self) -> bool {
        self.has_critic() && self.learn.critic.model == CriticModel::Separate
    }

    /// Whether a step's advantages are whitened over its batch.
    pub fn whitens(&self) -> bool {
        let by_kind = !self.has_critic() && self.estimate.advantage == Advantage::BatchNormalised;
        by_kind || self.estimate.whiten == Whiten::Batch
    }

    /// What is made of a reward before advantages are.
    pub fn shaping(&self) -> Shaping {
        let e = &self.estimate;
        let overlong = (e.overlong_buffer > 0 && e.overlong_penalty > 0.0).then_some(Overlong {
            limit: self.generate.max_tokens,
            buffer: e.overlong_buffer,
            penalty: e.overlong_penalty as f32,
        });
        Shaping { bounds: [e.reward_min as f32, e.reward_max as f32], per_token: e.length_coef as f32, overlong }
    }

    /// The tensor library's threads on a worker; one with both roles gets the larger number.
    pub fn threads(&self, worker: usize) -> u16 {
        let w = &self.workers;
        let generator = if w.generators.contains(&worker) { w.generator_threads } else { 1 };
        let learner = if w.learners.contains(&worker) { w.learner_threads } else { 1 };
        generator.max(learner)
    }

    /// Those of the worker that trains.
    pub fn learner_threads(&self) -> u16 {
        self.threads(self.learner())
    }

    fn learner(&self) -> usize {
        self.workers.learners.first().copied().unwrap_or(0)
    }

    /// Every key, with dots for tables, and its value as TOML writes it; a list of tables is one value.
    pub fn keys(&self) -> BTreeMap<String, String> {
        let mut keys = BTreeMap::new();
        let mut open = vec![(String::new(), toml::Table::try_from(self).unwrap_or_default())];
        while let Some((place, table)) = open.pop() {
            for (name, value) in table {
                let key = if place.is_empty() { name } else { format!("{place}.{name}") };
                match value {
                    toml::Value::Table(table) => open.push((key, table)),
                    value => drop(keys.insert(key, value.to_string())),
                }
            }
        }
        keys
    }

    /// Timely workers of the run.
    pub fn worker_count(&self) -> usize {
        let named = self.workers.generators.iter().chain(&self.workers.learners).max().map_or(1, |last| last + 1);
        self.emulated().map_or(named, |emulation| emulation.accelerators.max(named))
    }

    /// The operators' share of the configuration, for a run that starts at nothing.
    pub fn plan(&self) -> Plan {
        let schedule = match self.schedule.schedule() {
            // No token of step k has a larger lag than k - 1: beyond the steps a bound promises nothing more.
            Schedule::Pipeline { max_lag } => Schedule::Pipeline { max_lag: max_lag.min(self.steps) },
            // A phase that is longer than the run is the run.
            Schedule::Conventional { steps } => Schedule::Conventional { steps: steps.min(self.steps) },
            Schedule::OneStepOff { steps } => Schedule::OneStepOff { steps: steps.min(self.steps) },
        };
        // All of a phase is there before any of it is trained: what came first is what is short.
        let by_turns = schedule.phase().is_some() && self.schedule.order == Order::Arrival;
        Plan {
            start: Start::default(),
            steps: self.steps,
            batch_groups: self.batch_groups(),
            group_size: self.batch.group_size as u32,
            schedule,
            weights_update: self.schedule.weights_update,
            order: if by_turns { Order::Shuffled } else { self.schedule.order },
            short_batch: self.schedule.short_batch,
            slots: self.generate.slots,
            generators: self.workers.generators.clone(),
            learner: self.learner(),
            window: self.curriculum.kept(),
            balance: self.workers.balance,
        }
    }
}
