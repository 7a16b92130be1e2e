//! One micro-batch: rollouts in, what the model says of their tokens out.

use crate::engine::tally::Said;
use crate::engine::torch::config::Config;
use crate::engine::torch::model::Model;
use crate::engine::torch::pack::{Branches, Plan, Sequence, plan};
use crate::engine::torch::trees::{Tree, Trees, rows_of};
use crate::error::Result;
use tch::{Device, Kind, Tensor, no_grad};
use tidegate_operators::record::Rollout;

/// Tokens of a rollout's completion that the model computes: all but the last, which predicts nothing.
pub fn branch(rollout: &Rollout) -> &[u32] {
    rollout.tokens.split_last().map_or(&[], |(_, before)| before)
}

/// Tokens the model computes for one rollout, prompt and completion.
pub fn input_length(rollout: &Rollout) -> usize {
    rollout.group.prompt.tokens.len() + branch(rollout).len()
}

/// Why the model of `config` cannot compute a rollout, if it cannot.
pub fn refused(rollout: &Rollout, config: &Config) -> Option<String> {
    let prompt = &rollout.group.prompt.tokens;
    if prompt.is_empty() {
        return Some("an empty prompt predicts nothing".to_owned());
    }
    let (length, most) = (input_length(rollout) as i64, config.max_position_embeddings);
    if length > most {
        return Some(format!("{length} tokens, the model's longest is {most}"));
    }
    let mut ids = prompt.iter().chain(&rollout.tokens);
    let id = ids.find(|&&id| i64::from(id) >= config.vocab_size)?;
    Some(format!("id {id}, the vocabulary has {}", config.vocab_size))
}

/// The micro-batches of these rollouts of a batch, of at most `most_tokens` tokens each.
pub fn planned(batch: &[Rollout], which: &[usize], most_tokens: usize) -> Plan {
    let of = which.iter().map(|&i| &batch[i]);
    let sequences: Vec<Sequence> =
        of.map(|r| Sequence { prompt: &r.group.prompt.tokens, branch: branch(r).len() }).collect();
    let mut plan = plan(&sequences, most_tokens);
    plan.micro_batches.iter_mut().flat_map(|all| &mut all.trees).flatten().for_each(|i| *i = which[*i]);
    plan
}

/// Some rollouts as tensors on a device: `c` completion tokens in all, rollout after rollout, in `n` rows of trees.
#[derive(Debug)]
pub struct MicroBatch {
    trees: Trees,
    /// `[c]` rows of the trees whose hidden state predicts a completion token.
    positions: Tensor,
    /// `[c]` the ids that were chosen there.
    chosen: Tensor,
}

impl MicroBatch {
    /// The rollouts of `batch` that `trees` names, in that order. Each needs a prompt and a completion of at least one token.
    ///
    /// # Errors
    /// A device without the room.
    pub fn new(batch: &[Rollout], trees: &[Branches], device: Device) -> Result<MicroBatch> {
        let (mut positions, mut chosen) = (Vec::new(), Vec::new());
        let mut made = Vec::with_capacity(trees.len());
        let mut row = 0;
        for branches in trees {
            let rollouts = || branches.iter().map(|&i| &batch[i]);
            let Some(first) = rollouts().next() else { continue };
            let trunk = first.group.prompt.tokens.as_slice();
            row += trunk.len();
            let end_of_trunk = row as i64 - 1;
            for rollout in rollouts() {
                let rows = row as i64..(row + branch(rollout).len()) as i64;
                positions.extend(std::iter::once(end_of_trunk).chain(rows));
                chosen.extend(rollout.tokens.iter().map(|&id| i64::from(id)));
                row += branch(rollout).len();
            }
            made.push(Tree { trunk, branches: rollouts().map(branch).collect() });
        }
        let there = |ids: &[i64]| Ok::<_, crate::error::Error>(Tensor::f_from_slice(ids)?.f_to_device(device)?);
        Ok(MicroBatch { trees: Trees::new(&made, device)?, positions: there(&positions)?, chosen: there(&chosen)? })
    }

    /// What the model computes.
    pub fn trees(&self) -> &Trees {
        &self.trees
    }

    /// `[c, 3]` f32: [`Said`] of each completion token, from the hidden states of all rows (`[n, d]`), where logits are divided by `temperature`. The
    /// output head runs on these `c` hidden states alone.
    ///
    /// # Errors
    /// Ids outside the vocabulary, or whatever the device says.
    pub fn outputs(&self, model: &Model, hidden: &Tensor, temperature: f64) -> Result<Tensor> {
        let hidden = rows_of(hidden, &self.positions)?;
        let said = model.log_probabilities(&hidden, &self.chosen, temperature)?;
        with_values(&said, model.value(&hidden)?)
    }

    /// `[c, V]` f32 logits in the place of each completion token, from the hidden states of all rows (`[n, d]`). No gradients.
    ///
    /// # Errors
    /// As [`outputs`](MicroBatch::outputs).
    pub fn logits(&self, model: &Model, hidden: &Tensor) -> Result<Tensor> {
        model.logits(&rows_of(hidden, &self.positions)?)
    }

    /// [`outputs`](MicroBatch::outputs), where no gradient but that of the critic's head is wanted: of hidden states that have none.
    ///
    /// # Errors
    /// As [`outputs`](MicroBatch::outputs).
    pub fn outputs_for_head(&self, model: &Model, hidden: &Tensor, temperature: f64) -> Result<Tensor> {
        let hidden = rows_of(hidden, &self.positions)?;
        let said = no_grad(|| model.log_probabilities(&hidden, &self.chosen, temperature))?;
        with_values(&said, model.value(&hidden)?)
    }

    /// Of [`Said`] the values alone, all else 0: the output head is not computed.
    ///
    /// # Errors
    /// As [`outputs`](MicroBatch::outputs).
    pub fn values(&self, model: &Model, hidden: &Tensor) -> Result<Tensor> {
        let hidden = rows_of(hidden, &self.positions)?;
        let nothing = Tensor::f_zeros([hidden.size2()?.0, 2], (Kind::Float, hidden.device()))?;
        with_values(&nothing, model.value(&hidden)?)
    }
}

/// `[c, 3]` of `[c, 2]` and `[c]`; zeros where the model has no critic.
fn with_values(said: &Tensor, value: Option<Tensor>) -> Result<Tensor> {
    let value = match value {
        Some(value) => value,
        None => Tensor::f_zeros([said.size2()?.0], (Kind::Float, said.device()))?,
    };
    Ok(Tensor::f_cat(&[said, &value.f_unsqueeze(1)?], 1)?)
}

/// The outputs on the host, in one copy.
///
/// # Errors
/// Whatever the device says.
pub fn to_host(outputs: &Tensor) -> Result<Vec<Said>> {
    let numbers = Vec::<f32>::try_from(outputs.f_detach()?.f_flatten(0, -1)?)?;
    Ok(numbers.as_chunks::<3>().0.to_vec())
}
