//! Real programs and real sockets: each way to misbehave costs the rollout that was asked about, and nothing else.

use super::spec::{CommandSpec, HttpSpec};
use super::{Client, Outside, command, http};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Group, Prompt, Rollout};

/// One process, impatient.
fn shell(script: &str) -> CommandSpec {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    CommandSpec { processes: 1, time_limit_s: 0.8, start_limit_s: 0.0, failure_limit: 1.0, ..CommandSpec::new(command) }
}

/// A shell loop that has each request in `$line` and its id in `$id`, and answers with `answer`.
fn each(answer: &str) -> String {
    format!("while read -r line; do id=${{line#*:}}; id=${{id%%,*}}; {answer}; done")
}

const RIGHT: &str = "echo \"{\\\"id\\\": $id, \\\"reward\\\": $id}\"";

fn rollout(sample: u32) -> Rollout {
    let group = Arc::new(Group { number: 3, prompt: Prompt { task: "t".into(), ..Prompt::default() }, ..Group::default() });
    Rollout { group, sample, text: "x".into(), ..Rollout::default() }
}

/// Sends rollouts with the samples 1 to `n`, which are the ids of a fresh pool too.
fn send(client: &mut Client, n: u32) {
    (1..=n).for_each(|sample| client.send(rollout(sample)));
}

/// Waits for all that is pending; by sample.
fn collect(client: &mut Client) -> Result<BTreeMap<u32, Result<f32, String>>, Fault> {
    let (start, mut all) = (Instant::now(), BTreeMap::new());
    while client.pending() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{} are still pending", client.pending());
        client.wait(Duration::from_millis(50));
        for r in client.finished()? {
            let answer = r.reward.ok_or_else(|| r.reward_error.expect("either a reward or an error"));
            assert!(all.insert(r.sample, answer).is_none(), "given back twice");
        }
    }
    Ok(all)
}

fn ask(outside: &Outside, n: u32) -> BTreeMap<u32, Result<f32, String>> {
    let mut client = outside.client();
    send(&mut client, n);
    collect(&mut client).unwrap()
}

/// Asks for five; the second goes wrong and must say so, the others must be right.
fn only_the_second(spec: &CommandSpec, says: &str) {
    let outside = command::start(spec).unwrap();
    let mut all = ask(&outside, 5);
    let second = all.remove(&2).unwrap().unwrap_err();
    assert!(second.starts_with("group 3, sample 2: ") && second.contains(says), "{second}");
    assert_eq!(all, BTreeMap::from([1, 3, 4, 5].map(|n| (n, Ok(n as f32)))));
    let stats = outside.meter().stats();
    assert_eq!((stats.requests, stats.failures, outside.meter().pending()), (5, 1, 0));
}

/// Catches a failure that takes its siblings along, that is not told, or after which the program is not there again.
#[test]
fn each_way_to_fail_costs_one_rollout() {
    let cases = [
        ("exit 139", "the program exited with code 139 (128 + signal 11) without an answer"),
        ("kill -s SEGV $$", "the program was ended by signal 11 without an answer"),
        ("exit 0", "the program exited with code 0 without an answer"),
        ("echo broken >&2; exit 3", "exited with code 3 without an answer; its last line on stderr: broken"),
        (":", "no answer within 0.8 s; the program was ended"),
        ("sleep 60", "no answer within 0.8 s"),
        ("printf '{\"id\": 2, '; exit 1", "exited with code 1 without an answer"),
        ("printf '{\"id\": 2, '", "no answer within 0.8 s"),
        ("exec 1>&-; sleep 60", "the program closed its standard input or output without an answer"),
        ("echo done", "the program wrote \"done\", which is no answer to request 2"),
        ("echo", "the program wrote \"\", which is no answer to request 2"),
        ("echo '{\"id\": 1, \"reward\": 1}'", "which is no answer to request 2"),
        ("echo '{\"id\": 99, \"reward\": 1}'", "which is no answer to request 2"),
        ("printf '\\377\\n'", "the program wrote \"\u{fffd}\", which is no answer"),
        ("cat /dev/zero", "the program wrote a line of more than 1048576 bytes"),
        ("while :; do echo flood; done", "the program wrote \"flood\", which is no answer"),
        ("while :; do echo flood >&2; done", "no answer within 0.8 s"),
        ("echo '{\"id\": 2, \"reward\": \"1\"}'", "reward = \"1\", expected a finite number"),
        ("echo '{\"id\": 2, \"reward\": true}'", "reward = true, expected"),
        ("echo '{\"id\": 2, \"reward\": 1e400}'", "reward = 1e400, expected"),
        ("echo '{\"id\": 2, \"reward\": NaN}'", "reward = NaN, expected"),
        ("echo '{\"id\": 2, \"error\": \"no such test\"}'", "no reward: no such test"),
        ("echo '{\"id\": 2}'", "the answer {\"id\":2} has neither \"reward\" nor \"error\""),
    ];
    // At once: most of their time is waiting.
    std::thread::scope(|scope| {
        for (wrong, says) in cases {
            let wrong_once = each(&format!("if [ $id = 2 ]; then {wrong}; else {RIGHT}; fi"));
            scope.spawn(move || only_the_second(&shell(&wrong_once), says));
        }
    });
}

/// Catches 0 that is taken for nothing, and -0.0 that is kept.
#[test]
fn zeros_are_rewards() {
    let outside = command::start(&shell(&each("echo \"{\\\"id\\\": $id, \\\"reward\\\": -0.0}\""))).unwrap();
    let found: Vec<u32> = ask(&outside, 3).into_values().map(|reward| reward.unwrap().to_bits()).collect();
    assert_eq!(found, [0, 0, 0]);
    let stats = outside.meter().stats();
    assert_eq!((stats.failures, stats.restarts), (0, 0));
    assert!(stats.latency_mean_s.unwrap() > 0.0 && stats.latency_p99_s.unwrap() < 0.8);
}

/// Catches a program that is asked past its end, or that costs a rollout where it left in between; and what it wrote unasked
/// being taken for the next answer.
#[test]
fn a_program_may_leave_between_two_requests() {
    for leaves in ["exit 0", "echo more; sleep 60"] {
        let outside = command::start(&shell(&each(&format!("{RIGHT}; {leaves}")))).unwrap();
        let mut client = outside.client();
        for n in 1..=3 {
            client.send(rollout(n));
            assert_eq!(collect(&mut client), Ok(BTreeMap::from([(n, Ok(n as f32))])));
            std::thread::sleep(Duration::from_millis(60));
        }
        // The last one is started again at once, or with the next request.
        assert!((2..=3).contains(&outside.meter().stats().restarts), "{leaves}");
    }
}

/// Catches more or fewer programs at once than the specification says, and answers that go to somebody else.
#[test]
fn several_processes_and_clients() {
    let script = each(&format!("sleep 0.2; {RIGHT}"));
    let outside = command::start(&CommandSpec { processes: 4, time_limit_s: 5.0, ..shell(&script) }).unwrap();
    let mut clients = [outside.client(), outside.client()];
    let start = Instant::now();
    clients.iter_mut().for_each(|client| send(client, 4));
    let found = clients.each_mut().map(|client| collect(client).unwrap());
    let took = start.elapsed();
    assert!((Duration::from_millis(400)..Duration::from_millis(1200)).contains(&took), "{took:?}");
    assert_eq!(found[1], BTreeMap::from([1, 2, 3, 4].map(|n| (n, Ok(n as f32 + 4.0)))));
    let mut third = outside.client();
    send(&mut third, 100);
    drop(third);
    let mut fourth = outside.client();
    fourth.send(rollout(1));
    let start = Instant::now();
    collect(&mut fourth).unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "what nobody waits for is not asked");
}

/// Catches a first request that is measured without the program's start.
#[test]
fn a_fresh_program_has_time_to_start() {
    let script = format!("sleep 1.2; {}", each(&format!("if [ $id = 3 ]; then sleep 1.2; fi; {RIGHT}")));
    let outside = command::start(&CommandSpec { start_limit_s: 5.0, ..shell(&script) }).unwrap();
    let all = ask(&outside, 4);
    assert!(all[&1].is_ok() && all[&2].is_ok() && all[&3].is_err() && all[&4].is_ok(), "{all:?}");
}

/// Catches a variable that is passed on unasked, and one that is not although it was asked for.
#[test]
fn the_environment_is_what_the_specification_names() {
    let script = each("echo \"{\\\"id\\\": $id, \\\"error\\\": \\\"$(env | sort | tr '\\n' ' ')\\\"}\"");
    let found = |env: &[&str]| {
        let env = env.iter().map(|entry| (*entry).to_owned()).collect();
        let outside = command::start(&CommandSpec { env, ..shell(&script) }).unwrap();
        let said = ask(&outside, 1).remove(&1).unwrap().unwrap_err();
        let said = said.split_once("no reward: ").unwrap().1.to_owned();
        // What a shell sets by itself.
        let own = ["PWD=", "OLDPWD=", "SHLVL=", "_="];
        let kept = said.split_whitespace().filter(|entry| !own.iter().any(|own| entry.starts_with(own)));
        kept.map(str::to_owned).collect::<Vec<_>>()
    };
    let path = format!("PATH={}", std::env::var("PATH").unwrap());
    assert!(std::env::vars().count() > 3);
    assert_eq!(found(&["PATH"]).join(" "), path);
    assert_eq!(found(&["A=1", "PATH", "B=x=y"]), ["A=1", "B=x=y", path.as_str()]);
    let unset = CommandSpec { env: vec!["NO_SUCH_VARIABLE".into()], ..shell("") };
    let refused = command::start(&unset).err().unwrap().to_string();
    assert!(refused.starts_with("reward.env = NO_SUCH_VARIABLE: is not set here; "), "{refused}");
}

/// Catches a program that is not there and is found out about after hours.
#[test]
fn what_cannot_be_started_is_told_at_once() {
    for program in ["/nothing/here", "no-such-program-anywhere"] {
        let refused = command::start(&CommandSpec::new(vec![program.into(), "x".into()])).err().unwrap();
        assert_eq!(refused.exit_code(), 2);
        let refused = refused.to_string();
        let says = format!("reward.command = [\"{program}\", \"x\"]: the program cannot be started: No such file");
        assert!(refused.starts_with(&says), "{refused}");
    }
}

/// Catches a program that goes away during the run and leaves the rollouts waiting for ever.
#[test]
fn a_program_that_cannot_be_started_again_fails_its_requests() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("reward.sh");
    fs::write(&script, "#!/bin/sh\nread -r line; exit 1\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let spec = CommandSpec { command: vec![script.to_str().unwrap().into()], ..shell("") };
    let outside = command::start(&spec).unwrap();
    fs::remove_file(&script).unwrap();
    let all = ask(&outside, 2);
    assert!(all[&2].as_ref().unwrap_err().contains("the program cannot be started: No such file"), "{all:?}");
}

/// Catches a run that goes on without rewards, one that ends without saying why, and rollouts that never come back.
#[test]
fn too_many_failures_end_it_with_the_last_words() {
    let spec = shell("read -r line; echo first >&2; echo 'ModuleNotFoundError: numpy' >&2; exit 1");
    let outside = command::start(&CommandSpec { failure_limit: 0.5, processes: 4, ..spec }).unwrap();
    let (mut client, mut other) = (outside.client(), outside.client());
    send(&mut client, 30);
    send(&mut other, 30);
    let fault = collect(&mut client).unwrap_err().to_string();
    let start =
        "reward: 8 of the last 8 requests failed, more than reward.failure_limit = 0.5 allows; the last one: group 3, ";
    assert!(fault.starts_with(start), "{fault}");
    assert!(fault.contains(": the program exited with code 1 without an answer; "), "{fault}");
    assert!(fault.ends_with("its last lines on stderr:\n  | first\n  | ModuleNotFoundError: numpy"), "{fault}");
    assert_eq!(collect(&mut other).unwrap_err().to_string(), fault, "whoever asks is told");
    client.send(rollout(99));
    assert!(collect(&mut client).is_err(), "and nothing is asked any more");
}

/// Processes whose command line holds `mark`.
fn alive(mark: &str) -> usize {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let lines = pids.filter_map(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(mark)).count()
}

fn gone(mark: &str) {
    let start = Instant::now();
    while alive(mark) > 0 {
        assert!(start.elapsed() < Duration::from_secs(2), "{} processes remain", alive(mark));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Catches a program, or something that it started, that outlives the job (the last `:` keeps the shell there, whose arguments are
/// looked for): idle, asked in vain, or deaf to the end of its input.
#[test]
fn nothing_outlives_the_pool() {
    let scripts = ["cat >/dev/null; :", "sleep 1000 & sleep 1000; :", "trap '' TERM HUP INT; while :; do sleep 1000; done"];
    std::thread::scope(|scope| {
        for (n, script) in scripts.into_iter().enumerate() {
            scope.spawn(move || outlived_by_nothing(&format!("outlive-{}-{n}", std::process::id()), script));
        }
    });
}

fn outlived_by_nothing(mark: &str, script: &str) {
    let spec = CommandSpec { processes: 2, time_limit_s: 50.0, ..shell(&format!(": {mark}; {script}")) };
    let outside = command::start(&spec).unwrap();
    let start = Instant::now();
    while alive(mark) < 2 {
        assert!(start.elapsed() < Duration::from_secs(5), "they never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut client = outside.client();
    client.send(rollout(1));
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    drop(outside);
    assert!(start.elapsed() < Duration::from_secs(3));
    gone(mark);
    let closing = collect(&mut client).unwrap().remove(&1).unwrap().unwrap_err();
    assert!(closing.ends_with("the job ended before there was an answer"), "{closing}");
}

/// Catches what a program started and left behind when it was ended for its silence.
#[test]
fn a_hang_is_ended_with_all_that_it_started() {
    let mark = format!("hang-{}", std::process::id());
    let script = each(&format!("if [ $id = 2 ]; then /bin/sh -c 'sleep 1000; : {mark}-child'; else {RIGHT}; fi"));
    let outside = command::start(&shell(&script)).unwrap();
    let mut client = outside.client();
    send(&mut client, 3);
    assert!(collect(&mut client).unwrap()[&2].is_err());
    gone(&format!("{mark}-child\0"));
}

/// Status and body; None to break off.
type Said = Option<(u16, String)>;

/// A server that answers its n-th POST (from 0) as `answer` says.
fn serve(answer: impl Fn(u32, &str) -> Said + Send + Sync + 'static) -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/reward", listener.local_addr().unwrap());
    let (posts, answer) = (Arc::new(AtomicU32::new(0)), Arc::new(answer));
    let counted = Arc::clone(&posts);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, posts) = (Arc::clone(&answer), Arc::clone(&counted));
            std::thread::spawn(move || converse(stream, &posts, &*answer));
        }
    });
    (url, posts)
}

fn converse(mut stream: TcpStream, posts: &AtomicU32, answer: &dyn Fn(u32, &str) -> Said) {
    let (mut read, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            if body.len() == length.unwrap().parse::<usize>().unwrap() {
                let Some((status, body)) = answer(posts.fetch_add(1, Ordering::SeqCst), &text) else { return };
                let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len());
                if stream.write_all((head + &body).as_bytes()).is_err() {
                    return;
                }
                read.clear();
                continue;
            }
        }
        match stream.read(&mut block) {
            Ok(n) if n > 0 => read.extend_from_slice(&block[..n]),
            _ => return,
        }
    }
}

/// The ids that a POST asks about.
fn ids(request: &str) -> Vec<u64> {
    let body: serde_json::Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    body["requests"].as_array().unwrap().iter().map(|request| request["id"].as_u64().unwrap()).collect()
}

/// Each id is its own reward.
fn right(ids: &[u64]) -> String {
    let responses: Vec<String> = ids.iter().rev().map(|id| format!("{{\"id\": {id}, \"reward\": {id}}}")).collect();
    format!("{{\"responses\": [{}]}}", responses.join(","))
}

fn impatient(url: String) -> HttpSpec {
    HttpSpec { time_limit_s: 0.8, connections: 1, retries: 2, failure_limit: 1.0, batch: 4, ..HttpSpec::new(url) }
}

/// Catches batches that are larger than allowed, answers by place and not by id, headers that are not sent, a connection a POST.
#[test]
fn a_server_is_asked_in_batches() {
    let (url, posts) = serve(|_, request| {
        let ids = ids(request);
        let right_headers = request.to_lowercase().contains("\r\nx-key: k\r\n") && request.starts_with("POST /reward ");
        assert!(ids.len() <= 4 && right_headers, "{request}");
        Some((200, right(&ids)))
    });
    let headers = BTreeMap::from([("X-Key".to_owned(), "k".to_owned())]);
    let outside = http::start(&HttpSpec { headers, ..impatient(url) }).unwrap();
    assert_eq!(ask(&outside, 20), (1..=20).map(|n| (n, Ok(n as f32))).collect());
    let posts = posts.load(Ordering::SeqCst);
    assert!((5..=8).contains(&posts), "{posts} POSTs for 20 rollouts");
    assert_eq!(outside.meter().stats().failures, 0);
}

/// Catches a server in passing trouble that costs rollouts.
#[test]
fn passing_trouble_costs_nothing() {
    let trouble: [fn(&[u64]) -> Said; 4] = [
        |_| Some((500, "oops".into())),
        |_| Some((429, "slow down".into())),
        |_| None,
        |ids| {
            std::thread::sleep(Duration::from_millis(1200));
            Some((200, right(ids)))
        },
    ];
    for trouble in trouble {
        let (url, _) =
            serve(move |n, request| if n == 0 { trouble(&ids(request)) } else { Some((200, right(&ids(request)))) });
        let outside = http::start(&impatient(url)).unwrap();
        assert!(ask(&outside, 6).values().all(Result::is_ok));
        let stats = outside.meter().stats();
        assert_eq!((stats.failures, stats.retries), (0, 1));
    }
}

/// Catches a request that takes along those that were asked with it: whenever id 2 is among them, the POST goes wrong.
#[test]
fn one_bad_request_costs_one_rollout() {
    type Bad = fn(&[u64]) -> Said;
    let bad: [(Bad, &str); 9] = [
        (|_| Some((500, "Traceback".into())), "the server answered with status 500: \"Traceback\""),
        (|_| Some((422, "no".into())), "the server answered with status 422: \"no\""),
        (|_| Some((200, "<html>".into())), "the server answered \"<html>\", which is not {\"responses\": [..]}"),
        (|_| Some((200, "{\"responses\": [{\"id\": 77, \"reward\": 1}]}".into())), "with the ids of the requests"),
        (|_| Some((200, "{\"responses\": []}".into())), "the server's responses have none for request 2"),
        (|_| None, "the server broke off: "),
        (
            |_| {
                std::thread::sleep(Duration::from_millis(1200));
                None
            },
            "no answer of the server within 0.8 s",
        ),
        (|ids| Some((200, right(ids).replace("\"reward\": 2", "\"reward\": 1e400"))), "reward = 1e400, expected a finite"),
        (|ids| Some((200, right(ids).replace("\"reward\": 2", "\"error\": \"x\""))), "no reward: x"),
    ];
    for (bad, says) in bad {
        let answer = move |_, request: &str| {
            let ids = ids(request);
            if ids.contains(&2) { bad(&ids) } else { Some((200, right(&ids))) }
        };
        let (url, _) = serve(answer);
        let outside = http::start(&HttpSpec { retries: 0, ..impatient(url) }).unwrap();
        let mut all = ask(&outside, 6);
        if says.contains("have none") {
            all.retain(|_, answer| answer.as_ref().is_err_and(|e| e.contains("request 2")));
            all.extend([1, 3, 4, 5, 6].map(|n| (n, Ok(n as f32))));
        }
        let second = all.remove(&2).unwrap().unwrap_err();
        assert!(second.starts_with("group 3, sample 2: ") && second.contains(says), "{second}");
        assert_eq!(all, BTreeMap::from([1, 3, 4, 5, 6].map(|n| (n, Ok(n as f32)))), "{says}");
    }
}

/// Catches a server that is not there and is asked for ever.
#[test]
fn no_server_ends_it() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let spec = HttpSpec { failure_limit: 0.2, retries: 1, ..impatient(format!("http://{closed}/")) };
    let outside = http::start(&spec).unwrap();
    let mut client = outside.client();
    send(&mut client, 12);
    let fault = collect(&mut client).unwrap_err().to_string();
    assert!(fault.starts_with("reward: 8 of the last 8 requests failed, more than reward.failure_limit = 0.2"), "{fault}");
    assert!(fault.contains("the server did not answer: "), "{fault}");
    let start = Instant::now();
    drop(outside);
    assert!(start.elapsed() < Duration::from_millis(500));
}
