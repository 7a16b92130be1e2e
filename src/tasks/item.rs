//! What every source of prompts gives: one task text with its answer, before tokenization.

use tidegate_operators::record::Prompt;

/// One task text with its answer, before tokenization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Row of the file, or index in the generated stream, from 0. Two rows with the same text are two prompts.
    pub id: u64,
    /// Name of the task: it selects the reward.
    pub task: String,
    /// The text as the policy sees it, template applied.
    pub text: String,
    /// What the reward compares with; empty where there is none.
    pub answer: String,
    /// The full worked answer, for supervised training; empty if there is none.
    pub completion: String,
    /// Most tokens of an answer, if the row says.
    pub max_tokens: Option<u32>,
    /// The rest of the row as a JSON object; empty if there is none.
    pub meta: String,
    /// Size of a generated task; 0 for a row.
    pub size: u32,
    /// What its success counts for: itself, for a row; all of its task and size, if it is generated ([`Mix::bins`](super::generated::Mix::bins)).
    pub bin: u64,
    /// Why there is nothing but an id: the row that it comes from is not as it must be. File, column and place are named.
    pub refused: Option<String>,
}

impl Item {
    /// The record that travels on the dataflow. `tokens` are the ids of `text`; `epoch` counts the full passes before.
    pub fn into_prompt(self, epoch: u32, tokens: Vec<u32>) -> Prompt {
        let Item { id, task, text, answer, max_tokens, meta, refused, size, bin, .. } = self;
        Prompt { id, epoch, task, text, tokens, answer, meta, max_tokens, refused, size, bin, drawn_success: None }
    }
}
