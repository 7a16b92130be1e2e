//! `tidegate eval`: its numbers against the test's own, the same again, and against a run's own evaluation.

use crate::harness::{Ran, STEPS, bundled_model, recorded, recorded_path, tidegate};
use crate::running::Running;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use tidegate::store::read_step;
use tidegate_operators::record::{Rollout, Status, Stop};

/// About a fifth of what the untrained toy writes begins with one of these letters.
const TOY: &str = r#"
seed = 3
[model]
engine = "toy"
[data]
file = "train.jsonl"
[reward]
kind = "regex"
pattern = "^[a-g]"
[generate]
slots = 16
max_tokens = 6
"#;

fn toy_place() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("toy.toml"), TOY).unwrap();
    let row = |letter: char| format!("{{\"prompt\": \"{letter}\", \"task\": \"t{}\"}}\n", letter > 'd');
    fs::write(dir.path().join("held.jsonl"), "abcdefghijkl".chars().map(row).collect::<String>()).unwrap();
    dir
}

fn eval(place: &Path, args: &[&str]) -> Ran {
    tidegate(place, &["eval"].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

/// Of the toy, on the prompts of the file.
fn toy(dir: &TempDir, args: &[&str]) -> Ran {
    let start = ["--spec", "toy.toml", "--data", "held.jsonl"];
    eval(dir.path(), &start.into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

/// A result without what depends on the clock.
fn settled(ran: Ran) -> Value {
    let mut json = ran.ok().json();
    ["seconds", "tokens_per_s", "rollouts"].iter().for_each(|key| drop(json.as_object_mut().unwrap().remove(*key)));
    json
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The test's own mean and standard error of a number a prompt.
fn by_hand(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    (mean, (numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0) / n).sqrt())
}

#[track_caller]
fn assert_measure(found: &Value, numbers: &[f64]) {
    let (mean, error) = by_hand(numbers);
    assert!((number(&found["mean"]) - mean).abs() < 1e-12, "{found}, not {mean}");
    assert!((number(&found["standard_error"]) - error).abs() < 1e-12, "{found}, not {error}");
    assert_eq!(found["prompts"].as_u64(), Some(numbers.len() as u64));
}

/// Which samples of each prompt are solved, by group.
fn solved(rollouts: &[Rollout]) -> Vec<Vec<bool>> {
    let mut by_group: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
    rollouts.iter().for_each(|row| by_group.entry(row.group.number).or_default().push(row.reward.unwrap() >= 1.0));
    by_group.into_values().collect()
}

/// The share of pairs of samples of which one is solved.
fn pairs(solved: &[bool]) -> f64 {
    let all: Vec<bool> = (0..solved.len()).flat_map(|a| (0..a).map(move |b| solved[a] || solved[b])).collect();
    all.iter().filter(|found| **found).count() as f64 / all.len() as f64
}

/// Everything from the rollouts that it kept. Catches an error over rollouts, pass@k from the mean success, shares of other rows, and
/// rollouts that are kept in the order in which they came.
#[test]
fn numbers_are_those_of_its_rollouts() {
    let dir = toy_place();
    let ran = toy(&dir, &["--samples", "8", "--k", "8,1,2", "--rollouts", "r.parquet", "--json"]).ok();
    assert_eq!(ran.err, "");
    let json = ran.json();
    let path = dir.path().join("r.parquet");
    let file = read_step(&path).unwrap();
    assert_eq!((file.footer.metrics, file.notes), (None, Vec::<String>::new()));
    let rows = file.rollouts;
    let places: Vec<_> = rows.iter().map(|row| (row.group.number, row.sample)).collect();
    assert_eq!(places, (0..12).flat_map(|group| (0..8).map(move |sample| (group, sample))).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.status == Status::Waiting && row.version.iter().all(|v| *v == 0) && row.step == 1));

    let all = solved(&rows);
    let share = |of: fn(&[bool]) -> f64| all.iter().map(|one| of(one)).collect::<Vec<f64>>();
    let mean = |solved: &[bool]| solved.iter().filter(|x| **x).count() as f64 / 8.0;
    let total = &json["total"];
    assert_measure(&total["success"], &share(mean));
    assert_measure(&total["reward"], &share(mean));
    assert_measure(&total["pass_at"]["2"], &share(pairs));
    assert_measure(&total["pass_at"]["8"], &share(|solved| f64::from(u8::from(solved.contains(&true)))));
    // pass@1 is the mean success to the last bit.
    assert_eq!(total["pass_at"]["1"], total["success"]);
    let success = number(&total["success"]["mean"]);
    assert!(success > 0.05 && success < number(&total["pass_at"]["2"]["mean"]), "{total}");

    let tokens: usize = rows.iter().map(|row| row.tokens.len()).sum();
    let cut = rows.iter().filter(|row| row.stop == Stop::Length).count();
    assert_eq!((total["tokens"].as_u64(), number(&total["length"])), (Some(tokens as u64), tokens as f64 / 96.0));
    assert_eq!((number(&total["cut"]), total["rollouts"].as_u64()), (cut as f64 / 96.0, Some(96)));
    let tasks = json["tasks"].as_object().unwrap();
    assert_eq!(tasks.keys().collect::<Vec<_>>(), ["tfalse", "ttrue"]);
    assert_measure(&tasks["tfalse"]["success"], &share(mean)[..4]);
    assert_eq!((json["samples"].as_u64(), json["seed"].as_u64(), json["version"].as_u64()), (Some(8), Some(3), Some(0)));

    let analyzed = tidegate(dir.path(), &["analyze", "r.parquet", "--json"]).ok().json();
    assert_eq!(analyzed["runs"][0]["statuses"]["waiting"], 96);
    assert!((number(&analyzed["runs"][0]["reward"]["success_sampled"]) - success).abs() < 1e-12);
    toy(&dir, &["--rollouts", "r.parquet"]).refused(2, &["--rollouts = r.parquet: exists already; choose another name"]);
}

/// Catches draws that depend on what is sampled beside them, a seed that is not used, and samples that are all one.
#[test]
fn the_same_seed_comes_to_the_same() {
    let dir = toy_place();
    let of = |args: &[&str]| settled(toy(&dir, &[&["--samples", "4", "--json"][..], args].concat()));
    let first = of(&[]);
    assert_eq!(of(&[]), first);
    assert_eq!(of(&["--slots", "1"])["total"], first["total"]);
    assert_ne!(of(&["--seed", "4"])["total"], first["total"]);
    let pass = &first["total"]["pass_at"];
    assert!(number(&pass["4"]["mean"]) > number(&pass["1"]["mean"]), "{pass}");
}

/// Catches greedy answers that are drawn, or that are asked for several times.
#[test]
fn greedy_answers_are_the_same_whatever_the_seed() {
    let dir = toy_place();
    // The toy's tables are drawn from the seed too: a checkpoint has its own.
    let run =
        "steps=1 output=\"run\" batch={batch_size=8,group_size=4} eval.prompts=0 reward={kind=\"regex\",pattern=\"a\"}";
    fs::copy(dir.path().join("held.jsonl"), dir.path().join("train.jsonl")).unwrap();
    let sets = run.split(' ').flat_map(|set| ["--set", set]);
    tidegate(dir.path(), &["run", "toy.toml"].into_iter().chain(sets).collect::<Vec<_>>()).ok();
    let at = |seed: &str| {
        let args = ["run", "--data", "held.jsonl", "--greedy", "--seed", seed, "--rollouts", &format!("{seed}.parquet")];
        let ran = eval(dir.path(), &args).ok();
        assert!(ran.out.contains("\nanswers   1 a prompt, greedy, at most 6 tokens\n"), "{}", ran.out);
        let rows = read_step(&dir.path().join(format!("{seed}.parquet"))).unwrap().rollouts;
        assert!(rows.iter().all(|row| row.step == 2 && row.version.iter().all(|v| *v == 1)));
        rows.into_iter().map(|row| row.tokens).collect::<Vec<_>>()
    };
    assert_eq!(at("5"), at("6"));
    let json = settled(toy(&dir, &["--greedy", "--json"]));
    assert_eq!(settled(toy(&dir, &["--greedy", "--json"])), json);
    assert_eq!(json["total"]["pass_at"]["1"], json["total"]["success"]);
    toy(&dir, &["--greedy", "--samples", "4"]).refused(2, &["--samples = 4: greedy answers to a prompt are all the same"]);
    let both = toy(&dir, &["--greedy", "--temperature", "1"]);
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{}", both.err);
}

/// Catches another checkpoint, other prompts, other draws, or another count than those of the run's own evaluation at its end.
#[test]
fn a_run_is_evaluated_as_it_evaluated_itself() {
    for (flags, mode) in [(&["--json"][..], "sampled"), (&["--json", "--greedy"], "greedy")] {
        let json = eval(Path::new("/"), &[&[recorded_path()][..], flags].concat()).ok().json();
        let own = &recorded().summary["after"][mode]["tasks"];
        let tasks = json["tasks"].as_object().unwrap();
        assert_eq!(tasks.keys().collect::<Vec<_>>(), own.as_object().unwrap().keys().collect::<Vec<_>>());
        for (name, task) in tasks {
            let solved = number(&task["success"]["mean"]) * number(&task["prompts"]);
            let found = (solved.round(), number(&task["prompts"]), number(&task["tokens"]));
            let own = ["solved", "prompts", "tokens"].map(|key| number(&own[name][key]));
            assert_eq!(found, own.into(), "{mode} {name}");
        }
        assert_eq!(json["version"].as_u64(), Some(STEPS));
    }
    let only = eval(Path::new("/"), &[recorded_path(), "--tasks", "sorting", "--prompts", "5", "--json"]).ok().json();
    assert_eq!((only["tasks"].as_object().unwrap().len(), only["total"]["prompts"].as_u64()), (1, Some(5)));
}

/// Catches a default that a small model refuses, and columns, rewards or rows of a file that are not those that were named.
#[test]
fn a_models_folder_answers_tasks_or_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = bundled_model();
    let model = model.to_str().unwrap();
    let ran = eval(dir.path(), &[model, "--tasks", "sorting,addition", "--prompts", "6", "--samples", "2"]).ok();
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(lines[0].starts_with(&format!("model     {model}: ")) && lines[0].ends_with("; cpu in fp32"), "{}", ran.out);
    let answers = "answers   2 a prompt, temperature 1, at most 255 tokens, seed 1";
    assert_eq!(lines[1..3], ["prompts   6 held out, generated: addition, sorting", answers]);
    let end = "\n          ± is the standard error of the mean over prompts\nspeed     12 answers, ";
    assert!(ran.out.contains(end), "{}", ran.out);

    // There is nothing to compare an answer to the last one with.
    let rows = [r#"{"q": "s:31=", "a": "13"}"#, r#"{"q": "s:2914=", "a": "1249"}"#, r#"{"q": "s:21=", "a": ""}"#];
    fs::write(dir.path().join("p.jsonl"), rows.join("\n")).unwrap();
    let file = |args: &[&str]| {
        let start =
            [model, "--data", "p.jsonl", "--prompt", "q", "--answer", "a", "--max-tokens", "9", "--greedy", "--json"];
        eval(dir.path(), &[&start[..], args].concat())
    };
    let ran = file(&["--reward", "exact"]).ok();
    let note = "note      1 of 3 answers have no reward; the first: prompt 2 has no answer to compare with\n";
    assert!(ran.err.ends_with(note), "{}", ran.err);
    let total = &ran.json()["total"];
    assert_eq!(["prompts", "unscored", "refused"].map(|key| total[key].as_u64().unwrap()), [3, 1, 0]);
    assert_eq!((total["success"]["prompts"].as_u64(), &total["success"]), (Some(2), &total["reward"]));
    assert_eq!(file(&["--reward", "exact", "--prompts", "2"]).ok().json()["total"]["unscored"], 0);
    let judged = file(&["--reward", "{kind=\"regex\",pattern=\"^[0-9]+$\"}"]).ok().json();
    let total = &judged["total"];
    assert_eq!([&total["unscored"], &total["success"]["prompts"]].map(|n| n.as_u64().unwrap()), [0, 3]);
    let none = "reward = 3 prompts: can judge none of them: task \"data\" is not a generated one";
    file(&[]).refused(2, &[none, "set reward.kind to exact, numeric or regex"]);
    let none = file(&["--reward", "exact", "--set", "data.max_prompt_tokens=2"]);
    none.refused(
        1,
        &["p.jsonl: none of 3 answers has a reward: discarded: bad prompt: prompt 0 ", "data.max_prompt_tokens"],
    );
}

/// Catches a wrong call that is found after the model was loaded, or whose words do not say what would be right.
#[test]
fn wrong_calls_name_key_value_and_what_is_right() {
    let dir = toy_place();
    for (args, says) in [
        (&["nothing", "--tasks", "sorting"][..], "MODEL = nothing: no such folder; name a model's"),
        (&["toy.toml"], "MODEL = toy.toml: a specification is no model: tidegate eval [MODEL] --spec toy.toml"),
        (&["."], "--tasks, --data, --spec = none: say what is to be answered: --tasks sorting,addition,expression,program"),
        (&[".", "--tasks", "chess"], "--tasks = chess: no such task; allowed: sorting, addition, expression, program"),
        (&[".", "--tasks", "sorting"], "it has no config.json: name a model's folder"),
        (&[".", "--tasks", "sorting", "--samples", "2", "--k", "4"], "--k = 4: at most --samples = 2: "),
        (&["--spec", "toy.toml", "--top-p", "1.5"], "generate.top_p = 1.5: a number above 0, at most 1"),
        (&["--spec", "toy.toml", "--temperature=-1"], "generate.temperature = -1: a number from 0 up"),
        (&["--spec", "toy.toml", "--slots", "0"], "generate.slots = 0: at least 1, "),
        (&["--spec", "toy.toml", "--prompts", "0"], "eval.prompts = 0: at least 1, "),
        (&["--spec", "toy.toml", "--threads", "0"], "--threads = 0: at least 1 thread, at most 128"),
        (&["--spec", "toy.toml", "--dtype", "fp16"], "generate.dtype = \"fp16\": `fp16` is not allowed; "),
        (&["--spec", "toy.toml", "--device", "cuda:0"], "model.device = cuda:0: the toy engine is on the cpu"),
        (&["--spec", "toy.toml", "--reward", "numerc"], "did you mean `numeric`?"),
        (&["--spec", "toy.toml", "--set", "generate.tempreature=1"], "did you mean generate.temperature?"),
        (&["--spec", "toy.toml", "--rollouts", "r.json"], "--rollouts = r.json: a file whose name ends in .parquet"),
        (&["--spec", "none.toml"], "SPEC = none.toml: No such file"),
    ] {
        eval(dir.path(), args).refused(2, &[says]);
    }
    eval(dir.path(), &["--spec", "toy.toml"]).refused(1, &["train.jsonl: No such file"]);
    let ran = eval(dir.path(), &["--spec", "toy.toml"]);
    assert!(ran.err.starts_with("note      data.file is what the run trains on: --data FILE"), "{}", ran.err);
    let both = eval(dir.path(), &[".", "--tasks", "sorting", "--data", "held.jsonl"]);
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{}", both.err);
}

/// Catches an advice that does not work, and one to evaluate a run that has no held-out prompts (`ending.rs` has that).
#[test]
fn the_end_of_a_run_names_an_evaluation_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let spec = "steps = 1\ntask = [{ kind = 'sorting' }]\nmodel.engine = 'toy'\nbatch = { batch_size = 8, group_size = 4 }\n\
                generate = { slots = 8, max_tokens = 6 }\neval.prompts = 6\n";
    fs::write(dir.path().join("spec.toml"), spec).unwrap();
    let ran = tidegate(dir.path(), &["run", "spec.toml"]).ok();
    let next = ran.out.lines().last().unwrap().strip_prefix("next      tidegate ").unwrap();
    let (first, others) = next.split_once("    or    ").unwrap();
    assert_eq!(
        (first, others),
        ("eval runs/spec --samples 8", "tidegate analyze runs/spec    or    tidegate replay runs/spec")
    );
    let evaluated = tidegate(dir.path(), &first.split(' ').collect::<Vec<_>>()).ok();
    assert!(evaluated.out.starts_with("model     runs/spec/checkpoints/step-00000001: "), "{}", evaluated.out);
    assert!(evaluated.out.contains("\nprompts   6 held out, generated: sorting\nanswers   8 a prompt, temperature 1, "));
}

/// Catches an evaluation that says nothing for long, that a signal kills, or that passes half a result for one.
#[test]
fn it_shows_how_far_it_is_and_a_signal_ends_it() {
    let model = bundled_model();
    let what = ["--tasks", "expression", "--prompts", "4000", "--samples", "16", "--rollouts", "r.parquet"];
    let args = [&["eval", model.to_str().unwrap()][..], &what].concat();
    let running = Running::at(tempfile::tempdir().unwrap(), &["env", "--default-signal=INT"], &args);
    running.until_said("answers ");
    running.signal("INT");
    let (ran, dir) = running.end();
    ran.refused(130, &["error: stopped by signal 2"]);
    assert!(ran.err.contains("/64000  success ") && ran.err.contains("tok/s "), "{}", ran.err);
    let ending = "\nsignal 2: ending; an evaluation that is not done has no result; once more to end at once\n";
    assert!(ran.err.contains(ending) && ran.err.contains(" of 64000 answers, without a result\n"), "{}", ran.err);
    assert!(!dir.path().join("r.parquet").exists() && !dir.path().join("r.parquet.tmp").exists());
}
