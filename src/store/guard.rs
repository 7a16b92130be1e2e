//! A wall around the Parquet reader: whatever a damaged file makes it do, even a panic, comes out as an error that names the file.

use crate::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Calls `read`; its error, or its panic, becomes one of `path`. Nothing that `read` borrows may be used after an error.
///
/// # Errors
/// [`Error::File`].
pub(super) fn guarded<R, E: ToString>(path: &Path, read: impl FnOnce() -> Result<R, E>) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|e| Error::file(path, e)),
        Err(_) => Err(Error::file(path, "damaged: the Parquet reader gave up on it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_names_the_file() {
        let error = guarded(Path::new("a.parquet"), || -> Result<(), String> { panic!("index out of bounds") }).unwrap_err();
        assert!(error.to_string().starts_with("a.parquet: damaged"), "{error}");
    }
}
