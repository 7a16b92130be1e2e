//! What `[learn.safeguard]` must hold.

use crate::error::{Error, Result};
use crate::kernel::norms::MOST;
use crate::kernel::safeguard::Safeguard;
use crate::spec::Spec;

/// Numbers that mean what they say.
///
/// # Errors
/// Names the first key that is wrong.
pub(super) fn check(safeguard: &Safeguard) -> Result<()> {
    let Safeguard { max_lag, skip_norm, skip_window, stop_entropy, stop_kl, stop_ess, stop_steps, .. } = *safeguard;
    let Safeguard { skip_ess, enlarge_ess, enlarge_lag, enlarge_most, .. } = *safeguard;
    for (key, value, right, what) in [
        ("max_lag", max_lag, max_lag >= 0.0, "a number from 0 up; inf leaves no token out"),
        ("skip_norm", skip_norm, skip_norm > 1.0, "a number above 1; inf skips no step"),
        ("skip_ess", skip_ess, (0.0..=1.0).contains(&skip_ess), "a number from 0 to 1; 0 skips no step"),
        ("enlarge_ess", enlarge_ess, (0.0..=1.0).contains(&enlarge_ess), "a number from 0 to 1; 0 enlarges no batch"),
        ("enlarge_lag", enlarge_lag, enlarge_lag >= 0.0, "a number from 0 up; inf enlarges no batch"),
        ("stop_entropy", stop_entropy, (0.0..f64::INFINITY).contains(&stop_entropy), "a number from 0 up; 0 stops nothing"),
        ("stop_kl", stop_kl, stop_kl > 0.0, "a number above 0; inf stops nothing"),
        ("stop_ess", stop_ess, (0.0..=1.0).contains(&stop_ess), "a number from 0 to 1; 0 stops nothing"),
    ] {
        if !right {
            return Err(Error::config(format!("learn.safeguard.{key}"), value, what));
        }
    }
    if !(1..=MOST).contains(&skip_window) {
        return Err(Error::config("learn.safeguard.skip_window", skip_window, format!("from 1 to {MOST} steps")));
    }
    if enlarge_most == 0 {
        return Err(Error::config("learn.safeguard.enlarge_most", 0, "at least 1 batch; 1 enlarges none"));
    }
    if stop_steps == 0 {
        return Err(Error::config("learn.safeguard.stop_steps", 0, "at least 1 step"));
    }
    Ok(())
}

/// What of it can never do anything in this run, a sentence each.
pub fn without_effect(spec: &Spec) -> Vec<String> {
    let (s, bound) = (&spec.learn.safeguard, spec.schedule.schedule().bound());
    let enlarges = s.enlarge_ess > 0.0 || s.enlarge_lag < f64::INFINITY;
    let by_lag = [("max_lag", s.max_lag, "leaves no token out"), ("enlarge_lag", s.enlarge_lag, "enlarges no batch")];
    let beyond = by_lag.iter().filter(|(_, lag, _)| *lag < f64::INFINITY && *lag >= bound as f64);
    let mut told: Vec<String> = beyond
        .map(|(key, lag, what)| format!("learn.safeguard.{key} = {lag} {what}: the schedule bounds lag by {bound} steps"))
        .collect();
    if enlarges && s.enlarge_most == 1 {
        told.push("learn.safeguard.enlarge_most = 1 enlarges no batch: a step takes one at most".to_owned());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::without_effect;
    use crate::kernel::safeguard::{LrScale, Safeguard};
    use crate::spec::Spec;

    fn spec(set: &str) -> crate::error::Result<Spec> {
        let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";
        Spec::from_text(start, &[format!("learn.safeguard.{set}")])
    }

    /// Catches a number that would mean something else than was meant, and a NaN that no comparison sees.
    #[test]
    fn errors_name_key_value_and_what_is_right() {
        for (set, message) in [
            ("max_lag=-1", "max_lag = -1: a number from 0 up; inf leaves no token out"),
            ("max_lag=nan", "max_lag = NaN: a number from 0 up; inf leaves no token out"),
            ("lr_scale=ess", "lr_scale = \"ess\": `ess` is not allowed; allowed: `off`, `sqrt_ess`"),
            ("skip_norm=1", "skip_norm = 1: a number above 1; inf skips no step"),
            ("skip_norm=nan", "skip_norm = NaN: a number above 1; inf skips no step"),
            ("skip_window=0", "skip_window = 0: from 1 to 256 steps"),
            ("skip_window=257", "skip_window = 257: from 1 to 256 steps"),
            ("skip_ess=1.5", "skip_ess = 1.5: a number from 0 to 1; 0 skips no step"),
            ("enlarge_ess=nan", "enlarge_ess = NaN: a number from 0 to 1; 0 enlarges no batch"),
            ("enlarge_lag=-1", "enlarge_lag = -1: a number from 0 up; inf enlarges no batch"),
            ("enlarge_most=0", "enlarge_most = 0: at least 1 batch; 1 enlarges none"),
            ("stop_entropy=-0.1", "stop_entropy = -0.1: a number from 0 up; 0 stops nothing"),
            ("stop_entropy=inf", "stop_entropy = inf: a number from 0 up; 0 stops nothing"),
            ("stop_kl=0", "stop_kl = 0: a number above 0; inf stops nothing"),
            ("stop_ess=1.1", "stop_ess = 1.1: a number from 0 to 1; 0 stops nothing"),
            ("stop_ess=nan", "stop_ess = NaN: a number from 0 to 1; 0 stops nothing"),
            ("stop_steps=0", "stop_steps = 0: at least 1 step"),
        ] {
            assert_eq!(spec(set).unwrap_err().to_string(), format!("learn.safeguard.{message}"));
        }
        let typo = spec("max_leg=1").unwrap_err().to_string();
        assert!(
            typo.starts_with("learn.safeguard.max_leg = 1: no such key; did you mean learn.safeguard.max_lag?"),
            "{typo}"
        );
    }

    /// The schedule's bound is 4. Catches one that fires and is told as idle, and infinity, which is off.
    #[test]
    fn what_can_never_fire_is_told() {
        let told = |set: &str| without_effect(&spec(set).unwrap());
        assert_eq!(
            told("max_lag=4"),
            ["learn.safeguard.max_lag = 4 leaves no token out: the schedule bounds lag by 4 steps"]
        );
        assert_eq!((told("max_lag=3.5"), told("max_lag=inf"), told("enlarge_most=1")), (vec![], vec![], vec![]));
        assert_eq!(told("enlarge_lag=9").len(), 1);
        let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n[learn.safeguard]\nenlarge_ess=0.5\nenlarge_most=1\n";
        assert_eq!(without_effect(&Spec::from_text(start, &[]).unwrap()).len(), 1);
    }

    /// Catches a key that is lost on its way into the run's `spec.toml` or back.
    #[test]
    fn what_is_set_is_written_and_read_again() {
        for set in [
            "max_lag=8",
            "lr_scale=sqrt_ess",
            "skip_norm=4.5",
            "stop_kl=0.5",
            "stop_steps=5",
            "skip_ess=0.3",
            "enlarge_ess=0.5",
        ] {
            let found = spec(set).unwrap();
            assert_ne!(found.learn.safeguard, Safeguard::default(), "{set}");
            assert_eq!(Spec::from_text(&found.to_text(), &[]).unwrap(), found);
        }
        assert_eq!(spec("lr_scale=sqrt_ess").unwrap().learn.safeguard.lr_scale, LrScale::SqrtEss);
        assert!(spec("max_lag=inf").unwrap().to_text().contains("\nmax_lag = inf\n"));
    }
}
