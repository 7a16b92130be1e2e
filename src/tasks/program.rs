//! `program`: run a small program with a loop and a condition, by hand. `p:a=3;b=7;while(a!=b){a+=4;if(b<5)b+=a}=` is answered by
//! `a7!b7;>77`: each pass of the loop writes what its assignments leave in their variables, with `!` before one whose `if` does not hold
//! and which stays as it was; the variables at the end stand after `>`. Values are digits and wrap around: 7 + 4 is 1, 3 - 4 is 9.
//!
//! Each of the `n` variables is assigned once a pass, in order, one of them behind an `if`; a pass takes `2 n + 1` tokens, or one more. How
//! many passes there are is known only when they were made, so lengths have a long tail: their deviation is nearly their mean. Programs
//! whose loop is not entered, or whose answer would be longer than [`LONGEST`] (most of those would never end), are drawn anew.
//!
//! A slip makes the assignment though its `if` does not hold.

use super::draw::Draw;
use super::example::{Example, Slips};
use std::fmt;
use std::fmt::Write;

/// Fewest and most variables that a spec may ask for, and what it gets by default.
pub const SIZES: (u32, u32) = (2, 6);
pub const DEFAULT_SIZES: (u32, u32) = (2, 4);

/// Most characters of an answer.
pub const LONGEST: usize = 250;

/// What a variable is compared with or changed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// From 1 up: a change by 0 would be none.
    Digit(u32),
    /// Another variable, by its place.
    Variable(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Plus,
    Minus,
}

/// A program; variables are named by their places.
#[derive(Clone, Debug)]
struct Program {
    start: Vec<u32>,
    /// The loop goes on while the variable is not that.
    unequal: (usize, Operand),
    /// What becomes of each variable in a pass, in order.
    body: Vec<(Operator, Operand)>,
    /// Whose assignment stands behind the `if`, and what that asks: that a variable is below something.
    guarded: usize,
    below: (usize, Operand),
}

/// A program that was run.
#[derive(Clone, Debug)]
struct Trace {
    passes: u32,
    written: String,
    end: Vec<u32>,
}

/// A program of `variables` variables, each part of it uniform, among those that enter their loop and come out of it in time.
pub fn example(variables: u32, slips: Slips, draw: &mut Draw) -> Example {
    // Ends: about half of all programs are as they must be.
    loop {
        let program = Program::draw(variables as usize, draw);
        if let Some(right) = program.trace(&mut || false).filter(|trace| trace.passes > 0) {
            return program.worked(right, &mut || slips.happens(draw));
        }
    }
}

/// How many programs with this many variables there are, with those (about half) that are no prompts because of how they run.
pub fn distinct(variables: u32) -> f64 {
    let n = f64::from(variables);
    // A digit, or one of the other variables.
    let operands = 9.0 + n - 1.0;
    let comparisons = n * operands;
    10f64.powf(n) * comparisons * (2.0 * operands).powf(n) * n * comparisons
}

impl Operand {
    fn draw(variables: usize, but: usize, draw: &mut Draw) -> Operand {
        match draw.between(1, 9 + variables as u32 - 1) {
            digit @ 1..=9 => Operand::Digit(digit),
            other => {
                let place = other as usize - 10;
                Operand::Variable(if place < but { place } else { place + 1 })
            }
        }
    }

    fn value(self, state: &[u32]) -> u32 {
        match self {
            Operand::Digit(digit) => digit,
            Operand::Variable(place) => state[place],
        }
    }
}

impl Program {
    fn draw(variables: usize, draw: &mut Draw) -> Program {
        let start = (0..variables).map(|_| draw.between(0, 9)).collect();
        let place = |draw: &mut Draw| draw.below(variables as u64) as usize;
        let comparison = |draw: &mut Draw| {
            let left = place(draw);
            (left, Operand::draw(variables, left, draw))
        };
        let unequal = comparison(draw);
        let assignment = |of: usize| {
            let operator = if draw.below(2) == 0 { Operator::Plus } else { Operator::Minus };
            (operator, Operand::draw(variables, of, draw))
        };
        let body = (0..variables).map(assignment).collect();
        Program { start, unequal, body, guarded: place(draw), below: comparison(draw) }
    }

    /// Runs it, making the guarded assignment where its `if` holds or `slip` says so. None if that takes too long.
    fn trace(&self, slip: &mut dyn FnMut() -> bool) -> Option<Trace> {
        let mut state = self.start.clone();
        let (mut passes, mut written) = (0, String::new());
        let holds = |(left, right): (usize, Operand), state: &[u32]| state[left] < right.value(state);
        while state[self.unequal.0] != self.unequal.1.value(&state) {
            passes += 1;
            for (place, (operator, operand)) in self.body.iter().enumerate() {
                if place == self.guarded && !holds(self.below, &state) && !slip() {
                    written.push('!');
                } else {
                    let by = operand.value(&state);
                    state[place] = match operator {
                        Operator::Plus => (state[place] + by) % 10,
                        Operator::Minus => (state[place] + 10 - by) % 10,
                    };
                }
                // Writing to a String cannot fail.
                let _ = write!(written, "{}{}", name(place), state[place]);
            }
            written.push(';');
            if written.len() + 1 + state.len() > LONGEST {
                return None;
            }
        }
        Some(Trace { passes, written, end: state })
    }

    /// `right` is its trace without slips, which stands in for one with slips that takes too long.
    fn worked(&self, right: Trace, slip: &mut dyn FnMut() -> bool) -> Example {
        let answer = digits(&right.end);
        let given = self.trace(slip).unwrap_or(right);
        Example { prompt: format!("p:{self}="), completion: format!("{}>{}", given.written, digits(&given.end)), answer }
    }
}

fn name(place: usize) -> char {
    char::from(b'a' + place as u8)
}

fn digits(values: &[u32]) -> String {
    values.iter().map(u32::to_string).collect()
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Digit(digit) => write!(f, "{digit}"),
            Operand::Variable(place) => write!(f, "{}", name(*place)),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operator::Plus => "+=",
            Operator::Minus => "-=",
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, value) in self.start.iter().enumerate() {
            write!(f, "{}={value};", name(place))?;
        }
        write!(f, "while({}!={}){{", name(self.unequal.0), self.unequal.1)?;
        for (place, (operator, operand)) in self.body.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { ";" })?;
            if place == self.guarded {
                write!(f, "if({}<{})", name(self.below.0), self.below.1)?;
            }
            write!(f, "{}{operator}{operand}", name(place))?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn of(start: [u32; 2], below: (usize, Operand)) -> Program {
        Program {
            start: start.to_vec(),
            unequal: (0, Operand::Variable(1)),
            body: vec![(Operator::Plus, Operand::Digit(4)), (Operator::Minus, Operand::Variable(0))],
            guarded: 1,
            below,
        }
    }

    fn worked(program: &Program, slip: &mut dyn FnMut() -> bool) -> Example {
        program.worked(program.trace(&mut || false).unwrap(), slip)
    }

    /// By hand: a is 7, then 1 (7 + 4 wraps around), and 1 is below 5, so that b becomes 9 - 1; and so on.
    #[test]
    fn worked_examples() {
        let program = of([3, 9], (0, Operand::Digit(5)));
        let Example { prompt, completion, answer } = worked(&program, &mut || false);
        assert_eq!(prompt, "p:a=3;b=9;while(a!=b){a+=4;if(a<5)b-=a}=");
        assert_eq!([completion.as_str(), &answer], [
            "a7!b9;a1b8;a5!b8;a9!b8;a3b5;a7!b5;a1b4;a5!b4;a9!b4;a3b1;a7!b1;a1b0;a5!b0;a9!b0;a3b7;a7!b7;>77",
            "77",
        ]);
        // Once, and the answer all the same: 9 - 7 is 2, and then a is 1 and b is 2 - 1.
        let mut slips = [true].into_iter();
        let Example { completion, answer, .. } = worked(&program, &mut || slips.next().unwrap_or(false));
        assert_eq!([completion.as_str(), &answer], ["a7b2;a1b1;>11", "77"]);
    }

    /// Catches a run that has no end, one that is cut instead of given up, and a slip that never ends.
    #[test]
    fn what_takes_too_long_is_no_example() {
        let even = Program { body: vec![(Operator::Plus, Operand::Digit(2)); 2], ..of([0, 1], (0, Operand::Digit(1))) };
        assert!(even.trace(&mut || true).is_none());
        // b + 2, when a is 2, is 3, and 5 the next time. With slips b goes by 2, 4, 6, 8 and 0 in turn: 3, 7, 3, 1, 1, 3, .., never 5.
        let body = vec![(Operator::Plus, Operand::Digit(2)), (Operator::Plus, Operand::Variable(0))];
        let program = Program { body, unequal: (1, Operand::Digit(5)), below: (0, Operand::Digit(3)), ..even };
        assert!(program.trace(&mut || true).is_none());
        let Example { completion, answer, .. } = worked(&program, &mut || true);
        assert_eq!([completion.as_str(), &answer], ["a2b3;a4!b3;a6!b3;a8!b3;a0b3;a2b5;>25", "25"]);
    }

    /// A program's text, run again by names alone: what each pass writes, and the values at the end.
    fn run(prompt: &str) -> Option<(String, String)> {
        let text = prompt.strip_prefix("p:")?.strip_suffix("}=")?;
        let (start, rest) = text.split_once("while(")?;
        let (unequal, body) = rest.split_once("){")?;
        let mut values: BTreeMap<&str, i64> = BTreeMap::new();
        for (name, value) in start.split_terminator(';').map(|part| part.split_once('=').unwrap()) {
            values.insert(name, value.parse().ok()?);
        }
        let of = |values: &BTreeMap<&str, i64>, text: &str| text.parse().ok().or_else(|| values.get(text).copied());
        let (left, right) = unequal.split_once("!=")?;
        let mut written = String::new();
        while of(&values, left)? != of(&values, right)? {
            for statement in body.split(';') {
                let (guard, assignment) = match statement.strip_prefix("if(") {
                    Some(rest) => rest.split_once(')').map(|(guard, rest)| (Some(guard), rest))?,
                    None => (None, statement),
                };
                let (name, change) = assignment.split_at(1);
                let by = of(&values, &change[2..])? * if change.starts_with("+=") { 1 } else { -1 };
                let holds = match guard.map(|guard| guard.split_once('<').unwrap()) {
                    Some((left, right)) => of(&values, left)? < of(&values, right)?,
                    None => true,
                };
                let value = values.get_mut(name)?;
                *value = if holds { (*value + by).rem_euclid(10) } else { *value };
                written += &format!("{}{name}{value}", if holds { "" } else { "!" });
            }
            written.push(';');
        }
        Some((written, values.values().map(i64::to_string).collect()))
    }

    proptest! {
        #[test]
        fn every_pass_is_what_the_text_says(variables in SIZES.0..=SIZES.1, key: u64) {
            let Example { prompt, completion, answer } = example(variables, Slips::NONE, &mut Draw::new(&[key]));
            let (written, end) = run(&prompt).unwrap();
            prop_assert_eq!(&completion, &format!("{written}>{end}"), "{}", prompt);
            prop_assert_eq!(&answer, &end);
            prop_assert!(completion.len() <= LONGEST && !written.is_empty());
            prop_assert_eq!(prompt.matches("if(").count(), 1);
        }

        /// Slips change what is written, at an `if` alone, and never the answer.
        #[test]
        fn slips_are_the_teachers(variables in SIZES.0..=SIZES.1, key: u64) {
            let right = example(variables, Slips::NONE, &mut Draw::new(&[key]));
            let slipped = example(variables, Slips { rate: 1.0 }, &mut Draw::new(&[key]));
            prop_assert_eq!((&slipped.prompt, &slipped.answer), (&right.prompt, &right.answer));
            prop_assert!(slipped.completion.len() <= LONGEST);
            // The teacher that always slips never says that an `if` does not hold, unless that would have no end.
            prop_assert!(!slipped.completion.contains('!') || slipped.completion == right.completion);
        }
    }

    /// What makes the task another one than the others: a deviation as large as the mean, and a longest answer of many times it.
    #[test]
    fn lengths_have_a_long_tail() {
        for (variables, mean, deviation) in [(2, 31.6, 31.0), (3, 40.0, 33.0), (4, 51.0, 40.0)] {
            let mut draw = Draw::new(&[u64::from(variables)]);
            let lengths: Vec<f64> =
                (0..3000).map(|_| example(variables, Slips::NONE, &mut draw).completion.len() as f64).collect();
            let found = lengths.iter().sum::<f64>() / 3000.0;
            let spread = (lengths.iter().map(|length| (length - found).powi(2)).sum::<f64>() / 3000.0).sqrt();
            assert!((found / mean - 1.0).abs() < 0.08 && (spread / deviation - 1.0).abs() < 0.12, "{found} {spread}");
            assert!(lengths.into_iter().fold(0.0, f64::max) > 5.0 * found);
        }
    }

    /// 10 * 10 starts, 2 * 10 comparisons of the loop and of the `if`, 20 * 20 bodies, 2 places of the `if`.
    #[test]
    fn counts_by_hand() {
        assert_eq!(distinct(2), 100.0 * 20.0 * 20.0 * 400.0 * 2.0);
    }
}
