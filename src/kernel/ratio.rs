//! Importance ratios between the current and the behavior policy.

/// Where the log of a ratio is cut, on both sides, before it is exponentiated: `exp(20)` is 4.9e8, well inside f32, and
/// `exp(-20)` is 2.1e-9.
pub const MAX_LOG_RATIO: f32 = 20.0;

/// `pi(token) / mu(token)`: `exp(logp_current - logp_behavior)`, the exponent cut at ±[`MAX_LOG_RATIO`]. Exactly 1 where
/// the two are equal; NaN if one of them is.
pub fn ratio(logp_current: f32, logp_behavior: f32) -> f32 {
    (logp_current - logp_behavior).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

/// A ratio cut from above, `min(cap, ratio)` (Ionides 2008, "Truncated importance sampling"): it trades variance for bias.
/// NaN stays NaN.
pub fn truncated(ratio: f32, cap: f32) -> f32 {
    if ratio > cap { cap } else { ratio }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an exponent that overflows, a cut on one side only, and a ratio that is not 1 on policy.
    #[test]
    fn ratios_by_hand() {
        assert_eq!(ratio(-0.73, -0.73), 1.0);
        assert_eq!(ratio(-1.0, -1.0 - 2.0f32.ln()), 2.0);
        assert_eq!(ratio(0.0, -1000.0), 20.0f32.exp());
        assert_eq!(ratio(-1000.0, 0.0), (-20.0f32).exp());
        assert_eq!((truncated(7.0, 5.0), truncated(0.5, 5.0)), (5.0, 0.5));
    }

    /// Catches `f32::min`, which answers 5 here: a broken log-probability would train at full weight, unseen.
    #[test]
    fn nan_stays_nan() {
        assert!(truncated(ratio(-1.0, f32::NAN), 5.0).is_nan());
        assert!(truncated(ratio(f32::NAN, -1.0), 5.0).is_nan());
    }
}
