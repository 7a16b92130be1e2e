//! Prompts from a file: both layouts, an end inside a batch, lines that are wrong.

use crate::harness::{Ran, run, steps, workplace};
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;
use tidegate::store::{RunFolder, StepFile};
use tidegate_operators::record::{Rollout, Status};

const NUMBERS: [&str; 10] = ["31", "52", "64", "97", "85", "213", "546", "879", "4321", "9876"];

fn sorted(number: &str) -> String {
    let mut digits: Vec<char> = number.chars().collect();
    digits.sort_unstable();
    digits.into_iter().collect()
}

fn plain(number: &str) -> String {
    format!(r#"{{"prompt": "s:{number}=", "answer": "{}", "task": "sort", "from": "a test"}}"#, sorted(number))
}

fn verl(number: &str) -> String {
    let prompt = format!(r#"[{{"role": "user", "content": "s:{number}="}}]"#);
    let reward = format!(r#"{{"style": "rule", "ground_truth": "{}"}}"#, sorted(number));
    format!(r#"{{"data_source": "sort", "prompt": {prompt}, "reward_model": {reward}}}"#)
}

fn with_prompts(lines: impl Iterator<Item = String>) -> TempDir {
    let dir = workplace();
    fs::write(dir.path().join("p.jsonl"), lines.map(|line| line + "\n").collect::<String>()).unwrap();
    dir
}

/// Rewards are exact and the prompts are those of `p.jsonl`, passed once.
fn run_file(dir: &TempDir, sets: &[&str]) -> Ran {
    let all = ["task=[]", "data.file=p.jsonl", "data.epochs=1", "reward.kind=exact"];
    run(dir, &all.into_iter().chain(sets.iter().copied()).collect::<Vec<_>>())
}

fn log(dir: &TempDir) -> Vec<StepFile> {
    steps(&RunFolder::view(dir.path().join("runs/spec")).unwrap())
}

fn groups<'a>(rows: impl IntoIterator<Item = &'a Rollout>) -> BTreeSet<u64> {
    rows.into_iter().map(|row| row.group.number).collect()
}

/// Catches a layout whose answer is not found, and a reward that is not what the text says.
#[test]
fn plain_and_verl_rows_are_rewarded_alike() {
    for layout in [plain, verl] {
        let dir = with_prompts(NUMBERS.into_iter().map(layout));
        run_file(&dir, &["steps=2"]).ok();
        let log = log(&dir);
        assert_eq!(log.len(), 2);
        let rows: Vec<_> = log.iter().flat_map(|file| &file.rollouts).collect();
        for row in &rows {
            let prompt = &row.group.prompt;
            let number = NUMBERS[prompt.id as usize];
            assert_eq!((prompt.text.as_str(), prompt.task.as_str()), (format!("s:{number}=").as_str(), "sort"));
            assert_eq!(prompt.answer, sorted(number));
            let right = row.text.trim() == prompt.answer;
            assert_eq!(row.reward, Some(if right { 1.0 } else { 0.0 }), "{:?}", row.text);
        }
        assert!(rows.iter().any(|row| row.reward == Some(1.0)), "the bundled model sorts two digits now and then");
    }
}

/// Ten prompts, four groups a step. Catches a run that waits for ever for two more, and prompts that are lost or repeated.
#[test]
fn an_end_inside_a_batch_is_trained_or_discarded_as_the_spec_says() {
    for (short, trained) in [("train", [4, 4, 2].as_slice()), ("discard", &[4, 4])] {
        let dir = with_prompts(NUMBERS.into_iter().map(plain));
        let ran = run_file(&dir, &["steps=50", &format!("schedule.short_batch={short}")]).ok();
        let log = log(&dir);
        let is_trained = |row: &&Rollout| row.status == Status::Trained;
        let found: Vec<_> = log.iter().map(|file| groups(file.rollouts.iter().filter(is_trained)).len()).collect();
        assert_eq!(found, trained, "{short}");
        assert!(ran.out.contains(&format!("trained   {} steps in ", trained.len())), "{}", ran.out);
        let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
        let tail = folder.tail().unwrap().map(|tail| tidegate::store::read_step(&folder.log_file(tail)).unwrap());
        let all: Vec<_> = log.iter().chain(&tail).flat_map(|file| &file.rollouts).collect();
        let ids: Vec<_> = all.iter().map(|row| (row.group.prompt.id, row.sample)).collect();
        assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (40, 40), "each prompt once");
        let ended = all.iter().filter(|row| row.status.to_string() == "discarded: data ended").count();
        assert_eq!(ended, if short == "train" { 0 } else { 8 });
        assert_eq!(ran.out.contains("          8 rollouts discarded: data ended\n"), short == "discard", "{}", ran.out);
    }
}

/// Catches a file, a line or a column that is not named.
#[test]
fn wrong_files_and_lines_are_named() {
    let dir = with_prompts(NUMBERS.into_iter().map(plain));
    run_file(&dir, &["data.file=none.jsonl"]).refused(1, &["none.jsonl: No such file"]);
    run_file(&dir, &["data.file=spec.toml"]).refused(2, &["data.file = spec.toml: ", ".jsonl", ".parquet"]);
    for (line, says) in [
        ("{\"prompt\": ", "p.jsonl: line 3: not JSON at column "),
        ("[1]", "p.jsonl: line 3: found "),
        ("{\"text\": \"s:1=\"}", "p.jsonl: column prompt: line 3: missing; the row has text: set data.prompt"),
        ("{\"prompt\": 7}", "p.jsonl: column prompt: line 3: found the number 7"),
    ] {
        let dir = with_prompts([plain("31"), plain("52"), line.to_owned(), plain("64")].into_iter());
        run_file(&dir, &[]).refused(1, &[says]);
        assert!(!dir.path().join("runs").exists());
    }
    let dir = with_prompts(std::iter::empty());
    run_file(&dir, &[]).refused(1, &["p.jsonl: ", "at least one"]);
}

/// With a reward that can judge no prompt every group is discarded, and a run would sample for ever without a step.
#[test]
fn prompts_that_no_reward_can_judge_are_refused() {
    let dir = with_prompts(NUMBERS.into_iter().map(plain));
    let ran = run_file(&dir, &["data.epochs=0", "reward.kind=task"]);
    ran.refused(
        2,
        &["reward = 10 prompts: can judge none of them: task \"sort\" is not a generated one", "exact, numeric or regex"],
    );
    assert!(!dir.path().join("runs").exists());
    let one = |number: &str| if number == "52" { plain(number) } else { plain(number).replace("\"answer\"", "\"other\"") };
    let dir = with_prompts(NUMBERS.into_iter().map(one));
    let ran = run_file(&dir, &["steps=1"]).ok();
    assert!(ran.out.contains("          36 rollouts discarded: no reward\n"), "{}", ran.out);
}
