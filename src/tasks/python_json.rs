//! JSON to the letter as Python's `json.dumps` writes it: prompts of a model are to be those that it was trained on.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{Result, Write};

/// The options of `json.dumps`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Spaces a level, and a line an item; None is all on one line.
    pub indent: Option<usize>,
    /// Between two items, and between a key and its value.
    pub separators: [String; 2],
    /// Whether what is not ASCII is escaped.
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { indent: None, separators: [", ".into(), ": ".into()], ensure_ascii: false, sort_keys: false }
    }
}

/// The text of a value.
///
/// # Errors
/// A value that JSON cannot say.
pub fn dumps(value: &impl Serialize, options: &Options) -> serde_json::Result<String> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, Python { options, depth: 0, empty: true });
    if options.sort_keys {
        // A map of serde_json's sorts its keys.
        serde_json::to_value(value)?.serialize(&mut serializer)?;
    } else {
        value.serialize(&mut serializer)?;
    }
    String::from_utf8(text).map_err(serde::ser::Error::custom)
}

struct Python<'a> {
    options: &'a Options,
    depth: usize,
    /// Whether the list or object that was opened last has nothing in it yet.
    empty: bool,
}

impl Python<'_> {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> Result<()> {
        let Some(width) = self.options.indent else { return Ok(()) };
        write!(writer, "\n{:1$}", "", width * self.depth)
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> Result<()> {
        (self.depth, self.empty) = (self.depth + 1, true);
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        self.empty = false;
        if !first {
            writer.write_all(self.options.separators[0].as_bytes())?;
        }
        self.line(writer)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> Result<()> {
        self.depth -= 1;
        if !std::mem::replace(&mut self.empty, false) {
            self.line(writer)?;
        }
        writer.write_all(bracket)
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.open(writer, b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        self.item(writer, first)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.close(writer, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.open(writer, b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(self.options.separators[1].as_bytes())
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> Result<()> {
        self.close(writer, b"}")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> Result<()> {
        if !self.options.ensure_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        fragment.chars().try_for_each(|c| match c {
            ' '..='~' => write!(writer, "{c}"),
            c => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}")),
        })
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> Result<()> {
        writer.write_all(number(value).as_bytes())
    }
}

/// A finite number as Python writes it: `1e+16`, `1.5e-07`, with an exponent from 16 on and below -4, of two digits at least.
pub fn number(value: f64) -> String {
    let scientific = format!("{value:e}");
    match scientific.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?))) {
        Some((digits, exponent)) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ if value.fract() == 0.0 => format!("{value:.1}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// As Python 3.11 writes them.
    #[test]
    fn the_options_are_pythons() {
        let value = json!({"b": [1, "x\n\"\u{1}"], "a": {}, "é🦀": [], "c": [true, null]});
        let spaced = r#"{"a": {}, "b": [1, "x\n\"\u0001"], "c": [true, null], "é🦀": []}"#;
        assert_eq!(dumps(&value, &Options::default()).unwrap(), spaced);
        let ascii = Options { ensure_ascii: true, separators: [",".into(), ":".into()], ..Options::default() };
        let expected = r#"{"a":{},"b":[1,"x\n\"\u0001"],"c":[true,null],"\u00e9\ud83e\udd80":[]}"#;
        assert_eq!(dumps(&value, &ascii).unwrap(), expected);
        let lines = Options { indent: Some(2), separators: [",".into(), ": ".into()], ..Options::default() };
        let expected = "{\n  \"a\": {},\n  \"b\": [\n    1,\n    \"x\\n\\\"\\u0001\"\n  ],\n  \"c\": [\n    true,\n    null\n  ],\n  \"é🦀\": []\n}";
        assert_eq!(dumps(&value, &lines).unwrap(), expected);
    }

    #[test]
    fn numbers_are_pythons() {
        let numbers =
            [1e16, 1e15, 0.1, 1.5e-7, 0.0001, 0.000_012, 3.0, -2e22, 1.7976931348623157e308, 123_456_789.125, -0.0];
        let expected = "[1e+16, 1000000000000000.0, 0.1, 1.5e-07, 0.0001, 1.2e-05, 3.0, -2e+22, 1.7976931348623157e+308, 123456789.125, -0.0]";
        assert_eq!(dumps(&numbers, &Options::default()).unwrap(), expected);
        assert_eq!(dumps(&[-7i64, i64::MAX], &Options::default()).unwrap(), "[-7, 9223372036854775807]");
    }
}
