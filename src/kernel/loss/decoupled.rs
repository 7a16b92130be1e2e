//! Decoupled PPO: the surrogate around a proximal policy that is interpolated, not computed.

use super::ppo::surrogate;
use super::{Term, Token};
use crate::kernel::ratio::{ratio, truncated};

pub(super) fn decoupled_ppo(token: Token, clip: [f32; 2], cap: f32) -> Term {
    let Token { logp_current, logp_behavior, advantage, lag } = token;
    let proximal = logp_proximal(logp_current, logp_behavior, lag);
    let uncut = ratio(proximal, logp_behavior);
    let correction = truncated(uncut, cap);
    let term = surrogate(logp_current - proximal, advantage, clip);
    Term {
        loss: correction * term.loss,
        d_logp: correction * term.d_logp,
        ratio: ratio(logp_current, logp_behavior),
        weight: correction * term.weight,
        clipped: term.clipped || uncut > cap,
    }
}

/// Log-probability of the policy a step before the current one, if it moved evenly from the behavior's to the current's in
/// `lag` steps; the behavior's itself, to the bit, at a lag of 1 or 0.
fn logp_proximal(logp_current: f32, logp_behavior: f32, lag: u64) -> f32 {
    if lag <= 1 {
        return logp_behavior;
    }
    logp_behavior + (logp_current - logp_behavior) * ((lag - 1) as f32 / lag as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::loss::tests::one;
    use crate::kernel::loss::{Loss, Tokens, policy_loss};

    /// One token at a lag of 3 whose log-ratio is `log_ratio`: a third of it is the surrogate's, two thirds are the weight's.
    fn at(log_ratio: f32, advantage: f32, cap: f32) -> Term {
        let mut out = Vec::new();
        let tokens = Tokens {
            logp_current: &[-1.0],
            logp_behavior: &[-1.0 - log_ratio],
            advantage: &[advantage],
            lag: &[3],
            mask: &[true],
        };
        policy_loss(Loss::DecoupledPpo { clip_low: 0.25, clip_high: 0.5, cap }, tokens, &mut out);
        out[0]
    }

    fn assert_near(found: Term, expected: Term) {
        let near = |a: f32, b: f32| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
        let Term { loss, d_logp, ratio, weight, clipped } = expected;
        let all =
            near(found.loss, loss) && near(found.d_logp, d_logp) && near(found.ratio, ratio) && near(found.weight, weight);
        assert!(all && found.clipped == clipped, "{found:?}, not {expected:?}");
    }

    /// A ratio of 1.2^3: 1.2 over the last step, 1.44 before. Catches a bound on the whole ratio (1.728 is above 1.5), the two
    /// parts swapped, and a weight that counts twice.
    #[test]
    fn decoupled_ppo_by_hand() {
        let log = 3.0 * 1.2f32.ln();
        assert_near(at(log, 2.0, 5.0), Term { loss: -3.456, d_logp: -3.456, ratio: 1.728, weight: 1.728, clipped: false });
        // The weight cut to 1.25, the surrogate as it was.
        assert_near(at(log, 2.0, 1.25), Term { loss: -3.0, d_logp: -3.0, ratio: 1.728, weight: 1.5, clipped: true });
        // 2^3: the last step's 2 is cut to 1.5, times 4.
        let log = 3.0 * 2.0f32.ln();
        assert_near(at(log, 1.0, 5.0), Term { loss: -6.0, d_logp: 0.0, ratio: 8.0, weight: 6.0, clipped: true });
        assert_near(at(log, -1.0, 5.0), Term { loss: 8.0, d_logp: 8.0, ratio: 8.0, weight: 8.0, clipped: false });
        // 0.5^3: the last step's 0.5 is raised to 0.75, times 0.25.
        assert_near(at(-log, -1.0, 5.0), Term { loss: 0.1875, d_logp: 0.0, ratio: 0.125, weight: 0.1875, clipped: true });
    }

    /// Catches 0/0 at lag 0, and an anchor that is the current policy, which would never bound anything.
    #[test]
    fn up_to_a_lag_of_one_it_is_ppo() {
        let (clip_low, clip_high) = (0.2, 0.28);
        for lag in [0, 1] {
            for log_ratio in [-30.0, -0.7, -0.1, 0.0, 0.2, 0.3, 3.0, 30.0] {
                for advantage in [-1.5, 0.5] {
                    let token = Token { logp_current: -1.0, logp_behavior: -1.0 - log_ratio, advantage, lag };
                    let ppo = one(Loss::Ppo { clip_low, clip_high }, -1.0, -1.0 - log_ratio, advantage);
                    assert_eq!(decoupled_ppo(token, [clip_low, clip_high], 5.0), ppo);
                }
            }
        }
    }

    /// Catches the weights of the interpolation the wrong way round, which agree at a lag of 2.
    #[test]
    fn the_proximal_policy_is_a_step_behind() {
        assert_eq!([2, 4].map(|lag| logp_proximal(-1.0, -3.0, lag)), [-2.0, -1.5]);
        assert_eq!([0, 1].map(|lag| logp_proximal(-1.0, -3.0, lag)), [-3.0, -3.0]);
    }
}
