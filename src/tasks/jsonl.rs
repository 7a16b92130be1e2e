//! JSON Lines: one object a line.

use super::prompts::{Place, Row};
use crate::error::{Error, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The rows of a file, read as they are asked for. Empty lines are skipped, and counted in the line numbers.
///
/// # Errors
/// A file that cannot be opened; then, a row each, a line that is not UTF-8, not JSON, or not an object.
pub fn rows(path: &Path) -> Result<impl Iterator<Item = Result<Row>>> {
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    let path = path.to_path_buf();
    let lines = BufReader::new(file).split(b'\n').enumerate();
    Ok(lines.filter_map(move |(index, line)| {
        let line_number = index as u64 + 1;
        let refuse = |reason: String| Error::file(&path, format!("line {line_number}: {reason}"));
        match line.map_err(|e| refuse(e.to_string())) {
            Ok(bytes) => match object(&bytes, index == 0) {
                Ok(fields) => fields.map(|fields| Ok(Row { place: Place::Line(line_number), fields })),
                Err(reason) => Some(Err(refuse(reason))),
            },
            Err(error) => Some(Err(error)),
        }
    }))
}

type Object = serde_json::Map<String, Value>;

/// The object of a line; `None` for an empty line.
fn object(bytes: &[u8], first: bool) -> Result<Option<Object>, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("byte {} is not UTF-8", e.valid_up_to() + 1))?;
    let text = if first { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
    if text.trim().is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(Some(fields)),
        Ok(other) => Err(format!("found {}, expected a JSON object on each line", super::prompts::described(&other))),
        Err(e) => Err(format!("not JSON at column {}: {}", e.column(), reason(&e))),
    }
}

/// serde_json's words without their " at line 1 column 2": the line is the file's, not the text's.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(reason, _)| reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::item::Item;
    use crate::tasks::prompts::{Use, rows_to_items};
    use crate::tasks::reward::Reward;
    use crate::tasks::spec::{DataSpec, RewardSpec};
    use std::io::Write;

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn rows_keep_their_line_numbers() {
        let file = written(b"\xEF\xBB\xBF{\"a\": 1}\r\n\n  \n{\"a\": 2}");
        let found: Vec<(Place, Value)> =
            rows(file.path()).unwrap().map(|row| row.map(|row| (row.place, row.fields["a"].clone())).unwrap()).collect();
        assert_eq!(found, [(Place::Line(1), 1.into()), (Place::Line(4), 2.into())]);
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        assert_eq!(rows(written(b"").path()).unwrap().count(), 0);
    }

    #[test]
    fn a_wrong_line_is_refused_and_the_others_are_read() {
        let cases: [(&[u8], &str); 5] = [
            (b"{\"a\": ", "not JSON at column 6: EOF while parsing a value"),
            (b"{\"a\": 1} x", "not JSON at column 10: trailing characters"),
            (b"[1, 2]", "found a list of 2, expected a JSON object on each line"),
            (b"7", "found the number 7, expected a JSON object on each line"),
            (b"{\"a\": \"\xFF\"}", "byte 8 is not UTF-8"),
        ];
        for (line, reason) in cases {
            let file = written(&[b"{\"a\": 1}\n", line, b"\n{\"a\": 3}\n"].concat());
            let found: Vec<Result<Row>> = rows(file.path()).unwrap().collect();
            assert_eq!(found.len(), 3);
            let message = found[1].as_ref().unwrap_err().to_string();
            assert_eq!(message, format!("{}: line 2: {reason}", file.path().display()));
            assert_eq!(found[2].as_ref().unwrap().place, Place::Line(3));
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = rows(Path::new("no/such.jsonl")).err().map(|e| e.to_string()).unwrap();
        assert!(error.starts_with("no/such.jsonl: "), "{error}");
    }

    fn bundled(name: &str, purpose: Use) -> Vec<Item> {
        let spec = DataSpec::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/prompts").join(name));
        let items = rows_to_items(rows(&spec.file).unwrap(), &spec, None, purpose);
        items.collect::<Result<_>>().unwrap()
    }

    #[test]
    fn the_bundled_files_say_the_same_in_each_layout() {
        let plain = bundled("arithmetic.jsonl", Use::Rollouts);
        assert_eq!(plain.len(), 10);
        assert_eq!(plain[7].answer, "1.5");
        let strip = |items: Vec<Item>| -> Vec<Item> {
            items.into_iter().map(|item| Item { meta: String::new(), completion: String::new(), ..item }).collect()
        };
        assert_eq!(strip(bundled("arithmetic-verl.jsonl", Use::Rollouts)), plain);
        let pairs = bundled("arithmetic-pairs.jsonl", Use::Pairs);
        let reward = Reward::new(&RewardSpec::Numeric { after: Some("####".into()), tolerance: 0.0 }).unwrap();
        for pair in &pairs {
            let prompt = pair.clone().into_prompt(0, Vec::new());
            assert_eq!(reward.score(&prompt, &pair.completion).unwrap().reward, 1.0, "{}", pair.completion);
        }
        assert_eq!(strip(pairs), plain);
    }
}
