//! The Kullback-Leibler divergence: of two whole distributions, and estimates from sampled tokens.
//!
//! For a token sampled from the policy whose log-probability is `logp`, [`k1`], [`k2`] and [`k3`] estimate KL(policy || reference) from
//! that one token, in nats; average over tokens. Schulman 2020, "Approximating KL divergence".

use super::ratio::MAX_LOG_RATIO;

/// `logp - logp_reference`: unbiased, of either sign, of high variance.
pub fn k1(logp: f32, logp_reference: f32) -> f32 {
    logp - logp_reference
}

/// `(logp - logp_reference)^2 / 2`: biased, never negative, of low variance.
pub fn k2(logp: f32, logp_reference: f32) -> f32 {
    let difference = logp - logp_reference;
    0.5 * difference * difference
}

/// `exp(d) - 1 - d` with `d = logp_reference - logp`: unbiased and never negative.
///
/// The formula's value for every `d` up to 20, and its value at 20 (4.9e8) above: there the policy all but excludes what the
/// reference allows, and the exponent would overflow. Between -1e-3 and 1e-3 it keeps its precision, which the formula as
/// written loses in f32.
pub fn k3(logp: f32, logp_reference: f32) -> f32 {
    let difference = logp_reference - logp;
    let d = f64::from(if difference > MAX_LOG_RATIO { MAX_LOG_RATIO } else { difference });
    (d.exp_m1() - d) as f32
}

/// KL(policy || reference) = `sum of p (log p - log q)` over the vocabulary, in nats, of log-probabilities `[V]` each.
///
/// Summed as `p (exp(d) - 1 - d)` with `d = log q - log p`: the same of two distributions, since both sum to 1, and every term of it is 0 or
/// more, so that what rounding does to the log-probabilities counts in the square. Infinite where the reference excludes what the policy
/// allows.
///
/// ```
/// use tidegate::kernel::kl::exact;
///
/// let [p, q] = [[0.5f32, 0.25, 0.25], [0.25, 0.25, 0.5]].map(|d| d.map(f32::ln));
/// assert!((exact(&p, &q) - 0.25 * 2f64.ln()).abs() < 1e-7);
/// ```
///
/// # Panics
/// Two vocabularies.
pub fn exact(logps: &[f32], logps_reference: &[f32]) -> f64 {
    assert_eq!(logps.len(), logps_reference.len(), "log-probabilities of two vocabularies");
    let pairs = logps.iter().zip(logps_reference).map(|(&p, &q)| (f64::from(p), f64::from(q)));
    // A difference of 1 loses nothing by the plain form, which no exponent overflows.
    let term = |(logp, logq): (f64, f64)| match logq - logp {
        _ if logp == f64::NEG_INFINITY => logq.exp(),
        d if d > 1.0 => logq.exp() - logp.exp() * (1.0 + d),
        d => logp.exp() * (d.exp_m1() - d),
    };
    pairs.map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Catches the sign of `d` (k3 of +1 and of -1 differ), the missing half in k2, and a clamp on the wrong side.
    #[test]
    fn by_hand() {
        assert_eq!((k1(-1.0, -2.0), k1(-2.0, -1.0)), (1.0, -1.0));
        assert_eq!((k2(-1.0, -3.0), k2(-3.0, -1.0)), (2.0, 2.0));
        assert_eq!(k3(-2.0, -1.0), 0.718_281_8);
        assert_eq!(k3(-1.0, -2.0), 0.367_879_44);
        assert_eq!(k3(-1.0, -1.0), 0.0);
        // exp(20) - 21; and, at the other end, -1 + 1000.
        assert_eq!((k3(-20.0, 0.0), k3(-1000.0, 0.0), k3(0.0, -1000.0)), (485_165_174.4, 485_165_174.4, 999.0));
    }

    fn logs(distribution: [f64; 3]) -> Vec<f32> {
        distribution.iter().map(|p| p.ln() as f32).collect()
    }

    /// By hand: 0.75 ln 1.5 + 0.25 ln 0.5, and what has no probability. Catches the two swapped (0.1438), base 2, and a token that the policy
    /// excludes and that makes the sum no number.
    #[test]
    fn exact_by_hand() {
        let (a, b) = (logs([0.75, 0.25, 0.0]), logs([0.5, 0.5, 0.0]));
        assert!((exact(&a, &b) - 0.130_812_035_941_137).abs() < 1e-7);
        assert!((exact(&b, &a) - 0.143_841_036_225_890_4).abs() < 1e-7);
        let certain = logs([1.0, 0.0, 0.0]);
        assert!((exact(&certain, &b) - 2f64.ln()).abs() < 1e-7);
        assert_eq!(exact(&b, &certain), f64::INFINITY);
        assert_eq!((exact(&a, &a), exact(&[], &[])), (0.0, 0.0));
        // What is all but excluded: exp(d) is beyond f64.
        assert!((exact(&[0.0, -1000.0], &[0.5f32.ln(), 0.5f32.ln()]) - 2f64.ln()).abs() < 1e-7);
        assert!(exact(&[f32::NAN, 0.0], &[0.0, 0.0]).is_nan() && exact(&[0.0], &[f32::NAN]).is_nan());
    }

    /// `e^2 / 2 (1/p + 1/(1-p))` to the first order, e = 2^-14. Catches `p (log p - log q)` as it is written, which is below 0 here.
    #[test]
    fn exact_is_precise_near_zero() {
        let (p, e) = (0.3f64, f64::exp2(-14.0));
        let two = |p: f64| [p.ln() as f32, (1.0 - p).ln() as f32];
        let right = e * e / 2.0 * (1.0 / p + 1.0 / (1.0 - p));
        assert!((exact(&two(p), &two(p + e)) / right - 1.0).abs() < 0.01, "{right}");
    }

    /// `d^2 / 2 + d^3 / 6`, d = 2^-12. Catches `exp(d) - 1 - d` in f32, whose rounding is as large as the value.
    #[test]
    fn k3_is_precise_near_zero() {
        let d = f32::exp2(-12.0);
        assert_eq!(k3(-1.0, -1.0 + d), (f64::from(d).powi(2) / 2.0 + f64::from(d).powi(3) / 6.0) as f32);
    }

    /// Catches a clamp or a max that turns NaN into a number.
    #[test]
    fn nan_stays_nan() {
        for estimate in [k1, k2, k3] {
            assert!(estimate(f32::NAN, -1.0).is_nan() && estimate(-1.0, f32::NAN).is_nan());
        }
    }

    proptest! {
        /// Averaged over a policy's own tokens, k1 and k3 are both the divergence. Catches a sign, and a swap of the two.
        #[test]
        fn unbiased(weights in prop::collection::vec((0.05f64..1.0, 0.05f64..1.0), 2..6)) {
            let (p, q): (Vec<f64>, Vec<f64>) = weights.into_iter().unzip();
            let (p_sum, q_sum): (f64, f64) = (p.iter().sum(), q.iter().sum());
            let (mut exact, mut mean1, mut mean3) = (0.0, 0.0, 0.0);
            for (p, q) in p.iter().map(|p| p / p_sum).zip(q.iter().map(|q| q / q_sum)) {
                exact += p * (p / q).ln();
                mean1 += p * f64::from(k1(p.ln() as f32, q.ln() as f32));
                mean3 += p * f64::from(k3(p.ln() as f32, q.ln() as f32));
            }
            prop_assert!((mean1 - exact).abs() < 1e-5 && (mean3 - exact).abs() < 1e-5, "{exact} {mean1} {mean3}");
        }
    }
}
