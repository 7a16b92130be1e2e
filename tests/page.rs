//! Pages with pictures: what is in them, and, where `make test-page` gave a browser, what it makes of them (`tests/page.mjs`).

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tidegate::jobs::analyze::SkipBad;
use tidegate::jobs::emulation::{Cost, Emulation, Throughput};
use tidegate::jobs::experiment::design::{Cell, Design};
use tidegate::jobs::experiment::kl::measure::Divergence;
use tidegate::jobs::experiment::page::write as write_experiment;
use tidegate::jobs::experiment::results::{Figures, Outcome, Point, Results, Row};
use tidegate::jobs::report::write_runs;
use tidegate::spec::Spec;
use tidegate::store::{FooterInfo, ParquetLog, RunFolder};
use tidegate::tasks::generated::Kind;
use tidegate::tasks::spec::TaskSpec;
use tidegate_operators::record::{Group, Metrics, Prompt, Reason, Rollout, SealedStep, Status, Stop};
use tidegate_operators::seal::Log;

const HOSTILE: &str = "needle </script><img src=x onerror=alert(1)>\u{0}\u{1b}[2J\u{202e}<!--\u{2028}🦀\u{fffd}";
const REFUSED: &str = "</script><b>no";
const STEPS: u64 = 30;
const BATCH: u64 = 8;
const MS: i64 = 1_000_000;

/// The toy's letters: `a` is 1.
const TOKENS: [u32; 6] = [1, 2, 3, 15, 4, 0];

fn rollout(step: u64, n: u64, slow: i64) -> Rollout {
    let number = (step - 1) * BATCH / 4 + n / 4;
    let prompt = Prompt {
        id: number % 7,
        task: "sorting".to_owned(),
        text: format!("sort {number}"),
        size: 3 + number as u32 % 3,
        ..Prompt::default()
    };
    let tokens: Vec<u32> = TOKENS.iter().copied().cycle().take(4 + (n as usize + step as usize) % 5).collect();
    let length = tokens.len();
    let newest = step.saturating_sub(2);
    let solved = (n * 7 + step * 3) % 40 < step + 4;
    let started_ns = 1_700_000_000_000_000_000 + (step as i64 * 40 - 70) * slow * MS + n as i64 * MS;
    Rollout {
        group: Arc::new(Group { number, prompt, admitted_ns: started_ns - MS, ..Group::default() }),
        sample: (n % 4) as u32,
        status: Status::Trained,
        text: "abc".to_owned(),
        mask: vec![true; length],
        logp_behavior: (0..length).map(|i| -0.1 - 0.05 * i as f32).collect(),
        logp_current: (0..length).map(|i| -0.1 - 0.045 * i as f32 - 0.001 * n as f32).collect(),
        version: (0..length).map(|i| if i < length / 2 { newest.saturating_sub(1) } else { newest }).collect(),
        advantage: vec![if solved { 0.5 } else { -0.5 }; length],
        tokens,
        stop: if n == 0 { Stop::Length } else { Stop::Eos },
        started_ns,
        finished_ns: started_ns + (30 + 5 * n as i64) * slow * MS,
        trained_ns: 1_700_000_000_000_000_000 + step as i64 * 40 * slow * MS,
        reward: Some(f32::from(u8::from(solved))),
        step,
        worker: (n % 2) as usize,
        ..Rollout::default()
    }
}

/// A run of the toy engine, each of whose rows and metrics is made up; `slow` times as slow.
fn run(place: &Path, name: &str, slow: i64) -> PathBuf {
    let folder = RunFolder::create(place.join(name)).unwrap();
    let mut spec = Spec { steps: STEPS, ..Spec::default() };
    spec.model.engine = tidegate::spec::EngineKind::Toy;
    spec.task = vec![TaskSpec::new(Kind::Sorting).with_defaults()];
    spec.schedule.max_lag = 2 * slow as u64;
    let info = FooterInfo { spec: spec.to_text(), tokenizer: "toy 34".to_owned(), ..FooterInfo::default() };
    let mut log = ParquetLog::new(folder.clone(), info);
    for step in 1..=STEPS {
        let mut rollouts: Vec<Rollout> = (0..BATCH).map(|n| rollout(step, n, slow)).collect();
        if step == 3 {
            let group = Arc::make_mut(&mut rollouts[5].group);
            (group.prompt.text, group.prompt.task) = (HOSTILE.to_owned(), "<b>".to_owned());
            rollouts[5].reward_parts = vec![(HOSTILE.to_owned(), 1.0)];
            rollouts[5].text = HOSTILE.to_owned();
            rollouts[5].tokens = (0..3000).map(|i| i % 20 + 1).collect();
            let long = &mut rollouts[5];
            for list in [&mut long.logp_behavior, &mut long.logp_current, &mut long.advantage] {
                *list = vec![-0.5; 3000];
            }
            (rollouts[5].mask, rollouts[5].version) = (vec![true; 3000], vec![0; 3000]);
            let discarded =
                Rollout { status: Status::Discarded(Reason::BadTokens(REFUSED.to_owned())), ..rollout(3, 9, slow) };
            // Its lists differ in length.
            let tokens = vec![1; 50];
            rollouts.push(Rollout { tokens, reward: None, reward_error: Some(REFUSED.to_owned()), ..discarded });
        }
        let ns = |ms: u64| ms * slow as u64 * MS as u64;
        let solved = rollouts.iter().filter(|row| row.reward == Some(1.0)).count();
        let metrics = Metrics {
            step,
            rollouts: BATCH,
            tokens: BATCH * 6,
            reward: solved as f64 / BATCH as f64,
            success: solved as f64 / BATCH as f64,
            entropy: if step == 7 { f64::NAN } else { 1.0 / step as f64 },
            ess: 1.0 - 0.001 * step as f64,
            kl_k3: 0.001,
            lag_mean: 1.2,
            lag_max: 2,
            grad_norm: 0.5,
            lr: 1e-3,
            length: 6.0,
            train_ns: ns(25),
            wait_any_ns: ns(10),
            wait_forced_ns: ns(5),
            sample_ns: ns(60),
            idle_ns: ns(12),
            generators_ns: ns(80),
            finished_ns: 1_700_000_000_000_000_000 + step as i64 * 40 * slow * MS,
            ..Metrics::default()
        };
        log.seal(SealedStep { step, rollouts, metrics: Some(metrics) }).unwrap();
    }
    folder.path().to_owned()
}

fn result(cell: &Cell, outcome: Outcome, curve: Vec<Point>) -> Row {
    Row {
        added: Default::default(),
        first_s: None,
        at: cell.at.clone(),
        seed: cell.seed,
        settings: cell.settings.clone(),
        version: "0".to_owned(),
        machine: "2 x made up".to_owned(),
        seconds: 20.0,
        outcome,
        curve,
    }
}

fn experiment(place: &Path) {
    fs::write(place.join("base.toml"), "[model]\nengine = 'toy'\n[[task]]\nkind = 'sorting'\n").unwrap();
    let text = format!(
        "about = '{HOSTILE}'\nbase = '{}'\nseeds = [1, 2]\n[[axis]]\nname = 'lag'\nvalue = [{{ name = '0', set = ['schedule.max_lag=0'] }}, {{ name = '<i>8', set = ['schedule.max_lag=8'] }}]\n",
        place.join("base.toml").display()
    );
    let text = text.replace(['\u{0}', '\u{1b}'], "");
    fs::write(place.join("lags.toml"), text).unwrap();
    let design = Design::load(&place.join("lags.toml")).unwrap();
    let cells = design.all().unwrap();
    let mut results = Results::open(&place.join("lags.jsonl")).unwrap();
    for (i, cell) in cells.iter().enumerate() {
        let point = |k: u64| Point {
            step: k,
            seconds: (k - 1) as f64 * (1.0 + 0.1 * i as f64),
            rollouts: 8 * k,
            reward: Some(k as f64 / 40.0 + 0.02 * i as f64),
            success: None,
            length: Some(9.0),
            entropy: None,
            ess: Some(1.0 - 0.01 * i as f64),
            kl_k3: Some(0.0),
            lag_mean: Some(1.0),
            lag_max: i as u64 * 2,
            grad_norm: None,
        };
        let outcome = match i {
            3 => Outcome::Failed { exit: 1, error: HOSTILE.to_owned() },
            _ => Outcome::Done(Figures { success: Some(0.5), training_s: 20.0, ..Figures::default() }),
        };
        results.keep(result(cell, outcome, (1..=20).map(point).collect())).unwrap();
    }
    write_experiment("lags", &design, &cells, &results, &place.join("experiment.html")).unwrap();
}

/// Two numbers of emulated accelerators under two schedules: a pipeline is 1.5 times as fast, where the formulas say 1.6.
fn emulated(place: &Path) {
    let base = "model.engine = 'emulation'\nsteps = 9\neval.prompts = 0\n[[task]]\nkind = 'sorting'\n[emulation]\naccelerators = 4\n";
    fs::write(place.join("emulated.toml"), base).unwrap();
    let text = format!(
        "base = '{}'\nseeds = [1, 2]\nspeed_up = {{ axis = 'schedule', of = 'pipeline', over = 'turns' }}\n[[axis]]\nname = \
         'accelerators'\nvalue = [{{ name = '4' }}, {{ name = '8', set = ['emulation.accelerators=8'] }}]\n[[axis]]\nname = \
         'schedule'\nvalue = [{{ name = 'pipeline' }}, {{ name = 'turns', set = ['schedule.kind=conventional'] }}]\n",
        place.join("emulated.toml").display()
    );
    fs::write(place.join("sizes.toml"), text).unwrap();
    let design = Design::load(&place.join("sizes.toml")).unwrap();
    let cells = design.all().unwrap();
    let mut results = Results::open(&place.join("sizes.jsonl")).unwrap();
    for cell in &cells {
        let tokens =
            |up: f64| Throughput { tokens: if cell.at[1] == "pipeline" { up } else { 1.0 }, ..Throughput::default() };
        let added = Cost { planned_s: 0.5, added_s: 0.001 * cell.at[0].parse::<f64>().unwrap() };
        let emulation = Emulation {
            measured: tokens(1.5 + 0.02 * cell.seed as f64),
            formula: Some(tokens(1.6)),
            decode_step: added,
            training_step: added,
            ..Emulation::default()
        };
        let figures = Figures { emulation: Some(Box::new(emulation)), training_s: 20.0, ..Figures::default() };
        results.keep(result(cell, Outcome::Done(figures), Vec::new())).unwrap();
    }
    write_experiment("sizes", &design, &cells, &results, &place.join("emulated.html")).unwrap();
}

/// The paper's case study, simulated.
fn plan(place: &Path) {
    let file = place.join("plan.html");
    let args = ["plan", "--simulate", "--transfer", "100", "-g", "64", "--html"];
    let ran = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).arg(file).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Two stages and lags of a KL experiment, one behavior without a result.
fn divergences(place: &Path) {
    let base = place.join("base.toml");
    let text = format!(
        "base = '{}'\nset = ['steps=20', 'checkpoint.every_steps=1', 'checkpoint.keep=20']\nseeds = [1]\n[kl]\nafter = [0, 8]\nlags = [1, \
         4]\nlength = 16\nprompts = 4\n",
        base.display()
    );
    fs::write(place.join("kl.toml"), text).unwrap();
    let design = Design::load(&place.join("kl.toml")).unwrap();
    let cells = design.all().unwrap();
    let mut results = Results::open(&place.join("kl.jsonl")).unwrap();
    for (i, cell) in cells.iter().enumerate().skip(1) {
        let kl = 1e-5 * (i * i) as f64;
        let divergence = Divergence {
            kl,
            standard_error: Some(kl / 3.0),
            sequences: 4,
            tokens: 60,
            lag_mean: 1.0,
            kl_by_part: (0..8).map(|part| (part < 7).then(|| kl * f64::from(part))).collect(),
        };
        results.keep(result(cell, Outcome::Measured(divergence), Vec::new())).unwrap();
    }
    write_experiment("kl", &design, &cells, &results, &place.join("kl.html")).unwrap();
}

/// What the page holds, as JSON.
fn data(page: &Path) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let (_, rest) = text.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Pages of two runs, one of both, one of an experiment and one of a run without a step.
fn pages() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    if place.exists() {
        fs::remove_dir_all(&place).unwrap();
    }
    fs::create_dir_all(&place).unwrap();
    let runs = [run(&place, "fast", 1), run(&place, "slow", 3)];
    write_runs(&runs[..1], SkipBad::No, &place.join("one.html")).unwrap();
    write_runs(&runs, SkipBad::No, &place.join("compare.html")).unwrap();
    let empty = RunFolder::create(place.join("empty")).unwrap().path().to_owned();
    write_runs(&[runs[0].clone(), empty.clone()], SkipBad::No, &place.join("mixed.html")).unwrap();
    write_runs(&[empty], SkipBad::No, &place.join("empty.html")).unwrap();
    experiment(&place);
    plan(&place);
    divergences(&place);
    emulated(&place);
    place
}

/// Catches rollouts or moments of another place than where they stand, numbers of another column, and texts that are not whole.
#[test]
fn pages_say_what_the_log_says() {
    let place = pages();
    let one = data(&place.join("one.html"));
    let run = &one["runs"][0];
    assert_eq!((&run["first_step"], &run["last_step"], &run["bound"]), (&1.into(), &STEPS.into(), &2.into()));
    assert_eq!(run["rollouts"]["of"], STEPS * BATCH + 1);
    assert_eq!(run["rollouts"]["without_text"], Value::Null);
    let steps = &run["steps"];
    assert_eq!((steps["rollouts"][STEPS as usize - 1].as_f64(), steps["lag_mean"][0].as_f64()), (Some(240.0), Some(1.2)));
    assert_eq!(steps["entropy"][6], Value::Null, "a NaN is no number");
    let shown = run["rollouts"]["shown"].as_array().unwrap();
    let hostile: Vec<&Value> = shown.iter().filter(|one| one["prompt"] == HOSTILE).collect();
    let [hostile] = hostile[..] else { panic!("{} of it", hostile.len()) };
    assert_eq!((&hostile["group"], &hostile["sample"], &hostile["step"]), (&5.into(), &1.into(), &3.into()));
    assert!(hostile["why"].as_array().unwrap().contains(&"longest".into()));
    assert_eq!((hostile["tokens"].as_u64(), hostile["pieces"].as_array().unwrap().len()), (Some(3000), 3000));
    assert_eq!((&hostile["pieces"][0], &hostile["versions"]), (&"a".into(), &serde_json::json!([[3000, 0]])));
    let refused = shown.iter().find(|one| !one["reward_error"].is_null()).unwrap();
    assert_eq!((&refused["reward_error"], &refused["lag_mean"]), (&REFUSED.into(), &Value::Null));
    // Steps 13 to 20: each has 40 ms, and sequences of two workers in slots.
    let line = &run["timeline"];
    let ended: Vec<u64> = line["steps"].as_array().unwrap().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!((ended, line["seconds"].as_f64(), line["learner"].as_u64()), ((12..20).collect(), Some(0.32), Some(1)));
    let workers: Vec<u64> = line["lanes"].as_array().unwrap().iter().map(|lane| lane["worker"].as_u64().unwrap()).collect();
    assert_eq!(workers, [0, 1]);
    // Lag falls along a response: of step 30 the first half is of version 27 and the second of 28.
    let last = &run["times"].as_array().unwrap().last().unwrap()["lag"];
    assert_eq!((last[0].as_f64(), last[19].as_f64()), (Some(2.0), Some(1.0)));
    let both = data(&place.join("compare.html"));
    let [first, ..] = &both["differences"]["figures"].as_array().unwrap()[..] else { panic!() };
    assert!(first["what"].as_str().unwrap().starts_with("Time to a mean reward of "), "{first}");
    assert_eq!(both["differences"]["settings"][0]["key"], "schedule.max_lag");
    let plan = data(&place.join("plan.html"))["plan"].clone();
    let curves: Vec<_> = plan["curves"].as_array().unwrap().iter().map(|curve| curve["of"].clone()).collect();
    assert_eq!(curves, ["lag", "accelerators", "longest", "spread", "batch", "split"]);
    // A point is of what stands below it: the conventional schedule at a lag of 16 makes less than at one of 64.
    let lags = plan["curves"][0]["points"].as_array().unwrap();
    let at = |lag: f64| lags.iter().find(|point| point["x"].as_f64() == Some(lag)).unwrap();
    assert!(at(16.0)["conventional"].as_f64() < at(64.0)["conventional"].as_f64(), "{lags:?}");
    let told: f64 = plan["layouts"]["rows"][0][4].as_str().unwrap().parse().unwrap();
    assert!((at(64.0)["pipeline"].as_f64().unwrap() / told - 1.0).abs() < 1e-3, "{told}");
    let of = data(&place.join("emulated.html"))["experiment"].clone();
    assert_eq!(
        (of["emulated"].as_array().unwrap().len(), of["speed_up"]["table"]["rows"].as_array().unwrap().len()),
        (4, 2)
    );
    let (up, last) = (&of["speed_up"]["points"][0], &of["emulated"][3]);
    assert_eq!((up["at"][0].as_str(), up["formulas"].as_f64(), &up["simulation"]), (Some("4"), Some(1.6), &Value::Null));
    assert_eq!((up["measured"]["mean"].as_f64(), last["decode_added_ms"].as_f64()), (Some(1.53), Some(8.0)));
    let kl = data(&place.join("kl.html"))["experiment"]["kl"].clone();
    assert_eq!(kl.as_array().unwrap().len(), 11, "one of twelve has no result");
    assert_eq!((&kl[0]["after"], &kl[0]["behavior"], &kl[10]["lag"]), (&"0".into(), &"recompute".into(), &4.0.into()));
    let sizes = ["one.html", "compare.html", "experiment.html"].map(|name| fs::metadata(place.join(name)).unwrap().len());
    assert!(sizes.iter().all(|bytes| *bytes < 1_500_000), "{sizes:?}");
    in_a_browser(&place);
}

/// What Chromium makes of the pages; without one this says so.
fn in_a_browser(place: &Path) {
    if std::env::var_os("TIDEGATE_PLAYWRIGHT").is_none() {
        eprintln!("pages were not looked at in a browser: `make test-page` does, where Chromium and Node.js are");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page.mjs");
    let ran = Command::new("node").arg(script).arg(place).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    eprintln!("{}", String::from_utf8_lossy(&ran.stdout).trim());
}
