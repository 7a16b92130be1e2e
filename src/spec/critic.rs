//! What `[learn.critic]` must hold, and which of its keys mean something beside the others.

use super::{EngineKind, Spec};
use crate::engine::critic::{Critic, CriticModel};
use crate::engine::spec::Learning;
use crate::error::{Error, Result};
use toml::Table;

/// Numbers that mean what they say, and keys that are read.
///
/// # Errors
/// Names the first key that is wrong.
pub(super) fn check(learn: &Learning) -> Result<()> {
    let Critic { lr, clip, model, .. } = learn.critic;
    for (key, value, right, what) in [
        ("lr", lr, lr >= 0.0 && lr.is_finite(), "a number from 0 up; 0 is the policy's rate"),
        ("clip", clip, clip >= 0.0 && (clip as f32).is_finite(), "a number from 0 up; 0 is no limit"),
    ] {
        if !right {
            return Err(Error::config(format!("learn.critic.{key}"), value, what));
        }
    }
    if learn.value_coef == 0.0 {
        return ineffective(
            &learn.critic,
            |_| true,
            "means nothing without a critic: learn.value_coef above 0 gives the run one",
        );
    }
    match model {
        CriticModel::Trunk => {
            let why = "is read of a critic with a model of its own: learn.critic.model = \"separate\"";
            ineffective(&learn.critic, |key| ["path", "micro_batch_tokens"].contains(&key), why)
        }
        CriticModel::Separate => {
            let guard = &learn.safeguard;
            for (key, value, off) in
                [("enlarge_ess", guard.enlarge_ess, 0.0), ("enlarge_lag", guard.enlarge_lag, f64::INFINITY)]
            {
                if value != off {
                    let why = format!(
                        "not with learn.critic.model = \"separate\", which learns from each batch as it comes; allowed: {off}"
                    );
                    return Err(Error::config(format!("learn.safeguard.{key}"), value, why));
                }
            }
            let why = "means nothing with learn.critic.model = \"separate\": its values are made when its step begins, and have not \
                       moved when they are learned from; allowed: 0";
            ineffective(&learn.critic, |key| key == "clip", why)
        }
    }
}

/// Refuses the first of these keys that has another value than its default.
fn ineffective(critic: &Critic, key: impl Fn(&str) -> bool, why: &str) -> Result<()> {
    let keys = |critic: &Critic| Table::try_from(critic).unwrap_or_default();
    let usual = keys(&Critic::default());
    let mut set = keys(critic).into_iter().filter(|(name, value)| key(name) && usual.get(name) != Some(value));
    set.next().map_or(Ok(()), |(name, value)| Err(Error::config(format!("learn.critic.{name}"), value, why)))
}

impl Spec {
    /// What of it concerns the rest of the run.
    pub(super) fn validate_critic(&self) -> Result<()> {
        let Critic { alone_steps, path, .. } = &self.learn.critic;
        if *alone_steps >= self.steps {
            let why =
                format!("below steps = {}: in these steps the critic alone learns, and the policy never would", self.steps);
            return Err(Error::config("learn.critic.alone_steps", alone_steps, why));
        }
        if self.model.engine == EngineKind::Toy && !path.as_os_str().is_empty() {
            let why = "the toy engine's tables come from no folder; allowed: \"\"";
            return Err(Error::config("learn.critic.path", path.display(), why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    fn spec(sets: &[&str]) -> crate::error::Result<Spec> {
        let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";
        Spec::from_text(start, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>())
    }

    /// Catches a key that is taken and has no effect, a number that means something else, and an error that names another key.
    #[test]
    fn errors_name_key_value_and_what_is_right() {
        const CRITIC: &str = "learn.value_coef=0.1";
        const SEPARATE: &str = "learn.critic.model=separate";
        for (sets, message) in [
            (
                &["learn.critic.lr=1e-4"][..],
                "lr = 0.0001: means nothing without a critic: learn.value_coef above 0 gives the run one",
            ),
            (&["learn.critic.alone_steps=3"], "alone_steps = 3: means nothing without a critic: "),
            (&[SEPARATE], "model = \"separate\": means nothing without a critic: "),
            (&[CRITIC, "learn.critic.lr=nan"], "lr = NaN: a number from 0 up; 0 is the policy's rate"),
            (&[CRITIC, "learn.critic.lr=inf"], "lr = inf: a number from 0 up"),
            (&[CRITIC, "learn.critic.lr=-1"], "lr = -1: a number from 0 up"),
            (&[CRITIC, "learn.critic.clip=nan"], "clip = NaN: a number from 0 up; 0 is no limit"),
            (&[CRITIC, "learn.critic.clip=1e39"], "clip = 1000000000000000"),
            (
                &[CRITIC, "learn.critic.path=x"],
                "path = \"x\": is read of a critic with a model of its own: learn.critic.model = \"separate\"",
            ),
            (&[CRITIC, "learn.critic.micro_batch_tokens=9"], "micro_batch_tokens = 9: is read of a critic with a model"),
            (
                &[CRITIC, SEPARATE, "learn.critic.clip=0.2"],
                "clip = 0.2: means nothing with learn.critic.model = \"separate\": ",
            ),
            (&[CRITIC, "learn.critic.alone_steps=100"], "alone_steps = 100: below steps = 100: "),
            (&[CRITIC, "learn.critic.model=head"], "model = \"head\": `head` is not allowed; allowed: `trunk`, `separate`"),
            (
                &["model.engine=toy", CRITIC, SEPARATE, "learn.critic.path=x"],
                "path = x: the toy engine's tables come from no folder",
            ),
        ] {
            let found = spec(sets).unwrap_err().to_string();
            assert!(found.starts_with(&format!("learn.critic.{message}")), "{sets:?}: {found}");
        }
        let enlarged = spec(&[CRITIC, SEPARATE, "learn.safeguard.enlarge_ess=0.5"]).unwrap_err().to_string();
        assert!(
            enlarged.starts_with("learn.safeguard.enlarge_ess = 0.5: not with learn.critic.model = \"separate\""),
            "{enlarged}"
        );
        let typo = spec(&["learn.critic.alone_step=1"]).unwrap_err().to_string();
        assert!(
            typo.starts_with("learn.critic.alone_step = 1: no such key; did you mean learn.critic.alone_steps?"),
            "{typo}"
        );
    }

    /// Catches a key that is lost on its way into the run's `spec.toml` or back.
    #[test]
    fn what_is_set_is_written_and_read_again() {
        let sets =
            ["learn.value_coef=0.1", "learn.critic={model='separate',path='c',lr=1e-3,alone_steps=4,micro_batch_tokens=64}"];
        let found = spec(&sets).unwrap();
        assert!(found.has_separate_critic() && !found.has_value_head() && found.learn.critic.alone_steps == 4);
        assert_eq!(Spec::from_text(&found.to_text(), &[]).unwrap(), found);
        let found = spec(&["learn.value_coef=0.1", "learn.critic.clip=0.2"]).unwrap();
        assert!(found.has_value_head() && !found.has_separate_critic());
        assert_eq!(Spec::from_text(&found.to_text(), &[]).unwrap(), found);
    }
}
