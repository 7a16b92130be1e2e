//! Golden numbers: what other projects' own functions gave on the same inputs (see `data/golden/README.md`, which also lists
//! where tidegate differs on purpose: those differences are asserted here as tidegate's value).

use serde_json::Value;
use std::collections::BTreeMap;
use tidegate::kernel::advantage::{Advantage, group_advantages};
use tidegate::kernel::aggregation::{Aggregation, token_weights};
use tidegate::kernel::critic::clipped_value_loss;
use tidegate::kernel::ess::Ess;
use tidegate::kernel::gae::{Ending, Gae, gae, reward_gae, value_targets};
use tidegate::kernel::kl::{k1, k2, k3};
use tidegate::kernel::loss::{Loss, Term, Tokens, policy_loss, value_loss};
use tidegate::kernel::mean::Mean;
use tidegate::kernel::ratio::{SequenceRatio, ratio, truncated};
use tidegate::kernel::whiten::{Row, whiten};

/// One recorded call.
struct Case {
    name: String,
    inputs: Value,
    outputs: Value,
}

/// The case `name` of `data/golden/FILE_refs.json`. Its bare NaN are read as null, and null as NaN again.
fn case(file: &str, name: &str) -> Case {
    let path = format!("{}/data/golden/{file}_refs.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the golden file is there");
    let mut all: Value = serde_json::from_str(&text.replace("NaN", "null")).expect("the golden file is JSON");
    let case = all.get_mut(name).unwrap_or_else(|| panic!("no golden case {name}"));
    Case { name: name.to_owned(), inputs: case["inputs"].take(), outputs: case["outputs"].take() }
}

fn number(value: &Value) -> f32 {
    if value.is_null() { f32::NAN } else { value.as_f64().expect("a number") as f32 }
}

fn row(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn rows(value: &Value) -> Vec<Vec<f32>> {
    value.as_array().expect("a list of lists").iter().map(row).collect()
}

fn masks(value: &Value) -> Vec<Vec<bool>> {
    rows(value).iter().map(|r| r.iter().map(|&m| m == 1.0).collect()).collect()
}

/// Within a few roundings of f32; NaN is close to nothing.
#[track_caller]
fn close(what: &str, found: f32, expected: f32) {
    assert!((found - expected).abs() <= 4e-7 * (1.0 + expected.abs()), "{what}: {found}, golden {expected}");
}

#[track_caller]
fn all_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    found.iter().zip(expected).enumerate().for_each(|(i, (&f, &e))| close(&format!("{what}[{i}]"), f, e));
}

/// Advantages of all groups of a case, in the case's order.
fn by_group(kind: Advantage, case: &Case) -> Vec<f32> {
    let rewards = row(&case.inputs["scores"]);
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, group) in case.inputs["index"].as_array().expect("a list").iter().enumerate() {
        groups.entry(group.as_str().expect("a name")).or_default().push(i);
    }
    let mut advantages = vec![f32::NAN; rewards.len()];
    for members in groups.values() {
        let group: Vec<Option<f32>> = members.iter().map(|&i| Some(rewards[i])).collect();
        let estimate = group_advantages(kind, &group);
        members.iter().zip(estimate.advantages).for_each(|(&i, advantage)| advantages[i] = advantage);
    }
    advantages
}

/// Catches a wrong divisor (n for n - 1), epsilon or baseline, and groups that mix.
#[test]
fn advantages_of_groups() {
    for (kind, name) in [
        (Advantage::GroupNormalised, "grpo_std"),
        (Advantage::GroupNormalised, "grpo_vectorized_std"),
        (Advantage::GroupMean, "grpo_nostd"),
        (Advantage::LeaveOneOut, "rloo"),
        // Its baseline is a mean weighted by length, and the lengths here are equal.
        (Advantage::GroupMean, "opo"),
    ] {
        let case = case("verl", name);
        all_close(name, &by_group(kind, &case), &row(&case.outputs));
    }
}

/// Catches a rounding error that the deviation blows up: equal, not close.
#[test]
fn advantages_of_equal_rewards_are_exactly_zero() {
    for name in ["grpo_all_equal", "grpo_all_zero", "grpo_all_equal_inexact_0.1"] {
        let case = case("verl", name);
        assert_eq!(by_group(Advantage::GroupNormalised, &case), row(&case.outputs), "{name}");
    }
}

/// Ours: a lone rollout has advantage 0, not its bare reward. The group beside it is as there.
#[test]
fn advantages_of_a_group_of_one() {
    for (kind, name) in [
        (Advantage::GroupNormalised, "grpo_singleton"),
        (Advantage::GroupNormalised, "grpo_vectorized_singleton"),
        (Advantage::LeaveOneOut, "rloo_singleton"),
    ] {
        let case = case("verl", name);
        let (found, golden) = (by_group(kind, &case), row(&case.outputs));
        close(name, golden[0], 0.7);
        assert_eq!(found[0], 0.0, "{name}");
        all_close(name, &found[1..], &golden[1..]);
    }
}

/// Ours: a NaN reward leaves the group's statistics, where there it poisons the group.
#[test]
fn advantages_beside_a_nan_reward() {
    let case = case("verl", "grpo_nan_member");
    assert!(row(&case.outputs).iter().all(|a| a.is_nan()));
    assert_eq!(by_group(Advantage::GroupMean, &case), [0.0, 0.5, -0.5]);
    assert_eq!(by_group(Advantage::GroupNormalised, &case), [0.0, 0.707_105_76, -0.707_105_76]);
}

fn whitened(mut advantages: Vec<Vec<f32>>, masks: &[Vec<bool>]) -> Vec<Vec<f32>> {
    let rows = advantages.iter_mut().zip(masks);
    whiten(&mut rows.map(|(advantage, mask)| Row { advantage, mask }).collect::<Vec<_>>());
    advantages
}

/// Catches a deviation over rollouts (0.707 for 0.913), of n, or that masked tokens enter; and a reward that is lost with a
/// masked token. There, as here with gamma 1, the advantage of every token is the sum of its rollout's rewards.
#[test]
fn batch_normalised_of_verl_reinforce_plus_plus() {
    let Case { inputs, outputs, .. } = case("verl", "reinforce_pp_gamma1.0");
    let (rewards, masks) = (rows(&inputs["rewards"]), masks(&inputs["mask"]));
    let sums: Vec<f32> = rewards.iter().map(|row| row.iter().sum()).collect();
    let raw: Vec<Vec<f32>> = (0..sums.len())
        .map(|i| vec![group_advantages(Advantage::BatchNormalised, &[Some(sums[i])]).advantages[0]; masks[i].len()])
        .collect();
    let (golden_whitened, golden_raw) = (rows(&outputs[0]), rows(&outputs[1]));
    for (i, found) in whitened(raw.clone(), &masks).iter().enumerate() {
        all_close(&format!("reinforce_pp[{i}]"), found, &golden_whitened[i]);
        for t in (0..masks[i].len()).filter(|&t| masks[i][t]) {
            close(&format!("reinforce_pp[{i}][{t}]"), raw[i][t], golden_raw[i][t]);
        }
    }
}

/// Catches a discount, a next value or a next advantage taken from the wrong token or across a masked one, at the tokens
/// that are trained; the critic's targets (advantage + value) hold the numbers before whitening, the others after.
#[test]
fn gae_of_verl() {
    for name in ["gae_g1.0_l1.0", "gae_g1.0_l0.95", "gae_g1.0_l0.0", "gae_multiturn_obs_masked"] {
        let Case { inputs, outputs, .. } = case("verl", name);
        let kind = Gae { gamma: number(&inputs["gamma"]), lambda: number(&inputs["lam"]) };
        let (rewards, values, masks) = (rows(&inputs["rewards"]), rows(&inputs["values"]), masks(&inputs["mask"]));
        let found: Vec<Vec<f32>> = (0..masks.len()).map(|i| gae(kind, &rewards[i], &values[i], &masks[i], 0.0)).collect();
        let (golden_whitened, golden_targets) = (rows(&outputs[0]), rows(&outputs[1]));
        let whitened = whitened(found.clone(), &masks);
        for i in 0..masks.len() {
            for t in 0..masks[i].len() {
                let what = format!("{name}[{i}][{t}]");
                if masks[i][t] {
                    close(&what, value_targets(&found[i], &values[i], &masks[i])[t], golden_targets[i][t]);
                    close(&what, whitened[i][t], golden_whitened[i][t]);
                } else {
                    assert_eq!(found[i][t], 0.0, "{what}");
                }
            }
        }
    }
}

/// Hard case 7. Catches a cut rollout that bootstraps with 0 (or one that ended, with a value). The last slot is no token: what
/// stands there is the value that follows. Ours, which records values before tokens, takes the last of these: 0.1 less of it,
/// of which 0.99 reaches the last token, and 0.9405 of that each one before.
#[test]
fn gae_of_areal_bootstraps_where_it_was_cut() {
    for (name, bootstrap) in [("areal_token_gae_noeos_False", 0.0), ("areal_token_gae_noeos_True", 0.5)] {
        let Case { inputs, outputs, .. } = case("other", name);
        let kind = Gae { gamma: number(&inputs["gamma"]), lambda: number(&inputs["lam"]) };
        let (rewards, values, masks) =
            (&rows(&inputs["rewards"])[0], &rows(&inputs["values"])[0], &masks(&inputs["mask"])[0]);
        let found = gae(kind, rewards, values, masks, bootstrap);
        all_close(name, &found, &rows(&outputs[0])[0]);
        let ending = if bootstrap == 0.0 { Ending::Own } else { Ending::Cut };
        let less = |t: i32| if ending == Ending::Cut { 0.99 * 0.1 * 0.9405_f32.powi(3 - t) } else { 0.0 };
        let recorded = reward_gae(kind, rewards[3], &values[..4], &masks[..4], ending);
        (0..4).for_each(|t| close(name, recorded[t as usize], found[t as usize] - less(t)));
        let targets: Vec<f32> = found.iter().zip(values).map(|(a, v)| a + v).collect();
        all_close(name, &targets, &rows(&outputs[1])[0]);
    }
}

/// The same recursion over turns: one reward (the turn's sum) and one value (its first token's) a turn, and the last value
/// after them. Catches a bootstrap that is not discounted.
#[test]
fn gae_of_areal_over_turns() {
    let Case { inputs, outputs, .. } = case("other", "areal_turn_gae");
    let kind = Gae { gamma: number(&inputs["gamma"]), lambda: number(&inputs["lam"]) };
    let (rewards, values, turns) =
        (&rows(&inputs["rewards"])[0], &rows(&inputs["values"])[0], &rows(&inputs["turn_ids"])[0]);
    let sum = |turn: f32| (0..5).filter(|&t| turns[t] == turn).map(|t| rewards[t]).sum::<f32>();
    let first = |turn: f32| (0..5).find(|&t| turns[t] == turn).map(|t| values[t]).expect("the turn is there");
    let found = gae(kind, &[sum(0.0), sum(2.0)], &[first(0.0), first(2.0)], &[true, true], values[4]);
    let golden = &rows(&outputs[0])[0];
    assert_eq!(found, [golden[0], golden[3]]);
}

/// Catches what the others do not: a reward in the middle.
#[test]
fn gae_of_slime() {
    let Case { inputs, outputs, .. } = case("other", "slime_vanilla_gae");
    let kind = Gae { gamma: number(&inputs["gamma"]), lambda: number(&inputs["lam"]) };
    let (rewards, values, golden) = (rows(&inputs["rewards"]), rows(&inputs["values"]), rows(&outputs[0]));
    for i in 0..golden.len() {
        all_close("slime", &gae(kind, &rewards[i], &values[i], &[true; 4], 0.0), &golden[i]);
    }
}

/// Catches a swapped pair, a lost half and a lost sign. k3's last entry is ours: the formula's value at a log-ratio of 20,
/// exp(20) - 21, where there it is clamped to 10.
#[test]
fn kl_estimates() {
    type Estimate = fn(f32, f32) -> f32;
    for (name, estimate) in [("kl_k1", k1 as Estimate), ("kl_abs", |p, q| k1(p, q).abs()), ("kl_k2", k2), ("kl_k3", k3)] {
        let Case { inputs, outputs, .. } = case("verl", name);
        let (logp, reference) = (&rows(&inputs["logprob"])[0], &rows(&inputs["ref"])[0]);
        let mut expected = rows(&outputs)[0].clone();
        if name == "kl_k3" {
            assert_eq!(std::mem::replace(&mut expected[3], 485_165_174.4), 10.0);
        }
        let found: Vec<f32> = logp.iter().zip(reference).map(|(&p, &q)| estimate(p, q)).collect();
        all_close(name, &found, &expected);
    }
}

/// Sum over unmasked tokens of weight times loss.
fn aggregate(kind: Aggregation, losses: &[Vec<f32>], masks: &[Vec<bool>]) -> f32 {
    let weights = token_weights(kind, &masks.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let chosen = |i: usize| losses[i].iter().zip(&masks[i]).filter(|(_, m)| **m).map(|(loss, _)| *loss).sum::<f32>();
    (0..losses.len()).map(|i| weights[i] * chosen(i)).sum()
}

/// Catches a denominator that counts masked tokens, or the sequence that has none.
#[test]
fn aggregations() {
    for (kind, name) in [
        (Aggregation::TokenMean, "agg_token-mean"),
        (Aggregation::TokenSum, "agg_token-sum"),
        (Aggregation::SeqMeanTokenSum, "agg_seq-mean-token-sum"),
        (Aggregation::SeqMeanTokenSumNorm(3.0), "agg_seq-mean-token-sum-norm"),
        (Aggregation::SeqMeanTokenMean, "agg_seq-mean-token-mean"),
    ] {
        let Case { inputs, outputs, .. } = case("verl", name);
        close(name, aggregate(kind, &rows(&inputs["loss_mat"]), &masks(&inputs["mask"])), number(&outputs));
    }
}

/// Hard case 9. Ours: 0 where there it is NaN.
#[test]
fn aggregations_of_nothing() {
    for (kind, name) in [
        (Aggregation::TokenMean, "agg_token-mean_all_masked"),
        (Aggregation::SeqMeanTokenMean, "agg_seq-mean-token-mean_all_masked"),
    ] {
        let Case { inputs, outputs, .. } = case("verl", name);
        assert!(number(&outputs).is_nan());
        assert_eq!(aggregate(kind, &rows(&inputs["loss_mat"]), &masks(&inputs["mask"])), 0.0, "{name}");
    }
}

/// The terms of a `loss_*` case, `[S][T]`, with the log-probabilities named `behavior` as the behavior policy's.
fn terms(loss: Loss, case: &Case, behavior: &str) -> Vec<Vec<Term>> {
    let (new, old) = (rows(&case.inputs["new"]), rows(&case.inputs[behavior]));
    let (advantage, masks) = (rows(&case.inputs["adv"]), masks(&case.inputs["mask"]));
    let one = |i: usize| {
        let mut out = Vec::new();
        let (logp_current, logp_behavior, mask) = (&new[i], &old[i], &masks[i]);
        policy_loss(loss, Tokens { logp_current, logp_behavior, advantage: &advantage[i], lag: &[], mask }, &mut out);
        out
    };
    (0..masks.len()).map(one).collect()
}

/// Sum over tokens of `weight * loss`.
fn total(terms: &[Vec<Term>], weights: &[Vec<f32>]) -> f32 {
    terms.iter().flatten().zip(weights.iter().flatten()).map(|(term, weight)| term.loss * weight).sum()
}

const TRAINED: f32 = 7.0;

/// PPO as there: with dual clip, which holds the token of ratio 10 and advantage -4 at 3 * 4; without it that is 10 * 4, and the
/// rest the same. `tis` weighs the same tokens differently. Catches a bound swapped or on the wrong side, and a masked token
/// that counts.
#[test]
fn ppo_of_verl() {
    let (clip_low, clip_high) = (0.2, 0.28);
    for name in ["loss_vanilla_dualclip", "loss_vanilla_tis"] {
        let case = case("verl", name);
        let weights = if name.ends_with("tis") { rows(&case.inputs["is_w"]) } else { vec![vec![1.0; 4]; 2] };
        let clipped = |terms: &[Vec<Term>]| terms.iter().flatten().filter(|term| term.clipped).count() as f32;
        let shares = ["actor/pg_clipfrac", "actor/pg_clipfrac_lower"].map(|key| number(&case.outputs[1][key]) * TRAINED);

        let found = terms(Loss::DualClip { clip_low, clip_high, cap_negative: 3.0 }, &case, "old");
        close(name, total(&found, &weights) / TRAINED, number(&case.outputs[0]));
        close(name, clipped(&found), shares[0] + shares[1]);

        let found = terms(Loss::Ppo { clip_low, clip_high }, &case, "old");
        let without_dual_clip = weights[0][2] * (found[0][2].ratio - 3.0) * 4.0;
        close(name, (total(&found, &weights) - without_dual_clip) / TRAINED, number(&case.outputs[0]));
        close(name, clipped(&found), shares[0]);
    }
}

/// One ratio a sequence, 1.65 and 1.11: the first is above the bound where its advantage is positive. Catches a ratio a token, a
/// mean over masked tokens, and a bound on the wrong side.
#[test]
fn gspo_of_verl() {
    let case = case("verl", "loss_gspo");
    let found = terms(Loss::Gspo { clip_low: 0.2, clip_high: 0.28 }, &case, "old");
    let masks = masks(&case.inputs["mask"]);
    let losses: Vec<Vec<f32>> = found.iter().map(|terms| terms.iter().map(|term| term.loss).collect()).collect();
    close("loss_gspo", aggregate(Aggregation::SeqMeanTokenMean, &losses, &masks), number(&case.outputs[0]));
    let clipped = found.iter().flatten().filter(|term| term.clipped).count();
    close("loss_gspo", clipped as f32 / TRAINED, number(&case.outputs[1]["actor/pg_clipfrac"]));
}

/// With both bounds. Without the lower one, REINFORCE weighs the token of ratio 0.5 so, and not 0.8; the rest is the same.
/// Catches a weight that is not cut, and a sign.
#[test]
fn cispo_of_verl() {
    let case = case("verl", "loss_cispo");
    let ones = vec![vec![1.0; 4]; 2];
    let found = terms(Loss::Cispo { clip_low: 0.2, clip_high: 0.28 }, &case, "old");
    close("loss_cispo", total(&found, &ones) / TRAINED, number(&case.outputs[0]));
    let clipped = found.iter().flatten().filter(|term| term.clipped).count();
    close("loss_cispo", clipped as f32 / TRAINED, number(&case.outputs[1]["actor/pg_clipfrac"]));
    let found = terms(Loss::Reinforce { cap: 1.28 }, &case, "old");
    let bound_below = (0.8 - found[0][0].ratio) * 1.69315;
    close("loss_cispo", (total(&found, &ones) + bound_below) / TRAINED, number(&case.outputs[0]));
}

/// On policy the weight is 1 and the loss is the plain policy gradient's. Catches a ratio that is not 1 there.
#[test]
fn reinforce_on_policy_is_gpg() {
    let case = case("verl", "loss_gpg");
    let found = terms(Loss::Reinforce { cap: 5.0 }, &case, "new");
    close("loss_gpg", total(&found, &vec![vec![1.0; 4]; 2]) / TRAINED, number(&case.outputs[0]));
}

/// There: half the square, of the prediction clipped to within 0.5 of the earlier value 0.2 where that is worse (0.9 -> 0.7).
/// Catches a factor (ours is the whole square), and a bound that is not theirs.
#[test]
fn value_loss_of_verl() {
    let case = case("verl", "value_loss_clip0.5");
    let (predicted, targets) = (&rows(&case.inputs["vpreds"])[0], &rows(&case.inputs["returns"])[0]);
    let clip = number(&case.inputs["clip"]);
    let recorded = &rows(&case.inputs["values"])[0];
    let found = [0, 1].map(|t| clipped_value_loss(predicted[t], targets[t], recorded[t], clip));
    close(&case.name, 0.5 * (found[0].0 + found[1].0) / 2.0, number(&case.outputs[0]));
    close(&case.name, found[0].1, 0.2);
    // One of two is cut, and its own loss would be the smaller one.
    let cut = found.iter().filter(|(_, slope)| *slope == 0.0).count();
    close(&case.name, cut as f32 / 2.0, number(&case.outputs[1]));
    assert_eq!(clipped_value_loss(predicted[1], targets[1], recorded[1], 0.0), value_loss(predicted[1], targets[1]));
}

/// Truncated weights, their effective sample size, and the divergence of the sampler from the learner, all over the five
/// unmasked tokens. Catches a ratio upside down, a cap that drops instead of cutting, an n that counts masked tokens.
#[test]
fn truncated_weights_of_verl() {
    let Case { inputs, outputs, .. } = case("other", "verl_rollout_is_token_2.0");
    let (current, behavior, masks) = (rows(&inputs["old"]), rows(&inputs["rollout"]), masks(&inputs["mask"]));
    let golden = rows(&outputs["weights"]);
    let (mut ess, mut mean1, mut mean3) = (Ess::default(), Mean::default(), Mean::default());
    for i in 0..masks.len() {
        let mut out = Vec::new();
        let (logp_current, logp_behavior, mask) = (&current[i], &behavior[i], &masks[i]);
        let tokens = Tokens { logp_current, logp_behavior, advantage: &[1.0; 3], lag: &[], mask };
        policy_loss(Loss::Reinforce { cap: 2.0 }, tokens, &mut out);
        all_close("weights", &out.iter().map(|term| term.weight).collect::<Vec<_>>(), &golden[i]);
        for t in (0..3).filter(|&t| masks[i][t]) {
            close("weight", truncated(ratio(current[i][t], behavior[i][t]), 2.0), golden[i][t]);
            ess.add(f64::from(out[t].weight));
            mean1.add(f64::from(k1(behavior[i][t], current[i][t])));
            mean3.add(f64::from(k3(behavior[i][t], current[i][t])));
        }
    }
    let metric = |key: &str| number(&outputs["metrics"][key]);
    close("ess", ess.value() as f32, metric("rollout_corr/rollout_is_eff_sample_size"));
    close("k1", mean1.value().expect("five tokens") as f32, metric("rollout_corr/kl"));
    close("k3", mean3.value().expect("five tokens") as f32, metric("rollout_corr/k3_kl"));
}

/// Ratios of whole sequences: the mean of the products' squares less 1, and of the geometric means' inverses. The masks of both
/// sequences there are empty, each outside on another side, and both are whole where the bounds are wide. Catches a mean for a
/// product, a masked token in either, an inverse, and a bound that is not looked at.
#[test]
fn sequence_ratios_of_verl() {
    for (name, ratio, low, high) in [
        ("verl_rs_seq_sum_k1_0.5_2.0", SequenceRatio::Product, 0.5, 2.0),
        ("verl_rs_seq_mean_k1_0.8_1.25", SequenceRatio::GeometricMean, 0.8, 1.25),
    ] {
        let Case { inputs, outputs, .. } = case("other", name);
        let (current, behavior, masks) = (rows(&inputs["old"]), rows(&inputs["rollout"]), masks(&inputs["mask"]));
        let golden = rows(&outputs["mask"]);
        let terms = |loss, i: usize| {
            let mut out = Vec::new();
            let (logp_current, logp_behavior, mask) = (&current[i], &behavior[i], &masks[i]);
            let tokens = Tokens { logp_current, logp_behavior, advantage: &[1.0; 3], lag: &[], mask };
            policy_loss(loss, tokens, &mut out);
            out
        };
        let mut wholes = Vec::new();
        for i in 0..masks.len() {
            let kept = |low, high| terms(Loss::SequenceMasked { ratio, low, high, cap: 5.0 }, i);
            let in_golden: Vec<bool> = golden[i].iter().map(|&m| m == 1.0).collect();
            assert_eq!(kept(low, high).iter().map(|term| term.weight > 0.0).collect::<Vec<_>>(), in_golden, "{name}[{i}]");
            assert_eq!(kept(0.0, 9.0).iter().map(|term| term.weight > 0.0).collect::<Vec<_>>(), masks[i], "{name}[{i}]");
            wholes.push(terms(Loss::SequenceTruncated { ratio, cap: 9.0 }, i)[0].weight);
        }
        let mean = |of: fn(f32) -> f32| wholes.iter().map(|&whole| of(whole)).sum::<f32>() / 2.0;
        let metric = |key: &str| number(&outputs["metrics"][key]);
        match ratio {
            SequenceRatio::Product => close(name, mean(|w| w * w) - 1.0, metric("rollout_corr/chi2_seq")),
            SequenceRatio::GeometricMean => close(name, mean(|w| 1.0 / w), metric("rollout_corr/ppl_ratio")),
        }
    }
}

/// Weights of 0 count in n. Catches an n of the weights above 0, which gives 0.787.
#[test]
fn effective_sample_size_with_zeros() {
    let Case { outputs, .. } = case("other", "verl_rollout_is_token_0.5_5.0");
    let mut ess = Ess::default();
    rows(&outputs["weights"]).iter().flatten().take(5).for_each(|&w| ess.add(f64::from(w)));
    close("ess", ess.value() as f32, number(&outputs["metrics"]["rollout_corr/rollout_is_eff_sample_size"]));
}

/// Catches a divergence of the wrong direction, on the tokens of the loss cases.
#[test]
fn divergence_of_the_loss_cases() {
    let case = case("verl", "loss_vanilla_dualclip");
    let (new, old, masks) = (rows(&case.inputs["new"]), rows(&case.inputs["old"]), masks(&case.inputs["mask"]));
    let mut mean = Mean::default();
    for i in 0..masks.len() {
        (0..4).filter(|&t| masks[i][t]).for_each(|t| mean.add(f64::from(k1(old[i][t], new[i][t]))));
    }
    close("ppo_kl", mean.value().expect("seven tokens") as f32, number(&case.outputs[1]["actor/ppo_kl"]));
}
