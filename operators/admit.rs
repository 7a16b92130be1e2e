//! `admit`: turns prompts into groups, each with the last step that may train it.

use crate::fault::Fault;
use crate::record::Prompt;

/// Where prompts come from.
pub trait Prompts {
    /// The next prompt, or None when there are no more.
    ///
    /// # Errors
    /// A prompt that cannot be read.
    fn next(&mut self) -> Result<Option<Prompt>, Fault>;
}
