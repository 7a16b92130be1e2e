//! Threads that ask reward programs: one a process, started again with back-off when it fails.

use super::failure::Failure;
use super::guard::Guard;
use super::pool::{Job, Outside, Shared};
use super::program::{Program, Start};
use super::protocol::{self, Answer};
use super::spec::CommandSpec;
use crate::error::{Error, Result};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Starts `processes` of the program, so that one that is not there is told before anything else is done.
///
/// # Errors
/// A program that cannot be started; a variable that is to be passed on and is not set.
pub fn start(spec: &CommandSpec) -> Result<Outside> {
    spec.check()?;
    let (start, guard) = (how(spec)?, Arc::new(Guard::start()));
    let shared = Shared::new(spec.failure_limit);
    let first = |_| {
        let program = Program::start(&start, &guard);
        let why = |failure: Failure| {
            let why = format!("{failure}; a name without a slash is looked up in the PATH that reward.env gives it");
            Error::config("reward.command", format!("{:?}", spec.command), why)
        };
        program.map_err(why)
    };
    let programs: Vec<Program> = (0..spec.processes).map(first).collect::<Result<_>>()?;
    let asker = |program| {
        let (shared, guard) = (Arc::clone(&shared), Arc::clone(&guard));
        let (time_limit, start_limit) = (spec.time_limit(), spec.start_limit());
        let mut asker =
            Asker { shared, guard, start: start.clone(), time_limit, start_limit, program: Some(program), failures: 0 };
        let thread = std::thread::Builder::new().name("reward".to_owned());
        thread
            .spawn(move || asker.shared.clone().watch_over(|| asker.run()))
            .map_err(|e| Error::engine("a thread for a reward program", e))
    };
    let threads: Result<Vec<_>> = programs.into_iter().map(asker).collect();
    Ok(Outside::new(shared, threads?))
}

fn how(spec: &CommandSpec) -> Result<Start> {
    let variable = |entry: &String| match entry.split_once('=') {
        Some((name, value)) => Ok((OsString::from(name), OsString::from(value))),
        None => match std::env::var_os(entry) {
            Some(value) => Ok((OsString::from(entry), value)),
            None => Err(Error::config("reward.env", entry, "is not set here; set it, leave it out, or give NAME=VALUE")),
        },
    };
    let env = spec.env.iter().map(variable).collect::<Result<_>>()?;
    let (program, arguments) = spec.command.split_first().map(|(p, a)| (p.clone(), a.to_vec())).unwrap_or_default();
    Ok(Start { program, arguments, env })
}

/// Longest and shortest time before a program that failed is started again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// How long to wait after so many failures in a row: twice as long each time.
pub(super) fn back_off(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => BACK_OFF.1.min(BACK_OFF.0 * 2_u32.saturating_pow(doublings.min(16))),
    }
}

struct Asker {
    shared: Arc<Shared>,
    guard: Arc<Guard>,
    start: Start,
    time_limit: Duration,
    start_limit: Duration,
    program: Option<Program>,
    /// Since the last answer.
    failures: u32,
}

impl Asker {
    fn run(&mut self) {
        loop {
            if self.program.is_none() && !self.shared.pause(back_off(self.failures)) {
                break;
            }
            // Started before there is something to ask, so that its start takes no time from that.
            let started = self.running().map(drop);
            let Some(job) = self.shared.take(1).and_then(|mut jobs| jobs.pop()) else { break };
            match started {
                Ok(()) => self.serve(job),
                Err(failure) => self.failed(job, failure),
            }
        }
        if let Some(program) = self.program.take() {
            program.leave();
        }
    }

    /// The program, started (again) where it does not run.
    fn running(&mut self) -> std::result::Result<&mut Program, Failure> {
        let waiting = self.program.take().and_then(|mut program| program.waits().then_some(program));
        let program = match waiting {
            Some(program) => program,
            None => {
                self.shared.restarted();
                Program::start(&self.start, &self.guard)?
            }
        };
        Ok(self.program.insert(program))
    }

    fn serve(&mut self, job: Job) {
        let (time_limit, start_limit) = (self.time_limit, self.start_limit);
        let shared = Arc::clone(&self.shared);
        // It may have left while there was nothing to ask: that costs nobody anything.
        let program = match self.running() {
            Ok(program) => program,
            Err(failure) => return self.failed(job, failure),
        };
        let limit = time_limit + program.fresh().map_or(Duration::ZERO, |age| start_limit.saturating_sub(age));
        let asked = Instant::now();
        let line = program.ask(&protocol::request(job.id, &job.rollout), limit, &|| shared.over());
        match line.and_then(|line| read(&line, job.id)) {
            Ok(answer) => {
                self.failures = 0;
                self.shared.answered(job, answer, asked.elapsed());
            }
            Err(failure) => self.failed(job, failure),
        }
    }

    fn failed(&mut self, job: Job, failure: Failure) {
        self.failures = self.failures.saturating_add(1);
        let stderr = self.program.take().map(|mut program| program.last_lines()).unwrap_or_default();
        self.shared.failed(job, failure, &stderr);
    }
}

/// The answer to request `id` in a line.
///
/// # Errors
/// A line that answers nothing, or something else: whoever wrote it and what it will write next cannot be trusted.
fn read(line: &str, id: u64) -> std::result::Result<std::result::Result<Answer, Failure>, Failure> {
    match protocol::parse(line).as_ref().and_then(protocol::answer) {
        Some((answered, answer)) if answered == id => Ok(answer),
        _ => Err(Failure::Garbage { line: protocol::cut(line), id }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_ten_seconds() {
        let seconds: Vec<f64> = (0..9).map(|failures| back_off(failures).as_secs_f64()).collect();
        assert_eq!(seconds, [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]);
        assert_eq!(back_off(u32::MAX), Duration::from_secs(10));
    }
}
