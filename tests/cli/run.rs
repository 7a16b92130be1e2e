//! `tidegate run`: what it leaves behind, and the shapes that a run can have.

use crate::harness::{MAX_LAG, STEPS, files, max_lag, recorded, recorded_path, run, steps, tidegate, workplace};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use tidegate::store::{RunFolder, read_json_rows};
use tidegate_operators::record::Status;

/// Catches a step that is not sealed, a temporary file that stays, anything written under another name than the layout's.
#[test]
fn a_run_leaves_what_the_layout_says() {
    let mut right: Vec<String> = (1..=STEPS).map(|step| format!("rollouts/step-{step:08}.parquet")).collect();
    let model = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let checkpoint = model.into_iter().chain(["optimizer.safetensors", "state.json"]);
    right.extend(checkpoint.map(|name| format!("checkpoints/step-{STEPS:08}/{name}")));
    let names = ["events.out.tfevents.tidegate", "metrics.parquet", "spec.toml", "summary.json"];
    right.extend(names.map(str::to_owned));
    let found = files(recorded().folder.path());
    // Rollouts that wait at the end may or may not be there, depending on timing.
    let found: Vec<_> = found.into_iter().filter(|name| !name.starts_with("rollouts/waiting-")).collect();
    right.sort();
    assert_eq!(found, right);
}

/// Catches a batch that is short or long, a row of another step, a trained row without its log-probabilities.
#[test]
fn each_step_trained_one_batch() {
    for (file, step) in steps(&recorded().folder).iter().zip(1..) {
        assert_eq!(file.footer.step, step);
        let trained: Vec<_> = file.rollouts.iter().filter(|row| row.status == Status::Trained).collect();
        assert_eq!(trained.len(), 16, "step {step}");
        for row in trained {
            assert_eq!((row.step, row.logp_current.len()), (step, row.tokens.len()));
        }
    }
}

/// Catches a metrics file that lacks the last step, repeats one, or says other numbers than the footers.
#[test]
fn metrics_have_one_row_a_step() {
    let folder = &recorded().folder;
    let rows: Vec<_> = read_json_rows(&folder.metrics()).unwrap().map(|row| row.unwrap()).collect();
    let found: Vec<_> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(found, (1..=STEPS).collect::<Vec<_>>());
    for (row, file) in rows.iter().zip(steps(folder)) {
        let metrics = file.footer.metrics.unwrap();
        assert_eq!((row["loss"].as_f64(), row["tokens"].as_u64()), (Some(metrics.loss), Some(metrics.tokens)));
    }
}

/// Catches a default that the run used and did not spell out, and an output that another run would claim.
#[test]
fn the_spec_beside_a_run_is_the_whole_of_it() {
    let folder = &recorded().folder;
    let text = fs::read_to_string(folder.spec()).unwrap();
    let printed = tidegate(folder.path(), &["run", "spec.toml", "--print-spec"]).ok();
    assert_eq!(printed.out, text);
    assert_eq!(printed.err, "");
    assert!(text.contains("warmup_steps = 2\n") && text.contains("mask_truncated = false\n"), "{text}");
    assert!(text.contains(&format!("output = {:?}\n", folder.path())), "{text}");
    assert!(steps(folder).iter().all(|file| file.footer.info.spec == text));
}

/// Catches a checkpoint of the first weights, or of any but the last step's: each tensor hashes to what that step recorded.
#[test]
fn the_checkpoint_holds_the_last_steps_weights() {
    let folder = &recorded().folder;
    let bytes = fs::read(folder.checkpoint(STEPS).join("model.safetensors")).unwrap();
    let hash = |data: &[u8]| blake3::hash(data).to_hex()[..16].to_owned();
    let saved: BTreeMap<_, _> =
        SafeTensors::deserialize(&bytes).unwrap().iter().map(|(name, t)| (name.to_owned(), hash(t.data()))).collect();
    let last = steps(folder).pop().unwrap().footer.metrics.unwrap();
    assert_eq!(saved, last.weights.into_iter().collect());
}

/// Catches a checkpoint that is no model folder.
#[test]
fn a_run_goes_on_from_a_checkpoint_as_its_model() {
    let dir = workplace();
    let model = format!("model.path={}", recorded().folder.checkpoint(STEPS).display());
    let ran = run(&dir, &[&model, "steps=1"]).ok();
    assert!(ran.out.contains("trained   1 steps in "), "{}", ran.out);
}

/// Catches a token that is trained above the bound, a bound that is not used, and a summary that says another lag.
#[test]
fn a_saturated_run_reaches_the_bound_and_never_passes_it() {
    assert_eq!(max_lag(&recorded().folder), MAX_LAG);
    let summary = &recorded().summary;
    assert_eq!((summary["lag_max"].as_i64(), summary["lag_bound"].as_i64()), (Some(MAX_LAG), Some(MAX_LAG)));
}

/// Catches a summary whose numbers are not the log's, and talk on stdout.
#[test]
fn the_summary_counts_what_was_sealed() {
    let summary = &recorded().summary;
    let rows = steps(&recorded().folder);
    let trained = rows.iter().flat_map(|file| &file.rollouts).filter(|row| row.status == Status::Trained);
    let tokens: usize = trained.map(|row| row.mask.iter().filter(|mask| **mask).count()).sum();
    assert_eq!(summary["run"], recorded_path());
    assert_eq!((summary["steps"].as_u64(), summary["trained_rollouts"].as_u64()), (Some(STEPS), Some(96)));
    assert_eq!(summary["trained_tokens"].as_u64(), Some(tokens as u64));
    let ess = summary["ess_mean"].as_f64().unwrap();
    assert!((0.9..=1.0).contains(&ess), "{ess}");
    for when in ["before", "after"] {
        for mode in ["sampled", "greedy"] {
            let tasks = summary[when][mode]["tasks"].as_object().unwrap();
            assert_eq!(tasks.values().map(|tally| tally["prompts"].as_u64().unwrap()).sum::<u64>(), 24);
        }
    }
}

/// Catches a recorded run that is written over, and a second one that lands inside the first (`runs/a/` is `runs/a`).
#[test]
fn a_taken_output_gets_a_number() {
    let dir = workplace();
    for output in ["a", "a", "a/", "./a/", "."] {
        let ran = run(&dir, &["steps=1", &format!("output={output}")]).ok();
        assert!(ran.out.contains("\nlag       mean 0.00, max 0, bound 1 steps\n"), "{}", ran.out);
        assert!(ran.err.contains("\nstep    1/1  reward "), "{}", ran.err);
    }
    for name in ["a", "a-2", "a-3", "a-4"] {
        let spec = fs::read_to_string(RunFolder::view(dir.path().join(name)).unwrap().spec()).unwrap();
        let said = spec.parse::<toml::Table>().unwrap()["output"].as_str().unwrap().to_owned();
        assert!(Path::new(&said).ends_with(name), "{said} is not {name}");
    }
    assert!(!dir.path().join("a/-2").exists());
    let mut beside = dir.path().canonicalize().unwrap().into_os_string();
    beside.push("-2");
    assert!(RunFolder::view(&beside).is_ok());
    fs::remove_dir_all(beside).unwrap();
}

/// Catches a panic where whoever reads has read enough, in a print of the whole spec and in the summary of a run; and a
/// run that dies because nobody hears its talk.
#[test]
fn a_reader_that_leaves_ends_no_run() {
    let dir = workplace();
    for args in [&["run", "spec.toml", "--print-spec"][..], &["run", "spec.toml", "--set", "steps=2"]] {
        let mut command = crate::harness::command(dir.path(), args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
    assert_eq!(RunFolder::view(dir.path().join("runs/spec")).unwrap().sealed_steps().unwrap(), [1, 2]);
}

fn folder_of(dir: &Path) -> RunFolder {
    RunFolder::view(dir.join("runs/spec")).unwrap()
}

/// Catches a worker with both roles that starves one of them, and generators other than the first that get no groups.
#[test]
fn one_worker_and_three() {
    let dir = workplace();
    for (workers, generators) in [("[0]", vec![0]), ("[0,2]", vec![0, 2])] {
        let output = format!("output=runs/{}", generators.len());
        let learner = if generators.len() == 1 { "workers.learners=[0]" } else { "workers.learners=[1]" };
        run(&dir, &["steps=4", &output, &format!("workers.generators={workers}"), learner]).ok();
        let folder = RunFolder::view(dir.path().join(&output[7..])).unwrap();
        let steps = steps(&folder);
        assert_eq!(steps.len(), 4);
        let mut found: Vec<_> = steps.iter().flat_map(|file| &file.rollouts).map(|row| row.worker).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, generators);
        assert!(max_lag(&folder) <= MAX_LAG);
    }
}

/// Catches values that are not recorded, or that the replay takes from elsewhere than the log.
#[test]
fn a_run_with_a_critic_replays() {
    let dir = workplace();
    run(&dir, &["steps=3", "learn.value_coef=0.1", "learn.lr=1e-3"]).ok();
    let steps = steps(&folder_of(dir.path()));
    let trained = |at: usize| steps[at].rollouts.iter().filter(|row| row.status == Status::Trained);
    assert!(steps.iter().all(|file| file.rollouts.iter().all(|row| row.value.len() == row.tokens.len())));
    assert!(trained(0).flat_map(|row| &row.value).all(|value| *value == 0.0), "a new value head starts at 0");
    assert!(trained(2).flat_map(|row| &row.value).any(|value| *value != 0.0), "and learns");
    let ran = tidegate(dir.path(), &["replay", "runs/spec"]).ok();
    assert!(ran.out.contains("bit for bit"), "{}", ran.out);
}

/// Catches a learner that does not divide its logits by the temperature of the sampling, or numbers that differ between the
/// two halves: at lag 0 both have the same weights.
#[test]
fn on_policy_the_two_halves_agree_at_any_temperature() {
    let dir = workplace();
    run(&dir, &["steps=3", "generate.temperature=0.7", "schedule.max_lag=0"]).ok();
    let folder = folder_of(dir.path());
    assert_eq!(max_lag(&folder), 0);
    for file in steps(&folder) {
        let metrics = file.footer.metrics.unwrap();
        assert!(metrics.logp_gap <= 1e-5 && metrics.ess >= 0.9999, "{metrics:?}");
        assert!(metrics.tokens > 0 && !metrics.skipped);
        let gap = |row: &tidegate_operators::record::Rollout| {
            row.logp_current.iter().zip(&row.logp_behavior).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
        };
        let largest = file.rollouts.iter().filter(|row| row.status == Status::Trained).map(gap).fold(0.0, f64::max);
        assert!(largest <= 1e-3, "{largest}");
    }
}
