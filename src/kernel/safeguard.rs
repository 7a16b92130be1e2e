//! Safeguards against high lag: which tokens are left out, how far a step goes, which step is not taken.
//!
//! Decisions on numbers, no more; `docs/safeguards.md` says what each costs and when to use it. A safeguard is no loss: it chooses
//! tokens before the loss has them, or looks at a gradient after all of them have been added. Each is an inequality that no
//! number meets at the default, so that it is off.

use super::held::Batches;
use super::norms::Norms;
use serde::{Deserialize, Serialize};

/// The safeguards of a run (`[learn.safeguard]`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Safeguard {
    /// Tokens of a larger lag, in steps, are left out; infinite leaves none out.
    pub max_lag: f64,
    /// What the learning rate of a step is multiplied by: `off` (1), or `sqrt_ess`.
    pub lr_scale: LrScale,
    /// A step is skipped whose gradient's norm is above so many times the median of `skip_window` steps before; infinite skips none.
    pub skip_norm: f64,
    pub skip_window: usize,
    /// A step is skipped whose ESS is below this, and so are those after it until a batch was sampled by the newest weights alone.
    pub skip_ess: f64,
    /// A step keeps its gradient for the next one, and moves no weights, while what is kept is worth fewer batches on policy than this, or
    /// has a larger mean lag than this, steps; until it is of `enlarge_most` batches.
    pub enlarge_ess: f64,
    pub enlarge_lag: f64,
    pub enlarge_most: u64,
    /// The run stops where entropy is below this (nats), KL (k3, nats a token) above, or ESS below, in `stop_steps` steps in a row.
    pub stop_entropy: f64,
    pub stop_kl: f64,
    pub stop_ess: f64,
    pub stop_steps: u64,
}

/// What the learning rate of a step is multiplied by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrScale {
    #[default]
    Off,
    SqrtEss,
}

impl Default for Safeguard {
    fn default() -> Self {
        Safeguard {
            max_lag: f64::INFINITY,
            lr_scale: LrScale::Off,
            skip_norm: f64::INFINITY,
            skip_window: 32,
            skip_ess: 0.0,
            enlarge_ess: 0.0,
            enlarge_lag: f64::INFINITY,
            enlarge_most: 4,
            stop_entropy: 0.0,
            stop_kl: f64::INFINITY,
            stop_ess: 0.0,
            stop_steps: 3,
        }
    }
}

impl Safeguard {
    /// Whether a token of this lag is trained.
    pub fn keeps(&self, lag: u64) -> bool {
        lag as f64 <= self.max_lag
    }

    /// Whether tokens of some lag are left out.
    pub fn leaves_out(&self) -> bool {
        self.max_lag < f64::INFINITY
    }

    /// What the learning rate is multiplied by in a step whose importance weights have this effective sample size: its root with
    /// [`LrScale::SqrtEss`] (VCPO, arXiv 2602.17616), 1 without. NaN stays NaN.
    ///
    /// ```
    /// use tidegate::kernel::safeguard::{LrScale, Safeguard};
    ///
    /// let safeguard = Safeguard { lr_scale: LrScale::SqrtEss, ..Safeguard::default() };
    /// assert_eq!((safeguard.lr_factor(0.25), Safeguard::default().lr_factor(0.25)), (0.5, 1.0));
    /// ```
    pub fn lr_factor(&self, ess: f64) -> f64 {
        match self.lr_scale {
            LrScale::Off => 1.0,
            LrScale::SqrtEss => ess.sqrt(),
        }
    }

    /// Whether a step is skipped whose gradient has this norm, after steps that had these; they have this one too from now on,
    /// whichever it is, so that norms that grow for good are usual after half a window. The default skips none, and so do fewer
    /// than `skip_window` norms.
    ///
    /// ```
    /// use tidegate::kernel::norms::Norms;
    /// use tidegate::kernel::safeguard::Safeguard;
    ///
    /// let safeguard = Safeguard { skip_norm: 2.0, skip_window: 3, ..Safeguard::default() };
    /// let mut norms = Norms::default();
    /// let skipped = [9.0, 1.0, 3.0, 2.0, 4.0, 4.5].map(|norm| safeguard.skips(norm, &mut norms));
    /// // Medians of three before: 3 for the fourth, then 2, then 3.
    /// assert_eq!(skipped, [false; 6]);
    /// assert!(safeguard.skips(8.1, &mut norms));
    /// ```
    pub fn skips(&self, norm: f64, norms: &mut Norms) -> bool {
        let usual = norms.median(self.skip_window);
        norms.add(norm);
        usual.is_some_and(|usual| norm > self.skip_norm * usual)
    }

    /// Whether these batches wait for one more before a step takes them: they are worth too few, or too old, and fewer than
    /// `enlarge_most`. A NaN waits for nothing.
    ///
    /// ```
    /// use tidegate::kernel::held::Batches;
    /// use tidegate::kernel::safeguard::Safeguard;
    ///
    /// let safeguard = Safeguard { enlarge_ess: 0.5, enlarge_most: 3, ..Safeguard::default() };
    /// // Of four tokens one has all the weight: a batch is worth a quarter, three of them are worth three quarters.
    /// let mut batch = Batches { batches: 1, ..Batches::default() };
    /// [1.0, 0.0, 0.0, 0.0].map(|weight| batch.ess.add(weight));
    /// assert!(safeguard.enlarges(batch) && !safeguard.enlarges(batch.and(batch)));
    /// ```
    pub fn enlarges(&self, held: Batches) -> bool {
        let old = held.lag.value().is_some_and(|lag| lag > self.enlarge_lag);
        held.batches < self.enlarge_most && (old || held.effective() < self.enlarge_ess)
    }

    /// Whether a run pauses, so that a step of this ESS is skipped; `paused` says whether it did at the step before. It does not where the
    /// batch is `on_policy`: one whose every trained token was sampled by the newest weights, or by others equal to them.
    pub fn pauses(&self, ess: f64, paused: bool, on_policy: bool) -> bool {
        self.skip_ess > 0.0 && !on_policy && (paused || ess < self.skip_ess)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::norms::MOST;

    #[test]
    fn by_default_nothing_is_done() {
        let safeguard = Safeguard::default();
        assert!(safeguard.keeps(u64::MAX) && !safeguard.leaves_out());
        assert_eq!([0.0, 0.5, 1.0].map(|ess| safeguard.lr_factor(ess)), [1.0; 3]);
        let mut norms: Norms = (0..MOST).map(|_| 1.0).collect();
        assert!(!safeguard.skips(f64::MAX, &mut norms));
    }

    /// Catches a limit that is one off: of the largest lag that is allowed, tokens are trained.
    #[test]
    fn a_lag_at_the_limit_is_kept() {
        let safeguard = |max_lag| Safeguard { max_lag, ..Safeguard::default() };
        assert_eq!([0, 2, 3, 4].map(|lag| safeguard(3.0).keeps(lag)), [true, true, true, false]);
        assert_eq!([0, 1].map(|lag| safeguard(0.0).keeps(lag)), [true, false]);
        assert!(safeguard(0.0).leaves_out());
    }

    /// Catches a share that is taken as it is, and a NaN that would pass for a rate.
    #[test]
    fn the_rate_goes_with_the_root() {
        let safeguard = Safeguard { lr_scale: LrScale::SqrtEss, ..Safeguard::default() };
        assert_eq!([0.0, 0.04, 0.25, 1.0].map(|ess| safeguard.lr_factor(ess)), [0.0, 0.2, 0.5, 1.0]);
        assert!(safeguard.lr_factor(f64::NAN).is_nan());
    }

    /// Catches a norm that is judged by itself too, one at the limit that is skipped, a window that is not full, and an outlier
    /// that is forgotten: three of them in a row are no outliers any more.
    #[test]
    fn an_outlier_is_above_the_median_of_those_before() {
        let safeguard = Safeguard { skip_norm: 2.0, skip_window: 4, ..Safeguard::default() };
        let skipped = |norms: &[f64]| {
            let mut before = Norms::default();
            norms.iter().map(|&norm| safeguard.skips(norm, &mut before)).collect::<Vec<_>>()
        };
        assert_eq!(skipped(&[1.0, 1.0, 1.0, 9.0, 9.0]), [false, false, false, false, true]);
        assert_eq!(skipped(&[1.0, 1.0, 1.0, 1.0, 2.0, 2.1]), [false, false, false, false, false, true]);
        let change = skipped(&[1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(change, [false, false, false, false, true, true, false, false, false]);
        assert!(!skipped(&[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 9.0])[6], "three norms are no window of four");
    }

    /// Catches a bound that looks the wrong way or that is passed where it is met, a mean lag of no token that counts, batches without
    /// end, and ESS taken as a share, which no number of batches of one kind would mend.
    #[test]
    fn a_batch_out_of_bounds_waits_for_more() {
        let batch = |ess: &[f64], lag: f64| {
            let mut batch = Batches { batches: 1, tokens: 4, ..Batches::default() };
            ess.iter().for_each(|&weight| batch.ess.add(weight));
            batch.lag.add(lag);
            batch
        };
        let (even, half) = (batch(&[1.0, 1.0], 2.0), batch(&[1.0, 0.0], 2.0));
        let by_ess = |enlarge_ess| Safeguard { enlarge_ess, ..Safeguard::default() };
        assert_eq!([0.4, 0.5, 0.6].map(|ess| by_ess(ess).enlarges(half)), [false, false, true]);
        assert!(!by_ess(0.9).enlarges(even) && !by_ess(1.0).enlarges(half.and(half)));
        let by_lag = |enlarge_lag| Safeguard { enlarge_lag, enlarge_most: 3, ..Safeguard::default() };
        assert_eq!([1.9, 2.0].map(|lag| by_lag(lag).enlarges(even)), [true, false]);
        assert!(by_lag(1.0).enlarges(even.and(even)) && !by_lag(1.0).enlarges(even.and(even).and(even)));
        assert!(!by_lag(1.0).enlarges(Batches { batches: 1, ..Batches::default() }));
        assert!(!Safeguard { enlarge_most: 1, ..by_lag(1.0) }.enlarges(even));
        assert!(!Safeguard::default().enlarges(batch(&[0.0], 99.0)));
        assert!(!by_ess(0.9).enlarges(batch(&[f64::NAN], 0.0)));
    }

    /// Catches a pause that an uneven batch on policy keeps up for ever, one that ends with the first good ESS, and one that is off.
    #[test]
    fn a_pause_lasts_until_a_batch_on_policy() {
        let safeguard = Safeguard { skip_ess: 0.5, ..Safeguard::default() };
        assert_eq!([0.4, 0.5, f64::NAN].map(|ess| safeguard.pauses(ess, false, false)), [true, false, false]);
        assert!(safeguard.pauses(0.9, true, false) && !safeguard.pauses(0.1, true, true));
        assert!(!safeguard.pauses(0.1, false, true) && !Safeguard::default().pauses(0.0, true, false));
    }

    /// Catches a spec key that changes its name.
    #[test]
    fn names_in_the_spec() {
        let read: Safeguard = serde_json::from_str(r#"{"max_lag": 8, "lr_scale": "sqrt_ess"}"#).unwrap();
        assert_eq!(read, Safeguard { max_lag: 8.0, lr_scale: LrScale::SqrtEss, ..Safeguard::default() });
        assert!(serde_json::from_str::<Safeguard>(r#"{"max_leg": 8}"#).is_err());
    }
}
