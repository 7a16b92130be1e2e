//! The dataflow's port of prompts. Rewards are in [`rewards`](super::rewards), advantages in [`estimator`](super::estimator).

use crate::jobs::encode::Encoder;
use crate::tasks::source;
use tidegate_operators::admit::Prompts;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::Prompt;

/// A run's prompts, tokenized as they are admitted.
pub struct TokenizedPrompts {
    pub prompts: source::Prompts,
    pub encoder: Encoder,
}

impl Prompts for TokenizedPrompts {
    fn prompt(&mut self, number: u64) -> Result<Option<Prompt>, Fault> {
        let at = self.prompts.at(number).transpose();
        let prompt = at.map(|at| at.and_then(|(epoch, item)| self.encoder.prompt(epoch, item))).transpose();
        prompt.map_err(|e| Fault::new("admit", e))
    }
}
