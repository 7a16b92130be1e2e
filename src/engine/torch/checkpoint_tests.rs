//! Tests of model folders, and the random weights that other tests use.

use super::*;
use crate::engine::torch::config::{Family, tests::tiny};
use crate::engine::torch::device::tests::device;
use crate::engine::torch::model::{Form, Model};
use crate::engine::torch::rope::RopeScaling;
use crate::engine::torch::trees::tests::sequences;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

/// Weights whose logits lie a few nats apart, with norms, biases and value head that matter too: under [`init`] every token
/// is about as likely, and a test would see little.
pub(crate) fn spread(layout: &Layout, seed: u64) -> Tensor {
    let flat = init(layout, seed).unwrap();
    for (entry, mut view) in layout.entries.iter().zip(layout.views(&flat).unwrap()) {
        if entry.shape.len() == 1 || entry.is_value_head() {
            let same_shape = Entry { name: "noise".to_owned(), shape: vec![1, entry.len], ..entry.clone() };
            let mut noise = vec![0f32; entry.len as usize];
            fill(&same_shape, entry.offset as u64, seed, &mut noise);
            view += Tensor::from_slice(&noise).view_as(&view) * 5.0;
        } else {
            view *= 10.0;
        }
    }
    flat
}

fn numbers(flat: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(flat).unwrap()
}

#[test]
fn init_is_normal_and_repeats() {
    let layout = Layout::of(&tiny(Family::Qwen2), ValueHead::Present);
    let flat = init(&layout, 5).unwrap();
    assert_eq!(numbers(&flat), numbers(&init(&layout, 5).unwrap()));
    assert_ne!(numbers(&flat), numbers(&init(&layout, 6).unwrap()));
    let view = |name: &str| {
        let at = layout.entries.iter().position(|entry| entry.name == name).unwrap();
        layout.views(&flat).unwrap().swap_remove(at)
    };
    let embedding = view("model.embed_tokens.weight");
    let (mean, deviation) = (embedding.mean(Kind::Float).double_value(&[]), embedding.std(true).double_value(&[]));
    // 1600 draws: three deviations of each estimate.
    assert!(mean.abs() < 3.0 * 0.02 / 40.0 && (deviation - 0.02).abs() < 3.0 * 0.02 / 56.6, "{mean} {deviation}");
    assert_ne!(view("model.layers.0.self_attn.k_proj.weight"), view("model.layers.0.self_attn.v_proj.weight"));
    assert_eq!(view("model.norm.weight").min().double_value(&[]), 1.0);
    assert_eq!(view("value_head.weight").abs().max().double_value(&[]), 0.0);
    assert_eq!(view("model.layers.0.self_attn.q_proj.bias").abs().max().double_value(&[]), 0.0);
}

#[test]
fn what_is_saved_loads_the_same() {
    let base = tempfile::tempdir().unwrap();
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        let (config, folder, other) = (tiny(family), base.path().join("m"), base.path().join("n"));
        let layout = Layout::of(&config, ValueHead::Present);
        let flat = spread(&layout, 3);
        save(&folder, &config, &layout, &flat, &Alongside::default()).unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        let loaded = load(&folder, ValueHead::Present).unwrap();
        assert_eq!((&loaded.config, &loaded.layout), (&config, &layout));
        assert_eq!(numbers(&loaded.flat), numbers(&flat));
        // Over a folder that is there, with the tokenizer's files; nothing else stays behind.
        save(&other, &config, &layout, &init(&layout, 1).unwrap(), &Alongside::default()).unwrap();
        save(&other, &config, &layout, &loaded.flat, &Alongside::read(&folder).unwrap()).unwrap();
        assert!(other.join("tokenizer.json").exists());
        assert_eq!(load(&other, ValueHead::Present).unwrap().model_hash, loaded.model_hash);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2);
        // Without the critic the model is the same one.
        let plain = load(&other, ValueHead::None).unwrap();
        assert_eq!(plain.layout.entries.len() + 2, layout.entries.len());
        assert_eq!(plain.model_hash, loaded.model_hash);
        let other_weights = init(&layout, 9).unwrap();
        save(&base.path().join("third"), &config, &layout, &other_weights, &Alongside::default()).unwrap();
        assert_ne!(load(&base.path().join("third"), ValueHead::None).unwrap().model_hash, loaded.model_hash);
        fs::remove_dir_all(base.path().join("third")).unwrap();
        fs::remove_file(other.join(VALUE_HEAD)).unwrap();
        let fresh = load(&other, ValueHead::Present).unwrap();
        let head = fresh.layout.views(&fresh.flat).unwrap().pop().unwrap();
        assert_eq!(head.double_value(&[0]), 0.0);
    }
}

/// Splits a folder's one file in two shards and an index.
fn shard(folder: &Path) {
    let bytes = fs::read(folder.join(MODEL)).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let mut map = json!({});
    for (number, name) in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].iter().enumerate() {
        let part: Vec<_> = all.tensors().into_iter().enumerate().filter(|(i, _)| i % 2 == number).map(|(_, t)| t).collect();
        part.iter().for_each(|(tensor, _)| map[tensor] = json!(name));
        serialize_to_file(part, None, &folder.join(name)).unwrap();
    }
    fs::write(folder.join(INDEX), json!({ "weight_map": map }).to_string()).unwrap();
    fs::remove_file(folder.join(MODEL)).unwrap();
}

fn error_of(folder: &Path) -> String {
    let Err(error) = load(folder, ValueHead::None) else { panic!("{} loaded", folder.display()) };
    error.to_string()
}

#[test]
fn shards_are_one_model_and_a_missing_one_is_named() {
    let base = tempfile::tempdir().unwrap();
    let (config, folder) = (tiny(Family::Llama), base.path().join("m"));
    let layout = Layout::of(&config, ValueHead::None);
    let flat = spread(&layout, 3);
    save(&folder, &config, &layout, &flat, &Alongside::default()).unwrap();
    shard(&folder);
    assert_eq!(numbers(&load(&folder, ValueHead::None).unwrap().flat), numbers(&flat));
    fs::remove_file(folder.join("model-00002-of-00002.safetensors")).unwrap();
    let message = error_of(&folder);
    assert!(message.contains("index.json: shard model-00002-of-00002.safetensors, which has "), "{message}");
}

/// Rewrites a folder's weights, each tensor as (name, type, shape, bytes) or dropped.
fn rewrite(folder: &Path, change: impl Fn(&str, &mut Dtype, &mut Vec<usize>, &mut Vec<u8>) -> Option<String>) {
    let bytes = fs::read(folder.join(MODEL)).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let (mut dtype, mut shape, mut data) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        if let Some(name) = change(&name, &mut dtype, &mut shape, &mut data) {
            tensors.push((name, dtype, shape, data));
        }
    }
    let views = tensors.iter().map(|(n, t, s, d)| (n.clone(), TensorView::new(*t, s.clone(), d).unwrap()));
    serialize_to_file(views, None, &folder.join(MODEL)).unwrap();
}

#[test]
fn each_broken_folder_is_named() {
    const NORM: &str = "model.norm.weight";
    type Change = fn(&str, &mut Dtype, &mut Vec<usize>, &mut Vec<u8>) -> Option<String>;
    let cases: [(Change, &str); 5] = [
        (|n, _, _, _| (n != NORM).then(|| n.to_owned()), "m: tensor model.norm.weight is missing (1 of 21)"),
        (
            |n, _, shape, _| {
                if n == NORM {
                    *shape = vec![4, 8];
                }
                Some(n.to_owned())
            },
            "model.safetensors: tensor model.norm.weight: shape [4, 8] where the configuration gives [32]",
        ),
        (
            |n, dtype, _, _| {
                if n == NORM {
                    *dtype = Dtype::I32;
                }
                Some(n.to_owned())
            },
            "model.safetensors: tensor model.norm.weight: type I32, not BF16, F16 or F32",
        ),
        (
            |n, _, _, data| {
                if n == NORM {
                    data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
                }
                Some(n.to_owned())
            },
            "model.safetensors: tensor model.norm.weight: 1 of 32 numbers are NaN or infinite",
        ),
        (
            |n, _, _, _| Some(if n == NORM { "model.layers.0.self_attn.q_norm.weight".to_owned() } else { n.to_owned() }),
            "model.safetensors: tensor model.layers.0.self_attn.q_norm.weight is not of this model, or is there twice",
        ),
    ];
    let base = tempfile::tempdir().unwrap();
    let (config, folder) = (tiny(Family::Llama), base.path().join("m"));
    let layout = Layout::of(&config, ValueHead::None);
    for (change, right) in cases {
        save(&folder, &config, &layout, &init(&layout, 3).unwrap(), &Alongside::default()).unwrap();
        rewrite(&folder, change);
        let message = error_of(&folder);
        assert!(message.ends_with(right), "{message}");
    }
    fs::write(folder.join(MODEL), b"12345678 not it").unwrap();
    assert!(error_of(&folder).contains("model.safetensors: not safetensors: "));
    fs::remove_file(folder.join(MODEL)).unwrap();
    assert!(error_of(&folder).ends_with("m: neither model.safetensors nor model.safetensors.index.json"));
    assert!(error_of(base.path()).contains("it has no config.json: name a model's folder"));
}

/// A file of the header `json` and `data` numbers of 0.
fn raw(folder: &Path, header: &str, data: usize) {
    let size = (header.len() as u64).to_le_bytes();
    fs::write(folder.join(MODEL), [&size, header.as_bytes(), &vec![0; 4 * data]].concat()).unwrap();
}

/// Catches memory that is asked for because a file says so, and files that are taken in part.
#[test]
fn files_that_say_what_is_not_there_are_refused_by_their_headers() {
    let base = tempfile::tempdir().unwrap();
    let (config, folder) = (tiny(Family::Llama), base.path().join("m"));
    let layout = Layout::of(&config, ValueHead::None);
    save(&folder, &config, &layout, &init(&layout, 3).unwrap(), &Alongside::default()).unwrap();
    let whole = fs::read(folder.join(MODEL)).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for cut in [0, 7, 8, header - 1, header, header + 5, whole.len() - 1] {
        fs::write(folder.join(MODEL), &whole[..cut]).unwrap();
        let message = error_of(&folder);
        assert!(message.contains("model.safetensors: not safetensors: "), "{cut}: {message}");
    }
    fs::write(folder.join(MODEL), [&whole[..], &[0]].concat()).unwrap();
    assert!(error_of(&folder).contains(&format!("{} bytes where its header describes {}", whole.len() + 1, whole.len())));
    for size in [u64::MAX, 1 << 40, whole.len() as u64] {
        fs::write(folder.join(MODEL), [&size.to_le_bytes(), &whole[8..]].concat()).unwrap();
        assert!(error_of(&folder).contains(&format!("a header of {size} bytes in a file of {}", whole.len())));
    }
    let one = |start: usize, end: usize| format!(r#"{{"dtype":"F32","shape":[32],"data_offsets":[{start},{end}]}}"#);
    // The same name twice, with two places or one; a size that overflows; places that overlap.
    raw(&folder, &format!(r#"{{"model.norm.weight":{},"model.norm.weight":{}}}"#, one(0, 128), one(128, 256)), 64);
    assert!(error_of(&folder).contains("not safetensors: "));
    raw(&folder, &format!(r#"{{"model.norm.weight":{},"model.norm.weight":{}}}"#, one(0, 128), one(0, 128)), 32);
    assert!(error_of(&folder).contains("is missing (20 of 21)"), "{}", error_of(&folder));
    let huge = r#"{"model.norm.weight":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#;
    raw(&folder, huge, 0);
    assert!(error_of(&folder).contains("not safetensors: "), "{}", error_of(&folder));
    raw(&folder, &format!(r#"{{"model.norm.weight":{},"lm_head.weight":{}}}"#, one(0, 128), one(64, 192)), 48);
    assert!(error_of(&folder).contains("not safetensors: "));
    // A configuration of 2^60 numbers beside a file of some thousand.
    fs::write(folder.join(MODEL), &whole).unwrap();
    let mut json = config.to_json();
    for key in ["vocab_size", "hidden_size", "intermediate_size"] {
        json[key] = json!(1 << 20);
    }
    fs::write(folder.join(CONFIG), json.to_string()).unwrap();
    assert!(error_of(&folder).contains("where the configuration gives [1048576, 1048576]"), "{}", error_of(&folder));
}

/// Catches a shard's name that leads out of the folder.
#[test]
fn shards_are_files_of_the_folder() {
    let base = tempfile::tempdir().unwrap();
    let (config, folder) = (tiny(Family::Llama), base.path().join("m"));
    let layout = Layout::of(&config, ValueHead::None);
    save(&folder, &config, &layout, &spread(&layout, 3), &Alongside::default()).unwrap();
    fs::rename(folder.join(MODEL), base.path().join("outside.safetensors")).unwrap();
    let outside = base.path().join("outside.safetensors");
    for name in ["../outside.safetensors", "..", ".", "/", "a/b", outside.to_str().unwrap(), ""] {
        fs::write(folder.join(INDEX), json!({ "weight_map": { "model.norm.weight": name } }).to_string()).unwrap();
        let message = error_of(&folder);
        assert!(message.ends_with(&format!("weight_map.model.norm.weight = {name:?}: not a file's name")), "{message}");
    }
    // A link is the folder's own: caches of models are made of them.
    std::os::unix::fs::symlink(&outside, folder.join(MODEL)).unwrap();
    fs::remove_file(folder.join(INDEX)).unwrap();
    assert!(load(&folder, ValueHead::None).is_ok());
}

/// Made by `tests/peers/make_logits.py` with transformers.
#[test]
fn logits_are_those_of_transformers() {
    let golden = Path::new("data/golden/logits");
    for name in ["llama", "qwen2", "qwen2.5", "qwen3", "llama3", "linear"] {
        let folder = golden.join(name);
        let Loaded { config, layout, flat, notes, .. } = load(&folder, ValueHead::None).unwrap();
        assert_eq!(notes, [""; 0], "{name}");
        let model = Model::new(&config, &layout, &flat.to_device(device()), Form::Views).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&fs::read_to_string(folder.join("logits.json")).unwrap()).unwrap();
        assert_eq!(rows.len(), if config.max_position_embeddings == 64 { 3 } else { 1 });
        for row in rows {
            let tokens: Vec<u32> = serde_json::from_value(row["tokens"].clone()).unwrap();
            let right: Vec<Vec<f32>> = serde_json::from_value(row["logits"].clone()).unwrap();
            // Of a long sequence only the last ones are kept.
            let (from, length) = (row["from"].as_i64().unwrap_or(0), tokens.len() as i64);
            let hidden = model.hidden(&sequences(&[&tokens], device())).unwrap();
            let ours = model.logits(&hidden).unwrap().narrow(0, from, length - from);
            let right = Tensor::from_slice2(&right).to_device(device());
            assert_eq!(right.size(), [length - from, config.vocab_size]);
            let far = (ours - right).abs().max().double_value(&[]);
            assert!(far < 1e-4, "{name}: {far}");
        }
    }
}

/// Folders as tidegate saves them, with the logits it has for them; `tests/peers/check_saved.py` compares those with what
/// transformers makes of the folders, which are kept where the variable says.
#[test]
fn saved_folders_keep_their_logits() {
    const TOKENS: [u32; 24] = [3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 32, 38, 46, 26, 43, 38, 32, 7, 9, 5, 0, 28];
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("TIDEGATE_KEEP_SAVED").map(PathBuf::from);
    let base = kept.unwrap_or_else(|| temporary.path().to_owned());
    fs::create_dir_all(&base).unwrap();
    let mut biased = Config { attention_bias: true, mlp_bias: true, rope_theta: 1e6, ..tiny(Family::Llama) };
    biased.head_dim = 16;
    let llama3 = RopeScaling::Llama3 {
        factor: 4.0,
        low_freq_factor: 1.0,
        high_freq_factor: 3.0,
        original_max_position_embeddings: 20,
    };
    for (name, config) in [
        ("llama", tiny(Family::Llama)),
        ("llama-biased", biased),
        ("llama3", Config { rope_scaling: llama3, rope_theta: 100.0, ..tiny(Family::Llama) }),
        ("linear", Config { rope_scaling: RopeScaling::Linear { factor: 2.5 }, ..tiny(Family::Qwen2) }),
        ("qwen2", tiny(Family::Qwen2)),
        ("qwen3", tiny(Family::Qwen3)),
        ("qwen3-biased", Config { attention_bias: true, tie_word_embeddings: true, ..tiny(Family::Qwen3) }),
    ] {
        let layout = Layout::of(&config, ValueHead::Present);
        let logits = |flat: &Tensor| {
            let model = Model::new(&config, &layout, flat, Form::Views).unwrap();
            let hidden = model.hidden(&sequences(&[&TOKENS], Device::Cpu)).unwrap();
            Vec::<Vec<f32>>::try_from(model.logits(&hidden).unwrap()).unwrap()
        };
        let (flat, folder) = (spread(&layout, 8), base.join(name));
        save(&folder, &config, &layout, &flat, &Alongside::default()).unwrap();
        let ours = logits(&flat);
        assert_eq!(logits(&load(&folder, ValueHead::Present).unwrap().flat), ours);
        fs::write(folder.join("logits.json"), json!([{ "tokens": TOKENS, "logits": ours }]).to_string()).unwrap();
    }
}
