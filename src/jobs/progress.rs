//! What a person sees while a run goes on: a bar on a terminal, plain lines otherwise. All of it on stderr.

use crate::jobs::say;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, SealedStep, Status};
use tidegate_operators::seal::Log;

/// What the generators did so far, counted on their own threads.
#[derive(Debug, Default)]
pub struct Counters {
    /// Completion tokens sampled.
    pub tokens: AtomicU64,
    /// Nanoseconds inside libtorch, over all generators.
    pub torch_ns: AtomicU64,
}

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The display of a job that counts steps and has one thing to say about each.
pub struct Steps {
    bar: ProgressBar,
    plain: bool,
    said: Cell<Instant>,
}

impl Steps {
    pub fn new(steps: u64) -> Self {
        let (bar, plain) = bar(steps);
        Steps { bar, plain, said: Cell::new(Instant::now()) }
    }

    pub fn show(&self, step: u64, text: &str) {
        let steps = self.bar.length().unwrap_or(0);
        if self.plain && (self.said.get().elapsed() >= LINE_EVERY || step == 1 || step == steps) {
            self.said.set(Instant::now());
            say(format_args!("step {step:>5}/{steps}  {text}"));
        }
        self.bar.set_message(text.to_owned());
        self.bar.set_position(step);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar of `steps` steps; hidden, and true with it, where stderr is no terminal.
fn bar(steps: u64) -> (ProgressBar, bool) {
    let plain = !std::io::stderr().is_terminal();
    let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new(steps) };
    bar.set_length(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:24.cyan/blue} {pos}/{len} {elapsed}<{eta}  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    (bar, plain)
}

/// The display of one job of `steps` steps.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    plain: bool,
    shared: Arc<Mutex<State>>,
    counters: Arc<Counters>,
    bound: u64,
}

struct State {
    started: Instant,
    printed: Instant,
    trained_tokens: u64,
    lag_max: u64,
    wait_ns: u64,
}

impl Progress {
    /// A display of `steps` steps under the lag bound `bound`.
    pub fn new(steps: u64, bound: u64, counters: Arc<Counters>) -> Self {
        let (bar, plain) = bar(steps);
        let now = Instant::now();
        let state = State { started: now, printed: now, trained_tokens: 0, lag_max: 0, wait_ns: 0 };
        Progress { bar, plain, shared: Arc::new(Mutex::new(state)), counters, bound }
    }

    /// Shows a step that is done.
    pub fn step(&self, m: &Metrics) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.trained_tokens += m.tokens;
        state.lag_max = state.lag_max.max(m.lag_max);
        state.wait_ns += m.wait_forced_ns + m.wait_any_ns;
        let seconds = state.started.elapsed().as_secs_f64().max(1e-3);
        let rate = |tokens: u64| format!("{:.1}k", tokens as f64 / seconds / 1e3);
        let waits = if m.wait_forced_ns + m.wait_any_ns < m.train_ns / 20 {
            "nothing"
        } else if m.wait_forced_ns > m.wait_any_ns {
            "forced groups"
        } else {
            "rollouts"
        };
        let line = format!(
            "reward {:.3}  lag {:.1} max {} bound {}  ESS {:.3}  tok/s gen {} train {}  learner waits for {waits}",
            m.reward,
            m.lag_mean,
            state.lag_max,
            self.bound,
            m.ess,
            rate(self.counters.tokens.load(Ordering::Relaxed)),
            rate(state.trained_tokens),
        );
        let last = Some(m.step) == self.bar.length();
        if self.plain && (state.printed.elapsed() >= LINE_EVERY || m.step == 1 || last) {
            state.printed = Instant::now();
            say(format_args!("step {:>4}/{}  {line}", m.step, self.bar.length().unwrap_or(0)));
        }
        self.bar.set_message(line);
        self.bar.set_position(m.step);
    }

    /// Takes the bar away; what is printed next starts on a clean line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What was sealed so far.
#[derive(Debug, Default)]
pub struct SealedSoFar {
    pub metrics: Vec<Metrics>,
    /// Rollouts that were not trained, by status.
    pub not_trained: BTreeMap<String, u64>,
}

/// A log that shows what it seals, and counts it for the summary.
pub struct Shown<D> {
    log: D,
    progress: Progress,
    sealed: Arc<Mutex<SealedSoFar>>,
}

impl<D> Shown<D> {
    pub fn new(log: D, progress: Progress) -> Self {
        Shown { log, progress, sealed: Arc::default() }
    }

    /// What was sealed, for when the log is gone.
    pub fn sealed(&self) -> Arc<Mutex<SealedSoFar>> {
        Arc::clone(&self.sealed)
    }
}

impl<D: Log> Log for Shown<D> {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        let metrics = step.metrics.clone();
        let not_trained: Vec<String> =
            step.rollouts.iter().filter(|r| r.status != Status::Trained).map(|r| r.status.kind()).collect();
        self.log.seal(step)?;
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        for status in not_trained {
            *sealed.not_trained.entry(status).or_default() += 1;
        }
        if let Some(metrics) = metrics {
            self.progress.step(&metrics);
            sealed.metrics.push(metrics);
        }
        Ok(())
    }
}
