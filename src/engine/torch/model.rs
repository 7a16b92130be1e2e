//! The forward passes: a decoder-only transformer of the llama family, over tensors it does not own alone.
//!
//! Knows nothing of sampling, of learning or of files. Its tensors are shallow: the learner passes leaves that require a
//! gradient, the generator passes views on a snapshot.
//! Sources: Touvron et al. 2023 (arXiv 2302.13971), Su et al. 2021 (rotary embeddings, arXiv 2104.09864), Ainslie et al. 2023
//! (grouped queries, arXiv 2305.13245). Shapes: `b` sequences, `t` tokens, `d` hidden size, `V` vocabulary, `h` heads.

use crate::engine::torch::config::Config;
use crate::engine::torch::layout::Layout;
use crate::error::{Error, Result};
use std::collections::HashMap;
use tch::{Device, Kind, Tensor};

/// `y = x W^T + b`.
struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }
}

struct Layer {
    input_layernorm: Tensor,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    /// Norms of each head's queries and keys, for the families that have them.
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    o_proj: Linear,
    post_attention_layernorm: Tensor,
    gate_proj: Linear,
    up_proj: Linear,
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

    fn shallow_clone(&self) -> Rotary {
        Rotary { cos: self.cos.shallow_clone(), sin: self.sin.shallow_clone() }
    }

    /// Rows 0..t, shaped to broadcast over `[b, t, h, head_dim]`.
    fn first(&self, t: i64) -> Result<Rotary> {
        let rows = |table: &Tensor| table.f_narrow(0, 0, t)?.f_unsqueeze(1);
        Ok(Rotary { cos: rows(&self.cos)?, sin: rows(&self.sin)? })
    }

    /// The rows of `positions` (`[b]`), shaped to broadcast over `[b, h, head_dim]`.
    fn at(&self, positions: &Tensor) -> Result<Rotary> {
        let rows = |table: &Tensor| table.f_index_select(0, positions)?.f_unsqueeze(1);
        Ok(Rotary { cos: rows(&self.cos)?, sin: rows(&self.sin)? })
    }

    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let half = x.size().last().map_or(0, |n| n / 2);
        Ok(x.f_mul(&self.cos)?.f_addcmul(&x.f_roll([half], [-1])?, &self.sin)?)
    }
}

/// Keys and values of earlier tokens, as a decode step sees them.
pub trait KeysAndValues {
    /// Writes the step's keys and values (`[b, kv_heads, head_dim]`, one row a sequence) of `layer` and returns all that the
    /// step attends to, `[b, kv_heads, length, head_dim]` each.
    ///
    /// # Errors
    /// Whatever libtorch says.
    fn extend(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)>;

    /// Added to the attention's logits, `[b, 1, 1, length]`: 0 where a sequence has a token, minus infinity elsewhere.
    fn mask(&self) -> &Tensor;
}

/// A model over shallow tensors.
pub struct Model {
    config: Config,
    rotary: Rotary,
    embed_tokens: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    lm_head: Tensor,
    value_head: Option<Linear>,
}

impl Model {
    /// The model of `config` over `views`, one a [`Layout`] entry. Nothing is copied; the rotary tables are computed (see
    /// [`with_weights`](Model::with_weights)).
    ///
    /// # Errors
    /// Views that are not those of the layout.
    pub fn new(config: &Config, layout: &Layout, views: Vec<Tensor>) -> Result<Model> {
        let device = views.first().map_or(Device::Cpu, Tensor::device);
        let rotary = tch::no_grad(|| Rotary::new(config, device))?;
        Model::assemble(config, layout, views, rotary)
    }

    /// The same model over other weights, sharing the rotary tables: cheap.
    ///
    /// # Errors
    /// As [`new`](Model::new).
    pub fn with_weights(&self, layout: &Layout, views: Vec<Tensor>) -> Result<Model> {
        Model::assemble(&self.config, layout, views, self.rotary.shallow_clone())
    }

    fn assemble(config: &Config, layout: &Layout, views: Vec<Tensor>, rotary: Rotary) -> Result<Model> {
        if views.len() != layout.entries.len() {
            let reason = format!("{} tensors for a layout of {}", views.len(), layout.entries.len());
            return Err(Error::engine("model", reason));
        }
        let mut tensors = Named { tensors: HashMap::with_capacity(views.len()) };
        for (entry, view) in layout.entries.iter().zip(views) {
            if view.size() != entry.shape {
                let reason = format!("shape {:?} where the layout has {:?}", view.size(), entry.shape);
                return Err(Error::engine(&entry.name, reason));
            }
            tensors.tensors.insert(&entry.name, view);
        }
        let embed_tokens = tensors.take("model.embed_tokens.weight")?;
        let layers = (0..config.num_hidden_layers).map(|l| tensors.layer(l)).collect::<Result<_>>()?;
        let norm = tensors.take("model.norm.weight")?;
        let tied = config.tie_word_embeddings;
        let lm_head = if tied { embed_tokens.shallow_clone() } else { tensors.take("lm_head.weight")? };
        let value_head = if tensors.tensors.is_empty() { None } else { Some(tensors.linear("value_head")?) };
        Ok(Model { config: config.clone(), rotary, embed_tokens, layers, norm, lm_head, value_head })
    }

    /// The last hidden states, after the final norm, `[b, t, d]`, of `tokens` (`[b, t]` i64) that start at position 0.
    /// Causal, so sequences padded on the right need no mask: what follows a token does not change it.
    ///
    /// # Errors
    /// More tokens than the model has positions, ids outside the vocabulary, or whatever libtorch says.
    pub fn hidden(&self, tokens: &Tensor) -> Result<Tensor> {
        let x = self.forward(tokens, |_, _, _| Ok(()))?;
        self.normalise(&x, &self.norm)
    }

    /// Runs `tokens` (`[1, t]`) for their keys and values alone: one pair a layer, `[kv_heads, t, head_dim]` each.
    ///
    /// # Errors
    /// As [`hidden`](Model::hidden).
    pub fn prefill(&self, tokens: &Tensor) -> Result<Vec<(Tensor, Tensor)>> {
        let mut kept = Vec::with_capacity(self.layers.len());
        let _ = self.forward(tokens, |_, keys, values| {
            kept.push((keys.f_squeeze_dim(0)?, values.f_squeeze_dim(0)?));
            Ok(())
        })?;
        Ok(kept)
    }

    /// The residual stream after the last layer; `keep` sees each layer's keys and values, `[b, kv_heads, t, head_dim]`.
    fn forward(&self, tokens: &Tensor, mut keep: impl FnMut(usize, &Tensor, &Tensor) -> Result<()>) -> Result<Tensor> {
        let (b, t) = tokens.size2()?;
        if t > self.config.max_position_embeddings {
            let most = self.config.max_position_embeddings;
            return Err(Error::engine("model", format!("a sequence of {t} tokens, the model's longest is {most}")));
        }
        let rotary = self.rotary.first(t)?;
        let heads = |x: Tensor| x.f_view([b, t, -1, self.config.head_dim]);
        let grouped = self.config.num_attention_heads != self.config.num_key_value_heads;
        let mut x = Tensor::f_embedding(&self.embed_tokens, tokens, -1, false, false)?;
        for (l, layer) in self.layers.iter().enumerate() {
            let y = self.normalise(&x, &layer.input_layernorm)?;
            let q =
                rotary.rotate(&self.per_head(heads(layer.q_proj.of(&y)?)?, layer.q_norm.as_ref())?)?.f_transpose(1, 2)?;
            let k =
                rotary.rotate(&self.per_head(heads(layer.k_proj.of(&y)?)?, layer.k_norm.as_ref())?)?.f_transpose(1, 2)?;
            let v = heads(layer.v_proj.of(&y)?)?.f_transpose(1, 2)?;
            keep(l, &k, &v)?;
            let y = Tensor::f_scaled_dot_product_attention::<Tensor>(&q, &k, &v, None, 0.0, true, None, grouped)?;
            x = x.f_add(&layer.o_proj.of(&y.f_transpose(1, 2)?.f_reshape([b, t, -1])?)?)?;
            x = x.f_add(&self.mlp(layer, &x)?)?;
        }
        Ok(x)
    }

    /// One decode step: the last hidden states `[b, d]` of one token a sequence. `tokens` and `positions` are `[b]` i64;
    /// `cache` holds what came before and takes what is new.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn decode(&self, tokens: &Tensor, positions: &Tensor, cache: &mut impl KeysAndValues) -> Result<Tensor> {
        let b = tokens.size1()?;
        let (kv_heads, head_dim) = (self.config.num_key_value_heads, self.config.head_dim);
        let rotary = self.rotary.at(positions)?;
        let heads = |x: Tensor| x.f_view([b, -1, head_dim]);
        let mut x = Tensor::f_embedding(&self.embed_tokens, tokens, -1, false, false)?;
        for (l, layer) in self.layers.iter().enumerate() {
            let y = self.normalise(&x, &layer.input_layernorm)?;
            let q = rotary.rotate(&self.per_head(heads(layer.q_proj.of(&y)?)?, layer.q_norm.as_ref())?)?;
            let k = rotary.rotate(&self.per_head(heads(layer.k_proj.of(&y)?)?, layer.k_norm.as_ref())?)?;
            let (keys, values) = cache.extend(l, &k, &heads(layer.v_proj.of(&y)?)?)?;
            // The query heads that share a key head stand as so many query rows: no key is repeated.
            let q = q.f_view([b, kv_heads, -1, head_dim])?;
            let mask = Some(cache.mask());
            let y = Tensor::f_scaled_dot_product_attention(&q, &keys, &values, mask, 0.0, false, None, false)?;
            x = x.f_add(&layer.o_proj.of(&y.f_reshape([b, -1])?)?)?;
            x = x.f_add(&self.mlp(layer, &x)?)?;
        }
        self.normalise(&x, &self.norm)
    }

    /// `[.., V]` in fp32 from the last hidden states `[.., d]`, whatever the weights' type.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let float = |x: &Tensor| x.f_to_kind(Kind::Float);
        Ok(float(hidden)?.f_linear::<Tensor>(&float(&self.lm_head)?, None)?)
    }

    /// The critic's estimates `[..]` from the last hidden states `[.., d]`; None for a model without one.
    ///
    /// # Errors
    /// Whatever libtorch says.
    pub fn value(&self, hidden: &Tensor) -> Result<Option<Tensor>> {
        self.value_head.as_ref().map(|head| Ok(head.of(hidden)?.f_squeeze_dim(-1)?)).transpose()
    }

    fn mlp(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let y = self.normalise(x, &layer.post_attention_layernorm)?;
        layer.down_proj.of(&layer.gate_proj.of(&y)?.f_silu()?.f_mul(&layer.up_proj.of(&y)?)?)
    }

    /// Queries or keys `[.., head_dim]` after their norm, where the family has one.
    fn per_head(&self, x: Tensor, norm: Option<&Tensor>) -> Result<Tensor> {
        match norm {
            Some(weight) => self.normalise(&x, weight),
            None => Ok(x),
        }
    }

    /// `x / rms(x) * weight` over the last dimension, computed in f32 (Zhang & Sennrich 2019, arXiv 1910.07467).
    fn normalise(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let y = x.f_to_kind(Kind::Float)?.f_rms_norm::<Tensor>(weight.size(), None, self.config.rms_norm_eps)?;
        Ok(y.f_to_kind(x.f_kind()?)?.f_mul(weight)?)
    }
}

/// Tensors by name, each taken once.
struct Named<'a> {
    tensors: HashMap<&'a str, Tensor>,
}

impl Named<'_> {
    fn take(&mut self, name: &str) -> Result<Tensor> {
        self.tensors.remove(name).ok_or_else(|| Error::engine(name, "the layout has no such tensor"))
    }

    fn linear(&mut self, name: &str) -> Result<Linear> {
        Ok(Linear {
            weight: self.take(&format!("{name}.weight"))?,
            bias: self.tensors.remove(format!("{name}.bias").as_str()),
        })
    }

    fn layer(&mut self, l: i64) -> Result<Layer> {
        let at = |part: &str| format!("model.layers.{l}.{part}");
        Ok(Layer {
            input_layernorm: self.take(&at("input_layernorm.weight"))?,
            q_proj: self.linear(&at("self_attn.q_proj"))?,
            k_proj: self.linear(&at("self_attn.k_proj"))?,
            v_proj: self.linear(&at("self_attn.v_proj"))?,
            q_norm: self.tensors.remove(at("self_attn.q_norm.weight").as_str()),
            k_norm: self.tensors.remove(at("self_attn.k_norm.weight").as_str()),
            o_proj: self.linear(&at("self_attn.o_proj"))?,
            post_attention_layernorm: self.take(&at("post_attention_layernorm.weight"))?,
            gate_proj: self.linear(&at("mlp.gate_proj"))?,
            up_proj: self.linear(&at("mlp.up_proj"))?,
            down_proj: self.linear(&at("mlp.down_proj"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::cache::Cache;
    use crate::engine::torch::checkpoint::{init, tests::spread};
    use crate::engine::torch::config::{Family, tests::tiny};
    use crate::engine::torch::layout::ValueHead;

    fn random(config: &Config, seed: u64) -> Model {
        let layout = Layout::of(config, ValueHead::Present);
        Model::new(config, &layout, layout.views(&spread(&layout, seed)).unwrap()).unwrap()
    }

    fn families() -> Vec<Config> {
        let mut biased = tiny(Family::Llama);
        (biased.attention_bias, biased.mlp_bias, biased.num_key_value_heads) = (true, true, 4);
        vec![tiny(Family::Llama), tiny(Family::Qwen2), tiny(Family::Qwen3), biased]
    }

    fn far(a: &Tensor, b: &Tensor) -> f64 {
        assert_eq!(a.size(), b.size());
        (a - b).abs().max().double_value(&[])
    }

    #[test]
    fn decoding_with_the_cache_is_the_full_forward() {
        let _guard = tch::no_grad_guard();
        for config in families() {
            let model = random(&config, 7);
            let tokens = Tensor::from_slice2(&[[3i64, 9, 27, 4, 40, 11], [1, 2, 49, 0, 5, 6]]);
            let hidden = model.hidden(&tokens).unwrap();
            let full = model.logits(&hidden).unwrap();
            assert_eq!((full.size(), model.value(&hidden).unwrap().unwrap().size()), (vec![2, 6, 50], vec![2, 6]));
            // The first sequence has a prompt of 3, the second starts from nothing, two steps later.
            let mut cache = Cache::new(&config, 2, 16, Device::Cpu).unwrap();
            cache.fill(0, &model.prefill(&tokens.narrow(0, 0, 1).narrow(1, 0, 3)).unwrap()).unwrap();
            for (first, second) in [(3i64, None), (4, None), (5, Some(0i64)), (6, Some(1))] {
                let at = |row: i64, t: i64| tokens.int64_value(&[row, t.min(5)]);
                let mut ids = vec![at(0, first)];
                let mut positions = vec![first];
                if let Some(second) = second {
                    ids.push(at(1, second));
                    positions.push(second);
                }
                let positions = Tensor::from_slice(&positions);
                cache.open(&positions, first).unwrap();
                let hidden = model.decode(&Tensor::from_slice(&ids), &positions, &mut cache).unwrap();
                let logits = model.logits(&hidden).unwrap();
                if first < 6 {
                    assert!(far(&logits.get(0), &full.get(0).get(first)) < 1e-4);
                }
                if let Some(second) = second {
                    assert!(far(&logits.get(1), &full.get(1).get(second)) < 1e-4);
                }
            }
        }
    }

    #[test]
    fn padding_on_the_right_changes_nothing_before_it() {
        let _guard = tch::no_grad_guard();
        let model = random(&tiny(Family::Qwen2), 3);
        let logits = |ids: &[i64]| model.logits(&model.hidden(&Tensor::from_slice(ids).unsqueeze(0)).unwrap()).unwrap();
        let (short, padded) = (logits(&[5, 6, 7]), logits(&[5, 6, 7, 0, 0]));
        assert!(far(&short, &padded.narrow(1, 0, 3)) < 1e-5);
        assert!(far(&short, &logits(&[5, 7, 6])) > 0.1, "order matters");
    }

    #[test]
    fn every_tensor_has_a_gradient() {
        for config in families() {
            let layout = Layout::of(&config, ValueHead::Present);
            let flat = spread(&layout, 1).set_requires_grad(true);
            let model = Model::new(&config, &layout, layout.views(&flat).unwrap()).unwrap();
            let hidden = model.hidden(&Tensor::from_slice(&[1i64, 2, 3, 4]).unsqueeze(0)).unwrap();
            let loss = model.logits(&hidden).unwrap().log_softmax(-1, Kind::Float).select(2, 5).sum(Kind::Float)
                + model.value(&hidden).unwrap().unwrap().sum(Kind::Float);
            loss.backward();
            for (entry, gradient) in layout.entries.iter().zip(layout.views(&flat.grad()).unwrap()) {
                // A bias on all keys alike shifts no attention (softmax), so its gradient is noise around 0.
                let size = gradient.abs().max().double_value(&[]);
                assert!(size.is_finite() && (size > 1e-6 || entry.name.ends_with("k_proj.bias")), "{} {size}", entry.name);
            }
        }
    }

    #[test]
    fn views_of_another_layout_and_long_sequences_are_refused() {
        let config = tiny(Family::Llama);
        let layout = Layout::of(&config, ValueHead::None);
        let mut views = layout.views(&init(&layout, 0).unwrap()).unwrap();
        views.swap(1, 2);
        let Err(error) = Model::new(&config, &layout, views) else { panic!("took swapped views") };
        assert_eq!(error.to_string(), "model.layers.0.input_layernorm.weight: shape [32, 32] where the layout has [32]");
        let long = Tensor::zeros([1, 65], (Kind::Int64, Device::Cpu));
        let error = random(&config, 0).hidden(&long).unwrap_err();
        assert_eq!(error.to_string(), "model: a sequence of 65 tokens, the model's longest is 64");
    }
}
