//! `addition`: column addition with the carry written out. `a:478+356=` is answered by `8+6+0=14;7+5+1=13;4+3+1=08>834`:
//! from the right, each column is the two digits, the carry, and their two-digit sum; the number stands after `>`.
//!
//! Both numbers have the same count of digits, so that every column looks alike: `10 n` or `10 n + 1` tokens for `n` digits.
//!
//! A slip forgets a carry.

use super::draw::Draw;
use super::example::{Example, Slips};
use std::fmt::Write;

/// Fewest and most digits of a number that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 16);
pub const DEFAULT_SIZES: (u32, u32) = (2, 4);

/// Two numbers of `digits` digits, the first digit not 0.
pub fn example(digits: u32, slips: Slips, draw: &mut Draw) -> Example {
    let mut number =
        || (0..digits).map(|i| if i == 0 { draw.between(1, 9) } else { draw.between(0, 9) }).collect::<Vec<_>>();
    let (left, right) = (number(), number());
    worked(&left, &right, &mut || slips.happens(draw))
}

/// `left + right`, digits most significant first, as many of one as of the other.
fn worked(left: &[u32], right: &[u32], slip: &mut dyn FnMut() -> bool) -> Example {
    let text = |digits: &[u32]| digits.iter().map(u32::to_string).collect::<String>();
    let prompt = format!("a:{}+{}=", text(left), text(right));
    let (_, answer) = columns(left, right, &mut || false);
    let (completion, given) = columns(left, right, slip);
    Example { prompt, completion: format!("{completion}>{}", text(&given)), answer: text(&answer) }
}

/// The columns as written, and the digits of the sum.
fn columns(left: &[u32], right: &[u32], slip: &mut dyn FnMut() -> bool) -> (String, Vec<u32>) {
    let (mut written, mut sum) = (String::new(), Vec::new());
    let mut carry = 0;
    for (a, b) in left.iter().zip(right).rev() {
        let column = a + b + carry;
        let separator = if sum.is_empty() { "" } else { ";" };
        // Writing to a String cannot fail.
        let _ = write!(written, "{separator}{a}+{b}+{carry}={column:02}");
        sum.push(column % 10);
        carry = if column >= 10 && !slip() { 1 } else { 0 };
    }
    if carry > 0 {
        sum.push(carry);
    }
    sum.reverse();
    (written, sum)
}

/// How many prompts with numbers of this many digits there are.
pub fn distinct(digits: u32) -> f64 {
    (9.0 * 10f64.powi(digits as i32 - 1)).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worked_examples() {
        let Example { prompt, completion, answer } = worked(&[4, 7, 8], &[3, 5, 6], &mut || false);
        assert_eq!([prompt.as_str(), &answer], ["a:478+356=", "834"]);
        assert_eq!(completion, "8+6+0=14;7+5+1=13;4+3+1=08>834");
        let Example { completion, answer, .. } = worked(&[9, 9], &[9, 0], &mut || false);
        assert_eq!([completion.as_str(), &answer], ["9+0+0=09;9+9+0=18>189", "189"]);
    }

    /// Each column's sum, each carry, and the sum of the two numbers, worked out again from the text.
    fn check(prompt: &str, completion: &str, answer: &str) -> Option<()> {
        let (left, right) = prompt.strip_prefix("a:")?.strip_suffix('=')?.split_once('+')?;
        let (columns, last) = completion.split_once('>')?;
        let mut carry = 0;
        let columns: Vec<&str> = columns.split(';').collect();
        for (column, (a, b)) in columns.iter().zip(left.chars().rev().zip(right.chars().rev())) {
            let (terms, sum) = column.split_once('=')?;
            let sum: u32 = sum.parse().ok()?;
            (terms == format!("{a}+{b}+{carry}")).then_some(())?;
            (sum == a.to_digit(10)? + b.to_digit(10)? + carry).then_some(())?;
            carry = sum / 10;
        }
        let sum = left.parse::<u64>().ok()? + right.parse::<u64>().ok()?;
        (columns.len() == left.len() && last == answer && answer == sum.to_string()).then_some(())
    }

    proptest! {
        #[test]
        fn every_column_and_the_sum_are_right(digits in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(digits, Slips::NONE, &mut Draw::new(&[key]));
            prop_assert_eq!(check(&prompt, &completion, &answer), Some(()), "{}{}", prompt, completion);
            prop_assert_eq!(prompt.len(), 2 * digits as usize + 4);
            prop_assert_eq!(completion.len(), 9 * digits as usize + answer.len());
        }
    }
}
