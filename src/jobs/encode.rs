//! Items become prompts: ids within the limit, and a word about what was found on the way.

use crate::engine::contract::{Engine, Tokenize};
use crate::error::{Error, Result};
use crate::jobs::say;
use crate::tasks::fit::{TooLong, fit};
use crate::tasks::item::Item;
use crate::tasks::spec::DataSpec;
use std::sync::Arc;
use tidegate_operators::record::Prompt;

/// Tokenizes items under the policy for prompts that are too long (`data.max_prompt_tokens`, `data.too_long`).
pub struct Encoder {
    tokenizer: Arc<dyn Tokenize>,
    limit: usize,
    too_long: TooLong,
    /// What was said once already.
    said_refused: bool,
    said_cut: bool,
    said_unknown: bool,
}

impl Encoder {
    /// For the prompts of `data`, or of generated tasks, and a model.
    ///
    /// # Errors
    /// A limit that leaves no room for a token in the model's longest sequence.
    pub fn new<E: Engine>(engine: &E, data: Option<&DataSpec>) -> Result<Encoder> {
        let longest = engine.longest();
        let most = longest.saturating_sub(1);
        let limit = data.map_or(0, |data| data.max_prompt_tokens);
        if limit > most {
            let why = format!("the model's longest sequence is {longest} tokens, completion included: at most {most}");
            return Err(Error::config("data.max_prompt_tokens", limit, why));
        }
        Ok(Encoder {
            tokenizer: engine.tokenizer(),
            limit: if limit == 0 { most } else { limit },
            too_long: data.map_or_else(TooLong::default, |data| data.too_long),
            said_refused: false,
            said_cut: false,
            said_unknown: false,
        })
    }

    /// The record that is admitted. One that cannot be answered says why ([`Prompt::refused`]).
    ///
    /// # Errors
    /// A prompt that is too long, where the policy is to end there.
    pub fn prompt(&mut self, epoch: u32, item: Item) -> Result<Prompt> {
        self.prompt_within(self.limit, epoch, item)
    }

    /// The same with a limit of its own, where that is lower.
    ///
    /// # Errors
    /// As [`prompt`](Encoder::prompt).
    pub fn prompt_within(&mut self, limit: usize, epoch: u32, mut item: Item) -> Result<Prompt> {
        let id = item.id;
        if let Some(why) = &item.refused {
            self.say_refused(why);
            return Ok(item.into_prompt(epoch, Vec::new()));
        }
        let tokens = match self.tokenizer.encode(&item.text) {
            Ok(tokens) => tokens,
            Err(error) => return Ok(self.refused(epoch, item, format!("prompt {id}: {error}"))),
        };
        if !self.said_unknown
            && let Some(unknown) = self.tokenizer.unknown(&item.text, &tokens)
        {
            self.said_unknown = true;
            say(format_args!("note      prompt {id} has {unknown:?}, which the tokenizer does not know; so may others"));
        }
        let limit = limit.min(self.limit);
        let long = tokens.len() > limit;
        match fit(tokens, limit, self.too_long) {
            Ok(tokens) => {
                if long && !self.said_cut {
                    self.said_cut = true;
                    say(format_args!(
                        "note      prompt {id} has more than {limit} tokens and was cut on the left; so may others"
                    ));
                }
                Ok(std::mem::take(&mut item).into_prompt(epoch, tokens))
            }
            Err(overlong) if self.too_long == TooLong::Refuse => {
                let why = format!(
                    "prompt {id} has {overlong}; data.max_prompt_tokens says how many, \"skip\" and \"cut_left\" go on"
                );
                Err(Error::config("data.too_long", "refuse", why))
            }
            Err(overlong) => Ok(self.refused(epoch, item, format!("prompt {id} has {overlong} (data.max_prompt_tokens)"))),
        }
    }

    fn refused(&mut self, epoch: u32, item: Item, why: String) -> Prompt {
        self.say_refused(&why);
        Item { refused: Some(why), ..item }.into_prompt(epoch, Vec::new())
    }

    fn say_refused(&mut self, why: &str) {
        if !std::mem::replace(&mut self.said_refused, true) {
            say(format_args!("note      skipped: {why}; others may follow, and are counted"));
        }
    }
}
