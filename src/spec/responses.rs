//! How long responses are, as it is written: for a plan, and for accelerators that are emulated.

use crate::error::{Error, Result};
use crate::kernel::lengths::Lengths;
use std::fmt;
use std::path::PathBuf;

/// How long responses are.
#[derive(Clone, Debug, PartialEq)]
pub enum Responses {
    Uniform {
        longest: usize,
    },
    Between {
        least: usize,
        longest: usize,
    },
    Fixed {
        length: usize,
    },
    LogNormal {
        mean: f64,
        deviation: f64,
        longest: usize,
    },
    /// Those that a run sampled.
    Recorded(PathBuf),
}

/// A million: longer responses are of another world.
const MOST_TOKENS: f64 = 1e6;

impl Responses {
    /// What may be written.
    pub const FORMS: &str = "uniform:LONGEST, between:LEAST,LONGEST, fixed:LENGTH, lognormal:MEAN,DEVIATION,LONGEST (whole tokens from 1 to a million, LEAST no \
                             larger than LONGEST, MEAN and DEVIATION above 0), or a run's folder";

    /// `uniform:LONGEST`, `between:LEAST,LONGEST`, `fixed:LENGTH`, `lognormal:MEAN,DEVIATION,LONGEST`, or the path of a run, which is not
    /// looked at here. `key` is where it was written.
    ///
    /// # Errors
    /// Numbers that are none, or none above 0.
    pub fn parse(key: &str, text: &str) -> Result<Responses> {
        let wrong = || Error::config(key, text, Self::FORMS);
        let Some((kind, numbers)) = text.split_once(':') else {
            return if text.is_empty() { Err(wrong()) } else { Ok(Responses::Recorded(PathBuf::from(text))) };
        };
        let number = |text: &str| text.trim().parse().ok().filter(|x: &f64| x.is_finite()).ok_or_else(wrong);
        let numbers: Vec<f64> = numbers.split(',').map(number).collect::<Result<_>>()?;
        let tokens = |x: f64| {
            let whole = x.fract() == 0.0 && (1.0..=MOST_TOKENS).contains(&x);
            whole.then_some(x as usize).ok_or_else(wrong)
        };
        match (kind, &numbers[..]) {
            ("uniform", [longest]) => Ok(Responses::Uniform { longest: tokens(*longest)? }),
            ("between", [least, longest]) if least <= longest => {
                Ok(Responses::Between { least: tokens(*least)?, longest: tokens(*longest)? })
            }
            ("fixed", [length]) => Ok(Responses::Fixed { length: tokens(*length)? }),
            ("lognormal", [mean, deviation, longest]) if *mean > 0.0 && *deviation > 0.0 => {
                Ok(Responses::LogNormal { mean: *mean, deviation: *deviation, longest: tokens(*longest)? })
            }
            _ => Err(wrong()),
        }
    }

    /// The distribution; None of a run's, which has to be read, and where no response has a token.
    pub fn lengths(&self) -> Option<Lengths> {
        match *self {
            Responses::Uniform { longest } => Lengths::uniform(longest),
            Responses::Between { least, longest } => Lengths::between(least, longest),
            Responses::Fixed { length } => Lengths::fixed(length),
            Responses::LogNormal { mean, deviation, longest } => Lengths::log_normal(mean, deviation, longest),
            Responses::Recorded(_) => None,
        }
    }
}

impl fmt::Display for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Responses::Uniform { longest } => write!(f, "uniform on 1 to {longest}"),
            Responses::Between { least, longest } => write!(f, "uniform on {least} to {longest}"),
            Responses::Fixed { length } => write!(f, "all {length}"),
            Responses::LogNormal { mean, deviation, longest } => {
                write!(f, "log-normal, mean {mean}, deviation {deviation}, cut at {longest}")
            }
            Responses::Recorded(run) => write!(f, "those of {}", run.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches numbers in the wrong order, and a distribution that none has.
    #[test]
    fn what_is_written_is_what_is_meant() {
        let of = |text: &str| Responses::parse("--lengths", text);
        assert_eq!(of("uniform:9").unwrap().lengths(), Lengths::uniform(9));
        assert_eq!(of("between: 3, 9").unwrap().lengths(), Lengths::between(3, 9));
        assert_eq!(of("fixed:9").unwrap().lengths(), Lengths::fixed(9));
        assert_eq!(of("lognormal:4,2.5,9").unwrap().lengths(), Lengths::log_normal(4.0, 2.5, 9));
        assert_eq!(of("runs/a").unwrap(), Responses::Recorded("runs/a".into()));
        for wrong in [
            "",
            "uniform:0",
            "uniform:2.5",
            "between:5,4",
            "lognormal:4,0,9",
            "normal:3",
            "lognormal:inf,1,10",
            "lognormal:4,nan,9",
            "fixed:x",
            "fixed:1,2",
        ] {
            let refused = of(wrong).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("--lengths = {wrong}: uniform:LONGEST, ")), "{refused}");
        }
    }
}
