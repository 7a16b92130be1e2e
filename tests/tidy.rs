//! The house's rules as a test over its sources: who may import whom, where unsafe code may live, names, sizes.
//!
//! Each rule is a function from one file to its breaches, and has a test with a breach that it must catch.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use regex::Regex;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// One file of the tree.
struct File {
    /// From the root, with `/`.
    path: String,
    text: String,
    /// `text` of a Rust file with what stands in comments and literals blanked; empty for others.
    code: String,
}

impl File {
    fn new(path: &str, text: &str) -> File {
        let code = if path.ends_with(".rs") { code_of(text) } else { String::new() };
        File { path: path.to_owned(), text: text.to_owned(), code }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_cpp(&self) -> bool {
        [".c", ".cc", ".cpp", ".cu", ".h", ".hpp"].iter().any(|end| self.path.ends_with(end))
    }

    /// Whether it lies in the folder, or is the file, of one of these names.
    fn within(&self, places: &[&str]) -> bool {
        places.iter().any(|place| if place.ends_with('/') { self.path.starts_with(place) } else { self.path == *place })
    }
}

const RULES: [fn(&File) -> Vec<String>; 12] = [
    floors,
    homes,
    operators_alone,
    operator_dependencies,
    unsafe_code,
    cpp,
    module_doc,
    length,
    words,
    unfinished,
    unwraps,
    outside,
];

fn breaches(file: &File) -> Vec<String> {
    let found = RULES.iter().flat_map(|rule| rule(file));
    found.map(|breach| format!("{}: {breach}", file.path)).collect()
}

/// Modules of the root package that each place may name, itself included. Who is not listed may not be in `src/`.
const FLOORS: [(&str, &[&str]); 15] = [
    ("src/clock.rs", &[]),
    ("src/crash.rs", &[]),
    ("src/durable.rs", &["crash", "error"]),
    ("src/error.rs", &[]),
    ("src/kernel/", &["kernel"]),
    ("src/engine/", &["engine", "kernel", "error", "clock", "crash", "durable"]),
    ("src/store/", &["store", "error", "crash", "durable"]),
    ("src/tasks/", &["tasks", "error"]),
    ("src/spec.rs", &["spec", "engine", "store", "tasks", "kernel", "error"]),
    ("src/spec/", &["spec", "engine", "store", "tasks", "kernel", "error"]),
    ("src/pipeline.rs", &["pipeline", "spec", "engine", "store", "tasks", "kernel", "error", "clock"]),
    ("src/jobs/", &["jobs", "pipeline", "spec", "engine", "store", "tasks", "kernel", "error", "clock", "crash", "durable"]),
    ("src/cli/", &["cli", "jobs", "spec", "error"]),
    ("src/main.rs", &["cli"]),
    ("src/lib.rs", &[]),
];

/// Down only, and siblings never.
fn floors(file: &File) -> Vec<String> {
    if !file.within(&["src/"]) || !file.is_rust() {
        return Vec::new();
    }
    let Some((_, allowed)) = FLOORS.iter().find(|(place, _)| file.within(&[place])) else {
        return vec!["has no floor".to_owned()];
    };
    let climbs = file.code.contains("super::super::").then(|| "says super::super::, not crate::".to_owned());
    let named = named_after(&file.code, "crate").into_iter().chain(named_after(&file.code, "tidegate"));
    let wrong = named.filter(|name| !allowed.contains(&name.as_str()));
    climbs.into_iter().chain(wrong.map(|name| format!("may not use {name}"))).collect()
}

/// First segments of all paths that begin with `root::`, those in braces too.
fn named_after(code: &str, root: &str) -> BTreeSet<String> {
    let start = Regex::new(&format!(r"\b{root}\s*::\s*(\{{|\w+)")).unwrap();
    let mut names = BTreeSet::new();
    for found in start.captures_iter(code) {
        if &found[1] != "{" {
            names.insert(found[1].to_owned());
            continue;
        }
        let mut depth = 1;
        let mut item = String::new();
        for c in code[found.get(1).unwrap().end()..].chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if depth == 0 || (depth == 1 && c == ',') {
                let name = item.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
                names.extend((!name.is_empty()).then(|| name.to_owned()));
                item.clear();
            } else {
                item.push(c);
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// A heavy crate has one home.
const HOMES: [(&str, &[&str]); 12] = [
    ("tch", &["src/engine/torch/"]),
    ("libloading", &["src/engine/torch/ffi.rs"]),
    ("arrow", &["src/store/"]),
    ("parquet", &["src/store/"]),
    ("clap", &["src/cli/"]),
    ("minijinja", &["src/tasks/"]),
    ("regex", &["src/tasks/"]),
    ("ureq", &["src/tasks/outside/http.rs"]),
    ("tokenizers", &["src/engine/"]),
    ("safetensors", &["src/engine/"]),
    ("timely", &["operators/", "src/pipeline.rs"]),
    ("differential_dataflow", &["operators/"]),
];

/// What knows nothing of timely.
const FLOOR_0: [&str; 11] = [
    "src/kernel/",
    "operators/record.rs",
    "operators/fault.rs",
    "operators/plan.rs",
    "operators/schedule.rs",
    "operators/lag.rs",
    "operators/select.rs",
    "operators/start.rs",
    "operators/batch.rs",
    "operators/balance.rs",
    "operators/success.rs",
];

fn homes(file: &File) -> Vec<String> {
    if !file.within(&["src/", "operators/"]) {
        return Vec::new();
    }
    let strangers = HOMES.iter().filter(|(_, homes)| !file.within(homes)).map(|(name, _)| *name);
    let lower = ["timely", "differential_dataflow", "tidegate_operators"];
    let floor0 = file.within(&FLOOR_0);
    let all = strangers.chain(lower.into_iter().filter(|_| floor0)).collect::<BTreeSet<_>>();
    let roots = path_roots(&file.code);
    all.into_iter().filter(|name| roots.contains(name)).map(|name| format!("is no home of {name}")).collect()
}

/// Names that begin a path, or that are imported whole.
fn path_roots(code: &str) -> BTreeSet<&str> {
    static ROOT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?:^|[^\w:.]|(?:^|\W)::)(\w+)::|\b(?:use|extern crate)\s+(\w+)\b").unwrap());
    ROOT.captures_iter(code).filter_map(|found| found.get(1).or(found.get(2))).map(|name| name.as_str()).collect()
}

/// Operators and their ports.
const OPERATORS: [(&str, &str); 9] = [
    ("admit", "Prompts"),
    ("recorded", "Recorded"),
    ("generate", "Generator"),
    ("score", "Scorer"),
    ("estimate", "Estimator"),
    ("train", "Learner"),
    ("seal", "Log"),
    ("census", "Census"),
    ("curriculum", "Curriculum"),
];

/// Operators know the records that others pass on, not the others themselves nor their ports.
fn operators_alone(file: &File) -> Vec<String> {
    static TAKEN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\bcrate::(\w+)::(\w+|\{[^}]*\})").unwrap());
    if !OPERATORS.iter().any(|(name, _)| file.path == format!("operators/{name}.rs")) {
        return Vec::new();
    }
    let code = without_tests(&file.code);
    let taken = TAKEN.captures_iter(&code).filter(|found| {
        let operator = OPERATORS.iter().find(|(name, _)| *name == &found[1]);
        operator.is_some_and(|(name, port)| identifiers(&found[2]).any(|taken| taken == *name || taken == *port))
    });
    taken.map(|found| format!("knows the operator {}", &found[1])).collect()
}

fn operator_dependencies(file: &File) -> Vec<String> {
    if file.path != "operators/Cargo.toml" {
        return Vec::new();
    }
    let manifest = file.text.parse::<toml::Table>().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>();
    let right = BTreeSet::from(["timely", "differential-dataflow", "serde"]);
    (dependencies != right).then(|| format!("depends on {dependencies:?}, not on {right:?}")).into_iter().collect()
}

fn unsafe_code(file: &File) -> Vec<String> {
    let home = file.within(&["src/engine/torch/ffi.rs"]);
    let found = !home && identifiers(&file.code).any(|word| word == "unsafe");
    found.then(|| "has unsafe code".to_owned()).into_iter().collect()
}

/// What libtorch's bindings lack.
fn cpp(file: &File) -> Vec<String> {
    let strays = file.is_cpp() && !file.within(&["src/engine/torch/ops/"]);
    strays.then(|| "is no home of C++".to_owned()).into_iter().collect()
}

fn module_doc(file: &File) -> Vec<String> {
    let lacks = file.is_rust() && !file.text.starts_with("//! ") || file.is_cpp() && !file.text.starts_with("// ");
    lacks.then(|| "has no module doc on line 1".to_owned()).into_iter().collect()
}

fn length(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    ((file.is_rust() || file.is_cpp()) && lines > 500)
        .then(|| format!("has {lines} lines, more than 500"))
        .into_iter()
        .collect()
}

/// Words that always mean something for which the house has another.
const WORDS: [(&str, &str); 14] = [
    ("staleness", "lag"),
    ("iteration", "step"),
    ("episode", "rollout"),
    ("experience", "rollout"),
    ("ticket", "due"),
    ("deadline", "due"),
    ("minibatch", "micro-batch"),
    ("mini_batch", "micro-batch"),
    ("old_logp", "logp_behavior"),
    ("old_log_prob", "logp_behavior"),
    ("loss_mask", "mask"),
    ("n_eff", "ESS"),
    ("params", "weights"),
    ("actor", "generator or learner"),
];

fn words(file: &File) -> Vec<String> {
    if !file.within(&["src/", "operators/", "benches/", "tests/"]) {
        return Vec::new();
    }
    let mut found = BTreeSet::new();
    for identifier in identifiers(&file.code) {
        let snake = format!("_{}_", snake(identifier));
        let says = |word: &str| [format!("_{word}_"), format!("_{word}s_")].iter().any(|form| snake.contains(form));
        found.extend(WORDS.iter().filter(|(word, _)| says(word)).map(|(_, right)| format!("{identifier}: say {right}")));
    }
    found.into_iter().collect()
}

/// `OldLogProb` and `old_log_prob` are one name.
fn snake(identifier: &str) -> String {
    let mut snake = String::new();
    let mut last = '_';
    for c in identifier.chars() {
        if c.is_uppercase() && last.is_lowercase() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
        last = c;
    }
    snake
}

fn unfinished(file: &File) -> Vec<String> {
    let stub = Regex::new(r"\b(todo|unimplemented|dbg)\s*!|#\s*\[\s*ignore\b").unwrap();
    stub.find_iter(&file.code).map(|found| format!("has {}", found.as_str())).collect()
}

fn unwraps(file: &File) -> Vec<String> {
    let is_test = file.path.ends_with("tests.rs") || file.path.contains("/tests/");
    if !file.within(&["src/", "operators/"]) || is_test {
        return Vec::new();
    }
    let found = Regex::new(r"\.\s*unwrap\s*\(\s*\)").unwrap().is_match(&without_tests(&file.code));
    found.then(|| "unwraps outside its tests".to_owned()).into_iter().collect()
}

/// A checkout stands alone.
fn outside(file: &File) -> Vec<String> {
    let neighbour = ["..", "shared"].join("/");
    file.text.contains(&neighbour).then(|| format!("mentions {neighbour}")).into_iter().collect()
}

/// The names that may stand at the root.
const ROOT: [&str; 21] = [
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "operators",
    "data",
    "benches",
    "README.md",
    "tests",
    "docs",
    "Makefile",
    "build.rs",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "rustfmt.toml",
    "clippy.toml",
    "deny.toml",
    ".gitignore",
    ".cargo",
    ".ci",
    ".git",
];

/// Names at the root that are neither in [`ROOT`] nor ignored by git.
fn strangers(names: &[String], gitignore: &str) -> Vec<String> {
    let matches = |name: &str, pattern: &str| match pattern.trim_end_matches('/').split_once('*') {
        Some((head, tail)) => name.starts_with(head) && name[head.len()..].ends_with(tail),
        None => name == pattern.trim_end_matches('/'),
    };
    let ignored = |name: &str| gitignore.lines().any(|pattern| !pattern.is_empty() && matches(name, pattern));
    names.iter().filter(|name| !ROOT.contains(&name.as_str()) && !ignored(name)).cloned().collect()
}

fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Rust code with comments, strings and characters blanked; lines stay where they are.
fn code_of(text: &str) -> String {
    const LITERALS: &str = concat!(
        r"(?s)//[^\n]*",
        r"|/\*.*?\*/",
        r##"|\bb?r#"(.*?)"#"##,
        r#"|\bb?r"[^"]*""#,
        r#"|"(\\.|[^"\\])*""#,
        r"|b?'(\\[^']+|\\'|[^'\\\n])'",
    );
    static LITERAL: LazyLock<Regex> = LazyLock::new(|| Regex::new(LITERALS).unwrap());
    let blank =
        |found: &regex::Captures<'_>| found[0].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect::<String>();
    LITERAL.replace_all(text, blank).into_owned()
}

/// Blanks modules behind `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let start = Regex::new(r"#\[cfg\(test\)\][^{};]*\bmod\s+\w+\s*\{").unwrap();
    let mut rest = code;
    let mut kept = String::new();
    while let Some(found) = start.find(rest) {
        kept.push_str(&rest[..found.start()]);
        let mut depth = 1;
        let body = rest[found.end()..].char_indices();
        let end = body.into_iter().find(|(_, c)| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 0
        });
        rest = end.map_or("", |(at, _)| &rest[found.end() + at + 1..]);
    }
    kept + rest
}

/// All text files of the tree.
fn tree() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for name in ROOT.iter().filter(|&&name| name != ".git") {
        collect(root, &root.join(name), &mut files);
    }
    files
}

fn collect(root: &Path, at: &Path, files: &mut Vec<File>) {
    if at.is_dir() {
        let mut entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        entries.sort();
        entries.iter().for_each(|entry| collect(root, entry, files));
    } else if let Ok(text) = fs::read_to_string(at) {
        let path = at.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        files.push(File::new(&path, &text));
    }
}

#[test]
fn the_tree_is_tidy() {
    let files = tree();
    assert!(files.len() > 30, "only {} files found", files.len());
    let found = files.iter().flat_map(breaches).collect::<Vec<_>>();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_root_holds_only_what_it_should() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let gitignore = fs::read_to_string(root.join(".gitignore")).unwrap();
    let found = strangers(&names.collect::<Vec<_>>(), &gitignore);
    assert!(found.is_empty(), "{found:?} may not stand at the root");
    let planted = ["src", "target", ".pydeps-new", "utils"].map(str::to_owned);
    assert_eq!(strangers(&planted, "target/\n.pydeps*\n"), ["utils"]);
}

/// Each rule sees a planted breach, and does not see one where there is none.
#[test]
fn planted_breaches_are_caught() {
    let caught = |path: &str, text: &str, what: &str| {
        let text = if path.ends_with(".rs") { format!("//! Doc.\n{text}") } else { text.to_owned() };
        let found = breaches(&File::new(path, &text));
        assert!(found.len() == 1 && found[0].contains(what), "{path}: {text:?} gave {found:?}, not {what:?}");
    };
    caught("src/kernel/kl.rs", "use crate::error::Error;", "may not use error");
    caught("src/kernel/kl.rs", "use tidegate_operators::record::Rollout;", "no home of tidegate_operators");
    caught("src/engine/torch/model.rs", "fn f() { crate::store::read() }", "may not use store");
    caught("src/store/mod.rs", "use crate::{error::{Error, Result}, tasks};", "may not use tasks");
    caught("src/tasks/mod.rs", "use super::super::engine;", "super::super");
    caught("src/pipeline.rs", "use crate::jobs::run;", "may not use jobs");
    caught("src/main.rs", "use tidegate::jobs;", "may not use jobs");
    caught("src/util.rs", "", "has no floor");
    caught("src/engine/toy/policy.rs", "use tch::Tensor;", "no home of tch");
    caught("src/engine/torch/model.rs", "fn f() { let x = libloading::Library::new(); }", "no home of libloading");
    caught("src/jobs/run.rs", "fn f(batch: arrow::array::RecordBatch) {}", "no home of arrow");
    caught("src/jobs/analyze.rs", "use parquet::file::reader::*;", "no home of parquet");
    caught("src/jobs/run.rs", "#[derive(clap::Args)]\nstruct A;", "no home of clap");
    caught("src/engine/spec.rs", "use minijinja as m;", "no home of minijinja");
    caught("src/store/read.rs", "fn f() -> regex::Regex {}", "no home of regex");
    caught("src/tasks/reward.rs", "fn f() { ureq::get(\"\") }", "no home of ureq");
    caught("src/tasks/chat.rs", "use tokenizers::Tokenizer;", "no home of tokenizers");
    caught("src/store/read.rs", "use ::safetensors::Dtype;", "no home of safetensors");
    caught("src/engine/mod.rs", "use timely::progress::Antichain;", "no home of timely");
    caught("operators/record.rs", "use timely::progress::Antichain;", "no home of timely");
    caught("src/pipeline.rs", "use differential_dataflow::Collection;", "no home of differential_dataflow");
    caught("operators/admit.rs", "use crate::train::{Learner, Moved};", "knows the operator train");
    caught("operators/score.rs", "fn f() { crate::admit::admit() }", "knows the operator admit");
    caught("operators/Cargo.toml", "[dependencies]\ntimely = '1'\nserde = '1'\nrand = '1'\n", "depends on");
    caught("src/engine/torch/model.rs", "fn f() { unsafe { g() } }", "unsafe");
    caught("src/engine/torch/kernels.cpp", "// Loops.\n", "no home of C++");
    caught("src/engine/torch/ops/tiles.h", "#pragma once\n", "no module doc");
    caught("src/engine/torch/ops/tiles.h", &format!("// Loops.{}", "\n".repeat(501)), "501 lines");
    caught("src/jobs/run.rs", &"\n".repeat(500), "501 lines");
    caught("src/jobs/run.rs", "fn f(max_staleness: u64) {}", "max_staleness: say lag");
    caught("operators/lag.rs", "struct ReplayEpisodes;", "ReplayEpisodes: say rollout");
    caught("src/kernel/loss.rs", "fn f(old_log_probs: &[f32]) {}", "say logp_behavior");
    caught("src/kernel/ess.rs", "fn n_eff() {}", "say ESS");
    caught("tests/cli.rs", "fn f() { todo!() }", "has todo!");
    caught("src/jobs/run.rs", "fn f() { dbg!(1); }", "has dbg!");
    caught("tests/cli.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}", "has #[ignore");
    caught("src/jobs/run.rs", "fn f() { g().unwrap(); }\n#[cfg(test)]\nmod tests { fn h() { g().unwrap(); } }", "unwraps");
    caught("src/jobs/run.rs", "#[cfg(test)]\nmod tests { fn h() {} }\nfn f() { g()\n.unwrap(); }", "unwraps");
    caught("docs/a.md", &format!("see {}/x", ["..", "shared"].join("/")), "mentions");
    let found = breaches(&File::new("src/jobs/run.rs", "// No doc.\n"));
    assert_eq!(found, ["src/jobs/run.rs: has no module doc on line 1"]);
}

#[test]
fn what_is_allowed_raises_no_alarm() {
    let fine = |path: &str, text: &str| {
        let found = breaches(&File::new(path, &format!("//! Doc of unsafe tch::Tensor, todo!() and staleness.\n{text}")));
        assert!(found.is_empty(), "{found:?}");
    };
    fine("src/engine/torch/model.rs", "use tch::Tensor;\nuse crate::{engine::spec::Learning, kernel::{kl, loss}, error};");
    fine("src/engine/torch/ffi.rs", "fn f() { unsafe { libloading::Library::new() } }");
    fine(
        "src/kernel/kl.rs",
        "/// See crate::engine.\nfn f<'a>(x: &'a str) -> char { let _ = \"crate::store // unsafe\"; '\"' }",
    );
    fine("src/engine/toy/mod.rs", "use super::torch::tch::x;\nlet s = r#\"unsafe \" todo!()\"#;");
    fine(
        "src/jobs/run.rs",
        "#[cfg(test)]\nuse std::fs;\n#[cfg(test)]\nmod tests {\nfn f() { if x { g().unwrap() } }\n}\nfn h() {}",
    );
    fine("operators/generate.rs", "use crate::admit::Feedback;\nuse crate::record::Group;\nuse timely::dataflow::Scope;");
    fine("operators/dataflow.rs", "use crate::{admit, train};\nuse timely::dataflow::Scope;");
    fine("src/jobs/run.rs", "fn f() { x.unwrap_or(1); let ignored = 1; let contractor = factor; }");
}
