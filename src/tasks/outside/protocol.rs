//! What is asked and what is answered: JSON objects, the same for programs (a line each) and servers (in a list).
//! `docs/rewards.md` tells it to those who write a reward.

use super::failure::Failure;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tidegate_operators::record::{Rollout, Stop};

/// One question.
#[derive(Serialize)]
struct Request<'a> {
    id: u64,
    task: &'a str,
    prompt: &'a str,
    completion: &'a str,
    answer: &'a str,
    meta: Value,
    prompt_id: u64,
    group: u64,
    sample: u32,
    tokens: usize,
    stop: Stop,
}

/// The question about `rollout`, as one JSON object without a newline in it.
pub fn request(id: u64, rollout: &Rollout) -> String {
    let prompt = &rollout.group.prompt;
    let request = Request {
        id,
        task: &prompt.task,
        prompt: &prompt.text,
        completion: &rollout.text,
        answer: &prompt.answer,
        meta: serde_json::from_str(&prompt.meta).unwrap_or_else(|_| json!({})),
        prompt_id: prompt.id,
        group: rollout.group.number,
        sample: rollout.sample,
        tokens: rollout.tokens.len(),
        stop: rollout.stop,
    };
    // Texts and numbers only: nothing that JSON could not hold.
    serde_json::to_string(&request).unwrap_or_default()
}

/// A reward that was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Finite, and never -0.0.
    pub reward: f32,
    pub parts: Vec<(String, f32)>,
}

/// Stands before a word that is no JSON where JSON would have a value: `NaN`, `1e400`.
const BARE: char = '\u{1}';

/// Reads JSON. Words in place of a value that are none (Python writes `NaN`; `1e400` is no number here) become texts marked as
/// such, so that whoever refuses the value can name it, and the rest of the object is still read.
pub fn parse(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(&quoted(text)).ok())
}

/// `text` with words that are no JSON in quotes.
fn quoted(text: &str) -> String {
    let of_word = |c: char| c.is_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => end_of_text(rest),
            c if of_word(c) => rest.find(|c| !of_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match of_word(c) && serde_json::from_str::<Value>(token).is_err() {
            true => out.push_str(&Value::String(format!("{BARE}{token}")).to_string()),
            false => out.push_str(token),
        }
        rest = after;
    }
    out
}

/// How many bytes the JSON text at the start of `rest` has, its quotes included.
fn end_of_text(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

/// A value as it was written, cut where it is long.
pub fn shown(value: &Value) -> String {
    let text = value.as_str().and_then(|text| text.strip_prefix(BARE)).map(str::to_owned);
    cut(&text.unwrap_or_else(|| value.to_string()))
}

/// At most 200 characters of a text.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// The id of the request that `value` answers, and what it answers; None where it is no answer at all.
pub fn answer(value: &Value) -> Option<(u64, Result<Answer, Failure>)> {
    let object = value.as_object()?;
    Some((object.get("id")?.as_u64()?, read(object, value)))
}

fn read(object: &Map<String, Value>, whole: &Value) -> Result<Answer, Failure> {
    let given = |key: &str| object.get(key).filter(|value| !value.is_null());
    if let Some(error) = given("error") {
        return Err(Failure::Said { error: error.as_str().map_or_else(|| shown(error), cut) });
    }
    let reward =
        given("reward").ok_or_else(|| Failure::NoReward { answer: cut(&whole.to_string().replace("\\u0001", "")) })?;
    let reward = number("reward", reward)?;
    let parts = match given("parts") {
        None => Vec::new(),
        Some(Value::Object(parts)) => {
            let part = |(name, value): (&String, &Value)| Ok((name.clone(), number(&format!("parts.{name}"), value)?));
            parts.iter().map(part).collect::<Result<_, Failure>>()?
        }
        Some(other) => return Err(Failure::Parts { value: shown(other) }),
    };
    Ok(Answer { reward, parts })
}

/// A finite 32-bit number; -0.0 is 0.0.
fn number(key: &str, value: &Value) -> Result<f32, Failure> {
    let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
    let number = number.ok_or_else(|| Failure::NotANumber { key: key.to_owned(), value: shown(value) })?;
    Ok(number + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::{Group, Prompt};

    #[test]
    fn a_request_is_one_line_with_all_that_is_known() {
        let meta = r#"{"level": 3, "tags": ["a"]}"#.to_owned();
        let text = "sort\n\"3 1\"".to_owned();
        let prompt = Prompt { id: 9, task: "t".into(), text, answer: "13".into(), meta, ..Prompt::default() };
        let group = Arc::new(Group { number: 4, prompt, ..Group::default() });
        let rollout = Rollout { group, sample: 2, text: "é 31\u{0}".into(), tokens: vec![5, 6], ..Rollout::default() };
        let line = request(17, &rollout);
        assert!(!line.contains('\n'));
        let expected = json!({
            "id": 17, "task": "t", "prompt": "sort\n\"3 1\"", "completion": "é 31\u{0}", "answer": "13",
            "meta": {"level": 3, "tags": ["a"]}, "prompt_id": 9, "group": 4, "sample": 2, "tokens": 2, "stop": "eos",
        });
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
        let bare = request(1, &Rollout { stop: Stop::Length, ..Rollout::default() });
        assert!(bare.contains(r#""meta":{}"#) && bare.contains(r#""stop":"length""#), "{bare}");
    }

    fn of(text: &str) -> Result<(f32, usize), String> {
        let (id, answer) = answer(&parse(text).expect("an object")).expect("an answer");
        assert_eq!(id, 7);
        answer.map(|answer| (answer.reward, answer.parts.len())).map_err(|failure| failure.to_string())
    }

    /// Catches a reward that is taken for what it is not, or refused without its value (hard case 4).
    #[test]
    fn only_finite_numbers_are_rewards() {
        for (value, reward) in [("0", 0.0), ("-0.0", 0.0), ("-0", 0.0), ("1", 1.0), ("-2.5", -2.5), ("1e-60", 0.0)] {
            let (found, parts) = of(&format!("{{\"id\": 7, \"reward\": {value}}}")).unwrap();
            assert_eq!((found.to_bits(), parts), (f32::to_bits(reward), 0), "{value}");
        }
        assert_eq!(of("{\"id\": 7, \"reward\": -1e-60}").unwrap().0.to_bits(), 0);
        for value in
            ["\"1\"", "true", "false", "1e400", "-1e400", "1e39", "NaN", "Infinity", "-Infinity", "[1]", "{\"a\":1}"]
        {
            let refused = of(&format!("{{\"id\": 7, \"reward\": {value}, \"error\": null}}")).unwrap_err();
            let named = value.replace("1e39", "1e+39");
            let right = format!("reward = {named}, expected a finite number (32 bits)");
            assert!(refused == right || refused == right.replace(&named, value), "{refused}");
        }
        let none = of("{\"id\": 7, \"reward\": null, \"rewrd\": NaN}").unwrap_err();
        assert_eq!(none, "the answer {\"id\":7,\"reward\":null,\"rewrd\":\"NaN\"} has neither \"reward\" nor \"error\"");
    }

    #[test]
    fn parts_and_errors() {
        assert_eq!(of(r#"{"id": 7, "reward": 1, "parts": {"b": 2, "a": -0.0}, "more": [1]}"#), Ok((1.0, 2)));
        assert_eq!(of(r#"{"id": 7, "reward": 1, "parts": null}"#), Ok((1.0, 0)));
        let refused = of(r#"{"id": 7, "reward": 1, "parts": {"a": NaN}}"#).unwrap_err();
        assert_eq!(refused, "parts.a = NaN, expected a finite number (32 bits)");
        let refused = of(r#"{"id": 7, "reward": 1, "parts": [1]}"#).unwrap_err();
        assert_eq!(refused, "parts = [1], expected an object of numbers");
        assert_eq!(of(r#"{"id": 7, "error": "no such test"}"#), Err("no reward: no such test".to_owned()));
        let long = of(&format!("{{\"id\": 7, \"error\": \"{}\"}}", "é".repeat(999))).unwrap_err();
        assert_eq!(long.chars().count(), "no reward: ".len() + 200 + 3);
    }

    #[test]
    fn what_is_no_answer() {
        for text in ["", "1", "{", "done", "[]", "{\"id\": \"7\"}", "{\"reward\": 1}", "{\"id\": -1, \"reward\": 1}"] {
            assert!(parse(text).as_ref().and_then(answer).is_none(), "{text}");
        }
    }

    /// Catches a word inside a text that is taken for a value.
    #[test]
    fn texts_are_left_alone() {
        let text = r#"{"id": 7, "a": "NaN \" 1e400 \\", "reward": NaN, "b": "NaN"}"#;
        assert_eq!(quoted(text), text.replace("\"reward\": NaN", "\"reward\": \"\\u0001NaN\""));
        assert_eq!(quoted("{\"a"), "{\"a");
    }
}
