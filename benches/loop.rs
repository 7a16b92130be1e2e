//! Whether a run's halves overlap, what new weights cost its generators, and what goes on outside the tensor library.
//!
//! `cargo bench --bench loop`: 24 steps of the demo. `cargo bench --bench loop -- SPEC.toml [--set KEY=VALUE]...`: runs of this
//! specification, without evaluation unless that is set. Each is run by `tidegate run` twice: generator and learner on a worker
//! of their own, one thread each; both on one worker, two threads. All figures are from the run's log and summary, but for two
//! rates that are measured here: copying, and hashing, as many bytes as the weights have.

#[path = "loop/timeline.rs"]
mod timeline;

use clap::Parser;
use serde_json::Value;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use timeline::Timeline;

type Done<T = ()> = Result<T, Box<dyn Error>>;

#[derive(Parser)]
struct Cli {
    /// A run's specification; without one, some steps of the demo.
    spec: Option<PathBuf>,
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Cargo passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Which workers do what.
const LAYOUTS: [(&str, [&str; 4]); 2] = [
    (
        "two workers, one thread each",
        ["workers.generators=[0]", "workers.learners=[1]", "workers.generator_threads=1", "workers.learner_threads=1"],
    ),
    (
        "one shared worker, two threads",
        ["workers.generators=[0]", "workers.learners=[0]", "workers.generator_threads=2", "workers.learner_threads=2"],
    ),
];

/// Of the demo.
const DEMO: [&str; 2] = ["data/demo.toml", "steps=24"];

/// What is copied or hashed lies among so many bytes, so that no cache holds it.
const BYTES: usize = 256 << 20;
const COPIES: usize = 20;

fn main() -> Done {
    let cli = Cli::parse();
    let spec = cli.spec.clone().unwrap_or_else(|| DEMO[0].into());
    let mut sets = vec!["eval.prompts=0".to_owned()];
    if cli.spec.is_none() {
        sets.push(DEMO[1].to_owned());
    }
    sets.extend(cli.sets);
    let folder = tempfile::tempdir()?;
    let mut rates = Vec::new();
    for (number, (layout, workers)) in LAYOUTS.iter().enumerate() {
        let output = folder.path().join(number.to_string());
        let summary = run(&spec, sets.iter().map(String::as_str).chain(workers.iter().copied()), &output)?;
        let timeline = Timeline::read(&output)?;
        println!("{layout}");
        halves(&timeline);
        updates(&summary, &output)?;
        outside(&summary, &output)?;
        println!();
        rates.push(timeline.rollouts_a_second());
    }
    println!("{:.2} times the rollouts a second on two workers", rates[0] / rates[1]);
    Ok(())
}

/// The run's summary.
fn run<'a>(spec: &Path, sets: impl Iterator<Item = &'a str>, output: &Path) -> Done<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("run").arg(spec).arg("--json");
    for set in sets {
        command.args(["--set", set]);
    }
    command.arg("--set").arg(format!("output={}", output.display()));
    let ran = command.stderr(Stdio::piped()).output()?;
    if !ran.status.success() {
        return Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&ran.stderr)).into());
    }
    Ok(serde_json::from_slice(&ran.stdout)?)
}

/// Who worked when.
fn halves(timeline: &Timeline) {
    let (seconds, both, (generator, learner)) = (timeline.seconds(), timeline.both, timeline.worked());
    let percent = |part: f64| 100.0 * part / seconds;
    let neither = (seconds - generator - learner + both).max(0.0);
    println!(
        "of {seconds:.1} s both worked {:.1} %, the generator alone {:.1} %, the learner alone {:.1} %, neither {:.1} %; \
         {:.1} rollouts/s trained",
        percent(both),
        percent(generator - both),
        percent(learner - both),
        percent(neither),
        timeline.rollouts_a_second()
    );
    println!("{}", timeline.draw());
}

/// The weights' bytes in a model folder of the run; None where its engine writes none.
fn weights(run: &Path) -> Option<usize> {
    let newest =
        fs::read_dir(run.join("checkpoints")).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("model.safetensors")));
    newest.filter_map(|file| fs::metadata(file).ok()).map(|file| file.len() as usize).max()
}

/// A number of the summary.
fn number(summary: &Value, path: &str) -> Option<f64> {
    summary.pointer(path).and_then(Value::as_f64)
}

/// What new weights cost the generator.
fn updates(summary: &Value, run: &Path) -> Done {
    let of = |name: &str| number(summary, &format!("/generating/{name}"));
    let (Some(median), Some(p99), Some(longest)) = (of("stall_median_s"), of("stall_p99_s"), of("stall_max_s")) else {
        println!("no weights came while rollouts were in progress");
        return Ok(());
    };
    let [step, load, processor, gap, stalls] =
        ["decode_median_s", "load_median_s", "load_processor_median_s", "gap_median_s", "stalls"]
            .map(|name| of(name).unwrap_or(f64::NAN));
    let ms = |seconds: f64| 1e3 * seconds;
    println!(
        "{stalls} weight updates between two decode steps: median {:.2} ms, p99 {:.2} ms, longest {:.2} ms; loading alone {:.2} ms, \
         {:.2} on the processor; without an update {:.2} ms",
        ms(median),
        ms(p99),
        ms(longest),
        ms(load),
        ms(processor),
        ms(gap)
    );
    let Some(bytes) = weights(run) else { return Ok(()) };
    let copy = copying(bytes);
    println!(
        "copying {:.1} MB {:.2} ms + median decode step {:.2} ms = {:.2} ms: the p99 is {:.2} of it",
        bytes as f64 / 1e6,
        ms(copy),
        ms(step),
        ms(copy + step),
        p99 / (copy + step)
    );
    Ok(())
}

/// What the dataflow, the kernel and the log cost.
fn outside(summary: &Value, run: &Path) -> Done {
    let of = |name: &str| number(summary, name).ok_or_else(|| format!("the summary has no {name}"));
    let (seconds, steps) = (of("/training_s")?, of("/steps")?);
    let waited = of("/waited_any")? + of("/waited_forced")? + of("/waited_log")?;
    let (learner, generator) = (seconds * (1.0 - waited), of("/generating/decode_s")?);
    println!("the learner was busy {learner:.1} s, the generator decoded for {generator:.1} s, of {seconds:.1} s");
    let (Ok(of_learner), Ok(of_generator)) = (of("/learner_outside"), of("/generators_outside")) else {
        println!("outside of the tensor library: not told apart on one worker");
        return Ok(());
    };
    let percent = |share: f64, busy: f64| 100.0 * share * seconds / busy;
    print!("outside of the tensor library: {:.2} % of the learner's busy time", percent(of_learner, learner));
    if let Some(bytes) = weights(run) {
        print!(" (about {:.2} of it hashing the weights)", 100.0 * hashing(bytes) * steps / learner);
    }
    println!(", {:.2} % of the generator's", percent(of_generator, generator));
    Ok(())
}

/// Seconds of the median copy of so many bytes from memory to memory.
fn copying(bytes: usize) -> f64 {
    let mut buffers = vec![vec![1_u8; bytes]; (BYTES / bytes.max(1)).max(2)];
    let count = buffers.len();
    median((0..COPIES).map(|i| {
        let from = std::mem::take(&mut buffers[i % count]);
        let to = &mut buffers[(i + count / 2) % count];
        let started = Instant::now();
        to.copy_from_slice(&from);
        black_box(&to);
        let took = started.elapsed().as_secs_f64();
        buffers[i % count] = from;
        took
    }))
}

/// Seconds that hashing so many bytes takes.
fn hashing(bytes: usize) -> f64 {
    let buffer = vec![1_u8; bytes];
    median((0..3).map(|_| {
        let started = Instant::now();
        black_box(blake3::hash(&buffer));
        started.elapsed().as_secs_f64()
    }))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
