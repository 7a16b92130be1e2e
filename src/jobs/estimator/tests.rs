//! What the estimator makes of groups: whom it refuses, whom it leaves out, and when it ends the run.

use super::*;
use tidegate_operators::record::Group;

const START: &str = "model.engine = \"toy\"\nbatch = { batch_size = 8, group_size = 2 }\n[[task]]\nkind = \"sorting\"\n";

fn spec(sets: &[&str]) -> Spec {
    Spec::from_text(START, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn estimator(sets: &[&str]) -> GroupEstimator {
    GroupEstimator::new(&spec(sets), Discards::default())
}

fn rollout(sample: u32, reward: Option<f32>) -> Rollout {
    Rollout {
        sample,
        reward,
        tokens: vec![5, 6],
        mask: vec![true, true],
        logp_behavior: vec![-0.5, -0.25],
        version: vec![0, 0],
        ..Rollout::default()
    }
}

fn group(rewards: [f32; 2]) -> [Rollout; 2] {
    [rollout(0, Some(rewards[0])), rollout(1, Some(rewards[1]))]
}

/// The advantages that a group's rewards come to, one a rollout.
fn advantages<const N: usize>(sets: &[&str], rewards: [f32; N]) -> Vec<f32> {
    let mut group: Vec<Rollout> = rewards.iter().zip(0..).map(|(reward, sample)| rollout(sample, Some(*reward))).collect();
    assert_eq!(estimator(sets).estimate(&mut group), Ok(None));
    assert!(group.iter().all(|rollout| rollout.advantage.len() == 2 && rollout.advantage[0] == rollout.advantage[1]));
    group.iter().map(|rollout| rollout.advantage[0]).collect()
}

/// Catches a missing reward that takes its siblings along, or that is taken for 0 (hard case 3).
#[test]
fn a_missing_reward_leaves_alone() {
    let mut group = [rollout(0, Some(f32::NAN)), rollout(1, Some(1.0)), rollout(2, Some(0.0))];
    let mut estimator = estimator(&["estimate.advantage=group_mean", "estimate.zero_variance=discard"]);
    assert_eq!(estimator.estimate(&mut group), Ok(None));
    assert_eq!(group[0].status, Status::Discarded(Reason::NoReward));
    assert_eq!([&group[1].advantage, &group[2].advantage], [&vec![0.5, 0.5], &vec![-0.5, -0.5]]);
    let mut none = [rollout(0, None), rollout(1, Some(f32::NAN))];
    assert_eq!(estimator.estimate(&mut none), Ok(Some(Reason::Unscorable)));
}

/// Hard case 3 where nothing is compared, and where rewards are shaped. Catches a NaN, or an infinite reward, that is trained
/// because it was clipped to a number.
#[test]
fn a_missing_reward_stays_missing_whatever_is_made_of_it() {
    for advantage in ["reinforce", "batch_normalised", "max_rl", "leave_one_out"] {
        for missing in [None, Some(f32::NAN), Some(f32::INFINITY)] {
            let mut group = [rollout(0, missing), rollout(1, Some(1.0)), rollout(2, Some(0.0))];
            let set = format!("estimate.advantage={advantage}");
            let mut estimator = estimator(&[&set, "estimate={reward_max=1.0,length_coef=0.5}"]);
            assert_eq!(estimator.estimate(&mut group), Ok(None));
            assert_eq!(group[0].status, Status::Discarded(Reason::NoReward), "{advantage} {missing:?}");
            assert_eq!((&group[0].advantage, group[0].reward_shaped), (&vec![0.0; 2], None));
            assert!(group[1].advantage[0] > group[2].advantage[0], "{advantage}");
            assert!(group[1].trainable() && group[2].trainable());
        }
    }
}

/// Catches NaN, -inf, +0.3 or a list of another length being trained, and a rounding error being refused (hard case 10).
#[test]
fn bad_log_probabilities_are_refused_by_rollout() {
    let group_mean = &["estimate.advantage=group_mean"];
    for bad in [f32::NAN, f32::NEG_INFINITY, 0.3] {
        let mut group = [rollout(0, Some(1.0)), rollout(1, Some(0.0)), rollout(2, Some(1.0))];
        group[0].logp_behavior[1] = bad;
        assert_eq!(estimator(group_mean).estimate(&mut group), Ok(None));
        let Status::Discarded(Reason::BadTokens(why)) = &group[0].status else { panic!("{bad} was accepted") };
        assert!(why.starts_with("logp_behavior[1] ="), "{why}");
        assert_eq!(group[2].advantage, [0.5, 0.5], "the refused one is not in the mean");
    }
    let mut group = group([1.0, 0.0]);
    group[0].logp_behavior[0] = 5e-4;
    group[1].logp_behavior.pop();
    assert_eq!(estimator(group_mean).estimate(&mut group), Ok(None));
    assert_eq!(group[0].logp_behavior[0], 0.0);
    let why = Reason::BadTokens("logp_behavior has 1 entries for 2 tokens".into());
    assert_eq!(group[1].status, Status::Discarded(why));
}

/// Catches equal rewards being trained where the spec filters them, and a run that samples for ever: after so many batches'
/// groups, over all generators, there is an end to it.
#[test]
fn zero_variance_is_filtered_and_has_a_limit() {
    let equal = || group([1.0, 1.0]);
    let limited = ["estimate.refill_limit=2", "estimate.discard_limit=1"];
    let mut keeps = estimator(&limited);
    let spec = spec(&[limited[0], limited[1], "estimate.zero_variance=discard"]);
    let shared = Discards::default();
    let mut workers = [0; 2].map(|_| GroupEstimator::new(&spec, shared.clone()));
    // Four groups a batch: seven in a row are no end, and one that teaches begins anew.
    for _ in 0..3 {
        for n in 0..7 {
            assert_eq!(keeps.estimate(&mut equal()), Ok(None));
            assert_eq!(workers[n % 2].estimate(&mut equal()), Ok(Some(Reason::ZeroVariance)));
        }
        assert_eq!(workers[0].estimate(&mut group([1.0, 0.0])), Ok(None));
    }
    for n in 0..7 {
        assert_eq!(workers[n % 2].estimate(&mut equal()), Ok(Some(Reason::ZeroVariance)));
    }
    let fault = workers[1].estimate(&mut equal()).unwrap_err();
    let said = "2 batches, 100 % zero-variance: 8 groups and none was kept (8 with a reward of at least 1 throughout); every rollout \
                was right: take harder prompts";
    assert!(fault.message.starts_with(said), "{fault}");
    assert!(fault.message.contains("estimate.refill_limit"), "{fault}");
}

/// Catches advice for prompts that are too easy where they are too hard, and a limit of 0 that ends every run.
#[test]
fn the_advice_is_for_what_was_seen() {
    let message = |groups: &[[f32; 2]]| {
        let batches = format!("estimate.refill_limit={}", groups.len() / 4);
        let mut estimator = estimator(&[&batches, "estimate.zero_variance=discard"]);
        let faults = groups.iter().filter_map(|rewards| estimator.estimate(&mut group(*rewards)).err());
        faults.map(|fault| fault.message).last().unwrap_or_default()
    };
    let none = message(&[[0.0; 2]; 4]);
    assert!(none.contains("(0 with a reward") && none.contains("none was right throughout: take easier prompts"), "{none}");
    let mixed = message(&[[0.0; 2], [1.0; 2], [1.0; 2], [0.5; 2]]);
    assert!(mixed.contains("(2 with a reward") && mixed.contains("solved always or never"), "{mixed}");
    assert_eq!(message(&[[0.0; 2]; 3]), "", "0 is no limit");
}

/// Catches discards for other reasons that count as zero variance, or that never end a run.
#[test]
fn other_discards_have_a_limit_of_their_own() {
    let sets = ["estimate.refill_limit=1", "estimate.discard_limit=3", "estimate.zero_variance=discard"];
    let mut estimator = estimator(&sets);
    let unscorable = || {
        let mut group = group([f32::NAN; 2]);
        group[0].reward_error = Some("the program ended with status 1".to_owned());
        group
    };
    for _ in 0..2 {
        assert_eq!(estimator.estimate(&mut unscorable()), Ok(Some(Reason::Unscorable)));
        assert_eq!(estimator.estimate(&mut group([1.0, 1.0])), Ok(Some(Reason::ZeroVariance)));
    }
    let fault = estimator.estimate(&mut unscorable()).unwrap_err();
    let said = "3 groups were discarded and none was kept, the last one as unscorable: the program ended with status 1";
    assert_eq!(fault.message, said);
    estimator.estimate(&mut group([1.0, 1.0])).unwrap();
    let fault = estimator.estimate(&mut group([0.0, 0.0])).unwrap_err();
    assert!(fault.message.starts_with("1 batches, 57 % zero-variance: 4 groups"), "{fault}");
}

/// Catches a filter that a length cost defeats (rewards then differ, though the task teaches nothing), and one that lets a
/// group through whose rewards only the clip makes equal.
#[test]
fn zero_variance_is_judged_without_what_lengths_bring() {
    let mut discards = estimator(&["estimate={zero_variance='discard',length_coef=-0.25,reward_max=1.0}"]);
    let mut equal = group([1.0, 1.0]);
    equal[1].tokens.push(7);
    equal[1].mask.push(true);
    equal[1].logp_behavior.push(-0.5);
    equal[1].version.push(0);
    assert_eq!(discards.estimate(&mut equal), Ok(Some(Reason::ZeroVariance)));
    equal[1].reward = Some(3.0);
    assert_eq!(discards.estimate(&mut equal), Ok(Some(Reason::ZeroVariance)), "3 counts as 1");
    equal[1].reward = Some(1.0);
    assert_eq!(discards.estimate(&mut group([1.0, 3.0])), Ok(Some(Reason::ZeroVariance)));
    assert_eq!(discards.estimate(&mut group([1.0, 0.5])), Ok(None));
    let mut keeps = estimator(&["estimate.length_coef=-0.25"]);
    assert_eq!(keeps.estimate(&mut equal), Ok(None));
    assert_eq!((&equal[0].advantage, &equal[1].advantage), (&vec![0.25; 2], &vec![-0.25; 3]), "what is short teaches");
}

/// One reward of two and one of 0. Catches one estimator taken for another.
#[test]
fn each_estimator_by_its_name() {
    for (advantage, expected) in [
        ("leave_one_out", [2.0, -2.0]),
        ("group_mean", [1.0, -1.0]),
        // Over the deviation sqrt(2), plus 1e-6.
        ("group_normalised", [0.707_106_3, -0.707_106_3]),
        ("max_rl", [1.0, -1.0]),
        ("reinforce", [2.0, 0.0]),
        ("batch_normalised", [2.0, 0.0]),
    ] {
        assert_eq!(advantages(&[&format!("estimate.advantage={advantage}")], [2.0, 0.0]), expected, "{advantage}");
    }
    assert_eq!(advantages(&["estimate.advantage=max_rl"], [1.0, 0.0, 0.0, 0.0]), [3.0, -1.0, -1.0, -1.0]);
}

/// Catches a sign that turns round without a word.
#[test]
fn rewards_below_0_are_nothing_for_max_rl() {
    let mut max_rl = estimator(&["estimate.advantage=max_rl"]);
    let mut negative = group([1.0, -0.5]);
    negative[0].group = Arc::new(Group { number: 7, ..Group::default() });
    negative[1].group = Arc::clone(&negative[0].group);
    let fault = max_rl.estimate(&mut negative).unwrap_err();
    assert!(fault.message.starts_with("group 7, sample 1 has the reward -0.5, and estimate.advantage"), "{fault}");
    assert_eq!(advantages(&["estimate={advantage='max_rl',reward_min=0.0}"], [1.0, -0.5]), [1.0, -1.0]);
}

/// Limit 16, buffer 4, a cost of 0.125 a token; rewards of 3 count as 1. Catches an advantage from the raw reward, and a raw
/// reward that is overwritten.
#[test]
fn advantages_are_of_the_shaped_reward_and_the_raw_one_stays() {
    let estimate =
        "estimate={advantage='reinforce',reward_max=1.0,length_coef=-0.125,overlong_buffer=4,overlong_penalty=2.0}";
    let mut estimator = estimator(&["generate.max_tokens=16", estimate]);
    let long = |tokens: usize| Rollout {
        tokens: vec![1; tokens],
        mask: vec![true; tokens],
        logp_behavior: vec![-0.5; tokens],
        version: vec![0; tokens],
        ..rollout(1, Some(3.0))
    };
    let mut group = [rollout(0, Some(0.5)), long(8), long(14), long(16)];
    assert_eq!(estimator.estimate(&mut group), Ok(None));
    let found = group.each_ref().map(|rollout| (rollout.reward, rollout.reward_shaped, rollout.advantage[0]));
    let expected = [(0.5, 0.25), (3.0, 0.0), (3.0, -1.75), (3.0, -3.0)];
    assert_eq!(found, expected.map(|(raw, shaped)| (Some(raw), Some(shaped), shaped)));
    // Nothing is said where nothing is shaped, and what an earlier estimate said is taken back.
    let mut plain = self::estimator(&["estimate.advantage=reinforce"]);
    assert_eq!(plain.estimate(&mut group), Ok(None));
    assert_eq!(group.each_ref().map(|r| (r.reward_shaped, r.advantage[0])), [0.5, 3.0, 3.0, 3.0].map(|r| (None, r)));
}

const CRITIC: &str = "learn.value_coef=0.5";

/// Catches a critic's run that filters groups (a group of one has no variance, and teaches).
#[test]
fn with_a_critic_the_value_is_the_baseline() {
    let mut critic = estimator(&[CRITIC, "estimate.zero_variance=discard"]);
    let mut group = [Rollout { value: vec![0.25, 0.5], ..rollout(0, Some(1.0)) }];
    assert_eq!(critic.estimate(&mut group), Ok(None));
    assert_eq!(group[0].advantage, [0.75, 0.5]);
    let mut shaped = estimator(&[CRITIC, "estimate.length_coef=-0.125"]);
    assert_eq!(shaped.estimate(&mut group), Ok(None));
    assert_eq!(group[0].advantage, [0.5, 0.25]);
}

/// Values 0.25 and 0.5, gamma and lambda 0.5, reward 1: 0.5 at the end, 0.25 - 0.25 + 0.25 * 0.5 before. Cut, the end has
/// 0.5 * 0.5 more. Catches a cut rollout that is taken for one that ended, and values that are not there being read.
#[test]
fn gae_reads_the_recorded_values() {
    let gae = ["estimate.advantage={gae={gamma=0.5,lambda=0.5}}", CRITIC];
    for (stop, expected) in [
        (Stop::Eos, [0.125, 0.5]),
        (Stop::StopString, [0.125, 0.5]),
        (Stop::Length, [0.1875, 0.75]),
        (Stop::Time, [0.1875, 0.75]),
    ] {
        let valued = Rollout { value: vec![0.25, 0.5], stop, ..rollout(0, Some(1.0)) };
        let mut group = [valued, rollout(1, Some(1.0))];
        assert_eq!(estimator(&gae).estimate(&mut group), Ok(None));
        assert_eq!(group[0].advantage, expected, "{stop:?}");
        assert_eq!(group[1].status, Status::Discarded(Reason::BadTokens("value has 0 entries for 2 tokens".into())));
    }
}

/// A replay takes the batches as they are. Catches one that leaves out what was trained.
#[test]
fn a_replay_filters_nothing() {
    let spec = spec(&["estimate.zero_variance=discard"]);
    assert_eq!(GroupEstimator::of_replay(&spec).estimate(&mut group([1.0, 1.0])), Ok(None));
}
