//! What `workers.balance` must mean.

use super::Spec;
use crate::error::{Error, Result};
use tidegate_operators::balance::Balance;

/// Somebody whose work can be shifted.
///
/// # Errors
/// Says which workers do what.
pub(super) fn check(spec: &Spec) -> Result<()> {
    let beside = spec.workers.generators.len() > 1 && spec.workers.generators.contains(&spec.plan().learner);
    if spec.workers.balance == Balance::Fixed || beside {
        return Ok(());
    }
    let (generators, learners) = (&spec.workers.generators, &spec.workers.learners);
    let why = format!(
        "no generator beside others shares the learner's worker (generators = {generators:?}, learners = {learners:?}), so there is \
         nothing to shift; allowed: `fixed`, or one index in both lists and another in generators"
    );
    Err(Error::config("workers.balance", "\"auto\"", why))
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    fn spec(workers: &str) -> crate::error::Result<Spec> {
        let start = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";
        Spec::from_text(start, &[format!("workers={workers}")])
    }

    /// Catches a key that means nothing where it is asked for, and one that is lost on its way into `spec.toml`.
    #[test]
    fn auto_needs_a_worker_with_both_roles() {
        for workers in ["{generators=[0],learners=[1],balance='auto'}", "{generators=[0],learners=[0],balance='auto'}"] {
            let refused = spec(workers).unwrap_err().to_string();
            assert!(refused.starts_with("workers.balance = \"auto\": no generator beside others shares"), "{refused}");
        }
        let auto = spec("{generators=[0,1],learners=[1],balance='auto'}").unwrap();
        assert_eq!(auto.plan().balanced(), Some(1));
        assert_eq!(Spec::from_text(&auto.to_text(), &[]).unwrap(), auto);
        assert!(spec("{balance='some'}").unwrap_err().to_string().contains("allowed: `fixed`, `auto`"));
    }
}
