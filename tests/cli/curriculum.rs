//! Prompts drawn by success, end to end: what is drawn follows the rates, the log says what was, and a run that is stopped or killed
//! goes on with the rates of one that was not.

use crate::harness::{Ran, command, folder, place, steps, tidegate};
use crate::running::Running;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use tempfile::TempDir;
use tidegate::kernel::curriculum::Curriculum;
use tidegate::store::layout::LogFile;
use tidegate::store::read_step;
use tidegate_operators::record::{Rollout, Status, now_ns};
use tidegate_operators::success::{Outcome, Recent};

const WINDOW: usize = 3;

const SPEC: &str = r#"
steps = 40
[model]
engine = "toy"
[[task]]
kind = "sorting"
[curriculum]
kind = "success"
window = 3
[batch]
batch_size = 12
group_size = 4
[schedule]
max_lag = 2
[reward]
kind = "command"
command = ["python3", "-B", "reward.py"]
[generate]
slots = 24
max_tokens = 8
[checkpoint]
every_steps = 10
every_minutes = 0.0
[eval]
prompts = 0
"#;

/// The policy is without say: `reward` is Python, of the `size` of a prompt, its `group` and `sample`.
fn workplace(reward: &str) -> TempDir {
    let dir = place(SPEC);
    let body = format!(
        "import json, sys\nfor line in sys.stdin:\n    r = json.loads(line)\n    size, group, sample = len(r['prompt']) - 3, \
         r['group'], r['sample']\n    print(json.dumps({{'id': r['id'], 'reward': int({reward})}}), flush=True)\n"
    );
    fs::write(dir.path().join("reward.py"), body).unwrap();
    dir
}

fn call(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), args)
}

fn rows(dir: &TempDir) -> Vec<Rollout> {
    steps(&folder(dir)).into_iter().flat_map(|file| file.rollouts).collect()
}

/// One row of each group, by number.
fn groups(rows: &[Rollout]) -> BTreeMap<u64, &Rollout> {
    rows.iter().map(|row| (row.group.number, row)).collect()
}

/// Sizes 4 and 5 are always solved, 7 and 8 never, 6 by half of each group. Catches rates that do not reach the draws, bins that are
/// mixed up, a weight that is upside down; a log that does not say what was known; and a replay that draws for itself.
#[test]
fn what_is_half_solved_is_drawn_most() {
    let dir = workplace("size <= 5 or size == 6 and sample % 2");
    call(&dir, &["run", "spec.toml"]).ok();
    let rows = rows(&dir);
    let groups = groups(&rows);
    let late: Vec<_> = groups.values().skip(20).collect();
    let of_six = late.iter().filter(|row| row.group.prompt.size == 6).count() as f64;
    // A fifth of what is explored; else by weights of 1, and of 0.135 four times.
    let expected = 0.1 * 0.2 + 0.9 / (1.0 + 4.0 * Curriculum::default().weight(0.0));
    let (count, share) = (late.len() as f64, of_six / late.len() as f64);
    let deviation = (expected * (1.0 - expected) / count).sqrt();
    assert!(count > 80.0 && (share - expected).abs() < 4.0 * deviation, "{share}, not {expected}");
    assert!(late.iter().map(|row| row.group.prompt.size).collect::<BTreeSet<_>>().len() > 2, "the others still come");
    for row in &rows {
        let prompt = &row.group.prompt;
        assert_eq!(prompt.text.len() as u32, prompt.size + 3, "s:digits=");
        let known = match prompt.size {
            4 | 5 => 1.0,
            6 => 0.5,
            _ => 0.0,
        };
        assert!(prompt.drawn_success.is_none_or(|drawn| drawn == known), "{prompt:?}");
    }
    assert!(groups.values().skip(40).all(|row| row.group.prompt.drawn_success.is_some()), "all was tried by then");
    let last = steps(&folder(&dir)).pop().unwrap();
    let drawn: BTreeMap<u64, f32> =
        last.rollouts.iter().map(|row| (row.group.number, row.group.prompt.drawn_success.unwrap())).collect();
    let mean = drawn.values().map(|drawn| f64::from(*drawn)).sum::<f64>() / drawn.len() as f64;
    assert_eq!(last.footer.metrics.unwrap().drawn_success, mean);
    assert!(call(&dir, &["replay", "runs/spec"]).ok().out.contains("bit for bit"));
}

/// By size, the rate over the last groups by number, from rows alone.
fn by_hand(rows: &[Rollout]) -> BTreeMap<u32, f32> {
    let mut sizes: BTreeMap<u32, BTreeMap<u64, (u32, u32)>> = BTreeMap::new();
    for row in rows {
        let group = sizes.entry(row.group.prompt.size).or_default().entry(row.group.number).or_default();
        group.0 += u32::from(row.reward == Some(1.0));
        group.1 += 1;
    }
    let rate = |groups: BTreeMap<u64, (u32, u32)>| {
        let last = groups.values().rev().take(WINDOW).fold((0, 0), |sum, group| (sum.0 + group.0, sum.1 + group.1));
        f64::from(last.0) as f32 / f64::from(last.1) as f32
    };
    sizes.into_iter().map(|(size, groups)| (size, rate(groups))).collect()
}

/// What was admitted since, and before anything of it had ended, was drawn by what is known from before.
fn assert_drawn_by(known: &BTreeMap<u32, f32>, rows: &[Rollout], since: i64) {
    let new: Vec<&Rollout> = rows.iter().filter(|row| row.group.admitted_ns > since).collect();
    let first = new.iter().map(|row| row.finished_ns).min().unwrap();
    let early: Vec<_> = new.iter().filter(|row| row.group.admitted_ns < first).map(|row| &row.group.prompt).collect();
    assert!(!early.is_empty());
    let near = |prompt: u32, drawn: Option<f32>| match (known.get(&prompt), drawn) {
        (Some(known), Some(drawn)) => (known - drawn).abs() < 1e-6,
        (known, drawn) => known.is_none() && drawn.is_none(),
    };
    assert!(early.iter().all(|prompt| near(prompt.size, prompt.drawn_success)), "{known:?}: {early:?}");
}

/// Rates that differ from group to group, so that it matters which of them count.
const MIXED: &str = "(group * 5 + sample * 3) % 7 < 8 - size";

/// Killed after step 13, behind a checkpoint. Catches rates that begin anew, that are those of the checkpoint, or that count what the
/// kill took away.
#[test]
fn a_killed_run_goes_on_with_the_rates_of_its_log() {
    let dir = workplace(MIXED);
    call(&dir, &["run", "spec.toml"]).ok();
    let whole = folder(&dir);
    for step in 14..=40 {
        fs::remove_file(whole.log_file(LogFile::Step(step))).unwrap();
    }
    for step in whole.checkpointed_steps().unwrap().into_iter().filter(|step| *step > 13) {
        fs::remove_dir_all(whole.checkpoint(step)).unwrap();
    }
    fs::remove_file(whole.metrics()).unwrap();
    let known = by_hand(&rows(&dir));
    assert!(known.len() == 5 && known.values().any(|rate| *rate > 0.0), "{known:?}");
    let since = now_ns();
    let refused = call(&dir, &["resume", "runs/spec", "--set", "curriculum.kind=off"]);
    refused.refused(2, &["curriculum.kind = \"off\": the run has \"success\" and cannot change it in its middle"]);
    let ran = call(&dir, &["resume", "runs/spec", "--set", "curriculum.target=0.4"]).ok();
    assert!(ran.err.contains("changed   curriculum.target: 0.4 now, 0.5 before"), "{}", ran.err);
    assert_drawn_by(&known, &rows(&dir), since);
    assert!(call(&dir, &["replay", "runs/spec"]).ok().out.contains("bit for bit"));
    // Of the whole: nothing of what was sampled in vain counts.
    let all = rows(&dir);
    let mut recent = Recent::new(WINDOW);
    for (number, row) in groups(&all) {
        let rewards = all.iter().filter(|other| other.group.number == number).map(|row| row.reward);
        recent.add(row.group.prompt.size.into(), Outcome::of(number, rewards).unwrap());
    }
    let rates: Vec<f32> = recent.rates().map(|(_, rate)| rate.share() as f32).collect();
    assert_eq!(rates, by_hand(&all).into_values().collect::<Vec<_>>());
}

/// Stopped by a signal: groups that wait have ended, and count.
#[test]
fn a_stopped_run_goes_on_with_what_waits() {
    let dir = workplace(MIXED);
    let args = ["run", "spec.toml", "--set", "steps=1000000"];
    let running = Running::at(dir, &["env", "--default-signal=HUP,INT,TERM"], &args);
    running.until("rollouts/step-00000012.parquet");
    running.signal("INT");
    let (ran, dir) = running.end();
    assert_eq!(ran.code, 130, "{}", ran.err);
    let folder = folder(&dir);
    let done = folder.sealed_steps().unwrap().len();
    let mut before = rows(&dir);
    if let Some(tail) = folder.tail().unwrap() {
        before.extend(read_step(&folder.log_file(tail)).unwrap().rollouts);
    }
    // Groups that were cut off in the middle are not there; all that is there is whole.
    let known = by_hand(&before);
    let since = now_ns();
    let steps = format!("steps={}", done + 8);
    let out = command(dir.path(), &["resume", "runs/spec", "--set", &steps]).output().unwrap();
    let ran = Ran::from(out).ok();
    assert!(ran.err.contains(&format!("after step {done} of")), "{}", ran.err);
    let all = rows(&dir);
    assert!(all.iter().filter(|row| row.status == Status::Trained).count() == (done + 8) * 12);
    assert_drawn_by(&known, &all, since);
}

/// Rows of 3 to 14 letters: a third of them is always solved, a third never, a third by half of each group. Catches a row that is
/// left out of the first pass or comes twice in it, one that is read in another's place and keeps its number or epoch, and draws that
/// do not follow the rates of rows.
#[test]
fn rows_of_a_file_are_drawn_by_their_own_success() {
    let dir = workplace("size % 3 == 0 or size % 3 == 1 and sample % 2");
    let lines: String = (3..15).map(|letters| format!("{{\"prompt\": \"{}\"}}\n", "a".repeat(letters))).collect();
    fs::write(dir.path().join("rows.jsonl"), lines).unwrap();
    call(&dir, &["run", "spec.toml", "--set", "data.file='rows.jsonl'"]).ok();
    let rows = rows(&dir);
    let groups = groups(&rows);
    let prompts: Vec<_> = groups.iter().map(|(number, row)| (*number, &row.group.prompt)).collect();
    assert!(prompts.iter().all(|(number, prompt)| u64::from(prompt.epoch) == number / 12));
    assert!(prompts.iter().all(|(_, prompt)| prompt.text.len() as u64 == prompt.id + 3 && prompt.size == 0));
    let first: BTreeSet<u64> = prompts.iter().filter(|(number, _)| *number < 12).map(|(_, prompt)| prompt.id).collect();
    assert_eq!(first.len(), 12, "every row once");
    let late: Vec<_> = prompts.iter().filter(|(number, _)| *number >= 24).collect();
    let half = late.iter().filter(|(_, prompt)| prompt.id % 3 == 1).count() as f64 / late.len() as f64;
    let expected = 0.1 / 3.0 + 0.9 * 4.0 / (4.0 + 8.0 * Curriculum::default().weight(0.0));
    let deviation = (expected * (1.0 - expected) / late.len() as f64).sqrt();
    assert!((half - expected).abs() < 4.0 * deviation, "{half}, not {expected}");
    let ran = call(&dir, &["resume", "runs/spec", "--set", "steps=44"]).ok();
    assert!(ran.err.contains("after step 40 of 44"), "{}", ran.err);
    assert!(call(&dir, &["replay", "runs/spec"]).ok().out.contains("bit for bit"));
}
