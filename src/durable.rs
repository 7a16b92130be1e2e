//! Files and folders that appear whole or not at all (floor 0).
//!
//! What is not finished has a name that ends in `.tmp`. It is made durable before it gets its own name, and the folder that
//! holds the name is made durable after. So whoever ends this process, or cuts the power, leaves what was there before or what
//! was to come, and at most something to [`reap`].

use crate::crash;
use crate::error::{Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const TEMPORARY: &str = ".tmp";
/// A folder that is being replaced where two names cannot be exchanged: [`reap`] gives it its name back if nobody has it.
const REPLACED: &str = ".replaced.tmp";

/// The name that a file or folder has until it is finished: its own with `.tmp` behind it.
pub fn temporary(path: &Path) -> PathBuf {
    with_suffix(path, TEMPORARY)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or(path.as_os_str()).to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Whether a file may be written there: for whoever works for long before it writes.
///
/// # Errors
/// Something at the path that is no file, as `/dev/null` or a link; a folder that is not there.
pub fn check_place(path: &Path) -> Result<()> {
    // A name that is renamed over is gone, be it a device's or a link's, as `/dev/stdout` is one.
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(Error::file(path, "is there and is no file: it would be replaced by one; give another name"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let missing = |folder: &&Path| fs::metadata(folder).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match folder.filter(missing) {
        Some(missing) => Err(Error::file(path, format!("there is no folder {}", missing.display()))),
        None => Ok(()),
    }
}

/// Writes a file under a temporary name, makes it durable, renames it and makes its folder durable: a reader sees all of it
/// or nothing.
///
/// # Errors
/// As [`check_place`]; what `write` returned, or the disk ([`Error::Full`] where it is full): the
/// temporary file is then removed.
pub fn write_sealed<E>(path: &Path, write: impl FnOnce(&mut File) -> Result<(), E>) -> Result<()>
where
    E: Into<Box<dyn std::error::Error>>,
{
    check_place(path)?;
    let unfinished = temporary(path);
    let attempt = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(&unfinished).map_err(|e| Error::write(&unfinished, &e))?;
        write(&mut file).map_err(|e| Error::write(path, &*e.into()))?;
        file.sync_all().map_err(|e| Error::write(&unfinished, &e))?;
        crash::at("file: written");
        rename(&unfinished, path)
    };
    if let Err(error) = attempt() {
        // The first error is the one to report; a temporary that stays is reaped at the next start.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    crash::at("file: renamed");
    sync_parent(path)
}

/// A folder in the making: files go to a temporary one beside it, and [`seal`](Staged::seal) makes it appear whole. One that is
/// never sealed is removed.
pub struct Staged {
    folder: PathBuf,
    temporary: PathBuf,
}

impl Staged {
    /// Makes the temporary folder; what an earlier attempt left in it is gone.
    ///
    /// # Errors
    /// A disk that refuses, or a path without a name.
    pub fn new(folder: &Path) -> Result<Staged> {
        if folder.file_name().is_none() {
            return Err(Error::file(folder, "not a folder's name"));
        }
        let temporary = temporary(folder);
        remove(&temporary)?;
        fs::create_dir_all(&temporary).map_err(|e| Error::write(&temporary, &e))?;
        Ok(Staged { folder: folder.to_owned(), temporary })
    }

    /// Where the files go meanwhile.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Makes the files durable, then visible under the folder's name. A folder that has the name is replaced, at one instant
    /// where the file system can exchange two names.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn seal(self) -> Result<()> {
        sync_within(&self.temporary)?;
        crash::at("folder: written");
        if !self.folder.exists() {
            rename(&self.temporary, &self.folder)?;
        } else if self.swap()? == Exchange::Unsupported {
            self.set_aside()?;
        }
        crash::at("folder: renamed");
        sync_parent(&self.folder)?;
        remove(&with_suffix(&self.folder, REPLACED))?;
        // After an exchange this is what was replaced.
        remove(&self.temporary)
    }

    /// Exchanges the temporary folder, durable as it is, with the one that has the name: until this is dropped, the one that was
    /// replaced is at [`path`](Staged::path). Durable once the folder above is.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn swap(&self) -> Result<Exchange> {
        exchange(&self.temporary, &self.folder)
    }

    /// Replaces the folder in two steps. Between them nobody has its name; whoever is ended there finds it again after [`reap`].
    fn set_aside(&self) -> Result<()> {
        let replaced = with_suffix(&self.folder, REPLACED);
        remove(&replaced)?;
        rename(&self.folder, &replaced)?;
        rename(&self.temporary, &self.folder)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Gone if it was sealed. If it was not, that has an error of its own, and what stays is reaped at the next start.
        let _ = remove(&self.temporary);
    }
}

/// Whether two names were exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    Done,
    /// The file system cannot; nothing has changed.
    Unsupported,
}

/// Gives each of two files or folders, which exist, the other's name, both at one instant: nobody ever finds one of the names
/// missing. Durable once the folders that hold the names are.
///
/// # Errors
/// A disk that refuses.
pub fn exchange(a: &Path, b: &Path) -> Result<Exchange> {
    const UNSUPPORTED: [Errno; 5] = [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::XDEV];
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(Exchange::Done),
        Err(error) if UNSUPPORTED.contains(&error) => Ok(Exchange::Unsupported),
        Err(error) => Err(Error::file(b, io::Error::from(error))),
    }
}

/// Makes the names in a folder durable.
///
/// # Errors
/// The disk refuses.
pub fn sync_folder(path: &Path) -> Result<()> {
    sync(if path.as_os_str().is_empty() { Path::new(".") } else { path })
}

/// Makes a file's or folder's own name durable.
///
/// # Errors
/// The disk refuses.
pub fn sync_parent(path: &Path) -> Result<()> {
    sync_folder(path.parent().unwrap_or(Path::new("/")))
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|e| Error::write(path, &e))
}

/// Makes a folder durable, with all that is in it.
fn sync_within(folder: &Path) -> Result<()> {
    for name in names(folder)? {
        let path = folder.join(name);
        if path.is_dir() { sync_within(&path)? } else { sync(&path)? }
    }
    sync(folder)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::write(to, &e))
}

/// Removes a file, or a folder and all in it, if there is one.
///
/// # Errors
/// The disk refuses.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::file(path, e)),
        _ => Ok(()),
    }
}

/// The names in a folder, in no order; none where there is no folder.
///
/// # Errors
/// A folder that cannot be listed.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file(folder, e)),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|e| e.file_name().to_string_lossy().into_owned());
    entries.map(name).collect::<io::Result<_>>().map_err(|e| Error::file(folder, e))
}

/// The files in a folder and in the folders in it, by their paths from there, in no order.
///
/// # Errors
/// A folder that cannot be listed.
pub fn files_within(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        match path.is_dir() {
            true => found.extend(files_within(&path)?.into_iter().map(|file| format!("{name}/{file}"))),
            false => found.push(name),
        }
    }
    Ok(found)
}

/// The names in a folder that may be exchanged meanwhile for another one: all of the one, or all of the other.
///
/// # Errors
/// A folder that cannot be listed.
pub fn names_at_one_instant(folder: &Path) -> Result<Vec<String>> {
    at_one_instant(folder, || names(folder))
}

/// What is seen in a folder that nobody exchanged while it was looked at. What is removed from a folder after it was exchanged is
/// missing in a listing that began before.
fn at_one_instant<R>(folder: &Path, mut look: impl FnMut() -> Result<R>) -> Result<R> {
    let id =
        |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).map_err(|e| Error::file(folder, e));
    loop {
        let Ok(open) = File::open(folder) else { return look() };
        let seen = look()?;
        // Held open, the folder's number cannot be that of a newer one.
        if id(open.metadata())? == id(fs::metadata(folder))? {
            return Ok(seen);
        }
    }
}

/// Undoes, in one folder, what an earlier process left unfinished: removes what has a temporary name, after it gave a folder
/// that was being replaced its name back. Only for whoever writes in the folder, and before it does.
///
/// # Errors
/// The disk refuses.
pub fn reap(folder: &Path) -> Result<()> {
    let names = names(folder)?;
    for replaced in names.iter().filter_map(|name| name.strip_suffix(REPLACED)) {
        let path = folder.join(replaced);
        if !path.exists() {
            rename(&with_suffix(&path, REPLACED), &path)?;
        }
    }
    names.iter().filter(|name| name.ends_with(TEMPORARY)).try_for_each(|name| remove(&folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted_names(folder: &Path) -> Vec<String> {
        let mut names = names(folder).unwrap();
        names.sort();
        names
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_temporary_name_is_beside_the_own_one() {
        for (path, expected) in [("a/b", "a/b.tmp"), ("a/b/", "a/b.tmp"), ("b", "b.tmp"), ("/b.parquet", "/b.parquet.tmp")] {
            assert_eq!(temporary(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let error = write_sealed(&path, |_| Err("no")).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: no", path.display()));
        assert!(names(dir.path()).unwrap().is_empty());
    }

    /// Catches a device or a pipe that is replaced by a file: as root, `/dev/null` itself.
    #[test]
    fn what_is_no_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = write_sealed(&pipe, |_| Ok::<(), Error>(())).unwrap_err();
        assert!(error.to_string().contains("pipe: is there and is no file"), "{error}");
        assert_eq!(names(dir.path()).unwrap(), ["pipe"]);
        assert!(!fs::metadata(&pipe).unwrap().is_file());
        // As `/dev/stdout` is where it leads to a file.
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "mine").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = write_sealed(&link, |_| Ok::<(), Error>(())).unwrap_err();
        assert!(error.to_string().contains("link: is there and is no file"), "{error}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::read_to_string(&file).unwrap() == "mine");
    }

    #[test]
    fn nothing_is_seen_before_the_seal_and_nothing_else_after() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("step-00000040");
        // An attempt that was cut off, as by a kill.
        let cut = Staged::new(&folder).unwrap();
        fs::write(cut.path().join("torn"), "x").unwrap();
        std::mem::forget(cut);
        assert_eq!(names(base.path()).unwrap(), ["step-00000040.tmp"]);
        for what in ["first", "second"] {
            let staged = Staged::new(&folder).unwrap();
            fs::write(staged.path().join("file"), what).unwrap();
            staged.seal().unwrap();
            assert_eq!(names(base.path()).unwrap(), ["step-00000040"]);
            assert_eq!(names(&folder).unwrap(), ["file"]);
            assert_eq!(text(&folder.join("file")), what);
        }
        fs::write(Staged::new(&folder).unwrap().path().join("file"), "an attempt that fails").unwrap();
        assert_eq!(names(base.path()).unwrap(), ["step-00000040"]);
        assert!(Staged::new(Path::new("/")).is_err());
    }

    #[test]
    fn two_names_are_exchanged_or_neither() {
        let base = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| base.path().join(name));
        fs::write(&a, "file").unwrap();
        exchange(&a, &b).unwrap_err();
        assert_eq!((text(&a).as_str(), b.exists()), ("file", false));
        fs::create_dir(&b).unwrap();
        assert_eq!(exchange(&a, &b).unwrap(), Exchange::Done);
        assert!(a.is_dir());
        assert_eq!(text(&b), "file");
    }

    /// Catches a folder that is lost where two names cannot be exchanged and the process ends between the two renames.
    #[test]
    fn a_replacement_in_two_steps_is_finished_or_undone() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("m");
        let staged = |what: &str| {
            let staged = Staged::new(&folder).unwrap();
            fs::write(staged.path().join("file"), what).unwrap();
            staged
        };
        staged("old").seal().unwrap();
        let new = staged("new");
        new.set_aside().unwrap();
        assert_eq!(sorted_names(base.path()), ["m", "m.replaced.tmp"]);
        std::mem::forget(new);
        reap(base.path()).unwrap();
        assert_eq!(names(base.path()).unwrap(), ["m"]);
        assert_eq!(text(&folder.join("file")), "new");
        // Ended between the two.
        let newer = staged("newer");
        fs::rename(&folder, base.path().join("m.replaced.tmp")).unwrap();
        std::mem::forget(newer);
        reap(base.path()).unwrap();
        assert_eq!(names(base.path()).unwrap(), ["m"]);
        assert_eq!(text(&folder.join("file")), "new");
    }
    /// Catches a listing that lacks what was removed from a folder after another one took its place.
    #[test]
    fn a_listing_is_repeated_where_the_folder_was_exchanged() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("f");
        let staged = |file: &str| {
            let staged = Staged::new(&folder).unwrap();
            fs::write(staged.path().join(file), "").unwrap();
            staged
        };
        staged("a").seal().unwrap();
        let mut exchanges = 2;
        let found = at_one_instant(&folder, || {
            let listing = fs::read_dir(&folder).unwrap();
            if exchanges > 0 {
                exchanges -= 1;
                let other = staged("b");
                assert_eq!(other.swap().unwrap(), Exchange::Done);
            }
            Ok(listing.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>())
        });
        assert_eq!((found.unwrap(), exchanges), (vec!["b".into()], 0));
        assert_eq!(names_at_one_instant(&base.path().join("nothing")).unwrap(), Vec::<String>::new());
    }
}
