//! Model folders: Hugging Face's layout of `config.json`, safetensors and tokenizer files.
//!
//! A folder written here loads in transformers, and a folder written there loads here. The value head has a file of its own,
//! since other programs' models have none.

use crate::durable::Staged;
use crate::engine::sampler::uniform;
use crate::engine::text_file;
use crate::engine::torch::config::{Config, Configured};
use crate::engine::torch::layout::{Entry, Layout, ValueHead};
use crate::engine::torch::weights::{hashes, little_endian_bytes};
use crate::error::{Error, Result};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, View, serialize_to_file};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

const CONFIG: &str = "config.json";
const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Most bytes of an index: some hundred thousand tensors.
const LARGEST_INDEX: u64 = 64 << 20;
/// Most bytes of a safetensors header, as its own library has it.
const LARGEST_HEADER: u64 = 100_000_000;

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
    /// What a person should know of the folder, a sentence each.
    pub notes: Vec<String>,
}

/// Reads a model folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names, of bf16, f16 or f32.
/// A value head that is asked for and not in the folder starts at zero.
///
/// Nothing in a file names a file outside the folder. Links in the folder are followed: caches of downloaded models are made
/// of them.
///
/// # Errors
/// Whatever [`Config::load`] refuses; a file or a tensor that is missing, has another shape or type, is not of this model, or
/// holds a number that is not finite.
pub fn load(folder: &Path, value_head: ValueHead) -> Result<Loaded> {
    let Configured { config, notes } = Config::load(folder)?;
    let layout = Layout::of(&config, value_head);
    let wanted = |entry: &&Entry| !entry.is_value_head();
    let mut missing: BTreeMap<&str, &Entry> = layout.entries.iter().filter(wanted).map(|e| (e.name.as_str(), e)).collect();
    // Headers first: what the configuration asks memory for is there.
    let files = weight_files(folder)?;
    let files = files.iter().map(|path| check(path, &mut missing, &config)).collect::<Result<Vec<_>>>()?;
    if let Some(name) = missing.keys().next() {
        return Err(Error::file(
            folder,
            format!("tensor {name} is missing ({} of {})", missing.len(), layout.entries.len()),
        ));
    }
    let flat = Tensor::f_zeros([layout.total], (Kind::Float, Device::Cpu))?;
    files.iter().try_for_each(|file| file.read_into(&flat))?;
    let path = folder.join(VALUE_HEAD);
    if value_head == ValueHead::Present && path.exists() {
        let mut missing = layout.entries.iter().filter(|e| e.is_value_head()).map(|e| (e.name.as_str(), e)).collect();
        let file = check(&path, &mut missing, &config)?;
        if let Some(name) = missing.keys().next() {
            return Err(Error::file(path, format!("tensor {name} is missing")));
        }
        file.read_into(&flat)?;
    }
    // A critic comes and goes with the specification; the model is the same.
    let mut hashes = hashes(&flat, &layout)?;
    hashes.retain(|(name, _)| !name.starts_with("value_head."));
    let model_hash = model_hash(&config, &hashes);
    Ok(Loaded { config, layout, flat, model_hash, notes })
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
    let text = text_file::read(&index, LARGEST_INDEX)?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| Error::file(&index, e))?;
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| Error::file(&index, "weight_map must be an object of tensor and file names"))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let one = |name: &&str| matches!(*Path::new(name).components().collect::<Vec<_>>(), [Component::Normal(_)]);
        let name = shard.as_str().filter(one);
        let name = name.ok_or_else(|| Error::file(&index, format!("weight_map.{tensor} = {shard}: not a file's name")))?;
        let path = folder.join(name);
        if !path.exists() {
            return Err(Error::file(&index, format!("shard {name}, which has {tensor}, is not in the folder")));
        }
        shards.insert(path);
    }
    Ok(shards.into_iter().collect())
}

/// A file of weights whose header was found right.
struct Checked<'a> {
    path: PathBuf,
    /// Those of its tensors that belong to the model.
    entries: Vec<&'a Entry>,
}

/// Compares the header of a file with what the model has, and takes its tensors off `missing`.
fn check<'a>(path: &Path, missing: &mut BTreeMap<&str, &'a Entry>, config: &Config) -> Result<Checked<'a>> {
    let mut entries = Vec::new();
    let header = header(path)?;
    for (name, stored) in header.offset_keys().iter().filter_map(|name| Some((name, header.info(name)?))) {
        let Some(entry) = missing.remove(name.as_str()) else {
            // Tables that old checkpoints keep, and a tied head stored all the same.
            if name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight") {
                continue;
            }
            return Err(Error::file(path, format!("tensor {name} is not of this model, or is there twice")));
        };
        let refuse = |why: String| Error::file(path, format!("tensor {name}: {why}"));
        let shape: Vec<i64> = stored.shape.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
        if shape != entry.shape {
            return Err(refuse(format!("shape {shape:?} where the configuration gives {:?}", entry.shape)));
        }
        if kind_of(stored.dtype).is_none() {
            return Err(refuse(format!("type {:?}, not BF16, F16 or F32", stored.dtype)));
        }
        entries.push(entry);
    }
    Ok(Checked { path: path.to_owned(), entries })
}

/// What a safetensors file says it holds. The file is as long as its header says.
fn header(path: &Path) -> Result<Metadata> {
    let refuse = |reason: &dyn Display| Error::file(path, format!("not safetensors: {reason}"));
    let file = fs::File::open(path).map_err(|e| Error::file(path, e))?;
    let length = file.metadata().map_err(|e| Error::file(path, e))?.len();
    let mut bytes = [0; 8];
    (&file).read_exact(&mut bytes).map_err(|_| refuse(&"shorter than 8 bytes"))?;
    let size = u64::from_le_bytes(bytes);
    if size > LARGEST_HEADER.min(length - 8) {
        return Err(refuse(&format!("a header of {size} bytes in a file of {length}")));
    }
    let mut head = Vec::new();
    file.take(size).read_to_end(&mut head).map_err(|e| Error::file(path, e))?;
    let metadata: Metadata = serde_json::from_slice(&head).map_err(|e| refuse(&format!("its header: {e}")))?;
    let wanted = (size + 8).saturating_add(metadata.data_len() as u64);
    if wanted != length {
        return Err(refuse(&format!("{length} bytes where its header describes {wanted}")));
    }
    Ok(metadata)
}

impl Checked<'_> {
    /// Copies the file's tensors into their places.
    fn read_into(&self, flat: &Tensor) -> Result<()> {
        let path = &self.path;
        let bytes = fs::read(path).map_err(|e| Error::file(path, e))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| Error::file(path, format!("not safetensors: {e}")))?;
        for entry in &self.entries {
            let refuse = |why: &dyn Display| Error::file(path, format!("tensor {}: {why}", entry.name));
            let stored = file.tensor(&entry.name).map_err(|e| refuse(&e))?;
            let kind = kind_of(stored.dtype()).ok_or_else(|| refuse(&"another type than before"))?;
            let tensor = Tensor::f_from_data_size(stored.data(), &entry.shape, kind)?;
            let mut place = flat.f_narrow(0, entry.offset, entry.len)?.f_view(entry.shape.as_slice())?;
            place.f_copy_(&tensor)?;
            let bad = place.f_isfinite()?.f_logical_not()?.f_sum(Kind::Int64)?.f_int64_value(&[])?;
            if bad != 0 {
                return Err(refuse(&format!("{bad} of {} numbers are NaN or infinite", entry.len)));
            }
        }
        Ok(())
    }
}

/// None for a type that weights do not have.
fn kind_of(dtype: Dtype) -> Option<Kind> {
    match dtype {
        Dtype::BF16 => Some(Kind::BFloat16),
        Dtype::F16 => Some(Kind::Half),
        Dtype::F32 => Some(Kind::Float),
        _ => None,
    }
}

/// Writes a model folder that appears whole or not at all; one that is there is replaced. Tokenizer files are those of
/// `alongside`.
///
/// # Errors
/// A disk that refuses.
pub fn save(folder: &Path, config: &Config, layout: &Layout, flat: &Tensor, alongside: &Alongside) -> Result<()> {
    let staged = Staged::new(folder)?;
    write(staged.path(), config, layout, flat, alongside)?;
    staged.seal()
}

/// Writes a model's files into a folder that exists (see [`Staged`]).
///
/// # Errors
/// A disk that refuses.
pub fn write(folder: &Path, config: &Config, layout: &Layout, flat: &Tensor, alongside: &Alongside) -> Result<()> {
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
    alongside.0.iter().try_for_each(|(name, bytes)| {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|e| Error::write(&path, &e))
    })
}

/// The files of a model folder that go along unchanged, in memory: the folder may be gone when the next one is written.
#[derive(Clone, Debug, Default)]
pub struct Alongside(Arc<Vec<(&'static str, Vec<u8>)>>);

impl Alongside {
    /// Those that the folder has.
    ///
    /// # Errors
    /// One that cannot be read.
    pub fn read(folder: &Path) -> Result<Alongside> {
        let mut files = Vec::new();
        for name in ALONGSIDE {
            let path = folder.join(name);
            match fs::read(&path) {
                Ok(bytes) => files.push((name, bytes)),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(Error::file(path, e)),
            }
        }
        Ok(Alongside(Arc::new(files)))
    }
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
