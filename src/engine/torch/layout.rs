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
    /// The checkpoint's tensors.
    pub entries: Vec<Entry>,
    /// What the model computes with: the entries, where those that are one product lie side by side as one (`qkv_proj`,
    /// `gate_up_proj`).
    pub parts: Vec<Entry>,
    /// Elements of the buffer: the tensors, and gaps of a few zeros that align them.
    pub total: i64,
}

impl Layout {
    /// The layout of `config`'s model.
    pub fn of(config: &Config, value_head: ValueHead) -> Layout {
        let mut layout = Layout { entries: Vec::new(), parts: Vec::new(), total: 0 };
        let (d, head, wide) = (config.hidden_size, config.head_dim, config.intermediate_size);
        layout.tensor("model.embed_tokens.weight", &[config.vocab_size, d]);
        let (qkv_bias, o_bias) = match config.family {
            Family::Llama | Family::Qwen3 => (config.attention_bias, config.attention_bias),
            Family::Qwen2 => (true, false),
        };
        let (heads, kv_heads) = (config.num_attention_heads * head, config.num_key_value_heads * head);
        for l in 0..config.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{l}.{part}");
            layout.tensor(&at("input_layernorm.weight"), &[d]);
            let qkv = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)];
            layout.linear(&at("self_attn"), "qkv_proj", &qkv, d, qkv_bias);
            layout.linear(&at("self_attn"), "o_proj", &[("o_proj", d)], heads, o_bias);
            if config.family == Family::Qwen3 {
                layout.tensor(&at("self_attn.q_norm.weight"), &[head]);
                layout.tensor(&at("self_attn.k_norm.weight"), &[head]);
            }
            layout.tensor(&at("post_attention_layernorm.weight"), &[d]);
            layout.linear(&at("mlp"), "gate_up_proj", &[("gate_proj", wide), ("up_proj", wide)], d, config.mlp_bias);
            layout.linear(&at("mlp"), "down_proj", &[("down_proj", d)], wide, config.mlp_bias);
        }
        layout.tensor("model.norm.weight", &[d]);
        if !config.tie_word_embeddings {
            layout.tensor("lm_head.weight", &[config.vocab_size, d]);
        }
        if value_head == ValueHead::Present {
            layout.tensor("value_head.weight", &[1, d]);
            layout.tensor("value_head.bias", &[1]);
        }
        layout
    }

    /// The part `joined`, made of rows of the tensors `of`: their weights side by side, then their biases.
    fn linear(&mut self, module: &str, joined: &str, of: &[(&str, i64)], columns: i64, bias: bool) {
        let rows: i64 = of.iter().map(|(_, rows)| rows).sum();
        let mut part = |kind: &str, shape: fn(i64, i64) -> Vec<i64>| {
            let offset = self.total;
            for (name, rows) in of {
                let shape = shape(*rows, columns);
                let (offset, len) = (self.total, shape.iter().product());
                self.entries.push(Entry { name: format!("{module}.{name}.{kind}"), shape, offset, len });
                self.total += len;
            }
            let (name, len) = (format!("{module}.{joined}.{kind}"), self.total - offset);
            self.parts.push(Entry { name, shape: shape(rows, columns), offset, len });
            self.align();
        };
        part("weight", |rows, columns| vec![rows, columns]);
        if bias {
            part("bias", |rows, _| vec![rows]);
        }
    }

    fn tensor(&mut self, name: &str, shape: &[i64]) {
        let entry = Entry { name: name.to_owned(), shape: shape.to_vec(), offset: self.total, len: shape.iter().product() };
        self.total += entry.len;
        self.entries.push(entry.clone());
        self.parts.push(entry);
        self.align();
    }

    fn align(&mut self) {
        self.total = (self.total + ALIGN - 1) / ALIGN * ALIGN;
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

    /// The first element of the critic's head; the end where there is none.
    pub fn head(&self) -> i64 {
        self.entries.iter().find(|entry| entry.is_value_head()).map_or(self.total, |entry| entry.offset)
    }

    /// One view on `flat` (`[total]`) for each entry, in order, sharing its memory.
    ///
    /// # Errors
    /// A buffer of another length.
    pub fn views(&self, flat: &Tensor) -> Result<Vec<Tensor>> {
        self.entries.iter().map(|entry| entry.view(flat)).collect()
    }

    /// The part of this name.
    pub fn part(&self, name: &str) -> Option<&Entry> {
        self.parts.iter().find(|part| part.name == name)
    }
}

impl Entry {
    /// Its view on `flat`, the buffer of its layout, sharing its memory.
    ///
    /// # Errors
    /// A buffer that is shorter.
    pub fn view(&self, flat: &Tensor) -> Result<Tensor> {
        Ok(flat.f_narrow(0, self.offset, self.len)?.f_view(self.shape.as_slice())?)
    }

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
        let of_head = Layout::of(&tiny(Family::Qwen2), ValueHead::None).total;
        assert_eq!((layout.head(), Layout::of(&tiny(Family::Qwen2), ValueHead::None).head()), (of_head, of_head));
        assert!(layout.parts.iter().all(|part| part.offset % ALIGN == 0));
        let parts: i64 = layout.parts.iter().map(|part| part.len).sum();
        assert_eq!(parts, layout.parameters());
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
