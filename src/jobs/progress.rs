//! What a person sees while a run goes on: a bar on a terminal, plain lines otherwise. All of it on stderr.

use crate::jobs::pace::Pace;
use crate::jobs::say;
use crate::jobs::shares::{Shares, Steady, Window};
use crate::jobs::waits::Waits as GeneratorWaits;
use crate::spec::Spec;
use crate::tasks::outside::{Meter, Waits};
use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Metrics, Rollout, SealedStep, Status};
use tidegate_operators::seal::Log;

/// What the generators did so far, counted on their own threads.
#[derive(Debug, Default)]
pub struct Counters {
    /// Completion tokens sampled.
    pub tokens: AtomicU64,
    /// Nanoseconds on the processor inside the engine's tensor library, over all generators.
    pub torch_ns: AtomicU64,
    /// The learner's in copies for generators and checkpoints, which no step's metrics have.
    pub copies_ns: AtomicU64,
    pub pace: Pace,
    /// Where the generators' time goes.
    pub waits: GeneratorWaits,
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

/// How often a bar is drawn again where its text is made anew each time.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// The display of an evaluation: how many rollouts are done, and what they say so far. Where there is no terminal, one that is over
/// at once says nothing.
pub struct Answered {
    bar: ProgressBar,
    plain: bool,
    /// When there is something to show again.
    next: Instant,
}

impl Answered {
    /// For so many rollouts.
    pub fn new(rollouts: u64) -> Self {
        let (bar, plain) = bar(rollouts);
        Answered { bar, plain, next: Instant::now() + if plain { SILENCE } else { DRAW_EVERY } }
    }

    /// Shows that so many are done; `text` is made where it is shown.
    pub fn show(&mut self, done: u64, text: impl FnOnce() -> String) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + if self.plain { LINE_EVERY } else { DRAW_EVERY };
        let text = text();
        if self.plain {
            say(format_args!("answers {done:>6}/{}  {text}", self.bar.length().unwrap_or(0)));
        }
        self.bar.set_message(text);
        self.bar.set_position(done);
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
    *shown() = bar.downgrade();
    (bar, plain)
}

/// The bar on the terminal, while it is there: there is one terminal.
fn shown() -> MutexGuard<'static, WeakProgressBar> {
    static SHOWN: LazyLock<Mutex<WeakProgressBar>> = LazyLock::new(Mutex::default);
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes to stderr what must not run into the bar.
pub fn beside_bar(write: impl FnOnce()) {
    let bar = shown().upgrade();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
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
    micro_batch_tokens: u64,
    window: Window,
}

impl Progress {
    /// A display of a run.
    pub fn new(spec: &Spec, counters: Arc<Counters>) -> Self {
        let (bar, plain) = bar(spec.steps);
        let now = Instant::now();
        let state = State {
            started: now,
            printed: now,
            stepped: now,
            finished: false,
            trained_tokens: 0,
            lag_max: 0,
            micro_batch_tokens: spec.learn.micro_batch_tokens as u64,
            window: Window::default(),
        };
        let shared = Arc::new(Mutex::new(state));
        let progress = Progress { bar, plain, shared, counters, bound: spec.schedule.schedule().bound() };
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
        if m.micro_batch_tokens < state.micro_batch_tokens {
            let (before, now) = (state.micro_batch_tokens, m.micro_batch_tokens);
            say(format_args!(
                "note      out of memory in the learner: micro-batches of {now} tokens at most from step {} on, not {before}; \
                 learn.micro_batch_tokens = {now} says so from the start",
                m.step
            ));
        }
        state.micro_batch_tokens = m.micro_batch_tokens;
        let seconds = state.started.elapsed().as_secs_f64().max(1e-3);
        let rate = |tokens: u64| format!("{:.1}k", tokens as f64 / seconds / 1e3);
        state.stepped = Instant::now();
        let rewards = self.counters.rewards.as_ref().map(Meter::waits).unwrap_or_default();
        // A critic learns at some rate, until the schedule ends at 0.
        let critic = if m.critic_lr > 0.0 { format!("explained {:.2}  ", m.explained_variance) } else { String::new() };
        let shares = state.window.add(m).shares().unwrap_or_default();
        let line = format!(
            "reward {:.3}  {critic}lag {:.1} max {} bound {}  ESS {:.3}  tok/s gen {} train {}  learner waits for {}{}",
            m.reward,
            m.lag_mean,
            state.lag_max,
            self.bound,
            m.ess,
            rate(self.counters.tokens.load(Ordering::Relaxed)),
            rate(state.trained_tokens),
            waits_for(m, rewards, sampling),
            in_shares(&shares),
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

/// What the learner waited for most, if that was at least a twentieth of its work. Of the time between its prompt and its batch a
/// rollout that is waited for may have spent the larger part waiting for its reward: then that is what is short.
fn waits_for(m: &Metrics, rewards: Waits, sampling: Duration) -> String {
    let waits = [(m.wait_any_ns, "rollouts"), (m.wait_forced_ns, "forced groups"), (m.wait_log_ns, "the log")];
    let all: u64 = waits.iter().map(|(ns, _)| ns).sum();
    let most = waits.into_iter().max_by_key(|(ns, _)| *ns).filter(|_| all >= m.train_ns / 20);
    match most.filter(|(ns, _)| *ns > 0) {
        None => "nothing".to_owned(),
        Some((_, "rollouts" | "forced groups")) if rewards.mean() > sampling => {
            format!("rewards ({} pending)", rewards.most_pending)
        }
        Some((_, what)) => what.to_owned(),
    }
}

/// The shares of the last steps that somebody waited.
fn in_shares(shares: &Shares) -> String {
    let waited = shares.waited_any + shares.waited_forced + shares.waited_log;
    let idle = shares.idle.map(|idle| format!(", generators idle {:.0} %", 100.0 * idle)).unwrap_or_default();
    format!(" ({:.0} %{idle})", 100.0 * waited)
}

/// What was sealed so far, added up: of a long run one number a step is held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SealedSoFar {
    /// Rollouts that were not trained, by status.
    pub not_trained: BTreeMap<String, u64>,
    /// Of every step, in order.
    pub rewards: Vec<f64>,
    pub explained: Vec<f64>,
    pub trained_rollouts: u64,
    pub trained_tokens: u64,
    /// Tokens that a safeguard left out, steps whose gradient waited for a later one, and steps that it left without an update.
    pub left_out: u64,
    pub held: u64,
    pub skipped: u64,
    /// Sum over all chosen tokens of what was taken, those that were left out among them.
    pub lag: f64,
    /// Sum over trained tokens; a step that had none has no ESS, whatever stands in its row.
    pub ess: f64,
    pub lag_max: Option<u64>,
    pub ess_min: Option<f64>,
    pub wait_forced_ns: u64,
    pub wait_any_ns: u64,
    pub wait_log_ns: u64,
    pub torch_ns: u64,
    /// What everybody waited for.
    pub steady: Steady,
}

impl SealedSoFar {
    fn add(&mut self, m: &Metrics) {
        self.rewards.push(m.reward);
        self.explained.push(m.explained_variance);
        self.trained_rollouts += m.rollouts;
        self.trained_tokens += m.tokens;
        self.wait_forced_ns += m.wait_forced_ns;
        self.wait_any_ns += m.wait_any_ns;
        self.wait_log_ns += m.wait_log_ns;
        self.torch_ns += m.torch_ns;
        self.left_out += m.left_out;
        self.held += u64::from(m.held);
        self.skipped += u64::from(m.skipped && !m.held);
        if m.tokens + m.left_out > 0 {
            self.lag += m.lag_mean * (m.tokens + m.left_out) as f64;
            self.lag_max = self.lag_max.max(Some(m.lag_max));
        }
        if m.tokens > 0 {
            self.ess += m.ess * m.tokens as f64;
            self.ess_min = Some(self.ess_min.map_or(m.ess, |least| least.min(m.ess)));
        }
    }
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
            step.rollouts.iter().filter(|r| r.status != Status::Trained).map(|r| r.status.kind()).collect();
        self.log.seal(step)?;
        let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        for status in not_trained {
            *sealed.not_trained.entry(status).or_default() += 1;
        }
        if let Some(metrics) = metrics {
            self.progress.step(&metrics, sampling);
            sealed.add(&metrics);
            sealed.steady.add(&metrics, self.progress.bar.length().unwrap_or(0), self.progress.bound);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wait for the disk that is shown as one for rollouts, or that is not shown.
    #[test]
    fn the_longest_wait_is_named() {
        let metrics = |any, forced, log| Metrics {
            train_ns: 100,
            wait_any_ns: any,
            wait_forced_ns: forced,
            wait_log_ns: log,
            ..Metrics::default()
        };
        let waits_for = |m: &Metrics| super::waits_for(m, Waits::default(), Duration::ZERO);
        assert_eq!(waits_for(&metrics(1, 1, 2)), "nothing");
        assert_eq!(waits_for(&metrics(5, 3, 2)), "rollouts");
        assert_eq!(waits_for(&metrics(1, 3, 2)), "forced groups");
        assert_eq!(waits_for(&metrics(1, 3, 4)), "the log");
        assert_eq!(waits_for(&Metrics::default()), "nothing");
    }

    /// Catches a wait that is shown as none, and generators of which nothing is known.
    #[test]
    fn waits_are_shown_as_shares() {
        let shares =
            Shares { waited_any: 0.2, waited_forced: 0.1, waited_log: 0.11, idle: Some(0.034), ..Shares::default() };
        assert_eq!(in_shares(&shares), " (41 %, generators idle 3 %)");
        assert_eq!(in_shares(&Shares { idle: None, ..shares }), " (41 %)");
    }

    /// Catches a mean of means, and a step without trained tokens that counts as one with a lag and an ESS of 0.
    #[test]
    fn steps_add_up() {
        let step = |tokens, lag, lag_max, ess| Metrics {
            tokens,
            rollouts: 2,
            lag_mean: lag,
            lag_max,
            ess,
            reward: ess,
            wait_any_ns: 1,
            wait_forced_ns: 2,
            wait_log_ns: 3,
            torch_ns: 4,
            ..Metrics::default()
        };
        let mut sealed = SealedSoFar::default();
        assert_eq!((sealed.lag_max, sealed.ess_min), (None, None));
        [step(10, 1.0, 2, 0.5), step(0, 9.0, 9, 0.0), step(30, 2.0, 3, 0.9)].iter().for_each(|m| sealed.add(m));
        assert_eq!((sealed.trained_tokens, sealed.trained_rollouts, sealed.lag, sealed.ess), (40, 6, 70.0, 32.0));
        assert_eq!((sealed.lag_max, sealed.ess_min, sealed.rewards.len()), (Some(3), Some(0.5), 3));
        let waits = (sealed.wait_any_ns, sealed.wait_forced_ns, sealed.wait_log_ns, sealed.torch_ns);
        assert_eq!(waits, (3, 6, 9, 12));
        // Chosen tokens that are left out count for the lag, as in the step's own mean, and for nothing else.
        let guarded = Metrics { left_out: 20, skipped: true, held: true, ..step(20, 4.0, 8, 0.7) };
        let empty = Metrics { left_out: 10, skipped: true, ..step(0, 7.0, 9, 0.0) };
        [guarded, empty].iter().for_each(|m| sealed.add(m));
        assert_eq!((sealed.lag, sealed.lag_max, sealed.ess_min), (70.0 + 160.0 + 70.0, Some(9), Some(0.5)));
        assert_eq!((sealed.trained_tokens, sealed.left_out, sealed.held, sealed.skipped), (60, 30, 1, 1));
    }
}
