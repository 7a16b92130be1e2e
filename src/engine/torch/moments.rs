//! `optimizer.safetensors` of a checkpoint: AdamW's running means, named as PyTorch's optimizers name them.

use crate::engine::torch::checkpoint::Stored;
use crate::engine::torch::layout::{Entry, Layout};
use crate::engine::torch::optimizer::State;
use crate::error::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, serialize_to_file};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use tch::{Device, Kind, Tensor};

const FILE: &str = "optimizer.safetensors";
const UPDATES: &str = "updates";
const HEAD_UPDATES: &str = "head_updates";

/// Writes what the optimizer remembers: `exp_avg.NAME` and `exp_avg_sq.NAME` for each tensor NAME of the model, f32.
///
/// # Errors
/// A disk that refuses.
pub fn write(folder: &Path, layout: &Layout, state: &State) -> Result<()> {
    let path = folder.join(FILE);
    let mut tensors = Vec::with_capacity(2 * layout.entries.len());
    for (kind, flat) in [("exp_avg", &state.m), ("exp_avg_sq", &state.v)] {
        let flat = flat.f_to_device(Device::Cpu)?;
        for pair in layout.entries.iter().zip(layout.views(&flat)?) {
            let name = format!("{kind}.{}", pair.0.name);
            tensors.push((name, Stored::of(pair)));
        }
    }
    let metadata = HashMap::from(
        [(UPDATES, state.updates), (HEAD_UPDATES, state.head_updates)].map(|(key, n)| (key.to_owned(), n.to_string())),
    );
    serialize_to_file(tensors, Some(metadata), &path).map_err(|e| Error::file(&path, e))
}

/// Reads it back, to the CPU.
///
/// # Errors
/// A file that is missing, is no safetensors file, or is not of a model of this layout.
pub fn load(folder: &Path, layout: &Layout) -> Result<State> {
    let path = folder.join(FILE);
    let bytes = fs::read(&path).map_err(|e| Error::file(&path, e))?;
    let damaged = |e: &dyn std::fmt::Display| Error::file(&path, format!("not safetensors: {e}"));
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(&e))?;
    let count = |key| -> Option<u64> { metadata.metadata().as_ref()?.get(key)?.parse().ok() };
    let updates = count(UPDATES);
    let updates = updates.ok_or_else(|| Error::file(&path, "its metadata do not say how many updates there were"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(&e))?;
    let flat = |kind: &str| -> Result<Tensor> {
        let flat = Tensor::f_zeros([layout.total], (Kind::Float, Device::Cpu))?;
        for entry in &layout.entries {
            read_into(&flat, entry, &file, &format!("{kind}.{}", entry.name)).map_err(|why| Error::file(&path, why))?;
        }
        Ok(flat)
    };
    // Once it was one count for all.
    let head_updates = count(HEAD_UPDATES).unwrap_or(updates);
    Ok(State { m: flat("exp_avg")?, v: flat("exp_avg_sq")?, updates, head_updates })
}

/// Copies the tensor `name` of a file into the place of `entry`, whose shape it must have.
pub(super) fn read_into(flat: &Tensor, entry: &Entry, file: &SafeTensors<'_>, name: &str) -> Result<(), String> {
    let stored = file.tensor(name).map_err(|e| format!("tensor {name}: {e}"))?;
    let shape: Vec<i64> = stored.shape().iter().map(|&n| n as i64).collect();
    if shape != entry.shape || stored.dtype() != Dtype::F32 {
        let found = format!("{shape:?} of {:?}", stored.dtype());
        return Err(format!("tensor {name}: {found} where the model gives {:?} of F32", entry.shape));
    }
    let copy = || {
        let tensor = Tensor::f_from_data_size(stored.data(), &shape, Kind::Float)?;
        flat.f_narrow(0, entry.offset, entry.len)?.f_view(shape.as_slice())?.f_copy_(&tensor)
    };
    copy().map_err(|e| format!("tensor {name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::checkpoint::{init, tests::spread};
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::layout::ValueHead;

    /// Catches a moment that does not come back bit for bit, and a file of another model that is taken.
    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::of(&tiny(Family::Qwen2), ValueHead::Present);
        let state = State { m: spread(&layout, 1), v: init(&layout, 2).unwrap().abs(), updates: 77, head_updates: 80 };
        write(dir.path(), &layout, &state).unwrap();
        let again = load(dir.path(), &layout).unwrap();
        assert_eq!((&again.m, &again.v, again.updates, again.head_updates), (&state.m, &state.v, 77, 80));
        let other = Layout::of(&tiny(Family::Llama), ValueHead::Present);
        let refused = load(dir.path(), &other).unwrap_err().to_string();
        assert!(refused.contains("optimizer.safetensors: tensor exp_avg."), "{refused}");
        fs::write(dir.path().join(FILE), [7; 40]).unwrap();
        assert!(load(dir.path(), &layout).unwrap_err().to_string().contains("not safetensors"));
    }
}
