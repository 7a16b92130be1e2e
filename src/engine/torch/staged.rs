//! Folders that appear whole or not at all.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A folder in the making: files go to a temporary one beside it, and [`seal`](Staged::seal) makes it appear whole.
pub struct Staged {
    folder: PathBuf,
    temporary: PathBuf,
}

impl Staged {
    /// Opens the temporary folder, `.NAME.tmp` beside `folder`; what an earlier attempt left in it is gone.
    ///
    /// # Errors
    /// A disk that refuses, or a path without a name.
    pub fn new(folder: &Path) -> Result<Staged> {
        let temporary = beside(folder, "tmp")?;
        remove(&temporary)?;
        fs::create_dir_all(&temporary).map_err(|e| Error::write(&temporary, &e))?;
        Ok(Staged { folder: folder.to_owned(), temporary })
    }

    /// Where the files go meanwhile.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Makes the files durable, then visible under the folder's name. A folder that has the name is replaced.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn seal(self) -> Result<()> {
        let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all()).map_err(|e| Error::write(path, &e));
        for entry in fs::read_dir(&self.temporary).map_err(|e| Error::file(&self.temporary, e))? {
            sync(&entry.map_err(|e| Error::file(&self.temporary, e))?.path())?;
        }
        sync(&self.temporary)?;
        let replaced = beside(&self.folder, "old")?;
        if self.folder.exists() {
            remove(&replaced)?;
            fs::rename(&self.folder, &replaced).map_err(|e| Error::file(&self.folder, e))?;
        }
        fs::rename(&self.temporary, &self.folder).map_err(|e| Error::write(&self.folder, &e))?;
        match self.folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync(parent)?,
            _ => sync(Path::new("."))?,
        }
        remove(&replaced)
    }
}

/// `.NAME.suffix` in the folder that has NAME: hidden, and on the same disk.
fn beside(folder: &Path, suffix: &str) -> Result<PathBuf> {
    let name = folder.file_name().ok_or_else(|| Error::file(folder, "not a folder's name"))?;
    Ok(folder.with_file_name(format!(".{}.{suffix}", name.to_string_lossy())))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::file(folder, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_is_seen_before_the_seal_and_nothing_else_after() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("step-00000040");
        // An attempt that was cut off.
        fs::write(Staged::new(&folder).unwrap().path().join("torn"), "x").unwrap();
        assert!(!folder.exists());
        for text in ["first", "second"] {
            let staged = Staged::new(&folder).unwrap();
            fs::write(staged.path().join("file"), text).unwrap();
            staged.seal().unwrap();
            assert_eq!(names(base.path()), ["step-00000040"]);
            assert_eq!(names(&folder), ["file"]);
            assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), text);
        }
        assert!(Staged::new(Path::new("/")).is_err());
    }
}
