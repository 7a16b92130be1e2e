//! What `[learn.reference]` must hold.

use super::check::not_negative;
use crate::engine::reference::Reference;
use crate::error::{Error, Result};

/// Numbers that mean what they say.
///
/// # Errors
/// Names the first key that is wrong.
pub(super) fn check(reference: &Reference) -> Result<()> {
    let Reference { kl_coef, target_kl, refresh_steps, .. } = *reference;
    not_negative("learn.reference.kl_coef", kl_coef)?;
    if !(kl_coef as f32).is_finite() {
        return Err(Error::config(
            "learn.reference.kl_coef",
            format!("{kl_coef:e}"),
            "a number that single precision holds",
        ));
    }
    not_negative("learn.reference.target_kl", target_kl)?;
    let off = "needs a learn.reference.kl_coef above 0: without it there is no reference; allowed: 0";
    if kl_coef == 0.0 && target_kl > 0.0 {
        return Err(Error::config("learn.reference.target_kl", target_kl, off));
    }
    if kl_coef == 0.0 && refresh_steps > 0 {
        return Err(Error::config("learn.reference.refresh_steps", refresh_steps, off));
    }
    if kl_coef == 0.0 && !reference.path.as_os_str().is_empty() {
        let why = "needs a learn.reference.kl_coef above 0: without it there is no reference; leave it out";
        return Err(Error::config("learn.reference.path", reference.path.display(), why));
    }
    Ok(())
}

/// A warm start has none of it.
///
/// # Errors
/// Names the first key that is not at its default.
pub fn check_no_reference(reference: &Reference) -> Result<()> {
    let keys = |reference: &Reference| toml::Table::try_from(reference).unwrap_or_default();
    let usual = keys(&Reference::default());
    let set = keys(reference).into_iter().find(|(key, value)| usual.get(key) != Some(value));
    let Some((key, value)) = set else { return Ok(()) };
    let why = "a warm start has no reference: nothing sampled what it learns from; leave it out";
    Err(Error::config(format!("learn.reference.{key}"), value, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::reference::{KlEstimator, KlIn};
    use crate::spec::Spec;

    fn spec(set: &str) -> Result<Spec> {
        let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";
        Spec::from_text(start, &[format!("learn.reference{set}")])
    }

    /// Catches a number that would mean something else than was meant, and a key that would mean nothing.
    #[test]
    fn errors_name_key_value_and_what_is_right() {
        let off = "needs a learn.reference.kl_coef above 0: without it there is no reference; allowed: 0";
        for (set, message) in [
            (".kl_coef=-1", "kl_coef = -1: a number from 0 up"),
            (".kl_coef=inf", "kl_coef = inf: a number from 0 up"),
            (".kl_coef=nan", "kl_coef = NaN: a number from 0 up"),
            (".kl_coef=1e39", "kl_coef = 1e39: a number that single precision holds"),
            (".path=x", "path = x: needs a learn.reference.kl_coef above 0: without it there is no reference; leave it out"),
            (".kl_in=advantage", "kl_in = \"advantage\": `advantage` is not allowed; allowed: `loss`, `reward`"),
            (".kl_estimator=k4", "kl_estimator = \"k4\": `k4` is not allowed; allowed: `k1`, `k2`, `k3`"),
            ("={kl_coef=0.1,target_kl=-0.5}", "target_kl = -0.5: a number from 0 up"),
            (".target_kl=0.5", &format!("target_kl = 0.5: {off}")),
            (".refresh_steps=5", &format!("refresh_steps = 5: {off}")),
        ] {
            assert_eq!(spec(set).unwrap_err().to_string(), format!("learn.reference.{message}"));
        }
        let typo = spec(".kl_coeff=1").unwrap_err().to_string();
        assert!(typo.contains("no such key; did you mean learn.reference.kl_coef?"), "{typo}");
    }

    /// Catches a key that is lost on its way into the run's `spec.toml` or back.
    #[test]
    fn what_is_set_is_written_and_read_again() {
        let all = "={kl_coef=0.1,kl_in='reward',kl_estimator='k3',target_kl=0.02,refresh_steps=7,path='a/b'}";
        let found = spec(all).unwrap();
        let expected = Reference {
            kl_coef: 0.1,
            kl_in: KlIn::Reward,
            kl_estimator: KlEstimator::K3,
            target_kl: 0.02,
            refresh_steps: 7,
            path: "a/b".into(),
        };
        assert_eq!((&found.learn.reference, Spec::from_text(&found.to_text(), &[]).unwrap()), (&expected, found.clone()));
        let refused = check_no_reference(&expected).unwrap_err().to_string();
        assert!(refused.starts_with("learn.reference.kl_coef = 0.1: a warm start has no reference"), "{refused}");
        check_no_reference(&Reference::default()).unwrap();
    }
}
