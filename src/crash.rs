//! Named places at which a test may end the process as `kill -9` would (floor 0).
//!
//! With `TIDEGATE_KILL_AT=NAME:N` in the environment the process ends by SIGKILL when it comes to the place NAME for the N-th
//! time. Only in builds with debug assertions; in others [`at`] is empty.

/// Every place, in the order of a step, a checkpoint and a compaction.
pub const PLACES: &[&str] = &[
    // A step is done; its weights are about to go to the generators, its rows to the log.
    "step: published",
    // Its rows are durable.
    "step: sealed",
    // Weights and optimizer are copied for a checkpoint.
    "checkpoint: copied",
    // It has its name; older ones are still there.
    "checkpoint: sealed",
    // An older one has a temporary name, and is still whole.
    "checkpoint: removing",
    // A run that goes on has loaded its checkpoint; has trained the steps after it again.
    "resume: loaded",
    "resume: replayed",
    // A file is complete and durable under its temporary name.
    "file: written",
    // It has its own name; the folder that holds the name is not yet durable.
    "file: renamed",
    // The same of a folder.
    "folder: written",
    "folder: renamed",
    // A merged file is durable in the folder that is to replace rollouts/.
    "compact: merged",
    // So are links to every file that stays.
    "compact: linked",
    // The two folders have exchanged their names.
    "compact: swapped",
    // The old one is half removed; is gone.
    "compact: removing",
    "compact: removed",
];

/// Ends the process here if the environment says so.
#[cfg(debug_assertions)]
pub fn at(place: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WANTED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let text = std::env::var("TIDEGATE_KILL_AT").ok()?;
        let wanted = text.rsplit_once(':').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
        let known = wanted.filter(|(name, _)| PLACES.contains(&name.as_str()));
        // A test that misspells a place must not pass because nothing ended.
        Some(known.unwrap_or_else(|| panic!("TIDEGATE_KILL_AT = {text:?}: expected NAME:N, NAME one of {PLACES:?}")))
    });
    static PASSED: AtomicU64 = AtomicU64::new(0);

    debug_assert!(PLACES.contains(&place), "{place} is not in PLACES");
    let Some((wanted, n)) = &*WANTED else { return };
    if place == wanted && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *n {
        let _ = signal_hook::low_level::raise(signal_hook::consts::SIGKILL);
    }
}

/// Nothing: this build has no places to end at.
#[cfg(not(debug_assertions))]
pub fn at(_: &str) {}
