//! Numbers of a specification that mean nothing, each refused by its own key.

use super::Spec;

const START: &str = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";

fn spec(set: &str) -> crate::error::Result<Spec> {
    Spec::from_text(START, &[set.to_owned()])
}

/// Catches a number that is taken for no bound, one that blames another key, and one that single precision makes infinite.
#[test]
fn errors_name_the_key_that_is_wrong() {
    for (set, message) in [
        ("estimate.reward_min=nan", "estimate.reward_min = NaN: a number of at most 3.4028235e38, or -inf for no bound"),
        ("estimate.reward_max=nan", "estimate.reward_max = NaN: a number of at most 3.4028235e38, or inf for no bound"),
        ("estimate.reward_max=-inf", "estimate.reward_max = -inf: a number of at most 3.4028235e38, or inf for no bound"),
        ("estimate.reward_min=inf", "estimate.reward_min = inf: a number of at most 3.4028235e38, or -inf for no bound"),
        (
            "estimate.reward_min=-1e39",
            "estimate.reward_min = -1000000000000000000000000000000000000000: a number of at most 3.4028235e38, or -inf for no bound",
        ),
        (
            "estimate.overlong_penalty=1e39",
            "estimate.overlong_penalty = 1000000000000000000000000000000000000000: a number from 0 up, at most 3.4028235e38",
        ),
        ("estimate.overlong_penalty=nan", "estimate.overlong_penalty = NaN: a number from 0 up, at most 3.4028235e38"),
        ("learn.value_coef=inf", "learn.value_coef = inf: a number from 0 up, at most 3.4028235e38"),
        ("learn.value_coef=nan", "learn.value_coef = NaN: a number from 0 up, at most 3.4028235e38"),
        ("learn.entropy_coef=1e39", "learn.entropy_coef = 1000000000000000000000000000000000000000: a number"),
        ("estimate.length_coef=-inf", "estimate.length_coef = -inf: a number"),
    ] {
        assert_eq!(spec(set).unwrap_err().to_string(), message);
    }
    for set in ["estimate.reward_min=-inf", "estimate.reward_max=inf", "estimate={reward_min=-1e38,reward_max=1e38}"] {
        spec(set).unwrap();
    }
    let close = "estimate={reward_min=1.0,reward_max=1.00000000001}";
    assert!(
        spec(close).unwrap_err().to_string().starts_with("estimate.reward_min = 1: a number below"),
        "one number to the kernel"
    );
}

/// Catches a run that would sample groups without end and keep none.
#[test]
fn groups_of_one_cannot_be_filtered() {
    let sets = ["batch={batch_size=4,group_size=1}", "estimate={zero_variance='discard',advantage='reinforce'}"];
    let of = |sets: &[&str]| Spec::from_text(START, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
    let found = of(&sets).unwrap_err().to_string();
    assert!(
        found.starts_with("estimate.zero_variance = discard: the reward of a group of one (batch.group_size = 1) "),
        "{found}"
    );
    of(&[&sets[..], &["learn.value_coef=0.1"]].concat()).unwrap();
    of(&sets[..1]).unwrap();
}
