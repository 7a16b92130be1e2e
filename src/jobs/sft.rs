//! `sft`: a supervised warm start with the learner that `run` uses.

use crate::durable::temporary;
use crate::engine::critic::Critic;
use crate::engine::spec::{Learning, Sampling};
use crate::engine::tokenizer::SPECIAL;
use crate::engine::torch::config::{Config, Family};
use crate::engine::torch::device;
use crate::engine::torch::layout::ValueHead;
use crate::engine::torch::learner::TorchLearner;
use crate::engine::torch::policy::Policy;
use crate::engine::torch::rope::RopeScaling;
use crate::error::{Error, Result};
use crate::jobs::data::Data;
use crate::jobs::encode::Encoder;
use crate::jobs::eval::{self, Mode};
use crate::jobs::progress::Steps;
use crate::jobs::rewards::Rewards;
use crate::jobs::{course, print, say, signals};
use crate::kernel::aggregation::Aggregation;
use crate::kernel::loss::Loss;
use crate::kernel::safeguard::Safeguard;
use crate::spec::{self, EvalSpec};
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
    pub family: Family,
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
            family: Family::Qwen2,
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
        only_skips(spec.learn.safeguard)?;
        spec::check_no_reference(&spec.learn.reference)?;
        spec::check_sampling(&spec.generate)?;
        spec::check_threads("threads", spec.threads)?;
        spec::check_counts(spec.batch_size, spec.generate.slots, spec.steps)?;
        spec.reward.check()?;
        let counts = [spec.batch_size as u64, spec.generate.slots as u64, spec.steps];
        if counts.contains(&0) {
            let found = format!("{}, {}, {}", spec.batch_size, spec.generate.slots, spec.steps);
            return Err(Error::config("batch_size, generate.slots, steps", found, "at least 1 each"));
        }
        if spec.output.exists() {
            let why = "exists already; choose another with --set output=FOLDER, or move it away";
            return Err(Error::config("output", spec.output.display(), why));
        }
        Ok(spec)
    }
}

/// Of safeguards a warm start has those that look at gradients.
fn only_skips(safeguard: Safeguard) -> Result<()> {
    let keys = |safeguard: Safeguard| toml::Table::try_from(safeguard).unwrap_or_default();
    let usual = keys(Safeguard::default());
    let mut set = keys(safeguard).into_iter().filter(|(key, value)| usual.get(key) != Some(value));
    let Some((key, value)) = set.find(|(key, _)| !["skip_norm", "skip_window"].contains(&key.as_str())) else {
        return Ok(());
    };
    let why = "a warm start has no lag and stops at no limit; of safeguards it has skip_norm and skip_window";
    Err(Error::config(format!("learn.safeguard.{key}"), value, why))
}

/// Trains on prompt/answer pairs, saves the model with its specification beside it, evaluates on held-out prompts.
///
/// # Errors
/// A model, data set or device that is not as the spec says; a disk that refuses; a signal, after which nothing is saved.
pub fn sft(spec: &SftSpec) -> Result<()> {
    device::set_threads(spec.threads);
    let interrupt = signals::listen("ending; a model that is not trained to its end is not saved", "")?;
    let new = spec.model.path.as_os_str().is_empty().then(|| New(untrained(&spec.output)));
    let from = new.as_ref().map_or(spec.model.path.as_path(), |new| &new.0);
    let data = Data { file: spec.data.as_ref(), tasks: &spec.task, model: from, purpose: Use::Pairs };
    let pairs = data.training(spec.seed, None)?;
    let held_out = data.held_out(spec.eval.data.as_ref(), spec.eval.prompts)?;
    let mut policy = start(spec, from)?;
    course::fits(&spec.generate, &policy)?;
    let mut learner = policy.learner(&learning(spec), 1.0, spec.steps, 0)?;
    let started = Instant::now();
    let last = train(spec, pairs, &policy, &mut learner, &interrupt.halt)?;
    if let Some(signal) = interrupt.signal() {
        say(format_args!("stopped after {} of {} steps, and not saved", last.step, spec.steps));
        return Err(Error::Signal(signal));
    }
    let seconds = started.elapsed().as_secs_f64();
    policy.set_weights(&learner.weights()?);
    policy.save(&spec.output)?;
    drop(new);
    let text = toml::to_string(spec).map_err(|e| Error::config("spec", "sft", e.to_string()))?;
    let path = spec.output.join("sft.toml");
    fs::write(&path, text).map_err(|e| Error::file(&path, e))?;

    print(format_args!("model    {} ({} parameters)", spec.output.display(), policy.layout.parameters()))?;
    let (steps, pairs) = (last.step, spec.batch_size);
    print(format_args!("trained  {steps} steps of {pairs} pairs in {seconds:.1} s, last loss {:.4}", last.loss))?;
    if !held_out.is_empty() {
        let held_out = eval::held_out(held_out, &policy, spec.eval.data.as_ref())?;
        let rewards = Rewards::start(&spec.reward)?;
        let of = |mode| eval::evaluate(&held_out, &policy, &spec.generate, &rewards, mode, spec.seed, &interrupt.halt);
        let (sampled, greedy) = (of(Mode::Sampled)?, of(Mode::Greedy)?);
        if let Some(signal) = interrupt.signal() {
            return Err(Error::Signal(signal));
        }
        print(eval::table(&[("sampled", &sampled), ("greedy", &greedy)]))?;
    }
    print(format_args!("next     tidegate run SPEC.toml --set model.path={}", spec.output.display()))
}

fn learning(spec: &SftSpec) -> Learning {
    Learning { loss: Loss::Supervised, value_coef: 0.0, critic: Critic::default(), ..spec.learn.clone() }
}

/// Where a new model stands until it is trained: not where the trained one is staged.
fn untrained(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(".start");
    temporary(&output.with_file_name(name))
}

/// The model in the folder `from`; a new one is made there first.
fn start(spec: &SftSpec, from: &Path) -> Result<Policy> {
    let m = &spec.model;
    if !m.path.as_os_str().is_empty() {
        return Policy::load(from, &m.device, ValueHead::None);
    }
    let config = Config {
        family: m.family,
        rope_scaling: RopeScaling::None,
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

/// The folder of a new model, until the trained one is saved or the warm start is given up.
struct New(PathBuf);

impl Drop for New {
    fn drop(&mut self) {
        // What cannot be removed has a name that says what it is, and the next warm start replaces it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// So many pairs in a row that cannot be learned from end the warm start: it would look for others without end.
const LEFT_OUT_LIMIT: u64 = 1000;

/// What the last step was like; a step that a halt cuts off does not count.
fn train(spec: &SftSpec, pairs: Prompts, policy: &Policy, learner: &mut TorchLearner, halt: &Halt) -> Result<Metrics> {
    let mut pairs = Pairs { pairs, encoder: Encoder::new(policy, spec.data.as_ref())?, policy, left_out: 0 };
    let steps = Steps::new(spec.steps);
    let mut last = Metrics::default();
    for step in 1..=spec.steps {
        let batch = pairs.batch(spec.batch_size)?;
        if batch.is_empty() {
            break;
        }
        learner.begin(step, batch)?;
        let trained = loop {
            let trained = if halt.is_set() { break None } else { learner.work()? };
            if trained.is_some() {
                break trained;
            }
        };
        let Some(trained) = trained else { break };
        last = trained.metrics;
        steps.show(step, &format!("loss {:.4}", last.loss));
    }
    steps.finish();
    if pairs.left_out > 0 {
        say(format_args!("note      {} pairs were left out", pairs.left_out));
    }
    Ok(last)
}

/// Worked answers as rollouts.
struct Pairs<'a> {
    pairs: Prompts,
    encoder: Encoder,
    policy: &'a Policy,
    left_out: u64,
}

impl Pairs<'_> {
    /// The next `size` pairs; fewer at the end.
    fn batch(&mut self, size: usize) -> Result<Vec<Rollout>> {
        let (mut batch, mut in_a_row) = (Vec::with_capacity(size), 0);
        while batch.len() < size
            && let Some(next) = self.pairs.next()
        {
            match self.pair(next?.1)? {
                Ok(rollout) => batch.push(rollout),
                Err(why) => {
                    (self.left_out, in_a_row) = (self.left_out + 1, in_a_row + 1);
                    if in_a_row == LEFT_OUT_LIMIT {
                        let why = format!("cannot be learned from, the last one because {why}");
                        return Err(Error::config("data", format!("{in_a_row} pairs in a row"), why));
                    }
                    continue;
                }
            }
            in_a_row = 0;
        }
        Ok(batch)
    }

    /// A worked answer as a rollout: every token of it, and the end of sequence, is trained. The other side says why it has to
    /// be left out.
    fn pair(&mut self, item: Item) -> Result<Result<Rollout, String>> {
        if item.completion.is_empty() && item.refused.is_none() {
            let what = format!("prompt {} of task {}", item.id, item.task);
            return Err(Error::config("data", what, "has no worked answer (completion) to learn from"));
        }
        let mut tokens = self.policy.tokenizer.encode(&item.completion)?;
        tokens.extend(self.policy.config.eos_token_id.first());
        let n = tokens.len();
        // The last token goes into no model.
        let longest = self.policy.config.max_position_embeddings as usize;
        let prompt = self.encoder.prompt_within((longest + 1).saturating_sub(n), 0, item)?;
        if let Some(why) = prompt.refused {
            return Ok(Err(why));
        }
        Ok(Ok(Rollout {
            group: Arc::new(Group { size: 1, prompt, ..Group::default() }),
            tokens,
            mask: vec![true; n],
            logp_behavior: vec![0.0; n],
            version: vec![0; n],
            advantage: vec![1.0; n],
            ..Rollout::default()
        }))
    }
}
