//! Faults: errors that travel on the dataflow, and the halt that the first one calls.

use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An error of one operator: who, and one sentence that a person can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub operator: String,
    pub message: String,
}

impl Fault {
    /// A fault of `operator`.
    pub fn new(operator: impl Into<String>, message: impl fmt::Display) -> Self {
        Fault { operator: operator.into(), message: message.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operator, self.message)
    }
}

impl std::error::Error for Fault {}

/// Calls a port; a panic in it becomes a fault, since a panic in one timely worker would hang the others.
///
/// # Errors
/// What the port returned, or its panic's message.
pub fn guarded<R>(operator: &str, call: impl FnOnce() -> Result<R, Fault>) -> Result<R, Fault> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(Fault::new(operator, panic_message(&*panic))))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}

/// One flag for all operators of a process: after it is set no step starts, nothing is admitted or sampled, and the
/// frontier drains. Faults set it, and so does a signal.
#[derive(Clone, Debug, Default)]
pub struct Halt(Arc<AtomicBool>);

impl Halt {
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
