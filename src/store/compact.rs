//! Compaction: many small files of the log become few, at one instant, and no row is lost or doubled meanwhile.
//!
//! A folder that is to be the next `rollouts/` is built beside it: the merged files, and a hard link to every file that stays.
//! Then the two exchange their names, which is one operation of the file system. Whoever looks into `rollouts/`, also with a
//! glob of another program, finds the one or the other, never a step twice or missing; and whoever kills this process leaves the
//! one or the other, and a `rollouts.tmp/` that is reaped at the next start whichever of the two it is.
//!
//! What [`compact`] makes is not merged anew each time: a merged file is taken up again only by one at least twice its size, so
//! that a row is copied as often as the log doubles, at most.

use super::layout::{LogFile, RunFolder};
use super::merge::{Kind, Source, merge, plan, whole};
use crate::crash;
use crate::durable::{Exchange, Staged, exchange, names, remove, sync_folder, sync_parent};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::record::Step;

/// How large a merged file may become. A file that is larger by itself stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub rows: u64,
    /// Of the files that are merged.
    pub bytes: u64,
    /// Of the steps' metrics in the footer, which whoever opens the file reads whole.
    pub metrics_bytes: u64,
    /// How long the replaced folder stays, so that a listing of it which began before the exchange finds all of it.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { rows: 50_000, bytes: 256 << 20, metrics_bytes: 8 << 20, linger: Duration::from_millis(200) }
    }
}

/// What a compaction did.
#[derive(Debug, Default)]
pub struct Compacted {
    /// The files that were made, in step order.
    pub merged: Vec<LogFile>,
    /// The files that they took the place of.
    pub replaced: Vec<LogFile>,
    /// Rows of the files that were made.
    pub rows: u64,
    /// Why files that might have been merged stay as they are: damaged ones, a file system that cannot exchange folders.
    pub left: Vec<Error>,
}

/// Merges the files of sealed steps up to `through` into larger ones. Tails stay as they are. Steps may be sealed meanwhile,
/// through a clone of `folder`: they wait only while the two folders are exchanged.
///
/// # Errors
/// A disk that refuses; the log is then as it was.
pub fn compact(folder: &RunFolder, through: Step, limits: &Limits) -> Result<Compacted> {
    let _one_at_a_time = folder.compacting();
    let mut compacted = Compacted::default();
    let chunks = plan(&candidates(folder, through, limits, &mut compacted.left)?, limits);
    if chunks.is_empty() {
        return Ok(compacted);
    }
    let staged = Staged::new(&folder.rollouts())?;
    if let Some(error) = obstacle(folder, staged.path())? {
        compacted.left.push(error);
        return Ok(compacted);
    }
    for chunk in chunks {
        compacted.rows += chunk.iter().map(|source| source.rows).sum::<u64>();
        compacted.replaced.extend(chunk.iter().map(|source| source.file));
        let sources: Vec<(Source, PathBuf)> =
            chunk.into_iter().map(|source| (source.clone(), folder.log_file(source.file))).collect();
        compacted.merged.push(merge(staged.path(), &sources)?);
        crash::at("compact: merged");
    }
    swap(folder, &staged, &compacted.replaced)?;
    std::thread::sleep(limits.linger);
    for file in &compacted.replaced {
        let path = staged.path().join(file.name());
        fs::remove_file(&path).map_err(|e| Error::file(&path, e))?;
        crash::at("compact: removing");
    }
    drop(staged);
    crash::at("compact: removed");
    Ok(compacted)
}

/// The newest files that may be merged, in step order. Damaged ones are named in `left`.
fn candidates(folder: &RunFolder, through: Step, limits: &Limits, left: &mut Vec<Error>) -> Result<Vec<Source>> {
    let mut sources: Vec<Source> = Vec::new();
    let mut rows = 0;
    let mut kind: Option<Arc<Kind>> = None;
    let files = folder.log_files()?;
    for file in files.into_iter().rev().filter(|file| !file.steps().is_empty() && *file.steps().end() <= through) {
        let path = folder.log_file(file);
        let Some(source) = undamaged(Source::of(file, &path, kind.as_ref()), left)?.flatten() else { continue };
        if let LogFile::Merged { .. } = file
            && (source.rows > rows || source.rows + rows > limits.rows)
        {
            break;
        }
        // Reading all of it is for those alone that are merged.
        if undamaged(whole(&path), left)?.is_none() {
            continue;
        }
        rows += source.rows;
        kind = Some(Arc::clone(&source.kind));
        sources.push(source);
    }
    sources.reverse();
    Ok(sources)
}

/// What was found in a file; a damaged one is named in `left`.
fn undamaged<T>(found: Result<T>, left: &mut Vec<Error>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error @ (Error::File { .. } | Error::Column { .. })) => {
            left.push(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Why the folder cannot be exchanged here, if so: found out before anything is merged.
fn obstacle(folder: &RunFolder, staged: &Path) -> Result<Option<Error>> {
    let rollouts = folder.rollouts();
    let left = |why: String| Ok(Some(Error::file(&rollouts, format!("not compacted: {why}"))));
    for name in names(&rollouts)? {
        if rollouts.join(&name).is_dir() {
            return left(format!("{name} is a folder, which cannot have a second name; move it elsewhere"));
        }
    }
    let [a, b] = ["a", "b"].map(|name| staged.join(name));
    fs::write(&a, "").map_err(|e| Error::file(&a, e))?;
    if let Err(error) = fs::hard_link(&a, &b) {
        return left(format!("this file system has no hard links: {error}"));
    }
    if exchange(&a, &b)? == Exchange::Unsupported {
        return left("this file system cannot exchange two names".to_owned());
    }
    remove(&a).and_then(|()| remove(&b))?;
    Ok(None)
}

/// Puts the staged folder, which has the merged files, in the place of `rollouts/`, with all that stays in it.
fn swap(folder: &RunFolder, staged: &Staged, replaced: &[LogFile]) -> Result<()> {
    let rollouts = folder.rollouts();
    let replaced: HashSet<String> = replaced.iter().map(|file| file.name()).collect();
    // Nothing is sealed from the listing to the exchange: it would stay behind.
    let _sealing = folder.sealing();
    for name in names(&rollouts)?.into_iter().filter(|name| !replaced.contains(name)) {
        let from = rollouts.join(&name);
        fs::hard_link(&from, staged.path().join(&name)).map_err(|e| Error::file(&from, e))?;
    }
    sync_folder(staged.path())?;
    crash::at("compact: linked");
    if staged.swap()? == Exchange::Unsupported {
        return Err(Error::file(rollouts, "not compacted: this file system exchanges files and not folders"));
    }
    crash::at("compact: swapped");
    sync_parent(&rollouts)
}
