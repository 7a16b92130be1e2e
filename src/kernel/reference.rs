//! What it costs to leave a reference policy: at a token, in the advantages of a rollout, and how the price moves.
//!
//! With `d = logp_current - logp_reference` the gradient of KL(current || reference) is, over the current policy's own tokens, the
//! mean of `d * grad logp_current`. That is the derivative of [`k2`], and no other estimate's: [`k1`]'s is 1, whose mean is 0 (it
//! pulls nowhere), and [`k3`]'s is `1 - exp(-d)`, the gradient of KL(reference || current), which is the same to first order and
//! weaker the further the policy is (Tang and Munos 2025, arXiv 2506.09477; Schulman 2020, "Approximating KL divergence").

use super::kl::{k1, k2, k3};
use super::ratio::{MAX_LOG_RATIO, ratio, truncated};
use serde::{Deserialize, Serialize};

/// Where the divergence from the reference enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlIn {
    /// In the loss, as a term of its own.
    #[default]
    Loss,
    /// In the reward of each token, and so in the advantages.
    Reward,
}

/// How it is estimated from one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    #[default]
    K1,
    K2,
    K3,
}

impl KlEstimator {
    /// The estimate of KL(policy || reference), nats, from a token that the policy chose.
    pub fn value(self, logp: f32, logp_reference: f32) -> f32 {
        match self {
            KlEstimator::K1 => k1(logp, logp_reference),
            KlEstimator::K2 => k2(logp, logp_reference),
            KlEstimator::K3 => k3(logp, logp_reference),
        }
    }

    /// What multiplies the gradient of `logp` where the estimate is in the loss: `d` for [`KlEstimator::K1`] (in place of its own
    /// derivative) and [`KlEstimator::K2`], `1 - exp(-d)` for [`KlEstimator::K3`], and 0 where its value is cut.
    pub fn derivative(self, logp: f32, logp_reference: f32) -> f32 {
        let d = logp - logp_reference;
        match self {
            KlEstimator::K1 | KlEstimator::K2 => d,
            KlEstimator::K3 if -d > MAX_LOG_RATIO => 0.0,
            KlEstimator::K3 => -f64::from(-d).exp_m1() as f32,
        }
    }
}

/// Where the importance weight of a token is cut.
pub const CAP: f32 = 5.0;

/// `min(CAP, pi / mu)`: what a token counts for that another policy than the current one chose. A constant to the derivative.
pub fn weight(logp_current: f32, logp_behavior: f32) -> f32 {
    truncated(ratio(logp_current, logp_behavior), CAP)
}

/// The loss of one token and its derivative with respect to `logp_current`: estimate and derivative of [`KlEstimator`] times the
/// [`weight`]. Both 0 where current and reference policy agree. NaN stays NaN.
///
/// ```
/// use tidegate::kernel::reference::{KlEstimator, reference_loss};
///
/// // On policy.
/// assert_eq!(reference_loss(KlEstimator::K1, -1.0, -1.0, -1.5), (0.5, 0.5));
/// assert_eq!(reference_loss(KlEstimator::K2, -1.0, -1.0, -1.5), (0.125, 0.5));
/// // A token that has become twice as likely since it was sampled counts twice.
/// assert_eq!(reference_loss(KlEstimator::K1, -1.0, -1.0 - 2.0f32.ln(), -1.5), (1.0, 1.0));
/// ```
pub fn reference_loss(estimator: KlEstimator, logp_current: f32, logp_behavior: f32, logp_reference: f32) -> (f32, f32) {
    let weight = weight(logp_current, logp_behavior);
    let (value, derivative) =
        (estimator.value(logp_current, logp_reference), estimator.derivative(logp_current, logp_reference));
    (weight * value, weight * derivative)
}

/// How a rollout's penalties go into its advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalty {
    pub estimator: KlEstimator,
    pub coefficient: f64,
    /// What a penalty counts for a chosen token earlier: 1, or GAE's `gamma * lambda`.
    pub discount: f64,
}

impl Penalty {
    /// Takes from each chosen token's advantage what it and the chosen tokens after it cost, all lists `[T]`:
    /// `advantage_t -= coefficient * sum over s >= t of discount^(s - t) * estimate_s`, where the estimate is between the policy
    /// that sampled the token and the reference. Other tokens cost nothing and are no time.
    ///
    /// # Panics
    /// If the lengths differ.
    ///
    /// ```
    /// use tidegate::kernel::reference::{KlEstimator, Penalty};
    ///
    /// let penalty = Penalty { estimator: KlEstimator::K1, coefficient: 0.5, discount: 1.0 };
    /// let mut advantage = [1.0, 0.0, 1.0];
    /// penalty.take_from(&mut advantage, &[-1.0, 9.0, -1.0], &[-2.0, -9.0, -1.5], &[true, false, true]);
    /// assert_eq!(advantage, [0.25, 0.0, 0.75]);
    /// ```
    pub fn take_from(&self, advantage: &mut [f32], logp_behavior: &[f32], logp_reference: &[f32], mask: &[bool]) {
        assert_eq!(advantage.len(), mask.len(), "advantage and mask are of the same tokens");
        assert_eq!(logp_behavior.len(), mask.len(), "logp_behavior and mask are of the same tokens");
        assert_eq!(logp_reference.len(), mask.len(), "logp_reference and mask are of the same tokens");
        let mut to_come = 0.0;
        for t in (0..mask.len()).rev().filter(|&t| mask[t]) {
            to_come = f64::from(self.estimator.value(logp_behavior[t], logp_reference[t])) + self.discount * to_come;
            advantage[t] = (f64::from(advantage[t]) - self.coefficient * to_come) as f32;
        }
    }
}

/// The coefficient of the step after one that measured `kl` with `coefficient`: a tenth of the relative error from `target`, which
/// is cut at ±0.2, larger or smaller (Ziegler et al. 2019, arXiv 1909.08593, section 2.2). So it changes by 2 % a step at most.
///
/// ```
/// use tidegate::kernel::reference::next_coefficient;
///
/// assert_eq!(next_coefficient(2.0, 0.11, 0.1), 2.0 * (1.0 + 0.1 * ((0.11 - 0.1) / 0.1)));
/// assert_eq!([9.0, 0.0].map(|kl| next_coefficient(1.0, kl, 0.1)), [1.02, 0.98]);
/// ```
pub fn next_coefficient(coefficient: f64, kl: f64, target: f64) -> f64 {
    coefficient * (1.0 + 0.1 * ((kl - target) / target).clamp(-0.2, 0.2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use KlEstimator::{K1, K2, K3};
    use proptest::prelude::*;

    /// Catches the sign of d, the missing half of k2 and its derivative, and k1's own derivative, which is 1.
    #[test]
    fn by_hand() {
        // d = 1 and d = -1.
        assert_eq!([K1, K2, K3].map(|k| k.value(-1.0, -2.0)), [1.0, 0.5, 0.367_879_44]);
        assert_eq!([K1, K2, K3].map(|k| k.derivative(-1.0, -2.0)), [1.0, 1.0, 0.632_120_55]);
        assert_eq!([K1, K2, K3].map(|k| k.value(-2.0, -1.0)), [-1.0, 0.5, 0.718_281_8]);
        assert_eq!([K1, K2, K3].map(|k| k.derivative(-2.0, -1.0)), [-1.0, -1.0, -1.718_281_9]);
        assert_eq!(K3.derivative(-30.0, -1.0), 0.0, "its value is cut there");
        // Sampled when it was a quarter as likely; and a hundred times: cut at 5.
        let ln = |x: f32| x.ln();
        assert!((reference_loss(K1, -1.0, -1.0 - ln(4.0), -3.0).1 - 8.0).abs() < 1e-5);
        assert_eq!(reference_loss(K2, -1.0, -1.0 - ln(100.0), -3.0), (10.0, 10.0));
    }

    #[test]
    fn nothing_where_the_two_agree() {
        for (k, behavior) in [K1, K2, K3].into_iter().zip([-0.7, -3.0, -0.1]) {
            assert_eq!(reference_loss(k, -0.7, behavior, -0.7), (0.0, 0.0));
            let mut advantage = [0.25, -1.0];
            Penalty { estimator: k, coefficient: 9.0, discount: 1.0 }.take_from(
                &mut advantage,
                &[-0.7; 2],
                &[-0.7; 2],
                &[true; 2],
            );
            assert_eq!(advantage, [0.25, -1.0]);
        }
    }

    #[test]
    fn nan_stays_nan() {
        for k in [K1, K2, K3] {
            assert!(
                reference_loss(k, f32::NAN, -1.0, -1.0).1.is_nan() && reference_loss(k, -1.0, -1.0, f32::NAN).1.is_nan()
            );
            assert!(reference_loss(k, -1.0, f32::NAN, -2.0).0.is_nan());
        }
        assert!(next_coefficient(1.0, f64::NAN, 0.1).is_nan());
    }

    /// Penalties 1, 2 and 4 nats; the last but one is masked. Catches a sum over the tokens before, a masked token that costs or
    /// that counts as time, and a discount that is left out.
    #[test]
    fn penalties_to_come_by_hand() {
        let taken = |discount, mask: [bool; 3]| {
            let mut advantage = [10.0; 3];
            let penalty = Penalty { estimator: K1, coefficient: 0.5, discount };
            penalty.take_from(&mut advantage, &[-1.0, -1.0, -1.0], &[-2.0, -3.0, -5.0], &mask);
            advantage
        };
        assert_eq!(taken(1.0, [true; 3]), [6.5, 7.0, 8.0]);
        assert_eq!(taken(0.5, [true; 3]), [8.5, 8.0, 8.0]);
        assert_eq!(taken(0.5, [true, false, true]), [8.5, 10.0, 8.0]);
        assert_eq!(taken(1.0, [false; 3]), [10.0; 3]);
    }

    /// Catches a target that is taken as a bound, a rate of 0.2 in place of 0.1, and an error that is not relative.
    #[test]
    fn the_coefficient_goes_towards_the_target() {
        assert_eq!(next_coefficient(0.5, 0.02, 0.02), 0.5);
        assert!((next_coefficient(1.0, 0.022, 0.02) - 1.01).abs() < 1e-12);
        assert!((next_coefficient(1.0, 0.019, 0.02) - 0.995).abs() < 1e-12);
        assert_eq!((next_coefficient(1.0, 1.0, 0.02), next_coefficient(1.0, -1.0, 0.02)), (1.02, 0.98));
    }

    /// A policy of logits, and a reference.
    fn policies() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        prop::collection::vec((-1.5f64..1.5, -1.5f64..1.5), 2..6).prop_map(|pairs| pairs.into_iter().unzip())
    }

    fn softmax(logits: &[f64]) -> Vec<f64> {
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        logits.iter().map(|x| x.exp() / sum).collect()
    }

    fn kl(p: &[f64], q: &[f64]) -> f64 {
        p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum()
    }

    proptest! {
        /// k2 and k3 are functions whose slope the derivative is.
        #[test]
        fn derivatives_are_slopes(logp in -6.0f32..-0.1, reference in -6.0f32..-0.1) {
            for k in [K2, K3] {
                let slope = (k.value(logp + 1e-2, reference) - k.value(logp - 1e-2, reference)) / 2e-2;
                let found = k.derivative(logp, reference);
                prop_assert!((found - slope).abs() < 5e-3 * (1.0 + slope.abs()), "{k:?}: {found} {slope}");
            }
        }

        /// Over all tokens a policy may choose, `weight * derivative * grad logp` is the gradient of the divergence: of KL(current ||
        /// reference) for k1 and k2, of KL(reference || current) for k3. Whoever sampled, as long as no weight is cut.
        #[test]
        fn in_the_mean_they_are_gradients((current, reference) in policies(), shift in -0.7f64..0.7) {
            let behavior: Vec<f64> = current.iter().enumerate().map(|(i, x)| if i == 0 { x + shift } else { *x }).collect();
            let (p, mu, q) = (softmax(&current), softmax(&behavior), softmax(&reference));
            for k in [K1, K2, K3] {
                for j in 0..p.len() {
                    let of = |delta: f64| {
                        let moved: Vec<f64> = current.iter().enumerate().map(|(i, x)| if i == j { x + delta } else { *x }).collect();
                        let moved = softmax(&moved);
                        if k == K3 { kl(&q, &moved) } else { kl(&moved, &q) }
                    };
                    let slope = (of(1e-4) - of(-1e-4)) / 2e-4;
                    let mean: f64 = (0..p.len()).map(|i| {
                        let log = |x: f64| x.ln() as f32;
                        let (_, d) = reference_loss(k, log(p[i]), log(mu[i]), log(q[i]));
                        mu[i] * f64::from(d) * (if i == j { 1.0 } else { 0.0 } - p[j])
                    }).sum();
                    prop_assert!((mean - slope).abs() < 1e-4, "{k:?} {j}: {mean} {slope}");
                }
            }
        }
    }

    /// Catches a spec key that changes its name.
    #[test]
    fn names_in_the_spec() {
        let of = |text| serde_json::from_str::<KlEstimator>(text).unwrap();
        assert_eq!(["\"k1\"", "\"k2\"", "\"k3\""].map(of), [K1, K2, K3]);
        assert_eq!(serde_json::to_string(&KlIn::Reward).unwrap(), "\"reward\"");
    }
}
