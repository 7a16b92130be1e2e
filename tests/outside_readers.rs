//! Other people's readers open the rollout log with no help, and find in it what was put in.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tidegate::jobs::analyze::{self, SkipBad};
use tidegate::store::layout::LogFile;
use tidegate::store::{FooterInfo, Limits, LogReader, ParquetLog, RunFolder, compact, read_step};
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status};
use tidegate_operators::seal::Log;

/// The folder with pyarrow and duckdb: `TIDEGATE_PYDEPS`, or `.pydeps` beside `Cargo.toml`.
fn packages() -> PathBuf {
    let folder = std::env::var_os("TIDEGATE_PYDEPS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".pydeps"));
    let there = folder.join("pyarrow").is_dir() && folder.join("duckdb").is_dir();
    assert!(there, "{} lacks pyarrow or duckdb: `make test` installs them", folder.display());
    folder
}

fn python(arguments: &[&Path]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside_readers.py");
    let output = Command::new("python3").env("PYTHONPATH", packages()).arg(script).args(arguments).output();
    let output = output.expect("python3 is needed to run other people's readers");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "outside_readers.py: {errors}");
    serde_json::from_slice(&output.stdout).expect("outside_readers.py prints JSON")
}

fn rollout(step: u64, number: u64, versions: &[u64]) -> Rollout {
    let prompt =
        Prompt { id: number, task: "sums".to_owned(), text: "1+\0é".to_owned(), tokens: vec![9, 8], ..Prompt::default() };
    let group = Group { number, due: step + 3, size: 1, prompt, admitted_ns: 1_700_000_000_000_000_000, ..Group::default() };
    Rollout {
        group: Arc::new(group),
        status: Status::Trained,
        tokens: (0..versions.len() as u32).collect(),
        text: format!("answer {number}\0"),
        mask: vec![true; versions.len()],
        logp_behavior: versions.iter().map(|v| -0.5 - *v as f32).collect(),
        logp_current: versions.iter().map(|v| -0.25 - *v as f32).collect(),
        version: versions.to_vec(),
        reward: Some(number as f32 * 0.5),
        reward_parts: vec![("format".to_owned(), 0.125)],
        advantage: vec![0.5; versions.len()],
        step,
        ..Rollout::default()
    }
}

#[test]
fn pyarrow_and_duckdb_read_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let info = FooterInfo { spec: "seed = 1\n".to_owned(), learner_threads: 2, ..FooterInfo::default() };
    let mut log = ParquetLog::new(folder.clone(), info);
    let metrics = |step| Some(Metrics { step, loss: 0.5, entropy: f64::NAN, ..Metrics::default() });
    // Lags by hand: step 4 trains version-3 weights, its tokens have lag 3, 2, 0 and 1; step 5's have 4 - 1 = 3, 4 - 0 = 4.
    let discarded = Rollout { status: Status::Discarded(Reason::ZeroVariance), ..rollout(4, 9, &[]) };
    let fourth = vec![rollout(4, 1, &[0, 1, 3]), rollout(4, 2, &[2]), discarded];
    log.seal(SealedStep { step: 4, rollouts: fourth.clone(), metrics: metrics(4) }).unwrap();
    log.seal(SealedStep { step: 5, rollouts: vec![rollout(5, 3, &[1, 0])], metrics: metrics(5) }).unwrap();

    let rewritten = dir.path().join("rewritten.parquet");
    let said = python(&[&folder.rollouts(), &rewritten]);
    assert_eq!(said["duckdb"]["max_lag"], 4);
    assert_eq!(said["duckdb"]["mean_lag"], 13.0 / 6.0);
    assert_eq!(said["duckdb"]["mean_reward"], (0.5 + 1.0 + 1.5) / 3.0);
    assert_eq!(said["duckdb"]["parts"], serde_json::json!(["format", 0.125]));
    assert_eq!(said["duckdb"]["statuses"], serde_json::json!([["discarded: zero variance", 1], ["trained", 3]]));
    assert_eq!(said["pyarrow"]["max_lag"], 4);
    let first = &said["pyarrow"]["first"];
    assert_eq!(first["version"], serde_json::json!([0, 1, 3]));
    assert_eq!(first["logp_behavior"], serde_json::json!([-0.5, -1.5, -3.5]));
    assert_eq!(first["mask"], serde_json::json!([true, true, true]));
    assert_eq!(first["prompt_text"], "1+\0é");
    assert_eq!(first["completion_text"], "answer 1\0");
    assert_eq!(first["reward_parts"], serde_json::json!([{"name": "format", "value": 0.125}]));
    assert_eq!(first["reward_error"], Value::Null);
    assert_eq!(first["admitted_ns"], 1_700_000_000_000_000_000i64);
    assert_eq!(said["pyarrow"]["footer"]["tidegate.spec"], "seed = 1\n");
    assert_eq!(said["pyarrow"]["footer"]["tidegate.learner_threads"], "2");
    let inside: Value = serde_json::from_str(said["pyarrow"]["footer"]["tidegate.metrics"].as_str().unwrap()).unwrap();
    assert_eq!((&inside["step"], &inside["loss"], &inside["entropy"]), (&4.into(), &0.5.into(), &"NaN".into()));

    let report = analyze::report(&[folder.path().to_owned()], SkipBad::No).expect("a report of the same run");
    assert_eq!(report.runs[0].lag.max.map(Value::from).as_ref(), Some(&said["duckdb"]["max_lag"]));
    assert_eq!(report.runs[0].lag.mean.map(Value::from).as_ref(), Some(&said["duckdb"]["mean_lag"]));
    assert_eq!(report.runs[0].reward.trained.map(Value::from).as_ref(), Some(&said["duckdb"]["mean_reward"]));

    // A file that pyarrow rewrote, key-values kept and so the seal void, is still one of ours.
    let again = read_step(&rewritten).unwrap();
    assert_eq!(again.rollouts, fourth);
    assert_eq!(again.footer.step, 4);

    // Compacted, the log is as plain as before, and says the same.
    let merged = compact(&folder, 5, &Limits::default()).expect("a compaction").merged;
    assert_eq!(merged, [LogFile::Merged { first: 4, last: 5 }]);
    let of_merged = python(&[&folder.rollouts(), &rewritten]);
    assert_eq!(of_merged["duckdb"], said["duckdb"]);
    assert_eq!(of_merged["pyarrow"]["first"], said["pyarrow"]["first"]);
    assert_eq!(of_merged["pyarrow"]["footer"]["tidegate.steps"], "4-5");
    assert_eq!(of_merged["pyarrow"]["footer"]["tidegate.metrics.00000004"], said["pyarrow"]["footer"]["tidegate.metrics"]);
    let mut again = LogReader::of_file(&rewritten).unwrap();
    assert_eq!(again.step(4).unwrap().rollouts, fourth);
    assert_eq!(again.step(5).unwrap().rollouts.len(), 1);
}
