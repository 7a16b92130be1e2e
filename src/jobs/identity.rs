//! Whether models are those that were recorded.

use crate::engine::contract::Identity;
use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::store::FooterInfo;
use std::path::Path;

/// What a run started from, as a step's file has it.
pub fn recorded(info: &FooterInfo) -> Identity {
    let FooterInfo { model, tokenizer, critic, reference, .. } = info.clone();
    Identity { model, tokenizer, critic, reference }
}

/// Refuses what a run did not start from: another model, tokenizer, or model that was given for its critic.
///
/// # Errors
/// The hashes differ.
pub fn same(spec: &Spec, recorded: &Identity, found: &Identity) -> Result<()> {
    same_model(&spec.model.path, &recorded.model, &found.model)?;
    same_part(&spec.model.path, "tokenizer", &recorded.tokenizer, &found.tokenizer)?;
    same_given(&spec.learn.critic.path, &recorded.critic, &found.critic)
}

/// Refuses another model than a run was given for its reference.
///
/// # Errors
/// The hashes differ.
pub fn same_reference(spec: &Spec, recorded: &Identity, found: &str) -> Result<()> {
    same_given(&spec.learn.reference.path, &recorded.reference, found)
}

/// Logs of earlier versions do not say which it was; and it may not be needed any more.
fn same_given(path: &Path, recorded: &str, found: &str) -> Result<()> {
    if recorded.is_empty() || found.is_empty() { Ok(()) } else { same_model(path, recorded, found) }
}

/// Refuses a model by its hash.
///
/// # Errors
/// The hashes differ.
pub fn same_model(path: &Path, recorded: &str, found: &str) -> Result<()> {
    same_part(path, "model", recorded, found)
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
