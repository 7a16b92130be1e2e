//! Text files of a size that is known beforehand: what a model or a person wrote, never more than that.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// A file that cannot be read, is larger, or is not UTF-8.
pub fn read(path: &Path, most: u64) -> Result<String> {
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| Error::file(path, e))?;
    if bytes.len() as u64 > most {
        return Err(Error::file(path, format!("larger than {most} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::file(path, format!("byte {} is not UTF-8", e.utf8_error().valid_up_to() + 1)))
}

/// The same; None where there is no such file.
///
/// # Errors
/// As [`read`].
pub fn read_if_there(path: &Path, most: u64) -> Result<Option<String>> {
    match path.metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        _ => read(path, most).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        assert_eq!(read_if_there(&path, 4).unwrap(), None);
        assert!(read(&path, 4).unwrap_err().to_string().contains("a.json: No such file"));
        std::fs::write(&path, "1234").unwrap();
        assert_eq!(read_if_there(&path, 4).unwrap().as_deref(), Some("1234"));
        assert!(read(&path, 3).unwrap_err().to_string().ends_with("a.json: larger than 3 bytes"));
        std::fs::write(&path, b"12\xFF4").unwrap();
        assert!(read(&path, 4).unwrap_err().to_string().ends_with("a.json: byte 3 is not UTF-8"));
        assert!(read(Path::new("/dev/zero"), 4).unwrap_err().to_string().ends_with("/dev/zero: larger than 4 bytes"));
    }
}
