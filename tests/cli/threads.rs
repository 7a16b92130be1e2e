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

fn named(task: &fs::DirEntry) -> Option<String> {
    fs::read_to_string(task.path().join("comm")).ok().map(|name| name.trim().to_owned())
}
