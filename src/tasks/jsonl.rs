//! JSON Lines: one object a line, read by the places of the lines in the file.

use super::prompts::{Place, Row, described};
use super::table::{Spread, Table, Unread};
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest line, bytes: JSON takes some thirty times its length in memory at worst.
const LONGEST: u64 = 16 << 20;

/// Bytes looked at together while the lines are counted.
const AT_ONCE: usize = 1 << 16;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// A file of JSON Lines. Of each line only its place is held (8 bytes), so its size does not matter.
pub struct JsonLines {
    path: PathBuf,
    file: File,
    /// Where each row begins. Lines without text are no rows.
    starts: Vec<u64>,
    /// Where a row has more lines without text before it than the row before: its index, and how many.
    gaps: Vec<(u64, u64)>,
    length: u64,
}

impl JsonLines {
    /// Counts the lines of a file.
    ///
    /// # Errors
    /// A file that cannot be opened or read.
    pub fn open(path: &Path) -> Result<JsonLines> {
        let file = File::open(path).map_err(|e| Error::file(path, e))?;
        let mut lines = JsonLines { path: path.to_owned(), file, starts: Vec::new(), gaps: Vec::new(), length: 0 };
        lines.count().map_err(|e| Error::file(path, e))?;
        Ok(lines)
    }

    fn count(&mut self) -> std::io::Result<()> {
        let mut reader = BufReader::with_capacity(AT_ONCE, &self.file);
        let head = reader.fill_buf()?;
        let mut at = if head.starts_with(BOM) { BOM.len() } else { 0 };
        reader.consume(at);
        // Where the line began, and whether it has text so far.
        let (mut start, mut text, mut gap) = (at, false, 0);
        let mut end_of_line = |start: &mut usize, text: &mut bool, next: usize| {
            if *text {
                if gap > self.gaps.last().map_or(0, |(_, gap)| *gap) {
                    self.gaps.push((self.starts.len() as u64, gap));
                }
                self.starts.push(*start as u64);
            } else {
                gap += 1;
            }
            (*start, *text) = (next, false);
        };
        loop {
            let bytes = reader.fill_buf()?;
            if bytes.is_empty() {
                break;
            }
            for (i, byte) in bytes.iter().enumerate() {
                match byte {
                    b'\n' => end_of_line(&mut start, &mut text, at + i + 1),
                    byte => text |= !byte.is_ascii_whitespace(),
                }
            }
            let read = bytes.len();
            at += read;
            reader.consume(read);
        }
        end_of_line(&mut start, &mut text, at);
        self.length = at as u64;
        Ok(())
    }

    /// The number of a row's line, from 1.
    fn line(&self, index: u64) -> u64 {
        let before = self.gaps.partition_point(|(row, _)| *row <= index);
        let gap = before.checked_sub(1).map_or(0, |last| self.gaps[last].1);
        index + gap + 1
    }

    /// The line that begins at `start`, as far as [`LONGEST`] and one byte more; `end` is where the next row begins.
    fn bytes(&mut self, start: u64, end: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; (end - start).min(LONGEST + 1) as usize];
        self.file.seek(SeekFrom::Start(start))?;
        self.file.read_exact(&mut bytes)?;
        bytes.truncate(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
        Ok(bytes)
    }
}

impl Table for JsonLines {
    fn rows(&self) -> u64 {
        self.starts.len() as u64
    }

    fn spread(&self) -> Spread {
        Spread::Even
    }

    /// A line that is too long, not UTF-8, not JSON or not an object is refused.
    fn row(&mut self, index: u64) -> Result<Row, Unread> {
        let line = self.line(index);
        let refuse = |path: &Path, reason: String| Error::file(path, format!("line {line}: {reason}"));
        let Some(&start) = self.starts.get(index as usize) else {
            return Err(Unread::File(refuse(&self.path, format!("the file has {} rows", self.starts.len()))));
        };
        let end = self.starts.get(index as usize + 1).copied().unwrap_or(self.length);
        let bytes = self.bytes(start, end).map_err(|e| Unread::File(refuse(&self.path, e.to_string())))?;
        if bytes.len() as u64 > LONGEST {
            return Err(Unread::Row(refuse(&self.path, format!("longer than {LONGEST} bytes"))));
        }
        let (fields, text) = object(bytes).map_err(|reason| Unread::Row(refuse(&self.path, reason)))?;
        Ok(Row { place: Place::Line(line), fields, text: Some(text) })
    }
}

/// The object of a line, and its text.
fn object(bytes: Vec<u8>) -> Result<(Map<String, Value>, String), String> {
    let text = String::from_utf8(bytes).map_err(|e| format!("byte {} is not UTF-8", e.utf8_error().valid_up_to() + 1))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(fields)) => Ok((fields, text)),
        Ok(other) => Err(format!("found {}, expected a JSON object on each line", described(&other))),
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
    use crate::tasks::prompts::{Items, Use};
    use crate::tasks::reward::Reward;
    use crate::tasks::spec::{DataSpec, RewardSpec};
    use std::io::Write;

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn all(path: &Path) -> Vec<Result<Row, Unread>> {
        let mut lines = JsonLines::open(path).unwrap();
        (0..lines.rows()).map(|index| lines.row(index)).collect()
    }

    #[test]
    fn rows_keep_their_line_numbers() {
        let file = written(b"\xEF\xBB\xBF\n{\"a\": 1}\r\n\n  \n{\"a\": 2}\n{\"a\": 3}\n\n{\"a\": 4}");
        let found: Vec<(Place, Value)> =
            all(file.path()).into_iter().map(|row| row.map(|row| (row.place, row.fields["a"].clone())).unwrap()).collect();
        let expected = [(2, 1), (5, 2), (6, 3), (8, 4)].map(|(line, a)| (Place::Line(line), a.into()));
        assert_eq!(found, expected);
    }

    /// Any row is where it was, whichever was read before; more rows than are counted at once.
    #[test]
    fn rows_are_read_in_any_order() {
        let text: String = (0..20_000).map(|i| format!("{{\"a\": {i}}}\n")).collect();
        assert!(text.len() > 2 * AT_ONCE);
        let mut lines = JsonLines::open(written(text.as_bytes()).path()).unwrap();
        assert_eq!(lines.rows(), 20_000);
        for index in [19_999, 0, 7_000, 6_999, 19_999] {
            let row = lines.row(index).unwrap();
            assert_eq!((row.place, &row.fields["a"]), (Place::Line(index + 1), &Value::from(index)));
        }
        assert!(matches!(lines.row(20_000), Err(Unread::File(_))));
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        for bytes in [&b""[..], BOM, b"\n \n\r\n"] {
            assert_eq!(all(written(bytes).path()).len(), 0);
        }
    }

    #[test]
    fn a_wrong_line_is_refused_and_the_others_are_read() {
        let long = [b"{\"a\": \"", vec![b'x'; LONGEST as usize].as_slice(), b"\"}"].concat();
        let cases: [(&[u8], &str); 6] = [
            (b"{\"a\": ", "not JSON at column 6: EOF while parsing a value"),
            (b"{\"a\": 1} x", "not JSON at column 10: trailing characters"),
            (b"[1, 2]", "found a list of 2, expected a JSON object on each line"),
            (b"7", "found the number 7, expected a JSON object on each line"),
            (b"{\"a\": \"\xFF\"}", "byte 8 is not UTF-8"),
            (&long, "longer than 16777216 bytes"),
        ];
        for (line, reason) in cases {
            let file = written(&[b"{\"a\": 1}\n", line, b"\n\n{\"a\": 3}\n"].concat());
            let found = all(file.path());
            assert_eq!(found.len(), 3);
            let Err(Unread::Row(error)) = &found[1] else { panic!("{reason}: the row was read") };
            assert_eq!(error.to_string(), format!("{}: line 2: {reason}", file.path().display()));
            assert_eq!(found[2].as_ref().unwrap().place, Place::Line(4));
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = JsonLines::open(Path::new("no/such.jsonl")).err().map(|e| e.to_string()).unwrap();
        assert!(error.starts_with("no/such.jsonl: "), "{error}");
    }

    fn bundled(name: &str, purpose: Use) -> Vec<Item> {
        let spec = DataSpec::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/prompts").join(name));
        let lines = JsonLines::open(&spec.file).unwrap();
        let mut items = Items::new(Box::new(lines), spec, None, purpose);
        (0..items.rows()).map(|row| items.item(row).unwrap()).collect()
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
