//! What a person sees while a run goes on: a bar on a terminal, plain lines otherwise. All of it on stderr.

use crate::jobs::say;
use crate::tasks::outside::Meter;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, SealedStep, Status};
use tidegate_operators::seal::Log;

/// What the generators did so far, counted on their own threads.
#[derive(Debug, Default)]
pub struct Counters {
    /// Completion tokens sampled.
    pub tokens: AtomicU64,
    /// Nanoseconds inside libtorch, over all generators.
    pub torch_ns: AtomicU64,
    /// Of rewards from outside.
    pub rewards: Option<Meter>,
    /// Whether the learner is in a step.
    pub in_step: AtomicBool,
}

impl Counters {
    /// How many rollouts wait for a reward from outside, where one has for a while and the learner has nothing to do.
    fn waits_for_rewards(&self) -> Option<u64> {
        let meter = self.rewards.as_ref().filter(|_| !self.in_step.load(Ordering::Relaxed))?;
        meter.longest_wait().filter(|wait| *wait >= SILENCE).map(|_| meter.pending())
    }
}

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How long there is no step before what is waited for is shown, and how often that is looked at.
const SILENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(500);

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
    stepped: Instant,
    finished: bool,
    trained_tokens: u64,
    lag_max: u64,
    wait_ns: u64,
}

impl Progress {
    /// A display of `steps` steps under the lag bound `bound`.
    pub fn new(steps: u64, bound: u64, counters: Arc<Counters>) -> Self {
        let (bar, plain) = bar(steps);
        let now = Instant::now();
        let (stepped, finished) = (now, false);
        let state = State { started: now, printed: now, stepped, finished, trained_tokens: 0, lag_max: 0, wait_ns: 0 };
        let progress = Progress { bar, plain, shared: Arc::new(Mutex::new(state)), counters, bound };
        if progress.counters.rewards.is_some() {
            let watched = progress.clone();
            std::thread::spawn(move || while watched.watch() {});
        }
        progress
    }

    /// Looks, after a moment, whether no step has come for a while because rewards have not, and says so. False at the end.
    fn watch(&self) -> bool {
        std::thread::sleep(LOOK);
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = self.counters.waits_for_rewards().filter(|_| !state.finished);
        if let Some(pending) = pending.filter(|_| state.stepped.elapsed() >= SILENCE) {
            let (done, steps) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let text = format!("learner waits for rewards ({pending} pending)");
            if self.plain && state.printed.elapsed() >= LINE_EVERY {
                state.printed = Instant::now();
                say(format_args!("step {done:>4}/{steps}  {text}"));
            }
            self.bar.set_message(text);
        }
        !state.finished
    }

    /// Shows a step that is done; `sampling` is the mean time in which its rollouts were sampled.
    pub fn step(&self, m: &Metrics, sampling: Duration) {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.trained_tokens += m.tokens;
        state.lag_max = state.lag_max.max(m.lag_max);
        state.wait_ns += m.wait_forced_ns + m.wait_any_ns;
        state.stepped = Instant::now();
        let seconds = state.started.elapsed().as_secs_f64().max(1e-3);
        let rate = |tokens: u64| format!("{:.1}k", tokens as f64 / seconds / 1e3);
        let rewards = self.counters.rewards.as_ref().map(Meter::waits).unwrap_or_default();
        let waits = if m.wait_forced_ns + m.wait_any_ns < m.train_ns / 20 {
            "nothing".to_owned()
        } else if rewards.mean() > sampling {
            // Of the time between its prompt and its batch, a rollout spent the larger part there.
            format!("rewards ({} pending)", rewards.most_pending)
        } else if m.wait_forced_ns > m.wait_any_ns {
            "forced groups".to_owned()
        } else {
            "rollouts".to_owned()
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
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).finished = true;
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

/// The mean time in which the trained of these were sampled; zero without one.
fn sampling(rollouts: &[Rollout]) -> Duration {
    let times: Vec<i64> =
        rollouts.iter().filter(|r| r.status == Status::Trained).map(|r| r.finished_ns - r.started_ns).collect();
    let mean = times.iter().sum::<i64>() / times.len().max(1) as i64;
    Duration::from_nanos(u64::try_from(mean).unwrap_or(0))
}

impl<D: Log> Log for Shown<D> {
    fn seal(&mut self, step: SealedStep) -> Result<(), Fault> {
        let (metrics, sampling) = (step.metrics.clone(), sampling(&step.rollouts));
        let not_trained: Vec<String> =
            step.rollouts.iter().filter(|r| r.status != Status::Trained).map(|r| r.status.to_string()).collect();
        self.log.seal(step)?;
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        for status in not_trained {
            *sealed.not_trained.entry(status).or_default() += 1;
        }
        if let Some(metrics) = metrics {
            self.progress.step(&metrics, sampling);
            sealed.metrics.push(metrics);
        }
        Ok(())
    }
}
