//! Wakes an operator from a thread of the outside world: a disk, a reward program.

use std::fmt;
use std::sync::Arc;
use timely::dataflow::Scope;

/// Wakes one operator, from any thread and as often as one likes; without effect once its worker is gone.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::sync::Arc;
/// use tidegate_operators::waker::Waker;
///
/// let woken = Arc::new(AtomicBool::new(false));
/// let seen = Arc::clone(&woken);
/// let waker = Waker::new(move || seen.store(true, Ordering::Release));
/// std::thread::spawn(move || waker.wake()).join().unwrap();
/// assert!(woken.load(Ordering::Acquire));
/// ```
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Waker(Arc::new(wake))
    }

    /// The waker of the operator at `address`.
    pub(crate) fn of<T: timely::progress::Timestamp>(scope: Scope<'_, T>, address: &[usize]) -> Self {
        let activator = scope.worker().sync_activator_for(address.to_vec());
        // An error says that the worker is gone: nobody is left to be woken.
        Waker::new(move || activator.activate().unwrap_or_default())
    }

    /// Has the operator called soon.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
