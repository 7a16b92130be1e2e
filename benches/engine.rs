//! What the engine does a second, on work that a file names: sampling and gradient steps of one model, for comparisons with
//! other programs on the same work.
//!
//! ```text
//! cargo bench --bench engine -- decode MODEL WORK.json --slots 64 --threads 2
//! cargo bench --bench engine -- train MODEL WORK.json --threads 2
//! cargo bench --bench engine -- device --device cuda:0
//! ```
//!
//! WORK is `{"requests": [{"prompt": [ids], "tokens": n}, ..]}` for `decode` (each answer has exactly `n` tokens), and
//! `{"rollouts": [{"prompt": [ids], "tokens": [ids], "logp_behavior": [..], "advantage": [..]}, ..]}` for `train`. One line of
//! JSON is printed, times in seconds.

#[path = "engine/device.rs"]
mod device;

use clap::{Args, Parser, Subcommand};
use safetensors::tensor::TensorView;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tidegate::engine::contract::Engine;
use tidegate::engine::spec::{Dtype, Learning, LrSchedule, Sampling};
use tidegate::engine::torch::layout::ValueHead;
use tidegate::engine::torch::learner::TorchLearner;
use tidegate::engine::torch::policy::Policy;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Rollout, Status};
use tidegate_operators::train::Learner;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
    /// Cargo passes it.
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum What {
    /// Samples answers of given lengths.
    Decode {
        #[command(flatten)]
        common: Common,
        /// Answers in progress at once.
        #[arg(long, default_value_t = 64)]
        slots: usize,
    },
    /// Makes gradient steps on given rollouts.
    Train {
        #[command(flatten)]
        common: Common,
        /// Most tokens of a micro-batch.
        #[arg(long, default_value_t = 2048)]
        micro_batch_tokens: usize,
        #[arg(long, default_value_t = 1e-6)]
        lr: f64,
        /// Computes layers again on the way back instead of keeping what goes on in them.
        #[arg(long)]
        activation_checkpointing: bool,
        /// Writes the first step's gradient, scaled to norm 1 if it is longer, to this file (safetensors).
        #[arg(long)]
        gradient: Option<PathBuf>,
    },
    /// Holds a device to the CPU, and models of random weights to what it could do at best; needs no files.
    Device(device::What),
    /// What a device copies and multiplies a second.
    Rates(device::Where),
}

#[derive(Args)]
struct Common {
    /// A model's folder.
    model: PathBuf,
    /// A file of work.
    work: PathBuf,
    #[arg(long, default_value_t = 2)]
    threads: u16,
    #[arg(long, default_value = "cpu")]
    device: String,
    /// What products are computed in: fp32 or bf16.
    #[arg(long, default_value = "fp32", value_parser = dtype)]
    dtype: Dtype,
    /// Times that all of it is done, after a short warm-up.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Deserialize)]
struct Requests {
    requests: Vec<Request>,
}

#[derive(Deserialize)]
struct Request {
    prompt: Vec<u32>,
    tokens: u32,
}

#[derive(Deserialize)]
struct Rollouts {
    rollouts: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logp_behavior: Vec<f32>,
    advantage: Vec<f32>,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Failure> {
    let result = match Cli::parse().what {
        What::Decode { common, slots } => decode(&common, slots)?,
        What::Train { common, micro_batch_tokens, lr, activation_checkpointing, gradient } => {
            let learning = Learning {
                lr,
                lr_schedule: LrSchedule::Constant,
                warmup_steps: 0,
                grad_clip: 1.0,
                micro_batch_tokens,
                dtype: common.dtype,
                activation_checkpointing,
                ..Learning::default()
            };
            train(&common, &learning, gradient.as_deref())?
        }
        What::Device(what) => return device::measure(&what),
        What::Rates(at) => return device::rates(&at),
    };
    println!("{result}");
    Ok(ExitCode::SUCCESS)
}

fn dtype(name: &str) -> Result<Dtype, String> {
    match name {
        "fp32" => Ok(Dtype::Fp32),
        "bf16" => Ok(Dtype::Bf16),
        _ => Err("it must be fp32 or bf16".to_owned()),
    }
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, Failure> {
    Ok(serde_json::from_slice(&std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?)?)
}

fn decode(common: &Common, slots: usize) -> Result<Value, Failure> {
    let work: Requests = read(&common.work)?;
    let begun = Instant::now();
    Policy::set_threads(common.threads);
    let policy = Policy::load(&common.model, &common.device, ValueHead::None)?;
    let longest = work.requests.iter().map(|r| r.tokens as usize).max().unwrap_or(1).max(4);
    let sampling = Sampling { slots, max_tokens: longest, ignore_eos: true, dtype: common.dtype, ..Sampling::default() };
    let mut generator = policy.generator(&sampling, common.seed, 0)?;
    generator.load(0, policy.snapshot()?)?;
    // The first token, and the warm-up.
    let first = Request { prompt: work.requests[0].prompt.clone(), tokens: 1 };
    sample(&mut generator, &[first], 0)?;
    let start_to_first_token = begun.elapsed().as_secs_f64();
    let few: Vec<Request> =
        work.requests.iter().take(slots).map(|r| Request { prompt: r.prompt.clone(), tokens: 4 }).collect();
    sample(&mut generator, &few, 1)?;
    // What a weight update costs a generator, beside one copy of the weights.
    let timed = |f: &mut dyn FnMut() -> Result<(), Failure>| -> Result<f64, Failure> {
        let all = (0..5).map(|_| {
            let begun = Instant::now();
            f()?;
            Ok(begun.elapsed().as_secs_f64())
        });
        Ok(median(&all.collect::<Result<Vec<f64>, Failure>>()?))
    };
    let weights = policy.snapshot()?;
    let mut version = 0;
    let update = timed(&mut || {
        version += 1;
        Ok(generator.load(version, weights.clone())?)
    })?;
    let copy = timed(&mut || Ok(drop(policy.snapshot()?)))?;
    drop(weights);
    reset_peak();
    let (mut seconds, mut logps) = (Vec::new(), Vec::new());
    for repeat in 0..common.repeats {
        let begun = Instant::now();
        logps.push(sample(&mut generator, &work.requests, 1_000_000 * (repeat as u64 + 2))?);
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let useful: u64 = work.requests.iter().map(|r| u64::from(r.tokens)).sum();
    Ok(json!({
        "bench": "decode",
        "useful_tokens": useful,
        "seconds": seconds,
        "useful_tok_s": useful as f64 / median(&seconds),
        "mean_logprob": logps.iter().sum::<f64>() / logps.len() as f64,
        "start_to_first_token_s": start_to_first_token,
        "weight_update_s": update,
        "weight_copy_s": copy,
        "peak_rss_mb": peak_mb(),
        "slots": slots,
        "threads": common.threads,
    }))
}

/// Samples all requests, which get numbers from `number` on; returns the mean log-probability of their tokens.
fn sample(generator: &mut impl Generator, requests: &[Request], number: u64) -> Result<f64, Failure> {
    for (i, request) in requests.iter().enumerate() {
        let prompt = Prompt { tokens: request.prompt.clone(), max_tokens: Some(request.tokens), ..Prompt::default() };
        generator.start(Arc::new(Group { number: number + i as u64, size: 1, prompt, ..Group::default() }))?;
    }
    let (mut sum, mut tokens, mut done) = (0.0, 0usize, 0);
    while generator.running() > 0 {
        for rollout in generator.step()? {
            sum += rollout.logp_behavior.iter().map(|&x| f64::from(x)).sum::<f64>();
            tokens += rollout.tokens.len();
            done += 1;
        }
    }
    let asked: usize = requests.iter().map(|r| r.tokens as usize).sum();
    if (done, tokens) != (requests.len(), asked) {
        return Err(format!("{tokens} tokens in {done} answers, {asked} in {} were asked for", requests.len()).into());
    }
    Ok(sum / tokens as f64)
}

fn train(common: &Common, learning: &Learning, gradient: Option<&Path>) -> Result<Value, Failure> {
    let work: Rollouts = read(&common.work)?;
    Policy::set_threads(common.threads);
    let policy = Policy::load(&common.model, &common.device, ValueHead::None)?;
    let batch: Vec<Rollout> =
        work.rollouts.into_iter().zip(0..).map(|(recorded, number)| rollout(recorded, number)).collect();
    let trained: usize = batch.iter().map(|r| r.tokens.len()).sum();
    let processed: usize = trained + batch.iter().map(|r| r.group.prompt.tokens.len()).sum::<usize>();
    let steps = common.repeats as u64 + 1;
    let mut learner = policy.learner(learning, Sampling::default().temperature, steps, 0)?;
    let (mut seconds, mut first) = (Vec::new(), None);
    for step in 1..=steps {
        let begun = Instant::now();
        learner.begin(step, batch.clone())?;
        let done = loop {
            if let Some(done) = learner.work()? {
                break done;
            }
        };
        if first.is_none() {
            if let Some(file) = gradient {
                write_gradient(&learner, learning, file)?;
            }
            reset_peak();
            first = Some(done.metrics);
        } else {
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    let first = first.ok_or("no step was made")?;
    Ok(json!({
        "bench": "train",
        "trained_tokens": trained,
        "processed_tokens": processed,
        "slots": first.slots,
        "seconds": seconds,
        "processed_tok_s": processed as f64 / median(&seconds),
        "loss": first.loss,
        "grad_norm": first.grad_norm,
        "peak_rss_mb": peak_mb(),
        "threads": common.threads,
        "micro_batch_tokens": learning.micro_batch_tokens,
    }))
}

/// The gradient of the only step so far, of which the optimizer's first moment is a known share.
fn write_gradient(learner: &TorchLearner, learning: &Learning, file: &Path) -> Result<(), Failure> {
    let mean = learner.optimizer().state().m.f_div_scalar(1.0 - learning.beta1)?;
    let bytes = Vec::<f32>::try_from(mean)?.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensors = learner.layout().entries.iter().map(|entry| {
        let (start, end) = (entry.offset as usize * 4, (entry.offset + entry.len) as usize * 4);
        let shape = entry.shape.iter().map(|&n| n as usize).collect();
        Ok((entry.name.as_str(), TensorView::new(safetensors::Dtype::F32, shape, &bytes[start..end])?))
    });
    Ok(safetensors::serialize_to_file(tensors.collect::<Result<Vec<_>, Failure>>()?, None, file)?)
}

fn rollout(recorded: Recorded, number: u64) -> Rollout {
    let prompt = Prompt { tokens: recorded.prompt, ..Prompt::default() };
    let n = recorded.tokens.len();
    Rollout {
        group: Arc::new(Group { number, size: 1, prompt, ..Group::default() }),
        mask: vec![true; n],
        version: vec![0; n],
        tokens: recorded.tokens,
        logp_behavior: recorded.logp_behavior,
        advantage: recorded.advantage,
        reward: Some(0.0),
        status: Status::Waiting,
        ..Rollout::default()
    }
}

fn median(xs: &[f64]) -> f64 {
    let mut sorted = xs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 { f64::NAN } else { (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0 }
}

/// The largest resident set since the last reset, MiB, where the system tells.
fn peak_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

fn reset_peak() {
    // Where it cannot be reset, the peak holds the start too.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
