//! Whether a model is the one that was recorded.

use crate::engine::contract::Identity;
use crate::error::{Error, Result};
use crate::store::FooterInfo;
use std::path::Path;

/// What a run started from, as a step's file has it.
pub fn recorded(info: &FooterInfo) -> Identity {
    Identity { model: info.model.clone(), tokenizer: info.tokenizer.clone() }
}

/// Refuses a model that is not the recorded one, its tokenizer included.
///
/// # Errors
/// The hashes differ.
pub fn same(path: &Path, recorded: &Identity, found: &Identity) -> Result<()> {
    same_part(path, "model", &recorded.model, &found.model)?;
    same_part(path, "tokenizer", &recorded.tokenizer, &found.tokenizer)
}

/// Refuses weights that are not the recorded ones.
///
/// # Errors
/// The hashes differ.
pub fn same_weights(path: &Path, recorded: &Identity, found: &Identity) -> Result<()> {
    same_part(path, "model", &recorded.model, &found.model)
}

fn same_part(path: &Path, what: &str, recorded: &str, found: &str) -> Result<()> {
    if recorded == found {
        return Ok(());
    }
    let why = format!(
        "the {what}'s hash is {found}, the run recorded {recorded}: not the one it started from (--force replays anyway)"
    );
    Err(Error::file(path, why))
}
