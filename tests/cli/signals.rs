//! A run that is stopped, or that fails, in the middle: what is complete stays, and the user is told.

use crate::harness::{steps, tidegate};
use crate::running::{Running, whole};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate::store::layout::LogFile;
use tidegate::store::{RunFolder, read_step};

/// Catches a signal that kills, that is not noticed, or whose exit code is that of a failure.
#[test]
fn signals_end_a_run_cleanly() {
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let running = Running::start("eval.prompts=0");
        running.until("rollouts/step-00000002.parquet");
        running.signal(signal);
        let (ran, dir) = running.end();
        assert_eq!(ran.code, 128 + number, "{}", ran.err);
        assert!(ran.err.contains(&format!("signal {number}: sealing what is complete")), "{}", ran.err);
        assert!(ran.err.ends_with(&format!("error: stopped by signal {number}\n")), "{}", ran.err);
        let folder = whole(&dir.path().join("runs/spec"));
        let steps = folder.sealed_steps().unwrap().len();
        assert!(steps >= 2);
        assert!(ran.out.contains(&format!("trained   {steps} steps in ")), "{}", ran.out);
        let replayed = tidegate(dir.path(), &["replay", "runs/spec"]).ok();
        assert!(replayed.out.contains("bit for bit"), "{}", replayed.out);
        tidegate(dir.path(), &["analyze", "runs/spec"]).ok();
    }
}

/// Catches a second signal that waits for the first one's end, and one that leaves a torn file under a step's name.
#[test]
fn a_second_signal_ends_at_once() {
    let running = Running::start("batch.batch_size=256");
    running.until("rollouts/step-00000001.parquet");
    running.signals(&["INT", "TERM"]);
    let (ran, dir) = running.end();
    // Two that are pending at once come in no order.
    assert!([130, 143].contains(&ran.code) && ran.out.is_empty(), "{}", ran.err);
    assert!(ran.err.ends_with("second signal: ending at once; sealed steps are whole\n"), "{}", ran.err);
    let folder = RunFolder::view(dir.path().join("runs/spec")).unwrap();
    assert!(!steps(&folder).is_empty() && folder.checkpointed_steps().unwrap().is_empty());
}

/// Catches a hangup that kills a run under `nohup`, and one that comes twice, from the kernel and from the shell, and so
/// ends a run at once.
#[test]
fn a_hangup_is_heard_once_or_not_at_all() {
    let running = Running::start("eval.prompts=0");
    running.until("rollouts/step-00000001.parquet");
    running.signals(&["HUP", "HUP"]);
    std::thread::sleep(Duration::from_millis(5));
    // It may have ended by now.
    let _ = Command::new("kill").args(["-s", "HUP", &running.pid().to_string()]).stderr(Stdio::null()).status();
    let (ran, dir) = running.end();
    assert!(ran.code == 129 && !ran.err.contains("at once;"), "{}: {}", ran.code, ran.err);
    whole(&dir.path().join("runs/spec"));

    let running = Running::under(&["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"], "eval.prompts=0");
    running.until("rollouts/step-00000001.parquet");
    running.signal("HUP");
    let folder = RunFolder::view(running.path()).unwrap();
    let next = folder.sealed_steps().unwrap().len() + 3;
    running.until(&format!("rollouts/step-{next:08}.parquet"));
    running.signal("TERM");
    let (ran, _dir) = running.end();
    assert!(ran.code == 143 && !ran.err.contains("signal 1:"), "{}", ran.err);
}

/// Runs its arguments on a terminal of their own, closes that when there is a second step, and says how they ended.
const CLOSES_ITS_TERMINAL: &str = r#"
import os, pty, sys, time
child, terminal = pty.fork()
if child == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
os.set_blocking(terminal, False)
shown = b""
while not os.path.exists("runs/spec/rollouts/step-00000002.parquet") or b"ESS" not in shown:
    try:
        shown += os.read(terminal, 65536)
    except BlockingIOError:
        time.sleep(0.005)
os.close(terminal)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"#;

/// Catches a bar or a line that ends a run, and the result that cannot be printed any more hiding how it ended. The terminal
/// hangs up: the kernel says so with a signal, and whatever is written to it fails.
#[test]
fn a_closed_terminal_ends_a_run_cleanly() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: no python3 to open a terminal with");
        return;
    }
    for (caller, code) in [("python3", "129\n"), ("nohup", "0\n")] {
        let (python, set) = (["python3", "-c", CLOSES_ITS_TERMINAL], "learn.lr=1e-4");
        let running = match caller {
            "python3" => Running::under(&["env", "--default-signal=HUP", python[0], python[1], python[2]], set),
            _ => Running::under(
                &["sh", "-c", "trap '' HUP; exec \"$@\" --set steps=40", "sh", python[0], python[1], python[2]],
                set,
            ),
        };
        let (ran, dir) = running.end();
        assert_eq!((ran.code, ran.out.as_str()), (0, code), "{caller}: {}", ran.err);
        whole(&dir.path().join("runs/spec"));
    }
}

/// Catches an evaluation that goes on to its end, however long; and means over no steps that are printed as numbers.
#[test]
fn a_signal_during_the_first_evaluation_is_heard() {
    let running = Running::start("eval.prompts=20000");
    running.until("spec.toml");
    // The evaluation begins right after, and would take half a minute and more.
    std::thread::sleep(Duration::from_millis(500));
    running.signal("INT");
    let (ran, dir) = running.end();
    assert_eq!(ran.code, 130, "{}", ran.err);
    let path = dir.path().join("runs/spec");
    assert!(RunFolder::view(&path).unwrap().sealed_steps().unwrap().is_empty());
    assert!(ran.out.contains("reward    - in the first tenth of the steps, - in the last\n"), "{}", ran.out);
    assert!(ran.out.contains("ESS       mean -, least -\n"), "{}", ran.out);
    assert!(!ran.out.contains("NaN") && !ran.out.contains("-0.0"), "{}", ran.out);
    assert!(path.join("checkpoints/step-00000000/model.safetensors").exists());
}

/// A file stands where a step is to be sealed. Catches a fault that hangs the run, one whose cause is hidden by what cannot
/// be done after it, and a result that is printed for a failed run.
#[test]
fn a_fault_in_mid_run_is_told_and_what_was_complete_is_kept() {
    let running = Running::start("eval.prompts=0");
    running.until("rollouts/step-00000002.parquet");
    let folder = RunFolder::view(running.path()).unwrap();
    fs::write(folder.log_file(LogFile::Step(20)), "in the way").unwrap();
    let (ran, _dir) = running.end();
    ran.refused(1, &["error: seal: ", "step-00000020.parquet: step 20 is sealed already"]);
    assert!(ran.err.contains("\n19 steps are sealed in "), "{}", ran.err);
    assert!(ran.err.contains("\nalso: ") && ran.err.contains("step-00000020.parquet: "), "{}", ran.err);
    for step in 1..=19 {
        assert!(read_step(&folder.log_file(LogFile::Step(step))).is_ok());
    }
    assert_eq!(fs::read(folder.log_file(LogFile::Step(20))).unwrap(), b"in the way");
    // The learner went further than the log: no checkpoint is ever ahead of it.
    assert!(folder.checkpointed_steps().unwrap().is_empty());
}
