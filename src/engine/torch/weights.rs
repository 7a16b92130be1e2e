//! Snapshots of a model's weights: what the learner hands to the generators.

use crate::engine::torch::layout::Layout;
use crate::error::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use tch::{Kind, Tensor};

/// An immutable copy of all weights, `[layout.total]`. Clones share its memory; nobody may write to it.
///
/// It is serializable only as timely asks for it: weights stay in their process, where records move without being
/// serialized, and an attempt is an error.
pub struct Snapshot {
    flat: Tensor,
}

impl Snapshot {
    /// Copies `flat` (on its device), without its gradient history.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn copy_of(flat: &Tensor) -> Result<Snapshot> {
        Ok(Snapshot { flat: tch::no_grad(|| flat.f_detach_copy())? })
    }

    /// The weights, `[layout.total]`.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The hash of each tensor: (name, first 16 hexadecimal digits of BLAKE3 over its little-endian f32 bytes).
    ///
    /// # Errors
    /// A layout that is not this model's.
    pub fn hashes(&self, layout: &Layout) -> Result<Vec<(String, String)>> {
        hashes(&self.flat, layout)
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        Snapshot { flat: self.flat.shallow_clone() }
    }
}

const STAYS: &str = "weights do not leave the process: run all workers of a run in one process";

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom(STAYS))
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom(STAYS))
    }
}

/// As [`Snapshot::hashes`], of a buffer that is not (yet) a snapshot. Copies a bounded piece at a time to the host.
///
/// # Errors
/// A buffer that is not f32, or shorter than the layout.
pub fn hashes(flat: &Tensor, layout: &Layout) -> Result<Vec<(String, String)>> {
    const CHUNK: i64 = 1 << 20;
    if flat.f_kind()? != Kind::Float {
        return Err(Error::engine("hashes", format!("weights of kind {:?}, not Float", flat.f_kind()?)));
    }
    let flat = flat.f_detach()?;
    let mut bytes = Vec::new();
    let mut all = Vec::with_capacity(layout.entries.len());
    for entry in &layout.entries {
        let mut hasher = blake3::Hasher::new();
        for start in (0..entry.len).step_by(CHUNK as usize) {
            let len = CHUNK.min(entry.len - start);
            little_endian_bytes(&flat.f_narrow(0, entry.offset + start, len)?, &mut bytes)?;
            hasher.update(&bytes);
        }
        all.push((entry.name.clone(), hasher.finalize().to_hex()[..16].to_owned()));
    }
    Ok(all)
}

/// The bytes of an f32 tensor into `bytes`, which takes its size.
///
/// # Errors
/// Whatever libtorch says.
pub fn little_endian_bytes(tensor: &Tensor, bytes: &mut Vec<u8>) -> Result<()> {
    let numel = tensor.numel();
    bytes.resize(numel * size_of::<f32>(), 0);
    tensor.f_copy_data_u8(bytes, numel)?;
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(size_of::<f32>()).for_each(<[u8]>::reverse);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::checkpoint::init;
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::layout::ValueHead;

    #[test]
    fn a_snapshot_keeps_its_numbers_and_does_not_travel() {
        let layout = Layout::of(&tiny(Family::Llama), ValueHead::None);
        let mut flat = init(&layout, 0).unwrap().set_requires_grad(true);
        let snapshot = Snapshot::copy_of(&flat).unwrap();
        let before = snapshot.hashes(&layout).unwrap();
        let _ = tch::no_grad(|| flat.fill_(3.0));
        assert!(!snapshot.flat().requires_grad());
        assert_eq!(snapshot.clone().hashes(&layout).unwrap(), before);
        assert_ne!(hashes(&flat, &layout).unwrap(), before);
        assert!(serde_json::to_string(&snapshot).unwrap_err().to_string().contains("do not leave the process"));
        assert!(serde_json::from_str::<Snapshot>("1").is_err());
    }

    #[test]
    fn a_hash_is_blake3_of_the_bytes() {
        let layout = Layout::of(&tiny(Family::Llama), ValueHead::None);
        let all = hashes(&init(&layout, 0).unwrap(), &layout).unwrap();
        let ones: Vec<u8> = [1f32; 32].iter().flat_map(|x| x.to_le_bytes()).collect();
        let right = blake3::hash(&ones).to_hex()[..16].to_owned();
        assert_eq!(all[1], ("model.layers.0.input_layernorm.weight".to_owned(), right));
    }
}
