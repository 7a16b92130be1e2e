//! Whether a long run's memory and open files stay as they are: `tidegate run`, watched from outside.
//!
//! `cargo bench --bench memory`: 10,000 steps of the toy engine. `cargo bench --bench memory -- SPEC.toml [--set KEY=VALUE]...`:
//! a run with these arguments. Prints what is resident and how many files are open along the way; then, of the last nine tenths
//! (what a run holds from its start is there after the first), the slope by least squares with its standard error, bytes a
//! step, and the median at either end: allocators take and give back many megabytes at a time, whatever a run holds.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate::store::RunFolder;

/// Two workers, batches of 16 rollouts of a few tokens each; checkpoints, and the log compacted, every 500 steps.
const TOY: &str = r#"
steps = 10000
model.engine = "toy"
data.file = "prompts.jsonl"
reward.kind = "exact"
batch = { batch_size = 16, group_size = 4 }
schedule.max_lag = 2
generate = { slots = 32, max_tokens = 12 }
estimate.zero_variance = "keep"
checkpoint.every_steps = 500
eval.prompts = 0
"#;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// Lines printed on the way.
const LINES: u64 = 10;

/// One look at a process.
struct Look {
    step: u64,
    resident: u64,
    files: usize,
}

impl Look {
    /// `process`: its folder in `/proc`.
    fn at(step: u64, process: &Path) -> Result<Look, Box<dyn Error>> {
        let status = fs::read_to_string(process.join("status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kilobytes: u64 = resident.trim().trim_end_matches("kB").trim().parse()?;
        Ok(Look { step, resident: kilobytes * 1024, files: fs::read_dir(process.join("fd"))?.count() })
    }
}

/// Bytes a step by least squares, and the standard error.
fn slope(looks: &[Look]) -> (f64, f64) {
    let mean = |f: fn(&Look) -> u64| looks.iter().map(|look| f(look) as f64).sum::<f64>() / looks.len() as f64;
    let (step, resident) = (mean(|look| look.step), mean(|look| look.resident));
    let of = |look: &Look| (look.step as f64 - step, look.resident as f64 - resident);
    let products = looks.iter().map(of).fold((0.0, 0.0), |(xy, xx), (x, y)| (xy + x * y, xx + x * x));
    let slope = products.0 / products.1;
    let left = looks.iter().map(of).map(|(x, y)| (y - slope * x).powi(2)).sum::<f64>();
    (slope, (left / (looks.len() as f64 - 2.0) / products.1).sqrt())
}

/// Of what is resident, megabytes.
fn median(looks: &[Look]) -> f64 {
    let mut resident: Vec<u64> = looks.iter().map(|look| look.resident).collect();
    resident.sort_unstable();
    resident.get(resident.len() / 2).map_or(f64::NAN, |&bytes| bytes as f64 / 1e6)
}

fn watch(folder: &Path, arguments: &[String]) -> Result<Vec<Look>, Box<dyn Error>> {
    let output = folder.join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("run").args(arguments).arg("--set").arg(format!("output={}", output.display()));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let mut looks: Vec<Look> = Vec::new();
    while child.try_wait()?.is_none() {
        std::thread::sleep(EVERY);
        let steps = RunFolder::view(&output).and_then(|run| run.sealed_steps());
        let Some(step) = steps.ok().and_then(|steps| steps.last().copied()) else { continue };
        if looks.last().is_none_or(|look| look.step < step) {
            // It may have ended just now.
            looks.extend(Look::at(step, &process));
        }
    }
    if child.wait()?.success() { Ok(looks) } else { Err(format!("tidegate run {arguments:?} failed").into()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    // What `cargo bench` adds for a harness.
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let folder = tempfile::tempdir()?;
    if arguments.is_empty() {
        let (spec, prompts) = (folder.path().join("toy.toml"), folder.path().join("prompts.jsonl"));
        fs::write(&spec, TOY)?;
        let row = |(a, b): (char, char)| format!("{{\"prompt\": \"{a}{b}\", \"answer\": \"{b}\"}}\n");
        let words = ('a'..='h').flat_map(|a| ('a'..='h').map(move |b| (a, b)));
        fs::write(&prompts, words.map(row).collect::<String>())?;
        arguments = vec![spec.display().to_string(), "--set".into(), format!("data.file={}", prompts.display())];
    }
    let looks = watch(folder.path(), &arguments)?;
    let last = looks.last().map_or(0, |look| look.step);
    for line in 1..=LINES {
        let Some(look) = looks.iter().find(|look| look.step * LINES >= last * line) else { continue };
        println!("step {:>6}  {:>8.1} MB resident  {:>3} files open", look.step, look.resident as f64 / 1e6, look.files);
    }
    let settled: Vec<Look> = looks.into_iter().filter(|look| look.step * 10 >= last).collect();
    let files = || settled.iter().map(|look| look.files);
    let (least, most) = (files().min().unwrap_or(0), files().max().unwrap_or(0));
    let ((slope, error), ninth) = (slope(&settled), settled.len() / 9);
    println!(
        "slope {slope:.0} bytes a step, standard error {error:.0}, of {} looks; {least} to {most} files open",
        settled.len()
    );
    let (early, late) = (median(&settled[..ninth]), median(&settled[settled.len() - ninth..]));
    println!("median {early:.1} MB resident in the second tenth of the steps, {late:.1} MB in the last");
    Ok(())
}
