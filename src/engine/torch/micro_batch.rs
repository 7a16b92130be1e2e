//! One micro-batch: rollouts in, what the model says of their tokens out.

use crate::engine::tally::Said;
use crate::engine::torch::model::Model;
use crate::error::Result;
use tch::{Device, Kind, Tensor};
use tidegate_operators::record::Rollout;

/// Tokens the model computes for one rollout: all of prompt and completion but the last, which predicts nothing.
pub fn input_length(rollout: &Rollout) -> usize {
    (rollout.group.prompt.tokens.len() + rollout.tokens.len()).saturating_sub(1)
}

/// Some rollouts as tensors on a device: `b` sequences of `t` slots, `n` completion tokens in all, rollout after rollout.
#[derive(Debug)]
pub struct MicroBatch {
    /// `[b, t]` ids, padded on the right with 0: causal attention keeps what is on the right out of everything before it.
    tokens: Tensor,
    /// `[n]` slots (of b * t) whose hidden state predicts a completion token.
    positions: Tensor,
    /// `[n]` the ids that were chosen there.
    chosen: Tensor,
}

impl MicroBatch {
    /// The rollouts, in one copy to `device`. Each needs a prompt and a completion of at least one token.
    ///
    /// # Errors
    /// A device without the room.
    pub fn new(rollouts: &[&Rollout], device: Device) -> Result<MicroBatch> {
        let (b, t) = (rollouts.len(), rollouts.iter().map(|r| input_length(r)).max().unwrap_or(0));
        let n: usize = rollouts.iter().map(|r| r.tokens.len()).sum();
        let mut host = vec![0i64; b * t + 2 * n];
        let (slots, of_completions) = host.split_at_mut(b * t);
        let (positions, chosen) = of_completions.split_at_mut(n);
        let mut place = 0;
        for (row, rollout) in rollouts.iter().enumerate() {
            let prompt = &rollout.group.prompt.tokens;
            let input = prompt.iter().chain(&rollout.tokens).take(input_length(rollout));
            slots[row * t..].iter_mut().zip(input).for_each(|(slot, &id)| *slot = i64::from(id));
            for (i, &id) in rollout.tokens.iter().enumerate() {
                positions[place] = (row * t + prompt.len() + i) as i64 - 1;
                chosen[place] = i64::from(id);
                place += 1;
            }
        }
        let all = Tensor::f_from_slice(&host)?.f_to_device(device)?;
        let (b, t, n) = (b as i64, t as i64, n as i64);
        Ok(MicroBatch {
            tokens: all.f_narrow(0, 0, b * t)?.f_view([b, t])?,
            positions: all.f_narrow(0, b * t, n)?,
            chosen: all.f_narrow(0, b * t + n, n)?,
        })
    }

    /// `[b, t]` ids, padded on the right.
    pub fn tokens(&self) -> &Tensor {
        &self.tokens
    }

    /// `[n, 3]` f32: [`Said`] of each completion token, from the hidden states of all slots (`[b * t, d]`), where logits are divided
    /// by `temperature`. The output head runs on the `n` hidden states alone.
    ///
    /// # Errors
    /// Ids outside the vocabulary, or whatever the device says.
    pub fn outputs(&self, model: &Model, hidden: &Tensor, temperature: f64) -> Result<Tensor> {
        let hidden = hidden.f_index_select(0, &self.positions)?;
        let said = model.log_probabilities(&hidden, &self.chosen, temperature)?;
        let value = match model.value(&hidden)? {
            Some(value) => value,
            None => Tensor::f_zeros([said.size2()?.0], (Kind::Float, said.device()))?,
        };
        Ok(Tensor::f_cat(&[&said, &value.f_unsqueeze(1)?], 1)?)
    }
}

/// The outputs on the host, in one copy.
///
/// # Errors
/// Whatever the device says.
pub fn to_host(outputs: &Tensor) -> Result<Vec<Said>> {
    let numbers = Vec::<f32>::try_from(outputs.f_detach()?.f_flatten(0, -1)?)?;
    Ok(numbers.as_chunks::<3>().0.to_vec())
}
