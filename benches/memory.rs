//! Whether a long run's memory and open files stay as they are. `cargo bench --bench memory`: 10,000 steps of the toy engine
//! through the dataflow, a log on disk and the display's counts, in this process; `cargo bench --bench memory -- SPEC.toml
//! [--set KEY=VALUE]...`: `tidegate run` with these arguments, watched from outside.
//!
//! Prints what is resident and how many files are open along the way, and the slope by least squares, bytes a step, over the
//! last nine tenths: what a run holds in the end is there after the first.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate::engine::spec::{Learning, Sampling};
use tidegate::engine::toy::{ToyGenerator, ToyLearner, ToyPrompts, ToyScorer, ToyWeights};
use tidegate::jobs::ports::{Baseline, GroupEstimator};
use tidegate::jobs::progress::{Counters, Progress, Shown};
use tidegate::pipeline;
use tidegate::spec::Spec;
use tidegate::store::layout::LogFile;
use tidegate::store::{FooterInfo, ParquetLog, RunFolder};
use tidegate_operators::census::Census;
use tidegate_operators::dataflow::Ports;
use tidegate_operators::fault::{Fault, Halt};
use tidegate_operators::record::SealedStep;
use tidegate_operators::seal::Log;

/// Two workers, batches of 16 rollouts of a few tokens each.
const TOY: &str = "
steps = 10000
[[task]]
kind = \"sorting\"
[model]
path = \"toy\"
[batch]
batch_size = 16
group_size = 4
[schedule]
max_lag = 2
[generate]
slots = 32
max_tokens = 12
[estimate]
zero_variance = \"keep\"
";

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

    fn print(&self) {
        println!("step {:>6}  {:>8.1} MB resident  {:>3} files open", self.step, self.resident as f64 / 1e6, self.files);
    }
}

/// Bytes a step, by least squares.
fn slope(looks: &[Look]) -> f64 {
    let n = looks.len() as f64;
    let mean = |f: fn(&Look) -> u64| looks.iter().map(|look| f(look) as f64).sum::<f64>() / n;
    let (step, resident) = (mean(|look| look.step), mean(|look| look.resident));
    let of = |look: &Look| (look.step as f64 - step, look.resident as f64 - resident);
    let products = looks.iter().map(of).fold((0.0, 0.0), |(xy, xx), (x, y)| (xy + x * y, xx + x * x));
    products.0 / products.1
}

fn report(looks: &[Look]) {
    let settled: &[Look] = &looks[looks.len() / 10..];
    let files = settled.iter().map(|look| look.files);
    println!("slope {:.0} bytes a step; {:?} to {:?} files open", slope(settled), files.clone().min(), files.max());
}

/// A log that looks at this process now and then.
struct Watched<D> {
    log: D,
    every: u64,
    looks: Arc<Mutex<Vec<Look>>>,
}

impl<D: Log> Log for Watched<D> {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        let number = step.step;
        self.log.seal(step)?;
        if number.is_multiple_of(self.every) {
            let look = Look::at(number, Path::new("/proc/self")).map_err(|e| Fault::new("memory", e))?;
            if number.is_multiple_of(10 * self.every) {
                look.print();
            }
            self.looks.lock().unwrap_or_else(PoisonError::into_inner).push(look);
        }
        Ok(())
    }
}

fn toy() -> Result<(), Box<dyn Error>> {
    let spec = Spec::from_text(TOY, &[])?;
    let (plan, seed, place) = (spec.plan(), spec.seed, tempfile::tempdir()?);
    let learning = Learning { lr: 0.01, warmup_steps: 0, ..spec.learn.clone() };
    let sampling: &Sampling = &spec.generate;
    let log = ParquetLog::new(RunFolder::create(place.path().join("run"))?, FooterInfo::default());
    let log = Shown::new(log, Progress::new(spec.steps, spec.schedule.max_lag, Arc::new(Counters::default())));
    let looks: Arc<Mutex<Vec<Look>>> = Arc::default();
    let (learner, generator) = (plan.learner, plan.generators[0]);
    let weights = ToyWeights::initial(16, seed);
    let ports = (0..spec.worker_count()).map(|worker| Ports {
        prompts: (worker == plan.admitter()).then(|| ToyPrompts::new(40, u64::MAX)),
        generator: (worker == generator).then(|| ToyGenerator::new(sampling.clone(), seed)),
        scorer: (worker == generator).then_some(ToyScorer),
        estimator: (worker == generator)
            .then(|| GroupEstimator::new(&spec.estimate, Baseline::Group(spec.estimate.advantage))),
        learner: (worker == learner).then(|| ToyLearner::new(weights.clone(), 0, learning.clone(), sampling, spec.steps)),
        log: None,
        waiting: Vec::new(),
    });
    let mut ports: Vec<_> = ports.collect();
    ports[learner].log = Some(Watched { log, every: spec.steps / 100, looks: Arc::clone(&looks) });
    let report_of = pipeline::run(&plan, ports, &Halt::default(), &Census::default(), |_| {})?;
    if let Some(fault) = report_of.faults.into_iter().next() {
        return Err(fault.into());
    }
    report(&looks.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    let output = format!("output={}", place.path().join("run").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("run").args(arguments).args(["--set", &output]).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let (mut looks, mut printed): (Vec<Look>, u64) = (Vec::new(), 0);
    while child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(100));
        let Some(step) = RunFolder::view(place.path().join("run")).ok().and_then(|folder| last(&folder)) else { continue };
        if looks.last().is_none_or(|look| look.step < step)
            && let Ok(look) = Look::at(step, &process)
        {
            if step >= printed {
                look.print();
                printed = step + 50;
            }
            looks.push(look);
        }
    }
    report(&looks);
    Ok(())
}

fn last(folder: &RunFolder) -> Option<u64> {
    let step = |file: LogFile| if let LogFile::Step(step) = file { Some(step) } else { None };
    folder.log_files().ok()?.into_iter().rev().find_map(step)
}

fn main() -> Result<(), Box<dyn Error>> {
    // What `cargo bench` adds for a harness.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.is_empty() { toy() } else { run(&arguments) }
}
