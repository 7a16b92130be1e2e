//! Safeguards end to end: what the log says was done is what its own numbers ask for, a replay does the same bit for bit, and so
//! does a run that was ended in its middle.

use crate::harness::{call, command, folder, lags, max_lag, place, resume, run, steps};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use tempfile::TempDir;
use tidegate::spec::Spec;
use tidegate::store::layout::LogFile;
use tidegate::store::{StepFile, read_json_rows, read_step};
use tidegate_operators::record::{Metrics, Status};

const SPEC: &str = r#"
steps = 24
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

/// The steps of the run, which a replay must come to bit for bit.
fn replayed(dir: &TempDir, count: usize) -> Vec<StepFile> {
    let ran = call(dir, &["replay", "runs/spec"], &[]).ok();
    assert!(ran.out.contains(&format!("{count} steps")) && ran.out.contains("bit for bit"), "{}", ran.out);
    let steps = steps(&folder(dir));
    assert_eq!(steps.len(), count);
    steps
}

fn metrics(file: &StepFile) -> &Metrics {
    file.footer.metrics.as_ref().unwrap()
}

/// Takes the last checkpoint and the steps after the one before it away, but for the first of them, as a kill would: a run that
/// goes on loads that checkpoint and trains one step again. The last step that is left.
fn cut_behind_a_checkpoint(dir: &TempDir) -> u64 {
    let folder = folder(dir);
    let kept = folder.checkpointed_steps().unwrap();
    let [.., newest, end] = kept[..] else { panic!("too few checkpoints: {kept:?}") };
    assert!(newest >= 5, "{kept:?}");
    fs::remove_dir_all(folder.checkpoint(end)).unwrap();
    for step in folder.sealed_steps().unwrap().into_iter().filter(|step| *step > newest + 1) {
        fs::remove_file(folder.log_file(LogFile::Step(step))).unwrap();
    }
    let _ = fs::remove_file(folder.metrics());
    newest + 1
}

/// Each step's `left_out` and `tokens` are the tokens of its rows above the limit, and the others.
fn assert_left_out(file: &StepFile, limit: i64) {
    let all: Vec<i64> = file.rollouts.iter().flat_map(lags).collect();
    let above = all.iter().filter(|lag| **lag > limit).count();
    let m = metrics(file);
    assert_eq!((m.left_out, m.tokens), (above as u64, (all.len() - above) as u64), "step {}", file.footer.step);
    assert_eq!(m.lag_max as i64, all.iter().copied().max().unwrap(), "what the data were, whatever was done with them");
}

/// By turns lags are known: 0, 1 and 2 in the steps of each phase. Catches a step whose tokens are all left out and that moves the
/// weights, a mask in the log that is not what the policy chose, and a replay or a resume that leaves out otherwise.
#[test]
fn tokens_of_a_large_lag_are_left_out() {
    let dir = workplace();
    let sets = ["learn.safeguard.max_lag=1", "steps=12", "schedule={kind='conventional',steps=3}"];
    let told = run(&dir, &sets).ok().out;
    assert!(told.contains(" %) left out by learn.safeguard.max_lag\n          4 steps without an update: "), "{told}");
    let before = replayed(&dir, 12);
    for (number, file) in before.iter().enumerate() {
        assert_left_out(file, 1);
        let left_out = number % 3 == 2;
        assert_eq!((metrics(file).skipped, metrics(file).left_out > 0), (left_out, left_out));
        let same = number > 0 && metrics(file).weights == metrics(&before[number - 1]).weights;
        assert_eq!(same, left_out);
        for row in file.rollouts.iter().filter(|row| row.status == Status::Trained) {
            assert!(row.mask.iter().all(|chosen| *chosen) && row.logp_current.is_empty() == left_out);
        }
    }
    // What was left out is in no figure of what was trained, and whoever counts says the same of it.
    let report = call(&dir, &["analyze", "runs/spec", "--json"], &[]).ok().json()["runs"][0].clone();
    let sum = |of: fn(&Metrics) -> u64| before.iter().map(|file| of(metrics(file))).sum::<u64>();
    assert_eq!(report["lag"]["left_out"].as_u64(), Some(sum(|m| m.left_out)));
    assert_eq!(report["off_policy"]["tokens"].as_u64(), Some(sum(|m| m.tokens)));
    assert_eq!((report["lag"]["max"].as_i64(), report["time"]["skipped_steps"].as_u64()), (Some(1), Some(4)));
    let last = cut_behind_a_checkpoint(&dir);
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    replayed(&dir, 12).iter().for_each(|file| assert_left_out(file, 1));
}

/// In a pipeline lags come as they come, several in one rollout. Catches tokens that count twice or not at all, and a limit that a
/// replay keeps although the run changed it in its middle.
#[test]
fn a_limit_may_change_in_the_middle_of_a_run() {
    let dir = workplace();
    run(&dir, &["learn.safeguard.max_lag=2", "steps=10", "generate.slots=48"]).ok();
    resume(&dir, &["learn.safeguard.max_lag=0", "steps=20"]).ok();
    for (number, file) in replayed(&dir, 20).iter().enumerate() {
        assert_left_out(file, if number < 10 { 2 } else { 0 });
    }
    let what_if = call(&dir, &["replay", "runs/spec", "--json"], &["learn.safeguard.max_lag=inf"]).ok();
    assert_eq!(what_if.json()["what_if"]["steps"].as_array().unwrap().len(), 20);
    call(&dir, &["replay", "runs/spec"], &["learn.safeguard.stop_kl=1"]).refused(2, &["not read", "learn.safeguard.stop_*"]);
}

/// Catches a rate that is not the schedule's times the root of the step's own ESS, to the bit.
#[test]
fn the_learning_rate_follows_ess() {
    let dir = workplace();
    run(&dir, &["learn.safeguard.lr_scale=sqrt_ess"]).ok();
    let last = cut_behind_a_checkpoint(&dir);
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    let mut lower = 0;
    for file in replayed(&dir, 24) {
        let (m, learn) = (metrics(&file), Spec::from_text(&file.footer.info.spec, &[]).unwrap().learn);
        let rate = learn.lr_at(m.step, 24);
        assert_eq!(m.lr.to_bits(), (rate * m.ess.sqrt()).to_bits());
        lower += usize::from(m.lr < 0.999 * rate);
    }
    assert!(lower > 0, "no batch was off policy");
}

/// Whether each step was skipped by the definition, from the norms that the log has; how many were.
fn assert_skipped(steps: &[StepFile], factor: f64, window: usize, from: usize) -> usize {
    let (mut norms, mut skipped) = (Vec::new(), 0);
    for (number, file) in steps.iter().enumerate() {
        let m = metrics(file);
        let usual = norms.len().checked_sub(window).map(|start| {
            let mut last: Vec<f64> = norms[start..].to_vec();
            last.sort_by(f64::total_cmp);
            (last[(window - 1) / 2] + last[window / 2]) / 2.0
        });
        let outlier = number >= from && usual.is_some_and(|usual| m.grad_norm > factor * usual);
        assert_eq!(m.skipped, outlier || m.tokens == 0, "step {}: {} after {norms:?}", m.step, m.grad_norm);
        if m.skipped {
            assert_eq!(m.weights, metrics(&steps[number - 1]).weights, "step {}", m.step);
        }
        skipped += usize::from(outlier);
        norms.extend(Some(m.grad_norm).filter(|norm| *norm > 0.0));
    }
    skipped
}

/// Norms differ, and the limit is just above the usual: many steps are skipped. Catches a skipped step that moves the weights or
/// is no version, and norms that are forgotten when a run goes on from a checkpoint.
#[test]
fn steps_with_outlying_gradients_are_skipped() {
    let dir = workplace();
    let keys = ["learn.safeguard.skip_norm=1.05", "learn.safeguard.skip_window=4"];
    let ran = run(&dir, &keys).ok();
    let skipped = assert_skipped(&replayed(&dir, 24), 1.05, 4, 0);
    assert!((1..=19).contains(&skipped), "{skipped}");
    let told = ran.err.lines().filter(|line| line.contains(" was skipped: its gradient's norm is ")).count();
    assert_eq!(told, skipped, "{}", ran.err);
    let last = cut_behind_a_checkpoint(&dir);
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_skipped(&replayed(&dir, 24), 1.05, 4, 0);
    assert!(max_lag(&folder(&dir)) <= 3);
}

/// Catches a learner that looks back only on steps that it judged: a safeguard that is set in the middle of a run goes by all.
#[test]
fn a_safeguard_that_comes_later_goes_by_all_steps_before() {
    let dir = workplace();
    run(&dir, &["steps=12"]).ok();
    resume(&dir, &["steps=20", "learn.safeguard={skip_norm=1.05,skip_window=6}"]).ok();
    assert!(assert_skipped(&replayed(&dir, 20), 1.05, 6, 12) > 0);
    // Without a checkpoint all is trained again, each step as it was.
    fs::remove_dir_all(folder(&dir).checkpoints()).unwrap();
    let ran = resume(&dir, &["steps=24"]).ok();
    assert!(ran.err.contains("steps 1 to 20 again") && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_skipped(&replayed(&dir, 24), 1.05, 6, 12);
}

/// A limit that every step passes. Catches a run that goes on, a step of which the log lacks something, a sentence without
/// numbers, and a run that cannot go on, with the same keys or with others.
#[test]
fn a_run_that_diverges_stops_sealed_and_goes_on() {
    let dir = workplace();
    let seen = |step: u64| format!("safeguard: the run diverges: at step {step} entropy is ");
    let ran = run(&dir, &["learn.safeguard={stop_entropy=99.0,stop_steps=3}"]);
    let limit = " nats a token, below learn.safeguard.stop_entropy = 99, as in each of the last 3 steps: ";
    ran.refused(1, &[&seen(3), limit, "`tidegate resume`", "learn.entropy_coef above 0"]);
    assert!(ran.err.contains("3 steps are sealed in runs/spec\ngo on     tidegate resume runs/spec\n"), "{}", ran.err);
    let whole = |last: u64| {
        let folder = folder(&dir);
        assert_eq!(folder.sealed_steps().unwrap(), (1..=last).collect::<Vec<_>>());
        assert_eq!(folder.checkpointed_steps().unwrap().last(), Some(&last));
        assert_eq!(read_json_rows(&folder.metrics()).unwrap().count() as u64, last);
        let tail = read_step(&folder.log_file(folder.tail().unwrap().unwrap())).unwrap();
        assert_eq!((tail.footer.step, tail.footer.metrics), (last + 1, None));
        assert!(tail.rollouts.len() >= 12 && tail.rollouts.iter().all(|row| row.status != Status::Trained));
    };
    whole(3);
    // Whoever goes on, on whatever keys, has as many steps to recover in.
    resume(&dir, &[]).refused(1, &[&seen(6)]);
    whole(6);
    resume(&dir, &["learn.lr=1e-3", "learn.safeguard.stop_steps=2"]).refused(1, &[&seen(8)]);
    resume(&dir, &["learn.safeguard.stop_entropy=0"]).ok();
    replayed(&dir, 24);
    assert!(max_lag(&folder(&dir)) <= 3);
}

/// The other two limits, and a run whose last step is the bad one: it has done all its steps.
#[test]
fn each_limit_stops_a_run() {
    for (set, says) in [
        (
            "learn.safeguard={stop_kl=1e-12,stop_steps=1}",
            ["KL (k3) is ", "above learn.safeguard.stop_kl = 0.000000000001: "],
        ),
        ("learn.safeguard={stop_ess=1.0,stop_steps=1}", ["ESS is 0.", "below learn.safeguard.stop_ess = 1: "]),
    ] {
        let ran = run(&workplace(), &[set]);
        ran.refused(1, &says);
        assert!(ran.err.contains("max_lag"), "{}", ran.err);
    }
    run(&workplace(), &["learn.safeguard={stop_entropy=99.0,stop_steps=4}", "steps=4"]).ok();
}

/// Catches steps before a kill that do not count: after two bad ones the third stops the run.
#[test]
fn a_kill_does_not_excuse_a_run() {
    let dir = workplace();
    let sets = ["run", "spec.toml", "--set", "learn.safeguard={stop_entropy=99.0,stop_steps=3}"];
    let mut killed = command(dir.path(), &sets);
    let status = killed.env("TIDEGATE_KILL_AT", "step: sealed:2").output().unwrap().status;
    assert_eq!(status.signal(), Some(9));
    assert_eq!(folder(&dir).sealed_steps().unwrap(), [1, 2]);
    resume(&dir, &[]).refused(1, &["at step 3 entropy is "]);
    assert_eq!(folder(&dir).sealed_steps().unwrap(), [1, 2, 3]);
}

/// How many batches each step's gradient is of, by the definition: what is held is worth ESS of all its tokens times its batches. ESS of
/// parts is not in the log, so batches are known to be enough only where one is.
fn assert_enlarged(steps: &[StepFile], asked: f64, most: u64) -> usize {
    let (mut held, mut enlarged) = (0, 0);
    for (number, file) in steps.iter().enumerate() {
        let m = metrics(file);
        assert_eq!(m.enlarged, held + 1, "step {}", m.step);
        let last = number + 1 == steps.len();
        if m.enlarged == 1 {
            assert_eq!(m.held, m.ess < asked && !last, "step {}: ESS {}", m.step, m.ess);
        }
        assert!(m.enlarged <= most && !(m.held && (m.enlarged == most || last)), "step {}", m.step);
        assert_eq!(m.skipped, m.held, "step {}", m.step);
        let same = number > 0 && m.weights == metrics(&steps[number - 1]).weights;
        assert_eq!(same, m.held && number > 0, "step {}", m.step);
        held = if m.held { m.enlarged } else { 0 };
        enlarged += usize::from(!m.held && m.enlarged > 1);
    }
    enlarged
}

/// Catches a held gradient that a replay, a kill or a checkpoint loses, and a run that ends with one. The checkpoint that the run goes on from
/// is of a step in the middle of an enlarged batch.
#[test]
fn batches_are_enlarged_while_ess_is_low() {
    let dir = workplace();
    let keys = ["learn.safeguard={enlarge_ess=0.995,enlarge_most=3}", "learn.lr=0.3", "learn.lr_schedule=constant"];
    let told = run(&dir, &[&keys[..], &["checkpoint.every_steps=1", "checkpoint.keep=24"]].concat()).ok().out;
    let before = replayed(&dir, 24);
    let held = before.iter().filter(|file| metrics(file).held).count();
    let updates = before.iter().filter(|file| !metrics(file).skipped).count();
    assert!(told.contains(&format!("{updates} updates: {held} steps held their gradient for a later one")), "{told}");
    assert!(assert_enlarged(&before, 0.995, 3) > 0, "no batch was off policy");
    let folder = folder(&dir);
    let checkpoints = folder.checkpointed_steps().unwrap();
    let held = *checkpoints.iter().rev().find(|step| **step < 23 && metrics(&before[**step as usize - 1]).held).unwrap();
    for step in checkpoints.into_iter().filter(|step| *step != held) {
        fs::remove_dir_all(folder.checkpoint(step)).unwrap();
    }
    for step in folder.sealed_steps().unwrap().into_iter().filter(|step| *step > held + 1) {
        fs::remove_file(folder.log_file(LogFile::Step(step))).unwrap();
    }
    let _ = fs::remove_file(folder.metrics());
    let ran = resume(&dir, &[]).ok();
    let begun = held + 1 - metrics(&before[held as usize - 1]).enlarged;
    let again = format!("training steps {begun} to {} again", held + 1);
    assert!(ran.err.contains(&again) && ran.err.contains("bit for bit"), "no {again:?} in {}", ran.err);
    assert_enlarged(&replayed(&dir, 24), 0.995, 3);
    assert!(max_lag(&folder) <= 3);
}

/// Catches a pause that takes a step before a batch of equal weights is there, one that lasts for longer than the bound on lag, and one
/// that a kill ends.
#[test]
fn a_run_pauses_until_a_batch_on_policy() {
    let dir = workplace();
    let ran = run(&dir, &["learn.safeguard.skip_ess=0.995", "learn.lr=0.3"]).ok();
    let assert_paused = |steps: &[StepFile]| {
        let (mut still, mut paused, mut count) = (0, false, 0);
        for file in steps {
            let m = metrics(file);
            paused = m.lag_max > still && (paused || m.ess < 0.995);
            assert_eq!((m.paused, m.skipped, m.held), (paused, paused, false), "step {}: {m:?}", m.step);
            still = if m.skipped { still + 1 } else { 0 };
            assert!(still <= 3, "a pause of {still} steps");
            count += usize::from(paused);
        }
        count
    };
    let count = assert_paused(&replayed(&dir, 24));
    assert!(count > 0, "no batch was off policy");
    let told = ran.err.lines().filter(|line| line.contains(" was skipped: ")).count();
    assert_eq!(told, count, "{}", ran.err);
    assert!(ran.err.contains("below learn.safeguard.skip_ess = 0.995"), "{}", ran.err);
    let last = cut_behind_a_checkpoint(&dir);
    let ran = resume(&dir, &[]).ok();
    assert!(ran.err.contains(&format!("to {last} again")) && ran.err.contains("bit for bit"), "{}", ran.err);
    assert_paused(&replayed(&dir, 24));
}

/// Catches a safeguard of a warm start that nothing would read.
#[test]
fn a_warm_start_skips_steps_and_no_more() {
    let dir = workplace();
    fs::write(dir.path().join("sft.toml"), "[[task]]\nkind = \"sorting\"\n").unwrap();
    let why = "a warm start has no lag and stops at no limit; of safeguards it has skip_norm and skip_window";
    call(&dir, &["sft", "sft.toml"], &["learn.safeguard.stop_kl=2"]).refused(2, &["learn.safeguard.stop_kl = 2.0: ", why]);
    call(&dir, &["sft", "sft.toml"], &["learn.safeguard.skip_ess=0.2"])
        .refused(2, &["learn.safeguard.skip_ess = 0.2: ", why]);
}
