//! What is evaluated, and on what: the weights that the arguments name, and the specification that they come with.

use crate::error::{Error, Result};
use crate::jobs::eval::job::Options;
use crate::jobs::say;
use crate::spec::{EngineKind, EvalSpec, Spec, check_threads, text_of};
use crate::store::RunFolder;
use crate::store::ledger::State;
use crate::tasks::generated::Kind;
use crate::tasks::spec::{RewardSpec, TaskSpec};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use tidegate_operators::record::{Step, Version};

/// All of a file's rows, as far as anybody has so many.
const ALL: usize = 1 << 24;

/// As many threads as anybody may ask for.
const MOST_THREADS: u16 = 128;

/// What is evaluated, checked.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// What of it an evaluation reads: the prompts are those of `data`, or of `task`, `eval.prompts` of them.
    pub(super) spec: Spec,
    /// Where the weights are; None for new tables of the toy engine.
    pub(super) folder: Option<PathBuf>,
    pub(super) version: Version,
    pub(super) samples: u32,
    /// In ascending order.
    pub(super) ks: Vec<u64>,
    pub(super) threads: u16,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    Run(RunFolder),
    Checkpoint(RunFolder, Step),
    Model,
}

impl Subject {
    /// # Errors
    /// A folder that holds no model and no run, a run without a checkpoint; a specification that is not as an evaluation needs it;
    /// no prompts.
    pub(super) fn choose(options: &Options) -> Result<Subject> {
        let place = options.model.as_deref().map(place).transpose()?;
        let own = match &place {
            Some(Place::Run(run) | Place::Checkpoint(run, _)) => Some(run.clone()),
            Some(Place::Model) | None => None,
        };
        // A run that is named as a specification is also what is evaluated, where nothing else is.
        let other = options.spec.as_deref().filter(|path| path.is_dir()).map(RunFolder::view).transpose()?;
        let path = match (&other, &options.spec, &own) {
            (Some(run), ..) | (None, None, Some(run)) => Some(run.spec()),
            (None, path, _) => path.clone(),
        };
        let text = path.as_deref().map_or(Ok(String::new()), text_of)?;
        let name = path.as_ref().map_or_else(String::new, |path| path.display().to_string());
        let mut spec = Spec::of_evaluation(&text, &name, &options.sets)?;
        let (folder, version) = match (place, options.model.clone(), other) {
            (Some(Place::Run(run)), ..) | (None, _, Some(run)) => newest(&run, &spec)?,
            (Some(Place::Checkpoint(_, step)), folder, _) => (folder, step),
            (Some(Place::Model) | None, folder, _) => (folder, 0),
        };
        name_the_model(&mut spec, folder.as_deref())?;
        choose_prompts(&mut spec, options)?;
        // An evaluation asks no critic.
        spec.learn.value_coef = 0.0;
        spec.check_evaluation()?;
        let (samples, ks) = samples(options, spec.generate.temperature)?;
        let threads = match (options.threads, path) {
            (Some(threads), _) => threads,
            // As a run evaluates itself.
            (None, Some(_)) => spec.workers.generator_threads.saturating_add(spec.workers.learner_threads),
            (None, None) => {
                let cores = available_parallelism().map_or(1, |cores| cores.get());
                u16::try_from(cores).unwrap_or(MOST_THREADS).min(MOST_THREADS)
            }
        };
        check_threads("--threads", threads)?;
        Ok(Subject { spec, folder, version, samples, ks, threads })
    }
}

fn place(path: &Path) -> Result<Place> {
    if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
        let why = format!("a specification is no model: tidegate eval [MODEL] --spec {}", path.display());
        return Err(Error::config("MODEL", path.display(), why));
    }
    if !path.is_dir() {
        let why = "no such folder; name a model's (config.json, model.safetensors, tokenizer.json), a run's, or that of one of \
                   its checkpoints";
        return Err(Error::config("MODEL", path.display(), why));
    }
    if let Ok(run) = RunFolder::view(path) {
        return Ok(Place::Run(run));
    }
    // `checkpoints/best` is a link.
    let full = path.canonicalize().map_err(|e| Error::file(path, e))?;
    let run = full.ancestors().nth(2).and_then(|run| RunFolder::view(run).ok());
    let step = full.file_name().and_then(|name| name.to_str()?.strip_prefix("step-")?.parse().ok());
    Ok(match (run, step) {
        (Some(run), Some(step)) if run.checkpoint(step) == full => Place::Checkpoint(run, step),
        _ => Place::Model,
    })
}

/// The newest checkpoint of a run.
fn newest(run: &RunFolder, spec: &Spec) -> Result<(Option<PathBuf>, Version)> {
    let Some(step) = run.checkpointed_steps()?.pop() else {
        let began = match spec.model.engine {
            EngineKind::Torch => format!("; what it began with is {}", spec.model.path.display()),
            EngineKind::Toy | EngineKind::Emulation => String::new(),
        };
        let why = format!("has no checkpoint yet: one is written every checkpoint.every_minutes, and at a run's end{began}");
        return Err(Error::file(run.path(), why));
    };
    let folder = run.checkpoint(step);
    State::read(&folder)?;
    Ok((Some(folder), step))
}

fn name_the_model(spec: &mut Spec, folder: Option<&Path>) -> Result<()> {
    match (spec.model.engine, folder) {
        (EngineKind::Torch, None) if spec.model.path.as_os_str().is_empty() => {
            let why = "the specification names no model: tidegate eval MODEL --spec SPEC.toml";
            Err(Error::config("model.path", "\"\"", why))
        }
        (EngineKind::Torch, Some(folder)) => {
            folder.clone_into(&mut spec.model.path);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Leaves in the specification the prompts that are asked, and how many.
fn choose_prompts(spec: &mut Spec, options: &Options) -> Result<()> {
    let held_out = spec.eval.data.take();
    match (&options.data, options.tasks.as_slice()) {
        // `data` is what `--data` asked for.
        (Some(_), _) => {}
        (None, []) => {
            if held_out.is_none() && spec.data.is_some() {
                say(
                    "note      data.file is what the run trains on: --data FILE, or eval.data.file of its specification, names \
                     prompts that it does not",
                );
            }
            spec.data = held_out.or(spec.data.take());
        }
        (None, tasks) => {
            // A file's rule would look for something else in their answers.
            if spec.data.take().is_some() && !options.sets.iter().any(|set| set.trim_start().starts_with("reward")) {
                spec.reward = RewardSpec::Task;
            }
            spec.task = tasks.iter().map(|name| task(name, &spec.task)).collect::<Result<_>>()?;
        }
    }
    if spec.data.is_none() && spec.task.is_empty() {
        let why = format!(
            "say what is to be answered: --tasks {} (generated), --data FILE.jsonl (or .parquet), or --spec SPEC.toml",
            Kind::ALL.map(Kind::name).join(",")
        );
        return Err(Error::config("--tasks, --data, --spec", "none", why));
    }
    spec.eval.prompts = match (options.prompts, &options.data, spec.eval.prompts) {
        (Some(prompts), ..) => prompts,
        (None, Some(_), _) => ALL,
        // A run that is not evaluated says nothing of how many there are.
        (None, None, 0) => EvalSpec::default().prompts,
        (None, None, prompts) => prompts,
    };
    Ok(())
}

/// A task as the specification has it, or with its own sizes.
fn task(name: &str, known: &[TaskSpec]) -> Result<TaskSpec> {
    let Some(kind) = Kind::from_name(name) else {
        let why = format!("no such task; allowed: {}", Kind::ALL.map(Kind::name).join(", "));
        return Err(Error::config("--tasks", name, why));
    };
    let own = || TaskSpec::new(kind).with_defaults();
    Ok(known.iter().find(|task| task.kind == kind).cloned().unwrap_or_else(own))
}

/// Rollouts a prompt, and for which k pass@k is told: 1, and all of them.
fn samples(options: &Options, temperature: f64) -> Result<(u32, Vec<u64>)> {
    let largest = options.ks.iter().copied().max().unwrap_or(1);
    let samples = match options.samples {
        Some(samples) => samples,
        None => u32::try_from(largest).map_err(|_| Error::config("--k", largest, format!("at most {}", u32::MAX)))?,
    };
    if samples == 0 || options.ks.contains(&0) {
        let key = if samples == 0 { "--samples" } else { "--k" };
        return Err(Error::config(key, 0, "at least 1"));
    }
    if temperature == 0.0 && samples > 1 {
        let why =
            "greedy answers to a prompt are all the same: leave --samples and --k out, or ask for a --temperature above 0";
        return Err(Error::config("--samples", samples, why));
    }
    if largest > u64::from(samples) {
        let why = format!("at most --samples = {samples}: pass@k is estimated from k rollouts of a prompt or more");
        return Err(Error::config("--k", largest, why));
    }
    let mut ks = if options.ks.is_empty() { vec![1, u64::from(samples)] } else { options.ks.clone() };
    ks.sort_unstable();
    ks.dedup();
    Ok((samples, ks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Output;
    use crate::store::ledger::Ledger;
    use std::fs;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;
    use tidegate_operators::record::Metrics;

    fn options(model: Option<&Path>) -> Options {
        Options {
            model: model.map(Path::to_owned),
            spec: None,
            sets: Vec::new(),
            tasks: Vec::new(),
            data: None,
            prompts: None,
            samples: None,
            ks: Vec::new(),
            threads: None,
            rollouts: None,
            output: Output::Text,
        }
    }

    const SPEC: &str =
        "[model]\npath = 'began'\n[[task]]\nkind = 'sorting'\nmin_size = 9\nmax_size = 9\n[eval]\nprompts = 24\n";

    /// A run with such a specification, whose checkpoints are of steps 4 and 10.
    fn run(spec: &str) -> (TempDir, RunFolder) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::create(dir.path().canonicalize().unwrap().join("r")).unwrap();
        run.write_spec(spec).unwrap();
        for step in [4, 10] {
            fs::create_dir(run.checkpoint(step)).unwrap();
            let metrics = Metrics { step, ..Metrics::default() };
            State::after(&metrics, Ledger::default()).write(&run.checkpoint(step)).unwrap();
        }
        symlink("step-00000004", run.checkpoints().join("best")).unwrap();
        (dir, run)
    }

    fn said(result: Result<Subject>) -> String {
        result.err().map(|e| e.to_string()).unwrap_or_default()
    }

    /// Catches a run's oldest checkpoint, one whose version is lost, and a link that hides the run with its specification.
    #[test]
    fn a_run_is_its_newest_checkpoint_and_each_brings_the_specification() {
        let (_dir, run) = run(SPEC);
        for (path, folder, version) in [
            (run.path().to_owned(), run.checkpoint(10), 10),
            (run.checkpoint(4), run.checkpoint(4), 4),
            (run.checkpoints().join("best"), run.checkpoints().join("best"), 4),
        ] {
            let subject = Subject::choose(&options(Some(&path))).unwrap();
            assert_eq!((subject.folder.as_ref(), subject.version), (Some(&folder), version));
            assert_eq!((&subject.spec.model.path, subject.spec.eval.prompts), (&folder, 24));
            assert_eq!(subject.spec.task[0].min_size, Some(9));
            // One thread of each of its workers.
            assert_eq!((subject.threads, subject.samples, subject.ks), (2, 1, vec![1]));
        }
        // As a specification it brings its model too, but for another that is named.
        let named = |model: Option<&Path>| Subject::choose(&Options { spec: Some(run.path().to_owned()), ..options(model) });
        assert_eq!(named(None).unwrap().folder, Some(run.checkpoint(10)));
        let other = named(Some(&run.checkpoints())).unwrap();
        assert_eq!((other.folder, other.version, other.spec.eval.prompts), (Some(run.checkpoints()), 0, 24));
        let by_file = Options { spec: Some(run.spec()), ..options(None) };
        let subject = Subject::choose(&by_file).unwrap();
        assert_eq!((subject.folder, subject.spec.model.path), (None, PathBuf::from("began")));
    }

    #[test]
    fn what_is_no_subject_says_what_would_be_right() {
        let (_dir, run) = run(SPEC);
        fs::write(run.checkpoint(10).join("state.json"), "{").unwrap();
        assert!(said(Subject::choose(&options(Some(run.path())))).contains("step-00000010/state.json: "));
        for step in [4, 10] {
            fs::remove_dir_all(run.checkpoint(step)).unwrap();
        }
        let none = said(Subject::choose(&options(Some(run.path()))));
        assert!(none.contains("has no checkpoint yet") && none.ends_with("what it began with is began"), "{none}");
        let toml = said(Subject::choose(&options(Some(&run.spec()))));
        assert!(toml.starts_with("MODEL = ") && toml.contains("--spec "), "{toml}");
        let gone = said(Subject::choose(&options(Some(Path::new("/nothing")))));
        assert!(gone.starts_with("MODEL = /nothing: no such folder; name a model's"), "{gone}");
        let asked = said(Subject::choose(&options(Some(&run.checkpoints()))));
        assert!(asked.starts_with("--tasks, --data, --spec = none: say what"), "{asked}");
        fs::write(run.spec(), "[[task]]\nkind = 'sorting'\n").unwrap();
        let unnamed = said(Subject::choose(&Options { spec: Some(run.spec()), ..options(None) }));
        assert!(unnamed.starts_with("model.path = \"\": the specification names no model"), "{unnamed}");
    }

    /// Catches prompts of the specification that are asked beside those that were named, and the other way round.
    #[test]
    fn prompts_are_those_that_are_named() {
        let files = "data = { file = 'held.jsonl' }\n[data]\nfile = 'train.jsonl'\nprompt = 'q'\n[reward]\nkind = 'exact'\n";
        let held_out = format!("{SPEC}{files}");
        let (_dir, run) = run(&held_out);
        let choose = |change: fn(&mut Options)| {
            let mut options = options(Some(run.path()));
            change(&mut options);
            let spec = Subject::choose(&options).unwrap().spec;
            let tasks: Vec<_> = spec.task.iter().map(|task| (task.kind.name(), task.min_size)).collect();
            let rule = if spec.reward == RewardSpec::Task { "task" } else { "exact" };
            (spec.data.map(|data| (data.file.display().to_string(), data.prompt)), tasks, spec.eval.prompts, rule)
        };
        let file = |name: &str, column: &str| Some((name.to_owned(), column.to_owned()));
        let own = choose(|_| {});
        assert_eq!((own.0, own.3), (file("held.jsonl", "prompt"), "exact"));
        let named = choose(|options| {
            options.sets.push("data.file=mine.jsonl".to_owned());
            options.data = Some(PathBuf::from("mine.jsonl"));
        });
        assert_eq!((named.0, named.2), (file("mine.jsonl", "q"), ALL));
        let tasks = choose(|options| options.tasks = vec!["sorting".to_owned(), "addition".to_owned()]);
        assert_eq!(tasks, (None, vec![("sorting", Some(9)), ("addition", Some(2))], 24, "task"));
        let asked = choose(|options| {
            options.tasks = vec!["sorting".to_owned()];
            options.sets.push("reward.kind=exact".to_owned());
        });
        assert_eq!(asked.3, "exact");
        assert_eq!(choose(|options| options.prompts = Some(5)).2, 5);
        assert_eq!(choose(|options| options.sets.push("eval.prompts=0".to_owned())).2, 768);
        let wrong = Subject::choose(&Options { tasks: vec!["chess".to_owned()], ..options(Some(run.path())) });
        assert_eq!(said(wrong), "--tasks = chess: no such task; allowed: sorting, addition, expression, program");
    }

    #[test]
    fn samples_follow_k_and_k_follows_samples() {
        let of = |asked: Option<u32>, ks: &[u64], temperature: f64| {
            let options = Options { samples: asked, ks: ks.to_vec(), ..options(None) };
            samples(&options, temperature).map_err(|e| e.to_string())
        };
        assert_eq!(of(None, &[], 1.0), Ok((1, vec![1])));
        assert_eq!(of(None, &[], 0.0), Ok((1, vec![1])));
        assert_eq!(of(Some(8), &[], 1.0), Ok((8, vec![1, 8])));
        assert_eq!(of(None, &[16, 1, 4, 4], 1.0), Ok((16, vec![1, 4, 16])));
        assert_eq!(of(Some(8), &[8, 2], 1.0), Ok((8, vec![2, 8])));
        for (asked, ks, temperature, says) in [
            (Some(4), &[8][..], 1.0, "--k = 8: at most --samples = 4: "),
            (Some(4), &[], 0.0, "--samples = 4: greedy answers "),
            (None, &[1, 4], 0.0, "--samples = 4: greedy answers "),
            (Some(0), &[], 1.0, "--samples = 0: at least 1"),
            (Some(2), &[0], 1.0, "--k = 0: at least 1"),
            (None, &[1 << 40], 1.0, "--k = 1099511627776: at most "),
        ] {
            let refused = of(asked, ks, temperature).unwrap_err();
            assert!(refused.starts_with(says), "{refused}");
        }
    }
}
