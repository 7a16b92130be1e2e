//! The keys of a model's `config.json`: which are read, which are refused, which are passed over, and how a value is read.

use crate::engine::torch::config::Family;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Keys that change the numbers, with the only value that the forward pass here is right for (null and absent are too).
fn only() -> [(&'static str, Value); 12] {
    [
        ("hidden_act", json!("silu")),
        ("use_sliding_window", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("pretraining_tp", json!(1)),
        ("partial_rotary_factor", json!(1.0)),
        ("rope_interleaved", json!(false)),
        ("quantization_config", Value::Null),
        ("logit_scale", json!(1.0)),
        ("logits_scaling", json!(1.0)),
        ("embedding_multiplier", json!(1.0)),
        ("residual_multiplier", json!(1.0)),
        ("scale_emb", json!(1.0)),
    ]
}

/// Keys of what this forward pass does not have, which are right where they switch it off: null, false, 0, an empty list.
const OFF: [&str; 15] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "qk_norm",
    "use_qk_norm",
    "clip_qkv",
    "attention_chunk_size",
    "no_rope_layers",
    "q_lora_rank",
    "kv_lora_rank",
    "use_parallel_residual",
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
const HARMLESS: [&str; 31] = [
    "_attn_implementation",
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
