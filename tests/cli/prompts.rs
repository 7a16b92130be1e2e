//! Prompts from a file: both layouts, an end inside a batch, lines that are wrong.

use crate::harness::{Ran, run, steps, workplace};
use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
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
        ("{\"prompt\": 7}", "p.jsonl: column prompt: line 3: found the number 7, expected text or a list of messages"),
        ("{\"prompt\": null}", "p.jsonl: column prompt: line 3: found null, expected text"),
        ("{\"prompt\": {\"text\": \"s:1=\"}}", "p.jsonl: column prompt: line 3: found an object with text, expected text"),
        ("{\"prompt\": []}", "p.jsonl: column prompt: line 3: the list of messages is empty"),
        (
            "{\"prompt\": [{\"role\": \"user\"}]}",
            "p.jsonl: column prompt: line 3: message 1: found an object with role without content",
        ),
        (
            "{\"prompt\": \"s:1=\", \"answer\": [1]}",
            "p.jsonl: column answer: line 3: found a list of 1, expected text or a number",
        ),
        (
            "{\"prompt\": \"s:1=\", \"task\": 7}",
            "p.jsonl: column task: line 3: found the number 7, expected the task's name",
        ),
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

fn bad_prompts(ran: &Ran) -> u64 {
    let line = ran.out.lines().find(|line| line.ends_with(" rollouts discarded: bad prompt"));
    line.map_or(0, |line| line.split_whitespace().next().unwrap().parse().unwrap())
}

/// Two prompts of `s:4321=` have 7 tokens, one in the middle is `s:213=`, the rest have 5. Catches a long prompt that ends the
/// run unasked, that is lost without a count, or that takes another's place.
#[test]
fn prompts_that_are_too_long_are_skipped_cut_or_refused_as_the_spec_says() {
    let dir = with_prompts(["31", "4321", "52", "213", "64", "9876", "97", "85"].into_iter().map(plain));
    let sets = ["steps=2", "data.order=file", "data.max_prompt_tokens=6", "schedule.order=admission"];
    let ran = run_file(&dir, &sets).ok();
    assert_eq!(bad_prompts(&ran), 8, "{}", ran.out);
    let said: Vec<_> = ran.err.lines().filter(|line| line.starts_with("note      skipped: ")).collect();
    let right = "note      skipped: prompt 1 has 7 tokens, at most 6 are taken (data.max_prompt_tokens); others may follow, and are counted";
    assert_eq!(said, [right]);
    let log = log(&dir);
    let rows = || log.iter().flat_map(|file| &file.rollouts);
    let why: BTreeSet<String> = rows().map(|row| row.status.to_string()).filter(|status| status != "trained").collect();
    assert!(
        why.contains("discarded: bad prompt: prompt 1 has 7 tokens, at most 6 are taken (data.max_prompt_tokens)"),
        "{why:?}"
    );
    let trained = rows().filter(|row| row.status == Status::Trained);
    let trained: BTreeSet<(u64, u64)> = trained.map(|row| (row.group.number, row.group.prompt.id)).collect();
    assert_eq!(trained, [0, 2, 3, 4, 6, 7].map(|id| (id, id)).into(), "numbers do not shift");

    let dir = with_prompts(NUMBERS.into_iter().map(plain));
    let ran = run_file(&dir, &["steps=1", "data.too_long=cut_left", "data.max_prompt_tokens=4"]).ok();
    assert_eq!(bad_prompts(&ran), 0);
    assert!(ran.err.contains(" has more than 4 tokens and was cut on the left; so may others\n"), "{}", ran.err);
    for row in self::log(&dir).iter().flat_map(|file| &file.rollouts) {
        let prompt = &row.group.prompt;
        assert_eq!((prompt.tokens.len(), prompt.text.starts_with("s:")), (4, true), "the text is whole");
    }

    let ran = run_file(&dir, &["data.too_long=refuse", "data.max_prompt_tokens=6", "data.order=file"]);
    ran.refused(1, &["data.too_long = refuse: prompt 8 has 7 tokens, at most 6 are taken"]);
    let ran = run_file(&dir, &["data.max_prompt_tokens=256"]);
    ran.refused(
        2,
        &["data.max_prompt_tokens = 256: the model's longest sequence is 256 tokens, completion included: at most 255"],
    );
}

/// Catches characters that the tokenizer turns into `<unk>` without a word.
#[test]
fn an_unknown_character_is_said_once() {
    let lines = ["31", "52", "64", "97"].map(|number| plain(number).replace("s:", "s?!"));
    let ran = run_file(&with_prompts(lines.into_iter()), &["steps=1", "data.order=file"]).ok();
    let said: Vec<_> = ran.err.lines().filter(|line| line.contains("does not know")).collect();
    assert_eq!(said, ["note      prompt 0 has '?', which the tokenizer does not know; so may others"]);
}

/// A Parquet file of prompts: text, and bytes that are no text (hexadecimal digits were sampled from instead).
#[test]
fn parquet_prompts_are_text() {
    let dir = workplace();
    let rows = || NUMBERS.iter().map(|number| format!("s:{number}="));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(rows()));
    let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(rows()));
    let answer: ArrayRef = Arc::new(StringArray::from_iter_values(NUMBERS.iter().map(|number| sorted(number))));
    for (prompt, says) in [(text, None), (bytes, Some("p.parquet: column prompt: it holds bytes, expected text"))] {
        let batch = RecordBatch::try_from_iter([("prompt", prompt), ("answer", answer.clone())]).unwrap();
        let file = fs::File::create(dir.path().join("p.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let ran = run_file(&dir, &["steps=1", "data.file=p.parquet"]);
        match says {
            Some(says) => ran.refused(1, &[says]),
            None => drop(ran.ok()),
        }
    }
}
