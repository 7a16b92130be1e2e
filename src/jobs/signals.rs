//! SIGINT and SIGTERM: the first one halts the dataflow, which seals what is complete; the second ends the process.

use crate::error::{Error, Result};
use crate::jobs::say;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use tidegate_operators::fault::Halt;

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

/// Listens for signals on a thread of its own.
///
/// # Errors
/// A system that does not let handlers be set.
pub fn halt_on_signals() -> Result<Interrupt> {
    let interrupt = Interrupt::default();
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|e| Error::engine("signal handlers", e))?;
    let seen = interrupt.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if seen.signal().is_some() {
                say("second signal: ending at once; sealed steps are whole");
                // At once: destructors of libraries would run under the feet of workers that compute.
                signal_hook::low_level::exit(128 + signal);
            }
            say(format_args!("signal {signal}: sealing what is complete; once more to end at once"));
            seen.signal.store(signal, Ordering::Release);
            seen.halt.set();
        }
    });
    Ok(interrupt)
}
