//! Attention: causal over trees, for training, and of a step over the cache.

use crate::engine::torch::ffi::{self, Heads, Places, Positional, Weight};
use crate::engine::torch::trees::{Padded, Trees, rows_of};
use crate::error::Result;
use tch::{Kind, Tensor};

/// As `ffi::causal`; off the CPU by libtorch's own operations, of each sequence as a whole.
///
/// # Errors
/// Whatever libtorch says.
pub fn causal(x: &Tensor, at: &Positional, heads: Heads, trees: &Trees) -> Result<Tensor> {
    let Some(pieces) = trees.padded() else { return ffi::causal(x, at, heads, trees) };
    let (mut taken, mut seen) = (Vec::new(), Vec::new());
    for Padded { shape, rows, taken: of_piece, places } in pieces {
        let [q, k, v] = ffi::split(&rows_of(x, rows)?, at, heads, *shape)?;
        let grouped = heads.heads != heads.kv_heads;
        let y = Tensor::f_scaled_dot_product_attention::<Tensor>(&q, &k, &v, None, 0.0, true, None, grouped)?;
        let y = y.f_transpose(1, 2)?.f_reshape([shape[0] * shape[1], heads.heads * heads.head_dim])?;
        // No place is taken twice: no sum has an order.
        seen.push(y.f_index_select(0, places)?);
        taken.push(of_piece);
    }
    let (taken, seen) = (Tensor::f_cat(&taken, 0)?, Tensor::f_cat(&seen, 0)?);
    Ok(seen.f_index_select(0, &taken.f_argsort(0, false)?)?)
}

/// What all layers of a decode step share: where its rows belong, and on other devices than the CPU what follows from it, made and copied
/// there once.
#[derive(Debug)]
pub struct DecodeStep<'a> {
    places: &'a Places,
    there: Option<There>,
}

/// The places of `n` rows on their device.
#[derive(Debug)]
struct There {
    /// `[n]` i64 each.
    slots: Tensor,
    positions: Tensor,
    /// `[n, 1, head_dim]` f32 each.
    cos: Tensor,
    sin: Tensor,
    /// `[n, 1, 1, longest]`: 0 up to a row's own position, else minus infinity.
    mask: Tensor,
    /// Positions of the longest sequence.
    longest: i64,
    /// The first row's slot, where each row has the slot after that of the row before.
    neighbours: Option<i64>,
}

impl<'a> DecodeStep<'a> {
    /// A decode step of rows like `x` (`[rows, ..]`), whose queries and keys are of `kind`, at their places, under the cosines and sines of a `Positional`.
    ///
    /// # Errors
    /// Places that no table has, or not enough memory.
    pub fn new(x: &Tensor, kind: Kind, places: &'a Places, [cos, sin]: [&Tensor; 2]) -> Result<DecodeStep<'a>> {
        if ffi::has_kernels(x) {
            return Ok(DecodeStep { places, there: None });
        }
        ffi::fits(places.fit(x.size2()?.0, i64::MAX, cos.size2()?.0), "places", places.slots())?;
        let (slots, positions) = (Vec::<i64>::try_from(places.slots())?, Vec::<i64>::try_from(places.positions())?);
        let longest = positions.iter().max().map_or(1, |last| last + 1);
        let n = slots.len() as i64;
        let device = x.device();
        // One copy that does not wait for what is under way on the device.
        let both =
            Tensor::f_cat(&[places.slots(), places.positions()], 0)?.f_to_device_(device, Kind::Int64, true, false)?;
        let positions = both.f_narrow(0, n, n)?;
        let of_rows = |table: &Tensor| table.f_index_select(0, &positions)?.f_unsqueeze(1);
        let later = Tensor::f_arange(longest, (Kind::Int64, device))?.f_gt_tensor(&positions.f_unsqueeze(1)?)?;
        let mask = Tensor::f_zeros([n, longest], (kind, device))?.f_masked_fill(&later, f64::NEG_INFINITY)?;
        let there = There {
            slots: both.f_narrow(0, 0, n)?,
            cos: of_rows(cos)?,
            sin: of_rows(sin)?,
            mask: mask.f_view([n, 1, 1, longest])?,
            longest,
            neighbours: slots.first().copied().filter(|first| slots.iter().copied().eq(*first..first + n)),
            positions,
        };
        Ok(DecodeStep { places, there: Some(there) })
    }
}

/// As `ffi::attend`; off the CPU by libtorch's own operations.
///
/// # Errors
/// As there.
pub fn attend(x: &Tensor, at: &Positional, heads: Heads, cache: [&Tensor; 2], step: &DecodeStep) -> Result<Tensor> {
    match &step.there {
        None => ffi::attend(x, at, heads, cache, step.places),
        Some(there) => {
            let (slots, _, length, _) = cache[0].size4()?;
            ffi::fits(step.places.fit(x.size2()?.0, slots, length), "places", step.places.slots())?;
            there.attend(x, at, heads, cache)
        }
    }
}

impl There {
    fn attend(&self, x: &Tensor, at: &Positional, heads: Heads, cache: [&Tensor; 2]) -> Result<Tensor> {
        let Heads { heads, kv_heads, head_dim, eps } = heads;
        let ((all_rows, _), rows) = (x.size2()?, self.slots.size1()?);
        let projected = x.f_narrow(0, 0, rows)?.f_view([rows, heads + 2 * kv_heads, head_dim])?;
        let turned = projected.f_narrow(1, 0, heads + kv_heads)?;
        let turned = match (at.q_norm, at.k_norm) {
            (None, None) => turned,
            (q_norm, k_norm) => {
                let part = |from: i64, n: i64, norm: Option<&Weight>| -> Result<Tensor> {
                    let one = turned.f_narrow(1, from, n)?;
                    norm.map_or_else(|| Ok(one.shallow_clone()), |norm| ffi::rms_norm(&one.f_contiguous()?, norm, eps))
                };
                Tensor::f_cat(&[part(0, heads, q_norm)?, part(heads, kv_heads, k_norm)?], 1)?
            }
        };
        let turned = turned.f_to_kind(Kind::Float)?;
        let rolled = turned.f_roll([head_dim / 2], [-1])?;
        let turned = turned.f_mul(&self.cos)?.f_addcmul(&rolled, &self.sin)?.f_to_kind(x.kind())?;
        let (keys, values) = (turned.f_narrow(1, heads, kv_heads)?, projected.f_narrow(1, heads + kv_heads, kv_heads)?);
        let [mut all_keys, mut all_values] = cache.map(Tensor::shallow_clone);
        let place = [Some(&self.slots), None, Some(&self.positions)];
        let _ = all_keys.f_index_put_(&place, &keys, false)?;
        let _ = all_values.f_index_put_(&place, &values, false)?;
        // Slots side by side are read where they are.
        let seen = |all: &Tensor| {
            let all = all.f_narrow(2, 0, self.longest)?;
            self.neighbours.map_or_else(|| all.f_index_select(0, &self.slots), |first| all.f_narrow(0, first, rows))
        };
        // The query heads that share a key head stand as so many query rows: no key is repeated.
        let q = turned.f_narrow(1, 0, heads)?.f_reshape([rows, kv_heads, -1, head_dim])?;
        let (k, v) = (seen(&all_keys)?, seen(&all_values)?);
        let y = Tensor::f_scaled_dot_product_attention(&q, &k, &v, Some(&self.mask), 0.0, false, None, false)?;
        let y = y.f_reshape([rows, heads * head_dim])?;
        if all_rows == rows {
            return Ok(y);
        }
        let rest = Tensor::f_zeros([all_rows - rows, heads * head_dim], (x.kind(), x.device()))?;
        Ok(Tensor::f_cat(&[&y, &rest], 0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::torch::device::tests::device;
    use crate::engine::torch::trees::Tree;
    use tch::Device;

    /// Numbers in -1..1, the same in every run: libtorch's own draws depend on what other tests draw meanwhile.
    fn noise(shape: &[i64], salt: i64) -> Tensor {
        let numbers = Tensor::arange(shape.iter().product::<i64>(), (Kind::Double, Device::Cpu)) + salt as f64 * 0.37;
        ((numbers * 12.9898).sin() * 43758.5453).frac().view(shape).to_kind(Kind::Float)
    }

    fn weight(n: i64, kind: Kind) -> Weight {
        Weight { value: (noise(&[n], n) * 0.5 + 1.0).to_kind(kind), gradient: None }
    }

    /// What `run` gives, and the gradients of `x` and of the norms where that of its output is some waves.
    fn with_gradients(x: &Tensor, norms: &[Weight], run: impl Fn(&Tensor) -> Tensor) -> Vec<Tensor> {
        let x = x.detach().set_requires_grad(true);
        norms.iter().for_each(|norm| drop(norm.gradient.as_ref().unwrap().shallow_clone().zero_()));
        let y = run(&x);
        let dy = Tensor::arange(y.numel() as i64, (Kind::Float, Device::Cpu)).cos().view_as(&y).to_kind(y.kind());
        (&y * dy).sum(Kind::Float).backward();
        let of_norms = norms.iter().map(|norm| norm.gradient.as_ref().unwrap().copy());
        [y.detach(), x.grad()].into_iter().chain(of_norms).collect()
    }

    /// Catches a tile that is left out or too much, a token that sees what follows it or another sequence, and gradients of keys
    /// that miss one of the queries that share them.
    #[test]
    fn trees_are_as_by_libtorchs_own_operations() {
        let options = (Kind::Float, Device::Cpu);
        // Key heads, their size, and of each tree the lengths of trunk and branches.
        let cases: [(i64, i64, &[&[usize]]); 9] = [
            (1, 2, &[&[1]]),
            (2, 8, &[&[5], &[3, 2, 1]]),
            (1, 32, &[&[64]]),
            (1, 32, &[&[40, 0, 0]]),
            (2, 16, &[&[65], &[65], &[63, 2, 0, 70]]),
            (1, 64, &[&[130]]),
            (1, 64, &[&[40, 100, 24, 64, 1, 129]]),
            (1, 16, &[&[128, 64, 64], &[7, 57, 64, 3]]),
            (1, 128, &[&[200], &[70, 130]]),
        ];
        for (kv_heads, d, lengths) in cases {
            let n: i64 = lengths.iter().copied().flatten().map(|&n| n as i64).sum();
            let ids = vec![0; n as usize];
            let tree = |lengths: &&[usize]| Tree {
                trunk: &ids[..lengths[0]],
                branches: lengths[1..].iter().map(|&n| &ids[..n]).collect(),
            };
            let all: Vec<Tree> = lengths.iter().map(tree).collect();
            let trees = Trees::new(&all, Device::Cpu).unwrap();
            let padded = ffi::plainly(|| Trees::new(&all, Device::Cpu).unwrap());
            let heads = Heads { heads: 3 * kv_heads, kv_heads, head_dim: d, eps: 1e-6 };
            let t = trees.longest();
            let (cos, sin) = (noise(&[t + 3, d], 1), noise(&[t + 3, d], 2));
            for (kind, tolerance) in [(Kind::Float, 2e-5), (Kind::BFloat16, 2e-2)] {
                let x = (noise(&[n, 5 * kv_heads * d], 3) * 2.0).to_kind(kind);
                let norm = || Weight { gradient: Some(Tensor::zeros([d], options)), ..weight(d, kind) };
                for norms in [vec![], vec![norm(), norm()]] {
                    let at = Positional { q_norm: norms.first(), k_norm: norms.get(1), cos: &cos, sin: &sin };
                    let run = |x: &Tensor| causal(x, &at, heads, &trees).unwrap();
                    let right = ffi::plainly(|| with_gradients(&x, &norms, |x| causal(x, &at, heads, &padded).unwrap()));
                    // As far as one thread does it all.
                    let alone = lengths.len() == 1 && kv_heads == 1;
                    let plain_products = alone.then(|| ffi::without_small_products(|| with_gradients(&x, &norms, run)));
                    for got in [Some(with_gradients(&x, &norms, run)), plain_products].into_iter().flatten() {
                        for (i, (got, right)) in got.iter().zip(&right).enumerate() {
                            let (got, right) = (got.to_kind(Kind::Float), right.to_kind(Kind::Float));
                            let far = (&got - &right).norm().double_value(&[]) / right.norm().double_value(&[]).max(1e-3);
                            assert!(
                                far < tolerance,
                                "{lengths:?} {kv_heads} {d} {kind:?} {} norms, {i}: {far}",
                                norms.len()
                            );
                        }
                    }
                }
            }
        }
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
            for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)] {
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
                let places = Places::new(&slots, &positions).unwrap();
                let x = Tensor::randn([slots.len() as i64 + 1, 10 * d], options).to_kind(kind);
                let step = |[keys, values]: &[Tensor; 2]| {
                    let step = DecodeStep::new(&x, x.kind(), &places, [&cos, &sin]).unwrap();
                    attend(&x, &at, heads, [keys, values], &step).unwrap()
                };
                let (got, right) = (step(&ours), ffi::plainly(|| step(&theirs)));
                let near = |ours: &Tensor, right: &Tensor| {
                    let (ours, right) = (ours.to_kind(Kind::Float), right.to_kind(Kind::Float));
                    let (far, largest) = ((ours - &right).abs().max(), right.abs().max());
                    let (far, largest) = (far.double_value(&[]), largest.double_value(&[]));
                    assert!(far < tolerance * largest.max(1.0), "{kind:?} {d} {normed}: {far} of {largest}");
                };
                near(&got, &right);
                ours.iter().zip(&theirs).for_each(|(ours, right)| near(ours, right));
            }
        }
    }

    #[test]
    fn places_outside_the_cache_are_refused() {
        let options = (Kind::Float, device());
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 2, eps: 0.0 };
        let (table, cache, x) =
            (Tensor::ones([4, 2], options), Tensor::ones([2, 1, 4, 2], options), Tensor::ones([1, 6], options));
        let at = Positional { q_norm: None, k_norm: None, cos: &table, sin: &table };
        for (slot, position) in [(2i64, 0i64), (-1, 0), (0, 4)] {
            let step = || {
                let places = Places::new(&[slot], &[position])?;
                attend(&x, &at, heads, [&cache, &cache], &DecodeStep::new(&x, x.kind(), &places, [&table, &table])?)
            };
            for error in [step().unwrap_err(), ffi::plainly(step).unwrap_err()] {
                assert!(error.to_string().contains("places: "), "{error}");
            }
        }
    }
}
