//! `tidegate resume`: what it goes on from, what it refuses, and what it leaves alone.

use crate::harness::{Ran, bundled_model, copy, files, max_lag, place, recorded, steps, tidegate};
use crate::running::Running;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate::store::layout::LogFile;
use tidegate::store::ledger::State;
use tidegate::store::{RunFolder, read_step};
use tidegate_operators::record::Status;

const SPEC: &str = r#"
steps = 30
[model]
engine = "toy"
[[task]]
kind = "sorting"
[batch]
batch_size = 12
group_size = 4
[schedule]
max_lag = 2
[reward]
kind = "regex"
pattern = "^[0-4]"
[generate]
slots = 24
max_tokens = 12
[learn]
lr = 1e-2
warmup_steps = 2
[checkpoint]
every_steps = 10
every_minutes = 0.0
keep = 2
[eval]
prompts = 0
"#;

fn workplace() -> TempDir {
    place(SPEC)
}

/// A run that is through.
fn run(dir: &TempDir) -> RunFolder {
    tidegate(dir.path(), &["run", "spec.toml"]).ok();
    RunFolder::view(dir.path().join("runs/spec")).unwrap()
}

fn resume(dir: &TempDir, args: &[&str]) -> Ran {
    tidegate(dir.path(), &["resume", "runs/spec"].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
}

/// Takes the steps after `last` away, as if they had never been sealed, with what was written at the end.
fn cut(folder: &RunFolder, last: u64) {
    for step in folder.sealed_steps().unwrap().into_iter().filter(|step| *step > last) {
        fs::remove_file(folder.log_file(LogFile::Step(step))).unwrap();
    }
    for step in folder.checkpointed_steps().unwrap().into_iter().filter(|step| *step > last) {
        fs::remove_dir_all(folder.checkpoint(step)).unwrap();
    }
    let _ = fs::remove_file(folder.metrics());
}

fn numbers(folder: &RunFolder) -> Vec<u64> {
    let all = steps(folder).into_iter().flat_map(|file| file.rollouts).filter(|row| row.sample == 0);
    all.map(|row| row.group.number).collect()
}

/// Catches checkpoints that are not taken when due, of which too many stay, or whose state is not the log's.
#[test]
fn checkpoints_come_when_due_and_the_newest_stay() {
    let dir = workplace();
    let folder = run(&dir);
    let kept = folder.checkpointed_steps().unwrap();
    assert!(kept.len() == 2 && kept[1] == 30 && kept[0].is_multiple_of(10), "{kept:?}");
    for step in kept {
        let state = State::read(&folder.checkpoint(step)).unwrap();
        let sealed = read_step(&folder.log_file(LogFile::Step(step))).unwrap().footer.metrics.unwrap();
        assert_eq!((state.step, &state.weights, state.finished_ns), (step, &sealed.weights, sealed.finished_ns));
        assert!(folder.checkpoint(step).join("optimizer.safetensors").exists());
    }
}

/// Catches a best checkpoint that is removed with the old ones, that is not the best, or is forgotten by a resume.
#[test]
fn the_best_checkpoint_stays() {
    let dir = workplace();
    let evaluated = ["eval.prompts=40", "eval.when=checkpoints", "checkpoint.every_steps=3", "checkpoint.keep=1"];
    let sets: Vec<&str> = evaluated.iter().flat_map(|set| ["--set", set]).collect();
    let ran = tidegate(dir.path(), &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>()).ok();
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    let said = |err: &str| {
        let lines = err.lines().filter_map(|line| line.strip_prefix("held out  after step "));
        let numbers = lines.map(|line| line.split(|c: char| !c.is_ascii_digit() && c != '.').filter(|n| !n.is_empty()));
        let numbers = numbers.map(|mut n| (n.next().unwrap().parse().unwrap(), n.next().unwrap().parse().unwrap()));
        numbers.collect::<Vec<(u64, f64)>>()
    };
    let first_of_the_best = |all: &[(u64, f64)]| {
        let best = all.iter().map(|(_, rate)| *rate).fold(f64::MIN, f64::max);
        all.iter().find(|(_, rate)| *rate == best).unwrap().0
    };
    let mut all = said(&ran.err);
    assert!(all.len() >= 2, "{}", ran.err);
    let link = folder.checkpoints().join("best");
    let kept = || fs::read_link(&link).unwrap().display().to_string();
    assert_eq!(kept(), format!("step-{:08}", first_of_the_best(&all)));
    assert!(link.join("evaluation.json").exists() && link.join("model.safetensors").exists());
    let checkpoints = folder.checkpointed_steps().unwrap();
    assert_eq!(checkpoints.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([first_of_the_best(&all), 30]));
    all.extend(said(&resume(&dir, &["--set", "steps=40"]).ok().err));
    assert_eq!(kept(), format!("step-{:08}", first_of_the_best(&all)));
}

/// Catches a run that goes on from anything but its last sealed step, that samples a prompt twice or skips one, and one of which
/// the parts do not make a whole. Cut behind a checkpoint, at one, before the first, and before anything.
#[test]
fn a_run_goes_on_from_its_last_sealed_step() {
    let dir = workplace();
    let folder = run(&dir);
    let whole = dir.path().join("whole");
    copy(folder.path(), &whole);
    for last in [24, 20, 7, 0] {
        let _ = fs::remove_dir_all(folder.path());
        copy(&whole, folder.path());
        fs::create_dir_all(folder.checkpoints()).unwrap();
        cut(&folder, last);
        let ran = resume(&dir, &[]).ok();
        assert!(ran.err.contains(&format!("resume    after step {last} of 30: ")), "{}", ran.err);
        assert_eq!(folder.sealed_steps().unwrap(), (1..=30).collect::<Vec<_>>());
        let numbers = numbers(&folder);
        let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!((numbers.len(), distinct.len()), (90, 90));
        assert!(*distinct.last().unwrap() < 90 + 9, "no more than the bound lets be under way is left");
        assert!(max_lag(&folder) <= 2);
        let replayed = tidegate(dir.path(), &["replay", "runs/spec"]).ok();
        assert!(replayed.out.contains("30 steps") && replayed.out.contains("bit for bit"), "{}", replayed.out);
        assert!(files(folder.path()).iter().all(|name| !name.contains(".tmp")));
        tidegate(dir.path(), &["analyze", "runs/spec"]).ok();
    }
    let done = resume(&dir, &[]);
    done.refused(2, &["steps = 30: all of them are done; to train further, --set steps=60"]);
}

/// Catches rollouts that were complete at a clean stop and are sampled again, or trained too late.
#[test]
fn what_waited_is_trained() {
    let dir = workplace();
    // A learner that waits for its log, and generators that do not: much waits.
    let running = Running::at(dir, &["env", "--default-signal=INT"], &["run", "spec.toml", "--set", "steps=100000"]);
    running.until("rollouts/step-00000006.parquet");
    running.signal("INT");
    let (ran, dir) = running.end();
    assert_eq!(ran.code, 130, "{}", ran.err);
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    let Some(tail) = folder.tail().unwrap() else { panic!("nothing waited: {}", ran.err) };
    let waited = read_step(&folder.log_file(tail)).unwrap().rollouts;
    let last = *folder.sealed_steps().unwrap().last().unwrap();
    let ran = resume(&dir, &["--set", &format!("steps={}", last + 6)]).ok();
    assert!(ran.err.contains(&format!("{} groups wait", waited.len() / 4)), "{}", ran.err);
    let trained = steps(&folder).into_iter().flat_map(|file| file.rollouts).collect::<Vec<_>>();
    for row in waited {
        let again = trained.iter().find(|now| (now.group.number, now.sample) == (row.group.number, row.sample)).unwrap();
        assert_eq!(
            (&again.tokens, &again.logp_behavior, again.status.clone()),
            (&row.tokens, &row.logp_behavior, Status::Trained)
        );
        assert!(again.step > last && again.step <= row.group.due);
    }
    assert!(max_lag(&folder) <= 2);
    tidegate(dir.path(), &["replay", "runs/spec"]).ok();
}

/// Catches a change that makes two runs out of one, one that is harmless and refused, and a replay that does not follow it.
#[test]
fn what_a_run_can_change_in_its_middle() {
    let dir = workplace();
    let folder = run(&dir);
    let spec = fs::read_to_string(folder.spec()).unwrap();
    for (set, says) in [
        (
            "schedule.max_lag=3",
            "schedule.max_lag = 3: the run has 2 and cannot change it in its middle; it can change steps, ",
        ),
        ("batch.group_size=2", "batch.group_size = 2: the run has 4"),
        ("seed=9", "seed = 9: the run has 1"),
        ("learn.value_coef=0.1", "learn.value_coef = 0.1: the run has 0.0"),
        ("reward.pattern=x", "reward.pattern = \"x\": the run has \"^[0-4]\""),
        ("lern.lr=1", "did you mean learn"),
        ("output=other", "--set = output=other: a run that goes on stays in its folder"),
        ("workers={generators=[0],learners=[0],generator_threads=2}", "the learner's worker had 1 threads"),
    ] {
        resume(&dir, &["--set", "steps=40", "--set", set]).refused(2, &[says]);
    }
    assert_eq!(fs::read_to_string(folder.spec()).unwrap(), spec, "a refused change leaves the specification");
    let sets = ["steps=36", "learn.lr=1e-3", "learn.lr_schedule=constant", "generate.slots=8", "checkpoint.keep=1"];
    resume(&dir, &sets.iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>()).ok();
    let rates: Vec<f64> = steps(&folder).iter().map(|file| file.footer.metrics.as_ref().unwrap().lr).collect();
    assert!(rates[29] < 1e-3 && rates[30..] == [1e-3; 6], "{rates:?}");
    assert_eq!(folder.checkpointed_steps().unwrap(), [36]);
    tidegate(dir.path(), &["replay", "runs/spec"]).ok();
    // Edited by hand is as good, or as bad, as set.
    fs::write(folder.spec(), fs::read_to_string(folder.spec()).unwrap().replace("max_lag = 2", "max_lag = 9")).unwrap();
    resume(&dir, &["--set", "steps=40"]).refused(2, &["schedule.max_lag = 9: the run has 2"]);
}

/// Catches a run of two types, which neither a replay nor a resume without checkpoints comes to the bits of.
#[test]
fn the_type_that_is_computed_in_stays() {
    let dir = tempfile::tempdir().unwrap();
    copy(recorded().folder.path(), &dir.path().join("run"));
    let resume = ["resume", "run", "--set", "steps=8", "--set", "learn.dtype=bf16"];
    tidegate(dir.path(), &resume).refused(2, &["learn.dtype = \"bf16\": the run has \"fp32\" and cannot change it"]);
}

/// Catches two writers in one folder, and a run in a taken folder that does not say how to go on with the one that is there.
#[test]
fn one_writer_a_folder() {
    let dir = workplace();
    let running = Running::at(dir, &["env"], &["run", "spec.toml", "--set", "steps=100000"]);
    running.until("rollouts/step-00000002.parquet");
    let place = running.path();
    let here = place.parent().unwrap().parent().unwrap();
    tidegate(here, &["resume", "runs/spec"]).refused(1, &["runs/spec: another process is writing into this run"]);
    let second = tidegate(here, &["run", "spec.toml"]).ok();
    assert!(second.err.contains("note      runs/spec holds a run of "), "{}", second.err);
    assert!(second.err.contains("To go on with the other: tidegate resume runs/spec"), "{}", second.err);
    assert!(here.join("runs/spec-2/rollouts/step-00000001.parquet").exists());
    running.signal("KILL");
    let dir = running.killed();
    let last = RunFolder::view(dir.path().join("runs/spec")).unwrap().sealed_steps().unwrap().len();
    resume(&dir, &["--set", &format!("steps={}", last + 2)]).ok();
}

/// Catches a damaged checkpoint that ends the run or is used, a log that is not whole being gone on from, and bits that differ
/// without a word.
#[test]
fn the_log_is_the_truth() {
    let dir = workplace();
    let folder = run(&dir);
    cut(&folder, 24);
    let checkpoint = folder.checkpoint(20);
    let model = checkpoint.join("model.safetensors");
    let whole = fs::read(&model).unwrap();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    fs::write(&model, flipped).unwrap();
    let ran = resume(&dir, &["--set", "steps=26"]).ok();
    let note = "checkpoints/step-00000020 cannot be used: ";
    assert!(
        ran.err.contains(note) && ran.err.contains("damaged: its hash is not the one that state.json has"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("training steps 11 to 24 again") || ran.err.contains("training steps 1 to 24 again"),
        "{}",
        ran.err
    );
    tidegate(dir.path(), &["replay", "runs/spec"]).ok();
    // A checkpoint whose place in the log, or whose optimizer, is not as it was written.
    for (file, from, to) in [("state.json", "\"next\"", "\"nexT\""), ("state.json", "\"step\": 26", "\"step\": 25")] {
        let path = folder.checkpoint(26).join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let ran = resume(&dir, &["--set", "steps=26"]).ok();
        assert!(ran.err.contains("checkpoints/step-00000026 cannot be used: "), "{}", ran.err);
        assert_eq!(State::read(&folder.checkpoint(26)).unwrap().step, 26, "it is made anew");
    }
    let optimizer = folder.checkpoint(26).join("optimizer.safetensors");
    let mut bytes = fs::read(&optimizer).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&optimizer, bytes).unwrap();
    let ran = resume(&dir, &["--set", "steps=27"]).ok();
    assert!(ran.err.contains("optimizer.safetensors: damaged: its hash is not the one that state.json has"), "{}", ran.err);
    tidegate(dir.path(), &["replay", "runs/spec"]).ok();
    // One that is ahead of the log is no checkpoint of it.
    copy(&folder.checkpoint(27), &folder.checkpoint(99));
    let ran = resume(&dir, &["--set", "steps=28"]).ok();
    assert!(ran.err.contains("checkpoints/step-00000099 is of a step that the log does not have"), "{}", ran.err);
    assert_eq!(folder.checkpointed_steps().unwrap(), [27, 28]);
    resume(&dir, &["--set", "steps=20"]).refused(2, &["steps = 20: 28 steps are done already"]);
    cut(&folder, 25);
    fs::remove_file(folder.log_file(LogFile::Step(4))).unwrap();
    resume(&dir, &[]).refused(1, &["holds step 5 but not step 4: a file of the log is missing"]);
    resume(&dir, &["--set", "steps=30"]).refused(1, &["holds step 5 but not step 4"]);
    tidegate(dir.path(), &["resume", "nowhere"]).refused(1, &["nowhere: there is no such folder"]);
}

/// Catches other prompts in the middle of a run, and a damaged tail that keeps a run from going on.
#[test]
fn prompts_are_those_of_the_run() {
    let dir = workplace();
    let rows = |n: u32, first: u32| {
        let row = |i| format!("{{\"prompt\": \"s:{}=\", \"answer\": \"1\"}}\n", first + i);
        fs::write(dir.path().join("p.jsonl"), (0..n).map(row).collect::<String>()).unwrap();
    };
    rows(40, 100);
    let sets = ["task=[]", "data.file=p.jsonl", "steps=8"].into_iter().flat_map(|set| ["--set", set]);
    tidegate(dir.path(), &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>()).ok();
    for (n, first) in [(40, 101), (20, 100), (80, 100)] {
        rows(n, first);
        let refused = resume(&dir, &["--set", "steps=9"]);
        refused.refused(2, &["data.file = p.jsonl: group ", "these are not the prompts of the run"]);
    }
    rows(40, 100);
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    fs::write(folder.log_file(LogFile::Tail(3)), "no Parquet").unwrap();
    let ran = resume(&dir, &["--set", "steps=10"]).ok();
    assert!(
        ran.err.contains("waiting-00000003.parquet") && ran.err.contains("its rollouts are sampled again"),
        "{}",
        ran.err
    );
}

/// Catches a checkpoint that is not a model by itself: the model that the run started from is gone.
#[test]
fn a_checkpoint_is_all_that_is_needed() {
    let dir = workplace();
    let model = dir.path().join("model");
    copy(&bundled_model(), &model);
    let sets = ["model.engine=torch", &format!("model.path={}", model.display()), "steps=4", "checkpoint.every_steps=2"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).chain(["--set", "reward={kind=\"task\"}"]).collect();
    tidegate(dir.path(), &["run", "spec.toml"].into_iter().chain(sets).collect::<Vec<_>>()).ok();
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    let away: PathBuf = dir.path().join("elsewhere");
    fs::rename(&model, &away).unwrap();
    // The checkpoint that it went on from goes away as well, and the tokenizer must not go with it.
    resume(&dir, &["--set", "steps=9", "--set", "checkpoint.keep=1"]).ok();
    assert_eq!((folder.sealed_steps().unwrap().len(), folder.checkpointed_steps().unwrap()), (9, vec![9]));
    let again = resume(&dir, &["--set", "steps=10"]).ok();
    assert!(!again.err.contains("cannot be used"), "{}", again.err);
    let path = format!("model.path={}", away.display());
    let replayed = tidegate(dir.path(), &["replay", "runs/spec", "--set", &path]).ok();
    assert!(replayed.out.contains("10 steps") && replayed.out.contains("bit for bit"), "{}", replayed.out);
    assert!(Path::new(&folder.checkpoint(10)).join("tokenizer.json").exists());
}
