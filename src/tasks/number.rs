//! Numbers in text, for the numeric reward: `1,234.50`, `$18`, `-3`, `6.02e23`, `.5`.

use regex::Regex;
use std::sync::LazyLock;

/// A number with an optional sign, currency sign, thousands separators, decimals and exponent. A comma that does not set off
/// three digits separates two numbers.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[-+]?\$?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+\b|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
        .expect("the pattern is a literal")
});

/// The number that `text` is, white space and one full stop at its end aside. `None` for anything else, also for words like
/// `true` or `nan` and for what no finite `f64` holds (`1e400`).
pub fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    let text = text.strip_suffix('.').unwrap_or(text);
    let found = NUMBER.find(text)?;
    if found.len() == text.len() { value(found.as_str()) } else { None }
}

/// The last number in `text`. A `-` or `+` between two terms (`5-3`) is no sign.
pub fn last_in(text: &str) -> Option<f64> {
    let found = NUMBER.find_iter(text).last()?;
    let number = found.as_str();
    let joined = text[..found.start()].ends_with(|c: char| c.is_alphanumeric() || c == ')');
    value(if joined { number.trim_start_matches(['-', '+']) } else { number })
}

fn value(number: &str) -> Option<f64> {
    let digits: String = number.chars().filter(|c| !matches!(c, ',' | '$')).collect();
    digits.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_a_number() {
        let cases = [
            ("1", Some(1.0)),
            ("0", Some(0.0)),
            ("-0.0", Some(-0.0)),
            (" 72.\n", Some(72.0)),
            ("$1,234.50", Some(1234.5)),
            ("+.5", Some(0.5)),
            ("6.02e23", Some(6.02e23)),
            ("1e400", None),
            ("true", None),
            ("nan", None),
            ("inf", None),
            ("", None),
            (".", None),
            ("1 2", None),
            ("1,2", None),
            ("12,3456", None),
            ("72 dollars", None),
            ("--1", None),
            ("\u{0663}", None),
        ];
        for (text, number) in cases {
            assert_eq!(parse(text), number, "{text:?}");
        }
    }

    #[test]
    fn the_last_number_of_a_text() {
        let cases = [
            ("so 3 apples and 4 pears are 7.", Some(7.0)),
            ("5-3", Some(3.0)),
            ("(2)-3", Some(3.0)),
            ("5 - 8 = -3", Some(-3.0)),
            ("1,2,3", Some(3.0)),
            ("it costs $1,200", Some(1200.0)),
            ("first 1 then 1e400", None),
            ("no digits", None),
        ];
        for (text, number) in cases {
            assert_eq!(last_in(text), number, "{text:?}");
        }
    }
}
