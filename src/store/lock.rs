//! One writer a run: a lock that the system takes back from whoever ends, however that was.

use super::layout::RunFolder;
use crate::error::{Error, Result};
use std::fs::{File, TryLockError};

/// Held by the process that writes into a run's folder.
#[derive(Debug)]
pub struct RunLock {
    /// The folder itself, so that nothing is left behind that would look like a lock.
    _folder: File,
}

impl RunFolder {
    /// Takes the run's lock; on a file system that has none, nothing.
    ///
    /// # Errors
    /// Another process has it.
    pub fn lock(&self) -> Result<RunLock> {
        let folder = File::open(self.path()).map_err(|e| Error::file(self.path(), e))?;
        match folder.try_lock() {
            Ok(()) => Ok(RunLock { _folder: folder }),
            Err(TryLockError::WouldBlock) => {
                Err(Error::file(self.path(), "another process is writing into this run; wait for it, or stop it"))
            }
            // A file system without locks: who writes there must see to it.
            Err(TryLockError::Error(_)) => Ok(RunLock { _folder: folder }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches two writers in one folder, and a lock that outlives the one who had it.
    #[test]
    fn one_writer_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(dir.path().join("r")).unwrap();
        let lock = folder.lock().unwrap();
        let refused = RunFolder::view(folder.path()).unwrap().lock().unwrap_err().to_string();
        assert!(refused.contains("another process is writing into this run"), "{refused}");
        drop(lock);
        folder.lock().unwrap();
    }
}
