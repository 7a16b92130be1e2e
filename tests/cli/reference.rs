//! A reference policy end to end: what the log says of it is what was trained, a replay does the same bit for bit, and so does a run
//! that was ended in its middle.

use crate::harness::{self, call, folder, place, run, steps};
use std::fs;
use tempfile::TempDir;
use tidegate::kernel::kl::k3;
use tidegate::kernel::reference::{next_coefficient, weight};
use tidegate::store::StepFile;
use tidegate::store::layout::LogFile;
use tidegate_operators::record::{Metrics, Rollout, Status};

const SPEC: &str = r#"
steps = 16
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 4
[schedule]
max_lag = 2
order = "admission"
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 24
max_tokens = 10
[learn]
lr = 0.1
warmup_steps = 2
grad_clip = 0.0
[checkpoint]
every_steps = 5
every_minutes = 0.0
keep = 9
[eval]
prompts = 0
"#;

fn workplace() -> TempDir {
    place(SPEC)
}

fn metrics(file: &StepFile) -> &Metrics {
    file.footer.metrics.as_ref().unwrap()
}

/// The steps of the run, which a replay must come to bit for bit.
fn replayed(dir: &TempDir, count: usize) -> Vec<StepFile> {
    let ran = call(dir, &["replay", "runs/spec"], &[]).ok();
    assert!(ran.out.contains(&format!("{count} steps")) && ran.out.contains("bit for bit"), "{}", ran.out);
    let steps = steps(&folder(dir));
    assert_eq!(steps.len(), count);
    steps
}

fn trained(file: &StepFile) -> impl Iterator<Item = &Rollout> {
    file.rollouts.iter().filter(|row| row.status == Status::Trained)
}

/// The first checkpoint's step: it is never busy with another.
const FIRST: u64 = 5;

/// As a kill leaves it, one step after the first checkpoint; then goes on to the end, and gives the steps.
fn gone_on(dir: &TempDir, sets: &[&str]) -> Vec<StepFile> {
    let folder = folder(dir);
    for later in folder.checkpointed_steps().unwrap().into_iter().filter(|step| *step > FIRST) {
        fs::remove_dir_all(folder.checkpoint(later)).unwrap();
    }
    for later in folder.sealed_steps().unwrap().into_iter().filter(|step| *step > FIRST + 1) {
        fs::remove_file(folder.log_file(LogFile::Step(later))).unwrap();
    }
    let _ = fs::remove_file(folder.metrics());
    let ran = call(dir, &["resume", "runs/spec"], sets).ok();
    assert!(ran.err.contains("steps 6 to 6 again") && ran.err.contains("bit for bit"), "{}", ran.err);
    replayed(dir, 16)
}

/// What a step says of its divergence is what its rows say.
fn assert_measured(file: &StepFile) {
    let (mut sum, mut tokens) = (0.0, 0);
    for row in trained(file) {
        assert_eq!(row.logp_reference.len(), row.tokens.len());
        for t in (0..row.tokens.len()).filter(|&t| row.mask[t]) {
            let weight = weight(row.logp_current[t], row.logp_behavior[t]);
            sum += f64::from(weight) * f64::from(k3(row.logp_current[t], row.logp_reference[t]));
            tokens += 1;
        }
    }
    let (m, mean) = (metrics(file), sum / f64::from(tokens));
    assert!((m.kl_reference - mean).abs() < 1e-9, "step {}: {} {mean}", m.step, m.kl_reference);
}

/// Catches a coefficient that begins anew when a run goes on, one that is constant, and a divergence from something else than the
/// first weights.
#[test]
fn in_the_loss_with_a_target() {
    let dir = workplace();
    let keys = "learn.reference={kl_coef=0.5,target_kl=0.001}";
    let ran = run(&dir, &[keys]).ok();
    let told = "reference the weights it starts from; KL in the loss, coefficient 0.5 at first, towards 0.001 nats a token";
    assert!(ran.err.contains(told), "{}", ran.err);
    let before = replayed(&dir, 16);
    let check = |steps: &[StepFile]| {
        let mut expected = 0.5f64;
        for file in steps {
            let m = metrics(file);
            assert_measured(file);
            assert_eq!(m.kl_coef.to_bits(), expected.to_bits(), "step {}", m.step);
            expected = next_coefficient(m.kl_coef, m.kl_reference, 0.001);
        }
        assert!(metrics(&steps[0]).kl_reference.abs() < 1e-12 && metrics(&steps[15]).kl_reference > 1e-4);
    };
    check(&before);
    check(&gone_on(&dir, &[]));
}

/// Catches advantages that are not less by the penalties to come, or that lose them on the way through a resume.
#[test]
fn in_the_reward() {
    let dir = workplace();
    let sets = ["learn.reference={kl_coef=0.5,kl_in='reward'}", "estimate.advantage=reinforce"];
    run(&dir, &sets).ok();
    let check = |steps: &[StepFile]| {
        for row in steps.iter().flat_map(trained) {
            let mut to_come = 0.0;
            for t in (0..row.tokens.len()).rev() {
                to_come += f64::from(row.logp_behavior[t] - row.logp_reference[t]);
                let expected = f64::from(row.reward.unwrap()) - 0.5 * to_come;
                assert!((f64::from(row.advantage[t]) - expected).abs() < 1e-5, "{} {expected}", row.advantage[t]);
            }
        }
        let paid = |file: &StepFile| trained(file).filter(|row| row.advantage[0] != row.reward.unwrap()).count();
        assert!(paid(&steps[15]) > 8);
        steps.iter().for_each(assert_measured);
    };
    check(&replayed(&dir, 16));
    check(&gone_on(&dir, &[]));
}

/// `of` a token under the weights of a step: the reference says what the learner said at the first step that it was the newest.
fn assert_refreshed(steps: &[StepFile], every: u64) {
    for file in steps {
        let m = metrics(file);
        assert_measured(file);
        if (m.step - 1).is_multiple_of(every) {
            assert_eq!(m.kl_reference, 0.0, "step {} begins at its reference", m.step);
            assert!(trained(file).all(|row| row.logp_reference == row.logp_current));
        } else {
            assert!(m.kl_reference > 0.0, "step {}", m.step);
        }
    }
}

/// Catches a reference that is renewed at other steps after a resume, one that comes back as the first one, and one that is not saved:
/// behind the checkpoint of a step after it was renewed, behind one of the step that renews it, and without any.
#[test]
fn a_reference_that_is_renewed() {
    for every in [4, 5] {
        let dir = workplace();
        run(&dir, &[&format!("learn.reference={{kl_coef=0.2,refresh_steps={every}}}")]).ok();
        assert_refreshed(&replayed(&dir, 16), every);
        let saved = folder(&dir).checkpoint(FIRST).join("reference.safetensors");
        assert_eq!(saved.exists(), every == 4);
        assert_refreshed(&gone_on(&dir, &[]), every);
        // Nothing but the log: all of it is trained again, and the reference with it.
        let folder = folder(&dir);
        fs::remove_dir_all(folder.checkpoints()).unwrap();
        (12..=16).for_each(|step| fs::remove_file(folder.log_file(LogFile::Step(step))).unwrap());
        let ran = call(&dir, &["resume", "runs/spec"], &[]).ok();
        assert!(ran.err.contains("steps 1 to 11 again") && ran.err.contains("bit for bit"), "{}", ran.err);
        assert_refreshed(&replayed(&dir, 16), every);
    }
}

/// The policy is pulled to a reward; the reference holds it. Catches a sign.
#[test]
fn a_large_coefficient_keeps_the_policy_near() {
    let last = |keys: &str| {
        let dir = workplace();
        run(&dir, &[&format!("learn.reference={keys}"), "steps=40", "schedule.max_lag=0"]).ok();
        let all = steps(&folder(&dir));
        let m = metrics(&all[39]).clone();
        (m.kl_reference, m.reward)
    };
    let (free, rewarded) = last("{kl_coef=1e-9}");
    for keys in ["{kl_coef=20.0}", "{kl_coef=20.0,kl_estimator='k3'}", "{kl_coef=20.0,kl_in='reward'}"] {
        let (held, reward) = last(keys);
        assert!(held < 0.5 * free && reward < rewarded, "{keys}: {held} {reward}, without {free} {rewarded}");
    }
}

/// Keys change in the middle of a run, and a replay follows them; a what-if asks for another reference, or for none.
#[test]
fn keys_change_in_the_middle() {
    let dir = workplace();
    run(&dir, &["steps=6"]).ok();
    let on = ["learn.reference={kl_coef=0.3,kl_in='reward'}", "steps=11"];
    call(&dir, &["resume", "runs/spec"], &on).ok();
    call(&dir, &["resume", "runs/spec"], &["learn.reference.kl_in=loss", "learn.reference.kl_coef=0.1", "steps=16"]).ok();
    let all = replayed(&dir, 16);
    for file in &all {
        let expected = [0.0, 0.3, 0.1][usize::from(file.footer.step > 6) + usize::from(file.footer.step > 11)];
        assert_eq!(metrics(file).kl_coef, expected);
        assert!(trained(file).all(|row| row.logp_reference.is_empty() == (expected == 0.0)));
    }
    let what_if = |sets: &[&str]| {
        let ran = call(&dir, &["replay", "runs/spec", "--json"], sets).ok();
        let steps = ran.json()["what_if"]["steps"].as_array().unwrap().clone();
        assert_eq!(steps.len(), 16);
        steps[15]["kl_reference"].as_f64().unwrap()
    };
    // On from the first step, off throughout, and another reference: the last checkpoint, from which the first weights are far.
    let far = what_if(&["learn.reference.kl_coef=5.0"]);
    assert_eq!(what_if(&["learn.reference.kl_coef=0.0"]), 0.0);
    let path = format!("learn.reference={{kl_coef=1e-9,path={:?}}}", folder(&dir).checkpoint(16).display().to_string());
    let near = what_if(&[&path]);
    assert!(far > 0.0 && near > 0.0 && near != far, "{far} {near}");
    call(&dir, &["resume", "runs/spec"], &["learn.reference.refresh_steps=3", "steps=18"])
        .refused(2, &["learn.reference.refresh_steps", "cannot change it in its middle"]);
}

/// The bundled model, in the type that is not the default one. Catches a reference that is not loaded again as it was saved, and one
/// that computes otherwise than the learner.
#[test]
fn a_model_with_layers() {
    let dir = harness::workplace();
    let keys = "learn.reference={kl_coef=0.1,kl_in='reward',refresh_steps=2}";
    let sets = [keys, "learn.dtype=bf16", "steps=5", "checkpoint={every_steps=3,every_minutes=0.0,keep=9}"];
    run(&dir, &sets).ok();
    assert_refreshed(&replayed(&dir, 5), 2);
    let folder = folder(&dir);
    assert!(folder.checkpoint(3).join("reference.safetensors").exists());
    fs::remove_dir_all(folder.checkpoint(5)).unwrap();
    fs::remove_file(folder.log_file(LogFile::Step(5))).unwrap();
    let ran = call(&dir, &["resume", "runs/spec"], &[]).ok();
    assert!(ran.err.contains("steps 4 to 4 again") && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_refreshed(&replayed(&dir, 5), 2);
}

/// Catches a reference that is found wanting when the run has begun.
#[test]
fn what_makes_no_sense_is_refused() {
    let dir = workplace();
    run(&dir, &["learn.reference.kl_coef=-1"]).refused(2, &["learn.reference.kl_coef = -1: a number from 0 up"]);
    run(&dir, &["learn.reference={kl_coef=0.1,path='nowhere'}"])
        .refused(2, &["learn.reference.path = nowhere: nowhere/model.safetensors: No such file"]);
    assert!(!dir.path().join("runs").exists());
}

/// Catches a folder that became another model, and a run that goes on with it as if it were the one that it began with.
#[test]
fn a_model_that_was_given_is_known_again() {
    let dir = workplace();
    let (first, given) = (format!("output={:?}", "first"), dir.path().join("given"));
    run(&dir, &[&first, "steps=2"]).ok();
    harness::copy(&dir.path().join("first/checkpoints/step-00000002"), &given);
    run(&dir, &["learn.reference={kl_coef=0.1,path='given'}", "steps=4"]).ok();
    let recorded = steps(&folder(&dir)).remove(0).footer.info.reference;
    assert_eq!(recorded.len(), 16);
    call(&dir, &["resume", "runs/spec"], &["steps=6"]).ok();
    assert!(steps(&folder(&dir)).iter().all(|file| file.footer.info.reference == recorded));
    call(&dir, &["resume", "first"], &["steps=9"]).ok();
    fs::remove_dir_all(&given).unwrap();
    harness::copy(&dir.path().join("first/checkpoints/step-00000009"), &given);
    let refused = call(&dir, &["resume", "runs/spec"], &["steps=8"]);
    refused.refused(1, &["given: the model's hash is ", &format!("the run recorded {recorded}")]);
    // What the log has is all that a replay needs.
    replayed(&dir, 6);
}
