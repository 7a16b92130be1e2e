//! `tidegate eval`.

use crate::error::Result;
use crate::jobs::Output;
use crate::jobs::eval::job::{Options, eval};
use std::fmt::Display;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  tidegate eval data/model --tasks sorting,addition
  tidegate eval runs/demo --samples 16 --k 1,4,16
  tidegate eval my/model --data test.jsonl --prompt question --reward '{kind=\"numeric\",after=\"####\"}' --greedy
  tidegate eval runs/demo/checkpoints/step-00000120 --rollouts answers.parquet

Flags that are short for a key of the specification name it in brackets; --set reaches the others, and wins.";

/// Say how well a model answers prompts, with standard errors and pass@k
///
/// Samples answers, gives them their rewards, and prints for each task the mean reward, the success (a reward of at least 1),
/// pass@k without bias, lengths and speed. The standard errors are over prompts: rollouts of one prompt are not independent. With
/// the same seed, threads and slots it comes to the same again.
///
/// A run, or a checkpoint of one, brings its own specification: prompts that it did not train on, reward, sampling, seed. A model's
/// folder needs --tasks, --data or --spec.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A Hugging Face folder, a run (its newest checkpoint), or a checkpoint of a run
    #[arg(required_unless_present = "spec")]
    model: Option<PathBuf>,
    /// A specification, or a run that has one, to take prompts, reward, sampling and (without MODEL) the model from
    #[arg(long, value_name = "SPEC|RUN")]
    spec: Option<PathBuf>,
    /// Override a key of the specification; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,

    /// Answer held-out prompts of generated tasks: sorting, addition, expression, program
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with = "data", help_heading = "Prompts")]
    tasks: Vec<String>,
    /// Answer the prompts of a file, .jsonl or .parquet (data.file)
    #[arg(long, value_name = "FILE", help_heading = "Prompts")]
    data: Option<PathBuf>,
    /// Its column of the prompt (data.prompt)
    #[arg(long, value_name = "COLUMN", requires = "data", help_heading = "Prompts")]
    prompt: Option<String>,
    /// Its column of the answer (data.answer)
    #[arg(long, value_name = "COLUMN", requires = "data", help_heading = "Prompts")]
    answer: Option<String>,
    /// Most prompts; by default all of --data, else the specification's, else 768 (eval.prompts)
    #[arg(long, value_name = "N", help_heading = "Prompts")]
    prompts: Option<usize>,
    /// How answers are rewarded: task, exact, numeric, or a table with the keys of a kind (reward)
    #[arg(long, value_name = "KIND|TABLE", help_heading = "Prompts")]
    reward: Option<String>,

    /// Rollouts a prompt; by default the largest k, else 1
    #[arg(long, value_name = "N", help_heading = "Answers")]
    samples: Option<u32>,
    /// For which k to tell pass@k; by default 1 and all rollouts of a prompt
    #[arg(long = "k", value_name = "K,..", value_delimiter = ',', help_heading = "Answers")]
    ks: Vec<u64>,
    /// Take the likeliest token each time, one answer a prompt
    #[arg(long, conflicts_with_all = ["temperature", "top_p", "top_k"], help_heading = "Answers")]
    greedy: bool,
    /// Temperature of sampling (generate.temperature)
    #[arg(long, value_name = "T", help_heading = "Answers")]
    temperature: Option<f64>,
    /// Sample from the likeliest tokens that together have this probability (generate.top_p)
    #[arg(long, value_name = "P", help_heading = "Answers")]
    top_p: Option<f64>,
    /// Sample from so many of the likeliest tokens; 0 is all (generate.top_k)
    #[arg(long, value_name = "N", help_heading = "Answers")]
    top_k: Option<usize>,
    /// Most tokens of an answer; the model's longest sequence ends it too (generate.max_tokens)
    #[arg(long, value_name = "N", help_heading = "Answers")]
    max_tokens: Option<usize>,
    /// Seed of the draws (seed)
    #[arg(long, value_name = "N", help_heading = "Answers")]
    seed: Option<u64>,

    /// Rollouts in progress at once: more are faster and take more memory (generate.slots)
    #[arg(long, value_name = "N", help_heading = "Machine")]
    slots: Option<usize>,
    /// libtorch threads; by default all cores, or as many as the run of the specification has
    #[arg(long, value_name = "N", help_heading = "Machine")]
    threads: Option<u16>,
    /// Where the model runs: cpu or cuda:N (model.device)
    #[arg(long, help_heading = "Machine")]
    device: Option<String>,
    /// What weights are multiplied in: fp32 or bf16 (generate.dtype)
    #[arg(long, help_heading = "Machine")]
    dtype: Option<String>,

    /// Keep the rollouts as Parquet, with the columns of a run's log (docs/log.md), for `tidegate analyze` or DuckDB
    #[arg(long, value_name = "FILE.parquet", help_heading = "Result")]
    rollouts: Option<PathBuf>,
    /// Print the result as one JSON object on stdout
    #[arg(long, help_heading = "Result")]
    json: bool,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        let sets = self.flags().into_iter().chain(self.sets).collect();
        eval(&Options {
            model: self.model,
            spec: self.spec,
            sets,
            tasks: self.tasks,
            data: self.data,
            prompts: self.prompts,
            samples: self.samples,
            ks: self.ks,
            threads: self.threads,
            rollouts: self.rollouts,
            output: if self.json { Output::Json } else { Output::Text },
        })
    }

    /// The flags that are short for a key, as assignments.
    fn flags(&self) -> Vec<String> {
        fn number(key: &str, value: Option<impl Display>) -> Option<String> {
            value.map(|value| format!("{key}={value}"))
        }
        fn text(key: &str, value: Option<impl Into<String>>) -> Option<String> {
            value.map(|value| format!("{key}={}", toml::Value::String(value.into())))
        }
        let reward = self.reward.as_ref().map(|reward| match reward.trim_start().starts_with('{') {
            true => format!("reward={reward}"),
            false => format!("reward={{kind={}}}", toml::Value::from(reward.as_str())),
        });
        let flags = [
            text("data.file", self.data.as_ref().map(|file| file.to_string_lossy())),
            text("data.prompt", self.prompt.as_deref()),
            text("data.answer", self.answer.as_deref()),
            reward,
            self.greedy.then(|| "generate.temperature=0".to_owned()),
            number("generate.temperature", self.temperature),
            number("generate.top_p", self.top_p),
            number("generate.top_k", self.top_k),
            number("generate.max_tokens", self.max_tokens),
            number("generate.slots", self.slots),
            number("seed", self.seed),
            text("model.device", self.device.as_deref()),
            text("generate.dtype", self.dtype.as_deref()),
        ];
        flags.into_iter().flatten().collect()
    }
}
