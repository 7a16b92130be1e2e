//! Which threads a run has.

use crate::harness::workplace;
use crate::running::Running;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Pools of libtorch's threads are the workers' alone. With more threads in them than processors those of a small model sleep between any
/// two loops, and a step takes twice its time: catches a pool that reading the model, a checkpoint or an evaluation leaves behind.
#[test]
fn only_workers_have_pools() {
    let workers = "workers={generators=[0],learners=[0],generator_threads=2,learner_threads=2}";
    let sets = ["steps=1000000", "checkpoint.every_steps=1", "eval={when='checkpoints',prompts=4}", workers];
    let sets = sets.map(|set| ["--set", set]);
    let args: Vec<&str> = ["run", "spec.toml"].into_iter().chain(sets.into_iter().flatten()).collect();
    let running = Running::at(workplace(), &["env", "--default-signal=HUP,INT,TERM"], &args);
    running.until("checkpoints/best");
    // A thread that a library makes is called as the one that it was made by. Some come and go: reading the log has its own.
    let look = || -> Option<BTreeMap<String, String>> {
        let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).ok()?.flatten();
        Some(tasks.filter_map(|task| Some((format!("{:?}", task.file_name()), named(&task)?))).collect())
    };
    let Some(mut stay) = look() else { return };
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(50));
        let now = look().unwrap();
        stay.retain(|task, _| now.contains_key(task));
    }
    running.signal("TERM");
    assert_eq!(running.end().0.code, 143);
    let mut names: Vec<String> = stay.into_values().collect();
    names.sort();
    // Of the two that are called as the program one draws the progress bar.
    assert_eq!(names, ["checkpoints", "log", "signals", "tidegate", "tidegate", "timely:work-0", "timely:work-0"]);
}

/// Threads sleep soon after they have nothing to do, unless a person says how long they are to spin. Catches a beginning anew that loses
/// the process, its arguments or what was said.
#[test]
fn threads_that_wait_do_not_spin_for_long() {
    let said = |caller: &[&str], name: &str| {
        let running = Running::under(caller, "eval.prompts=0");
        running.until("rollouts/step-00000001.parquet");
        let environment = fs::read(format!("/proc/{}/environ", running.pid())).unwrap();
        running.signal("TERM");
        assert_eq!(running.end().0.code, 143);
        let texts = environment.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        texts.filter_map(|text| text.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)).collect::<Vec<_>>()
    };
    let env = ["env", "-u", "OMP_WAIT_POLICY", "--default-signal=HUP,INT,TERM"];
    assert_eq!(said(&[&env[..], &["-u", "GOMP_SPINCOUNT"]].concat(), "GOMP_SPINCOUNT"), ["3000"]);
    assert_eq!(said(&[&env[..], &["GOMP_SPINCOUNT=77"]].concat(), "GOMP_SPINCOUNT"), ["77"]);
    let policy = [&env[..], &["-u", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY=passive"]].concat();
    assert!(said(&policy, "GOMP_SPINCOUNT").is_empty());
}

fn named(task: &fs::DirEntry) -> Option<String> {
    fs::read_to_string(task.path().join("comm")).ok().map(|name| name.trim().to_owned())
}
