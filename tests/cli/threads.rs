//! Which threads a run has.

use crate::harness::workplace;
use crate::running::{Running, whole};
use std::fs;

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
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", running.pid())) else { return };
    // A thread that a library makes is called as the one that it was made by.
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("comm")).ok();
    let mut names: Vec<String> = tasks.filter_map(name).map(|name| name.trim().to_owned()).collect();
    names.sort();
    running.signal("TERM");
    whole(&running.end().1.path().join("runs/spec"));
    assert_eq!(names, ["checkpoints", "log", "signals", "tidegate", "timely:work-0", "timely:work-0"]);
}
