//! `sft`: a supervised warm start with the learner that `run` uses.

use crate::engine::spec::Learning;
use crate::engine::tokenizer::{self, Tokenizer};
use crate::engine::torch::checkpoint::{self, Loaded};
use crate::engine::torch::config::{Config, Family};
use crate::engine::torch::device::{self, Device};
use crate::engine::torch::layout::{Layout, ValueHead};
use crate::engine::torch::learner::TorchLearner;
use crate::error::{Error, Result};
use crate::jobs::data;
use crate::jobs::eval::Evaluation;
use crate::jobs::model::{self, Mode};
use crate::kernel::aggregation::Aggregation;
use crate::kernel::loss::Loss;
use crate::spec::{DataSpec, EvalSpec, read_table};
use crate::tasks::Item;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tidegate_operators::record::{Group, Metrics, Prompt, Rollout};
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
    pub threads: usize,
    pub model: StartModel,
    pub data: DataSpec,
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
            data: DataSpec::default(),
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
            alphabet: crate::tasks::ALPHABET.into(),
        }
    }
}

impl SftSpec {
    /// Reads a spec and lays `--set` assignments over it.
    ///
    /// # Errors
    /// As [`Spec::load`](crate::spec::Spec::load).
    pub fn load(path: &Path, sets: &[String]) -> Result<SftSpec> {
        let spec: SftSpec = read_table(path, sets, &SftSpec::default())?;
        if spec.batch_size == 0 || spec.steps == 0 {
            return Err(Error::config("batch_size, steps", format!("{}, {}", spec.batch_size, spec.steps), "at least 1 each"));
        }
        if spec.output.exists() {
            let why = "exists already; choose another with --set output=FOLDER, or move it away";
            return Err(Error::config("output", spec.output.display(), why));
        }
        Ok(spec)
    }
}

/// Trains on prompt/answer pairs, evaluates on held-out prompts, saves the model with its specification beside it.
///
/// # Errors
/// A model, data set or device that is not as the spec says; a disk that refuses.
pub fn sft(spec: SftSpec) -> Result<()> {
    let device = device::parse(&spec.model.device)?;
    device::set_threads(spec.threads);
    let (loaded, tokenizer) = start_model(&spec)?;
    let learning = Learning { loss: Loss::Supervised, value_coef: 0.0, ..spec.learn.clone() };
    let mut learner = TorchLearner::new(
        loaded.config.clone(),
        loaded.layout.clone(),
        loaded.flat.shallow_clone(),
        device,
        learning,
        1.0,
        spec.steps,
        0,
    )?;
    let started = Instant::now();
    let last = train(&spec, &tokenizer, &mut learner)?;
    let seconds = started.elapsed().as_secs_f64();
    save(&spec, &loaded, &tokenizer, &learner)?;
    let greedy = evaluate(&spec, &loaded, &tokenizer, &learner, device, Mode::Greedy)?;
    let sampled = evaluate(&spec, &loaded, &tokenizer, &learner, device, Mode::Sampled)?;
    println!("model     {}", spec.output.display());
    println!("trained   {} steps of {} pairs in {seconds:.0} s, last loss {:.4}", spec.steps, spec.batch_size, last.loss);
    print!("{}", crate::jobs::eval::table(&[("sampled", &sampled), ("greedy", &greedy)]));
    println!("next      tidegate run SPEC.toml --set model.path={}", spec.output.display());
    Ok(())
}

fn start_model(spec: &SftSpec) -> Result<(Loaded, Tokenizer)> {
    let m = &spec.model;
    if !m.path.as_os_str().is_empty() {
        return Ok((checkpoint::load(&m.path, ValueHead::None)?, Tokenizer::load(&m.path)?));
    }
    let tokenizer = Tokenizer::from_json(&tokenizer::char_level(&m.alphabet))?;
    let config = Config {
        family: Family::Qwen2,
        vocab_size: tokenizer.vocab_size() as i64,
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
        eos_token_id: vec![tokenizer::EOS],
        bos_token_id: Some(tokenizer::BOS),
        pad_token_id: Some(tokenizer::PAD),
    };
    let layout = Layout::of(&config, ValueHead::None);
    let flat = checkpoint::init(&config, &layout, spec.seed)?;
    Ok((Loaded { config, layout, flat, model_hash: String::new() }, tokenizer))
}

fn train(spec: &SftSpec, tokenizer: &Tokenizer, learner: &mut TorchLearner) -> Result<Metrics> {
    let mut items = data::training(&spec.data, spec.seed)?;
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(spec.steps) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:24.cyan/blue} {pos}/{len} {elapsed}<{eta}  {msg}") {
        bar.set_style(style);
    }
    let mut last = Metrics::default();
    let (started, mut said) = (Instant::now(), Instant::now());
    for step in 1..=spec.steps {
        let mut batch = Vec::with_capacity(spec.batch_size);
        while batch.len() < spec.batch_size {
            let Some(item) = items.next() else { break };
            batch.push(pair(item?, tokenizer)?);
        }
        if batch.is_empty() {
            break;
        }
        learner.begin(step, batch)?;
        last = loop {
            if let Some(trained) = learner.work()? {
                break trained.metrics;
            }
        };
        bar.set_position(step);
        bar.set_message(format!("loss {:.4}", last.loss));
        if bar.is_hidden() && (said.elapsed().as_secs() >= 10 || step == 1 || step == spec.steps) {
            said = Instant::now();
            let rate = step as f64 / started.elapsed().as_secs_f64();
            eprintln!("step {step:>5}/{}  loss {:.4}  {rate:.1} steps/s", spec.steps, last.loss);
        }
    }
    bar.finish_and_clear();
    Ok(last)
}

/// A worked answer as a rollout that is certain of itself: every token of it, and the end, is trained.
fn pair(item: Item, tokenizer: &Tokenizer) -> Result<Rollout> {
    if item.completion.is_empty() {
        let why = "sft needs a worked answer in `completion`";
        return Err(Error::config("data", format!("prompt {} of task {}", item.id, item.task), why));
    }
    let mut tokens = tokenizer.encode(&item.completion)?;
    tokens.push(tokenizer.eos());
    let n = tokens.len();
    let prompt = Prompt { id: item.id, tokens: tokenizer.encode(&item.text)?, text: item.text, ..Prompt::default() };
    Ok(Rollout {
        group: Arc::new(Group { size: 1, prompt, ..Group::default() }),
        tokens,
        mask: vec![true; n],
        logp_behavior: vec![0.0; n],
        version: vec![0; n],
        advantage: vec![1.0; n],
        ..Rollout::default()
    })
}
