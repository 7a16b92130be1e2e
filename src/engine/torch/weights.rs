//! Snapshots of a model's weights: what the learner hands to the generators.

use crate::engine::torch::ffi;
use crate::engine::torch::layout::{Entry, Layout};
use crate::error::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::thread;
use tch::{Device, Kind, Tensor};

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

    /// The buffer itself, which nobody writes to any more.
    pub fn of(flat: Tensor) -> Snapshot {
        Snapshot { flat }
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

/// As [`Snapshot::hashes`], of a buffer that is not (yet) a snapshot. On the CPU by as many threads as libtorch has, where it lies;
/// elsewhere a bounded piece at a time is copied to the host.
///
/// # Errors
/// A buffer that is not f32, or shorter than the layout.
pub fn hashes(flat: &Tensor, layout: &Layout) -> Result<Vec<(String, String)>> {
    if flat.f_kind()? != Kind::Float {
        return Err(Error::engine("hashes", format!("weights of kind {:?}, not Float", flat.f_kind()?)));
    }
    let flat = flat.f_detach()?;
    if flat.device() != Device::Cpu || cfg!(target_endian = "big") {
        return layout.entries.iter().map(|entry| Ok((entry.name.clone(), hash_in_pieces(&flat, entry)?))).collect();
    }
    ffi::with_bytes(&flat, |bytes| {
        let shares = shares(&layout.entries, tch::get_num_threads().max(1) as usize);
        thread::scope(|scope| {
            let hash = |entries| hashes_of(bytes, entries);
            let others: Vec<_> = shares[1..].iter().map(|&entries| scope.spawn(move || hash(entries))).collect();
            let mut all = hash(shares[0])?;
            for other in others {
                all.extend(other.join().map_err(|_| Error::engine("hashes", "a thread panicked"))??);
            }
            Ok(all)
        })
    })?
}

/// Elements that are worth a thread.
const SHARE: i64 = 1 << 22;

/// The entries in runs of about equal size, `most` at most and at least one.
fn shares(entries: &[Entry], most: usize) -> Vec<&[Entry]> {
    let total: i64 = entries.iter().map(|entry| entry.len).sum();
    let each = (total / most as i64 + 1).max(SHARE);
    let (mut shares, mut start, mut size) = (Vec::new(), 0, 0);
    for (end, entry) in (1..).zip(entries) {
        size += entry.len;
        if size >= each && shares.len() + 1 < most {
            shares.push(&entries[start..end]);
            (start, size) = (end, 0);
        }
    }
    shares.push(&entries[start..]);
    shares
}

fn hashes_of(bytes: &[u8], entries: &[Entry]) -> Result<Vec<(String, String)>> {
    let place =
        |entry: &Entry| entry.offset as usize * size_of::<f32>()..(entry.offset + entry.len) as usize * size_of::<f32>();
    let hash = |entry: &Entry| {
        let part = bytes.get(place(entry)).ok_or_else(|| Error::engine(&entry.name, "weights shorter than the layout"))?;
        Ok((entry.name.clone(), short(&blake3::hash(part))))
    };
    entries.iter().map(hash).collect()
}

fn hash_in_pieces(flat: &Tensor, entry: &Entry) -> Result<String> {
    const PIECE: i64 = 1 << 20;
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), Vec::new());
    for start in (0..entry.len).step_by(PIECE as usize) {
        let len = PIECE.min(entry.len - start);
        little_endian_bytes(&flat.f_narrow(0, entry.offset + start, len)?, &mut bytes)?;
        hasher.update(&bytes);
    }
    Ok(short(&hasher.finalize()))
}

fn short(hash: &blake3::Hash) -> String {
    hash.to_hex()[..16].to_owned()
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

    /// Catches a tensor that is left out, hashed twice or out of place.
    #[test]
    fn threads_and_pieces_come_to_the_same_hashes() {
        let mut offset = 0;
        let entries = [3 * SHARE + 5, 1, SHARE, SHARE + 7, 2].map(|len| {
            let entry = Entry { name: len.to_string(), shape: vec![len], offset, len };
            offset += len;
            entry
        });
        let layout =
            Layout { entries: entries.to_vec(), total: offset, ..Layout::of(&tiny(Family::Llama), ValueHead::None) };
        let flat = Tensor::arange(offset, (Kind::Float, Device::Cpu)).sin();
        assert_eq!(shares(&layout.entries, 1), [&layout.entries[..]]);
        for most in 2..7 {
            let shares = shares(&layout.entries, most);
            assert!((2..=most).contains(&shares.len()) && shares.concat() == layout.entries, "{most}");
        }
        let alone: Vec<String> = entries.iter().map(|entry| hash_in_pieces(&flat, entry).unwrap()).collect();
        let together = hashes(&flat, &layout).unwrap();
        assert!(together.iter().map(|(_, hash)| hash).eq(&alone) && together[4].0 == "2", "{together:?}");
        assert!(hashes(&flat.narrow(0, 0, offset - 1), &layout).is_err());
    }
}
