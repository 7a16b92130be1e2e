//! What the engine reaches on a device: that it says there what it says on the CPU, and tokens a second of models of random weights
//! against what the device could do at best.
//!
//! ```text
//! cargo bench --bench engine -- device --device cuda:0
//! cargo bench --bench engine -- rates --device cuda:0
//! ```
//!
//! One line of JSON a figure as it is found, and one table at the end. The exit code is 3 where the device is not there, 1 where a
//! check failed.

use crate::{Failure, Recorded, Request, median, rollout, sample};
use clap::Args;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use tidegate::engine::spec::{Dtype, Learning, LrSchedule, Sampling};
use tidegate::engine::torch::config::Config;
use tidegate::engine::torch::device;
use tidegate::engine::torch::generator::{Settings, TorchGenerator};
use tidegate::engine::torch::layout::{Layout, ValueHead};
use tidegate::engine::torch::learner::TorchLearner;
use tidegate::engine::torch::probe::{self, Rates, random_weights};
use tidegate::engine::torch::weights::Snapshot;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Rollout};
use tidegate_operators::train::{Learner, Trained};

const NO_DEVICE: u8 = 3;

#[derive(Args)]
pub struct Where {
    #[arg(long, default_value = "cuda:0")]
    device: String,
    #[arg(long, default_value_t = 8)]
    threads: u16,
}

#[derive(Args)]
pub struct What {
    #[command(flatten)]
    at: Where,
    /// The models: 135m, 1.5b.
    #[arg(long, value_delimiter = ',', default_value = "135m,1.5b")]
    models: Vec<String>,
    /// Sequences in progress at once.
    #[arg(long, value_delimiter = ',', default_value = "8,64,256")]
    slots: Vec<usize>,
    /// So many layers instead of all, to try it out.
    #[arg(long)]
    layers: Option<i64>,
    /// Sequences of a training step.
    #[arg(long, default_value_t = 32)]
    sequences: usize,
    /// After so many seconds nothing new is begun.
    #[arg(long, default_value_t = 240.0)]
    seconds: f64,
}

/// The shapes of SmolLM2-135M and Qwen2.5-1.5B.
const MODELS: [(&str, &str); 2] = [
    (
        "135m",
        r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true}"#,
    ),
    (
        "1.5b",
        r#"{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 1536, "intermediate_size": 8960,
            "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true}"#,
    ),
];

/// A model's shape, on a device.
struct Model<'a> {
    name: &'a str,
    device: &'a str,
    config: Config,
    layout: Layout,
}

/// One thing found.
struct Figure {
    name: String,
    found: f64,
    unit: &'static str,
    /// The best that could be, in the same unit.
    floor: Option<f64>,
    /// For a check, the most that may be found.
    tolerance: Option<f64>,
}

impl Figure {
    fn holds(&self) -> bool {
        self.tolerance.is_none_or(|tolerance| self.found <= tolerance)
    }

    /// How near the floor it is, whether it is a rate or a time.
    fn share(&self) -> Option<f64> {
        self.floor.map(|floor| if self.unit.ends_with("/s") { self.found / floor } else { floor / self.found })
    }

    fn json(&self) -> Value {
        let Figure { name, found, unit, floor, tolerance } = self;
        json!({"figure": name, "found": found, "unit": unit, "floor": floor, "share": self.share(), "tolerance": tolerance,
               "holds": tolerance.map(|_| self.holds())})
    }

    fn row(&self) -> String {
        let number = |x: f64| {
            if x == 0.0 || x.abs() >= 100.0 {
                format!("{x:.0}")
            } else if x.abs() >= 0.01 {
                format!("{x:.3}")
            } else {
                format!("{x:.1e}")
            }
        };
        let against = match (self.floor, self.tolerance) {
            (Some(floor), _) => format!("floor {}", number(floor)),
            (None, Some(tolerance)) => format!("at most {}", number(tolerance)),
            (None, None) => String::new(),
        };
        let last = match (self.share(), self.tolerance) {
            (Some(share), _) => format!("{:.1} %", 100.0 * share),
            (None, Some(_)) => if self.holds() { "holds" } else { "FAILS" }.to_owned(),
            (None, None) => String::new(),
        };
        format!("| {:46} | {:>10} {:8} | {:>16} | {:>7} |", self.name, number(self.found), self.unit, against, last)
    }
}

/// What has been found so far.
struct Found {
    begun: Instant,
    limit: f64,
    figures: Vec<Figure>,
    /// What could not be measured, and why.
    failed: Vec<String>,
}

impl Found {
    /// Does one measurement; one that fails does not keep the others from being made.
    fn add(&mut self, what: &str, measure: impl FnOnce() -> Result<Vec<Figure>, Failure>) {
        if self.begun.elapsed().as_secs_f64() > self.limit {
            return self.failed.push(format!("{what}: left out, {:.0} s had passed", self.limit));
        }
        match measure() {
            Ok(figures) => {
                figures.iter().for_each(|figure| println!("{}", figure.json()));
                self.figures.extend(figures);
            }
            Err(error) => self.failed.push(format!("{what}: {error}")),
        }
    }
}

/// Opens the device; where that fails, says so and how the program is to end.
fn open(at: &Where) -> Result<(), ExitCode> {
    device::set_threads(at.threads);
    let device = device::parse(&at.device).map_err(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })?;
    match device::open(device) {
        Ok(()) => Ok(()),
        Err(error) => {
            eprintln!("{error}");
            println!("no CUDA device: nothing was measured");
            Err(ExitCode::from(NO_DEVICE))
        }
    }
}

pub fn rates(at: &Where) -> Result<ExitCode, Failure> {
    if let Err(code) = open(at) {
        return Ok(code);
    }
    for dtype in [Dtype::Fp32, Dtype::Bf16] {
        let Rates { bytes_s, flops_s } = probe::rates(device::parse(&at.device)?, dtype)?;
        println!("{}", json!({"bench": "rates", "dtype": dtype, "copy_bytes_s": bytes_s, "product_flops_s": flops_s}));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn measure(what: &What) -> Result<ExitCode, Failure> {
    if let Err(code) = open(&what.at) {
        return Ok(code);
    }
    let mut found = Found { begun: Instant::now(), limit: what.seconds, figures: Vec::new(), failed: Vec::new() };
    let device = device::parse(&what.at.device)?;
    let rates = probe::rates(device, Dtype::Bf16)?;
    found.add("rates", || {
        let figure = |name: &str, found, unit| Figure { name: name.to_owned(), found, unit, floor: None, tolerance: None };
        let copied = figure("copy, read and written", rates.bytes_s / 1e9, "GB/s");
        Ok(vec![copied, figure("product of matrices, bf16", rates.flops_s / 1e12, "TFLOP/s")])
    });
    for name in &what.models {
        let (name, json) = MODELS.iter().find(|(known, _)| known == name).ok_or_else(|| format!("no model {name}"))?;
        let mut config = Config::parse(json, Path::new(name))?;
        config.num_hidden_layers = what.layers.unwrap_or(config.num_hidden_layers);
        let model = Model { name, device: &what.at.device, layout: Layout::of(&config, ValueHead::None), config };
        // The CPU would need minutes for the large one.
        if *name == "135m" {
            found.add("logits", || logits(&model));
            found.add("rollouts of the CPU", || again(&model));
        }
        let weights = random_weights(&model.layout, device, 0)?;
        for &slots in &what.slots {
            found.add(&format!("decode {name} {slots}"), || decode(&model, &weights, rates, slots));
        }
        found.add(&format!("train {name}"), || train(&model, &weights, rates, what.sequences));
    }
    println!(
        "| {:46} | {:>19} | {:>16} | {:>7} |\n|{:-<48}|{:-<21}|{:-<18}|{:-<9}|",
        "figure", "found", "against", "", "", "", "", ""
    );
    found.figures.iter().for_each(|figure| println!("{}", figure.row()));
    found.failed.iter().for_each(|failed| println!("not measured: {failed}"));
    let well = found.failed.is_empty() && found.figures.iter().all(Figure::holds);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ids without a pattern, of sequence `number`.
fn ids(model: &Model, number: usize, length: usize) -> Vec<u32> {
    let vocabulary = model.config.vocab_size as u64;
    (0..length as u64).map(|i| ((number as u64 * 1_000_003 + i * 7_919 + 11) * 2_654_435_761 % vocabulary) as u32).collect()
}

/// Logits of the CPU against those of the device. In bf16 both are held to fp32: the device may be as far from it as the CPU is, and
/// half of that.
fn logits(model: &Model) -> Result<Vec<Figure>, Failure> {
    let (cpu, there) = (device::parse("cpu")?, device::parse(model.device)?);
    let weights = random_weights(&model.layout, cpu, 1)?;
    let sequences: Vec<Vec<u32>> = (0..2).map(|number| ids(model, number, 64)).collect();
    let of = |device, dtype| probe::logits(&model.config, &model.layout, &weights, device, dtype, &sequences);
    let (right, near) = (of(cpu, Dtype::Fp32)?, of(there, Dtype::Fp32)?);
    let (rounded, theirs) = (of(cpu, Dtype::Bf16)?, of(there, Dtype::Bf16)?);
    let far = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f64, |far, (a, b)| far.max(f64::from((a - b).abs())));
    let apart =
        |a: &[f32], b: &[f32]| (a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt();
    let check = |name: &str, found, tolerance| Figure {
        name: format!("{} logits, {name}", model.name),
        found,
        unit: "",
        floor: None,
        tolerance: Some(tolerance),
    };
    Ok(vec![
        check("fp32: largest difference", far(&near, &right), 1e-3),
        check("bf16: RMS from fp32", apart(&theirs, &right), 1.5 * apart(&rounded, &right)),
        check("bf16: largest from fp32", far(&theirs, &right), 2.0 * far(&rounded, &right)),
    ])
}

fn generator(
    model: &Model,
    device: &str,
    weights: &Snapshot,
    slots: usize,
    dtype: Dtype,
) -> Result<TorchGenerator, Failure> {
    let sampling = Sampling { slots, max_tokens: 1024, ignore_eos: true, dtype, ..Sampling::default() };
    let (device, decode) = (device::parse(device)?, Box::new(|_: &[u32]| String::new()));
    let settings = Settings { device, sampling, seed: 0, eos: Vec::new(), decode, max_len: 2048, worker: 0 };
    let mut generator = TorchGenerator::new(model.config.clone(), model.layout.clone(), settings)?;
    generator.load(0, weights.clone())?;
    Ok(generator)
}

fn learner(model: &Model, weights: &Snapshot, learning: Learning) -> Result<TorchLearner, Failure> {
    let (device, flat) = (device::parse(model.device)?, weights.flat().copy());
    Ok(TorchLearner::new(model.config.clone(), model.layout.clone(), flat, device, learning, 1.0, 1000, 0)?)
}

fn step(learner: &mut TorchLearner, batch: Vec<Rollout>) -> Result<Trained, Failure> {
    learner.begin(learner.version() + 1, batch)?;
    loop {
        if let Some(done) = learner.work()? {
            return Ok(done);
        }
    }
}

/// Rollouts that the CPU samples: the device gives their tokens the same log-probabilities, and samples them too.
fn again(model: &Model) -> Result<Vec<Figure>, Failure> {
    let weights = random_weights(&model.layout, device::parse("cpu")?, 1)?;
    let sampled = |device: &str| -> Result<Vec<Rollout>, Failure> {
        let mut generator = generator(model, device, &weights, 8, Dtype::Fp32)?;
        for number in 0..8 {
            let prompt = Prompt { tokens: ids(model, number, 8), max_tokens: Some(16), ..Prompt::default() };
            generator.start(Group { number: number as u64, size: 1, prompt, ..Group::default() }.into())?;
        }
        let mut done = Vec::new();
        while generator.running() > 0 {
            done.extend(generator.step()?);
        }
        done.sort_by_key(|rollout| rollout.group.number);
        Ok(done)
    };
    let (mut right, found) = (sampled("cpu")?, sampled(model.device)?);
    let other = right.iter().zip(&found).filter(|(a, b)| a.tokens != b.tokens).count();
    for rollout in &mut right {
        (rollout.advantage, rollout.reward) = (vec![1.0; rollout.tokens.len()], Some(0.0));
    }
    let learning = Learning { lr: 0.0, dtype: Dtype::Fp32, ..Learning::default() };
    let trained = step(&mut learner(model, &weights, learning)?, right)?.batch;
    let pairs = trained.iter().flat_map(|r| r.logp_behavior.iter().zip(&r.logp_current));
    let far = pairs.clone().fold(0f64, |far, (a, b)| far.max(f64::from((a - b).abs())));
    if pairs.count() != 8 * 16 {
        return Err("not all tokens have a log-probability".into());
    }
    let check = |name: &str, found, tolerance| Figure {
        name: format!("{} CPU rollouts, {name}", model.name),
        found,
        unit: "",
        floor: None,
        tolerance: Some(tolerance),
    };
    Ok(vec![
        check("log-probabilities", far, 1e-3),
        // A draw that lies on the border of two tokens may fall to either side.
        check("sampled otherwise of 8", other as f64, 1.0),
    ])
}

/// Tokens a second with `slots` sequences in progress, and how long new weights take. The floor of a step is the weights' bytes over
/// the copy's rate, or its operations over the product's, whichever is longer.
fn decode(model: &Model, weights: &Snapshot, rates: Rates, slots: usize) -> Result<Vec<Figure>, Failure> {
    const TOKENS: u32 = 128;
    let device = device::parse(model.device)?;
    let mut generator = generator(model, model.device, weights, slots, Dtype::Bf16)?;
    let requests = |tokens: u32| -> Vec<Request> {
        (0..slots).map(|number| Request { prompt: ids(model, number, 8), tokens }).collect()
    };
    sample(&mut generator, &requests(8), 0)?;
    let (mut seconds, mut updates) = (Vec::new(), Vec::new());
    for repeat in 1..=3 {
        probe::wait(device);
        let begun = Instant::now();
        generator.load(repeat, weights.clone())?;
        probe::wait(device);
        updates.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        sample(&mut generator, &requests(TOKENS), 1_000_000 * repeat)?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let (parameters, slots) = (model.layout.parameters() as f64, slots as f64);
    let least = (2.0 * parameters / rates.bytes_s).max(2.0 * parameters * slots / rates.flops_s);
    let figure = |name: String, found, unit, floor| Figure { name, found, unit, floor: Some(floor), tolerance: None };
    let name = format!("{} decode bf16, H = {slots}", model.name);
    let mut all = vec![figure(name, slots * f64::from(TOKENS) / median(&seconds), "tok/s", slots / least)];
    if slots <= 8.0 {
        // f32 is read, bf16 written.
        let floor = 1e3 * 6.0 * parameters / rates.bytes_s;
        all.push(figure(format!("{} new weights", model.name), 1e3 * median(&updates), "ms", floor));
    }
    Ok(all)
}

/// Processed tokens a second of training steps, and what the hashes of the weights take of a step. The floor is six operations a
/// weight and token: of the output head only for tokens that are trained, of attention none.
fn train(model: &Model, weights: &Snapshot, rates: Rates, sequences: usize) -> Result<Vec<Figure>, Failure> {
    const PROMPT: usize = 64;
    const COMPLETION: usize = 448;
    let learning = Learning {
        lr: 1e-6,
        lr_schedule: LrSchedule::Constant,
        warmup_steps: 0,
        micro_batch_tokens: 8192,
        dtype: Dtype::Bf16,
        ..Learning::default()
    };
    let mut learner = learner(model, weights, learning)?;
    let recorded = |number: usize| Recorded {
        prompt: ids(model, number, PROMPT),
        tokens: ids(model, sequences + number, COMPLETION),
        logp_behavior: vec![-(model.config.vocab_size as f32).ln(); COMPLETION],
        advantage: vec![if number % 2 == 0 { 1.0 } else { -1.0 }; COMPLETION],
    };
    let batch: Vec<Rollout> = (0..sequences).map(|number| rollout(recorded(number), number as u64)).collect();
    step(&mut learner, batch.clone())?;
    let mut seconds = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        step(&mut learner, batch.clone())?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let begun = Instant::now();
    learner.weights()?.hashes(&model.layout)?;
    let hashed = begun.elapsed().as_secs_f64();
    let head = (model.config.vocab_size * model.config.hidden_size) as f64;
    let layers = model.layout.parameters() as f64 - head;
    let (trained, processed) = ((sequences * COMPLETION) as f64, (sequences * (PROMPT + COMPLETION)) as f64);
    let least = 6.0 * (layers * processed + head * trained) / rates.flops_s;
    let figure = |name: &str, found, unit, floor| Figure {
        name: format!("{} train bf16, {name}", model.name),
        found,
        unit,
        floor,
        tolerance: None,
    };
    Ok(vec![
        figure("processed", processed / median(&seconds), "tok/s", Some(processed / least)),
        figure("without hashes", processed / (median(&seconds) - hashed), "tok/s", Some(processed / least)),
        figure("hashes of a step", hashed, "s", None),
    ])
}
