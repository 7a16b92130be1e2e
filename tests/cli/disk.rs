//! A disk that is full, and folders that cannot be written.

use crate::harness::{files, steps, tidegate, workplace};
use crate::running::{Running, whole};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tidegate::store::RunFolder;

/// A disk of its own under `runs/`, in memory.
struct Disk(PathBuf);

impl Disk {
    /// None where disks cannot be mounted: that is told, and the test is none.
    fn mount(dir: &TempDir) -> Option<Disk> {
        let disk = Disk(dir.path().join("runs"));
        fs::create_dir(&disk.0).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=24m", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(&disk.0).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            // Room for a few steps.
            fs::write(disk.filler(), vec![0; (24 << 20) - 120_000]).unwrap();
            return Some(disk);
        }
        println!("skipped: a small disk cannot be mounted here");
        std::mem::forget(disk);
        None
    }
}

impl Disk {
    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Catches a full disk that ends a run or passes unsaid, and a pause that goes on when there is room, or that loses a step.
#[test]
fn a_run_waits_for_room() {
    let dir = workplace();
    let Some(disk) = Disk::mount(&dir) else { return };
    let running = Running::at(dir, &["env"], &["run", "spec.toml", "--set", "steps=1000000"]);
    running.until_said("disk full: runs/spec/rollouts has ");
    let paused = RunFolder::view(running.path()).unwrap().sealed_steps().unwrap().len();
    fs::remove_file(disk.filler()).unwrap();
    running.until_said(&format!("room again: step {} is on disk", paused + 1));
    running.until(&format!("rollouts/step-{:08}.parquet", paused + 2));
    running.signal("TERM");
    let (ran, dir) = running.end();
    assert_eq!((ran.code, ran.err.matches("disk full").count()), (143, 1), "{}", ran.err);
    whole(&dir.path().join("runs/spec"));
    drop(disk);
}

/// Catches a pause that no signal ends, a torn file, and a loss that is not told.
#[test]
fn a_pause_for_room_can_be_ended() {
    let dir = workplace();
    let Some(disk) = Disk::mount(&dir) else { return };
    let running = Running::at(dir, &["env", "--default-signal=INT"], &["run", "spec.toml", "--set", "steps=1000000"]);
    running.until_said("disk full: runs/spec/rollouts has ");
    running.signal("INT");
    let (ran, dir) = running.end();
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    let sealed = steps(&folder).len();
    let lost = format!(": step {} is not on disk, nor is what came after it", sealed + 1);
    ran.refused(1, &["error: seal: ", "No space left on device", &lost]);
    assert!(ran.err.contains(&format!("\n{sealed} steps are sealed in runs/spec\n")), "{}", ran.err);
    assert!(files(folder.path()).iter().all(|name| !name.ends_with(".tmp")));
    drop(disk);
}

/// Catches a run that loads its model and then finds no place to write, and an error that does not say which.
#[test]
fn a_place_that_cannot_be_written_is_refused_first() {
    let dir = workplace();
    for (output, why) in [
        ("spec.toml/run", "output = spec.toml/run: spec.toml is a file, not a folder"),
        ("/proc/self/run", "output = /proc/self/run: nothing can be written in /proc/self: "),
    ] {
        let (output, model) = (format!("output={output}"), "model.path=no-model");
        tidegate(dir.path(), &["run", "spec.toml", "--set", &output, "--set", model]).refused(2, &[why]);
    }
    let Some(disk) = Disk::mount(&dir) else { return };
    let options = ["-o", "remount,ro"];
    assert!(Command::new("mount").args(options).arg(&disk.0).status().unwrap().success());
    let ran = tidegate(dir.path(), &["run", "spec.toml", "--set", "model.path=no-model"]);
    ran.refused(2, &["output = runs/spec: nothing can be written in runs: Read-only file system"]);
}

/// Catches a plan that does not say what the disk must hold, and a run that does not fit and is not warned of.
#[test]
fn the_plan_says_what_the_disk_must_hold() {
    let dir = workplace();
    let Some(disk) = Disk::mount(&dir) else { return };
    let running = Running::at(dir, &["env", "--default-signal=INT"], &["run", "spec.toml", "--set", "steps=1000000"]);
    running.until_said("warning   ");
    running.signal("INT");
    let (ran, _dir) = running.end();
    let line = |start| ran.err.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("disk      about ").contains(" GB for the log (at most "), "{}", ran.err);
    assert!(
        line("warning   ").ends_with(" kB are free in runs/spec: the run will pause when they are used up"),
        "{}",
        ran.err
    );
    drop(disk);
}
