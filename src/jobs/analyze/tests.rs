//! Reports of a small run, held to numbers worked out by hand.

use crate::error::Error;
use crate::jobs::Output;
use crate::jobs::analyze::report::{Files, Size};
use crate::jobs::analyze::{Options, RunReport, SkipBad, analyze, report, report_beside, told};
use crate::store::layout::LogFile;
use crate::store::{FooterInfo, Limits, ParquetLog, RunFolder, compact};
use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Stop};
use tidegate_operators::seal::Log;

const SECOND: i64 = 1_000_000_000;

fn rollout(step: u64, (number, sample): (u64, u32), (prompt_id, task): (u64, &str), version: &[u64]) -> Rollout {
    let text = format!("prompt {prompt_id}\n");
    let prompt = Prompt { id: prompt_id, task: task.to_owned(), text, ..Prompt::default() };
    let admitted_ns = step as i64 * SECOND;
    Rollout {
        group: Arc::new(Group { number, prompt, admitted_ns, ..Group::default() }),
        sample,
        tokens: vec![7; version.len()],
        text: "an\0swer\n".to_owned(),
        mask: vec![true; version.len()],
        logp_behavior: vec![-1.0; version.len()],
        logp_current: vec![-1.0; version.len()],
        version: version.to_vec(),
        started_ns: admitted_ns + SECOND,
        finished_ns: admitted_ns + 3 * SECOND,
        step,
        ..Rollout::default()
    }
}

fn trained(rollout: Rollout, reward: f32, advantage: &[f32]) -> Rollout {
    let trained_ns = rollout.finished_ns + SECOND / 2;
    Rollout { status: Status::Trained, reward: Some(reward), advantage: advantage.to_vec(), trained_ns, ..rollout }
}

fn metrics(step: u64) -> Option<Metrics> {
    let second = SECOND as u64;
    let times = Metrics {
        train_ns: 2 * second,
        wait_forced_ns: second,
        wait_any_ns: second / 2,
        wait_log_ns: 3 * second,
        ..Metrics::default()
    };
    Some(Metrics { step, finished_ns: 5 * SECOND * step as i64 + SECOND, ..times })
}

/// Two steps and a tail under a bound of 1: all kinds of rows, in numbers that a person can add up.
fn run() -> (TempDir, RunFolder) {
    run_with("")
}

/// With more in its specification.
fn run_with(more: &str) -> (TempDir, RunFolder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let spec = "seed = 1\n[schedule]\nkind = \"pipeline\"\nmax_lag = 1\n".to_owned() + more;
    let mut log = ParquetLog::new(folder.clone(), FooterInfo { spec, ..FooterInfo::default() });
    let first = vec![
        trained(rollout(1, (0, 0), (10, "short"), &[0, 0]), 1.0, &[0.5; 2]),
        trained(rollout(1, (0, 1), (10, "short"), &[0, 0]), 0.0, &[-0.5; 2]),
    ];
    log.seal(SealedStep { step: 1, rollouts: first, metrics: metrics(1) }).unwrap();

    // Its fourth token is not trained, so neither its lag nor its advantage count.
    let mut second = trained(rollout(2, (1, 0), (11, "long"), &[0, 0, 1, 1]), 0.5, &[0.0, 0.25, 0.25, 9.0]);
    second.mask[3] = false;
    second.logp_behavior = vec![-2.0, -2.0, -2.0, 0.0];
    second.logp_current = vec![-2.0 + std::f32::consts::LN_2, -2.0, -2.0, 0.0];
    second.logp_reference = vec![-2.5, -2.0, -2.5, 9.0];
    second.stop = Stop::Length;
    let mut discarded = rollout(2, (2, 0), (12, "long"), &[1, 1, 1]);
    discarded.status = Status::Discarded(Reason::ZeroVariance);
    discarded.reward = Some(0.0);
    discarded.logp_behavior = vec![-5.0; 3];
    log.seal(SealedStep { step: 2, rollouts: vec![second, discarded], metrics: metrics(2) }).unwrap();

    let waiting = Rollout { reward: Some(1.0), ..rollout(3, (3, 0), (11, "long"), &[1]) };
    log.seal(SealedStep { step: 3, rollouts: vec![waiting], metrics: None }).unwrap();
    (dir, folder)
}

fn report_of(folder: &RunFolder, skip_bad: SkipBad) -> RunReport {
    report(&[folder.path().to_owned()], skip_bad).unwrap().runs.remove(0)
}

fn close(found: Option<f64>, expected: f64) {
    let found = found.unwrap();
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

#[test]
fn rewards_and_steps() {
    let (_dir, folder) = run();
    let r = report_of(&folder, SkipBad::No);
    assert_eq!((r.first_step, r.last_step, r.files.read), (Some(1), Some(2), 3));
    let statuses = [("discarded: zero variance", 1), ("trained", 3), ("waiting", 1)];
    assert_eq!(r.statuses, BTreeMap::from(statuses.map(|(status, n)| (status.to_owned(), n))));
    assert_eq!((r.reward.trained, r.reward.sampled, r.reward.success_sampled), (Some(0.5), Some(0.5), Some(0.4)));
    close(r.reward.success, 1.0 / 3.0);
    let [first, second] = &r.over_steps[..] else { panic!("{:?}", r.over_steps) };
    assert_eq!((first.first_step, first.last_step, first.rollouts), (1, 1, 2));
    assert_eq!((first.reward, first.success, first.length), (Some(0.5), Some(0.5), Some(2.0)));
    assert_eq!((first.lag_mean, first.lag_max, first.ess), (Some(0.0), Some(0), Some(1.0)));
    assert_eq!((second.reward, second.success, second.length), (Some(0.5), Some(0.0), Some(4.0)));
    assert_eq!(second.stops, BTreeMap::from([("length", 1.0)]));
    close(second.lag_mean, 2.0 / 3.0);
}

/// Catches a size that is counted with another's, a group that counts once a rollout, rows of files among them, and what was discarded
/// or waits left out.
#[test]
fn sizes_of_generated_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let mut log = ParquetLog::new(folder.clone(), FooterInfo::default());
    let row = |step, number, sample, task: &str, size, reward| {
        let mut row = trained(rollout(step, (number, sample), (0, task), &[0]), reward, &[0.5]);
        let mut group = (*row.group).clone();
        group.prompt.size = size;
        row.group = Arc::new(group);
        row
    };
    let mut first = vec![row(1, 0, 0, "a", 3, 1.0), row(1, 0, 1, "a", 3, 0.0), row(1, 1, 0, "b", 3, 0.0)];
    first.push(Rollout { status: Status::Discarded(Reason::ZeroVariance), ..row(1, 2, 0, "a", 4, 1.0) });
    first.push(row(1, 3, 0, "a", 0, 1.0));
    log.seal(SealedStep { step: 1, rollouts: first, metrics: metrics(1) }).unwrap();
    log.seal(SealedStep { step: 2, rollouts: vec![row(2, 4, 0, "a", 3, 1.0)], metrics: metrics(2) }).unwrap();
    let r = report_of(&folder, SkipBad::No);
    let found = |sizes: &[Size]| -> Vec<(String, u32, u64, f64)> {
        let of = |s: &Size| (s.task.clone(), s.size, s.groups, (100.0 * s.success.unwrap()).round());
        sizes.iter().map(of).collect()
    };
    let [a3, a4, b3] = ["a", "a", "b"].map(str::to_owned);
    assert_eq!(found(&r.sizes), [(a3.clone(), 3, 2, 67.0), (a4, 4, 1, 100.0), (b3, 3, 1, 0.0)]);
    assert_eq!(found(&r.over_steps[1].sizes), [(a3, 3, 1, 100.0)]);
    let mut text = Vec::new();
    let options = Options { runs: vec![folder.path().to_owned()], skip_bad: SkipBad::No, output: Output::Text };
    analyze(&options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["a", "3", "2", "50.0%", "66.7%", "50", "100"]), "{text}");
    assert!(lines.contains(&vec!["a", "4", "1", "25.0%", "100.0%", "100", "."]), "{text}");
}

/// Catches a hole that nobody hears of, and one before the first step, where a part of a log was copied.
#[test]
fn steps_that_are_missing_are_said() {
    let (_dir, folder) = run();
    let mut log = ParquetLog::new(folder.clone(), FooterInfo::default());
    log.seal(SealedStep { step: 6, rollouts: vec![], metrics: metrics(6) }).unwrap();
    assert_eq!(report_of(&folder, SkipBad::No).files.notes, ["3 of the steps 1 to 6 are not in the log"]);
    fs::remove_file(folder.log_file(LogFile::Step(1))).unwrap();
    fs::remove_file(folder.log_file(LogFile::Step(2))).unwrap();
    assert_eq!(report_of(&folder, SkipBad::No).files.notes, Vec::<String>::new());
}

#[test]
fn lag_and_distance() {
    let (_dir, folder) = run();
    let r = report_of(&folder, SkipBad::No);
    assert_eq!((r.lag.bound, r.lag.max, r.lag.broken), (Some(1), Some(1), 0));
    close(r.lag.mean, 2.0 / 7.0);
    let [zero, one] = &r.lag.by_lag[..] else { panic!("{:?}", r.lag.by_lag) };
    assert_eq!((zero.from, zero.to, zero.tokens, zero.ess, zero.k1), (0, 0, 5, Some(1.0), Some(0.0)));
    assert_eq!((one.from, one.to, one.tokens), (1, 1, 2));
    close(one.ess, 0.9);
    // Of one token the ratio is 2, of the other 1: d = ln 2 and 0.
    close(one.k1, -LN_2 / 2.0);
    close(one.k3, (2.0 - 1.0 - LN_2) / 2.0);
    assert_eq!(r.off_policy.tokens, 7);
    close(r.off_policy.ess, 64.0 / 70.0);
    close(r.off_policy.k1, -LN_2 / 7.0);
    // Of the three tokens that have a reference and are trained.
    close(r.off_policy.reference_k1, 1.0 / 3.0);
    close(r.off_policy.reference_k3, 2.0 * ((-0.5f64).exp() - 0.5) / 3.0);
    let over_steps = r.over_steps.iter().map(|part| part.reference_k3).collect::<Vec<_>>();
    assert_eq!(over_steps, [None, r.off_policy.reference_k3]);
    // First tokens have lag 0, 0, 1; the others of two begin at 50%, those of four at 20%, 50% and 70%.
    let lags: Vec<_> = r.lag.by_position.iter().map(|row| row.lag_max).collect();
    assert_eq!(lags, [Some(1), None, Some(1), None, None, Some(0), None, None, None, None]);
    close(r.lag.by_position[0].lag_mean, 1.0 / 3.0);
}

/// With a limit of 0 the two tokens of lag 1 were left out. Catches a figure that counts them: lag, distance, advantages, tokens a
/// second; and steps without an update that are not told apart.
#[test]
fn what_safeguards_left_out_was_not_trained() {
    let (_dir, folder) = run_with("[learn.safeguard]\nmax_lag = 0\n");
    let r = report_of(&folder, SkipBad::No);
    assert_eq!((r.lag.left_out, r.lag.mean, r.lag.max, r.lag.by_lag.len()), (2, Some(0.0), Some(0), 1));
    assert_eq!((r.off_policy.tokens, r.off_policy.ess, r.off_policy.k3), (5, Some(1.0), Some(0.0)));
    assert_eq!((r.advantage.tokens, r.advantage.zero, r.time.trained_tokens_per_s), (5, Some(0.0), Some(0.5)));
    assert_eq!((r.over_steps[1].lag_mean, r.over_steps[1].ess), (Some(0.0), Some(1.0)));
    assert_eq!((r.statuses["trained"], r.time.sampled_tokens_per_s), (3, Some(1.2)), "what was sampled was sampled");

    let mut log = ParquetLog::new(folder.clone(), FooterInfo::default());
    for (step, held, paused) in [(3, true, false), (4, false, true), (5, false, false), (6, false, false)] {
        let metrics = metrics(step).map(|metrics| Metrics { skipped: step < 6, held, paused, ..metrics });
        log.seal(SealedStep { step, rollouts: vec![], metrics }).unwrap();
    }
    let text = told(&report(&[folder.path().to_owned()], SkipBad::No).unwrap(), Output::Text).unwrap();
    let without =
        "steps that left the weights as they were: 1 held their gradient for a later one; 1 paused for a low ESS; 1 skipped";
    for part in ["2 tokens (28.6%) left out by learn.safeguard.max_lag", without] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn advantages_times_and_versions() {
    let (_dir, folder) = run();
    let r = report_of(&folder, SkipBad::No);
    let a = &r.advantage;
    assert_eq!((a.tokens, a.min, a.max), (7, Some(-0.5), Some(0.5)));
    close(a.mean, 0.5 / 7.0);
    close(a.zero, 1.0 / 7.0);
    close(a.deviation, (1.125f64 / 7.0 - 0.25 / 49.0).sqrt());
    // Admitted first at 1 s, the second step ended at 11 s; 12 tokens of 5 rollouts sampled, 7 tokens trained.
    let t = &r.time;
    assert_eq!((t.wall_s, t.sampled_tokens_per_s, t.sampled_rollouts_per_s), (Some(10.0), Some(1.2), Some(0.5)));
    assert_eq!(
        (t.trained_tokens_per_s, t.queued_s, t.generating_s, t.ready_s),
        (Some(0.7), Some(1.0), Some(2.0), Some(0.5))
    );
    assert_eq!((t.training_s, t.waiting_forced_s, t.waiting_any_s), (4.0, 2.0, 1.0));
    assert_eq!((t.waiting_log_s, t.skipped_steps), (6.0, 0));
    assert_eq!((r.versions.mixed, r.versions.longest_task.as_deref()), (Some(0.2), Some("long")));
    let long = &r.versions.tasks[0];
    assert_eq!((&*long.task, long.rollouts), ("long", 3));
    close(long.mixed, 1.0 / 3.0);
    close(long.length, 8.0 / 3.0);
}

#[test]
fn prompts_and_samples() {
    let (_dir, folder) = run();
    let r = report_of(&folder, SkipBad::No);
    let solved = |list: &[crate::jobs::analyze::report::Solved]| -> Vec<_> {
        list.iter().map(|p| (p.prompt_id, p.solved, p.rollouts)).collect()
    };
    assert_eq!(solved(&r.prompts.most_solved), [(10, 1, 2), (11, 1, 2), (12, 0, 1)]);
    assert_eq!(solved(&r.prompts.least_solved), [(12, 0, 1), (10, 1, 2), (11, 1, 2)]);
    assert_eq!(r.longest.iter().map(|s| s.tokens).collect::<Vec<_>>(), [4, 3, 2]);
    assert_eq!((r.longest[0].stop, &*r.longest[0].completion), ("length", "an\\u{0}swer\\n"));
    let surprising: Vec<_> = r.most_surprising.iter().map(|s| (s.group, s.logp_mean)).collect();
    assert_eq!(surprising, [(2, Some(-5.0)), (1, Some(-2.0)), (0, Some(-1.0))]);
}

#[test]
fn a_broken_bound_is_said() {
    let (_dir, folder) = run();
    let spec = "[schedule]\nmax_lag = 1\n".to_owned();
    let mut log = ParquetLog::new(folder.clone(), FooterInfo { spec, ..FooterInfo::default() });
    let old = trained(rollout(3, (4, 0), (13, "short"), &[0, 1, 3]), 1.0, &[0.0; 3]);
    log.seal(SealedStep { step: 3, rollouts: vec![old], metrics: metrics(3) }).unwrap();
    let r = report_of(&folder, SkipBad::No);
    assert_eq!((r.lag.max, r.lag.broken), (Some(2), 2));
    assert_eq!(r.lag.by_lag[0].from, -1);
    assert_eq!(r.statuses.get("waiting"), None, "the tail's rollout was used since, or sampled again");
    let text = text_of(&folder, SkipBad::No).unwrap();
    assert!(text.contains("BROKEN: 2 tokens"), "{text}");
}

#[test]
fn many_lags_fit_into_a_few_rows() {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let mut log = ParquetLog::new(folder.clone(), FooterInfo::default());
    let versions: Vec<u64> = (0..100).collect();
    let row = trained(rollout(100, (0, 0), (1, "t"), &versions), 0.0, &[]);
    log.seal(SealedStep { step: 100, rollouts: vec![row], metrics: metrics(100) }).unwrap();
    let r = report_of(&folder, SkipBad::No);
    assert_eq!((r.lag.bound, r.lag.mean, r.lag.max), (None, Some(49.5), Some(99)));
    let rows: Vec<_> = r.lag.by_lag.iter().map(|row| (row.from, row.to, row.tokens)).collect();
    assert_eq!((rows.len(), rows[0], rows[14]), (15, (0, 6, 7), (98, 99, 2)));
    close(r.lag.by_position[0].lag_mean, 94.5);
}

fn text_of(folder: &RunFolder, skip_bad: SkipBad) -> Result<String, Error> {
    say(folder, skip_bad, Output::Text)
}

fn say(folder: &RunFolder, skip_bad: SkipBad, output: Output) -> Result<String, Error> {
    let mut out = Vec::new();
    let runs = vec![folder.path().to_owned()];
    analyze(&Options { runs, skip_bad, output }, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn a_damaged_file_is_named_and_may_be_skipped() {
    let (_dir, folder) = run();
    let path = folder.log_file(LogFile::Step(1));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = text_of(&folder, SkipBad::No).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains("step-00000001.parquet"), "{error}");
    let r = report_of(&folder, SkipBad::Yes);
    assert_eq!((r.files.read, r.files.skipped, r.first_step), (2, 1, Some(2)));
    assert_eq!(r.reward.trained, Some(0.5));
    let text = text_of(&folder, SkipBad::Yes).unwrap();
    assert!(text.contains("2 files read, 1 skipped\n  skipped: ") && text.contains("step-00000001.parquet: "), "{text}");
    assert!(report(&[folder.path().join("nothing")], SkipBad::Yes).is_err(), "what is no run is not skipped");
}

#[test]
fn text_and_json_say_the_same() {
    let (_dir, folder) = run();
    let text = text_of(&folder, SkipBad::No).unwrap();
    for line in [
        "steps 1 to 2, 3 files read, 0 skipped",
        "rollouts: 1 discarded: zero variance, 3 trained, 1 waiting",
        "reward 0.500 (success 33.3%) of trained rollouts; 0.500 (success 40.0%) of all that were scored",
        "mean 0.286, max 1, bound 1",
        "ESS 0.914, KL k1 -0.099, k3 0.044 nats a token",
        "20.0% of all; the longest task is long",
        "0/1 prompt 12: prompt 12\\n",
        "group 2 sample 0 (step 2, discarded: zero variance): 3 tokens, stop eos, logp -5.000, reward 0",
        "completion: an\\u{0}swer\\n",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&say(&folder, SkipBad::No, Output::Json).unwrap()).unwrap();
    assert_eq!(json["runs"][0]["lag"]["max"], 1);
    assert_eq!(json["runs"][0]["reward"]["trained"], 0.5);
    assert_eq!(json["runs"][0]["statuses"]["discarded: zero variance"], 1);
}

#[test]
fn a_single_file_and_an_empty_run_are_analysed_too() {
    let (_dir, folder) = run();
    let r = report(&[folder.log_file(LogFile::Step(2))], SkipBad::No).unwrap().runs.remove(0);
    assert_eq!((r.files.read, r.lag.max), (1, Some(1)));
    let dir = tempfile::tempdir().unwrap();
    let empty = RunFolder::create(dir.path().join("run")).unwrap();
    let text = text_of(&empty, SkipBad::No).unwrap();
    assert!(text.contains("no trained step, 0 files read") && text.contains("rollouts: none"), "{text}");
}

/// A step of rollouts with masks, versions and lists of all kinds; the same for the same step.
fn drawn(step: u64) -> Vec<Rollout> {
    let mut state = step;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut rollouts = Vec::new();
    for sample in 0..40 {
        let length = below(30);
        let mut version: Vec<u64> = (0..length).map(|_| below(3) as u64 + step - 2).collect();
        version.sort_unstable_by_key(|version| if sample % 3 == 0 { 0 } else { *version });
        let base = rollout(step, (step * 10 + u64::from(sample) / 4, sample), (u64::from(sample) / 4, "short"), &version);
        let logp = |below: &mut dyn FnMut(usize) -> usize| -(below(4000) as f32) / 1000.0;
        let logp_behavior: Vec<f32> = (0..length).map(|_| logp(&mut below)).collect();
        let mut row = Rollout {
            logp_current: logp_behavior.iter().map(|b| b + below(100) as f32 / 500.0 - 0.1).collect(),
            logp_behavior,
            mask: (0..length).map(|_| sample % 4 != 0 || below(3) > 0).collect(),
            ..trained(base, below(3) as f32 / 2.0, &[])
        };
        row.advantage = (0..length).map(|_| if sample % 2 == 0 { 0.25 } else { below(5) as f32 - 2.0 }).collect();
        match below(9) {
            0 => row.mask.clear(),
            1 => row.mask.truncate(length / 2),
            2 => row.logp_current.truncate(length / 3),
            3 => (row.status, row.reward) = (Status::Discarded(Reason::NoReward), None),
            4 => row.advantage.clear(),
            _ => {}
        }
        rollouts.push(row);
    }
    rollouts
}

fn drawn_run() -> (TempDir, RunFolder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let mut log =
        ParquetLog::new(folder.clone(), FooterInfo { spec: "schedule.max_lag = 1".into(), ..FooterInfo::default() });
    for step in 2..14 {
        log.seal(SealedStep { step, rollouts: drawn(step), metrics: metrics(step) }).unwrap();
    }
    (dir, folder)
}

/// Token by token, as the report's numbers are defined. Catches runs and ranges of tokens that are cut wrongly.
#[test]
fn sums_are_those_of_the_single_tokens() {
    let (_dir, folder) = drawn_run();
    let r = report_of(&folder, SkipBad::No);
    let (mut lags, mut broken, mut tenths) = (Vec::new(), 0, [const { Vec::new() }; 10]);
    let (mut ratios, mut k1, mut advantages, mut trained_tokens) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let rows: Vec<Rollout> = (2..14).flat_map(drawn).filter(|row| row.status == Status::Trained).collect();
    for row in &rows {
        let chosen = |i: &usize| row.mask.is_empty() || row.mask.get(*i) == Some(&true);
        for i in (0..row.version.len()).filter(chosen) {
            let lag = row.step as i64 - 1 - row.version[i] as i64;
            lags.push(lag as f64);
            tenths[i * 10 / row.version.len()].push(lag as f64);
            broken += u64::from(!(0..=1).contains(&lag));
            if let (Some(behavior), Some(current)) = (row.logp_behavior.get(i), row.logp_current.get(i)) {
                ratios.push(f64::from(current - behavior).exp());
                k1.push(f64::from(behavior - current));
            }
        }
        advantages.extend((0..row.advantage.len()).filter(chosen).map(|i| f64::from(row.advantage[i])));
        trained_tokens += (0..row.tokens.len()).filter(chosen).count();
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    assert_eq!((r.lag.mean, r.lag.broken), (Some(mean(&lags)), broken));
    assert_eq!(r.lag.by_lag.iter().map(|row| row.tokens).sum::<u64>(), lags.len() as u64);
    let by_position: Vec<_> = r.lag.by_position.iter().map(|row| row.lag_mean).collect();
    assert_eq!(by_position, tenths.map(|lags| Some(mean(&lags))));
    let sum: f64 = ratios.iter().sum();
    close(r.off_policy.ess, sum * sum / (ratios.len() as f64 * ratios.iter().map(|w| w * w).sum::<f64>()));
    close(r.off_policy.k1, mean(&k1));
    assert_eq!((r.off_policy.tokens, r.advantage.tokens), (ratios.len() as u64, advantages.len() as u64));
    close(r.advantage.mean, mean(&advantages));
    close(r.advantage.zero, advantages.iter().filter(|a| **a == 0.0).count() as f64 / advantages.len() as f64);
    close(r.time.trained_tokens_per_s, trained_tokens as f64 / r.time.wall_s.unwrap());
    let mixed = |row: &Rollout| row.version.iter().any(|v| *v != row.version[0]);
    let all: Vec<Rollout> = (2..14).flat_map(drawn).filter(|row| !row.tokens.is_empty()).collect();
    close(r.versions.mixed, all.iter().filter(|row| mixed(row)).count() as f64 / all.len() as f64);
}

/// To the last bit, however many threads read it and whatever files its steps are in.
#[test]
fn threads_and_files_change_nothing() {
    let (_dir, folder) = drawn_run();
    let report = |threads| {
        let run = report_beside(folder.path(), SkipBad::No, NonZeroUsize::new(threads).unwrap(), |_, ()| {}).unwrap();
        format!("{:?}", RunReport { files: Files { read: 0, ..run.files }, ..run })
    };
    let one = report(1);
    assert_eq!([report(2), report(5)], [one.as_str(); 2]);
    compact(&folder, 9, &Limits { linger: Duration::ZERO, ..Limits::default() }).unwrap();
    assert_eq!([report(1), report(3)], [one.as_str(); 2]);
}
