//! Threads that ask a server: each POSTs what waits, up to a batch, and sends it again where that may help.

use super::command::back_off;
use super::failure::Failure;
use super::pool::{Job, Outside, Shared, Sharing};
use super::protocol::{self, Answer};
use super::spec::HttpSpec;
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::http::{HeaderName, HeaderValue};

/// Makes ready to ask the server; the first request finds out whether it is there.
///
/// # Errors
/// A header that is none; a variable of the environment that one names and that is not set.
pub fn start(spec: &HttpSpec) -> Result<Outside> {
    spec.check()?;
    // No proxy from the environment: what is not in the specification has no effect.
    let config = ureq::Agent::config_builder().timeout_global(Some(spec.time_limit())).http_status_as_error(false);
    let config = config.proxy(None).max_redirects(0).user_agent("tidegate").max_idle_connections_per_host(spec.connections);
    let agent: ureq::Agent = config.build().into();
    let headers = headers(spec)?;
    let shared = Shared::new(spec.failure_limit);
    for _ in 0..spec.connections {
        let (shared, agent, headers) = (Arc::clone(&shared), agent.clone(), headers.clone());
        let asker = Asker { shared, agent, headers, spec: spec.clone() };
        let thread = std::thread::Builder::new().name("reward".to_owned());
        thread
            .spawn(move || asker.shared.watch_over(|| asker.run()))
            .map_err(|e| Error::engine("a thread for a reward's server", e))?;
    }
    // Nobody waits for these threads: one may be in a POST until its time limit, and keeps nothing alive.
    Ok(Outside::new(shared, Vec::new()))
}

type Headers = Vec<(HeaderName, HeaderValue)>;

fn headers(spec: &HttpSpec) -> Result<Headers> {
    let header = |(name, value): (&String, &String)| {
        let key = format!("reward.headers.{name}");
        let filled = filled(&key, value)?;
        // As it was written: what it was filled with may be a secret.
        let wrong = |_| Error::config(&key, value, "a header's name and value are visible ASCII characters");
        let named = HeaderName::try_from(name.as_str()).map_err(|_| wrong(()))?;
        Ok((named, HeaderValue::try_from(filled).map_err(|_| wrong(()))?))
    };
    let mut headers: Headers = spec.headers.iter().map(header).collect::<Result<_>>()?;
    if !headers.iter().any(|(name, _)| name == "content-type") {
        headers.push((HeaderName::from_static("content-type"), HeaderValue::from_static("application/json")));
    }
    Ok(headers)
}

/// `value` with each `${NAME}` replaced by that variable of the environment.
fn filled(key: &str, value: &str) -> Result<String> {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let wrong = |why: &str| Error::config(key, value, why);
        let (name, behind) = after.split_once('}').ok_or_else(|| wrong("a ${ without its }"))?;
        let set = std::env::var(name).map_err(|_| wrong(&format!("{name} is not set in the environment")))?;
        out.push_str(before);
        out.push_str(&set);
        rest = behind;
    }
    Ok(out + rest)
}

struct Asker {
    shared: Arc<Shared>,
    agent: ureq::Agent,
    headers: Headers,
    spec: HttpSpec,
}

/// What became of a POST as a whole.
struct Failed {
    failure: Failure,
    /// Whether the same again may go better.
    again: Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl Asker {
    fn run(&self) {
        while let Some(jobs) = self.shared.take(self.spec.batch) {
            let asked = Instant::now();
            // One by one they have been sent often enough.
            let alone = jobs.iter().any(|job| job.sharing == Sharing::Alone);
            match self.post_often(&jobs, if alone { 0 } else { self.spec.retries }) {
                Ok(answers) => self.deliver(jobs, answers, asked.elapsed()),
                Err(failure @ (Failure::Unreachable { .. } | Failure::Closing)) => self.give_up(jobs, &failure),
                Err(failure) if alone || jobs.len() == 1 => self.give_up(jobs, &failure),
                // One of them may be to blame.
                Err(_) => self.shared.again(jobs),
            }
        }
    }

    fn give_up(&self, jobs: Vec<Job>, failure: &Failure) {
        jobs.into_iter().for_each(|job| self.shared.failed(job, failure.clone(), &[]));
    }

    fn deliver(&self, jobs: Vec<Job>, mut answers: Answers, latency: Duration) {
        for job in jobs {
            match answers.remove(&job.id) {
                Some(answer) => self.shared.answered(job, answer, latency),
                None => {
                    let id = job.id;
                    self.shared.failed(job, Failure::Missing { id }, &[]);
                }
            }
        }
    }

    fn post_often(&self, jobs: &[Job], retries: u32) -> std::result::Result<Answers, Failure> {
        let requests: Vec<String> = jobs.iter().map(|job| protocol::request(job.id, &job.rollout)).collect();
        let body = format!("{{\"requests\":[{}]}}", requests.join(","));
        let ids: Vec<u64> = jobs.iter().map(|job| job.id).collect();
        for sent in 1.. {
            match self.post(&body, &ids) {
                Ok(answers) => return Ok(answers),
                Err(_) if self.shared.over() => return Err(Failure::Closing),
                Err(Failed { failure, again }) if again == Again::No || sent > retries => return Err(failure),
                Err(_) if !self.shared.pause(back_off(sent)) => return Err(Failure::Closing),
                Err(_) => self.shared.retried(),
            }
        }
        Err(Failure::Closing)
    }

    fn post(&self, body: &str, ids: &[u64]) -> std::result::Result<Answers, Failed> {
        let mut request = self.agent.post(&self.spec.url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.send(body).map_err(|e| self.unanswered(&e))?;
        let status = response.status().as_u16();
        let most = 1 << 20;
        let text = response.body_mut().with_config().limit(most * (ids.len() as u64 + 1)).lossy_utf8(true).read_to_string();
        let text = text.map_err(|e| self.unanswered(&e))?;
        if !(200..300).contains(&status) {
            // Too many requests, a time limit, a server in trouble; anything else would be the same again.
            let again = if status >= 500 || [408, 425, 429].contains(&status) { Again::Yes } else { Again::No };
            return Err(Failed { failure: Failure::Status { status, body: protocol::cut(&text) }, again });
        }
        read(&text, ids).ok_or_else(|| Failed { failure: Failure::Body { body: protocol::cut(&text) }, again: Again::No })
    }

    fn unanswered(&self, error: &ureq::Error) -> Failed {
        let failure = match error {
            ureq::Error::Timeout(_) => Failure::ServerTimeLimit { limit_s: self.spec.time_limit_s },
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::BadUri(_) => {
                Failure::Unreachable { reason: error.to_string() }
            }
            ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => Failure::Unreachable { reason: e.to_string() },
            error => Failure::BrokeOff { reason: error.to_string() },
        };
        Failed { failure, again: Again::Yes }
    }
}

type Answers = HashMap<u64, std::result::Result<Answer, Failure>>;

/// The answers by id; None where one answers nothing that was asked, or the same twice.
fn read(text: &str, ids: &[u64]) -> Option<Answers> {
    let body = protocol::parse(text)?;
    let mut answers = Answers::new();
    for response in body.get("responses").and_then(Value::as_array)? {
        let (id, answer) = protocol::answer(response)?;
        if !ids.contains(&id) || answers.insert(id, answer).is_some() {
            return None;
        }
    }
    Some(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_take_from_the_environment() {
        assert_eq!(filled("k", "a").unwrap(), "a");
        let path = std::env::var("PATH").unwrap();
        assert_eq!(filled("k", "Bearer ${PATH}, ${PATH}$x").unwrap(), format!("Bearer {path}, {path}$x"));
        let refused = |value: &str| filled("reward.headers.a", value).unwrap_err().to_string();
        assert_eq!(refused("${NO_SUCH}"), "reward.headers.a = ${NO_SUCH}: NO_SUCH is not set in the environment");
        assert_eq!(refused("x ${PATH"), "reward.headers.a = x ${PATH: a ${ without its }");
        let mut spec = HttpSpec::new("http://a");
        assert_eq!(headers(&spec).unwrap()[0].1, "application/json");
        spec.headers.insert("Content-Type".into(), "text/x".into());
        assert_eq!((headers(&spec).unwrap().len(), headers(&spec).unwrap()[0].1.to_str().unwrap()), (1, "text/x"));
        spec.headers.insert("a b".into(), "x".into());
        assert!(headers(&spec).unwrap_err().to_string().starts_with("reward.headers.a b = x: a header's name"));
    }

    #[test]
    fn a_body_answers_what_was_asked() {
        let body = r#"{"responses": [{"id": 2, "reward": 1}, {"id": 1, "reward": NaN}]}"#;
        let answers = read(body, &[1, 2, 3]).unwrap();
        assert_eq!((answers.len(), answers[&2].as_ref().unwrap().reward), (2, 1.0));
        assert!(answers[&1].is_err(), "the value is to blame, not its sibling");
        for garbage in
            ["", "[]", "{}", "{\"responses\": {}}", "{\"responses\": [1]}", "{\"responses\": [{\"id\": 9, \"reward\": 1}]}"]
        {
            assert!(read(garbage, &[1, 2]).is_none(), "{garbage}");
        }
        let twice = r#"{"responses": [{"id": 1, "reward": 1}, {"id": 1, "reward": 0}]}"#;
        assert!(read(twice, &[1]).is_none());
    }
}
