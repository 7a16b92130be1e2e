//! The critic end to end: what the log says of it is what its own columns come to, a replay comes to the same bit for bit, and so does
//! a run that was ended in its middle.

use crate::harness::{self, call, folder, place, resume, run, steps, tidegate, workplace as with_model};
use std::fs;
use tempfile::TempDir;
use tidegate::store::layout::LogFile;
use tidegate::store::{RunFolder, StepFile};
use tidegate_operators::record::{Metrics, Rollout, Status};

const SPEC: &str = r#"
steps = 12
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 4
[schedule]
max_lag = 3
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 24
max_tokens = 12
[learn]
value_coef = 0.5
lr = 0.05
warmup_steps = 2
lr_schedule = "constant"
[checkpoint]
every_steps = 5
every_minutes = 0.0
keep = 9
[eval]
prompts = 0
"#;

const SEPARATE: &str = "learn.critic={model='separate',lr=0.1,alone_steps=2}";

/// The steps of the run, which a replay must come to bit for bit.
fn replayed(dir: &TempDir) -> Vec<StepFile> {
    let ran = call(dir, &["replay", "runs/spec"], &[]).ok();
    assert!(ran.out.contains("bit for bit"), "{}", ran.out);
    steps(&folder(dir))
}

fn metrics(file: &StepFile) -> &Metrics {
    file.footer.metrics.as_ref().unwrap()
}

/// Hashes of the policy's tensors; those of the critic's.
fn hashes(file: &StepFile) -> [Vec<&str>; 2] {
    let critic = |(name, _): &&(String, String)| name.starts_with("critic.") || name.starts_with("value");
    let (critic, policy): (Vec<_>, Vec<_>) = metrics(file).weights.iter().partition(critic);
    [policy, critic].map(|part| part.into_iter().map(|(_, hash)| hash.as_str()).collect())
}

/// Takes the last checkpoint and the steps after the one before it away, but for the first of them, as a kill would.
fn cut_behind_a_checkpoint(dir: &TempDir) -> u64 {
    let folder = folder(dir);
    let kept = folder.checkpointed_steps().unwrap();
    let [.., newest, end] = kept[..] else { panic!("too few checkpoints: {kept:?}") };
    fs::remove_dir_all(folder.checkpoint(end)).unwrap();
    for step in folder.sealed_steps().unwrap().into_iter().filter(|step| *step > newest + 1) {
        fs::remove_file(folder.log_file(LogFile::Step(step))).unwrap();
    }
    let _ = fs::remove_file(folder.metrics());
    newest + 1
}

fn trained(file: &StepFile) -> impl Iterator<Item = &Rollout> {
    file.rollouts.iter().filter(|row| row.status == Status::Trained)
}

/// `1 - Var(reward - value) / Var(reward)` over the tokens of the rows.
fn explained(file: &StepFile) -> f64 {
    let of_row = |row: &Rollout| {
        let reward = f64::from(row.reward.unwrap());
        row.value.iter().map(move |value| [reward, reward - f64::from(*value)]).collect::<Vec<_>>()
    };
    let tokens: Vec<[f64; 2]> = trained(file).flat_map(of_row).collect();
    let [returns, errors] = [0, 1].map(|which| {
        let mean = tokens.iter().map(|t| t[which]).sum::<f64>() / tokens.len() as f64;
        tokens.iter().map(|t| (t[which] - mean).powi(2)).sum::<f64>()
    });
    1.0 - errors / returns
}

/// Each step of a run with warm-up: policy as it was in the first two, critic another in each, rates as they should be, and the
/// explained variance that of the rows.
#[track_caller]
fn assert_warms_up(steps: &[StepFile]) {
    for (number, file) in steps.iter().enumerate() {
        let m = metrics(file);
        if number > 0 {
            let ([policy, critic], [policy_before, critic_before]) = (hashes(file), hashes(&steps[number - 1]));
            assert_eq!(policy == policy_before, number < 2, "step {}", m.step);
            assert_ne!(critic, critic_before, "step {}", m.step);
        }
        assert_eq!((m.lr == 0.0, m.critic_lr > 0.0, m.skipped), (number < 2, true, false), "step {}: {}", m.step, m.lr);
        let expected = explained(file);
        assert!(
            (m.explained_variance - expected).abs() < 1e-6 || (!expected.is_finite() && m.explained_variance.is_nan()),
            "{} {expected}",
            m.explained_variance
        );
        assert!(trained(file).all(|row| row.value.len() == row.tokens.len() && row.logp_current.len() == row.tokens.len()));
    }
    assert!(steps.iter().any(|file| metrics(file).explained_variance.abs() > 1e-3), "a critic that explains nothing at all");
}

/// A head on the trunk, with all keys that it has. Catches a replay or a resume that forgets one of them, or how often the head was
/// updated.
#[test]
fn a_head_warms_up_and_goes_on() {
    let dir = place(SPEC);
    run(&dir, &["learn.critic={lr=0.2,alone_steps=2,clip=0.3}"]).ok();
    assert_warms_up(&replayed(&dir));
    let last = cut_behind_a_checkpoint(&dir);
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_warms_up(&replayed(&dir));
    let what_if =
        |clip: &str| call(&dir, &["replay", "runs/spec", "--json"], &[clip]).ok().json()["what_if"]["steps"].clone();
    let (tight, as_it_was) = (what_if("learn.critic.clip=0.001"), what_if("learn.critic.clip=0.3"));
    assert_eq!(tight.as_array().unwrap().len(), 12);
    assert_ne!(tight, as_it_was, "another bound is another loss");
}

/// A model of its own. Catches values that are not the step's, a critic that is not in checkpoints or in what is compared, one that is
/// damaged and is taken, and a run that cannot go on without its checkpoints.
#[test]
fn a_separate_critic_is_kept_and_goes_on() {
    let dir = place(SPEC);
    let ran = run(&dir, &[SEPARATE]).ok();
    assert!(ran.out.contains("\ncritic    explained variance "), "{}", ran.out);
    let steps = replayed(&dir);
    assert_warms_up(&steps);
    for row in steps.iter().flat_map(trained) {
        let of_value = |(advantage, value): (&f32, &f32)| *advantage == row.reward.unwrap() - value;
        assert!(row.advantage.iter().zip(&row.value).all(of_value));
    }
    let values = |number: usize| trained(&steps[number]).flat_map(|row| row.value.clone()).collect::<Vec<_>>();
    assert!(values(0).iter().all(|value| *value == 0.0) && values(1).iter().any(|value| *value != 0.0));
    let last = cut_behind_a_checkpoint(&dir);
    assert!(folder(&dir).checkpoint(last - 1).join("critic/optimizer.safetensors").exists());
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_warms_up(&replayed(&dir));
    let damaged = folder(&dir).checkpoint(12).join("critic/model.safetensors");
    let mut bytes = fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let ran = resume(&dir, &["steps=14", "learn.critic.lr=0.3"]).ok();
    assert!(ran.err.contains("critic/model.safetensors: damaged") && ran.err.contains("again from the log"), "{}", ran.err);
    fs::remove_dir_all(folder(&dir).checkpoints()).unwrap();
    let ran = resume(&dir, &["steps=15"]).ok();
    assert!(ran.err.contains("steps 1 to 14 again") && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_eq!(replayed(&dir).len(), 15);
}

/// Values of a step that did not come are made again. Catches a rollout that waits with half of it.
#[test]
fn rollouts_that_wait_have_no_values_of_a_separate_critic() {
    let dir = place(SPEC);
    run(&dir, &[SEPARATE, "learn.safeguard={stop_entropy=99.0,stop_steps=3}", "estimate.whiten=batch"])
        .refused(1, &["entropy"]);
    let folder = folder(&dir);
    let tail = tidegate::store::read_step(&folder.log_file(folder.tail().unwrap().unwrap())).unwrap();
    let waiting: Vec<_> = tail.rollouts.iter().filter(|row| row.status == Status::Waiting).collect();
    assert!(!waiting.is_empty());
    assert!(waiting.iter().all(|row| row.value.is_empty() && row.advantage.iter().all(|a| Some(*a) == row.reward)));
    resume(&dir, &["learn.safeguard.stop_entropy=0", "steps=6"]).ok();
    assert_eq!(replayed(&dir).len(), 6);
}

/// What a critic would have made of a run that had none, or another one. Catches one that asks for recorded values.
#[test]
fn a_replay_asks_a_separate_critic() {
    let dir = place(SPEC);
    run(&dir, &["learn.value_coef=0", "steps=4"]).ok();
    let ran = call(&dir, &["replay", "runs/spec", "--json"], &["learn.value_coef=0.5", "learn.critic.model=separate"]).ok();
    assert_eq!(ran.json()["what_if"]["steps"].as_array().unwrap().len(), 4);
    let ran = call(&dir, &["replay", "runs/spec"], &["learn.value_coef=0.5"]);
    ran.refused(2, &["learn.value_coef = 0.5: the run had no critic", "learn.critic.model = \"separate\""]);
}

/// Catches a run that becomes another one in its middle.
#[test]
fn what_a_critic_is_cannot_change_in_the_middle_of_a_run() {
    let dir = place(SPEC);
    run(&dir, &[SEPARATE, "steps=4"]).ok();
    for (set, says) in [
        ("learn.critic.model=trunk", "learn.critic.model = \"trunk\": the run has \"separate\""),
        ("learn.critic.alone_steps=1", "learn.critic.alone_steps = 1: the run has 2"),
        ("learn.value_coef=0.1", "learn.value_coef = 0.1: the run has 0.5"),
    ] {
        resume(&dir, &["steps=6", set]).refused(2, &[says]);
    }
    resume(&dir, &["steps=6", "learn.critic.lr=0.01", "learn.critic.micro_batch_tokens=20"]).ok();
    assert_eq!(replayed(&dir).len(), 6);
}

/// Value against return, of the log alone.
#[test]
fn analyze_shows_values_against_returns() {
    let dir = place(SPEC);
    run(&dir, &["learn.critic.lr=0.2"]).ok();
    let ran = call(&dir, &["analyze", "runs/spec", "--json"], &[]).ok();
    let found = &ran.json()["runs"][0]["value"];
    let tokens: usize = steps(&folder(&dir)).iter().flat_map(trained).map(|row| row.value.len()).sum();
    assert_eq!(found["tokens"], tokens);
    let rows = found["by_value"].as_array().unwrap();
    assert!((2..=10).contains(&rows.len()) && found["explained_variance"].is_number(), "{found}");
    assert_eq!(rows.iter().map(|row| row["tokens"].as_u64().unwrap()).sum::<u64>(), tokens as u64);
    let text = call(&dir, &["analyze", "runs/spec"], &[]).ok().out;
    assert!(text.contains("the critic's values against the rewards that came of them\n  explained variance "), "{text}");
    let without = place(SPEC);
    run(&without, &["learn.value_coef=0", "steps=2"]).ok();
    assert!(call(&without, &["analyze", "runs/spec", "--json"], &[]).ok().json()["runs"][0]["value"].is_null());
}

/// On a model folder: the critic starts from the policy's, and is one itself. Catches a torch critic that is not replayed or resumed to
/// the bit, a checkpoint of it that is no model folder, and a folder of another tokenizer that is taken.
#[test]
fn a_separate_critic_of_a_model_folder() {
    let dir = with_model();
    let sets = [
        "learn.value_coef=0.1",
        "learn.critic={model='separate',lr=1e-3,alone_steps=1}",
        "steps=4",
        "checkpoint.every_steps=2",
    ];
    let ran = harness::run(&dir, &sets).ok();
    assert!(ran.err.contains("; its critic: 4 layers, "), "{}", ran.err);
    let steps = replayed(&dir);
    let all = metrics(&steps[0]).weights.iter();
    let [policy, critic] = [false, true].map(|of| all.clone().filter(|(name, _)| name.starts_with("critic.") == of).count());
    assert_eq!(critic, policy + 2, "the critic has a head, the policy has none");
    assert!(trained(&steps[0]).all(|row| row.value.iter().all(|value| *value == 0.0)), "it starts at 0");
    assert!(trained(&steps[3]).all(|row| row.value.iter().all(|value| *value != 0.0)));
    let last = cut_behind_a_checkpoint(&dir);
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    replayed(&dir);
    // Another run's critic, further trained.
    let path = folder(&dir).checkpoint(4).join("critic");
    let own = format!("learn.critic.path={}", path.display());
    harness::run(&dir, &[&sets[..3], &[own.as_str(), "output=other"]].concat()).ok();
    let other = RunFolder::view(dir.path().join("other")).unwrap();
    assert!(trained(&harness::steps(&other)[0]).all(|row| row.value.iter().all(|value| *value != 0.0)));
    // What was given is known again, also by who trains it anew.
    let ends = other.checkpointed_steps().unwrap().into_iter().next_back().unwrap();
    let given = harness::steps(&other).remove(0).footer.info.critic;
    harness::copy(&other.checkpoint(ends).join("critic"), &path);
    let replay = tidegate(dir.path(), &["replay", "other"]);
    replay.refused(1, &["critic: the model's hash is ", &format!("the run recorded {given}"), "--force"]);
    fs::write(path.join("tokenizer.json"), fs::read_to_string(path.join("tokenizer.json")).unwrap() + "\n").unwrap();
    harness::run(&dir, &[&sets[..3], &[own.as_str()]].concat())
        .refused(2, &["learn.critic.path = ", "its tokenizer (hash "]);
}

/// Catches a run that samples twelve thousand groups before it says that none can be kept.
#[test]
fn groups_of_one_are_not_discarded_without_end() {
    let dir = place(SPEC);
    let sets = ["batch.group_size=1", "estimate.zero_variance=discard"];
    run(&dir, &[&sets[..], &["learn.value_coef=0"]].concat())
        .refused(2, &["estimate.zero_variance = discard: ", "batch.group_size = 1"]);
    run(&dir, &[&sets[..], &["steps=2"]].concat()).ok();
}
