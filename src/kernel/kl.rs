//! Estimates of the Kullback-Leibler divergence.
//!
//! For a token sampled from the policy whose log-probability is `logp`, each function estimates KL(policy || reference) from
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
