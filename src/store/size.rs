//! How large the log's files become, before they are written.

use tidegate_operators::record::Rollout;

/// Footer and the heads of all columns, with a few hundred hashes of weights; a model of thousands of tensors has more.
const FILE: u64 = 16_000;
/// A row without its lists: times, numbers, names.
const ROW: u64 = 40;
/// A completion token: ids 2.0, two log-probabilities 3.4 each, text 1.6, the others 0.2 (see the encodings of the writer).
const TOKEN: f64 = 10.6;
/// A list of numbers that not every run has: the critic's values, log-probabilities under a reference.
const LIST: f64 = 3.4;
/// A prompt token, id and text, in one of the rows of its group: the dictionary holds it once.
const PROMPT_TOKEN: u64 = 4;
/// The same without any compression: id 4, log-probabilities 8, value 4, advantage 4, version 8, mask 1, text 8.
const TOKEN_PLAIN: u64 = 37;
/// Of such a list; the first one is in that.
const LIST_PLAIN: u64 = 4;
/// Id and text.
const PROMPT_TOKEN_PLAIN: u64 = 12;
/// Numbers of 8 bytes and short texts.
const ROW_PLAIN: u64 = 300;

/// Bytes that rows take, and their share of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub expected: u64,
    /// As good as never reached: nothing compresses.
    pub most: u64,
}

/// Of a file with `rows` rollouts in groups of `group_size`, with so many tokens and so many lists of numbers besides (the critic's values, log-probabilities under a reference).
pub fn of_file(rows: u64, group_size: u64, prompt_tokens: u64, tokens: u64, lists: u64) -> Size {
    let token = TOKEN + LIST * lists as f64;
    let prompts = rows.div_ceil(group_size.max(1)) * prompt_tokens * PROMPT_TOKEN;
    let expected = FILE + prompts + rows * ROW + ((rows * tokens) as f64 * token) as u64;
    let most = FILE
        + rows
            * (ROW_PLAIN
                + prompt_tokens * PROMPT_TOKEN_PLAIN
                + tokens * (TOKEN_PLAIN + LIST_PLAIN * lists.saturating_sub(1)));
    Size { expected, most }
}

/// Of a file with these rollouts.
pub(super) fn of_rollouts(rollouts: &[Rollout]) -> Size {
    let sum = |f: fn(&Rollout) -> usize| rollouts.iter().map(|rollout| f(rollout) as u64).sum::<u64>();
    let rows = rollouts.len() as u64;
    let mean = |sum: u64| sum.div_ceil(rows.max(1));
    let size = rollouts.first().map_or(1, |rollout| u64::from(rollout.group.size));
    let has =
        |list: fn(&Rollout) -> &Vec<f32>| mean(rollouts.iter().filter(|rollout| !list(rollout).is_empty()).count() as u64);
    let lists = has(|rollout| &rollout.value) + has(|rollout| &rollout.logp_reference);
    of_file(rows, size, mean(sum(|r| r.group.prompt.tokens.len())), mean(sum(|r| r.tokens.len())), lists)
}
