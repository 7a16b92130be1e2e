//! `sorting`: put digits in ascending order. `s:52917=` is answered by `12579`: the answer alone, 4 to 8 tokens.
//!
//! A slip swaps the last two digits.

use super::draw::Draw;
use super::example::{Example, Slips};

/// Fewest and most digits that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 32);
pub const DEFAULT_SIZES: (u32, u32) = (4, 8);

/// A prompt of `digits` uniform digits, repeats allowed.
pub fn example(digits: u32, slips: Slips, draw: &mut Draw) -> Example {
    let list: String = (0..digits).map(|_| char::from(b'0' + draw.below(10) as u8)).collect();
    worked(&list, &mut || slips.happens(draw))
}

fn worked(list: &str, slip: &mut dyn FnMut() -> bool) -> Example {
    let mut digits: Vec<char> = list.chars().collect();
    digits.sort_unstable();
    let answer: String = digits.iter().collect();
    if let [.., a, b] = digits.as_mut_slice()
        && slip()
    {
        std::mem::swap(a, b);
    }
    Example { prompt: format!("s:{list}="), completion: digits.into_iter().collect(), answer }
}

/// How many prompts of this many digits there are.
pub fn distinct(digits: u32) -> f64 {
    10f64.powi(digits as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worked_example() {
        let Example { prompt, completion, answer } = worked("52917", &mut || false);
        assert_eq!([prompt.as_str(), &completion, &answer], ["s:52917=", "12579", "12579"]);
        let Example { completion, answer, .. } = worked("52917", &mut || true);
        assert_eq!([completion.as_str(), &answer], ["12597", "12579"], "a slip, and the answer all the same");
        assert_eq!(worked("9099", &mut || false).answer, "0999");
    }

    proptest! {
        /// Each digit as often as in the prompt, none before a smaller one.
        #[test]
        fn is_the_prompt_in_order(digits in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(digits, Slips::NONE, &mut Draw::new(&[key]));
            let list = prompt.strip_prefix("s:").and_then(|rest| rest.strip_suffix('=')).unwrap();
            prop_assert_eq!(list.len(), digits as usize);
            for digit in '0'..='9' {
                prop_assert_eq!(list.matches(digit).count(), answer.matches(digit).count());
            }
            prop_assert_eq!(answer.len(), list.len());
            prop_assert!(answer.as_bytes().windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert_eq!(answer, completion);
        }
    }
}
