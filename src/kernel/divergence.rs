//! Divergence: what the last steps showed when a policy is being lost, counted in steps in a row.

use super::safeguard::Safeguard;

/// What a step says of how its run is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Mean over trained tokens, nats.
    pub entropy: f64,
    /// Mean over trained tokens of [`k3`](super::kl::k3) between the policy that sampled and the one that is trained, nats.
    pub kl: f64,
    /// Effective sample size of the importance weights, in 0..=1.
    pub ess: f64,
}

/// Which limit was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Entropy is below `stop_entropy`.
    Entropy,
    /// KL is above `stop_kl`.
    Kl,
    /// ESS is below `stop_ess`.
    Ess,
}

/// In how many of the last steps, without one in between, each limit was passed.
///
/// ```
/// use tidegate::kernel::divergence::{Seen, Sign, Streaks};
/// use tidegate::kernel::safeguard::Safeguard;
///
/// let safeguard = Safeguard { stop_ess: 0.2, stop_steps: 2, ..Safeguard::default() };
/// let mut streaks = Streaks::default();
/// let of = |ess| Seen { entropy: 1.0, kl: 0.1, ess };
/// let signs = [0.1, 0.3, 0.1, 0.1].map(|ess| streaks.add(&safeguard, of(ess)));
/// assert_eq!(signs, [None, None, None, Some(Sign::Ess)]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaks {
    entropy: u64,
    kl: u64,
    ess: u64,
}

impl Streaks {
    /// Counts one more step. Some where its run is to stop: a limit was passed in `stop_steps` steps in a row. The count then
    /// begins anew, so that whoever goes on from there, otherwise, has as many steps to recover in. A NaN passes every limit that
    /// is set.
    pub fn add(&mut self, safeguard: &Safeguard, seen: Seen) -> Option<Sign> {
        let below = |number: f64, floor: f64| floor > 0.0 && (number < floor || number.is_nan());
        let above = |number: f64, limit: f64| limit < f64::INFINITY && (number > limit || number.is_nan());
        let passed = [
            (Sign::Entropy, &mut self.entropy, below(seen.entropy, safeguard.stop_entropy)),
            (Sign::Kl, &mut self.kl, above(seen.kl, safeguard.stop_kl)),
            (Sign::Ess, &mut self.ess, below(seen.ess, safeguard.stop_ess)),
        ];
        let mut stops = None;
        for (sign, streak, passed) in passed {
            *streak = if passed { *streak + 1 } else { 0 };
            if passed && *streak >= safeguard.stop_steps {
                stops = stops.or(Some(sign));
            }
        }
        if stops.is_some() {
            *self = Streaks::default();
        }
        stops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Seen = Seen { entropy: 1.0, kl: 0.01, ess: 0.9 };

    fn signs(safeguard: Safeguard, seen: &[Seen]) -> Vec<Option<Sign>> {
        let mut streaks = Streaks::default();
        seen.iter().map(|&seen| streaks.add(&safeguard, seen)).collect()
    }

    /// Each limit by itself. Catches one that looks the wrong way, at another number, or that is passed where it is met.
    #[test]
    fn each_limit_sees_its_own_number() {
        let all = Safeguard { stop_entropy: 0.1, stop_kl: 0.5, stop_ess: 0.2, stop_steps: 1, ..Safeguard::default() };
        let seen = [
            WELL,
            Seen { entropy: 0.1, kl: 0.5, ess: 0.2 },
            Seen { entropy: 0.09, ..WELL },
            Seen { kl: 0.51, ..WELL },
            Seen { ess: 0.19, ..WELL },
        ];
        assert_eq!(signs(all, &seen), [None, None, Some(Sign::Entropy), Some(Sign::Kl), Some(Sign::Ess)]);
        for (key, of) in [(Sign::Entropy, 2), (Sign::Kl, 3), (Sign::Ess, 4)] {
            let off = Safeguard { stop_steps: 1, ..Safeguard::default() };
            let alone = match key {
                Sign::Entropy => Safeguard { stop_entropy: 0.1, ..off },
                Sign::Kl => Safeguard { stop_kl: 0.5, ..off },
                Sign::Ess => Safeguard { stop_ess: 0.2, ..off },
            };
            let found = signs(alone, &seen);
            let expected: Vec<_> = (0..seen.len()).map(|step| (step == of).then_some(key)).collect();
            assert_eq!(found, expected);
        }
    }

    /// Catches steps that are counted although others lay between them, limits that count for each other, and a stop that lets
    /// nobody go on: the step after it is the first again.
    #[test]
    fn only_steps_in_a_row_count() {
        let safeguard = Safeguard { stop_entropy: 0.1, stop_kl: 0.5, stop_steps: 3, ..Safeguard::default() };
        let (low, far) = (Seen { entropy: 0.0, ..WELL }, Seen { kl: 9.0, ..WELL });
        assert_eq!(signs(safeguard, &[low, low, WELL, low, low, far, low, low]), [None; 8]);
        let found = signs(safeguard, &[low, low, low, low, low, low, low]);
        let stops = Some(Sign::Entropy);
        assert_eq!(found, [None, None, stops, None, None, stops, None]);
    }

    /// Catches a number that is none and passes for a good one, and one that stops a run that asked for nothing.
    #[test]
    fn a_nan_passes_every_limit_that_is_set() {
        let nan = Seen { entropy: f64::NAN, kl: f64::NAN, ess: f64::NAN };
        let off = Safeguard { stop_steps: 1, ..Safeguard::default() };
        assert_eq!(signs(off, &[nan, Seen { entropy: 0.0, kl: f64::MAX, ess: 0.0 }]), [None; 2]);
        let set = [
            (Safeguard { stop_entropy: 0.1, ..off }, Sign::Entropy),
            (Safeguard { stop_kl: 0.1, ..off }, Sign::Kl),
            (Safeguard { stop_ess: 0.1, ..off }, Sign::Ess),
        ];
        set.into_iter().for_each(|(set, sign)| assert_eq!(signs(set, &[nan]), [Some(sign)]));
    }
}
