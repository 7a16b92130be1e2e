//! Model folders: Hugging Face's layout of `config.json`, safetensors and tokenizer files.
//!
//! A folder written here loads in transformers, and a folder written there loads here. The value head has a file of its own,
//! since other programs' models have none.

use crate::durable::Staged;
use crate::engine::sampler::uniform;
use crate::engine::torch::config::Config;
use crate::engine::torch::layout::{Entry, Layout, ValueHead};
use crate::engine::torch::weights::{hashes, little_endian_bytes};
use crate::error::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, View, serialize_to_file};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

const CONFIG: &str = "config.json";
const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const VALUE_HEAD: &str = "value_head.safetensors";

/// What belongs to the tokenizer, or says how to generate, and goes along unchanged.
const ALONGSIDE: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
];

/// A model as it was in its folder.
pub struct Loaded {
    pub config: Config,
    pub layout: Layout,
    /// `[layout.total]`, f32, on the CPU.
    pub flat: Tensor,
    /// BLAKE3 (16 hexadecimal digits) over the configuration and every tensor's hash, the value head's left out.
    pub model_hash: String,
}

/// Reads a model folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names, of bf16, f16 or f32.
/// A value head that is asked for and not in the folder starts at zero.
///
/// # Errors
/// Whatever [`Config::load`] refuses; a file or a tensor that is missing, has another shape or type, is not of this model, or
/// holds a number that is not finite.
pub fn load(folder: &Path, value_head: ValueHead) -> Result<Loaded> {
    let config = Config::load(folder)?;
    let layout = Layout::of(&config, value_head);
    let flat = Tensor::f_zeros([layout.total], (Kind::Float, Device::Cpu))?;
    let wanted = |entry: &&Entry| !entry.is_value_head();
    let mut missing: BTreeMap<&str, &Entry> = layout.entries.iter().filter(wanted).map(|e| (e.name.as_str(), e)).collect();
    for path in weight_files(folder)? {
        read_into(&path, &mut missing, &flat, &config)?;
    }
    if let Some(name) = missing.keys().next() {
        return Err(Error::file(
            folder,
            format!("tensor {name} is missing ({} of {})", missing.len(), layout.entries.len()),
        ));
    }
    let path = folder.join(VALUE_HEAD);
    if value_head == ValueHead::Present && path.exists() {
        let mut missing = layout.entries.iter().filter(|e| e.is_value_head()).map(|e| (e.name.as_str(), e)).collect();
        read_into(&path, &mut missing, &flat, &config)?;
        if let Some(name) = missing.keys().next() {
            return Err(Error::file(path, format!("tensor {name} is missing")));
        }
    }
    // A critic comes and goes with the specification; the model is the same.
    let mut hashes = hashes(&flat, &layout)?;
    hashes.retain(|(name, _)| !name.starts_with("value_head."));
    let model_hash = model_hash(&config, &hashes);
    Ok(Loaded { config, layout, flat, model_hash })
}

/// One hash for a configuration and its tensors' hashes.
fn model_hash(config: &Config, tensors: &[(String, String)]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(config.to_json().to_string().as_bytes());
    for (name, hash) in tensors {
        hasher.update(format!("\n{name} {hash}").as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The files that hold a folder's weights.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if !index.exists() {
        let path = folder.join(MODEL);
        return if path.exists() {
            Ok(vec![path])
        } else {
            Err(Error::file(folder, format!("neither {MODEL} nor {INDEX}")))
        };
    }
    let text = fs::read_to_string(&index).map_err(|e| Error::file(&index, e))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| Error::file(&index, e))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| Error::file(&index, "weight_map must be an object of tensor and file names"))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let name = shard.as_str().filter(|name| Path::new(name).components().count() == 1);
        let name = name.ok_or_else(|| Error::file(&index, format!("weight_map.{tensor} = {shard}: not a file's name")))?;
        let path = folder.join(name);
        if !path.exists() {
            return Err(Error::file(&index, format!("shard {name}, which has {tensor}, is not in the folder")));
        }
        shards.insert(path);
    }
    Ok(shards.into_iter().collect())
}

/// Copies the tensors of one file into their places and takes them off `missing`.
fn read_into(path: &Path, missing: &mut BTreeMap<&str, &Entry>, flat: &Tensor, config: &Config) -> Result<()> {
    let bytes = fs::read(path).map_err(|e| Error::file(path, e))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| Error::file(path, format!("not safetensors: {e}")))?;
    for (name, stored) in file.tensors() {
        let Some(entry) = missing.remove(name.as_str()) else {
            // Tables that old checkpoints keep, and a tied head stored all the same.
            if name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight") {
                continue;
            }
            return Err(Error::file(path, format!("tensor {name} is not of this model, or is there twice")));
        };
        let refuse = |why: String| Error::file(path, format!("tensor {name}: {why}"));
        let shape: Vec<i64> = stored.shape().iter().map(|&n| n as i64).collect();
        if shape != entry.shape {
            return Err(refuse(format!("shape {shape:?} where the configuration gives {:?}", entry.shape)));
        }
        let tensor = to_tensor(&stored, &shape)
            .ok_or_else(|| refuse(format!("type {:?}, not BF16, F16 or F32", stored.dtype())))??;
        let mut place = flat.f_narrow(0, entry.offset, entry.len)?.f_view(shape.as_slice())?;
        place.f_copy_(&tensor)?;
        let bad = place.f_isfinite()?.f_logical_not()?.f_sum(Kind::Int64)?.f_int64_value(&[])?;
        if bad != 0 {
            return Err(refuse(format!("{bad} of {} numbers are NaN or infinite", entry.len)));
        }
    }
    Ok(())
}

/// None for a type that weights do not have.
fn to_tensor(stored: &TensorView, shape: &[i64]) -> Option<Result<Tensor>> {
    let kind = match stored.dtype() {
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F16 => Kind::Half,
        Dtype::F32 => Kind::Float,
        _ => return None,
    };
    Some(Tensor::f_from_data_size(stored.data(), shape, kind).map_err(Error::from))
}

/// Writes a model folder that appears whole or not at all; one that is there is replaced. Tokenizer files come from
/// `copy_from`.
///
/// # Errors
/// A disk that refuses.
pub fn save(folder: &Path, config: &Config, layout: &Layout, flat: &Tensor, copy_from: Option<&Path>) -> Result<()> {
    let staged = Staged::new(folder)?;
    write(staged.path(), config, layout, flat, copy_from)?;
    staged.seal()
}

/// Writes a model's files into a folder that exists (see [`Staged`]).
///
/// # Errors
/// A disk that refuses.
pub fn write(folder: &Path, config: &Config, layout: &Layout, flat: &Tensor, copy_from: Option<&Path>) -> Result<()> {
    let text = format!("{:#}\n", config.to_json());
    let path = folder.join(CONFIG);
    fs::write(&path, text).map_err(|e| Error::write(&path, &e))?;
    let flat = flat.f_detach()?.f_to_device(Device::Cpu)?;
    let (value_head, model): (Vec<_>, Vec<_>) =
        layout.entries.iter().zip(layout.views(&flat)?).map(Stored::of).partition(|stored| stored.value_head);
    for (name, tensors) in [(MODEL, model), (VALUE_HEAD, value_head)] {
        if tensors.is_empty() {
            continue;
        }
        let path = folder.join(name);
        // Transformers refuses a file that does not say whose conventions it follows.
        let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
        let named = tensors.into_iter().map(|stored| (stored.name.clone(), stored));
        serialize_to_file(named, Some(metadata), &path).map_err(|e| Error::write(&path, &e))?;
    }
    for name in ALONGSIDE {
        let Some(from) = copy_from.map(|folder| folder.join(name)).filter(|path| path.exists()) else { continue };
        fs::copy(&from, folder.join(name)).map_err(|e| Error::write(&from, &e))?;
    }
    Ok(())
}

/// A tensor on its way into a file.
pub(super) struct Stored {
    name: String,
    value_head: bool,
    shape: Vec<usize>,
    tensor: Tensor,
}

impl Stored {
    pub(super) fn of((entry, tensor): (&Entry, Tensor)) -> Stored {
        let shape = entry.shape.iter().map(|&n| n as usize).collect();
        Stored { name: entry.name.clone(), value_head: entry.is_value_head(), shape, tensor }
    }
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::new();
        little_endian_bytes(&self.tensor, &mut bytes).expect("an f32 tensor on the CPU can be copied");
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * size_of::<f32>()
    }
}

/// Random weights for a new model, `[layout.total]` f32 on the CPU: normal with deviation 0.02, norms 1, biases and the value
/// head 0. A function of the seed and the layout alone.
///
/// # Errors
/// Not enough memory.
pub fn init(layout: &Layout, seed: u64) -> Result<Tensor> {
    let mut flat = vec![0f32; layout.total as usize];
    for (number, entry) in layout.entries.iter().enumerate() {
        let (offset, len) = (entry.offset as usize, entry.len as usize);
        fill(entry, number as u64, seed, &mut flat[offset..offset + len]);
    }
    Ok(Tensor::f_from_slice(&flat)?)
}

fn fill(entry: &Entry, number: u64, seed: u64, numbers: &mut [f32]) {
    if entry.is_value_head() || entry.name.ends_with(".bias") {
        return numbers.fill(0.0);
    }
    if entry.shape.len() == 1 {
        return numbers.fill(1.0);
    }
    for (i, pair) in numbers.chunks_mut(2).enumerate() {
        // Box and Muller 1958; 1 - u is in (0, 1].
        let draw = |sample| uniform(seed, number << 40 | i as u64, sample, 0);
        let (radius, angle) = ((-2.0 * (1.0 - draw(0)).ln()).sqrt(), std::f64::consts::TAU * draw(1));
        let normals = [radius * angle.cos(), radius * angle.sin()];
        for (x, normal) in pair.iter_mut().zip(normals) {
            *x = (0.02 * normal) as f32;
        }
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
pub(crate) mod tests;
