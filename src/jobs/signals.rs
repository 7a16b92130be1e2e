//! SIGINT, SIGTERM and SIGHUP: the first one halts the job, which seals what is complete; the second ends the process.

use crate::error::{Error, Result};
use crate::jobs::say;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use tidegate_operators::fault::Halt;

/// Names the process, an experiment, with which a run is to end, however that ends.
pub const PARENT: &str = "TIDEGATE_PARENT";

/// The halt that signals call, and which signal it was.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    pub halt: Halt,
    signal: Arc<AtomicI32>,
}

impl Interrupt {
    /// The first signal that came, if any.
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }
}

/// Listens for signals on a thread of its own, for a job that seals steps.
///
/// # Errors
/// A system that does not let handlers be set.
pub fn halt_on_signals() -> Result<Interrupt> {
    let interrupt = listen("sealing what is complete", "; sealed steps are whole")?;
    if let Some(parent) = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok()) {
        // A system that does not know of it leaves the run alone, as any other.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        if getppid().map(Pid::as_raw_pid) != Some(parent) {
            // It was gone before it could be listened to.
            let _ = kill_process(getpid(), Signal::TERM);
        }
    }
    Ok(interrupt)
}

/// Listens for signals on a thread of its own; says that the job is `ending` so, or that it ends at once and `what_stays`.
///
/// A signal that was ignored when the program started stays ignored: so `nohup` asks for it, and a shell's `&` in a script.
///
/// # Errors
/// A system that does not let handlers be set.
pub fn listen(ending: &'static str, what_stays: &'static str) -> Result<Interrupt> {
    let interrupt = Interrupt::default();
    let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(heard).map_err(|e| Error::engine("signal handlers", e))?;
    let seen = interrupt.clone();
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let listening = thread.spawn(move || {
        for signal in signals.forever() {
            let first = seen.signal().is_none();
            // One closed terminal is told of by the kernel, and by its shell again.
            if !first && signal != SIGHUP {
                say(format_args!("second signal: ending at once{what_stays}"));
                // At once: destructors of libraries would run under the feet of workers that compute.
                signal_hook::low_level::exit(128 + signal);
            }
            if first {
                seen.signal.store(signal, Ordering::Release);
                seen.halt.set();
                say(format_args!("signal {signal}: {ending}; once more to end at once"));
            }
        }
    });
    listening.map_err(|e| Error::engine("thread that hears signals", e))?;
    Ok(interrupt)
}

/// The signals that a process ignores, bit n-1 for signal n, by what Linux says of it; none where it says nothing.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored("Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n"), 1 << 12 | 1);
        assert_eq!(ignored(""), 0);
    }
}
