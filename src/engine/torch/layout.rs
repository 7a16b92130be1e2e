//! Where each tensor of a model lies in one flat buffer.
//!
//! One buffer, tensors as views: a snapshot is one copy, the optimizer is a few operations over one tensor, a norm is one
//! norm. Names and shapes are those of the checkpoint.

use crate::engine::torch::config::{Config, Family};
use crate::error::Result;
use tch::Tensor;

/// Tensors start at multiples of this many elements (64 bytes in f32), as libtorch's own allocations do.
const ALIGN: i64 = 16;

/// Whether the model has a critic: a linear head on the last hidden state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueHead {
    #[default]
    None,
    Present,
}

/// One tensor of the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As in the checkpoint, `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    pub shape: Vec<i64>,
    /// First element, and how many.
    pub offset: i64,
    pub len: i64,
}

/// All tensors of a model, in the order of the buffer. The value head, if there is one, comes last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub entries: Vec<Entry>,
    /// Elements of the buffer: the tensors, and gaps of a few zeros that align them.
    pub total: i64,
}

impl Layout {
    /// The layout of `config`'s model.
    pub fn of(config: &Config, value_head: ValueHead) -> Layout {
        let mut layout = Layout { entries: Vec::new(), total: 0 };
        let (d, head) = (config.hidden_size, config.head_dim);
        layout.push("model.embed_tokens.weight", &[config.vocab_size, d]);
        let (qkv_bias, o_bias) = match config.family {
            Family::Llama | Family::Qwen3 => (config.attention_bias, config.attention_bias),
            Family::Qwen2 => (true, false),
        };
        for l in 0..config.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{l}.{part}");
            let (heads, kv_heads) = (config.num_attention_heads * head, config.num_key_value_heads * head);
            layout.push(&at("input_layernorm.weight"), &[d]);
            layout.linear(&at("self_attn.q_proj"), heads, d, qkv_bias);
            layout.linear(&at("self_attn.k_proj"), kv_heads, d, qkv_bias);
            layout.linear(&at("self_attn.v_proj"), kv_heads, d, qkv_bias);
            layout.linear(&at("self_attn.o_proj"), d, heads, o_bias);
            if config.family == Family::Qwen3 {
                layout.push(&at("self_attn.q_norm.weight"), &[head]);
                layout.push(&at("self_attn.k_norm.weight"), &[head]);
            }
            layout.push(&at("post_attention_layernorm.weight"), &[d]);
            layout.linear(&at("mlp.gate_proj"), config.intermediate_size, d, config.mlp_bias);
            layout.linear(&at("mlp.up_proj"), config.intermediate_size, d, config.mlp_bias);
            layout.linear(&at("mlp.down_proj"), d, config.intermediate_size, config.mlp_bias);
        }
        layout.push("model.norm.weight", &[d]);
        if !config.tie_word_embeddings {
            layout.push("lm_head.weight", &[config.vocab_size, d]);
        }
        if value_head == ValueHead::Present {
            layout.linear("value_head", 1, d, true);
        }
        layout
    }

    fn linear(&mut self, name: &str, rows: i64, columns: i64, bias: bool) {
        self.push(&format!("{name}.weight"), &[rows, columns]);
        if bias {
            self.push(&format!("{name}.bias"), &[rows]);
        }
    }

    fn push(&mut self, name: &str, shape: &[i64]) {
        let len = shape.iter().product();
        self.entries.push(Entry { name: name.to_owned(), shape: shape.to_vec(), offset: self.total, len });
        self.total = (self.total + len + ALIGN - 1) / ALIGN * ALIGN;
    }

    /// How many numbers the model has.
    pub fn parameters(&self) -> i64 {
        self.entries.iter().map(|entry| entry.len).sum()
    }

    /// Whether the model has a critic.
    pub fn value_head(&self) -> ValueHead {
        let present = self.entries.iter().any(|entry| entry.is_value_head());
        if present { ValueHead::Present } else { ValueHead::None }
    }

    /// One view on `flat` (`[total]`) for each entry, in order, sharing its memory.
    ///
    /// # Errors
    /// A buffer of another length.
    pub fn views(&self, flat: &Tensor) -> Result<Vec<Tensor>> {
        let view = |entry: &Entry| Ok(flat.f_narrow(0, entry.offset, entry.len)?.f_view(entry.shape.as_slice())?);
        self.entries.iter().map(view).collect()
    }
}

impl Entry {
    /// Whether it is of the critic, which other programs' checkpoints do not have.
    pub fn is_value_head(&self) -> bool {
        self.name.starts_with("value_head.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::config::tests::tiny;
    use tch::{Device, Kind};

    #[test]
    fn views_tile_the_buffer_without_overlap() {
        let layout = Layout::of(&tiny(Family::Qwen2), ValueHead::Present);
        let flat = Tensor::zeros([layout.total], (Kind::Float, Device::Cpu));
        for mut view in layout.views(&flat).unwrap() {
            let _ = view.f_add_scalar_(1.0).unwrap();
        }
        // Each element belongs to one tensor at most, and the gaps stay zero.
        assert_eq!(flat.max().double_value(&[]), 1.0);
        assert_eq!(flat.sum(Kind::Double).double_value(&[]), layout.parameters() as f64);
        assert_eq!(layout.entries.last().unwrap().name, "value_head.bias");
        assert!(layout.entries.iter().all(|entry| entry.offset % ALIGN == 0));
    }

    #[test]
    fn names_are_the_familys() {
        let names = |family| -> Vec<String> {
            Layout::of(&tiny(family), ValueHead::None).entries.into_iter().map(|entry| entry.name).collect()
        };
        let (llama, qwen, qwen3) = (names(Family::Llama), names(Family::Qwen2), names(Family::Qwen3));
        assert!(llama.contains(&"lm_head.weight".to_owned()) && !qwen.contains(&"lm_head.weight".to_owned()));
        assert!(qwen.contains(&"model.layers.1.self_attn.k_proj.bias".to_owned()));
        assert!(!qwen.contains(&"model.layers.1.self_attn.o_proj.bias".to_owned()));
        assert_eq!((llama.len(), qwen.len()), (1 + 2 * 9 + 2, 1 + 2 * 12 + 1));
        assert_eq!(qwen3.len(), 1 + 2 * 11 + 2);
        assert_eq!(qwen3[6..8], ["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight"]);
        let biased = Config { attention_bias: true, ..tiny(Family::Qwen3) };
        assert_eq!(Layout::of(&biased, ValueHead::None).entries.len(), 1 + 2 * 15 + 2);
        let biased = Config { attention_bias: true, mlp_bias: true, ..tiny(Family::Llama) };
        assert_eq!(Layout::of(&biased, ValueHead::None).entries.len(), 1 + 2 * 16 + 2);
    }
}
