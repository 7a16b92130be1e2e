//! The dataflow's port of prompts. Rewards are in [`rewards`](super::rewards), advantages in [`estimator`](super::estimator).

use crate::error;
use crate::jobs::curriculum::Drawing;
use crate::jobs::encode::Encoder;
use crate::tasks::source;
use tidegate_operators::admit::Prompts;
use tidegate_operators::fault::Fault;
use tidegate_operators::record::Prompt;
use tidegate_operators::success::Rate;

/// A run's prompts, tokenized as they are admitted.
pub struct TokenizedPrompts {
    pub prompts: source::Prompts,
    pub encoder: Encoder,
    /// None: in the order of the source.
    pub drawing: Option<Drawing>,
}

impl Prompts for TokenizedPrompts {
    fn prompt(&mut self, number: u64) -> Result<Option<Prompt>, Fault> {
        self.drawn(number).map_err(|e| Fault::new("admit", e))
    }

    fn learned(&mut self, bin: u64, rate: Rate) -> Result<(), Fault> {
        if let Some(drawing) = &mut self.drawing {
            drawing.learned(bin, rate, self.prompts.source());
        }
        Ok(())
    }
}

impl TokenizedPrompts {
    fn drawn(&mut self, number: u64) -> error::Result<Option<Prompt>> {
        let drawn = match &self.drawing {
            Some(drawing) => drawing.prompt(number, &mut self.prompts)?,
            None => self.prompts.at(number)?.map(|(epoch, item)| (epoch, item, None)),
        };
        let Some((epoch, item, drawn_success)) = drawn else { return Ok(None) };
        Ok(Some(Prompt { drawn_success, ..self.encoder.prompt(epoch, item)? }))
    }
}
