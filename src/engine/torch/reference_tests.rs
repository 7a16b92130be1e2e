//! The forward pass in libtorch's plainest operations, one sequence at a time and slowly, with libtorch's own gradients: what the
//! tests hold the model to.

use crate::engine::torch::config::Config;
use crate::engine::torch::layout::Layout;
use tch::{Kind, Tensor};

/// Logits `[t, V]` and, with a value head, values `[t]`, of one sequence under the weights `flat` (`[layout.total]`).
pub fn forward(config: &Config, layout: &Layout, flat: &Tensor, ids: &[i64]) -> (Tensor, Option<Tensor>) {
    let entry = |name: &str| layout.entries.iter().find(|entry| entry.name == name).map(|entry| entry.view(flat).unwrap());
    let weight = |name: String| entry(&name).unwrap_or_else(|| panic!("no {name}"));
    let linear = |x: &Tensor, name: String| {
        let y = x.matmul(&weight(format!("{name}.weight")).tr());
        entry(&format!("{name}.bias")).map_or_else(|| y.shallow_clone(), |bias| &y + bias)
    };
    let norm = |x: &Tensor, weight: &Tensor| {
        x * (x.square().mean_dim(-1, true, Kind::Float) + config.rms_norm_eps).rsqrt() * weight
    };
    let (t, d, half) = (ids.len() as i64, config.head_dim, config.head_dim / 2);
    let frequencies: Vec<f64> = (0..half).map(|i| config.rope_theta.powf(-2.0 * i as f64 / d as f64)).collect();
    let frequencies = config.rope_scaling.apply(&Tensor::from_slice(&frequencies).to_kind(Kind::Float)).unwrap();
    let angles = Tensor::arange(t, (Kind::Float, flat.device())).unsqueeze(1) * frequencies.to_device(flat.device());
    let (cos, sin) = (angles.cos().unsqueeze(1), angles.sin().unsqueeze(1));
    let rotated = |x: &Tensor| {
        let (a, b) = (x.narrow(-1, 0, half), x.narrow(-1, half, half));
        Tensor::cat(&[&a * &cos - &b * &sin, &b * &cos + &a * &sin], -1)
    };
    let mask = Tensor::full([t, t], f64::NEG_INFINITY, (Kind::Float, flat.device())).triu(1);
    let shared = config.num_attention_heads / config.num_key_value_heads;
    let mut x =
        weight("model.embed_tokens.weight".into()).index_select(0, &Tensor::from_slice(ids).to_device(flat.device()));
    for l in 0..config.num_hidden_layers {
        let at = |part: &str| format!("model.layers.{l}.{part}");
        let y = norm(&x, &weight(at("input_layernorm.weight")));
        let heads = |name: &str| linear(&y, at(&format!("self_attn.{name}_proj"))).view([t, -1, d]);
        let normed = |x: Tensor, name: &str| match entry(&at(&format!("self_attn.{name}_norm.weight"))) {
            Some(weight) => norm(&x, &weight),
            None => x,
        };
        let q = rotated(&normed(heads("q"), "q")).transpose(0, 1);
        let [k, v] = [rotated(&normed(heads("k"), "k")), heads("v")]
            .map(|x| x.transpose(0, 1).repeat_interleave_self_int(shared, 0, None));
        let weights = (q.matmul(&k.transpose(1, 2)) / (d as f64).sqrt() + &mask).softmax(-1, Kind::Float);
        let y = weights.matmul(&v).transpose(0, 1).reshape([t, -1]);
        x = x.f_add(&linear(&y, at("self_attn.o_proj"))).unwrap();
        let y = norm(&x, &weight(at("post_attention_layernorm.weight")));
        let y = linear(&y, at("mlp.gate_proj")).silu() * linear(&y, at("mlp.up_proj"));
        x = x.f_add(&linear(&y, at("mlp.down_proj"))).unwrap();
    }
    let x = norm(&x, &weight("model.norm.weight".into()));
    let head = if config.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
    let values = entry("value_head.weight").map(|_| linear(&x, "value_head".into()).squeeze_dim(-1));
    (linear(&x, head.into()), values)
}
