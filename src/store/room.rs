//! What a writer does where the disk is full: it waits for room.

use crate::error::{Error, Result};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_operators::fault::Halt;

/// Between two attempts.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the halt.
const LOOK: Duration = Duration::from_millis(20);

/// How writers of one run wait for room: told once, until there is some or the run is halted.
#[derive(Clone)]
pub struct Room {
    halt: Halt,
    tell: Arc<dyn Fn(&str) + Send + Sync>,
    pub(super) every: Duration,
}

impl Room {
    /// Waits until `halt`; `tell` gets one line when a wait begins and one when it is over.
    pub fn new(halt: &Halt, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Room { halt: halt.clone(), tell: Arc::new(tell), every: EVERY }
    }

    /// Calls `attempt` until it finds the room that it needs on the disk of `folder`, about `needs` bytes for `what`. Each
    /// attempt must be whole or leave nothing.
    ///
    /// # Errors
    /// Whatever but [`Error::Full`] the attempt fails with; that too, once the run is halted.
    pub fn wait_for<T>(&self, folder: &Path, what: &str, needs: u64, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut waited = false;
        loop {
            match attempt() {
                Err(Error::Full { path, reason }) if self.halt.is_set() => {
                    let reason = format!("{reason}: {what} is not on disk, nor is what came after it");
                    return Err(Error::Full { path, reason });
                }
                Err(Error::Full { .. }) if waited => {}
                Err(Error::Full { .. }) => {
                    waited = true;
                    let (place, needs) = (folder.display(), readable(needs));
                    let left = free(folder).map_or_else(|| "too little".to_owned(), readable);
                    (self.tell)(&format!(
                        "disk full: {place} has {left} left, {what} needs about {needs}; paused, goes on when there is room \
                         (Ctrl-C ends the run)"
                    ));
                }
                other => {
                    if waited && other.is_ok() {
                        (self.tell)(&format!("room again: {what} is on disk, the run goes on"));
                    }
                    return other;
                }
            }
            let next = Instant::now() + self.every;
            while Instant::now() < next && !self.halt.is_set() {
                std::thread::sleep(LOOK.min(self.every));
            }
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("halt", &self.halt).finish_non_exhaustive()
    }
}

/// Bytes that this user may still write on the disk that has `path`, or where that does not exist yet, its nearest folder
/// that does; None where the system does not say.
pub fn free(path: &Path) -> Option<u64> {
    let here = Path::new(".");
    let folder = path.ancestors().map(|folder| if folder.as_os_str().is_empty() { here } else { folder });
    let disk = rustix::fs::statvfs(folder.into_iter().find(|folder| folder.exists())?).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// `1.2 GB`: three digits at most, units of 1000.
pub fn readable(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for larger in ["kB", "MB", "GB", "TB", "PB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    if value < 9.95 && unit != "B" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn room(halt: &Halt) -> (Room, Arc<Mutex<Vec<String>>>) {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&told);
        let room = Room::new(halt, move |line| lines.lock().unwrap().push(line.to_owned()));
        (Room { every: Duration::from_millis(1), ..room }, told)
    }

    fn full() -> Error {
        Error::Full { path: "f".into(), reason: "No space left on device (os error 28)".to_owned() }
    }

    /// Catches a full disk that ends a run, a wait that is told each time, and one that ends untold.
    #[test]
    fn a_full_disk_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (room, told) = room(&Halt::default());
        let mut left = 4;
        let written = room.wait_for(dir.path(), "step 7", 1_234_567, || {
            left -= 1;
            if left > 0 { Err(full()) } else { Ok(left) }
        });
        assert_eq!(written.unwrap(), 0);
        let told = told.lock().unwrap();
        assert!(told[0].starts_with(&format!("disk full: {} has ", dir.path().display())), "{told:?}");
        assert!(told[0].contains(" left, step 7 needs about 1.2 MB; paused, goes on when there is room"), "{told:?}");
        assert_eq!(told[1..], ["room again: step 7 is on disk, the run goes on"]);
    }

    /// Catches other errors that are waited for, or a first success that is told of.
    #[test]
    fn nothing_else_is_waited_for() {
        let (room, told) = room(&Halt::default());
        let error = room.wait_for::<()>(Path::new("."), "step 7", 1, || Err(Error::file("f", "Permission denied")));
        assert_eq!(error.unwrap_err().to_string(), "f: Permission denied");
        assert!(room.wait_for(Path::new("."), "step 7", 1, || Ok(())).is_ok());
        assert!(told.lock().unwrap().is_empty());
    }

    /// Catches a wait that a halt does not end.
    #[test]
    fn a_halt_ends_the_wait() {
        let halt = Halt::default();
        let (room, told) = room(&halt);
        let mut attempts = 0;
        let error = room.wait_for::<()>(Path::new("."), "step 7", 1, || {
            attempts += 1;
            if attempts == 3 {
                halt.set();
            }
            Err(full())
        });
        let why = "f: No space left on device (os error 28): step 7 is not on disk, nor is what came after it";
        assert_eq!((error.unwrap_err().to_string(), attempts), (why.to_owned(), 3));
        assert_eq!(told.lock().unwrap().len(), 1);
    }

    #[test]
    fn sizes_are_readable() {
        let sizes = [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9_960, "10 kB"), (999_600, "1.0 MB")];
        let sizes = sizes.into_iter().chain([(1_240_000_000, "1.2 GB"), (72_400_000_000, "72 GB")]);
        sizes.for_each(|(bytes, text)| assert_eq!(readable(bytes), text));
    }

    /// Catches a folder that is not made yet, and a path with no folder before it.
    #[test]
    fn what_is_free_is_known_before_the_folder_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free(dir.path()).is_some_and(|bytes| bytes > 0));
        assert!(free(&dir.path().join("a/b")).is_some() && free(Path::new("nowhere")).is_some());
    }
}
