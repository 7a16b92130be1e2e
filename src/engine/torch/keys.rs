//! The keys of a model's `config.json`: which are read, which are refused, which are passed over, and how a value is read.

use crate::engine::torch::config::Family;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Keys that change the numbers, with the only value that the forward pass here is right for (null and absent are too).
fn only() -> [(&'static str, Value); 23] {
    [
        ("hidden_act", json!("silu")),
        ("hidden_activation", json!("silu")),
        ("activation", json!("silu")),
        ("use_sliding_window", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("embd_pdrop", json!(0.0)),
        ("embedding_dropout", json!(0.0)),
        ("hidden_dropout", json!(0.0)),
        ("resid_pdrop", json!(0.0)),
        ("residual_dropout", json!(0.0)),
        ("pretraining_tp", json!(1)),
        ("partial_rotary_factor", json!(1.0)),
        ("rope_interleaved", json!(false)),
        ("quantization_config", Value::Null),
        ("logit_scale", json!(1.0)),
        ("logits_scaling", json!(1.0)),
        ("embedding_multiplier", json!(1.0)),
        ("residual_multiplier", json!(1.0)),
        ("attention_in_multiplier", json!(1.0)),
        ("attention_out_multiplier", json!(1.0)),
        ("key_multiplier", json!(1.0)),
        ("lm_head_multiplier", json!(1.0)),
        ("scale_emb", json!(1.0)),
    ]
}

/// Keys of what this forward pass does not have, which are right where they switch it off: null, false, 0, an empty list.
const OFF: [&str; 39] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "qk_norm",
    "use_qk_norm",
    "qk_layernorm",
    "clip_qkv",
    "attention_chunk_size",
    "attn_temperature_tuning",
    "no_rope_layers",
    "no_rope_layer_interval",
    "sliding_window_pattern",
    "rope_local_base_freq",
    "use_mrope",
    "q_lora_rank",
    "kv_lora_rank",
    "use_parallel_residual",
    "parallel_attn",
    "alibi",
    "bias",
    "use_bias",
    "qkv_bias",
    "use_qkv_bias",
    "add_qkv_bias",
    "attention_out_bias",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "norm_eps",
    "scale_depth",
    "dim_model_base",
    "use_bidirectional_attention",
    "num_nextn_predict_layers",
];

/// Keys that are read.
const READ: [&str; 23] = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    "sliding_window",
];

/// Keys that do not change the numbers: where the model comes from, how it starts, how other programs run it.
const HARMLESS: [&str; 32] = [
    "_attn_implementation",
    "_model_name_or_path",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "auto_map",
    "chunk_size_feed_forward",
    "do_sample",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "max_length",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// A sentence about the keys that are neither read nor known to be harmless.
pub(super) fn unknown(keys: &Keys, family: Family) -> Option<String> {
    let only = only();
    let known = |key: &str| {
        let not_read = match family {
            Family::Llama => false,
            Family::Qwen2 => ["attention_bias", "mlp_bias"].contains(&key),
            Family::Qwen3 => key == "mlp_bias",
        };
        only.iter().any(|(name, _)| *name == key)
            || OFF.contains(&key)
            || HARMLESS.contains(&key)
            || (READ.contains(&key) && !not_read)
    };
    let names = keys.map.keys().filter(|key| keys.get(key).is_some() && !known(key)).map(String::as_str);
    let names: Vec<&str> = names.collect();
    let path = keys.path.display();
    (!names.is_empty()).then(|| {
        format!(
            "{path}: not looked at: {}; should it change what the model computes, tidegate is wrong for it",
            names.join(", ")
        )
    })
}

/// Refuses what the forward pass here does not compute.
///
/// # Errors
/// The key and its value.
pub(super) fn refuse_unsupported(keys: &Keys, family: Family) -> Result<()> {
    for (key, value) in &only() {
        let same = |v: &Value| v == value || (v.as_f64().is_some() && v.as_f64() == value.as_f64());
        if keys.get(key).is_some_and(|v| !same(v)) {
            let right = if value.is_null() { "not supported".to_owned() } else { format!("only {value} is supported") };
            return Err(keys.refuse(key, &right));
        }
    }
    let off = |v: &Value| *v == json!(false) || v.as_f64() == Some(0.0) || *v == json!([]);
    if let Some(key) = OFF.into_iter().find(|key| keys.get(key).is_some_and(|v| !off(v))) {
        return Err(keys.refuse(key, "not supported"));
    }
    // Qwen 2 and 3 name a window that it does not use unless `use_sliding_window` says so.
    if family == Family::Llama && keys.get("sliding_window").is_some() {
        return Err(keys.refuse("sliding_window", "not supported"));
    }
    for key in ["dtype", "torch_dtype"] {
        let types = ["float32", "float16", "bfloat16", "auto"];
        if keys.get(key).is_some_and(|v| !types.iter().any(|name| v == name)) {
            return Err(keys.refuse(key, "supported are \"float32\", \"float16\" and \"bfloat16\""));
        }
    }
    let full = |v: &Value| v.as_array().is_some_and(|all| all.iter().all(|kind| kind == "full_attention"));
    if keys.get("layer_types").is_some_and(|v| !full(v)) {
        return Err(keys.refuse("layer_types", "only \"full_attention\" layers are supported"));
    }
    Ok(())
}

/// A JSON object, read key by key with errors that name the file, the key and the value.
pub(super) struct Keys {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Keys {
    pub(super) fn parse(text: &str, path: &Path) -> Result<Keys> {
        let map = serde_json::from_str(text).map_err(|e| Error::file(path, format!("not a JSON object: {e}")))?;
        Ok(Keys { path: path.to_owned(), map })
    }

    /// The key's value; null is the same as absent.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn refuse(&self, key: &str, right: &str) -> Error {
        let value = self.map.get(key).map_or("absent".to_owned(), Value::to_string);
        Error::file(&self.path, format!("{key} = {value}: {right}"))
    }

    /// Beyond `most` a size is a slip, and products of several might overflow.
    pub(super) fn size(&self, key: &str, most: i64) -> Result<i64> {
        let size = self.get(key).and_then(Value::as_i64).filter(|n| (1..=most).contains(n));
        size.ok_or_else(|| self.refuse(key, &format!("it must be an integer from 1 to {most}")))
    }

    pub(super) fn size_or(&self, key: &str, most: i64, default: i64) -> Result<i64> {
        if self.get(key).is_some() { self.size(key, most) } else { Ok(default) }
    }

    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        let number = self.get(key).map_or(Some(default), Value::as_f64).filter(|x| x.is_finite() && *x > 0.0);
        number.ok_or_else(|| self.refuse(key, "it must be a positive number"))
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        let flag = self.get(key).map_or(Some(default), Value::as_bool);
        flag.ok_or_else(|| self.refuse(key, "it must be true or false"))
    }

    /// One id or a list of them; -1 is seen for "none".
    pub(super) fn ids(&self, key: &str, vocab_size: i64) -> Result<Vec<u32>> {
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
mod tests {
    use super::*;
    use crate::engine::torch::config::Config;

    fn parsed(json: &Value) -> Result<Config> {
        Config::parse(&json.to_string(), Path::new("m/config.json"))
    }

    fn with(base: &Value, changes: &Value) -> Value {
        let mut json = base.clone();
        changes.as_object().unwrap().iter().for_each(|(key, value)| json[key] = value.clone());
        json
    }

    /// Llama 3.1 8B Instruct's.
    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128_000,
            "eos_token_id": [128_001, 128_008, 128_009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
            "intermediate_size": 14336, "max_position_embeddings": 131_072, "mlp_bias": false, "model_type": "llama",
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
            "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
            "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128_256,
            "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        })
    }

    /// Qwen 3 0.6B's.
    fn qwen() -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151_643,
            "eos_token_id": 151_645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
            "intermediate_size": 3072, "max_position_embeddings": 40_960, "max_window_layers": 28, "model_type": "qwen3",
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
            "rope_scaling": null, "rope_theta": 1_000_000, "sliding_window": null, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
            "vocab_size": 151_936,
        })
    }

    /// What is published is taken without a word: Llama 3.1 and 3.2, SmolLM 2, Qwen 2.5 and 3, as transformers 4 and 5 write them.
    #[test]
    fn published_configurations_are_known_whole() {
        let smollm = json!({
            "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 576, "initializer_range": 0.041_666, "intermediate_size": 1536,
            "is_llama_config": true, "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
            "num_key_value_heads": 3, "pad_token_id": 2, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 1e5,
            "tie_word_embeddings": true, "vocab_size": 49152, "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        });
        let qwen25 = json!({
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": null, "hidden_size": 896,
            "num_attention_heads": 14, "num_key_value_heads": 2, "sliding_window": 32_768, "use_mrope": false,
            "attention_bias": null,
        });
        let five = json!({
            "dtype": "bfloat16", "torch_dtype": null, "rope_scaling": null, "rope_theta": null, "layer_types": ["full_attention"],
            "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
        });
        let small = json!({"head_dim": 64, "hidden_size": 2048, "tie_word_embeddings": true});
        for json in
            [llama(), with(&llama(), &small), with(&llama(), &smollm), with(&qwen(), &qwen25), qwen(), with(&qwen(), &five)]
        {
            let config = parsed(&json).unwrap();
            let keys = Keys::parse(&json.to_string(), Path::new("m")).unwrap();
            assert_eq!(unknown(&keys, config.family), None);
            assert_eq!(parsed(&config.to_json()).unwrap(), config);
        }
        assert_eq!(parsed(&with(&qwen(), &five)).unwrap(), parsed(&qwen()).unwrap());
        // Where a Qwen 3 says nothing its heads have 128 numbers, whatever hidden_size / heads is.
        assert_eq!(parsed(&with(&qwen(), &json!({"head_dim": null}))).unwrap().head_dim, 128);
    }

    /// Catches a model of another family that says it is a llama, as many do, and asks for more.
    #[test]
    fn what_other_families_ask_for_is_refused_by_name() {
        let others = [
            "smollm3",
            "mistral",
            "mixtral",
            "phi3",
            "gemma2",
            "gemma3_text",
            "olmo2",
            "qwen3_moe",
            "qwen3_next",
            "granite",
            "cohere2",
            "deepseek_v3",
            "glm4",
            "stablelm",
            "falcon_h1",
            "gpt_oss",
            "llama4_text",
            "nemotron",
            "",
        ];
        for family in others {
            let message = parsed(&with(&llama(), &json!({ "model_type": family }))).unwrap_err().to_string();
            let right = format!("model_type = {family:?}: supported are \"llama\", \"qwen2\" and \"qwen3\"");
            assert_eq!(message, format!("m/config.json: {right}"));
        }
        for (whose, key, value) in [
            ("smollm3", "no_rope_layers", json!([1, 1, 1, 0])),
            ("smollm3", "no_rope_layer_interval", json!(4)),
            ("mistral", "sliding_window", json!(4096)),
            ("phi3", "partial_rotary_factor", json!(0.5)),
            ("phi3", "resid_pdrop", json!(0.1)),
            ("phi3", "rope_scaling", json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})),
            ("gemma2", "hidden_activation", json!("gelu_pytorch_tanh")),
            ("gemma2", "query_pre_attn_scalar", json!(256)),
            ("gemma2", "attn_logit_softcapping", json!(50.0)),
            ("gemma3", "rope_local_base_freq", json!(10_000.0)),
            ("gemma3", "sliding_window_pattern", json!(6)),
            ("olmo", "clip_qkv", json!(8.0)),
            ("granite", "attention_multiplier", json!(0.015_625)),
            ("granite", "residual_multiplier", json!(0.22)),
            ("cohere", "logit_scale", json!(0.0625)),
            ("cohere", "layer_norm_eps", json!(1e-5)),
            ("stablelm", "use_qkv_bias", json!(true)),
            ("stablelm", "qk_layernorm", json!(true)),
            ("minicpm", "scale_depth", json!(1.4)),
            ("qwen2 moe", "num_experts_per_tok", json!(4)),
            ("qwen2 vl", "use_mrope", json!(true)),
            ("deepseek", "kv_lora_rank", json!(512)),
            ("llama 4", "attn_temperature_tuning", json!(true)),
            ("exaone", "layer_types", json!(["full_attention", "sliding_attention"])),
        ] {
            let message = parsed(&with(&llama(), &json!({ key: value }))).unwrap_err().to_string();
            assert!(message.starts_with(&format!("m/config.json: {key} = {value}: ")), "{whose}: {message}");
        }
        // The same keys where they switch it off.
        let off = json!({"no_rope_layers": [], "sliding_window": null, "use_qkv_bias": false, "num_experts": 0, "resid_pdrop": 0.0});
        assert!(parsed(&with(&llama(), &off)).is_ok());
    }
}
