//! Wrong usage: the exit code, and one line that names the key, its value and what would be right.

use crate::harness::{recorded_path, run, tidegate, workplace};
use std::fs;

/// Each of these once trained, hung, or failed with words that named nothing. Nothing may be left behind either: a refused
/// run that claims a folder makes the next one `-2`.
#[test]
fn wrong_values_are_refused_by_key_value_and_what_is_right() {
    let dir = workplace();
    for (set, says) in [
        ("learn.lrr=1", &["learn.lrr = 1: no such key; did you mean learn.lr? allowed: "][..]),
        ("dta.file=a.jsonl", &["dta = ", "did you mean data? allowed: batch, checkpoint, curriculum, data, "]),
        ("eval.dat.file=1", &["eval.dat = ", "did you mean eval.data? allowed: data, prompts"]),
        ("batch.batch_size=10", &["batch.batch_size = 10: ", "batch.group_size = 4", "8 or 12"]),
        ("batch.batch_size=0", &["batch.batch_size = 0: ", "batch.group_size = 4"]),
        ("batch.group_size=0", &["batch.group_size = 0: at least 1"]),
        ("generate.top_p=0.9", &["generate.top_p = 0.9: training needs 1.0"]),
        ("generate.top_k=5", &["generate.top_k = 5: training needs 0"]),
        ("generate.temperature=0", &["generate.temperature = 0: a number above 0"]),
        ("generate.max_tokens=256", &["generate.max_tokens = 256: ", "longest sequence, prompt included, is 256 tokens"]),
        ("generate.max_tokens=0", &["generate.max_tokens = 0: at least 1"]),
        ("generate.dtype=fp16", &["generate.dtype = \"fp16\": ", "`fp32`, `bf16`"]),
        ("generate.slots=3", &["generate.slots = 3: ", "batch.group_size = 4"]),
        ("workers.learners=[0,1]", &["workers.learners = [0, 1]: ", "allowed: a list of one index"]),
        ("workers.processes=2", &["workers.processes = 2: ", "allowed: 1"]),
        ("workers.generators=[]", &["workers.generators = []: at least one"]),
        ("workers.generators=[0,0]", &["workers.generators = [0, 0]: worker 0 is listed twice"]),
        ("generate.slots=-1", &["generate.slots = -1: expected a whole number, 0 or more"]),
        ("learn.lr_schedule=cosin", &["learn.lr_schedule = \"cosin\": ", "did you mean `cosine`?"]),
        ("workers.learner_threads=0", &["workers.learner_threads = 0: at least 1"]),
        ("learn.loss=grpo", &["learn.loss = \"grpo\": ", "`reinforce`, `cispo`, `ppo`"]),
        ("learn.loss=supervised", &["learn.loss = supervised: ", "allowed: any other", "reinforce"]),
        ("learn.loss={ppo={clip=0.2}}", &["learn.loss.ppo.clip = 0.2: no such key; ", "allowed: clip_low, clip_high"]),
        ("learn.loss={dual_clip={cap_negative=0}}", &["learn.loss.dual_clip.cap_negative = 0: a number from 1 up"]),
        ("learn.loss={sequence_truncated={ratio='mean'}}", &["`mean` is not allowed", "`product`, `geometric_mean`"]),
        ("learn.loss={pppo={clip_low=0.2}}", &["learn.loss = ", "is not allowed; did you mean `ppo`?"]),
        (
            "learn.aggregation=token_men",
            &["learn.aggregation = \"token_men\": `token_men` is not allowed; did you mean `token_mean`?"],
        ),
        ("task=[{kind='sorting'},{kind='addition',wieght=2}]", &["task[1].wieght = 2: ", "did you mean task[1].weight?"]),
        ("task=[{kind='srting'}]", &["task.kind = [\"srting\"]: ", "did you mean `sorting`?"]),
        ("data={file='a.jsonl',promt='q'}", &["data.promt = \"q\": ", "did you mean data.prompt?"]),
        ("data={fil='a.jsonl'}", &["data.fil = \"a.jsonl\": ", "did you mean data.file?"]),
        ("data={prompt='q'}", &["data.file = absent: "]),
        ("data={file='a.jsonl',order='shufled'}", &["data.order = \"shufled\": ", "did you mean `shuffled`?"]),
        ("eval.data.fiel='a.jsonl'", &["eval.data.fiel = \"a.jsonl\": ", "did you mean eval.data.file?"]),
        ("reward={kind='numeric',tolerence=1}", &["reward.tolerence = 1: ", "did you mean reward.tolerance?"]),
        ("reward={kind='numerc'}", &["reward.kind = \"numerc\": ", "did you mean `numeric`?"]),
        (
            "reward={kind='task',after='x'}",
            &["reward.after = \"x\": means nothing with reward.kind = \"task\"; allowed: kind"],
        ),
        ("reward={kind='exact',tolerance=1}", &["reward.tolerance = 1: no such key; ", "allowed: after"]),
        ("learn.lr=nan", &["learn.lr = NaN: a number above 0"]),
        ("learn.value_coef=-1", &["learn.value_coef = -1: a number from 0 up"]),
        ("learn.grad_clip=-0.5", &["learn.grad_clip = -0.5: a number from 0 up"]),
        ("learn.beta2=1", &["learn.beta2 = 1: ", "below 1"]),
        ("learn.micro_batch_tokens=0", &["learn.micro_batch_tokens = 0: at least 1"]),
        ("estimate.advantage=gaee", &["estimate.advantage = \"gaee\": ", "`leave_one_out`", "did you mean `gae`?"]),
        ("estimate.advantage={gae={}}", &["estimate.advantage = gae: reads a critic's values: learn.value_coef above 0"]),
        (
            "estimate.advantage={gae={lamda=1.0}}",
            &["estimate.advantage.gae.lamda = 1.0: no such key", "allowed: gamma, lambda"],
        ),
        ("schedule.kind=asynchronous", &["schedule.kind = \"asynchronous\": ", "`pipeline`"]),
        ("schedule.max_lag=-1", &["schedule.max_lag = -1: "]),
        (
            "schedule={kind='conventional',max_lag=4}",
            &["schedule.max_lag = 4: means nothing with schedule.kind = \"conventional\"; allowed: "],
        ),
        ("schedule.steps=1", &["schedule.steps = 1: means nothing with schedule.kind = \"pipeline\"; allowed: "]),
        ("steps=0", &["steps = 0: at least 1"]),
        ("steps=many", &["steps = \"many\": "]),
        ("task=[]", &["data = ", "no prompts: ", "data.file", "[[task]]"]),
        ("task=[{kind='sorting'},{kind='chess'}]", &["task.kind = [\"sorting\", \"chess\"]: ", "`chess`", "`expression`"]),
        ("model.path=''", &["model.path = \"\": name a model's folder"]),
        ("model.device=gpu", &["device = gpu: it must be cpu, cuda or cuda:N"]),
        ("reward={kind='numeric',tolerance=-1}", &["reward.tolerance = -1: ", "from 0 up"]),
        ("nonsense", &["--set = nonsense: expected key=value, for example "]),
        ("steps.more=1", &["--set = steps.more=1: steps is not a table"]),
    ] {
        run(&dir, &[set]).refused(2, says);
        assert!(!dir.path().join("runs").exists(), "{set} left something");
    }
}

/// Catches a default that is written out though it means nothing, and then refused when the text is used.
#[test]
fn what_is_printed_of_a_specification_can_be_run() {
    let dir = workplace();
    // Another kind of schedule by `--set` is not held to the keys that the file has for its own.
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/data/demo.toml");
    let printed = tidegate(dir.path(), &["run", demo, "--set", "schedule.kind=conventional", "--print-spec"]).ok().out;
    assert!(printed.contains("\n[schedule]\nkind = \"conventional\"\nsteps = 1\n"), "{printed}");
    for kind in ["pipeline", "conventional", "one_step_off"] {
        let set = format!("schedule={{kind='{kind}'}}");
        let printed = tidegate(dir.path(), &["run", "spec.toml", "--set", &set, "--print-spec"]).ok().out;
        fs::write(dir.path().join("printed.toml"), &printed).unwrap();
        assert_eq!(tidegate(dir.path(), &["run", "printed.toml", "--print-spec"]).ok().out, printed);
    }
}

/// Catches keys that are taken and that the help does not name.
#[test]
fn the_help_of_set_names_the_keys_that_it_takes() {
    let dir = workplace();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let refused = tidegate(dir.path(), &["replay", recorded_path(), "--set", "seed=2"]);
    let keys = refused.err.trim().rsplit_once("allowed: ").unwrap().1.to_owned();
    assert!(keys.starts_with("learn.*, ") && keys.contains("model.*"), "{keys}");
    let help = words(&tidegate(dir.path(), &["replay", "--help"]).ok().out);
    assert!(help.contains(&format!("({keys})")), "{help}");
    let refused = tidegate(dir.path(), &["resume", recorded_path(), "--set", "seed=2"]);
    let keys = refused.err.trim().rsplit_once("it can change ").unwrap().1.to_owned();
    assert!(keys.starts_with("steps, ") && keys.contains("; but not learn.value_coef, "), "{keys}");
    let help = words(&tidegate(dir.path(), &["resume", "--help"]).ok().out);
    assert!(help.contains(&format!("These are {keys}. For example: ")), "{help}");
}

/// Catches a CUDA device that is taken where libtorch has none, and a message that does not say which one was asked for.
#[test]
fn a_device_that_is_not_there_is_refused() {
    let dir = workplace();
    // On a machine with fewer devices than this it is not there either.
    let ran = tidegate(dir.path(), &["run", "spec.toml", "--device", "cuda:99"]);
    ran.refused(2, &["device = cuda:99: "]);
}

/// Catches a missing file that is not named, and a spec whose fault has no place.
#[test]
fn files_that_are_not_there_or_not_right_are_named() {
    let dir = workplace();
    tidegate(dir.path(), &["run", "nothing.toml"]).refused(2, &["SPEC = nothing.toml: No such file"]);
    fs::write(dir.path().join("bad.toml"), "steps = 3\n[learn]\nlr 3\n").unwrap();
    let ran = tidegate(dir.path(), &["run", "bad.toml"]);
    ran.refused(2, &["SPEC = bad.toml: no TOML at line 3, column 4: ", "expected `=`"]);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    fs::write(dir.path().join("lrr.toml"), "steps = 3\n[learn]\nlrr = 3\n").unwrap();
    tidegate(dir.path(), &["run", "lrr.toml"]).refused(2, &["learn.lrr = 3: ", "did you mean learn.lr?"]);
    run(&dir, &["model.path=/nothing/here"]).refused(2, &["model.path = /nothing/here: no such folder", "config.json"]);
    run(&dir, &["model.path=."]).refused(2, &["model.path = .: it has no config.json: name a model's folder"]);
    fs::write(dir.path().join("large.toml"), "#".repeat((1 << 20) + 1)).unwrap();
    tidegate(dir.path(), &["run", "large.toml"]).refused(2, &["SPEC = large.toml: larger than 1048576 bytes"]);
    fs::write(dir.path().join("latin.toml"), b"output = \"caf\xE9\"\n").unwrap();
    tidegate(dir.path(), &["run", "latin.toml"]).refused(2, &["SPEC = latin.toml: byte 14 is not UTF-8"]);
    assert!(!dir.path().join("runs").exists());
}

/// Catches a program that trains although it was called wrongly, and help that goes where errors go.
#[test]
fn calls_without_sense() {
    let dir = workplace();
    for args in [&[][..], &["fly"], &["run"], &["run", "spec.toml", "--sett", "steps=1"], &["replay"], &["eval"], &["sft"]] {
        let ran = tidegate(dir.path(), args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}");
        assert!(ran.err.contains("Usage: tidegate"), "{}", ran.err);
    }
    let help = tidegate(dir.path(), &["--help"]).ok();
    for command in ["run", "replay", "analyze", "eval", "sft"] {
        assert!(help.out.contains(&format!("\n  {command} ")), "{}", help.out);
        assert!(tidegate(dir.path(), &[command, "--help"]).ok().out.contains(&format!("Usage: tidegate {command} ")));
    }
    assert!(tidegate(dir.path(), &["--version"]).ok().out.starts_with("tidegate "));
}
