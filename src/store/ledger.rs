//! Which groups the log accounts for: what a run that goes on needs to know of all that came before.
//!
//! The prompt of group n is the n-th of the source, so the ledger is also the prompt cursor: a group below `next` that is not
//! accounted for is admitted again, and no other.

use crate::durable::files_within;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use tidegate_operators::record::{Metrics, Rollout, Status, Step};

/// The groups that are trained or discarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// One more than the largest number that is accounted for.
    next: u64,
    /// Those below it that are not.
    missing: BTreeSet<u64>,
}

impl Ledger {
    /// Accounts for one group; again is as good as once.
    pub fn account(&mut self, number: u64) {
        if number >= self.next {
            self.missing.extend(self.next..number);
            self.next = number + 1;
        } else {
            self.missing.remove(&number);
        }
    }

    /// Accounts for the groups of a file's rows, but for those that still wait.
    pub fn account_rows(&mut self, rows: &[Rollout]) {
        for group in rows.chunk_by(|a, b| a.group.number == b.group.number) {
            if group.iter().all(|row| row.status != Status::Waiting) {
                self.account(group[0].group.number);
            }
        }
    }

    /// Whether a group is accounted for.
    pub fn has(&self, number: u64) -> bool {
        number < self.next && !self.missing.contains(&number)
    }

    /// Numbers below [`next`](Ledger::next) that are not, ascending.
    pub fn missing(&self) -> &BTreeSet<u64> {
        &self.missing
    }

    /// One more than the largest number that is accounted for.
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// `state.json` of a checkpoint: what is neither weights nor optimizer. Random draws need nothing: each is a function of the
/// seed, the group, the rollout and the position. It seals the checkpoint: it has the hash of every file, and its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Of this file's fields.
    pub schema_version: u32,
    /// The last step that is done.
    pub step: Step,
    /// When it ended, nanoseconds since the Unix epoch.
    pub finished_ns: i64,
    /// The groups that steps up to this one account for.
    pub groups: Ledger,
    /// Hash of every tensor, as in the step's [`Metrics`].
    pub weights: Vec<(String, String)>,
    /// BLAKE3 of every file of the checkpoint, by name.
    files: BTreeMap<String, String>,
    /// BLAKE3 of this, written with an empty seal.
    seal: String,
}

const FILE: &str = "state.json";
const SCHEMA_VERSION: u32 = 1;

impl State {
    /// After the step that `metrics` are of.
    pub fn after(metrics: &Metrics, groups: Ledger) -> Self {
        let Metrics { step, finished_ns, weights, .. } = metrics;
        let (step, finished_ns, weights) = (*step, *finished_ns, weights.clone());
        State { schema_version: SCHEMA_VERSION, step, finished_ns, groups, weights, ..State::default() }
    }

    /// Writes it into a checkpoint in the making, behind all its other files.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let mut files = BTreeMap::new();
        for name in files_within(folder)? {
            files.insert(name.clone(), hash(&folder.join(&name))?);
        }
        let open = State { files, seal: String::new(), ..self.clone() };
        let sealed = State { seal: open.hash(), ..open };
        let text = serde_json::to_string_pretty(&sealed).map_err(|e| Error::file(&path, e))?;
        fs::write(&path, text + "\n").map_err(|e| Error::write(&path, &e))
    }

    fn hash(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// Reads it from a checkpoint, and holds every file of the checkpoint to it.
    ///
    /// # Errors
    /// A file that is missing, or not as it was written.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
        let mut state: State = serde_json::from_str(&text).map_err(|e| Error::file(&path, e))?;
        if state.schema_version > SCHEMA_VERSION {
            let found = state.schema_version;
            let why = format!("schema version {found} is newer than {SCHEMA_VERSION}, the newest this program reads");
            return Err(Error::file(path, why));
        }
        let seal = std::mem::take(&mut state.seal);
        if state.hash() != seal {
            return Err(Error::file(path, "damaged: it does not match its seal"));
        }
        for (name, expected) in &state.files {
            let file = folder.join(name);
            if hash(&file)? != *expected {
                return Err(Error::file(file, format!("damaged: its hash is not the one that {FILE} has")));
            }
        }
        Ok(state)
    }
}

fn hash(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    hasher.update_reader(file).map_err(|e| Error::file(path, e))?;
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tidegate_operators::record::{Group, Reason};

    fn row(number: u64, status: Status) -> Rollout {
        Rollout { group: Arc::new(Group { number, ..Group::default() }), status, ..Rollout::default() }
    }

    /// Catches a group that is skipped, or done twice: 0 and 3 come, then 1; 2 stays missing, and 4 is next.
    #[test]
    fn gaps_are_remembered_until_they_close() {
        let mut ledger = Ledger::default();
        for number in [3, 0, 1, 1] {
            ledger.account(number);
        }
        assert_eq!((ledger.next(), ledger.missing().iter().copied().collect::<Vec<_>>()), (4, vec![2]));
        assert_eq!([0, 1, 2, 3, 4].map(|number| ledger.has(number)), [true, true, false, true, false]);
    }

    /// Catches a group that waits being taken for done, and one of which a rollout was refused for waiting.
    #[test]
    fn a_group_that_waits_is_not_accounted_for() {
        let (no, waiting) = (Status::Discarded(Reason::NoReward), Status::Waiting);
        let mut ledger = Ledger::default();
        let rows = [row(0, no.clone()), row(0, waiting.clone()), row(1, no), row(2, Status::Trained), row(3, waiting)];
        ledger.account_rows(&rows);
        assert_eq!([0, 1, 2, 3].map(|number| ledger.has(number)), [false, true, true, false]);
    }

    /// Catches a byte of a checkpoint that is not as it was written and is believed.
    #[test]
    fn a_state_comes_back_and_seals_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = Metrics { step: 7, finished_ns: 9, weights: vec![("a".into(), "0f".into())], ..Metrics::default() };
        let mut groups = Ledger::default();
        groups.account(2);
        let state = State::after(&metrics, groups);
        let optimizer = dir.path().join("optimizer.safetensors");
        fs::write(&optimizer, "moments").unwrap();
        state.write(dir.path()).unwrap();
        let read = State::read(dir.path()).unwrap();
        assert_eq!((read.step, read.finished_ns, &read.groups, &read.weights), (7, 9, &state.groups, &state.weights));
        fs::write(&optimizer, "momentS").unwrap();
        let refused = State::read(dir.path()).unwrap_err().to_string();
        assert!(
            refused.contains("optimizer.safetensors: damaged: its hash is not the one that state.json has"),
            "{refused}"
        );
        fs::write(&optimizer, "moments").unwrap();
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        for (from, to) in
            [("\"next\": 3", "\"next\": 1"), ("\"step\": 7", "\"step\": 6"), ("\"finished_ns\": 9", "\"finished_ns\": 8")]
        {
            assert!(text.contains(from), "{text}");
            fs::write(dir.path().join(FILE), text.replace(from, to)).unwrap();
            let refused = State::read(dir.path()).unwrap_err().to_string();
            assert!(refused.contains("state.json: damaged: it does not match its seal"), "{refused}");
        }
        fs::write(dir.path().join(FILE), text).unwrap();
        fs::remove_file(&optimizer).unwrap();
        assert!(State::read(dir.path()).unwrap_err().to_string().contains("optimizer.safetensors: No such file"));
        State { schema_version: 2, ..state }.write(dir.path()).unwrap();
        assert!(State::read(dir.path()).unwrap_err().to_string().contains("state.json: schema version 2 is newer"));
        fs::write(dir.path().join(FILE), "{}").unwrap();
        assert!(State::read(dir.path()).unwrap_err().to_string().contains("state.json: missing field"));
    }
}
