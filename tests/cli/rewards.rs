//! Rewards from outside, with the real binary: programs that work, that do not, and servers.

use crate::harness::{run, steps, tidegate, workplace};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate::store::RunFolder;
use tidegate::tasks::reward::Reward;
use tidegate::tasks::spec::RewardSpec;
use tidegate_operators::record::{Rollout, Status};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/rewards").join(name)
}

/// `reward = {kind = "command", command = ["python3", FILE, ..], MORE}`; the mark finds its processes again.
fn by_program(file: &Path, mark: &str, more: &str) -> String {
    format!("reward={{kind=\"command\",command=[\"python3\",\"-B\",{file:?},\"{mark}\"]{more}}}")
}

/// A reward program beside the specification. `request` is there, and `right()` answers as the example does.
fn program(dir: &TempDir, body: &str) -> PathBuf {
    let head = "import json, os, signal, sys, time\nsys.path.insert(0, PLACE)\nfrom reward import reward\n";
    let head = head.replace("PLACE", &format!("{:?}", example("").to_str().unwrap()));
    let path = dir.path().join("reward_program.py");
    let right = "def right():\n    print(json.dumps({'id': request['id'], **reward(request)}), flush=True)\n";
    let body = body.replace('\n', "\n    ");
    fs::write(&path, format!("{head}{right}for line in sys.stdin:\n    request = json.loads(line)\n    {body}\n")).unwrap();
    path
}

fn mark(test: &str) -> String {
    format!("mark-{test}-{}", std::process::id())
}

/// Processes whose command line holds `mark`, the binary under test aside.
fn alive(mark: &str) -> Vec<String> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let lines = pids.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
    lines.filter(|line| line.contains(mark) && !line.contains("spec.toml")).collect()
}

#[track_caller]
fn none_remains(mark: &str, within: Duration) {
    let start = Instant::now();
    while !alive(mark).is_empty() {
        assert!(start.elapsed() < within, "{:?} remain", alive(mark));
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn rows(dir: &TempDir) -> Vec<Rollout> {
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    steps(&folder).into_iter().flat_map(|file| file.rollouts).collect()
}

/// What the built-in rule says of a row.
fn by_rule(row: &Rollout) -> (Option<f32>, Vec<(String, f32)>) {
    let score = Reward::new(&RewardSpec::Task).unwrap().score(&row.group.prompt, &row.text).unwrap();
    (Some(score.reward), score.parts)
}

fn same_as_the_rule(rows: &[Rollout]) {
    for row in rows {
        assert_eq!((row.reward, row.reward_parts.clone()), by_rule(row), "{:?}: {:?}", row.text, row.reward_error);
    }
    assert!(rows.iter().any(|row| row.reward == Some(1.0)) && rows.iter().any(|row| row.reward == Some(0.0)));
}

/// Catches a program that is not asked as docs/rewards.md says, that is asked again by a replay, or that outlives the run; and a
/// run that does not say what it cost.
#[test]
fn the_example_gives_the_rewards_of_the_rule() {
    let (dir, mark) = (workplace(), mark("example"));
    let copy = dir.path().join("reward.py");
    fs::copy(example("reward.py"), &copy).unwrap();
    let ran = run(&dir, &["steps=3", "eval.prompts=12", &by_program(&copy, &mark, "")]).ok();
    none_remains(&mark, Duration::ZERO);
    let rows = rows(&dir);
    same_as_the_rule(&rows);
    assert!(rows.len() >= 48 && !ran.out.contains("discarded"), "{}", ran.out);
    let line = ran.out.lines().find(|line| line.starts_with("rewards   ")).expect("a line about the rewards");
    assert!(line.contains(" requests, 0 failed; 0 programs started again") && line.contains("ms, p99 "), "{line}");
    fs::remove_file(copy).unwrap();
    let replayed = tidegate(dir.path(), &["replay", "runs/spec"]).ok();
    assert!(replayed.err.contains("rewards   as recorded: they came from outside"), "{}", replayed.err);
    assert!(replayed.out.contains("\nsame      advantages, log-probabilities, loss and "), "{}", replayed.out);
}

/// Catches any way to go wrong that takes a sibling or the run with it, and an error that does not name its rollout and value
/// (hard case 4).
#[test]
fn whatever_a_program_does_costs_one_rollout() {
    let (dir, mark) = (workplace(), mark("wrong"));
    let wrong = r#"n = request["id"]
def say(text): print(text.replace("ID", str(n)), flush=True)
if n == 5: os._exit(139)
elif n == 10: os.kill(os.getpid(), signal.SIGSEGV)
elif n == 15: pass
elif n == 20: os.close(1); time.sleep(60)
elif n == 25: say("{\"id\": ID, \"rew"); os._exit(0)
elif n == 30: say("hello")
elif n == 35: print("x" * 3000000, flush=True)
elif n == 40: say("{\"id\": ID, \"reward\": \"1\"}")
elif n == 45: say("{\"id\": ID, \"reward\": true}")
elif n == 50: say("{\"id\": ID, \"reward\": 1e400}")
elif n == 55: say("{\"id\": ID, \"reward\": NaN}")
elif n == 60: say("{\"id\": 1, \"reward\": 1}")
elif n == 65: say("{\"id\": ID, \"reward\": -0.0}")
elif n == 70: say("{\"id\": ID, \"reward\": 0}")
else:
    sys.stderr.write("noise\n" * 2000)
    right()"#;
    let more = ",time_limit_s=1.0,start_limit_s=5.0,failure_limit=0.9,processes=3";
    let ran = run(&dir, &[&by_program(&program(&dir, wrong), &mark, more), "generate.slots=64"]).ok();
    none_remains(&mark, Duration::ZERO);
    let (failed, scored): (Vec<_>, Vec<_>) = rows(&dir).into_iter().partition(|row| row.reward.is_none());
    for says in [
        "exited with code 139",
        "was ended by signal 11",
        "no answer within ",
        "closed its standard input or output",
        "wrote \"{\\\"id\\\": 25, \\\"rew\", which is no answer",
        "wrote \"hello\", which is no answer",
        "a line of more than 1048576 bytes",
        "reward = \"1\", expected a finite number",
        "reward = true, expected",
        "reward = 1e400, expected",
        "reward = NaN, expected",
        "which is no answer to request 60",
    ] {
        let told: Vec<_> = failed.iter().filter(|row| row.reward_error.as_ref().unwrap().contains(says)).collect();
        assert_eq!(told.len(), 1, "{says}: {:?}", failed.iter().map(|row| &row.reward_error).collect::<Vec<_>>());
        let name = format!("group {}, sample {}: ", told[0].group.number, told[0].sample);
        assert!(told[0].reward_error.as_ref().unwrap().starts_with(&name), "{:?}", told[0].reward_error);
        assert!(matches!(told[0].status, Status::Discarded(_)) && told[0].step > 0);
    }
    assert_eq!(failed.len(), 12, "{:?}", failed.iter().map(|row| &row.reward_error).collect::<Vec<_>>());
    let zeros = scored.iter().filter(|row| row.reward_parts.is_empty()).map(|row| row.reward.unwrap().to_bits());
    assert_eq!(zeros.collect::<Vec<_>>(), [0, 0], "0.0 is a reward, and -0.0 is 0");
    let others: Vec<_> = scored.into_iter().filter(|row| !row.reward_parts.is_empty()).collect();
    same_as_the_rule(&others);
    let trained = others.iter().filter(|row| row.status == Status::Trained).count();
    assert!(trained >= 96 - 14 && ran.out.contains("12 failed; "), "{trained}: {}", ran.out);
}

/// Catches a run that goes on for ever with a program that never works, or ends without its last words; and one that begins
/// with a program that is not there.
#[test]
fn a_program_that_never_works_ends_the_run() {
    let (dir, mark) = (workplace(), mark("never"));
    let file = dir.path().join("never.py");
    fs::write(&file, "import sys\nsys.stderr.write('one\\ntwo\\n')\nimport no_such_module\n").unwrap();
    let ran = run(&dir, &[&by_program(&file, &mark, ",processes=4")]);
    none_remains(&mark, Duration::ZERO);
    let says =
        "error: reward: 8 of the last 8 requests failed, more than reward.failure_limit = 0.5 allows; the last one: group ";
    let at = ran.err.find(says).unwrap_or_else(|| panic!("{}", ran.err));
    let told = &ran.err[at..];
    assert!(told.contains("exited with code 1 without an answer; its last line on stderr: ModuleNotFoundError"), "{told}");
    assert!(told.contains("docs/rewards.md") && told.contains("\n  | one\n  | two\n  | Traceback"), "{told}");
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));

    let dir = workplace();
    let ran = run(&dir, &["reward={kind=\"command\",command=[\"no-such-program\"]}"]);
    ran.refused(2, &["reward.command = [\"no-such-program\"]: the program cannot be started: No such file"]);
    assert!(!dir.path().join("runs").exists(), "before anything is written");
    run(&dir, &["reward={kind=\"command\",command=[]}"]).refused(2, &["reward.command = []: name a program"]);
    run(&dir, &["reward={kind=\"http\",url=\"x\"}"]).refused(2, &["reward.url = x: an address that begins with http://"]);
}

/// Catches a run in which decoding or training waits for each reward, and a display that does not say what is waited for.
#[test]
fn slow_rewards_are_named() {
    let (dir, mark) = (workplace(), mark("slow"));
    let more = ",processes=8,time_limit_s=20.0";
    let slow = program(&dir, "time.sleep(1.5)\nright()");
    let ran = run(&dir, &[&by_program(&slow, &mark, more), "steps=2", "schedule.max_lag=0"]).ok();
    let waits = ran.err.lines().filter_map(|line| Some(line.split_once("learner waits for ")?.1));
    let waits: Vec<_> = waits.collect();
    assert!(waits.len() == 2 && waits.iter().all(|wait| wait.starts_with("rewards (16 pending) (")), "{}", ran.err);
    same_as_the_rule(&rows(&dir));
}

/// A run with a slow program that never hears of its end, once it has sealed two steps.
fn deaf(mark: &str) -> (TempDir, Child) {
    let dir = workplace();
    let body = "if request['id'] == 40:\n    [signal.signal(s, signal.SIG_IGN) for s in (2, 15, 1)]\n    while True: time.sleep(60)\nright()";
    let set = by_program(&program(&dir, body), mark, ",time_limit_s=600.0");
    let args = [env!("CARGO_BIN_EXE_tidegate"), "run", "spec.toml", "--set", "steps=1000000", "--set", &set];
    let mut caller = Command::new("env");
    // Whoever started the tests may have them ignore signals.
    caller.arg("--default-signal=HUP,INT,TERM").args(args).current_dir(dir.path());
    let child = caller.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (start, file) = (Instant::now(), dir.path().join("runs/spec/rollouts/step-00000002.parquet"));
    while !file.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no {}", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(alive(mark).len(), 2);
    (dir, child)
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// Catches programs that remain when the run is stopped, stopped twice, or killed: one idles, one hangs and ignores signals.
#[test]
fn no_program_outlives_any_end_of_a_run() {
    let ends = [(&["INT"][..], 130, 0), (&["TERM", "TERM"][..], 143, 3), (&["KILL"][..], -1, 3)];
    let end = |(signals, code, within): (&[&str], i32, u64)| {
        let mark = mark(&format!("end{}{}", signals[0], signals.len()));
        let (_dir, child) = deaf(&mark);
        for name in signals {
            signal(&child, name);
            std::thread::sleep(Duration::from_millis(200));
        }
        let start = Instant::now();
        let ended = child.wait_with_output().unwrap();
        assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
        none_remains(&mark, Duration::from_secs(within));
        assert_eq!(ended.status.code().unwrap_or(-1), code, "{}", String::from_utf8_lossy(&ended.stderr));
    };
    // At once: most of their time is waiting.
    std::thread::scope(|scope| ends.into_iter().for_each(|case| drop(scope.spawn(move || end(case)))));
}

struct Server(Child, String);

impl Server {
    fn start(file: &Path) -> Server {
        let mut child = Command::new("python3").args(["-B".as_ref(), file]).arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Server(child, url)
    }

    fn reward(&self, more: &str) -> String {
        format!("reward={{kind=\"http\",url={:?}{more}}}", self.1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Catches a server that is not asked as docs/rewards.md says.
#[test]
fn the_example_server_gives_the_rewards_of_the_rule() {
    let (dir, server) = (workplace(), Server::start(&example("server.py")));
    let ran = run(&dir, &[&server.reward(",batch=8")]).ok();
    same_as_the_rule(&rows(&dir));
    assert!(ran.out.contains(" requests, 0 failed; "), "{}", ran.out);
}

/// Catches a server in trouble that costs more than it must: now and then it answers 500, garbage, nothing, or too late.
#[test]
fn a_server_in_trouble_costs_little() {
    let dir = workplace();
    let text = fs::read_to_string(example("server.py")).unwrap();
    let trouble = "        Handler.posts = getattr(Handler, 'posts', 0) + 1\n        n = Handler.posts\n\
                   \x20       if n == 3: self.send_error(500); return\n        if n == 6: self.close_connection = True; return\n\
                   \x20       if n == 9: import time; time.sleep(1.5)\n        if n == 12: answer = b'<html>' + b' ' * 50\n";
    let text = text.replace("        self.send_response(200)\n", &format!("{trouble}        self.send_response(200)\n"));
    let text = text.replace("from reward", &format!("sys.path.insert(0, {:?})\nfrom reward", example("").to_str().unwrap()));
    let file = dir.path().join("trouble.py");
    fs::write(&file, text).unwrap();
    let server = Server::start(&file);
    let ran = run(&dir, &[&server.reward(",batch=4,time_limit_s=1.0"), "steps=3"]).ok();
    let failed = rows(&dir).into_iter().filter(|row| row.reward.is_none()).count();
    // A batch of one that is garbage is asked no more.
    assert!(failed <= 1, "{failed}: {}", ran.out);
    let again: Vec<&str> = ran.out.lines().filter(|line| line.contains(" requests sent again; ")).collect();
    assert!(again.len() == 1 && !again[0].contains("; 0 programs started again, 0 requests"), "{}", ran.out);
}

/// Catches a server that is not there and is asked for ever.
#[test]
fn a_server_that_is_not_there_ends_the_run() {
    let dir = workplace();
    let ran = run(&dir, &["reward={kind=\"http\",url=\"http://127.0.0.1:9/\",retries=1}"]);
    ran.refused(1, &["error: reward: ", " of the last ", "the server did not answer: ", "docs/rewards.md"]);
    assert!(ran.err.contains("0 steps are sealed in "), "{}", ran.err);
}
