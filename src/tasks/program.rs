//! `program`: run a small program by hand. `p:a=42;while(a<68){if(a<54)a+=7;else a+=9}=` is answered by `+7=49+7=56+9=65+9=74>74`: each
//! pass of the loop writes which assignment it makes and the value that it leaves; the last value stands after `>`. Values have two digits.
//!
//! A pass takes 5 tokens, and how many there are is known only when they were made: about the way to go over what a pass adds, 1 to 9,
//! so that lengths have a long tail and their deviation is about their mean.
//!
//! A slip goes on as the `if` says for one pass after it no longer holds.

use super::draw::Draw;
use super::example::{Example, Slips};
use std::fmt::Write;

/// Fewest and most tens of the value that the loop goes on to, as a spec may ask for them, and what it gets by default.
pub const SIZES: (u32, u32) = (1, 8);
pub const DEFAULT_SIZES: (u32, u32) = (1, 6);

/// A program: from `start` on, while below `end`, `low` is added below `bend` and `high` from there on.
#[derive(Clone, Copy, Debug)]
struct Program {
    start: u32,
    end: u32,
    bend: u32,
    low: u32,
    high: u32,
}

/// A program whose loop goes on to a value of `tens` tens, each part of it uniform.
pub fn example(tens: u32, slips: Slips, draw: &mut Draw) -> Example {
    let end = 10 * tens + draw.between(0, 9);
    let start = draw.between(0, end - 2);
    let bend = draw.between(start + 1, end - 1);
    let low = draw.between(1, 9);
    // The other one, so that the `if` matters.
    let high = draw.between(1, 8);
    let program = Program { start, end, bend, low, high: if high < low { high } else { high + 1 } };
    program.worked(&mut || slips.happens(draw))
}

/// How many programs whose loop goes on to so many tens there are: 72 pairs of additions, each with each start and bend below the end.
pub fn distinct(tens: u32) -> f64 {
    let ends = (10 * tens..10 * tens + 10).map(f64::from);
    ends.map(|end| 72.0 * end * (end - 1.0) / 2.0).sum()
}

impl Program {
    fn worked(self, slip: &mut dyn FnMut() -> bool) -> Example {
        let Program { start, end, bend, low, high } = self;
        let prompt = format!("p:a={start:02};while(a<{end}){{if(a<{bend:02})a+={low};else a+={high}}}=");
        let (_, answer) = self.run(&mut || false);
        let (passes, given) = self.run(slip);
        Example { prompt, completion: format!("{passes}>{given:02}"), answer: format!("{answer:02}") }
    }

    /// What the passes write, and the value at the end.
    fn run(self, slip: &mut dyn FnMut() -> bool) -> (String, u32) {
        let (mut written, mut value) = (String::new(), self.start);
        // Whether the pass before was below the bend.
        let mut below = false;
        while value < self.end {
            let held = value < self.bend;
            let by = if held || (below && slip()) { self.low } else { self.high };
            value += by;
            below = held;
            // Writing to a String cannot fail.
            let _ = write!(written, "+{by}={value:02}");
        }
        (written, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worked_examples() {
        let program = Program { start: 42, end: 68, bend: 54, low: 7, high: 9 };
        let Example { prompt, completion, answer } = program.worked(&mut || false);
        assert_eq!(prompt, "p:a=42;while(a<68){if(a<54)a+=7;else a+=9}=");
        assert_eq!([completion.as_str(), &answer], ["+7=49+7=56+9=65+9=74>74", "74"]);
        // One pass too many, once, and the answer all the same.
        let Example { completion, answer, .. } = program.worked(&mut || true);
        assert_eq!([completion.as_str(), &answer], ["+7=49+7=56+7=63+9=72>72", "74"]);
        let small = Program { start: 0, end: 10, bend: 1, low: 4, high: 1 };
        let Example { prompt, completion, .. } = small.worked(&mut || false);
        assert_eq!(prompt, "p:a=00;while(a<10){if(a<01)a+=4;else a+=1}=");
        assert_eq!(completion, "+4=04+1=05+1=06+1=07+1=08+1=09+1=10>10");
    }

    /// Each pass and the end, worked out again from the text.
    fn check(prompt: &str, completion: &str) -> Option<u32> {
        let text = prompt.strip_prefix("p:a=")?.strip_suffix("}=")?;
        let (start, rest) = text.split_once(";while(a<")?;
        let (end, rest) = rest.split_once("){if(a<")?;
        let (bend, rest) = rest.split_once(")a+=")?;
        let (low, high) = rest.split_once(";else a+=")?;
        let (passes, last) = completion.split_once('>')?;
        let mut value: u32 = start.parse().ok()?;
        for pass in passes.split('+').skip(1) {
            let (by, reached) = pass.split_once('=')?;
            (value < end.parse().ok()?).then_some(())?;
            (by == if value < bend.parse().ok()? { low } else { high }).then_some(())?;
            value += by.parse::<u32>().ok()?;
            (reached == format!("{value:02}")).then_some(())?;
        }
        (value >= end.parse().ok()? && last == format!("{value:02}") && low != high).then_some(value)
    }

    proptest! {
        #[test]
        fn every_pass_is_what_the_text_says(tens in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(tens, Slips::NONE, &mut Draw::new(&[key]));
            let end = check(&prompt, &completion);
            prop_assert_eq!(end.map(|end| format!("{end:02}")), Some(answer), "{}{}", prompt, completion);
            prop_assert_eq!((prompt.len(), completion.len() % 5), (43, 3));
            let slipped = example(tens, Slips { rate: 1.0 }, &mut Draw::new(&[key]));
            prop_assert_eq!(&slipped.prompt, &prompt);
        }
    }

    /// What makes the task another one than the others: a deviation as large as the mean, and a longest answer of many times it.
    #[test]
    fn lengths_have_a_long_tail() {
        let mut draw = Draw::new(&[1]);
        let mut length = || {
            let tens = draw.between(DEFAULT_SIZES.0, DEFAULT_SIZES.1);
            example(tens, Slips::NONE, &mut draw).completion.len() as f64
        };
        let lengths: Vec<f64> = (0..3000).map(|_| length()).collect();
        let mean = lengths.iter().sum::<f64>() / 3000.0;
        let deviation = (lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>() / 3000.0).sqrt();
        assert!((34.0..38.0).contains(&mean) && (33.0..38.0).contains(&deviation), "{mean} {deviation}");
        assert!(lengths.into_iter().fold(0.0, f64::max) > 6.0 * mean);
    }

    /// Ends from 10 to 19: 45 + 55 + .. + 171 pairs of start and bend.
    #[test]
    fn counts_by_hand() {
        assert_eq!(distinct(1), 72.0 * (45 + 55 + 66 + 78 + 91 + 105 + 120 + 136 + 153 + 171) as f64);
    }
}
