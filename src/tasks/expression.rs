//! `expression`: work out a chain of `+`, `-` and `*` from left to right, modulo 10, one operation a step.
//! `e:3+4*2-5=` is answered by `7*2-5>4-5>9`: each step puts the value of the first operation in its place and copies the
//! rest; the answer stands after the last `>`. `n` operations take `n (n + 1) - 1` tokens.
//!
//! There is no precedence: the chain stands for `((3+4)*2)-5`, whose brackets would only be more to copy.

use super::draw::Draw;
use super::generated::Example;
use std::fmt::Write;

/// Fewest and most operations that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 20);
pub const DEFAULT_SIZES: (u32, u32) = (2, 10);

/// A chain of `operations` uniform operations on uniform digits.
pub fn example(operations: u32, draw: &mut Draw) -> Example {
    let first = draw.between(0, 9);
    let chain: Vec<(char, u32)> =
        (0..operations).map(|_| (['+', '-', '*'][draw.below(3) as usize], draw.between(0, 9))).collect();
    worked(first, &chain)
}

fn worked(first: u32, chain: &[(char, u32)]) -> Example {
    let prompt = format!("e:{}=", written(first, chain));
    let mut value = first;
    let mut completion = String::new();
    for (i, &(operator, digit)) in chain.iter().enumerate() {
        value = apply(value, operator, digit);
        let separator = if i == 0 { "" } else { ">" };
        // Writing to a String cannot fail.
        let _ = write!(completion, "{separator}{}", written(value, &chain[i + 1..]));
    }
    Example { prompt, completion, answer: value.to_string() }
}

fn written(value: u32, chain: &[(char, u32)]) -> String {
    chain.iter().fold(value.to_string(), |text, (operator, digit)| format!("{text}{operator}{digit}"))
}

fn apply(left: u32, operator: char, right: u32) -> u32 {
    match operator {
        '+' => (left + right) % 10,
        '-' => (left + 10 - right) % 10,
        _ => left * right % 10,
    }
}

/// How many prompts with this many operations there are.
pub fn distinct(operations: u32) -> f64 {
    10.0 * 30f64.powi(operations as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worked_examples() {
        let Example { prompt, completion, answer } = worked(3, &[('+', 4), ('*', 2), ('-', 5)]);
        assert_eq!([prompt.as_str(), &completion, &answer], ["e:3+4*2-5=", "7*2-5>4-5>9", "9"]);
        assert_eq!(worked(7, &[('+', 8), ('-', 9)]).completion, "5-9>6");
    }

    /// The value of a chain over the integers, taken modulo 10 at the end: another way to the same number.
    fn value(chain: &str) -> Option<i128> {
        let mut characters = chain.chars();
        let mut value = i128::from(characters.next()?.to_digit(10)?);
        while let Some(operator) = characters.next() {
            let digit = i128::from(characters.next()?.to_digit(10)?);
            value = match operator {
                '+' => value + digit,
                '-' => value - digit,
                '*' => value * digit,
                _ => return None,
            };
        }
        Some(value.rem_euclid(10))
    }

    proptest! {
        /// Each step is the one before without its first operation, and has the same value.
        #[test]
        fn every_step_keeps_the_value(operations in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(operations, &mut Draw::new(&[key]));
            let chain = prompt.strip_prefix("e:").and_then(|rest| rest.strip_suffix('=')).unwrap();
            let steps: Vec<&str> = std::iter::once(chain).chain(completion.split('>')).collect();
            prop_assert_eq!(steps.len(), operations as usize + 1);
            for pair in steps.windows(2) {
                prop_assert_eq!(&pair[0][3..], &pair[1][1..]);
                prop_assert!(value(pair[1]).is_some() && value(pair[1]) == value(chain));
            }
            prop_assert_eq!(&answer, steps[steps.len() - 1]);
            prop_assert_eq!(answer.len(), 1);
            prop_assert_eq!(completion.len() as u32, operations * (operations + 1) - 1);
        }
    }
}
