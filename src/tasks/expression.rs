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
pub const DEFAULT_SIZES: (u32, u32) = (3, 9);

/// A chain of `operations` uniform operations on uniform digits.
pub fn example(operations: u32, draw: &mut Draw) -> Example {
    let first = draw.between(0, 9);
    let chain: Vec<(char, u32)> =
        (0..operations).map(|_| (['+', '-', '*'][draw.below(3) as usize], draw.between(0, 9))).collect();
    let prompt = format!("e:{}=", written(first, &chain));
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
