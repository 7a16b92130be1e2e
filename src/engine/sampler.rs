//! Choosing a token: counter-based randomness, and the distribution that is sampled from.
//!
//! Every draw is a function of (run seed, group, sample, position), so that it does not depend on which other rollouts
//! share the batch.

use crate::engine::spec::Sampling;

/// A uniform draw in `[0, 1)`: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) keyed by
/// the seed, with (group, sample, position) as its counter. 53 random bits.
pub fn uniform(seed: u64, group: u64, sample: u32, position: u32) -> f64 {
    let counter = [group as u32, (group >> 32) as u32, sample, position];
    let [a, b, ..] = philox4x32_10(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

fn philox4x32_10(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(c[0]) * 0xD251_1F53;
        let p1 = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// The token that was chosen, and its log-probability under the distribution it was drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    pub logp: f32,
}

/// Chooses a token. `logps` are the log-probabilities `[V]` of all tokens, of logits already divided by the temperature
/// (by 1 where the temperature is 0); `u` is a uniform draw in `[0, 1)`.
///
/// Temperature 0 takes the likeliest token and keeps its log-probability at temperature 1. Otherwise `top_k`, then `top_p`
/// (over what `top_k` left), cut the distribution; what is left is renormalised in place, the rest becomes minus infinity;
/// and the draw inverts the cumulative distribution in order of ids. Of equally likely tokens the one with the lower id
/// counts as the likelier. Where `logps` are not numbers, so is the choice's.
///
/// # Panics
/// An empty `logps`.
pub fn choose(logps: &mut [f32], sampling: &Sampling, u: f64) -> Choice {
    if sampling.temperature == 0.0 {
        return likeliest(logps);
    }
    let cut = (1..logps.len()).contains(&sampling.top_k) || sampling.top_p < 1.0;
    if cut {
        keep_likeliest(logps, sampling.top_k, sampling.top_p);
    }
    let mut below = 0.0;
    let mut last = 0;
    for (token, &logp) in logps.iter().enumerate() {
        let probability = f64::from(logp.exp());
        if probability > 0.0 {
            last = token;
        }
        below += probability;
        if u < below {
            break;
        }
    }
    // Rounding may leave the sum a little below u: then it is the last token that has any probability.
    Choice { token: last as u32, logp: logps[last] }
}

/// The first of the largest.
fn likeliest(logps: &[f32]) -> Choice {
    let mut best = 0;
    for (token, &logp) in logps.iter().enumerate() {
        if logp > logps[best] {
            best = token;
        }
    }
    Choice { token: best as u32, logp: logps[best] }
}

/// Cuts and renormalises. Sorts no more of the vocabulary than it keeps, or nearly so.
fn keep_likeliest(logps: &mut [f32], top_k: usize, top_p: f64) {
    let most = if top_k == 0 { logps.len() } else { top_k.min(logps.len()) };
    let by_likelihood = |&a: &u32, &b: &u32| logps[b as usize].total_cmp(&logps[a as usize]).then(a.cmp(&b));
    let probability = |id: &u32| f64::from(logps[*id as usize]).exp();
    let mut ids: Vec<u32> = (0..logps.len() as u32).collect();
    if most < ids.len() {
        ids.select_nth_unstable_by(most - 1, by_likelihood);
        ids.truncate(most);
    }
    let goal = if top_p < 1.0 { top_p * ids.iter().map(probability).sum::<f64>() } else { f64::INFINITY };
    // The part of `ids` in order of likelihood, and its probability.
    let (mut sorted, mut mass, mut kept) = (0, 0.0, None);
    while goal.is_finite() && kept.is_none() && sorted < ids.len() {
        let end = (sorted * 8).max(64).min(ids.len());
        if end < ids.len() {
            ids[sorted..].select_nth_unstable_by(end - sorted - 1, by_likelihood);
        }
        ids[sorted..end].sort_unstable_by(by_likelihood);
        for (i, id) in ids[sorted..end].iter().enumerate() {
            mass += probability(id);
            if mass >= goal {
                kept = Some(sorted + i + 1);
                break;
            }
        }
        sorted = end;
    }
    ids.truncate(kept.unwrap_or(ids.len()));
    let log_mass = ids.iter().map(probability).sum::<f64>().ln();
    ids.sort_unstable();
    let mut ids = ids.into_iter().peekable();
    for (token, logp) in logps.iter_mut().enumerate() {
        let keep = ids.next_if_eq(&(token as u32)).is_some();
        *logp = if keep { (f64::from(*logp) - log_mass) as f32 } else { f32::NEG_INFINITY };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Known answers of the Random123 distribution (kat_vectors).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32_10([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn draws_are_uniform_and_their_own() {
        let draws: Vec<f64> = (0..10_000).map(|position| uniform(7, 3, 1, position)).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        // Mean 1/2 and variance 1/12, within four deviations of the estimates.
        let mean = draws.iter().sum::<f64>() / 1e4;
        let variance = draws.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 4.0 * 0.002_887 && (variance - 1.0 / 12.0).abs() < 4.0 * 0.000_745);
        let at = |seed, group, sample, position| uniform(seed, group, sample, position).to_bits();
        let all = [at(0, 0, 0, 0), at(1, 0, 0, 0), at(0, 1, 0, 0), at(0, 1 << 32, 0, 0), at(0, 0, 1, 0), at(0, 0, 0, 1)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
    }

    const P: [f32; 5] = [0.1, 0.4, 0.2, 0.25, 0.05];

    fn logps() -> Vec<f32> {
        P.iter().map(|p| p.ln()).collect()
    }

    fn sampling(temperature: f64, top_k: usize, top_p: f64) -> Sampling {
        Sampling { temperature, top_k, top_p, ..Sampling::default() }
    }

    #[test]
    fn a_draw_inverts_the_cumulative_distribution() {
        let token = |u| choose(&mut logps(), &sampling(1.0, 0, 1.0), u).token;
        assert_eq!(
            [0.0, 0.0999, 0.1001, 0.4999, 0.5001, 0.7001, 0.9501, 0.999_999_999].map(token),
            [0, 0, 1, 1, 2, 3, 4, 4]
        );
        assert_eq!(choose(&mut logps(), &sampling(1.0, 0, 1.0), 0.3).logp, 0.4f32.ln());
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(choose(&mut logps(), &sampling(0.0, 0, 1.0), 0.99), Choice { token: 1, logp: 0.4f32.ln() });
        assert_eq!(choose(&mut [-1.5, -0.5, -0.5], &sampling(0.0, 0, 1.0), 0.0).token, 1);
    }

    #[test]
    fn cuts_keep_the_likeliest_and_renormalise() {
        // top_k 3 keeps 0.4, 0.25, 0.2; top_p 0.6 keeps 0.4 and 0.25; of both, 0.6 * 0.85 needs 0.4 and 0.25 too.
        for (k, p, kept) in [(3, 1.0, vec![1, 2, 3]), (0, 0.6, vec![1, 3]), (3, 0.6, vec![1, 3]), (0, 1e-9, vec![1])] {
            let mut row = logps();
            let mass: f32 = kept.iter().map(|&i: &usize| P[i]).sum();
            let choice = choose(&mut row, &sampling(1.0, k, p), 0.0);
            assert_eq!(choice.token as usize, kept[0]);
            for (i, (logp, p)) in row.iter().zip(P).enumerate() {
                let right = if kept.contains(&i) { (p / mass).ln() } else { f32::NEG_INFINITY };
                assert!(*logp == right || (logp - right).abs() < 1e-6, "{k} {p} {i}");
            }
        }
        // A tie at the edge: the lower id stays.
        let mut row = vec![0.25f32.ln(); 4];
        choose(&mut row, &sampling(1.0, 2, 1.0), 0.0);
        assert_eq!(row.iter().map(|x| x.is_finite()).collect::<Vec<_>>(), [true, true, false, false]);
    }

    #[test]
    fn what_is_not_a_number_is_not_hidden() {
        assert!(choose(&mut [f32::NAN; 3], &sampling(1.0, 0, 1.0), 0.5).logp.is_nan());
        assert!(choose(&mut [f32::NAN; 3], &sampling(0.0, 0, 1.0), 0.5).logp.is_nan());
        assert!(choose(&mut [f32::NAN; 3], &sampling(1.0, 2, 0.5), 0.5).logp.is_nan());
    }

    proptest! {
        #[test]
        fn cuts_are_those_of_a_full_sort(
            logits in prop::collection::vec(-8f32..8.0, 1..300),
            top_k in 0usize..310,
            top_p in 0.01f64..1.2,
            u in 0f64..1.0,
        ) {
            let log_sum = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
            let logps: Vec<f32> = logits.iter().map(|x| (f64::from(*x) - log_sum) as f32).collect();
            // The definition, slowly.
            let p = |i: usize| f64::from(logps[i]).exp();
            let mut ids: Vec<usize> = (0..logps.len()).collect();
            ids.sort_by(|&a, &b| logps[b].total_cmp(&logps[a]).then(a.cmp(&b)));
            ids.truncate(if top_k == 0 { usize::MAX } else { top_k });
            let goal = top_p * ids.iter().map(|&i| p(i)).sum::<f64>();
            let mut mass = 0.0;
            ids.retain(|&i| {
                let keep = top_p >= 1.0 || mass < goal;
                mass += p(i);
                keep
            });

            let mut row = logps.clone();
            let choice = choose(&mut row, &sampling(1.0, top_k, top_p), u);
            let mut kept: Vec<usize> = (0..row.len()).filter(|&i| row[i].is_finite()).collect();
            let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            prop_assert!((total - 1.0).abs() < 1e-5, "sums to {total}");
            prop_assert!(kept.contains(&(choice.token as usize)));
            prop_assert_eq!(choice.logp, row[choice.token as usize]);
            kept.sort_unstable();
            ids.sort_unstable();
            prop_assert_eq!(kept, ids);
        }
    }
}
