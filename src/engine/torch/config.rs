//! What a model is: the `config.json` of a Hugging Face folder, for the families tidegate runs.
//!
//! What changes the numbers and is not supported is refused by key and value, never ignored.

use crate::engine::text_file;
use crate::engine::torch::keys::{Keys, refuse_unsupported, unknown};
use crate::engine::torch::rope::RopeScaling;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The widest head that attention has scratch space for.
const WIDEST_HEAD: i64 = 1024;

/// What `model.path` names.
const FOLDER: &str = "a model's folder: config.json, model.safetensors, tokenizer.json";

/// A family of models: the same forward pass with different switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    Llama,
    /// Llama with biases on queries, keys and values.
    Qwen2,
    /// Llama with a norm on each head's queries and keys.
    Qwen3,
}

impl Family {
    fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

/// A model's shape. Fields have the names of `config.json`; sizes are in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub family: Family,
    pub vocab_size: i64,
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub num_hidden_layers: i64,
    pub num_attention_heads: i64,
    /// Heads that keys and values have; each serves `num_attention_heads / num_key_value_heads` query heads.
    pub num_key_value_heads: i64,
    pub head_dim: i64,
    /// Longest sequence, prompt and completion together, in tokens.
    pub max_position_embeddings: i64,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Biases on all four of the attention's projections (llama and qwen3; qwen2 always has those on the first three).
    pub attention_bias: bool,
    /// Llama only: biases on the MLP's projections.
    pub mlp_bias: bool,
    /// Ids that end a sequence; may be none.
    pub eos_token_id: Vec<u32>,
    pub bos_token_id: Option<u32>,
    pub pad_token_id: Option<u32>,
}

/// What a model folder's configuration says.
#[derive(Clone, Debug, PartialEq)]
pub struct Configured {
    pub config: Config,
    /// What a person should know of it, a sentence each.
    pub notes: Vec<String>,
}

/// Most bytes of a configuration: those in use are a thousandth of it.
const LARGEST: u64 = 16 << 20;

impl Config {
    /// Reads `config.json` of a model folder; where `generation_config.json` names ends of sequence, those count.
    ///
    /// # Errors
    /// A folder that is not there or has no `config.json`; a file that is not JSON; a key that is missing, or asks for what is not
    /// supported.
    pub fn load(folder: &Path) -> Result<Configured> {
        let path = folder.join("config.json");
        let missing = |what: &str| Error::config("model.path", folder.display(), format!("{what}: name {FOLDER}"));
        if !folder.is_dir() {
            return Err(missing("no such folder (nothing is downloaded)"));
        }
        let Some(text) = text_file::read_if_there(&path, LARGEST)? else { return Err(missing("it has no config.json")) };
        let keys = Keys::parse(&text, &path)?;
        let mut config = Config::of(&keys)?;
        let mut notes: Vec<String> = unknown(&keys, config.family).into_iter().collect();
        let path = folder.join("generation_config.json");
        if let Some(text) = text_file::read_if_there(&path, LARGEST)? {
            let keys = Keys::parse(&text, &path)?;
            if keys.get("eos_token_id").is_some() {
                config.eos_token_id = keys.ids("eos_token_id", config.vocab_size)?;
            }
        }
        if config.eos_token_id.is_empty() {
            let folder = folder.display();
            notes.push(format!("{folder}: no eos_token_id: nothing but a stop string or a limit ends a completion"));
        }
        Ok(Configured { config, notes })
    }

    /// The configuration in `text`; `path` is what errors name.
    ///
    /// # Errors
    /// As [`load`](Config::load).
    pub fn parse(text: &str, path: &Path) -> Result<Config> {
        Config::of(&Keys::parse(text, path)?)
    }

    fn of(keys: &Keys) -> Result<Config> {
        let family = match keys.get("model_type").and_then(Value::as_str) {
            Some("llama") => Family::Llama,
            Some("qwen2") => Family::Qwen2,
            Some("qwen3") => Family::Qwen3,
            _ => return Err(keys.refuse("model_type", "supported are \"llama\", \"qwen2\" and \"qwen3\"")),
        };
        refuse_unsupported(keys, family)?;
        let hidden_size = keys.size("hidden_size", 1 << 20)?;
        let heads = keys.size("num_attention_heads", 1 << 14)?;
        let vocab_size = keys.size("vocab_size", 1 << 24)?;
        let one_id = |key| Ok::<_, Error>(keys.ids(key, vocab_size)?.first().copied());
        let config = Config {
            family,
            vocab_size,
            hidden_size,
            intermediate_size: keys.size("intermediate_size", 1 << 22)?,
            num_hidden_layers: keys.size("num_hidden_layers", 1 << 12)?,
            num_attention_heads: heads,
            num_key_value_heads: keys.size_or("num_key_value_heads", 1 << 14, heads)?,
            head_dim: keys.size_or("head_dim", 1 << 14, if family == Family::Qwen3 { 128 } else { hidden_size / heads })?,
            max_position_embeddings: keys.size("max_position_embeddings", 1 << 21)?,
            rms_norm_eps: keys.number_or("rms_norm_eps", 1e-6)?,
            rope_theta: rope_theta(keys)?,
            rope_scaling: RopeScaling::of(keys)?,
            tie_word_embeddings: keys.flag_or("tie_word_embeddings", false)?,
            attention_bias: family != Family::Qwen2 && keys.flag_or("attention_bias", false)?,
            mlp_bias: family == Family::Llama && keys.flag_or("mlp_bias", false)?,
            eos_token_id: keys.ids("eos_token_id", vocab_size)?,
            bos_token_id: one_id("bos_token_id")?,
            pad_token_id: one_id("pad_token_id")?,
        };
        if config.num_attention_heads % config.num_key_value_heads != 0 {
            return Err(keys.refuse("num_key_value_heads", &format!("it must divide num_attention_heads = {heads}")));
        }
        if keys.get("head_dim").is_none() && family != Family::Qwen3 && hidden_size % heads != 0 {
            let why = format!("num_attention_heads = {heads} must divide it where there is no head_dim");
            return Err(keys.refuse("hidden_size", &why));
        }
        if config.head_dim % 2 != 0 {
            return Err(keys.refuse("head_dim", &format!("{} is odd, rotary embeddings need pairs", config.head_dim)));
        }
        if config.head_dim > WIDEST_HEAD {
            return Err(keys.refuse("head_dim", &format!("{} is too wide, at most {WIDEST_HEAD} is right", config.head_dim)));
        }
        Ok(config)
    }

    /// The `config.json` that transformers loads.
    pub fn to_json(&self) -> Value {
        let mut rope = self.rope_scaling.to_json();
        let scaling = if self.rope_scaling == RopeScaling::None { Value::Null } else { json!(rope) };
        rope.insert("rope_theta".to_owned(), json!(self.rope_theta));
        let mut json = json!({
            "architectures": [self.family.architecture()],
            "model_type": self.family.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            // Transformers 4 reads the first (and `rope_scaling`), 5 the second.
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
            "eos_token_id": match self.eos_token_id.as_slice() { [] => Value::Null, [id] => json!(id), ids => json!(ids) },
            "bos_token_id": self.bos_token_id,
            "pad_token_id": self.pad_token_id,
            "dtype": "float32",
            "torch_dtype": "float32",
        });
        if self.family != Family::Qwen2 {
            json["attention_bias"] = json!(self.attention_bias);
        }
        if self.family == Family::Llama {
            json["mlp_bias"] = json!(self.mlp_bias);
        }
        if !scaling.is_null() {
            json["rope_scaling"] = scaling;
        }
        json
    }
}

/// `rope_parameters.rope_theta` (transformers 5), else the top-level key, else the families' default.
fn rope_theta(keys: &Keys) -> Result<f64> {
    match keys.get("rope_parameters").and_then(|rope| rope.get("rope_theta")) {
        Some(theta) => theta.as_f64().ok_or_else(|| keys.refuse("rope_parameters", "rope_theta must be a number")),
        None => keys.number_or("rope_theta", 10_000.0),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A model of a few hundred numbers: untied llama, or tied qwen2, both with grouped keys and values.
    pub(crate) fn tiny(family: Family) -> Config {
        Config {
            family,
            vocab_size: 50,
            hidden_size: 32,
            intermediate_size: 48,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 8,
            max_position_embeddings: 64,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            tie_word_embeddings: family == Family::Qwen2,
            attention_bias: false,
            mlp_bias: false,
            eos_token_id: vec![2],
            bos_token_id: Some(1),
            pad_token_id: None,
        }
    }

    fn parse_with(key: &str, value: Value) -> Result<Config> {
        let mut json = tiny(Family::Llama).to_json();
        if key == "hidden_size" {
            json["head_dim"] = Value::Null;
        }
        json[key] = value;
        Config::parse(&json.to_string(), Path::new("m/config.json"))
    }

    #[test]
    fn what_is_written_is_read_back() {
        let factors = (8.0, 1.0, 4.0, 8192);
        let (factor, low_freq_factor, high_freq_factor, original_max_position_embeddings) = factors;
        let llama3 = RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings };
        let configs = [
            tiny(Family::Llama),
            tiny(Family::Qwen2),
            tiny(Family::Qwen3),
            Config { attention_bias: true, ..tiny(Family::Qwen3) },
            Config { rope_scaling: llama3, rope_theta: 5e5, ..tiny(Family::Llama) },
            Config { rope_scaling: RopeScaling::Linear { factor: 2.0 }, ..tiny(Family::Qwen2) },
        ];
        for config in configs {
            assert_eq!(Config::parse(&config.to_json().to_string(), Path::new("x")).unwrap(), config);
        }
    }

    #[test]
    fn defaults_are_the_familys() {
        let text = r#"{"model_type": "qwen2", "vocab_size": 9, "hidden_size": 32, "intermediate_size": 4,
            "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 8, "eos_token_id": [3, 4],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "pad_token_id": -1}"#;
        let config = Config::parse(text, Path::new("x")).unwrap();
        assert_eq!((config.num_key_value_heads, config.head_dim, config.rope_theta), (4, 8, 1e6));
        assert_eq!((config.eos_token_id, config.pad_token_id), (vec![3, 4], None));
    }

    #[test]
    fn unsupported_is_refused_by_key_and_value() {
        for (key, value) in [
            ("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0})),
            ("rope_parameters", json!({"rope_type": "yarn"})),
            ("model_type", json!("gemma")),
            ("hidden_act", json!("gelu")),
            ("use_sliding_window", json!(true)),
            ("layer_types", json!(["sliding_attention", "full_attention"])),
            ("quantization_config", json!({"bits": 4})),
            ("attention_dropout", json!(0.1)),
            ("num_key_value_heads", json!(3)),
            ("hidden_size", json!(-1)),
            ("vocab_size", Value::Null),
            ("tie_word_embeddings", json!("yes")),
            ("eos_token_id", json!([2, 50])),
            ("num_experts", json!(8)),
            ("num_local_experts", json!(2)),
            ("final_logit_softcapping", json!(30.0)),
            ("logits_scaling", json!(8.0)),
            ("no_rope_layers", json!([1, 0])),
            ("sliding_window", json!(4096)),
            ("dtype", json!("float8_e4m3fn")),
            ("torch_dtype", json!("int8")),
            ("rope_scaling", json!({"rope_type": "linear", "factor": -1})),
            ("num_hidden_layers", json!(1_000_000)),
            ("vocab_size", json!(2_000_000_000)),
            ("hidden_size", json!(33)),
            ("attention_bias", json!(1)),
        ] {
            let message = parse_with(key, value.clone()).unwrap_err().to_string();
            assert!(message.starts_with("m/config.json: "), "{message}");
            assert!(message.contains(&format!("{key} = {value}: ")), "{message}");
        }
        for (key, value) in [
            ("rope_scaling", Value::Null),
            ("attention_dropout", json!(0)),
            ("use_sliding_window", json!(false)),
            ("num_experts", json!(0)),
            ("final_logit_softcapping", Value::Null),
            ("logits_scaling", json!(1)),
            ("torch_dtype", json!("bfloat16")),
            ("anything_else", json!(7)),
        ] {
            assert!(parse_with(key, value).is_ok());
        }
    }

    /// Catches a key that nobody looked at, and a model without an end, of which nothing is said.
    #[test]
    fn what_is_not_looked_at_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let notes = |family, changes: Value| -> Vec<String> {
            let mut json = tiny(family).to_json();
            changes.as_object().unwrap().iter().for_each(|(key, value)| json[key] = value.clone());
            std::fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
            Config::load(folder.path()).unwrap().notes
        };
        assert_eq!(notes(Family::Llama, json!({"use_cache": true, "transformers_version": "5"})), [""; 0]);
        assert_eq!(notes(Family::Qwen2, json!({"sliding_window": 4096, "max_window_layers": 2})), [""; 0]);
        let found = notes(Family::Llama, json!({"zeta": 2, "alpha": [1], "nothing": null}));
        assert!(found.len() == 1 && found[0].contains("config.json: not looked at: alpha, zeta; "), "{found:?}");
        let found = notes(Family::Qwen2, json!({"attention_bias": false}));
        assert!(found.len() == 1 && found[0].contains("not looked at: attention_bias; "), "{found:?}");
        assert_eq!(notes(Family::Qwen3, json!({"sliding_window": 4096, "attention_bias": true})), [""; 0]);
        let found = notes(Family::Qwen3, json!({"mlp_bias": false}));
        assert!(found.len() == 1 && found[0].contains("not looked at: mlp_bias; "), "{found:?}");
        let found = notes(Family::Llama, json!({"eos_token_id": null}));
        assert!(found.len() == 1 && found[0].contains("no eos_token_id: "), "{found:?}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_the_keys_fault() {
        for (folder, says) in [("no/such", "no such folder"), ("data", "it has no config.json")] {
            let error = Config::load(Path::new(folder)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().starts_with("model.path = ") && error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn the_generation_config_says_what_ends_a_sequence() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), tiny(Family::Llama).to_json().to_string()).unwrap();
        assert_eq!(Config::load(folder.path()).unwrap().config.eos_token_id, [2]);
        let path = folder.path().join("generation_config.json");
        std::fs::write(&path, r#"{"eos_token_id": [7, 2], "temperature": 0.6}"#).unwrap();
        assert_eq!(Config::load(folder.path()).unwrap().config.eos_token_id, [7, 2]);
        std::fs::write(&path, r#"{"eos_token_id": "</s>"}"#).unwrap();
        let message = Config::load(folder.path()).unwrap_err().to_string();
        assert!(
            message
                .ends_with(r#"generation_config.json: eos_token_id = "</s>": ids must be integers below vocab_size = 50"#)
        );
    }
}
