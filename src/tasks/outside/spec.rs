//! `[reward]` where it comes from outside: of a program, and of a server.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A program that is asked in lines (`kind = "command"`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// The program and its arguments, without a shell.
    pub command: Vec<String>,
    /// How many of it run at once, over the whole run.
    #[serde(default = "two")]
    pub processes: usize,
    /// Longest time of one request, seconds.
    #[serde(default = "ten")]
    pub time_limit_s: f64,
    /// What the first request of a fresh process may take in addition, from its start on, seconds.
    #[serde(default = "minute")]
    pub start_limit_s: f64,
    /// Its whole environment: names of variables that are passed on, or `NAME=VALUE`.
    #[serde(default = "path")]
    pub env: Vec<String>,
    /// Share of the last requests that may fail.
    #[serde(default = "half")]
    pub failure_limit: f64,
}

/// A server that is asked in batches (`kind = "http"`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// `http://` or `https://`.
    pub url: String,
    /// Most rollouts a POST.
    #[serde(default = "sixteen")]
    pub batch: usize,
    /// POSTs under way at once.
    #[serde(default = "two")]
    pub connections: usize,
    /// Longest time of one POST, seconds.
    #[serde(default = "ten")]
    pub time_limit_s: f64,
    /// How often a POST that failed is sent again.
    #[serde(default = "retries")]
    pub retries: u32,
    /// Share of the last requests that may fail.
    #[serde(default = "half")]
    pub failure_limit: f64,
    /// Sent with each POST; `${NAME}` in a value is the environment's.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

fn two() -> usize {
    2
}

fn sixteen() -> usize {
    16
}

fn retries() -> u32 {
    2
}

fn ten() -> f64 {
    10.0
}

fn minute() -> f64 {
    60.0
}

fn half() -> f64 {
    0.5
}

fn path() -> Vec<String> {
    vec!["PATH".to_owned()]
}

/// Beyond these a number is a slip of the keyboard.
const MOST: usize = 1024;
const LONGEST_S: f64 = 86_400.0;

impl CommandSpec {
    /// With every default.
    pub fn new(command: Vec<String>) -> Self {
        let (time_limit_s, start_limit_s, failure_limit) = (ten(), minute(), half());
        CommandSpec { command, processes: two(), time_limit_s, start_limit_s, env: path(), failure_limit }
    }

    /// # Errors
    /// The first key that is wrong.
    pub fn check(&self) -> Result<()> {
        if self.command.first().is_none_or(String::is_empty) || self.command.iter().any(|word| word.contains('\0')) {
            let why = "name a program and its arguments, for example [\"python3\", \"reward.py\"]";
            return Err(Error::config("reward.command", format!("{:?}", self.command), why));
        }
        count("reward.processes", self.processes)?;
        seconds("reward.time_limit_s", self.time_limit_s, f64::MIN_POSITIVE)?;
        seconds("reward.start_limit_s", self.start_limit_s, 0.0)?;
        let wrong = |entry: &&String| entry.is_empty() || entry.starts_with('=') || entry.contains('\0');
        if let Some(entry) = self.env.iter().find(wrong) {
            return Err(Error::config("reward.env", format!("{entry:?}"), "a variable's NAME, or NAME=VALUE"));
        }
        share(self.failure_limit)
    }

    pub(super) fn time_limit(&self) -> Duration {
        duration(self.time_limit_s)
    }

    pub(super) fn start_limit(&self) -> Duration {
        duration(self.start_limit_s)
    }
}

impl HttpSpec {
    /// With every default.
    pub fn new(url: impl Into<String>) -> Self {
        HttpSpec {
            url: url.into(),
            batch: sixteen(),
            connections: two(),
            time_limit_s: ten(),
            retries: retries(),
            failure_limit: half(),
            headers: BTreeMap::new(),
        }
    }

    /// # Errors
    /// The first key that is wrong.
    pub fn check(&self) -> Result<()> {
        if !["http://", "https://"].iter().any(|start| self.url.starts_with(start) && self.url.len() > start.len()) {
            return Err(Error::config("reward.url", &self.url, "an address that begins with http:// or https://"));
        }
        count("reward.batch", self.batch)?;
        count("reward.connections", self.connections)?;
        if self.retries as usize > MOST {
            return Err(Error::config("reward.retries", self.retries, format!("at most {MOST}")));
        }
        seconds("reward.time_limit_s", self.time_limit_s, f64::MIN_POSITIVE)?;
        share(self.failure_limit)
    }

    pub(super) fn time_limit(&self) -> Duration {
        duration(self.time_limit_s)
    }
}

fn count(key: &str, value: usize) -> Result<()> {
    if (1..=MOST).contains(&value) { Ok(()) } else { Err(Error::config(key, value, format!("1 to {MOST}"))) }
}

fn seconds(key: &str, value: f64, least: f64) -> Result<()> {
    let above = if least > 0.0 { "above 0" } else { "from 0 up" };
    if (least..=LONGEST_S).contains(&value) {
        Ok(())
    } else {
        Err(Error::config(key, value, format!("seconds {above}, at most {LONGEST_S}")))
    }
}

fn share(value: f64) -> Result<()> {
    let right = (0.0..=1.0).contains(&value);
    let why = "a share from 0 (the first failures stop the run) to 1 (none do)";
    if right { Ok(()) } else { Err(Error::config("reward.failure_limit", value, why)) }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::spec::RewardSpec;

    #[test]
    fn defaults_are_filled_in_and_written_out() {
        let read = |text: &str| toml::from_str::<RewardSpec>(text).map_err(|e| e.to_string());
        let command = RewardSpec::Command(CommandSpec::new(vec!["a".into(), "b".into()]));
        assert_eq!(read("kind = \"command\"\ncommand = [\"a\", \"b\"]"), Ok(command.clone()));
        assert_eq!(read(&toml::to_string(&command).unwrap()), Ok(command));
        let mut http = HttpSpec::new("http://127.0.0.1:1/x");
        assert_eq!(read("kind = \"http\"\nurl = \"http://127.0.0.1:1/x\""), Ok(RewardSpec::Http(http.clone())));
        http.headers.insert("a".into(), "${B}".into());
        let http = RewardSpec::Http(http);
        assert_eq!(read(&toml::to_string(&http).unwrap()), Ok(http));
        assert!(read("kind = \"command\"").unwrap_err().contains("missing field `command`"));
        assert!(
            read("kind = \"http\"\nurl = \"http://a\"\nprocesses = 2").unwrap_err().contains("unknown field `processes`")
        );
    }

    #[test]
    fn wrong_values_are_refused_by_key() {
        let command = || CommandSpec::new(vec!["a".into()]);
        let http = || HttpSpec::new("http://a");
        let cases = [
            (CommandSpec { command: vec![], ..command() }.check(), "reward.command = []: name a program"),
            (CommandSpec { command: vec!["".into()], ..command() }.check(), "reward.command = [\"\"]: name a program"),
            (CommandSpec { processes: 0, ..command() }.check(), "reward.processes = 0: 1 to 1024"),
            (CommandSpec { time_limit_s: 0.0, ..command() }.check(), "reward.time_limit_s = 0: seconds above 0"),
            (CommandSpec { time_limit_s: f64::NAN, ..command() }.check(), "reward.time_limit_s = NaN: seconds above 0"),
            (CommandSpec { start_limit_s: -1.0, ..command() }.check(), "reward.start_limit_s = -1: seconds from 0 up"),
            (CommandSpec { env: vec!["=1".into()], ..command() }.check(), "reward.env = \"=1\": a variable's NAME"),
            (CommandSpec { failure_limit: 1.5, ..command() }.check(), "reward.failure_limit = 1.5: a share from 0"),
            (HttpSpec { url: "localhost:80".into(), ..http() }.check(), "reward.url = localhost:80: an address"),
            (HttpSpec { batch: 0, ..http() }.check(), "reward.batch = 0: 1 to 1024"),
            (HttpSpec { connections: 9999, ..http() }.check(), "reward.connections = 9999: 1 to 1024"),
        ];
        for (checked, message) in cases {
            let found = checked.unwrap_err().to_string();
            assert!(found.starts_with(message), "{found}");
        }
        assert!(command().check().is_ok() && http().check().is_ok());
    }
}
