//! The pages of reference name every key, column, footer key and metric there is, with its default or type; paths and links
//! that any page names exist; and the README stays short.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use arrow::datatypes::DataType;
use parquet::file::reader::{FileReader, SerializedFileReader};
use regex::Regex;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use tidegate::engine::critic::CriticModel;
use tidegate::engine::spec::{KvAfterUpdate, Learning, LrSchedule};
use tidegate::jobs::sft::{SftSpec, StartModel};
use tidegate::kernel::advantage::Advantage;
use tidegate::kernel::aggregation::Aggregation;
use tidegate::kernel::curriculum::Draws;
use tidegate::kernel::gae::Gae;
use tidegate::kernel::loss::Loss;
use tidegate::kernel::reference::{KlEstimator, KlIn};
use tidegate::kernel::safeguard::LrScale;
use tidegate::spec::{EvalSpec, ScheduleKind, ScheduleSpec, Spec, Whiten, ZeroVariance};
use tidegate::store::schema::{schema, stop_text};
use tidegate::store::{FooterInfo, Limits, ParquetLog, RunFolder, compact};
use tidegate::tasks::fit::TooLong;
use tidegate::tasks::generated::Kind;
use tidegate::tasks::spec::{CommandSpec, DataSpec, HttpSpec, Order as FileOrder, PromptAs, RewardSpec, TaskSpec};
use tidegate_operators::plan::{Order, ShortBatch};
use tidegate_operators::record::{Metrics, Reason, SealedStep, Status, Stop};
use tidegate_operators::schedule::WeightsUpdate;
use tidegate_operators::seal::Log;
use toml::{Table, Value};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

fn table<T: serde::Serialize>(value: &T) -> Table {
    Table::try_from(value).unwrap()
}

/// The lines below a heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let mut lines = page.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "there is no heading {heading:?}");
    lines.take_while(|line| !line.starts_with('#')).collect()
}

/// The cells of the row that begins with `key`, which are without their backticks.
fn row<'a>(section: &[&'a str], key: &str) -> Option<Vec<&'a str>> {
    let start = format!("| `{key}` |");
    let line = section.iter().find(|line| line.starts_with(&start))?;
    Some(line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
}

/// What is wrong with a section: a key without a row, a row whose default is not that of `defaults`, a row without a key.
fn wrong(page: &str, heading: &str, keys: &Table, defaults: &Table) -> Vec<String> {
    let lines = section(page, heading);
    let mut wrong = Vec::new();
    for key in keys.keys() {
        let Some(cells) = row(&lines, key) else {
            wrong.push(format!("{heading}: {key} has no row"));
            continue;
        };
        let said = format!("v = {}", cells[2]).parse::<Table>().ok().and_then(|mut table| table.remove("v"));
        let default = defaults.get(key);
        if cells[2] != "*required*" && said.as_ref() != default {
            wrong.push(format!("{heading}: {key} is by default {default:?}, the page says {said:?}"));
        }
    }
    let named = Regex::new(r"^\| `(\w+)` \|").unwrap();
    let rows = lines.iter().filter_map(|line| named.captures(line)).map(|found| found[1].to_owned());
    wrong.extend(rows.filter(|key| !keys.contains_key(key)).map(|key| format!("{heading}: there is no key {key}")));
    wrong
}

/// Keys with the value that they have where all is given, without those that have a section of their own.
fn without(mut keys: Table, sections: &[&str]) -> Table {
    sections.iter().for_each(|section| drop(keys.remove(*section)));
    keys
}

const SECTIONS: [&str; 14] = [
    "model",
    "data",
    "task",
    "curriculum",
    "reward",
    "batch",
    "schedule",
    "workers",
    "generate",
    "estimate",
    "learn",
    "checkpoint",
    "metrics",
    "eval",
];

fn data() -> DataSpec {
    DataSpec { answer: Some("a".to_owned()), system: Some("s".to_owned()), ..DataSpec::new("a.jsonl") }
}

#[test]
fn every_key_of_a_run_has_its_row_and_default() {
    let page = page("docs/spec.md");
    let spec = Spec::default();
    let keys = table(&Spec { data: Some(data()), task: vec![TaskSpec::new(Kind::Sorting)], ..spec.clone() });
    let top = keys.keys().filter(|key| SECTIONS.contains(&key.as_str())).count();
    assert_eq!(top, SECTIONS.len(), "a section is no key any more");
    let mut found = wrong(&page, "## Top level", &without(keys.clone(), &SECTIONS), &without(table(&spec), &SECTIONS));
    for (name, value) in table(&spec).into_iter().filter(|(name, _)| SECTIONS.contains(&name.as_str())) {
        if let Value::Table(mut defaults) = value
            && !["reward", "eval", "schedule"].contains(&name.as_str())
        {
            for part in ["safeguard", "critic"] {
                if let Some(Value::Table(keys)) = defaults.remove(part) {
                    found.extend(wrong(&page, &format!("## `[learn.{part}]`"), &keys, &keys));
                }
            }
            if let Some(Value::Table(reference)) = defaults.remove("reference") {
                found.extend(wrong(&page, "## `[learn.reference]`", &reference, &reference));
            }
            found.extend(wrong(&page, &format!("## `[{name}]`"), &defaults, &defaults));
        }
    }
    let mut schedule = table(&ScheduleSpec { kind: ScheduleKind::Conventional, ..spec.schedule.clone() });
    schedule.extend(table(&spec.schedule));
    found.extend(wrong(&page, "## `[schedule]`", &schedule, &schedule));
    let eval = table(&EvalSpec { data: Some(data()), ..spec.eval.clone() });
    found.extend(wrong(&page, "## `[eval]`", &eval, &table(&spec.eval)));
    found.extend(wrong(&page, "## `[data]`", &table(&data()), &table(&DataSpec::new("a.jsonl"))));
    let task = TaskSpec::new(Kind::Sorting);
    found.extend(wrong(&page, "## `[[task]]`", &table(&task.clone().with_defaults()), &table(&task)));
    let reward = |spec| table::<RewardSpec>(&spec);
    let mut every = reward(RewardSpec::Numeric { after: Some("#".to_owned()), tolerance: 1e-6 });
    every.extend(reward(RewardSpec::Regex { pattern: "x".to_owned() }));
    let command = CommandSpec::new(vec!["x".to_owned()]);
    let outside = [reward(RewardSpec::Http(HttpSpec::new("http://x"))), reward(RewardSpec::Command(command))];
    let own = [("kind", "task".into()), ("tolerance", Value::Float(1e-6))].map(|(key, value)| (key.to_owned(), value));
    let mut defaults: Table = outside.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).chain(own).collect();
    ["command", "url"].iter().for_each(|required| drop(defaults.remove(*required)));
    outside.into_iter().for_each(|keys| every.extend(keys));
    found.extend(wrong(&page, "## `[reward]`", &every, &defaults));
    assert!(found.is_empty(), "docs/spec.md\n{}", found.join("\n"));
}

#[test]
fn every_key_of_a_warm_start_has_its_row_and_default() {
    let page = page("docs/spec.md");
    let spec = SftSpec::default();
    let top = without(table(&spec), &SECTIONS);
    let mut found = wrong(&page, "## Top level of a warm start", &top, &top);
    let model = table(&StartModel::default());
    found.extend(wrong(&page, "## `[model]` of a warm start", &model, &model));
    let usual = table(&Learning::default());
    let own: Table = table(&spec.learn).into_iter().filter(|(key, value)| usual.get(key) != Some(value)).collect();
    assert!(!own.is_empty());
    found.extend(wrong(&page, "## `[learn]` of a warm start", &own, &own));
    assert!(found.is_empty(), "docs/spec.md\n{}", found.join("\n"));
}

/// What serde says it would have taken in place of a value that it does not take.
fn expected<T: DeserializeOwned>(value: impl Into<Value>) -> Vec<String> {
    let error = value.into().try_into::<T>().err().map(|e| e.to_string()).unwrap_or_default();
    let after = error.split_once("expected").map_or("", |(_, after)| after);
    Regex::new("`([^`]+)`").unwrap().captures_iter(after).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_allowed_value_is_named() {
    let page = page("docs/spec.md");
    let reward_kinds = expected::<RewardSpec>(Table::from_iter([("kind".to_owned(), "?".into())]));
    let cases = [
        ("## `[model]`", "device", vec!["cpu".to_owned(), "cuda:N".to_owned()]),
        ("## `[data]`", "prompt_as", expected::<PromptAs>("?")),
        ("## `[data]`", "order", expected::<FileOrder>("?")),
        ("## `[data]`", "too_long", expected::<TooLong>("?")),
        ("## `[[task]]`", "kind", expected::<Kind>("?")),
        ("## `[curriculum]`", "kind", expected::<Draws>("?")),
        ("## `[reward]`", "kind", reward_kinds),
        ("## `[schedule]`", "kind", expected::<ScheduleKind>("?")),
        ("## `[schedule]`", "order", expected::<Order>("?")),
        ("## `[generate]`", "kv_after_update", expected::<KvAfterUpdate>("?")),
        ("## `[schedule]`", "weights_update", expected::<WeightsUpdate>("?")),
        ("## `[schedule]`", "short_batch", expected::<ShortBatch>("?")),
        ("## `[estimate]`", "advantage", expected::<Advantage>("?")),
        ("## `[estimate]`", "advantage", expected::<Gae>(Table::from_iter([("?".to_owned(), Value::Integer(1))]))),
        ("## `[estimate]`", "whiten", expected::<Whiten>("?")),
        ("## `[estimate]`", "zero_variance", expected::<ZeroVariance>("?")),
        ("## `[learn]`", "loss", expected::<Loss>("?")),
        ("## `[learn]`", "loss", expected::<tidegate::kernel::ratio::SequenceRatio>("?")),
        ("## `[learn]`", "aggregation", expected::<Aggregation>("?")),
        ("## `[learn]`", "lr_schedule", expected::<LrSchedule>("?")),
        ("## `[learn.safeguard]`", "lr_scale", expected::<LrScale>("?")),
        ("## `[learn.reference]`", "kl_in", expected::<KlIn>("?")),
        ("## `[learn.reference]`", "kl_estimator", expected::<KlEstimator>("?")),
        ("## `[learn.critic]`", "model", expected::<CriticModel>("?")),
    ];
    for (heading, key, values) in cases {
        assert!(!values.is_empty(), "{key}");
        let row = row(&section(&page, heading), key).unwrap().join(" ");
        let missing: Vec<&String> = values.iter().filter(|value| !row.contains(value.as_str())).collect();
        assert!(missing.is_empty(), "docs/spec.md, {heading}: {key} says nothing of {missing:?}");
    }
    for loss in expected::<Loss>("?") {
        let wrong = Table::from_iter([("?".to_owned(), Value::Integer(1))]);
        let fields = expected::<Loss>(Table::from_iter([(loss, wrong.into())]));
        let row = row(&section(&page, "## `[learn]`"), "loss").unwrap().join(" ");
        assert!(fields.iter().all(|field| row.contains(field.as_str())), "docs/spec.md, loss: one of {fields:?} is missing");
    }
}

/// What is wrong with the page of losses: a loss without a section, a section that lacks a part or shows other defaults.
fn wrong_losses(page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for loss in expected::<Loss>("?") {
        let heading = format!("## `{loss}`");
        if !page.lines().any(|line| line == heading) {
            wrong.push(format!("{loss} has no section"));
            continue;
        }
        let text = section(page, &heading).join("\n");
        let parts = ["**Formula.**", "**When.**", "**At lag 0", "**Source.**"];
        wrong.extend(parts.iter().filter(|part| !text.contains(**part)).map(|part| format!("{loss} lacks {part}")));
        let said = text.split('`').nth(1).map(|said| format!("v = {said}"));
        let said = said.and_then(|said| said.parse::<Table>().ok()?.remove("v")?.try_into::<Loss>().ok());
        let keyless = Value::from(loss.as_str()).try_into::<Loss>().ok();
        let default = Table::from_iter([(loss.clone(), Table::new().into())]).try_into::<Loss>().ok().or(keyless);
        if said.is_none() || said != default {
            wrong.push(format!("{loss} is by default {default:?}, the page says {said:?}"));
        }
    }
    wrong
}

#[test]
fn every_loss_has_its_section_and_defaults() {
    assert_eq!(wrong_losses(&page("docs/losses.md")), [""; 0], "docs/losses.md");
    let planted = page("docs/losses.md").replace("cap_negative = 3.0", "cap_negative = 4.0").replace("## `ppo`", "## `ppp`");
    assert_eq!(wrong_losses(&planted).len(), 2, "{:?}", wrong_losses(&planted));
}

fn type_text(of: &DataType) -> String {
    match of {
        DataType::Int64 => "int64".to_owned(),
        DataType::Int32 => "int32".to_owned(),
        DataType::Float32 => "float32".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        DataType::List(element) => format!("list<{}>", type_text(element.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{}: {}", field.name(), type_text(field.data_type()))).collect();
            format!("struct<{}>", fields.join(", "))
        }
        other => panic!("no column has the type {other}"),
    }
}

/// `file::name` of a test that is not there.
fn missing_tests(page: &str) -> Vec<String> {
    let named = Regex::new(r"`([\w/]+\.rs)::(\w+)`").unwrap();
    let there = |file: &str, name: &str| {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        text.contains(&format!("fn {name}("))
    };
    let found = named.captures_iter(page).filter(|found| !there(&found[1], &found[2]));
    found.map(|found| found[0].to_owned()).collect()
}

#[test]
fn hard_cases_have_their_tests() {
    let page = page("docs/hard-cases.md");
    for case in 1..=24 {
        let row = page.lines().find(|line| line.starts_with(&format!("| {case} |")));
        assert!(row.is_some_and(|row| row.contains("::")), "docs/hard-cases.md: case {case} has no test");
    }
    assert_eq!(missing_tests(&page), [""; 0], "docs/hard-cases.md names tests that are not there");
    assert_eq!(missing_tests("| `tests/docs.rs::no_such_test` | `no/file.rs::page` |").len(), 2);
}

#[test]
fn every_column_of_the_log_has_its_row_and_type() {
    let page = page("docs/log.md");
    let lines = section(&page, "## Columns");
    for field in schema().fields() {
        let cells = row(&lines, field.name()).unwrap_or_else(|| panic!("docs/log.md: column {} has no row", field.name()));
        let null = if field.is_nullable() { "yes" } else { "no" };
        assert_eq!((cells[1], cells[2]), (type_text(field.data_type()).as_str(), null), "docs/log.md: {}", field.name());
    }
    let rows = lines.iter().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, schema().fields().len(), "docs/log.md has a row of a column that is not there");
    let why = || "why".to_owned();
    let reasons = [
        Reason::NoReward,
        Reason::Unscorable,
        Reason::ZeroVariance,
        Reason::BadTokens(why()),
        Reason::BadPrompt(why()),
        Reason::DataEnded,
    ];
    for status in [Status::Waiting, Status::Trained].into_iter().chain(reasons.map(Status::Discarded)) {
        let text = status.to_string();
        let text = text.strip_suffix("why").unwrap_or(&text);
        assert!(page.contains(&format!("`{text}`")), "docs/log.md says nothing of the status {text:?}");
    }
    for stop in [Stop::Eos, Stop::StopString, Stop::Length, Stop::Time, Stop::Refused].map(stop_text) {
        assert!(row(&lines, "stop").unwrap().join(" ").contains(stop), "docs/log.md says nothing of the stop {stop:?}");
    }
}

#[test]
fn every_footer_key_and_metric_has_its_row() {
    let page = page("docs/log.md");
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(dir.path().join("run")).unwrap();
    let mut log = ParquetLog::new(folder.clone(), FooterInfo::default());
    let metrics = Metrics { step: 1, ..Metrics::default() };
    log.seal(SealedStep { step: 1, rollouts: Vec::new(), metrics: Some(metrics.clone()) }).unwrap();
    let path = folder.rollouts().join("step-00000001.parquet");
    let file = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let pairs = file.metadata().file_metadata().key_value_metadata().unwrap().clone();
    let lines = section(&page, "## Footer");
    let ours = pairs.iter().filter(|pair| pair.key.starts_with("tidegate."));
    assert_eq!(ours.clone().count(), 9);
    for pair in ours {
        assert!(row(&lines, &pair.key).is_some(), "docs/log.md: footer key {} has no row", pair.key);
    }
    log.seal(SealedStep { step: 2, rollouts: Vec::new(), metrics: Some(Metrics::default()) }).unwrap();
    let merged = compact(&folder, 2, &Limits::default()).unwrap().merged[0];
    let file = SerializedFileReader::new(fs::File::open(folder.log_file(merged)).unwrap()).unwrap();
    // The page has a step of its own as its example.
    let step = Regex::new(r"\.\d{8}$").unwrap();
    for pair in file.metadata().file_metadata().key_value_metadata().unwrap() {
        let key = step.replace(&pair.key, ".00000042").into_owned();
        let known = !key.starts_with("tidegate.") || row(&lines, &key).is_some();
        assert!(known, "docs/log.md: footer key {key} of a merged file has no row");
    }
    let lines = section(&page, "## Metrics");
    let fields = table(&metrics);
    for (name, value) in &fields {
        let cells = row(&lines, name).unwrap_or_else(|| panic!("docs/log.md: metric {name} has no row"));
        let expected = match value {
            Value::Integer(_) => "int64",
            Value::Float(_) => "float64",
            Value::Boolean(_) => "bool",
            _ => "list",
        };
        assert_eq!(cells[1], expected, "docs/log.md: metric {name}");
    }
    assert_eq!(lines.iter().filter(|line| line.starts_with("| `")).count(), fields.len(), "docs/log.md: a metric too many");
}

fn pages() -> Vec<PathBuf> {
    let markdown = |folder: &Path| {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect::<Vec<_>>()
    };
    [root().to_owned(), root().join("docs"), root().join("docs/adr")].iter().flat_map(|folder| markdown(folder)).collect()
}

#[test]
fn paths_and_links_that_pages_name_exist() {
    let link = Regex::new(r"\]\(([^)#\s]+)").unwrap();
    let path = Regex::new(r"`((?:src|operators|data|docs|tests)/[\w./-]+)`").unwrap();
    let pages = pages();
    assert!(pages.len() > 10);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let links = link.captures_iter(&text).map(|found| found[1].to_owned()).filter(|to| !to.contains("://"));
        let links = links.map(|to| page.parent().unwrap().join(to));
        let paths = path.captures_iter(&text).map(|found| found[1].to_owned()).filter(|path| !path.contains("NAME"));
        for found in links.chain(paths.map(|path| root().join(path))) {
            assert!(found.exists(), "{}: {} does not exist", page.display(), found.display());
        }
    }
}

#[test]
fn pages_to_begin_with_are_short() {
    for (name, most) in [("README.md", 150), ("CONTRIBUTING.md", 170)] {
        let lines = page(name).lines().count();
        assert!(lines <= most, "{name} has {lines} lines, more than {most}");
    }
}

/// A row that is missing, a default that is another, and a row of a key that is gone are each seen.
#[test]
fn planted_errors_are_caught() {
    let page =
        "## A\n\n| key | type | default |\n|---|---|---|\n| `a` | integer | `1` |\n| `gone` | integer | `1` |\n\n## B\n";
    let keys = "a = 2\nb = 3\n".parse::<Table>().unwrap();
    let found = wrong(page, "## A", &keys, &keys);
    assert_eq!(found.len(), 3, "{found:?}");
    for (found, what) in found.iter().zip(["a is by default", "b has no row", "no key gone"]) {
        assert!(found.contains(what), "{found} says nothing of {what:?}");
    }
}
