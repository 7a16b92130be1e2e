//! Kills: the program is ended by SIGKILL at random moments and at named places, over and over, and goes on; in between and at
//! the end it is checked that nothing was lost, nothing came twice and the weights are those of an undisturbed replay.
//!
//! A short one runs with the other tests. `make soak` runs the long one: `TIDEGATE_SOAK_KILLS` says how many kills; what it has
//! done is kept under the build's folder, so that a soak that is broken off goes on.

use crate::harness::{Ran, bundled_model, command, files, lags, tidegate};
use comfy_table::{Table, presets};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tidegate::store::ledger::State;
use tidegate::store::{LogReader, Part, RunFolder, read_json_rows};
use tidegate_operators::record::Status;

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// One run that is killed until it is through.
struct Campaign {
    place: PathBuf,
    engine: Engine,
    steps: u64,
    batch: u64,
    max_lag: i64,
    /// Longest life of a process that is killed at random, milliseconds.
    life_ms: u64,
    draws: Draws,
    /// Steps that were sealed when it was looked at last.
    sealed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Toy,
    Torch,
}

/// How a process is ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Moment(Duration),
    Place(&'static str, u64),
    /// SIGTERM, which leaves rollouts that wait (SIGINT may be ignored where a shell has put this into the background).
    Stop(Duration),
}

impl End {
    fn kind(&self, resumes: bool) -> String {
        let what = if resumes { "resume" } else { "run" };
        match self {
            End::Moment(_) => format!("SIGKILL at a random moment of {what}"),
            End::Place(place, _) => format!("SIGKILL at \"{place}\""),
            End::Stop(_) => "SIGTERM".to_owned(),
        }
    }
}

impl Campaign {
    fn new(place: &Path, engine: Engine, seed: u64) -> Campaign {
        let mut draws = Draws(seed);
        let order = ["arrival", "admission"][draws.below(2) as usize];
        let (steps, size, max_lag, life_ms, model, reward) = match engine {
            // Untrained tables: what they sample is right by chance, so that groups differ.
            Engine::Toy => (150, 3, 3, 900, "engine = \"toy\"".to_owned(), "kind = \"regex\"\npattern = \"^[0-4]\""),
            Engine::Torch => (24, 2, 2, 4000, format!("path = {:?}", bundled_model()), "kind = \"task\""),
        };
        let spec = format!(
            "steps = {steps}\nseed = {seed}\n[model]\n{model}\n[[task]]\nkind = \"sorting\"\n\
             [batch]\nbatch_size = {}\ngroup_size = 4\n[schedule]\nmax_lag = {max_lag}\norder = \"{order}\"\n\
             [reward]\n{reward}\n[generate]\nslots = 24\nmax_tokens = 16\n\
             [estimate]\nzero_variance = \"discard\"\n[learn]\nlr = 1e-5\nwarmup_steps = 2\n\
             [checkpoint]\nevery_steps = {}\nevery_minutes = 0.0\n[eval]\nprompts = 0\n",
            4 * size,
            1 + draws.below(9)
        );
        let _ = fs::remove_dir_all(place);
        fs::create_dir_all(place).unwrap();
        fs::write(place.join("spec.toml"), spec).unwrap();
        let place = place.to_owned();
        Campaign { place, engine, steps, batch: 4 * size, max_lag: max_lag.into(), life_ms, draws, sealed: 0 }
    }

    fn folder(&self) -> RunFolder {
        RunFolder::view(self.run()).unwrap()
    }

    fn run(&self) -> PathBuf {
        self.place.join("runs/spec")
    }

    /// The next end: half at a random moment, most of the others at a named place that comes up often enough.
    fn end(&mut self) -> End {
        let life = Duration::from_millis(1 + self.draws.below(self.life_ms));
        match self.draws.below(20) {
            0..8 => End::Moment(life),
            8..10 => End::Stop(life),
            _ => {
                let place = tidegate::crash::PLACES[self.draws.below(tidegate::crash::PLACES.len() as u64) as usize];
                let most = match place.split_once(':').map_or(place, |(part, _)| part) {
                    "step" | "file" => self.steps / 6,
                    "resume" => 1,
                    _ => 2,
                };
                End::Place(place, 1 + self.draws.below(most.max(1)))
            }
        }
    }

    /// Starts or goes on, and ends the process; None if it came to its own end first.
    fn fault(&mut self) -> Option<String> {
        let resumes = self.run().join("spec.toml").exists() && self.run().join("rollouts").exists();
        let end = self.end();
        let args: &[&str] =
            if resumes { &["resume", "runs/spec"] } else { &["run", "spec.toml", "--set", "output=runs/spec"] };
        if !resumes {
            // Ended before it had a specification: nothing is there to go on with.
            let _ = fs::remove_dir_all(self.place.join("runs"));
        }
        let mut command = command(&self.place, args);
        if let End::Place(place, n) = &end {
            command.env("TIDEGATE_KILL_AT", format!("{place}:{n}"));
        }
        let errors = self.place.join("stderr");
        let child = command.stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap()).spawn().unwrap();
        let status = ended(child, &end);
        let told = fs::read_to_string(&errors).unwrap();
        assert!(!told.contains("panicked"), "{told}");
        match (status.signal(), status.code(), &end) {
            (Some(9), _, _) | (_, Some(143), End::Stop(_)) => Some(end.kind(resumes)),
            // Before the handlers are there.
            (Some(15), _, End::Stop(_)) => Some(end.kind(resumes)),
            (_, Some(0), _) => None,
            // It was ended when all was written, and only the summary was left.
            (_, Some(2), _) if told.contains("all of them are done") => None,
            other => panic!("{other:?} after {end:?}: {told}"),
        }
    }

    /// What must hold whenever one looks: whole steps in order, nothing twice, nothing that was sealed gone.
    fn check(&mut self) -> BTreeSet<(u64, u32)> {
        let mut seen = BTreeSet::new();
        if !self.run().join("rollouts").exists() {
            return seen;
        }
        let mut log = LogReader::open(&self.folder()).unwrap();
        let steps: Vec<u64> = log.steps().collect();
        assert!(steps.iter().copied().eq(1..=steps.len() as u64), "{steps:?}");
        assert!(steps.len() as u64 >= self.sealed, "sealed steps are gone: {} of {}", steps.len(), self.sealed);
        self.sealed = steps.len() as u64;
        let mut finished_ns = 0;
        for step in steps {
            let file = log.step(step).unwrap();
            let metrics = file.footer.metrics.unwrap();
            assert!(metrics.step == step && metrics.finished_ns > finished_ns, "times rise");
            finished_ns = metrics.finished_ns;
            let trained = file.rollouts.iter().filter(|row| row.trained_ns > 0).count() as u64;
            assert_eq!(trained, self.batch, "step {step}");
            for row in &file.rollouts {
                assert!(seen.insert((row.group.number, row.sample)), "group {} comes twice", row.group.number);
                assert!(lags(row).all(|lag| (0..=self.max_lag).contains(&lag)));
                assert_ne!(row.status, Status::Waiting);
            }
        }
        seen
    }

    /// The run is through: replayed bit for bit, its checkpoint is the log's, and every prompt was used once.
    fn through(mut self) {
        let mut seen = self.check();
        assert_eq!(self.sealed, self.steps);
        let mut log = LogReader::open(&self.folder()).unwrap();
        for part in log.parts().into_iter().filter(|part| matches!(part, Part::Tail(_))) {
            let discarded = log.read(part).unwrap().rollouts.into_iter().filter(|row| row.status != Status::Waiting);
            for row in discarded {
                // A rollout of a group that waited may be in its step as well.
                seen.insert((row.group.number, row.sample));
            }
        }
        let numbers: BTreeSet<u64> = seen.iter().map(|(number, _)| *number).collect();
        assert_eq!(seen.len(), 4 * numbers.len(), "whole groups");
        // Under way when the last step was taken: admitted, and neither trained nor discarded.
        let missing = numbers.last().unwrap() + 1 - numbers.len() as u64;
        assert!(missing <= self.batch / 4 * (self.max_lag as u64 + 1), "{missing} prompts were skipped");
        let state = State::read(&self.folder().checkpoint(self.steps)).unwrap();
        assert_eq!(state.weights, log.footer(self.steps).unwrap().metrics.unwrap().weights);
        let rows = read_json_rows(&self.folder().metrics()).unwrap();
        assert!(rows.map(|row| row.unwrap()["step"].as_u64().unwrap()).eq(1..=self.steps));
        let left: Vec<String> = files(&self.run()).into_iter().filter(|name| name.contains(".tmp")).collect();
        assert!(left.is_empty(), "{left:?}");
        let replayed: Ran = tidegate(&self.place, &["replay", "runs/spec"]).ok();
        assert!(replayed.out.contains(&format!("{} steps", self.steps)) && replayed.out.contains("bit for bit"));
        fs::remove_dir_all(&self.place).unwrap();
    }
}

/// Ends a process as planned, or waits for its own end.
fn ended(mut child: Child, end: &End) -> std::process::ExitStatus {
    let start = Instant::now();
    match end {
        End::Moment(life) | End::Stop(life) => {
            while start.elapsed() < *life {
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            if matches!(end, End::Moment(_)) {
                child.kill().unwrap();
            } else {
                let pid = child.id().to_string();
                assert!(std::process::Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
            }
        }
        End::Place(..) => {}
    }
    while start.elapsed() < Duration::from_secs(120) {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    panic!("hangs after {end:?}");
}

/// Kills by kind, so far.
type Counts = BTreeMap<String, u64>;

fn kills(counts: &Counts, engine: Engine) -> u64 {
    let of = counts.iter().filter(|(kind, _)| kind.contains("SIGKILL") && kind.starts_with(&format!("{engine:?}")));
    of.map(|(_, times)| times).sum()
}

/// Campaigns until there were so many kills on an engine.
fn soak(place: &Path, engine: Engine, wanted: u64, counts: &mut Counts, mut keep: impl FnMut(&Counts)) {
    while kills(counts, engine) < wanted {
        let number = counts.entry(format!("{engine:?} runs that came through")).or_default();
        *number += 1;
        let mut campaign = Campaign::new(&place.join(format!("{engine:?}")), engine, *number);
        let mut now = Counts::new();
        loop {
            let fault = campaign.fault();
            campaign.check();
            let Some(kind) = fault else { break };
            *now.entry(format!("{:?}: {kind}", campaign.engine)).or_default() += 1;
        }
        campaign.through();
        for (kind, times) in now {
            *counts.entry(kind).or_default() += times;
        }
        keep(counts);
    }
}

/// Catches any way to lose, double or change what was sealed: see the module's doc.
#[test]
fn kills_lose_nothing() {
    let wanted: Option<u64> = std::env::var("TIDEGATE_SOAK_KILLS").ok().map(|n| n.parse().unwrap());
    let Some(wanted) = wanted else {
        let dir = tempfile::tempdir().unwrap();
        let mut counts = Counts::new();
        soak(dir.path(), Engine::Toy, 10, &mut counts, |_| {});
        soak(dir.path(), Engine::Torch, 2, &mut counts, |_| {});
        return;
    };
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak");
    fs::create_dir_all(&place).unwrap();
    let kept = place.join("counts.json");
    let mut counts: Counts = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let keep = |counts: &Counts| {
        fs::write(&kept, serde_json::to_vec(counts).unwrap()).unwrap();
        println!("{} kills of {wanted}", kills(counts, Engine::Toy) + kills(counts, Engine::Torch));
    };
    let torch = wanted.div_ceil(8);
    soak(&place, Engine::Torch, torch, &mut counts, keep);
    soak(&place, Engine::Toy, wanted - torch, &mut counts, keep);
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["what", "times", "losses"]);
    for (kind, times) in &counts {
        // A loss ends the soak: what is counted had none.
        table.add_row([kind.clone(), times.to_string(), if kind.contains("SIG") { "0" } else { "" }.to_owned()]);
    }
    println!("{table}");
    fs::remove_dir_all(&place).unwrap();
}
