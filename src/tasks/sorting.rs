//! `sorting`: put digits in ascending order. `s:52917=` is answered by `12579`: the answer alone, 4 to 8 tokens.

use super::draw::Draw;
use super::generated::Example;

/// Fewest and most digits that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 32);
pub const DEFAULT_SIZES: (u32, u32) = (4, 8);

/// A prompt of `digits` uniform digits, repeats allowed.
pub fn example(digits: u32, draw: &mut Draw) -> Example {
    let list: String = (0..digits).map(|_| char::from(b'0' + draw.below(10) as u8)).collect();
    worked(&list)
}

fn worked(list: &str) -> Example {
    let mut digits: Vec<char> = list.chars().collect();
    digits.sort_unstable();
    let answer: String = digits.into_iter().collect();
    Example { prompt: format!("s:{list}="), completion: answer.clone(), answer }
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
        let Example { prompt, completion, answer } = worked("52917");
        assert_eq!([prompt.as_str(), &completion, &answer], ["s:52917=", "12579", "12579"]);
        assert_eq!(worked("9099").answer, "0999");
    }

    proptest! {
        /// Each digit as often as in the prompt, none before a smaller one.
        #[test]
        fn is_the_prompt_in_order(digits in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(digits, &mut Draw::new(&[key]));
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
