//! Whatever reads a file of others, against damaged ones: no panic, no end without an end, memory in proportion to the file.
//!
//! Damage is drawn by proptest, so that what fails is made small before it is shown. A few hundred files a reader belong to
//! every run of the tests; `TIDEGATE_FUZZ_SECONDS=600` (`make fuzz`) goes on for that long with each, from another seed each time.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;
use peak_alloc::PeakAlloc;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tidegate::engine::torch::layout::ValueHead;
use tidegate::engine::torch::policy::Policy;
use tidegate::jobs::data::Data;
use tidegate::spec::Spec;
use tidegate::store::{FooterInfo, ParquetLog, RunFolder, read_step};
use tidegate::tasks::outside::protocol;
use tidegate::tasks::prompts::Use;
use tidegate::tasks::reward::Reward;
use tidegate::tasks::spec::{DataSpec, RewardSpec};
use tidegate::tasks::template::{Chat, ChatTemplate, Next, Ordered};
use tidegate_operators::record::{Group, Metrics, Prompt, Rollout, SealedStep, Status};
use tidegate_operators::seal::Log;

/// Counts what Rust allocates in this program.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Files of a reader in an ordinary run of the tests.
const CASES: u32 = 200;

/// Most memory of one reading: so much, and so much for each byte of the file.
const MEMORY_BYTES: usize = 64 << 20;
const MEMORY_PER_BYTE: usize = 64;

/// Longest reading: many times the slowest that is right, on a machine that does other things too.
const TIME: Duration = Duration::from_secs(30);

/// What is done to a file. A place is a share of the file's length.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Put(Index, Vec<u8>),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    Cut(Index),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match self {
            Damage::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Damage::Put(at, new) => {
                let at = at.index(len);
                let end = len.min(at + new.len());
                bytes[at..end].copy_from_slice(&new[..end - at]);
            }
            Damage::Insert(at, new) => drop(bytes.splice(at.index(len)..at.index(len), new.iter().copied())),
            Damage::Remove(at, count) => drop(bytes.drain(at.index(len)..len.min(at.index(len) + count))),
            Damage::Repeat(at, count, times) => {
                let part = bytes[at.index(len)..len.min(at.index(len) + count)].repeat(*times);
                drop(bytes.splice(at.index(len)..at.index(len), part));
            }
            Damage::Cut(at) => bytes.truncate(at.index(len)),
        }
    }
}

/// Words that readers look for, numbers at the edge of their types, and any bytes.
fn piece(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let numbers = [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];
    let number =
        (select(numbers.to_vec()), select(vec![1usize, 4, 8])).prop_map(|(n, width)| n.to_le_bytes()[..width].to_vec());
    let varint = select(vec![vec![0xff, 0xff, 0xff, 0xff, 0x0f], vec![0xff; 9], vec![0x80, 0x80, 0x01], vec![0x00]]);
    prop_oneof![select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()), number, varint, vec(any::<u8>(), 1..6),]
}

fn damage(words: &'static [&'static str]) -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        4 => (at(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        4 => (at(), piece(words)).prop_map(|(at, bytes)| Damage::Put(at, bytes)),
        4 => (at(), piece(words)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        2 => (at(), 1..40usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (at(), 1..40usize, 1..50usize).prop_map(|(at, count, times)| Damage::Repeat(at, count, times)),
        1 => at().prop_map(Damage::Cut),
    ]
}

/// One reader at a time: the memory that is counted is all of the program's.
static ONE: Mutex<()> = Mutex::new(());

/// Damages files of `corpus` and reads them; `read` says whether a file was taken. What is never taken is not looked into far.
fn fuzz(name: &str, corpus: Vec<Vec<u8>>, words: &'static [&'static str], read: impl Fn(&[u8]) -> bool) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = std::env::var("TIDEGATE_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    // What a reader catches by itself need not be printed; what it does not is in proptest's report.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let last = std::env::temp_dir().join(format!("tidegate-fuzz-{}", name.replace(' ', "-")));
    let before = Instant::now();
    let (mut cases, mut taken, mut slowest, mut most) = (0u64, 0u64, Duration::ZERO, 0);
    let files = (any::<Index>(), vec(damage(words), 0..4));
    let mut failure = None;
    while failure.is_none() {
        let rng = match seconds {
            None => TestRng::deterministic_rng(RngAlgorithm::ChaCha),
            Some(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().to_le_bytes();
                TestRng::from_seed(RngAlgorithm::ChaCha, &[now, now].concat())
            }
        };
        let config = Config { cases: CASES, failure_persistence: None, max_shrink_time: 60_000, ..Config::default() };
        let numbers = std::cell::RefCell::new((&mut cases, &mut taken, &mut slowest, &mut most));
        let result = TestRunner::new_with_rng(config, rng).run(&files, |(which, damages)| {
            let mut bytes = corpus[which.index(corpus.len())].clone();
            damages.iter().for_each(|damage| damage.apply(&mut bytes));
            if seconds.is_some() {
                // What ends the whole program (a stack that is too small) leaves this behind.
                fs::write(&last, &bytes).unwrap();
            }
            MEMORY.reset_peak_usage();
            let (memory, started) = (MEMORY.current_usage(), Instant::now());
            let accepted = read(&bytes);
            let (time, memory) = (started.elapsed(), MEMORY.peak_usage().saturating_sub(memory));
            let mut numbers = numbers.borrow_mut();
            *numbers.0 += 1;
            *numbers.1 += u64::from(accepted);
            *numbers.2 = time.max(*numbers.2);
            *numbers.3 = memory.max(*numbers.3);
            let allowed = MEMORY_BYTES + MEMORY_PER_BYTE * bytes.len();
            prop_assert!(memory <= allowed, "{} bytes of memory for a file of {}", memory, bytes.len());
            prop_assert!(time <= TIME, "{:?} for a file of {} bytes", time, bytes.len());
            Ok::<(), TestCaseError>(())
        });
        failure = result.err().map(|failure| failure.to_string());
        if seconds.is_none_or(|seconds| before.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
    }
    std::panic::set_hook(hook);
    let seconds = before.elapsed().as_secs_f64();
    println!("{name}: {cases} files ({taken} taken) in {seconds:.0} s, at most {slowest:?} and {most} bytes of memory each");
    if let Some(failure) = failure {
        panic!("{name}: {failure}");
    }
}

fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn specifications() {
    let words =
        &["[[task]]\n", "[data]\n", "[learn]\n", "learn.lr=1\n", "= 1e400\n", "\"\"\"", "inf", "{", "}", "[", "]", ".", "#"];
    let demo = bytes(&bundled("data/demo.toml"));
    let file = "[model]\npath='m'\n[data]\nfile='a.jsonl'\n[reward]\nkind='numeric'\ntolerance=0.1\n[learn]\nloss={ppo={clip_low=0.2,clip_high=0.3}}\n";
    let set = ["learn.lr=1e-3".to_owned()];
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        // What is taken is written out, and taken again.
        if let Ok(spec) = Spec::from_text(&text, &[]) {
            Spec::from_text(&spec.to_text(), &[]).unwrap();
        }
        let _ = Spec::from_text("model.path='m'", &[text.into_owned()]);
        Spec::from_text(&String::from_utf8_lossy(bytes), &set).is_ok()
    };
    fuzz("specifications", vec![demo, file.into(), b"learn.lr=1".to_vec()], words, read);
}

/// All prompts of a file, as a run would take them.
fn prompts(file: PathBuf, model: &Path, purpose: Use) -> bool {
    let data = DataSpec { epochs: 1, ..DataSpec::new(file) };
    let reward = Reward::new(&RewardSpec::Numeric { after: None, tolerance: 0.0 }).unwrap();
    let data = Data { file: Some(&data), tasks: &[], model, purpose };
    data.training(1, Some(&reward)).map(|prompts| prompts.for_each(drop)).is_ok()
}

#[test]
fn prompts_in_lines() {
    let words =
        &["\n", "\r\n", "{}", "null", "[", "{\"a\":", "\"prompt\":", "1e400", "\\u0000", "\\ud800", "\u{feff}", "-0", "\""];
    let corpus = ["arithmetic.jsonl", "arithmetic-verl.jsonl", "arithmetic-pairs.jsonl"];
    let corpus = corpus.map(|name| bytes(&bundled("data/prompts").join(name))).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.jsonl");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let taken = prompts(path.clone(), &bundled("data/model"), Use::Rollouts);
        prompts(path.clone(), &bundled("data/model"), Use::Pairs) || taken
    };
    fuzz("prompts in lines", corpus, words, read);
}

/// The rows of `json`, one a line, as a Parquet file.
fn parquet(json: &str, groups: usize, compression: Compression) -> Vec<u8> {
    let (schema, _) = arrow::json::reader::infer_json_schema(json.as_bytes(), None).unwrap();
    let reader = arrow::json::ReaderBuilder::new(Arc::new(schema)).build(json.as_bytes()).unwrap();
    written(reader.map(Result::unwrap).collect(), groups, compression)
}

fn written(batches: Vec<RecordBatch>, groups: usize, compression: Compression) -> Vec<u8> {
    let mut bytes = Vec::new();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(groups)).set_compression(compression);
    let mut writer = ArrowWriter::try_new(&mut bytes, batches[0].schema(), Some(properties.build())).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
    bytes
}

#[test]
fn prompts_in_parquet() {
    let lines = |name: &str| fs::read_to_string(bundled("data/prompts").join(name)).unwrap();
    let plain = r#"{"prompt": "1+1=", "answer": "2"}
        {"prompt": "1+2=", "answer": "3"}"#;
    let corpus = vec![
        parquet(&lines("arithmetic-verl.jsonl"), 4, Compression::UNCOMPRESSED),
        parquet(&lines("arithmetic-pairs.jsonl"), 100, Compression::SNAPPY),
        parquet(&lines("arithmetic.jsonl"), 100, Compression::ZSTD(ZstdLevel::default())),
        parquet(&lines("arithmetic.jsonl"), 100, Compression::GZIP(GzipLevel::default())),
        parquet(plain, 1, Compression::LZ4_RAW),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.parquet");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        prompts(path.clone(), folder.path(), Use::Rollouts)
    };
    fuzz("prompts in Parquet", corpus, &["PAR1", "prompt", "list", "element"], read);
}

/// A sealed step, and the same rows as another writer would leave them: without a seal that stops every reading at once.
fn rollouts() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::create(folder.path().join("run")).unwrap();
    let info = FooterInfo {
        spec: "steps = 1".into(),
        model: "a".into(),
        tokenizer: "b".into(),
        learner_threads: 1,
        ..FooterInfo::default()
    };
    let prompt = Prompt { text: "1+1=".into(), tokens: vec![1, 2, 3], ..Prompt::default() };
    let group = Arc::new(Group { due: 2, size: 4, prompt, ..Group::default() });
    let rollout = |sample| Rollout {
        group: Arc::clone(&group),
        sample,
        status: Status::Trained,
        tokens: vec![4, 5],
        mask: vec![true; 2],
        logp_behavior: vec![-0.5, -0.25],
        version: vec![0, 1],
        value: vec![0.5; 2],
        reward: Some(1.0),
        reward_parts: vec![("correct".into(), 1.0)],
        advantage: vec![0.5; 2],
        step: 1,
        ..Rollout::default()
    };
    let metrics = Some(Metrics { step: 1, ..Metrics::default() });
    ParquetLog::new(run.clone(), info)
        .seal(SealedStep { step: 1, rollouts: (0..4).map(rollout).collect(), metrics })
        .unwrap();
    let path = run.log_file(tidegate::store::layout::LogFile::Step(1));
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap().build().unwrap();
    let rows: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    vec![
        bytes(&path),
        written(rows.clone(), 100, Compression::UNCOMPRESSED),
        written(rows, 1, Compression::ZSTD(ZstdLevel::default())),
    ]
}

#[test]
fn rollout_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step-00000001.parquet");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read_step(&path).is_ok()
    };
    fuzz(
        "rollout files",
        rollouts(),
        &["PAR1", "tokens", "status", "list", "element", "trained", "discarded: bad prompt: "],
        read,
    );
}

/// What a reward program wrote. A reward that is taken is a number, whatever stands in the line.
#[test]
fn reward_answers() {
    let words = &[
        "NaN",
        "-Infinity",
        "1e400",
        "-0.0",
        "true",
        "null",
        "\"id\":",
        "\"reward\":",
        "\\",
        "\"",
        "\u{1}",
        "{",
        "}",
        "[",
        "é",
    ];
    let corpus = [
        r#"{"id": 7, "reward": 0.5, "parts": {"correct": 1, "format": 0.0}}"#,
        r#"{"id": 18446744073709551615, "reward": NaN, "parts": {"a\"b": -1e400}}"#,
        r#"{"id": 0, "error": "no \u00e9 answer"}"#,
    ];
    let read = |bytes: &[u8]| {
        let value = protocol::parse(&String::from_utf8_lossy(bytes));
        let Some((_, answer)) = value.as_ref().and_then(protocol::answer) else { return false };
        match answer {
            Ok(answer) => {
                let numbers = answer.parts.iter().map(|(_, number)| *number).chain([answer.reward]);
                assert!(numbers.into_iter().all(|number| number.is_finite() && number.to_bits() != (-0.0f32).to_bits()));
            }
            Err(failure) => assert!(failure.to_string().len() < 2000, "{failure}"),
        }
        true
    };
    fuzz("reward answers", corpus.map(|line| line.as_bytes().to_vec()).to_vec(), words, read);
}

/// Small enough to be loaded some hundred times a second.
fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = bundled("data/golden/logits/llama");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    tidegate::engine::tokenizer::write_char_level(folder.path(), "0123456789+-=").unwrap();
    folder
}

/// A file of a model folder, the others being right.
fn model_file(name: &'static str, words: &'static [&'static str]) {
    let folder = model();
    let path = folder.path().join(name);
    if name == "model.safetensors.index.json" {
        fs::write(&path, json!({"weight_map": {"model.norm.weight": "model.safetensors"}}).to_string()).unwrap();
    }
    let corpus = vec![bytes(&path)];
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let Ok(policy) = Policy::load(folder.path(), "cpu", ValueHead::Present) else { return false };
        let _ = policy.tokenizer.encode("1+1=2 \u{1f980}").map(|ids| policy.tokenizer.decode(&ids));
        true
    };
    assert!(Policy::load(folder.path(), "cpu", ValueHead::Present).is_ok());
    fuzz(name, corpus, words, read);
}

const JSON: &[&str] =
    &["null", "true", "-1", "1e400", "2147483648", "[", "]", "{", "}", "\"", ",", ":", "[[[[[[[[", "0.0", "\\ud800"];

#[test]
fn model_configurations() {
    model_file("config.json", JSON);
}

#[test]
fn model_weights() {
    model_file(
        "model.safetensors",
        &["\"F16\"", "\"I64\"", "\"shape\":[", "\"data_offsets\":[0,", "9223372036854775807", "{", "}", "]"],
    );
}

#[test]
fn model_indices() {
    model_file(
        "model.safetensors.index.json",
        &["../", "/", "..", "model.safetensors", "\"weight_map\":", "{", "}", "\"", "null"],
    );
}

#[test]
fn model_tokenizers() {
    model_file(
        "tokenizer.json",
        &["\"BPE\"", "\"Unigram\"", "\"WordPiece\"", "\"merges\":[", "\"type\":", "null", "4294967295", "(a+)+$", "[", "{"],
    );
}

#[test]
fn chat_templates() {
    let chat =
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content | trim }}{{ m | tojson }}{% endfor %}";
    // Without a namespace: one that is put into itself and joined to a text overflows minijinja's stack, which ends the program
    // (see the module `template`).
    let other = "{% macro f(m) %}{{ m.role }}{% endmacro %}{% set x = [''] %}{% for m in messages[::-1] %}{% set x = x + [f(m)] %}{{ x | join('-') }}{% endfor %}";
    let words = &[
        "{{",
        "}}",
        "{%",
        "%}",
        "| list",
        "| join('')",
        "* 1000000",
        "range(100000)",
        "recursive",
        "loop(",
        "| tojson",
        ".split('')",
        "~ x",
        "/ 0",
        "[1:]",
    ];
    let messages = [json!({"role": "user", "content": "1+1=?"}), json!({"role": "assistant", "content": "2"})];
    let read = |bytes: &[u8]| {
        let template = ChatTemplate::new(&String::from_utf8_lossy(bytes), "<s>", "</s>");
        let chat = Chat { messages: Ordered::from(messages.as_slice()), tools: None };
        template.map(|template| drop(template.render(&chat, Next::Answer))).is_ok()
    };
    fuzz("chat templates", vec![chat.into(), other.into()], words, read);
}
