//! The queue between those who want rewards and the threads that ask for them.

use super::failure::Failure;
use super::meter::{Latencies, Stats, Window};
use super::protocol::Answer;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_operators::fault::{Fault, guarded};
use tidegate_operators::record::Rollout;

/// Rewards from outside, with all that was started for them. It ends with its last clone, and waits for what it started.
#[derive(Clone)]
pub struct Outside {
    shared: Arc<Shared>,
    _running: Arc<Running>,
}

impl Outside {
    /// Over threads that [`take`](Shared::take) from `shared` until there is nothing more to do.
    pub(super) fn new(shared: Arc<Shared>, threads: Vec<JoinHandle<()>>) -> Self {
        let running = Arc::new(Running { shared: Arc::clone(&shared), threads });
        Outside { shared, _running: running }
    }

    /// Somebody who wants rewards.
    pub fn client(&self) -> Client {
        Client { shared: Arc::clone(&self.shared), inbox: Arc::default(), pending: 0 }
    }

    /// What shows how it goes.
    pub fn meter(&self) -> Meter {
        Meter(Arc::clone(&self.shared))
    }
}

struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.close();
        // A thread that panicked has nothing left to end.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Shows how rewards from outside go; keeps nothing running.
#[derive(Clone)]
pub struct Meter(Arc<Shared>);

impl Meter {
    /// Rollouts that wait for their reward now.
    pub fn pending(&self) -> u64 {
        self.0.lock().pending
    }

    /// How long the one that waits longest has waited by now; None where none does.
    pub fn longest_wait(&self) -> Option<Duration> {
        self.0.lock().away.first_key_value().map(|(_, sent)| sent.elapsed())
    }

    /// What waiting was like since this was last asked.
    pub fn waits(&self) -> Waits {
        let mut state = self.0.lock();
        let pending = state.pending;
        std::mem::replace(&mut state.waits, Waits { most_pending: pending, ..Waits::default() })
    }

    pub fn stats(&self) -> Stats {
        let state = self.0.lock();
        let (latency_mean_s, latency_p99_s) = (state.latencies.mean_s(), state.latencies.percentile_s(99));
        Stats { latency_mean_s, latency_p99_s, ..state.stats.clone() }
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

/// What waiting for rewards was like, for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Rollouts that came back, and how long they were away, queued or asked about, together.
    pub rollouts: u64,
    pub time: Duration,
    /// The largest number that waited at once.
    pub most_pending: u64,
}

impl Waits {
    /// Mean time of a rollout; zero without one.
    pub fn mean(&self) -> Duration {
        u32::try_from(self.rollouts).ok().and_then(|n| self.time.checked_div(n)).unwrap_or_default()
    }
}

/// Somebody who wants rewards: sends rollouts, and gets each back once. What it still waits for when it is dropped is given up.
pub struct Client {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    pending: usize,
}

/// Where a client's rollouts come back.
#[derive(Default)]
struct Inbox {
    state: Mutex<InboxState>,
    came: Condvar,
}

#[derive(Default)]
struct InboxState {
    scored: Vec<Rollout>,
    wake: Option<Box<dyn Fn() + Send>>,
    gone: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, rollout: Rollout) {
        let mut state = self.lock();
        state.scored.push(rollout);
        self.came.notify_all();
        state.wake.iter().for_each(|wake| wake());
    }
}

impl Client {
    /// Calls `wake`, on a thread of the pool, whenever [`finished`](Client::finished) has something.
    pub fn wake_with(&mut self, wake: impl Fn() + Send + 'static) {
        self.inbox.lock().wake = Some(Box::new(wake));
    }

    /// Asks for the reward of `rollout`.
    pub fn send(&mut self, rollout: Rollout) {
        self.pending += 1;
        self.shared.push(rollout, &self.inbox);
    }

    /// Rollouts sent and not yet given back.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Those that have come back since: with a reward and its parts, or with the reason why there is none.
    ///
    /// # Errors
    /// Too large a share of the requests failed: nothing is asked any more, and whoever asks is told.
    pub fn finished(&mut self) -> Result<Vec<Rollout>, Fault> {
        if let Some(fault) = self.shared.lock().fault.clone() {
            return Err(fault);
        }
        let scored = std::mem::take(&mut self.inbox.lock().scored);
        self.pending -= scored.len();
        Ok(scored)
    }

    /// Waits until [`finished`](Client::finished) has something, `most` at the longest.
    pub fn wait(&self, most: Duration) {
        let state = self.inbox.lock();
        let nothing = |state: &mut InboxState| state.scored.is_empty();
        drop(self.inbox.came.wait_timeout_while(state, most, nothing).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = self.inbox.lock();
        state.gone = true;
        state.wake = None;
    }
}

/// What a thread of the pool is to ask.
pub(super) struct Job {
    pub id: u64,
    pub rollout: Rollout,
    pub sharing: Sharing,
    sent: Instant,
    inbox: Arc<Inbox>,
}

/// Whether a job may be asked together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Any,
    /// It was among those of a batch that failed: the one that is to blame must not take the others along.
    Alone,
}

/// What all threads of a pool and its clients share.
pub(super) struct Shared {
    failure_limit: f64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    next_id: u64,
    over: bool,
    fault: Option<Fault>,
    window: Window,
    pending: u64,
    /// When each that is pending was sent, by id: in the order in which they were.
    away: BTreeMap<u64, Instant>,
    stats: Stats,
    waits: Waits,
    latencies: Latencies,
}

impl Shared {
    pub fn new(failure_limit: f64) -> Arc<Shared> {
        Arc::new(Shared { failure_limit, state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, rollout: Rollout, inbox: &Arc<Inbox>) {
        let mut state = self.lock();
        state.pending += 1;
        state.next_id += 1;
        state.waits.most_pending = state.waits.most_pending.max(state.pending);
        let (id, inbox, sent) = (state.next_id, Arc::clone(inbox), Instant::now());
        state.away.insert(id, sent);
        let job = Job { id, rollout, sharing: Sharing::Any, sent, inbox };
        if state.over {
            drop(state);
            return self.give(job, Err(Failure::Closing));
        }
        state.queue.push_back(job);
        self.changed.notify_one();
    }

    /// Jobs in front of the others, each to be asked alone.
    pub fn again(&self, jobs: Vec<Job>) {
        let mut state = self.lock();
        if state.over {
            drop(state);
            return jobs.into_iter().for_each(|job| self.give(job, Err(Failure::Closing)));
        }
        jobs.into_iter().rev().for_each(|job| state.queue.push_front(Job { sharing: Sharing::Alone, ..job }));
        self.changed.notify_all();
    }

    /// Waits for jobs: what is there, `most` at the most. None when there is nothing more to do.
    pub fn take(&self, most: usize) -> Option<Vec<Job>> {
        let mut state = self.lock();
        loop {
            if state.over {
                return None;
            }
            let mut taken: Vec<Job> = Vec::new();
            while taken.len() < most
                && let Some(job) = state.queue.pop_front()
            {
                if job.inbox.lock().gone {
                    state.pending -= 1;
                    state.away.remove(&job.id);
                } else if job.sharing == Sharing::Any {
                    taken.push(job);
                } else if taken.is_empty() {
                    return Some(vec![job]);
                } else {
                    state.queue.push_front(job);
                    break;
                }
            }
            if !taken.is_empty() {
                return Some(taken);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits; false when there is nothing more to do.
    pub fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while !state.over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.over
    }

    /// Runs a thread of the pool. A panic in it ends everything: the rollout that it had would never come back.
    pub fn watch_over(&self, run: impl FnOnce()) {
        let ran = guarded("reward", || {
            run();
            Ok(())
        });
        if let Err(fault) = ran {
            self.lock().fault = Some(fault);
            self.close();
        }
    }

    /// Whether nothing more is to be done: who still asks may stop.
    pub fn over(&self) -> bool {
        self.lock().over
    }

    pub fn restarted(&self) {
        self.lock().stats.restarts += 1;
    }

    pub fn retried(&self) {
        self.lock().stats.retries += 1;
    }

    /// A job is answered.
    pub fn answered(&self, job: Job, answer: Result<Answer, Failure>, latency: Duration) {
        self.lock().latencies.add(latency);
        match answer {
            Ok(answer) => self.give(job, Ok(answer)),
            Err(failure) => self.failed(job, failure, &[]),
        }
    }

    /// A job has failed; `stderr` is what the program wrote last. Ends everything where too many have.
    pub fn failed(&self, job: Job, failure: Failure, stderr: &[String]) {
        let counts = failure != Failure::Closing;
        let mut state = self.lock();
        let passed = if counts && !state.over { state.window.add(true, self.failure_limit) } else { None };
        if let Some((failures, requests)) = passed {
            let mut message = format!(
                "{failures} of the last {requests} requests failed, more than reward.failure_limit = {} allows; the last one: \
                 {}. Ask it by hand, as docs/rewards.md shows, or raise the limit",
                self.failure_limit,
                told(&job.rollout, &failure),
            );
            if !stderr.is_empty() {
                message.push_str("; its last lines on stderr:");
                stderr.iter().for_each(|line| message.push_str(&format!("\n  | {line}")));
            }
            // Before anybody is woken: who is sees it.
            state.fault = Some(Fault::new("reward", message));
        }
        drop(state);
        self.give(job, Err(failure));
        if passed.is_some() {
            self.close();
        }
    }

    /// Gives a rollout back to whom it belongs.
    fn give(&self, job: Job, answer: Result<Answer, Failure>) {
        let Job { id, mut rollout, inbox, sent, .. } = job;
        let mut state = self.lock();
        state.away.remove(&id);
        state.pending -= 1;
        state.waits.rollouts += 1;
        state.waits.time += sent.elapsed();
        if !matches!(answer, Err(Failure::Closing)) {
            state.stats.requests += 1;
            state.stats.failures += u64::from(answer.is_err());
        }
        if answer.is_ok() {
            // A share of one answered request can pass no limit that the one before did not.
            state.window.add(false, 1.0);
        }
        drop(state);
        (rollout.reward, rollout.reward_parts, rollout.reward_error) = match answer {
            Ok(answer) => (Some(answer.reward), answer.parts, None),
            Err(failure) => (None, Vec::new(), Some(told(&rollout, &failure))),
        };
        inbox.give(rollout);
    }

    /// Nothing is asked any more; what waits comes back without a reward.
    fn close(&self) {
        let mut state = self.lock();
        state.over = true;
        let left = std::mem::take(&mut state.queue);
        drop(state);
        self.changed.notify_all();
        left.into_iter().for_each(|job| self.give(job, Err(Failure::Closing)));
    }
}

/// Which rollout has no reward, and why.
fn told(rollout: &Rollout, failure: &Failure) -> String {
    format!("group {}, sample {}: {failure}", rollout.group.number, rollout.sample)
}
