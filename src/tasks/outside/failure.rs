//! Why a rollout has no reward from outside: what stands in its `reward_error`.

use std::fmt;

/// What went wrong with one request. Texts are cut to a length that a table can show.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    #[error("{key} = {value}, expected a finite number (32 bits)")]
    NotANumber { key: String, value: String },
    #[error("parts = {value}, expected an object of numbers")]
    Parts { value: String },
    #[error("the answer {answer} has neither \"reward\" nor \"error\"")]
    NoReward { answer: String },
    /// The reward's own word for it.
    #[error("no reward: {error}")]
    Said { error: String },

    #[error("the program cannot be started: {reason}")]
    NotStarted { reason: String },
    #[error("the program {ended} without an answer{}", last_words(.last_line.as_deref()))]
    Ended { ended: Ended, last_line: Option<String> },
    #[error("no answer within {limit_s} s; the program was ended")]
    TimeLimit { limit_s: f64 },
    #[error("the program wrote {line:?}, which is no answer to request {id}")]
    Garbage { line: String, id: u64 },
    #[error("the program wrote a line of more than {most} bytes")]
    LongLine { most: usize },

    #[error("the server answered with status {status}: {body:?}")]
    Status { status: u16, body: String },
    #[error("the server did not answer: {reason}")]
    Unreachable { reason: String },
    #[error("the server broke off: {reason}")]
    BrokeOff { reason: String },
    #[error("no answer of the server within {limit_s} s")]
    ServerTimeLimit { limit_s: f64 },
    #[error("the server answered {body:?}, which is not {{\"responses\": [..]}} with the ids of the requests")]
    Body { body: String },
    #[error("the server's responses have none for request {id}")]
    Missing { id: u64 },

    /// The job is over, and nobody waits for the answer.
    #[error("the job ended before there was an answer")]
    Closing,
}

/// How a program came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
    /// It still ran, but had closed its input or its output.
    Closed,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A shell says so of a program that a signal ended.
            Ended::Code(code) if (129..160).contains(code) => {
                write!(f, "exited with code {code} (128 + signal {})", code - 128)
            }
            Ended::Code(code) => write!(f, "exited with code {code}"),
            Ended::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Ended::Closed => f.write_str("closed its standard input or output"),
        }
    }
}

fn last_words(line: Option<&str>) -> String {
    line.map_or_else(String::new, |line| format!("; its last line on stderr: {line}"))
}
