//! The forward passes: a decoder-only transformer of the llama family.
//!
//! Knows nothing of sampling, of learning or of files. The learner passes the place where its gradient is added up; the generator
//! has its weights laid out for products of few rows. What the layers add to is f32, whatever they compute in.
//! Sources: Touvron et al. 2023 (arXiv 2302.13971), Su et al. 2021 (rotary embeddings, arXiv 2104.09864), Ainslie et al. 2023
//! (grouped queries, arXiv 2305.13245). Shapes: `n` rows of trees, `d` hidden size, `V` vocabulary, `r` rows of a step.

use crate::engine::torch::attention::{DecodeStep, attend, causal};
use crate::engine::torch::cache::Cache;
use crate::engine::torch::config::Config;
use crate::engine::torch::ffi::{self, Blocks, Heads, Places, Positional, Weight};
use crate::engine::torch::layout::{Entry, Layout};
use crate::engine::torch::trees::Trees;
use crate::error::{Error, Result};
use tch::{Device, Kind, Tensor, no_grad};

/// How a model has its weights.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// As views on the flat buffer, in its type.
    Views,
    /// As leaves of a graph, views on the flat buffer; their gradients are added to this one (`[layout.total]`, f32).
    Learning(&'a Tensor),
    /// As copies in a type of their own, laid out for products of few rows. The flat buffer is let go.
    Packed(Kind),
}

/// What rows are multiplied with.
enum Factor {
    Plain(Weight),
    Blocks(Blocks),
}

/// `y = x W^T + b`.
struct Linear {
    factor: Factor,
    bias: Option<Weight>,
}

impl Linear {
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        match &self.factor {
            Factor::Plain(weight) => ffi::linear(x, weight, self.bias.as_ref()),
            Factor::Blocks(blocks) => blocks.linear(x, self.bias.as_ref(), None),
        }
    }

    /// `y + other`.
    fn plus(&self, x: &Tensor, other: &Tensor) -> Result<Tensor> {
        match &self.factor {
            Factor::Plain(weight) => Ok(ffi::linear(x, weight, self.bias.as_ref())?.f_add(other)?),
            Factor::Blocks(blocks) => blocks.linear(x, self.bias.as_ref(), Some(other)),
        }
    }
}

struct Layer {
    input_layernorm: Weight,
    qkv_proj: Linear,
    /// Norms of each head's queries and keys, for the families that have them.
    q_norm: Option<Weight>,
    k_norm: Option<Weight>,
    o_proj: Linear,
    post_attention_layernorm: Weight,
    gate_up_proj: Linear,
    down_proj: Linear,
}

/// Cosines and signed sines of the rotary embedding, `[positions, head_dim]`.
///
/// Pairs are (i, i + head_dim / 2), as in the checkpoints: `rotated = x cos + roll(x, head_dim / 2) sin`, where the sine of
/// the first half carries the minus sign.
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(config: &Config, device: Device) -> Result<Rotary> {
        let options = (Kind::Float, device);
        let half = config.head_dim / 2;
        let exponents = Tensor::f_arange(half, options)?.f_mul_scalar(2.0)?.f_div_scalar(config.head_dim as f64)?;
        let frequencies = Tensor::f_scalar_tensor(config.rope_theta, options)?.f_pow(&exponents)?.f_reciprocal()?;
        let frequencies = config.rope_scaling.apply(&frequencies)?;
        let positions = Tensor::f_arange(config.max_position_embeddings, options)?.f_unsqueeze(1)?;
        let angles = positions.f_mul(&frequencies)?;
        let (cos, sin) = (angles.f_cos()?, angles.f_sin()?);
        Ok(Rotary { cos: Tensor::f_cat(&[&cos, &cos], 1)?, sin: Tensor::f_cat(&[&sin.f_neg()?, &sin], 1)? })
    }
}

/// A model's weights, and what it does with tokens.
pub struct Model {
    config: Config,
    heads: Heads,
    rotary: Rotary,
    embed_tokens: Weight,
    layers: Vec<Layer>,
    norm: Weight,
    lm_head: Factor,
    value_head: Option<Linear>,
}

impl Model {
    /// The model of `config` with the weights `flat` (`[layout.total]`).
    ///
    /// # Errors
    /// A buffer that is not the layout's, or not enough memory.
    pub fn new(config: &Config, layout: &Layout, flat: &Tensor, form: Form) -> Result<Model> {
        if flat.size() != [layout.total] {
            return Err(Error::engine("model", format!("{:?} weights for a layout of {}", flat.size(), layout.total)));
        }
        let source = Source { layout, flat, form };
        let at = |l: i64, part: &str| format!("model.layers.{l}.{part}");
        let layer = |l: i64| -> Result<Layer> {
            Ok(Layer {
                input_layernorm: source.weight(&at(l, "input_layernorm.weight"))?,
                qkv_proj: source.linear(&at(l, "self_attn.qkv_proj"))?,
                q_norm: source.weight_if_there(&at(l, "self_attn.q_norm.weight"))?,
                k_norm: source.weight_if_there(&at(l, "self_attn.k_norm.weight"))?,
                o_proj: source.linear(&at(l, "self_attn.o_proj"))?,
                post_attention_layernorm: source.weight(&at(l, "post_attention_layernorm.weight"))?,
                gate_up_proj: source.linear(&at(l, "mlp.gate_up_proj"))?,
                down_proj: source.linear(&at(l, "mlp.down_proj"))?,
            })
        };
        let head = if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        Ok(Model {
            heads: Heads {
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim: config.head_dim,
                eps: config.rms_norm_eps,
            },
            rotary: no_grad(|| Rotary::new(config, flat.device()))?,
            embed_tokens: source.weight("model.embed_tokens.weight")?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: source.weight("model.norm.weight")?,
            lm_head: source.factor(head)?,
            value_head: layout.part("value_head.weight").map(|_| source.linear("value_head")).transpose()?,
            config: config.clone(),
        })
    }

    /// Takes other weights in place of its own; packed ones in the same memory.
    ///
    /// # Errors
    /// As [`new`](Model::new). Some weights may then be the new ones: load again.
    pub fn reload(&mut self, layout: &Layout, flat: &Tensor, form: Form) -> Result<()> {
        let source = Source { layout, flat, form };
        let at = |l: usize, part: &str| format!("model.layers.{l}.{part}");
        // Taken apart whole, here and in a layer: what is added to them cannot be forgotten here.
        let Model { config, heads: _, rotary: _, embed_tokens, layers, norm, lm_head, value_head } = self;
        for (l, layer) in layers.iter_mut().enumerate() {
            let Layer {
                input_layernorm,
                qkv_proj,
                q_norm,
                k_norm,
                o_proj,
                post_attention_layernorm,
                gate_up_proj,
                down_proj,
            } = layer;
            source.renew(input_layernorm, &at(l, "input_layernorm.weight"))?;
            source.renew_linear(qkv_proj, &at(l, "self_attn.qkv_proj"))?;
            for (norm, name) in [(q_norm, "self_attn.q_norm.weight"), (k_norm, "self_attn.k_norm.weight")] {
                if let Some(norm) = norm {
                    source.renew(norm, &at(l, name))?;
                }
            }
            source.renew_linear(o_proj, &at(l, "self_attn.o_proj"))?;
            source.renew(post_attention_layernorm, &at(l, "post_attention_layernorm.weight"))?;
            source.renew_linear(gate_up_proj, &at(l, "mlp.gate_up_proj"))?;
            source.renew_linear(down_proj, &at(l, "mlp.down_proj"))?;
        }
        source.renew(embed_tokens, "model.embed_tokens.weight")?;
        let head = if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        source.renew_factor(lm_head, head)?;
        source.renew(norm, "model.norm.weight")?;
        if let Some(head) = value_head {
            source.renew_linear(head, "value_head")?;
        }
        Ok(())
    }

    /// The last hidden states, after the final norm, `[n, d]`, of the rows of `trees`.
    ///
    /// # Errors
    /// More tokens than the model has positions, ids outside the vocabulary, or whatever libtorch says.
    pub fn hidden(&self, trees: &Trees) -> Result<Tensor> {
        self.takes(trees)?;
        let mut x = self.embedded(trees)?;
        for l in 0..self.layers.len() {
            x = self.layer(l, &x, trees)?;
        }
        self.normed(&x)
    }

    /// Refuses sequences that are too long.
    pub(super) fn takes(&self, trees: &Trees) -> Result<()> {
        let (t, most) = (trees.longest(), self.config.max_position_embeddings);
        if t > most {
            return Err(Error::engine("model", format!("a sequence of {t} tokens, the model's longest is {most}")));
        }
        Ok(())
    }

    /// What goes into the first layer, `[n, d]`.
    pub(super) fn embedded(&self, trees: &Trees) -> Result<Tensor> {
        ffi::embedding(&self.embed_tokens, trees.tokens())
    }

    /// What comes out of the layer `l` for `x`, `[n, d]` both.
    pub(super) fn layer(&self, l: usize, x: &Tensor, trees: &Trees) -> Result<Tensor> {
        let layer = &self.layers[l];
        let y = ffi::rms_norm(x, &layer.input_layernorm, self.config.rms_norm_eps)?;
        let qkv = layer.qkv_proj.of(&y)?;
        let y = causal(&qkv, &self.positional(layer), self.heads, trees)?;
        let x = x.f_add(&layer.o_proj.of(&y)?)?;
        let y = ffi::rms_norm(&x, &layer.post_attention_layernorm, self.config.rms_norm_eps)?;
        Ok(x.f_add(&layer.down_proj.of(&ffi::swiglu(&layer.gate_up_proj.of(&y)?)?)?)?)
    }

    /// How many layers there are.
    pub(super) fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The final norm.
    pub(super) fn normed(&self, x: &Tensor) -> Result<Tensor> {
        ffi::rms_norm(x, &self.norm, self.config.rms_norm_eps)
    }

    /// One decode step over the cache: the last hidden states `[r, d]` of `tokens` (`[r]` i64), which are of several sequences, one or more
    /// of each, at their `places`; rows behind those with a place compute along. No gradients.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn decode_step(&self, tokens: &Tensor, places: &Places, cache: &Cache) -> Result<Tensor> {
        let eps = self.config.rms_norm_eps;
        let mut x = ffi::embedding(&self.embed_tokens, tokens)?;
        let kind = cache.kind();
        let step = DecodeStep::new(&x, kind, places, [&self.rotary.cos, &self.rotary.sin])?;
        for (l, layer) in self.layers.iter().enumerate() {
            let qkv = layer.qkv_proj.of(&ffi::rms_norm(&x, &layer.input_layernorm, eps)?)?;
            let y = attend(&qkv, &self.positional(layer), self.heads, cache.layer(l), &step)?;
            x = layer.o_proj.plus(&y, &x)?;
            let y = layer.gate_up_proj.of(&ffi::rms_norm(&x, &layer.post_attention_layernorm, eps)?)?;
            x = layer.down_proj.plus(&ffi::swiglu(&y)?, &x)?;
        }
        self.normed(&x)
    }

    fn positional<'a>(&'a self, layer: &'a Layer) -> Positional<'a> {
        let Rotary { cos, sin } = &self.rotary;
        Positional { q_norm: layer.q_norm.as_ref(), k_norm: layer.k_norm.as_ref(), cos, sin }
    }

    /// `[n, V]` in f32 from hidden states `[n, d]`, whatever the weights' type. No gradients.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.lm_head {
            Factor::Plain(weight) => ffi::logits(hidden, weight),
            Factor::Blocks(blocks) => blocks.linear_in_float(hidden),
        }
    }

    /// `[n, 2]` f32 from hidden states `[n, d]`: the log-probability of each of `ids` (`[n]`) and the entropy, at a temperature.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn log_probabilities(&self, hidden: &Tensor, ids: &Tensor, temperature: f64) -> Result<Tensor> {
        match &self.lm_head {
            Factor::Plain(weight) => ffi::head(hidden, weight, ids, temperature),
            Factor::Blocks(_) => Err(Error::engine("model", "weights that are packed for steps do not learn")),
        }
    }

    /// The critic's estimates `[n]` in f32 from hidden states `[n, d]`; None for a model without one.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn value(&self, hidden: &Tensor) -> Result<Option<Tensor>> {
        let value = |head: &Linear| Ok(head.of(hidden)?.f_squeeze_dim(-1)?.f_to_kind(Kind::Float)?);
        self.value_head.as_ref().map(value).transpose()
    }
}

/// Where a model's weights come from.
struct Source<'a> {
    layout: &'a Layout,
    flat: &'a Tensor,
    form: Form<'a>,
}

impl Source<'_> {
    fn part(&self, name: &str) -> Result<&Entry> {
        self.layout.part(name).ok_or_else(|| Error::engine(name, "the layout has no such tensor"))
    }

    /// A tensor that is read as it lies.
    fn weight(&self, name: &str) -> Result<Weight> {
        let part = self.part(name)?;
        let view = part.view(self.flat)?;
        Ok(match self.form {
            Form::Views => Weight { value: view, gradient: None },
            Form::Learning(gradient) => {
                Weight { value: view.f_detach()?.f_set_requires_grad(true)?, gradient: Some(part.view(gradient)?) }
            }
            Form::Packed(kind) => Weight { value: copied(&view, kind)?, gradient: None },
        })
    }

    fn weight_if_there(&self, name: &str) -> Result<Option<Weight>> {
        self.layout.part(name).map(|_| self.weight(name)).transpose()
    }

    /// A tensor that rows are multiplied with.
    fn factor(&self, name: &str) -> Result<Factor> {
        if let Form::Packed(kind) = self.form
            && let Some(blocks) = Blocks::of(&self.part(name)?.view(self.flat)?, kind)?
        {
            return Ok(Factor::Blocks(blocks));
        }
        Ok(Factor::Plain(self.weight(name)?))
    }

    fn linear(&self, module: &str) -> Result<Linear> {
        let factor = self.factor(&format!("{module}.weight"))?;
        Ok(Linear { factor, bias: self.weight_if_there(&format!("{module}.bias"))? })
    }

    fn renew(&self, weight: &mut Weight, name: &str) -> Result<()> {
        match self.form {
            Form::Packed(_) => Ok(weight.value.f_copy_(&self.part(name)?.view(self.flat)?)?),
            Form::Views | Form::Learning(_) => {
                *weight = self.weight(name)?;
                Ok(())
            }
        }
    }

    fn renew_factor(&self, factor: &mut Factor, name: &str) -> Result<()> {
        match factor {
            Factor::Plain(weight) => self.renew(weight, name),
            Factor::Blocks(blocks) => blocks.again(&self.part(name)?.view(self.flat)?),
        }
    }

    fn renew_linear(&self, linear: &mut Linear, module: &str) -> Result<()> {
        self.renew_factor(&mut linear.factor, &format!("{module}.weight"))?;
        match &mut linear.bias {
            Some(bias) => self.renew(bias, &format!("{module}.bias")),
            None => Ok(()),
        }
    }
}

/// A copy in `kind`, even where that is the tensor's own.
fn copied(view: &Tensor, kind: Kind) -> Result<Tensor> {
    Ok(if view.kind() == kind { view.f_detach_copy()? } else { view.f_to_kind(kind)? })
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
