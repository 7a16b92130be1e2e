//! `sorting`: put digits in ascending order. `s:52917=` is answered by `12579`: the answer alone, 4 to 8 tokens.

use super::draw::Draw;
use super::generated::Example;

/// Fewest and most digits that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 32);
pub const DEFAULT_SIZES: (u32, u32) = (4, 8);

/// A prompt of `digits` uniform digits, repeats allowed.
pub fn example(digits: u32, draw: &mut Draw) -> Example {
    let mut list: Vec<u8> = (0..digits).map(|_| b'0' + draw.below(10) as u8).collect();
    let prompt = format!("s:{}=", String::from_utf8_lossy(&list));
    list.sort_unstable();
    let answer = String::from_utf8_lossy(&list).into_owned();
    Example { prompt, completion: answer.clone(), answer }
}

/// How many prompts of this many digits there are.
pub fn distinct(digits: u32) -> f64 {
    10f64.powi(digits as i32)
}
