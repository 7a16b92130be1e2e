//! pass@k: how likely one of k rollouts solves a prompt, estimated from n of them.

/// The chance that of `k` of a prompt's `samples` rollouts, taken without putting back, at least one is among the `solved`:
/// `1 - C(n - c, k) / C(n, k)` for n samples of which c are solved. In 0..=1; for k = 1 exactly c / n.
///
/// Over rollouts that are sampled independently its mean is the chance that one of k solves the prompt, whatever n is: it is not
/// biased. The plain `1 - (1 - c/n)^k` is too low (Chen et al. 2021, arXiv 2107.03374, section 2.1 and appendix A).
///
/// No binomial is computed. The rollouts are taken one after the other: where none of the first j was solved, the next one is with
/// the chance c / (n - j). These chances are all at least 0 and are only added up, so that a small result keeps its digits, as
/// one less a product does not.
///
/// ```
/// use tidegate::kernel::pass_at_k::pass_at_k;
///
/// // Of the 10 pairs of 5 rollouts, 3 hold none of the 2 that are solved.
/// assert!((pass_at_k(5, 2, 2) - 0.7).abs() < 1e-15);
/// ```
///
/// # Panics
/// If k is not in 1..=n, or more are solved than there are.
pub fn pass_at_k(samples: u64, solved: u64, k: u64) -> f64 {
    assert!((1..=samples).contains(&k), "k = {k} of {samples} samples");
    assert!(solved <= samples, "{solved} solved of {samples} samples");
    if samples - solved < k {
        return 1.0;
    }
    // C(n - c, k) / C(n, k) is the same with c and k exchanged: the fewer are taken one after the other.
    let (taken, right) = (solved.min(k), solved.max(k));
    (0..taken).fold(0.0, |found, before| found + (1.0 - found) * (right as f64 / (samples - before) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(found: f64, right: f64) -> bool {
        (found - right).abs() <= 1e-14 * right.abs()
    }

    /// Catches solved and unsolved exchanged, taking with putting back (0.64 for the first), and n for n - 1.
    #[test]
    fn by_hand() {
        assert!(close(pass_at_k(5, 2, 2), 0.7));
        assert_eq!(pass_at_k(5, 2, 1), 0.4);
        assert!(close(pass_at_k(4, 1, 2), 0.5));
        assert!(close(pass_at_k(10, 3, 5), 1.0 - 21.0 / 252.0));
        // C(197, 100) / C(200, 100) = 100 * 99 * 98 / (200 * 199 * 198).
        assert!(close(pass_at_k(200, 3, 100), 1.0 - 970_200.0 / 7_880_400.0));
    }

    /// Catches 0/0, and a chance that is not quite 1 where every choice of k holds a solved one.
    #[test]
    fn ends() {
        assert_eq!([1, 2, 3].map(|k| pass_at_k(3, 0, k)), [0.0; 3]);
        assert_eq!([1, 2, 3].map(|k| pass_at_k(3, 3, k)), [1.0; 3]);
        assert_eq!([2, 3].map(|k| pass_at_k(3, 2, k)), [1.0; 2]);
        assert_eq!((pass_at_k(1, 0, 1), pass_at_k(1, 1, 1)), (0.0, 1.0));
    }

    /// Catches binomials that overflow, and one less a product, of which here 7 of 16 digits would be left.
    #[test]
    fn large_counts_keep_their_digits() {
        assert!(close(pass_at_k(1_000_000_000, 1, 3), 3e-9));
        assert!(close(pass_at_k(1_000_000_000, 3, 1), 3e-9));
        assert_eq!(pass_at_k(100_000, 50_000, 20_000), 1.0);
        let middle = pass_at_k(1_000_000, 1_000, 693);
        assert!((middle - 0.5).abs() < 2e-3, "{middle}");
    }

    /// Catches the estimate that is too low: its mean over all outcomes of 6 rollouts must be the true chance.
    #[test]
    fn it_is_not_biased() {
        let binomial = |n: u64, c: u64| (0..c).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64);
        let n = 6;
        for p in [0.05f64, 0.3, 0.9] {
            for k in 1..=n {
                let chance = |c: u64| binomial(n, c) * p.powi(c as i32) * (1.0 - p).powi((n - c) as i32);
                let mean: f64 = (0..=n).map(|c| chance(c) * pass_at_k(n, c, k)).sum();
                let right = 1.0 - (1.0 - p).powi(k as i32);
                assert!((mean - right).abs() < 1e-12, "p {p}, k {k}: {mean}, not {right}");
            }
        }
    }

    proptest! {
        /// The definition: the share of all choices of k rollouts that hold a solved one.
        #[test]
        fn it_is_the_mean_over_all_choices(solved in prop::collection::vec(any::<bool>(), 1..11), k in 1usize..11) {
            let n = solved.len();
            let k = k.min(n);
            let right = (0..n).fold(0u32, |bits, i| bits | u32::from(solved[i]) << i);
            let choices: Vec<u32> = (0..1u32 << n).filter(|choice| choice.count_ones() as usize == k).collect();
            let found = choices.iter().filter(|choice| **choice & right != 0).count();
            let estimate = pass_at_k(n as u64, right.count_ones().into(), k as u64);
            prop_assert!((estimate - found as f64 / choices.len() as f64).abs() < 1e-13);
            prop_assert!((0.0..=1.0).contains(&estimate));
        }
    }
}
