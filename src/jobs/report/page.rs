//! The page: one file that needs no other. What it shows is JSON in an element that no browser runs; scripts make it text and
//! pictures, and never markup.

use crate::durable::write_sealed;
use crate::error::{Error, Result};
use crate::jobs::report::Data;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

const PAGE: &str = include_str!("assets/page.html");
const STYLE: &str = include_str!("assets/page.css");
/// See `docs/licences.md`.
const LIBRARIES: [&str; 2] = [include_str!("assets/d3.min.js"), include_str!("assets/plot.umd.min.js")];
const SCRIPTS: [&str; 7] = [
    include_str!("assets/parts.js"),
    include_str!("assets/charts.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/rollouts.js"),
    include_str!("assets/compare.js"),
    include_str!("assets/plans.js"),
    include_str!("assets/page.js"),
];

/// Writes the page of some data; it appears whole or not at all.
///
/// # Errors
/// A disk that refuses.
pub(super) fn write(path: &Path, data: &Data) -> Result<()> {
    let page = page(&data.title, data).map_err(|e| Error::file(path, e))?;
    write_sealed(path, |file| file.write_all(page.as_bytes()))
}

fn page(title: &str, data: &impl Serialize) -> serde_json::Result<String> {
    let data = serde_json::to_string(data)?;
    let (libraries, scripts) = (LIBRARIES.join("\n;\n"), SCRIPTS.concat());
    let (title, data) = (escaped(title), within_script(&data));
    let parts = [("TITLE", &*title), ("STYLE", STYLE), ("DATA", &*data), ("LIBRARIES", &*libraries), ("SCRIPT", &*scripts)];
    let mut page = String::with_capacity(PAGE.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = PAGE;
    // In the order of the page: what is put in is not looked at again.
    for (name, text) in parts {
        let mark = format!("<!--{name}-->");
        let (before, after) = rest.split_once(&mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

/// JSON that ends no element and begins no comment, whatever its texts hold: where `<` stands in JSON, it stands in a text.
fn within_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A text in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// What stands between two marks of a page.
    fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
        page.split_once(from).unwrap().1.split_once(to).unwrap().0
    }

    /// Catches a text that ends the element it is in, that begins a comment, that takes the place of a mark, and one that is not the
    /// same afterwards.
    #[test]
    fn hostile_texts_stay_texts() {
        let texts = [
            "</script><script>alert(1)</script>",
            "<!--<script>",
            "<!--SCRIPT-->",
            "\u{0}\u{1b}[31m\u{7f}\u{202e}\u{2028}\u{2029}\u{feff}",
            "\\u003c/script>",
            "\u{fffd}🦀\"'&amp;`${x}",
            "]]>",
        ];
        let page = page(texts[0], &texts).unwrap();
        let data = between(&page, "<script type=\"application/json\" id=\"data\">", "</script>");
        assert_eq!(serde_json::from_str::<Value>(data).unwrap(), serde_json::to_value(texts).unwrap());
        assert!(!data.contains('<') && !data.contains(['\u{2028}', '\u{2029}']));
        assert_eq!(between(&page, "<title>", "</title>"), "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
        assert_eq!(page.matches("</script>").count(), 3, "one ends the data, one the libraries and one the program");
    }

    /// Catches a page that needs a network, and a library that would end the element it stands in.
    #[test]
    fn a_page_needs_nothing_else() {
        for script in LIBRARIES.iter().chain(&SCRIPTS) {
            assert!(!script.to_lowercase().contains("</script") && !script.contains("<!--"));
        }
        let page = page("", &Value::Null).unwrap();
        for part in ["<script src", "<link", "<img", "@import", "url(", "<!--TITLE", "<!--STYLE", "<!--DATA", "<!--SCRIPT"] {
            let found = page.split("<script>").next().unwrap().contains(part);
            assert!(!found, "{part}");
        }
        assert!(page.contains("default-src 'none'"), "a browser asks nobody for anything");
        assert!(page.len() < 700_000, "{} bytes before there is data", page.len());
    }
}
