//! `sft`: a supervised warm start with the learner that `run` uses.

use crate::engine::spec::{Learning, Sampling};
use crate::engine::tokenizer::SPECIAL;
use crate::engine::torch::config::{Config, Family};
use crate::engine::torch::device;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::learner::TorchLearner;
use crate::engine::torch::policy::Policy;
use crate::error::{Error, Result};
use crate::jobs::data::{self, Data};
use crate::jobs::eval::{self, Mode};
use crate::jobs::print;
use crate::jobs::progress::Steps;
use crate::jobs::rewards::Rewards;
use crate::kernel::aggregation::Aggregation;
use crate::kernel::loss::Loss;
use crate::spec::{self, EvalSpec};
use crate::store::layout::temporary;
use crate::tasks::item::Item;
use crate::tasks::prompts::Use;
use crate::tasks::source::Prompts;
use crate::tasks::spec::{DataSpec, RewardSpec, TaskSpec};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tidegate_operators::fault::Halt;
use tidegate_operators::record::{Group, Metrics, Rollout};
use tidegate_operators::train::Learner;

/// What `tidegate sft` needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SftSpec {
    /// Folder of the model that is made; must not exist.
    pub output: PathBuf,
    pub seed: u64,
    pub steps: u64,
    /// Pairs a step.
    pub batch_size: usize,
    /// libtorch threads.
    pub threads: u16,
    pub model: StartModel,
    /// A file of pairs; left out: `task` are generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
    pub task: Vec<TaskSpec>,
    /// For the evaluation at the end.
    pub reward: RewardSpec,
    pub generate: Sampling,
    pub learn: Learning,
    pub eval: EvalSpec,
}

impl Default for SftSpec {
    fn default() -> Self {
        SftSpec {
            output: PathBuf::from("models/sft"),
            seed: 1,
            steps: 1000,
            batch_size: 64,
            threads: 2,
            model: StartModel::default(),
            data: None,
            task: Vec::new(),
            reward: RewardSpec::default(),
            generate: Sampling::default(),
            learn: Learning { lr: 1e-3, grad_clip: 1.0, aggregation: Aggregation::TokenMean, ..Learning::default() },
            eval: EvalSpec::default(),
        }
    }
}

/// What the warm start starts from (`[model]`): a folder, or the shape of a new model with a token a character.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StartModel {
    /// A Hugging Face folder; empty: a new model of the shape below.
    pub path: PathBuf,
    pub device: String,
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub layers: i64,
    pub heads: i64,
    pub kv_heads: i64,
    /// Longest sequence, tokens.
    pub max_position: i64,
    /// Every character that the new model's tokenizer knows.
    pub alphabet: String,
}

impl Default for StartModel {
    fn default() -> Self {
        StartModel {
            path: PathBuf::new(),
            device: "cpu".into(),
            hidden_size: 128,
            intermediate_size: 384,
            layers: 4,
            heads: 4,
            kv_heads: 2,
            max_position: 256,
            alphabet: crate::tasks::generated::ALPHABET.into(),
        }
    }
}

impl SftSpec {
    /// Reads a spec and lays `--set` assignments over it.
    ///
    /// # Errors
    /// As [`Spec::load`](crate::spec::Spec::load).
    pub fn load(path: &Path, sets: &[String]) -> Result<SftSpec> {
        let mut spec: SftSpec = spec::read(&spec::text_of(path)?, &path.display().to_string(), sets)?;
        spec.task = spec.task.into_iter().map(TaskSpec::with_defaults).collect();
        spec::check_learning(&spec.learn)?;
        spec.reward.check()?;
        if spec.batch_size == 0 || spec.steps == 0 {
            return Err(Error::config(
                "batch_size, steps",
                format!("{}, {}", spec.batch_size, spec.steps),
                "at least 1 each",
            ));
        }
        if spec.output.exists() {
            let why = "exists already; choose another with --set output=FOLDER, or move it away";
            return Err(Error::config("output", spec.output.display(), why));
        }
        Ok(spec)
    }
}

/// Trains on prompt/answer pairs, saves the model with its specification beside it, evaluates on held-out prompts.
///
/// # Errors
/// A model, data set or device that is not as the spec says; a disk that refuses.
pub fn sft(spec: &SftSpec) -> Result<()> {
    device::set_threads(spec.threads);
    let from = if spec.model.path.as_os_str().is_empty() { temporary(&spec.output) } else { spec.model.path.clone() };
    let data = Data { file: spec.data.as_ref(), tasks: &spec.task, model: &from, purpose: Use::Pairs };
    let pairs = data.training(spec.seed, None)?;
    let held_out = data.held_out(spec.eval.data.as_ref(), spec.eval.prompts)?;
    let mut policy = start(spec, &from)?;
    let mut learner = policy.learner(&learning(spec), 1.0, spec.steps, 0)?;
    let started = Instant::now();
    let last = train(spec, pairs, &policy, &mut learner)?;
    let seconds = started.elapsed().as_secs_f64();
    policy.set_weights(&learner.weights()?);
    policy.save(&spec.output)?;
    if from != spec.model.path {
        fs::remove_dir_all(&from).map_err(|e| Error::file(&from, e))?;
    }
    let text = toml::to_string(spec).map_err(|e| Error::config("spec", "sft", e.to_string()))?;
    let path = spec.output.join("sft.toml");
    fs::write(&path, text).map_err(|e| Error::file(&path, e))?;

    print(format_args!("model    {} ({} parameters)", spec.output.display(), policy.layout.parameters()))?;
    let (steps, pairs) = (last.step, spec.batch_size);
    print(format_args!("trained  {steps} steps of {pairs} pairs in {seconds:.1} s, last loss {:.4}", last.loss))?;
    if !held_out.is_empty() {
        let halt = Halt::default();
        let rewards = Rewards::start(&spec.reward)?;
        let of = |mode| eval::evaluate(&held_out, &policy, &spec.generate, &rewards, mode, spec.seed, &halt);
        print(eval::table(&[("sampled", &of(Mode::Sampled)?), ("greedy", &of(Mode::Greedy)?)]))?;
    }
    print(format_args!("next     tidegate run SPEC.toml --set model.path={}", spec.output.display()))
}

fn learning(spec: &SftSpec) -> Learning {
    Learning { loss: Loss::Supervised, value_coef: 0.0, ..spec.learn.clone() }
}

/// The model in the folder `from`; a new one is made there first.
fn start(spec: &SftSpec, from: &Path) -> Result<Policy> {
    let m = &spec.model;
    if !m.path.as_os_str().is_empty() {
        return Policy::load(from, &m.device, ValueHead::None);
    }
    let config = Config {
        family: Family::Qwen2,
        vocab_size: (SPECIAL.len() + m.alphabet.chars().count()) as i64,
        hidden_size: m.hidden_size,
        intermediate_size: m.intermediate_size,
        num_hidden_layers: m.layers,
        num_attention_heads: m.heads,
        num_key_value_heads: m.kv_heads,
        head_dim: m.hidden_size / m.heads.max(1),
        max_position_embeddings: m.max_position,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        attention_bias: false,
        mlp_bias: false,
        eos_token_id: vec![2],
        bos_token_id: Some(1),
        pad_token_id: Some(0),
    };
    // A new model is a folder like any other, made under a temporary name: where the trained one will stand is nothing yet.
    // The same checks that a folder's config.json has to pass.
    let config = Config::parse(&config.to_json().to_string(), Path::new("[model]"))?;
    Policy::create(from, &config, &m.alphabet, spec.seed)?;
    Policy::load(from, &m.device, ValueHead::None)
}

fn train(spec: &SftSpec, mut pairs: Prompts, policy: &Policy, learner: &mut TorchLearner) -> Result<Metrics> {
    let steps = Steps::new(spec.steps);
    let mut last = Metrics::default();
    for step in 1..=spec.steps {
        let batch: Vec<Rollout> =
            pairs.by_ref().take(spec.batch_size).map(|(_, item)| pair(item, policy)).collect::<Result<_>>()?;
        if batch.is_empty() {
            break;
        }
        learner.begin(step, batch)?;
        last = loop {
            if let Some(trained) = learner.work()? {
                break trained.metrics;
            }
        };
        steps.show(step, &format!("loss {:.4}", last.loss));
    }
    steps.finish();
    Ok(last)
}

/// A worked answer as a rollout: every token of it, and the end of sequence, is trained.
fn pair(item: Item, policy: &Policy) -> Result<Rollout> {
    if item.completion.is_empty() {
        let what = format!("prompt {} of task {}", item.id, item.task);
        return Err(Error::config("data", what, "has no worked answer (completion) to learn from"));
    }
    let mut tokens = policy.tokenizer.encode(&item.completion)?;
    tokens.extend(policy.config.eos_token_id.first());
    let n = tokens.len();
    Ok(Rollout {
        group: Arc::new(Group { size: 1, prompt: data::prompt(0, item, &policy.tokenizer)?, ..Group::default() }),
        tokens,
        mask: vec![true; n],
        logp_behavior: vec![0.0; n],
        version: vec![0; n],
        advantage: vec![1.0; n],
        ..Rollout::default()
    })
}
