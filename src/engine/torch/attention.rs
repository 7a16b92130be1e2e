//! Attention: causal over whole sequences, for training, and of a step over the cache.

use crate::engine::torch::ffi::{self, Heads, Places, Positional, Weight};
use crate::error::Result;
use tch::{Device, Kind, Tensor};

/// Each query to the keys up to its own place: `[b * t, heads * head_dim]` of `q` (`[b, heads, t, head_dim]`) and `k`, `v` (`[b,
/// kv_heads, t, head_dim]`), scaled by the root of `head_dim`.
///
/// # Errors
/// Whatever libtorch says.
pub fn causal(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (b, heads, t, d) = q.size4()?;
    let grouped = heads != k.size4()?.1;
    // On the CPU libtorch's bf16 kernels are slower than its f32 ones.
    let kind = q.kind();
    let computed = if q.device() == Device::Cpu { Kind::Float } else { kind };
    let [q, k, v] = [q, k, v].map(|x| x.f_to_kind(computed));
    let y = Tensor::f_scaled_dot_product_attention::<Tensor>(&q?, &k?, &v?, None, 0.0, true, None, grouped)?;
    Ok(y.f_to_kind(kind)?.f_transpose(1, 2)?.f_reshape([b * t, heads * d])?)
}

/// As [`ffi::attend`]; off the CPU by libtorch's own operations.
///
/// # Errors
/// As there.
pub fn attend(x: &Tensor, at: &Positional, heads: Heads, cache: [&Tensor; 2], places: &Places) -> Result<Tensor> {
    if x.device() == Device::Cpu { ffi::attend(x, at, heads, cache, places) } else { plain(x, at, heads, cache, places) }
}

/// The same, on any device.
fn plain(x: &Tensor, at: &Positional, heads: Heads, cache: [&Tensor; 2], places: &Places) -> Result<Tensor> {
    let Heads { heads, kv_heads, head_dim, eps } = heads;
    let (all_rows, device) = (x.size2()?.0, x.device());
    let (rows, longest) = (places.slots.size1()?, places.positions.f_max()?.f_int64_value(&[])? + 1);
    let (slots, positions) = (places.slots.f_to_device(device)?, places.positions.f_to_device(device)?);
    let (cos, sin) =
        (at.cos.f_index_select(0, &positions)?.f_unsqueeze(1)?, at.sin.f_index_select(0, &positions)?.f_unsqueeze(1)?);
    let part = |from: i64, n: i64, norm: Option<&Weight>| -> Result<Tensor> {
        let one = x.f_narrow(0, 0, rows)?.f_view([rows, heads + 2 * kv_heads, head_dim])?.f_narrow(1, from, n)?;
        let one = norm.map_or_else(|| Ok(one.shallow_clone()), |norm| ffi::rms_norm(&one.f_contiguous()?, norm, eps))?;
        let one = one.f_to_kind(Kind::Float)?;
        Ok(one.f_mul(&cos)?.f_addcmul(&one.f_roll([head_dim / 2], [-1])?, &sin)?.f_to_kind(x.kind())?)
    };
    let keys = part(heads, kv_heads, at.k_norm)?;
    let values =
        x.f_narrow(0, 0, rows)?.f_view([rows, heads + 2 * kv_heads, head_dim])?.f_narrow(1, heads + kv_heads, kv_heads)?;
    let [mut all_keys, mut all_values] = cache.map(Tensor::shallow_clone);
    let place = [Some(&slots), None, Some(&positions)];
    let _ = all_keys.f_index_put_(&place, &keys, false)?;
    let _ = all_values.f_index_put_(&place, &values, false)?;
    let seen = |all: &Tensor| all.f_narrow(2, 0, longest)?.f_index_select(0, &slots);
    let later = Tensor::f_arange(longest, (Kind::Int64, device))?.f_gt_tensor(&positions.f_unsqueeze(1)?)?;
    let mask = Tensor::f_zeros([rows, longest], (x.kind(), device))?.f_masked_fill(&later, f64::NEG_INFINITY)?;
    // The query heads that share a key head stand as so many query rows: no key is repeated.
    let q = part(0, heads, at.q_norm)?.f_view([rows, kv_heads, -1, head_dim])?;
    let mask = mask.f_view([rows, 1, 1, longest])?;
    let y = Tensor::f_scaled_dot_product_attention(
        &q,
        &seen(&all_keys)?,
        &seen(&all_values)?,
        Some(&mask),
        0.0,
        false,
        None,
        false,
    )?;
    let rest = Tensor::f_zeros([all_rows - rows, heads * head_dim], (x.kind(), device))?;
    Ok(Tensor::f_cat(&[&y.f_reshape([rows, heads * head_dim])?, &rest], 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(n: i64, kind: Kind) -> Weight {
        Weight { value: (Tensor::rand([n], (Kind::Float, Device::Cpu)) + 0.5).to_kind(kind), gradient: None }
    }

    /// Catches keys in another's place, a row that sees too much or too little, heads that are mixed up, and rows of one
    /// sequence that do not see each other.
    #[test]
    fn a_step_is_that_of_libtorchs_own_operations() {
        tch::manual_seed(3);
        let _guard = tch::no_grad_guard();
        let options = (Kind::Float, Device::Cpu);
        for (d, normed) in [(8, false), (8, true), (32, false), (64, true), (128, false)] {
            let heads = Heads { heads: 6, kv_heads: 2, head_dim: d, eps: 1e-6 };
            let (cos, sin) = (Tensor::rand([64, d], options), Tensor::rand([64, d], options));
            for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 3e-2)] {
                let (q_norm, k_norm) = (weight(d, kind), weight(d, kind));
                let norms = normed.then_some((&q_norm, &k_norm));
                let at = Positional { q_norm: norms.map(|n| n.0), k_norm: norms.map(|n| n.1), cos: &cos, sin: &sin };
                let cache = || {
                    [0, 1].map(|i| {
                        (Tensor::arange(5 * 2 * 40 * d, options).f_sin().unwrap() * (i + 1))
                            .view([5, 2, 40, d])
                            .to_kind(kind)
                    })
                };
                let (ours, theirs) = (cache(), cache());
                // Two that decode, a long piece of a prompt, the start of another, and one row without a place.
                let mut places: Vec<(i64, i64)> = vec![(3, 17), (0, 0)];
                places.extend((0..19).map(|i| (1, 5 + i)));
                places.extend((0..3).map(|i| (4, i)));
                let (slots, positions): (Vec<i64>, Vec<i64>) = places.into_iter().unzip();
                let places = Places { slots: Tensor::from_slice(&slots), positions: Tensor::from_slice(&positions) };
                let x = Tensor::randn([slots.len() as i64 + 1, 10 * d], options).to_kind(kind);
                let got = attend(&x, &at, heads, [&ours[0], &ours[1]], &places).unwrap();
                let right = plain(&x, &at, heads, [&theirs[0], &theirs[1]], &places).unwrap();
                let far =
                    |a: &Tensor, b: &Tensor| (a.to_kind(Kind::Float) - b.to_kind(Kind::Float)).abs().max().double_value(&[]);
                assert!(far(&got, &right) < tolerance, "{kind:?} {}", far(&got, &right));
                for (a, b) in ours.iter().zip(&theirs) {
                    assert!(far(a, b) < tolerance);
                }
            }
        }
    }

    #[test]
    fn places_outside_the_cache_are_refused() {
        let options = (Kind::Float, Device::Cpu);
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 2, eps: 0.0 };
        let (table, cache, x) =
            (Tensor::ones([4, 2], options), Tensor::ones([2, 1, 4, 2], options), Tensor::ones([1, 6], options));
        let at = Positional { q_norm: None, k_norm: None, cos: &table, sin: &table };
        for (slot, position) in [(2i64, 0i64), (-1, 0), (0, 4)] {
            let places = Places { slots: Tensor::from_slice(&[slot]), positions: Tensor::from_slice(&[position]) };
            let error = attend(&x, &at, heads, [&cache, &cache], &places).unwrap_err();
            assert!(error.to_string().contains("places: "), "{error}");
        }
    }
}
