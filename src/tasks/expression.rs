//! `expression`: work out a chain of `+`, `-` and `*` from left to right, one operation a step, written out in full.
//! `e:3+4-5*2=` is answered by `3+4=7-5*2;7-5=2*2;2*2=4>4`: each step copies the first operation, gives its value, and copies
//! the rest of the chain behind it; the answer stands after `>`. `n` operations take `n (n + 5) + 1` tokens.
//!
//! Every value on the way is a digit: the next operation is drawn among those that stay in 0 to 9. Left to right means that
//! there is no precedence: the chain stands for `((3+4)-5)*2`, whose brackets would only be more to copy.
//!
//! A slip makes a difference one too large.

use super::draw::Draw;
use super::example::{Example, Slips};
use std::fmt::Write;

/// Fewest and most operations that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 16);
pub const DEFAULT_SIZES: (u32, u32) = (3, 8);

/// A chain of `operations` operations, each uniform among those whose value is a digit.
pub fn example(operations: u32, slips: Slips, draw: &mut Draw) -> Example {
    let first = draw.between(0, 9);
    let mut value = first;
    let mut chain = Vec::with_capacity(operations as usize);
    while chain.len() < operations as usize {
        let (operator, digit) = (OPERATORS[draw.below(3) as usize], draw.between(0, 9));
        // Adding and taking away 0 always stay in range, so this ends.
        if let Some(next) = apply(value, operator, digit) {
            value = next;
            chain.push((operator, digit));
        }
    }
    worked(first, &chain, &mut || slips.happens(draw))
}

/// How many prompts with this many operations there are.
pub fn distinct(operations: u32) -> f64 {
    // How many chains end at each value.
    let mut counts = [1.0; 10];
    for _ in 0..operations {
        let mut next = [0.0; 10];
        for (value, count) in counts.iter().enumerate() {
            for operator in OPERATORS {
                for reached in (0..10).filter_map(|digit| apply(value as u32, operator, digit)) {
                    next[reached as usize] += count;
                }
            }
        }
        counts = next;
    }
    counts.iter().sum()
}

const OPERATORS: [char; 3] = ['+', '-', '*'];

/// The value of an operation, if it is a digit.
fn apply(left: u32, operator: char, right: u32) -> Option<u32> {
    let value = match operator {
        '+' => left + right,
        '-' => left.checked_sub(right)?,
        _ => left * right,
    };
    (value <= 9).then_some(value)
}

fn worked(first: u32, chain: &[(char, u32)], slip: &mut dyn FnMut() -> bool) -> Example {
    let prompt = format!("e:{first}{}=", written(chain));
    let (_, answer) = steps(first, chain, &mut || false);
    let (completion, given) = steps(first, chain, slip);
    Example { prompt, completion: format!("{completion}>{given}"), answer: answer.to_string() }
}

/// The steps of a chain as written, and its value; what comes after an operation whose value is no digit is left out.
fn steps(first: u32, chain: &[(char, u32)], slip: &mut dyn FnMut() -> bool) -> (String, u32) {
    let (mut steps, mut value) = (String::new(), first);
    for (i, &(operator, digit)) in chain.iter().enumerate() {
        let Some(mut next) = apply(value, operator, digit) else { break };
        if operator == '-' && next < 9 && slip() {
            next += 1;
        }
        let separator = if i == 0 { "" } else { ";" };
        // Writing to a String cannot fail.
        let _ = write!(steps, "{separator}{value}{operator}{digit}={next}{}", written(&chain[i + 1..]));
        value = next;
    }
    (steps, value)
}

fn written(chain: &[(char, u32)]) -> String {
    chain.iter().map(|(operator, digit)| format!("{operator}{digit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worked_examples() {
        let Example { prompt, completion, answer } = worked(3, &[('+', 4), ('-', 5), ('*', 2)], &mut || false);
        assert_eq!([prompt.as_str(), &completion, &answer], ["e:3+4-5*2=", "3+4=7-5*2;7-5=2*2;2*2=4>4", "4"]);
        assert_eq!(worked(0, &[('*', 8), ('+', 9)], &mut || false).completion, "0*8=0+9;0+9=9>9");
    }

    /// 1: 10 values with 10 - v sums, v + 1 differences, and the products up to 9 (1 x 10, 10, 5, 4, 3, 2, 2, 2, 2, 2).
    #[test]
    fn counts_are_exact() {
        assert_eq!(distinct(0), 10.0);
        assert_eq!(distinct(1), f64::from(55 + 55 + 10 + 10 + 5 + 4 + 3 + 2 + 2 + 2 + 2 + 2));
        let mut draw = Draw::new(&[1]);
        let seen: std::collections::BTreeSet<String> =
            (0..40_000).map(|_| example(2, Slips::NONE, &mut draw).prompt).collect();
        assert_eq!(seen.len() as f64, distinct(2));
    }

    /// The value of a chain, over the integers.
    fn value(chain: &str) -> Option<i64> {
        let mut characters = chain.chars();
        let mut value = i64::from(characters.next()?.to_digit(10)?);
        while let Some(operator) = characters.next() {
            let digit = i64::from(characters.next()?.to_digit(10)?);
            value = match operator {
                '+' => value + digit,
                '-' => value - digit,
                '*' => value * digit,
                _ => return None,
            };
        }
        Some(value)
    }

    proptest! {
        /// Each step starts from the chain before it, gives its first operation's value, and keeps the whole chain's.
        #[test]
        fn every_step_keeps_the_value(operations in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(operations, Slips::NONE, &mut Draw::new(&[key]));
            let mut chain = prompt.strip_prefix("e:").and_then(|rest| rest.strip_suffix('=')).unwrap();
            let whole = value(chain);
            let (steps, last) = completion.split_once('>').unwrap();
            prop_assert_eq!(steps.split(';').count(), operations as usize);
            for step in steps.split(';') {
                let (operation, next) = step.split_once('=').unwrap();
                prop_assert_eq!(operation, &chain[..3]);
                prop_assert_eq!(value(operation), value(&next[..1]));
                prop_assert_eq!(&next[1..], &chain[3..]);
                chain = next;
                prop_assert_eq!(value(chain), whole);
            }
            prop_assert_eq!([chain, last], [answer.as_str(); 2]);
            prop_assert_eq!(value(&answer), whole);
            prop_assert_eq!(completion.len() as u32, operations * (operations + 5) + 1);
        }
    }
}
