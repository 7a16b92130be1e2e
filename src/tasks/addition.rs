//! `addition`: column addition with the carry written out. `a:478+356=` is answered by `8+6+0=14;7+5+1=13;4+3+1=08>834`:
//! from the right, each column is the two digits, the carry, and their two-digit sum; the number stands after `>`.
//!
//! Both numbers have the same count of digits, so that every column looks alike: `10 n + 1` or `10 n + 2` tokens for `n` digits.

use super::draw::Draw;
use super::generated::Example;
use std::fmt::Write;

/// Fewest and most digits of a number that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 16);
pub const DEFAULT_SIZES: (u32, u32) = (2, 5);

/// Two numbers of `digits` digits, the first digit not 0.
pub fn example(digits: u32, draw: &mut Draw) -> Example {
    let mut number =
        || (0..digits).map(|i| if i == 0 { draw.between(1, 9) } else { draw.between(0, 9) }).collect::<Vec<_>>();
    let (left, right) = (number(), number());
    let text = |digits: &[u32]| digits.iter().map(u32::to_string).collect::<String>();
    let prompt = format!("a:{}+{}=", text(&left), text(&right));
    let mut completion = String::new();
    let mut sum = Vec::new();
    let mut carry = 0;
    for (a, b) in left.iter().zip(&right).rev() {
        let column = a + b + carry;
        let separator = if sum.is_empty() { "" } else { ";" };
        // Writing to a String cannot fail.
        let _ = write!(completion, "{separator}{a}+{b}+{carry}={column:02}");
        sum.push(column % 10);
        carry = column / 10;
    }
    if carry > 0 {
        sum.push(carry);
    }
    sum.reverse();
    let answer = text(&sum);
    let _ = write!(completion, ">{answer}");
    Example { prompt, completion, answer }
}

/// How many prompts with numbers of this many digits there are.
pub fn distinct(digits: u32) -> f64 {
    (9.0 * 10f64.powi(digits as i32 - 1)).powi(2)
}
