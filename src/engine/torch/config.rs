//! What a model is: the `config.json` of a Hugging Face folder, for the families tidegate runs.
//!
//! What changes the numbers and is not supported is refused by key and value, never ignored.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A family of models: the same forward pass with different switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    /// Llama with biases on queries, keys and values.
    Qwen2,
}

impl Family {
    fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
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
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Llama only: biases on the attention's, or the MLP's, projections.
    pub attention_bias: bool,
    pub mlp_bias: bool,
    /// Ids that end a sequence; may be none.
    pub eos_token_id: Vec<u32>,
    pub bos_token_id: Option<u32>,
    pub pad_token_id: Option<u32>,
}

impl Config {
    /// Reads `config.json` of a model folder; where `generation_config.json` names ends of sequence, those count.
    ///
    /// # Errors
    /// A file that is not there or not JSON; a key that is missing, or asks for what is not supported.
    pub fn load(folder: &Path) -> Result<Config> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
        let mut config = Config::parse(&text, &path)?;
        let path = folder.join("generation_config.json");
        if path.exists() {
            let text = std::fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
            let keys = Keys::parse(&text, &path)?;
            if keys.get("eos_token_id").is_some() {
                config.eos_token_id = keys.ids("eos_token_id", config.vocab_size)?;
            }
        }
        Ok(config)
    }

    /// The configuration in `text`; `path` is what errors name.
    ///
    /// # Errors
    /// As [`load`](Config::load).
    pub fn parse(text: &str, path: &Path) -> Result<Config> {
        let keys = Keys::parse(text, path)?;
        let family = match keys.get("model_type").and_then(Value::as_str) {
            Some("llama") => Family::Llama,
            Some("qwen2") => Family::Qwen2,
            _ => return Err(keys.refuse("model_type", "supported are \"llama\" and \"qwen2\"")),
        };
        refuse_unsupported(&keys)?;
        let hidden_size = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let vocab_size = keys.size("vocab_size")?;
        let one_id = |key| Ok::<_, Error>(keys.ids(key, vocab_size)?.first().copied());
        let config = Config {
            family,
            vocab_size,
            hidden_size,
            intermediate_size: keys.size("intermediate_size")?,
            num_hidden_layers: keys.size("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: keys.size_or("num_key_value_heads", heads)?,
            head_dim: keys.size_or("head_dim", hidden_size / heads)?,
            max_position_embeddings: keys.size("max_position_embeddings")?,
            rms_norm_eps: keys.number_or("rms_norm_eps", 1e-6)?,
            rope_theta: rope_theta(&keys)?,
            tie_word_embeddings: keys.flag_or("tie_word_embeddings", false)?,
            attention_bias: family == Family::Llama && keys.flag_or("attention_bias", false)?,
            mlp_bias: family == Family::Llama && keys.flag_or("mlp_bias", false)?,
            eos_token_id: keys.ids("eos_token_id", vocab_size)?,
            bos_token_id: one_id("bos_token_id")?,
            pad_token_id: one_id("pad_token_id")?,
        };
        if config.num_attention_heads % config.num_key_value_heads != 0 {
            return Err(keys.refuse("num_key_value_heads", &format!("it must divide num_attention_heads = {heads}")));
        }
        if config.head_dim % 2 != 0 {
            return Err(keys.refuse("head_dim", &format!("{} is odd, rotary embeddings need pairs", config.head_dim)));
        }
        Ok(config)
    }

    /// The `config.json` that transformers loads.
    pub fn to_json(&self) -> Value {
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
            // Transformers 4 reads the first, 5 the second.
            "rope_theta": self.rope_theta,
            "rope_parameters": { "rope_type": "default", "rope_theta": self.rope_theta },
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
            "eos_token_id": match self.eos_token_id.as_slice() { [] => Value::Null, [id] => json!(id), ids => json!(ids) },
            "bos_token_id": self.bos_token_id,
            "pad_token_id": self.pad_token_id,
            "dtype": "float32",
            "torch_dtype": "float32",
        });
        if self.family == Family::Llama {
            json["attention_bias"] = json!(self.attention_bias);
            json["mlp_bias"] = json!(self.mlp_bias);
        }
        json
    }
}

/// Keys that change the numbers, with the only value that the forward pass here is right for (null and absent are too).
fn refuse_unsupported(keys: &Keys) -> Result<()> {
    let only = [
        ("hidden_act", json!("silu")),
        ("use_sliding_window", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("pretraining_tp", json!(1)),
        ("partial_rotary_factor", json!(1.0)),
        ("rope_interleaved", json!(false)),
        ("quantization_config", Value::Null),
    ];
    for (key, value) in &only {
        let same = |v: &Value| v == value || (v.as_f64().is_some() && v.as_f64() == value.as_f64());
        if keys.get(key).is_some_and(|v| !same(v)) {
            let right = if value.is_null() { "not supported".to_owned() } else { format!("only {value} is supported") };
            return Err(keys.refuse(key, &right));
        }
    }
    let full = |v: &Value| v.as_array().is_some_and(|all| all.iter().all(|kind| kind == "full_attention"));
    if keys.get("layer_types").is_some_and(|v| !full(v)) {
        return Err(keys.refuse("layer_types", "only \"full_attention\" layers are supported"));
    }
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = keys.get(key) else { continue };
        let kind = rope.get("rope_type").or_else(|| rope.get("type"));
        let whole = rope.get("partial_rotary_factor").is_none_or(|v| v.is_null() || v.as_f64() == Some(1.0));
        if !rope.is_object() || kind.is_some_and(|kind| kind != "default") || !whole {
            return Err(keys.refuse(key, "only the \"default\" rope_type over whole heads is supported"));
        }
    }
    Ok(())
}

/// `rope_parameters.rope_theta` (transformers 5), else the top-level key, else the families' default.
fn rope_theta(keys: &Keys) -> Result<f64> {
    match keys.get("rope_parameters").and_then(|rope| rope.get("rope_theta")) {
        Some(theta) => theta.as_f64().ok_or_else(|| keys.refuse("rope_parameters", "rope_theta must be a number")),
        None => keys.number_or("rope_theta", 10_000.0),
    }
}

/// A JSON object, read key by key with errors that name the file, the key and the value.
struct Keys {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Keys {
    fn parse(text: &str, path: &Path) -> Result<Keys> {
        let map = serde_json::from_str(text).map_err(|e| Error::file(path, format!("not a JSON object: {e}")))?;
        Ok(Keys { path: path.to_owned(), map })
    }

    /// The key's value; null is the same as absent.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn refuse(&self, key: &str, right: &str) -> Error {
        let value = self.map.get(key).map_or("absent".to_owned(), Value::to_string);
        Error::file(&self.path, format!("{key} = {value}: {right}"))
    }

    fn size(&self, key: &str) -> Result<i64> {
        let size = self.get(key).and_then(Value::as_i64).filter(|&n| n > 0 && n < 1 << 31);
        size.ok_or_else(|| self.refuse(key, "it must be a positive integer"))
    }

    fn size_or(&self, key: &str, default: i64) -> Result<i64> {
        if self.get(key).is_some() { self.size(key) } else { Ok(default) }
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        let number = self.get(key).map_or(Some(default), Value::as_f64).filter(|x| x.is_finite() && *x > 0.0);
        number.ok_or_else(|| self.refuse(key, "it must be a positive number"))
    }

    fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        let flag = self.get(key).map_or(Some(default), Value::as_bool);
        flag.ok_or_else(|| self.refuse(key, "it must be true or false"))
    }

    /// One id or a list of them; -1 is seen for "none".
    fn ids(&self, key: &str, vocab_size: i64) -> Result<Vec<u32>> {
        let list = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.clone(),
            Some(one) => vec![one.clone()],
        };
        let id = |value: &Value| value.as_i64().filter(|id| (-1..vocab_size).contains(id));
        let ids: Option<Vec<i64>> = list.iter().map(id).collect();
        let ids = ids.ok_or_else(|| self.refuse(key, &format!("ids must be integers below vocab_size = {vocab_size}")))?;
        Ok(ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect())
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
        json[key] = value;
        Config::parse(&json.to_string(), Path::new("m/config.json"))
    }

    #[test]
    fn what_is_written_is_read_back() {
        for family in [Family::Llama, Family::Qwen2] {
            let config = tiny(family);
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
        ] {
            let message = parse_with(key, value.clone()).unwrap_err().to_string();
            assert!(message.starts_with("m/config.json: "), "{message}");
            assert!(message.contains(&format!("{key} = {value}: ")), "{message}");
        }
        for (key, value) in
            [("rope_scaling", Value::Null), ("attention_dropout", json!(0)), ("use_sliding_window", json!(false))]
        {
            assert!(parse_with(key, value).is_ok());
        }
    }

    #[test]
    fn the_generation_config_says_what_ends_a_sequence() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), tiny(Family::Llama).to_json().to_string()).unwrap();
        assert_eq!(Config::load(folder.path()).unwrap().eos_token_id, [2]);
        let path = folder.path().join("generation_config.json");
        std::fs::write(&path, r#"{"eos_token_id": [7, 2], "temperature": 0.6}"#).unwrap();
        assert_eq!(Config::load(folder.path()).unwrap().eos_token_id, [7, 2]);
        std::fs::write(&path, r#"{"eos_token_id": "</s>"}"#).unwrap();
        let message = Config::load(folder.path()).unwrap_err().to_string();
        assert!(
            message
                .ends_with(r#"generation_config.json: eos_token_id = "</s>": ids must be integers below vocab_size = 50"#)
        );
    }
}
