//! The torch engine's reference policy: weights that nothing trains, computed as the learner computes its own; and their file.

use crate::clock::thread_ns;
use crate::engine::contract::Frozen;
use crate::engine::torch::checkpoint::Stored;
use crate::engine::torch::config::Config;
use crate::engine::torch::layout::Layout;
use crate::engine::torch::memory;
use crate::engine::torch::micro_batch::{MicroBatch, planned, refused, to_host};
use crate::engine::torch::model::{Form, Model};
use crate::engine::torch::moments::read_into;
use crate::engine::torch::observed::log_probabilities;
use crate::engine::torch::pack::{Branches, Trees};
use crate::engine::torch::weights::Snapshot;
use crate::error::{Error, Result};
use safetensors::tensor::{SafeTensors, serialize_to_file};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use tch::{Device, Kind, Tensor, no_grad};
use tidegate_operators::record::Rollout;

/// Weights in the type that is computed in, and the temperature that what they score was sampled at.
pub struct TorchFrozen {
    config: Config,
    layout: Layout,
    device: Device,
    kind: Kind,
    model: Model,
    temperature: f64,
    torch_ns: u64,
}

impl TorchFrozen {
    /// The model of `config` with the weights `flat` (`[layout.total]`, f32), which nobody writes to any more. They are shared where
    /// they lie on `device` and are computed in `kind`, and copied elsewhere.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(config: Config, layout: Layout, flat: &Tensor, device: Device, kind: Kind, temperature: f64) -> Result<Self> {
        let flat = flat.f_to_device(device)?.f_to_kind(kind)?;
        let model = Model::new(&config, &layout, &flat, Form::Views)?;
        Ok(TorchFrozen { config, layout, device, kind, model, temperature, torch_ns: 0 })
    }

    /// Refuses a rollout that it cannot compute.
    fn takes(&self, rollout: &Rollout) -> Result<()> {
        let place = || format!("group {}, sample {}", rollout.group.number, rollout.sample);
        refused(rollout, &self.config).map_or(Ok(()), |why| Err(Error::engine(place(), why)))
    }

    /// `[T, V]` log-probabilities in the places of a rollout's tokens.
    pub(super) fn distributions(&mut self, rollout: &Rollout) -> Result<Vec<f32>> {
        self.takes(rollout)?;
        if rollout.tokens.is_empty() {
            return Ok(Vec::new());
        }
        no_grad(|| {
            let micro_batch = MicroBatch::new(std::slice::from_ref(rollout), &[vec![0]], self.device)?;
            let hidden = self.model.hidden(micro_batch.trees())?;
            log_probabilities(&micro_batch.logits(&self.model, &hidden)?, self.temperature)
        })
    }

    /// Fills `logp_reference` of the rollouts that `trees` names.
    fn micro_batch(&self, batch: &mut [Rollout], trees: &[Branches]) -> Result<()> {
        let said = no_grad(|| {
            let micro_batch = MicroBatch::new(batch, trees, self.device)?;
            let hidden = self.model.hidden(micro_batch.trees())?;
            to_host(&micro_batch.outputs(&self.model, &hidden, self.temperature)?)
        })?;
        let mut said = said.into_iter().map(|[logp, ..]| logp);
        for &i in trees.iter().flatten() {
            let n = batch[i].tokens.len();
            batch[i].logp_reference = said.by_ref().take(n).collect();
        }
        Ok(())
    }
}

impl Frozen for TorchFrozen {
    type Weights = Snapshot;
    type Piece = Trees;

    fn pieces(&self, batch: &[Rollout], which: &[usize], most_tokens: usize) -> Result<Vec<Trees>> {
        which.iter().try_for_each(|&i| self.takes(&batch[i]))?;
        Ok(planned(batch, which, most_tokens).micro_batches)
    }

    /// Where memory runs out, a rollout at a time: what it says is kept in the log, so its last bits need not come again.
    fn score(&mut self, batch: &mut [Rollout], piece: &Trees) -> Result<()> {
        let started = thread_ns();
        let scored = match self.micro_batch(batch, &piece.trees) {
            Err(error) if memory::ran_out(&error) && piece.rollouts() > 1 => {
                piece.trees.iter().flatten().try_for_each(|&i| self.micro_batch(batch, &[vec![i]]))
            }
            scored => scored,
        };
        self.torch_ns += thread_ns() - started;
        scored
    }

    fn load(&mut self, weights: &Snapshot) -> Result<()> {
        let flat = weights.flat().f_to_device(self.device)?.f_to_kind(self.kind)?;
        self.model.reload(&self.layout, &flat, Form::Views)
    }

    fn library_ns(&self) -> u64 {
        self.torch_ns
    }
}

const FILE: &str = "reference.safetensors";

/// Writes a reference's weights beside a checkpoint's own, each tensor under its name.
///
/// # Errors
/// A disk that refuses.
pub fn write(folder: &Path, layout: &Layout, weights: &Snapshot) -> Result<()> {
    let path = folder.join(FILE);
    let flat = weights.flat().f_to_device(Device::Cpu)?;
    let views = layout.views(&flat)?;
    let tensors = layout.entries.iter().zip(views).map(|pair| (pair.0.name.clone(), Stored::of(pair)));
    serialize_to_file(tensors, None, &path).map_err(|e| Error::write(&path, &e))
}

/// Reads them back, to the CPU; None where there are none.
///
/// # Errors
/// A file that is no safetensors file, or is not of a model of this layout.
pub fn read(folder: &Path, layout: &Layout) -> Result<Option<Snapshot>> {
    let path = folder.join(FILE);
    let bytes = match fs::read(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|e| Error::file(&path, e))?,
    };
    let file = SafeTensors::deserialize(&bytes).map_err(|e| Error::file(&path, format!("not safetensors: {e}")))?;
    let flat = Tensor::f_zeros([layout.total], (Kind::Float, Device::Cpu))?;
    for entry in &layout.entries {
        read_into(&flat, entry, &file, &entry.name).map_err(|why| Error::file(&path, why))?;
    }
    Ok(Some(Snapshot::of(flat)))
}

#[cfg(test)]
mod tests;
