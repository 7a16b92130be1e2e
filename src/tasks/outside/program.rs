//! One running reward program: asked a line, answers a line, within a time, or is ended with all that it started.
//!
//! All three pipes are read and written by whoever asks, in one loop that waits for any of them: a program that does not read,
//! does not answer, or floods either output blocks nobody beyond its time.

use super::failure::{Ended, Failure};
use super::guard::Guard;
use super::protocol::cut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest line of an answer, bytes.
const LONGEST: usize = 1 << 20;

/// What is kept of stderr: so many lines of so many bytes.
const LINES: usize = 20;
const LINE_BYTES: usize = 500;

/// How often who waits looks whether it still must.
const LOOK: Duration = Duration::from_millis(50);

/// How long a program may take to leave by itself: when its outputs are closed, and when it is asked to.
const LEAVES: Duration = Duration::from_millis(200);
const LEAVES_AT_END: Duration = Duration::from_secs(1);

/// How a program is started.
#[derive(Clone, Debug)]
pub struct Start {
    pub program: String,
    pub arguments: Vec<String>,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
}

/// A running program, the leader of a process group of its own. Dropping it ends the group.
pub struct Program {
    child: Child,
    pid: Pid,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Of stdout, what is not yet a line that was asked for.
    read: Vec<u8>,
    tail: Tail,
    started: Instant,
    answers: u64,
    guard: Arc<Guard>,
}

/// What a pipe has for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    Open,
    Ended,
}

impl Program {
    /// # Errors
    /// A program that is not there or may not be started.
    pub fn start(start: &Start, guard: &Arc<Guard>) -> Result<Program, Failure> {
        let failed = |e: std::io::Error| Failure::NotStarted { reason: e.to_string() };
        let mut command = Command::new(&start.program);
        command.args(&start.arguments).env_clear().envs(start.env.iter().map(|(name, value)| (name, value)));
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        guard.add(child.id());
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(Failure::NotStarted { reason: "its pipes are missing".to_owned() });
        };
        let pid = Pid::from_child(&child);
        let program = Program {
            child,
            pid,
            stdin: Some(stdin),
            stdout,
            stderr: Some(stderr),
            read: Vec::new(),
            tail: Tail::default(),
            started: Instant::now(),
            answers: 0,
            guard: Arc::clone(guard),
        };
        program.unblock().map_err(|e| failed(e.into()))?;
        Ok(program)
    }

    /// Reads and writes return at once from here on.
    fn unblock(&self) -> rustix::io::Result<()> {
        let others = [self.stdin.as_ref().map(AsFd::as_fd), self.stderr.as_ref().map(AsFd::as_fd)];
        let mut pipes = others.into_iter().flatten().chain([self.stdout.as_fd()]);
        pipes.try_for_each(|pipe| ioctl_fionbio(pipe, true))
    }

    /// How long it has been there, if it has not answered yet.
    pub fn fresh(&self) -> Option<Duration> {
        (self.answers == 0).then(|| self.started.elapsed())
    }

    /// Whether it waits to be asked: it runs, and has written nothing that nobody asked for.
    pub fn waits(&mut self) -> bool {
        self.drain_stderr();
        self.read_stdout() == Pipe::Open && self.read.is_empty()
    }

    /// Writes `line` and waits for a line, without its newline; `over` is asked now and then whether to stop.
    ///
    /// # Errors
    /// No line in time, or none any more. The program is of no use then.
    pub fn ask(&mut self, line: &str, limit: Duration, over: &dyn Fn() -> bool) -> Result<String, Failure> {
        let until = Instant::now() + limit;
        let question = format!("{line}\n").into_bytes();
        let mut written = 0;
        loop {
            if let Some(at) = self.read.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.pop();
                self.answers += 1;
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.read.len() > LONGEST {
                return Err(Failure::LongLine { most: LONGEST });
            }
            if over() {
                return Err(Failure::Closing);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::TimeLimit { limit_s: (limit.as_secs_f64() * 1e3).round() / 1e3 });
            }
            self.wait(left.min(LOOK), written < question.len());
            self.drain_stderr();
            let output = self.read_stdout();
            if written < question.len() {
                match self.stdin.as_mut().map(|pipe| pipe.write(&question[written..])) {
                    Some(Ok(n)) => written += n,
                    Some(Err(e)) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Some(Err(_)) | None if self.read.is_empty() => return Err(self.ended()),
                    Some(Err(_)) | None => written = question.len(),
                }
            }
            if output == Pipe::Ended && !self.read.contains(&b'\n') {
                return Err(self.ended());
            }
        }
    }

    /// The last lines that it wrote to stderr.
    pub fn last_lines(&mut self) -> Vec<String> {
        // More than a pipe holds; a flood may go on.
        (0..32).for_each(|_| self.drain_stderr());
        self.tail.lines()
    }

    /// Asks it to leave, and ends it if it does not.
    pub fn leave(mut self) {
        self.stdin = None;
        let until = Instant::now() + LEAVES_AT_END;
        while self.read_stdout() == Pipe::Open && Instant::now() < until {
            self.drain_stderr();
            self.read.clear();
            self.wait(LOOK, false);
        }
    }

    /// Waits until there is something to read, or, if it `writes`, until something can be written; `most` at the longest.
    fn wait(&self, most: Duration, writes: bool) {
        let mut pipes = vec![PollFd::new(&self.stdout, PollFlags::IN)];
        pipes.extend(self.stderr.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        pipes.extend(self.stdin.as_ref().filter(|_| writes).map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        // An interruption is a short wait: whoever called looks again.
        let _ = poll(&mut pipes, Some(&time));
    }

    /// Takes what stdout has, a good deal at the most.
    fn read_stdout(&mut self) -> Pipe {
        let mut block = [0; 1 << 16];
        match self.stdout.read(&mut block) {
            Ok(0) => Pipe::Ended,
            Ok(n) => {
                self.read.extend_from_slice(&block[..n]);
                Pipe::Open
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Pipe::Open,
            Err(_) => Pipe::Ended,
        }
    }

    /// Takes what stderr has, a good deal at the most: a flood is read on at the next call.
    fn drain_stderr(&mut self) {
        let Some(pipe) = &mut self.stderr else { return };
        let mut block = [0; 1 << 16];
        match pipe.read(&mut block) {
            Ok(0) => self.stderr = None,
            Ok(n) => self.tail.add(&block[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.stderr = None,
        }
    }

    /// How it ended, now that it reads or writes no more.
    fn ended(&mut self) -> Failure {
        let until = Instant::now() + LEAVES;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = loop {
            let status = waitid(WaitId::Pid(self.pid), options).ok().flatten();
            let code = status.as_ref().and_then(|status| status.exit_status().map(Ended::Code));
            match code.or(status.and_then(|status| status.terminating_signal().map(Ended::Signal))) {
                Some(ended) => break ended,
                None if Instant::now() >= until => break Ended::Closed,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        Failure::Ended { ended, last_line: self.last_lines().pop() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // While it is not waited for, its number is nobody else's.
        let _ = kill_process_group(self.pid, Signal::KILL);
        self.guard.remove(self.child.id());
        let _ = self.child.wait();
    }
}

/// The last lines of a stream.
#[derive(Clone, Debug, Default)]
struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// The last line is not at its end yet.
    open: bool,
}

impl Tail {
    fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.open {
                self.lines.push_back(Vec::new());
            }
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.open = text.len() == piece.len();
            if let Some(line) = self.lines.back_mut() {
                line.extend_from_slice(&text[..text.len().min(LINE_BYTES - line.len())]);
            }
            if self.lines.len() > LINES {
                self.lines.pop_front();
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        let text = self.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
        text.filter(|line| !line.is_empty()).map(|line| cut(&line)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_bounded_and_joins_what_came_in_pieces() {
        let mut tail = Tail::default();
        for piece in [&b"a"[..], b"b\n\nc", b"", b"d\ne"] {
            tail.add(piece);
        }
        assert_eq!(tail.lines(), ["ab", "cd", "e"]);
        (0..1000).for_each(|n| tail.add(format!("{n}\n").as_bytes()));
        assert_eq!((tail.lines().len(), tail.lines()[0].as_str(), tail.lines()[19].as_str()), (20, "980", "999"));
        (0..100).for_each(|_| tail.add(&[b'x'; 1 << 16]));
        assert!(tail.lines.iter().all(|line| line.len() <= LINE_BYTES));
        assert_eq!(tail.lines()[19].len(), 203);
    }
}
