//! What holds for every loss: its derivative, masks, NaN, names, and that on policy all teach the same.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The loss at token `t`, in f64, as a function of the token's own log-probability `x`: what is detached is that of the
/// sequence as it is.
type Formula = fn(&Sequence, usize, f64) -> f64;

/// Each loss, and the formula of its paper.
pub(crate) const LOSSES: [(Loss, Formula); 11] = [
    (Loss::Reinforce { cap: 5.0 }, |s, t, x| -s.ratio(t).min(5.0) * s.advantage(t) * x),
    (Loss::Cispo { clip_low: 0.2, clip_high: 0.5 }, |s, t, x| -s.ratio(t).clamp(0.8, 1.5) * s.advantage(t) * x),
    (Loss::Ppo { clip_low: 0.2, clip_high: 0.5 }, |s, t, x| clipped((x - s.behavior(t)).exp(), s.advantage(t))),
    (Loss::DualClip { clip_low: 0.2, clip_high: 0.5, cap_negative: 1.5 }, |s, t, x| {
        let (loss, a) = (clipped((x - s.behavior(t)).exp(), s.advantage(t)), s.advantage(t));
        if a < 0.0 { loss.min(-1.5 * a) } else { loss }
    }),
    (Loss::Gspo { clip_low: 0.2, clip_high: 0.5 }, |s, t, x| {
        clipped(s.geometric_mean() * (x - s.current(t)).exp(), s.advantage(t))
    }),
    (Loss::DecoupledPpo { clip_low: 0.2, clip_high: 0.5, cap: 1.5 }, |s, t, x| {
        let behind = 1.0 / s.lag[t].max(1) as f64;
        let proximal = behind * s.behavior(t) + (1.0 - behind) * s.current(t);
        (proximal - s.behavior(t)).exp().min(1.5) * clipped((x - proximal).exp(), s.advantage(t))
    }),
    (Loss::SequenceTruncated { ratio: SequenceRatio::Product, cap: 2.0 }, |s, t, x| {
        -s.product().min(2.0) * s.advantage(t) * x
    }),
    (Loss::SequenceTruncated { ratio: SequenceRatio::GeometricMean, cap: 1.2 }, |s, t, x| {
        -s.geometric_mean().min(1.2) * s.advantage(t) * x
    }),
    (Loss::SequenceMasked { ratio: SequenceRatio::GeometricMean, low: 0.7, high: 1.5, cap: 2.0 }, |s, t, x| {
        let inside = (0.7..=1.5).contains(&s.geometric_mean());
        if inside { -s.ratio(t).min(2.0) * s.advantage(t) * x } else { 0.0 }
    }),
    (Loss::SequenceMasked { ratio: SequenceRatio::Product, low: 0.5, high: 3.0, cap: 5.0 }, |s, t, x| {
        let inside = (0.5..=3.0).contains(&s.product());
        if inside { -s.ratio(t).min(5.0) * s.advantage(t) * x } else { 0.0 }
    }),
    (Loss::Supervised, |_, _, x| -x),
];

/// Those that a reward teaches.
pub(crate) fn of_rewards() -> impl Iterator<Item = Loss> {
    LOSSES.iter().map(|(loss, _)| *loss).filter(|loss| loss.reads_behavior())
}

/// PPO's surrogate with the bounds 0.8 and 1.5.
fn clipped(ratio: f64, advantage: f64) -> f64 {
    -(ratio * advantage).min(ratio.clamp(0.8, 1.5) * advantage)
}

/// What [`Tokens`] borrows.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    current: Vec<f32>,
    behavior: Vec<f32>,
    advantage: Vec<f32>,
    lag: Vec<u64>,
    mask: Vec<bool>,
}

impl Sequence {
    fn terms(&self, loss: Loss) -> Vec<Term> {
        let Sequence { current, behavior, advantage, lag, mask } = self;
        let mut out = vec![Term { loss: 9.0, ..Term::default() }; 7];
        let tokens = Tokens { logp_current: current, logp_behavior: behavior, advantage, lag, mask };
        policy_loss(loss, tokens, &mut out);
        out
    }

    /// The tokens that are trained.
    fn chosen(&self) -> impl Iterator<Item = usize> {
        (0..self.mask.len()).filter(|&t| self.mask[t])
    }

    fn current(&self, t: usize) -> f64 {
        f64::from(self.current[t])
    }

    fn behavior(&self, t: usize) -> f64 {
        f64::from(self.behavior[t])
    }

    fn advantage(&self, t: usize) -> f64 {
        f64::from(self.advantage[t])
    }

    fn ratio(&self, t: usize) -> f64 {
        (self.current(t) - self.behavior(t)).exp()
    }

    fn product(&self) -> f64 {
        self.chosen().map(|t| self.ratio(t)).product()
    }

    fn geometric_mean(&self) -> f64 {
        self.product().powf(1.0 / self.chosen().count() as f64)
    }
}

/// One unmasked token.
pub(crate) fn one(loss: Loss, logp_current: f32, logp_behavior: f32, advantage: f32) -> Term {
    let (current, behavior, advantage) = (vec![logp_current], vec![logp_behavior], vec![advantage]);
    Sequence { current, behavior, advantage, lag: vec![0], mask: vec![true] }.terms(loss)[0]
}

/// Hard cases 7, 8 and 9. Catches a mask that multiplies (0 * NaN is NaN), terms left over from the sequence before, and a
/// ratio of the sequence in which masked tokens count.
#[test]
fn what_is_masked_changes_nothing() {
    let clean = Sequence {
        current: vec![-1.0, -0.5],
        behavior: vec![-1.2, -0.1],
        advantage: vec![0.5, -0.7],
        lag: vec![3, 1],
        mask: vec![true; 2],
    };
    for (loss, _) in LOSSES {
        let expected = clean.terms(loss);
        for junk in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.3] {
            let spread = |list: &[f32]| vec![list[0], junk, list[1], junk];
            let masked = Sequence {
                current: spread(&clean.current),
                behavior: spread(&clean.behavior),
                advantage: spread(&clean.advantage),
                lag: vec![3, 9, 1, 0],
                mask: vec![true, false, true, false],
            };
            let nothing = Term::default();
            assert_eq!(masked.terms(loss), [expected[0], nothing, expected[1], nothing], "{loss:?} {junk}");
            assert_eq!(Sequence { mask: vec![false; 4], ..masked }.terms(loss), [nothing; 4], "{loss:?} {junk}");
        }
    }
}

/// Catches `f32::min` and `f32::max`, which drop a NaN and would train on a broken number unseen.
#[test]
fn an_unmasked_nan_is_seen() {
    for (loss, _) in LOSSES {
        let broken = one(loss, f32::NAN, -1.0, 1.0);
        assert!(broken.loss.is_nan() && !broken.clipped, "{loss:?} {broken:?}");
    }
    for loss in of_rewards() {
        for broken in [one(loss, -1.0, f32::NAN, 1.0), one(loss, -1.0, -1.0, f32::NAN)] {
            assert!(broken.loss.is_nan() && broken.d_logp.is_nan(), "{loss:?} {broken:?}");
        }
    }
}

/// However far apart the policies are. Catches an exponent that overflows and inf * 0.
#[test]
fn the_farthest_policies_give_numbers() {
    for (loss, _) in LOSSES {
        for (current, behavior) in [(-1e4, 0.0), (0.0, -1e4), (-3e38, 0.0)] {
            for advantage in [0.0, 1.0, -1.0] {
                let Term { loss: height, d_logp, ratio, weight, .. } = one(loss, current, behavior, advantage);
                assert!([height, d_logp, ratio, weight].iter().all(|x| x.is_finite()), "{loss:?} {current} {behavior}");
            }
        }
    }
}

/// Catches a supervised loss that needs, or reads, what a warm start does not have.
#[test]
fn supervised_reads_the_current_policy_alone() {
    let mut out = Vec::new();
    let tokens = Tokens { logp_current: &[-0.5, -2.0], logp_behavior: &[], advantage: &[], lag: &[], mask: &[true, false] };
    policy_loss(Loss::Supervised, tokens, &mut out);
    assert_eq!(out, [Term { loss: 0.5, d_logp: -1.0, ratio: 1.0, weight: 1.0, clipped: false }, Term::default()]);
}

/// Catches a shorter list that silently ends the sequence.
#[test]
#[should_panic(expected = "logp_behavior and mask")]
fn lengths_are_checked() {
    let tokens = Tokens { logp_current: &[-1.0], logp_behavior: &[], advantage: &[1.0], lag: &[0], mask: &[true] };
    policy_loss(Loss::default(), tokens, &mut Vec::new());
}

/// Catches lags that are left out, which would pass for a lag of 0.
#[test]
#[should_panic(expected = "lag and mask")]
fn lags_are_checked_where_they_are_read() {
    let tokens = Tokens { logp_current: &[-1.0], logp_behavior: &[-1.0], advantage: &[1.0], lag: &[], mask: &[true] };
    let loss = Loss::DecoupledPpo { clip_low: 0.2, clip_high: 0.28, cap: 5.0 };
    policy_loss(loss, tokens, &mut Vec::new());
}

/// The names that the enum says it has are those of the list above. Catches a loss that none of these tests sees.
#[test]
fn every_loss_is_in_the_list() {
    let error = serde_json::from_str::<Loss>("\"?\"").unwrap_err().to_string();
    let names: BTreeSet<&str> = error.split('`').skip(1).step_by(2).filter(|name| *name != "?").collect();
    let written: Vec<String> = LOSSES.iter().map(|(loss, _)| serde_json::to_string(loss).unwrap()).collect();
    let listed: BTreeSet<&str> = written.iter().filter_map(|text| text.split('"').nth(1)).collect();
    assert!(names.len() > 5 && names == listed, "{names:?}, listed {listed:?}");
}

/// Catches a spec key that changes its name, a default that does, and a misspelt key that passes.
#[test]
fn names_and_defaults_in_the_spec() {
    let read = |text: &str| serde_json::from_str::<Loss>(text);
    let (clip_low, clip_high, cap) = (0.2, 0.28, 5.0);
    let (product, geometric_mean) = (SequenceRatio::Product, SequenceRatio::GeometricMean);
    for (name, loss) in [
        ("reinforce", Loss::default()),
        ("reinforce", Loss::Reinforce { cap }),
        ("cispo", Loss::Cispo { clip_low, clip_high }),
        ("ppo", Loss::Ppo { clip_low, clip_high }),
        ("dual_clip", Loss::DualClip { clip_low, clip_high, cap_negative: 3.0 }),
        ("gspo", Loss::Gspo { clip_low: 3e-4, clip_high: 4e-4 }),
        ("decoupled_ppo", Loss::DecoupledPpo { clip_low, clip_high, cap }),
        ("sequence_truncated", Loss::SequenceTruncated { ratio: product, cap }),
        ("sequence_masked", Loss::SequenceMasked { ratio: geometric_mean, low: 0.8, high: 1.25, cap }),
    ] {
        assert_eq!(read(&format!("{{\"{name}\": {{}}}}")).unwrap(), loss);
    }
    assert_eq!(read("\"supervised\"").unwrap(), Loss::Supervised);
    let ppo = Loss::Ppo { clip_low: 0.25, clip_high: 0.5 };
    assert_eq!(read("{\"ppo\": {\"clip_low\": 0.25, \"clip_high\": 0.5}}").unwrap(), ppo);
    let by_mean = Loss::SequenceTruncated { ratio: geometric_mean, cap };
    assert_eq!(read("{\"sequence_truncated\": {\"ratio\": \"geometric_mean\"}}").unwrap(), by_mean);
    assert!(read("{\"reinforce\": {\"cap\": 5, \"clip_low\": 0.2}}").is_err());
}

/// Sequences of up to five tokens, some masked.
fn sequences() -> impl Strategy<Value = Sequence> {
    let token = (-6.0f32..-0.1, -2.0f32..2.0, -3.0f32..3.0, 0u64..6, prop::bool::weighted(0.8));
    prop::collection::vec(token, 1..6).prop_map(|tokens| Sequence {
        current: tokens.iter().map(|token| token.0).collect(),
        behavior: tokens.iter().map(|token| token.0 - token.1).collect(),
        advantage: tokens.iter().map(|token| token.2).collect(),
        lag: tokens.iter().map(|token| token.3).collect(),
        mask: tokens.iter().map(|token| token.4).collect(),
    })
}

proptest! {
    /// The loss is its formula's value and `d_logp` the formula's slope, away from kinks. Catches a wrong branch, sign, factor
    /// or bound, and a derivative that goes through what is detached.
    #[test]
    fn losses_and_derivatives_are_those_of_the_formulas(sequence in sequences()) {
        // Where a sequence is just inside or outside, rounding decides.
        let apart = |whole: f64| [0.5, 0.7, 1.5, 3.0].iter().all(|bound| (whole - bound).abs() > 1e-4);
        prop_assume!(apart(sequence.product()) && apart(sequence.geometric_mean()));
        for (loss, formula) in LOSSES {
            let terms = sequence.terms(loss);
            for t in sequence.chosen() {
                let (x, h) = (sequence.current(t), 1e-4);
                let [below, here, above] = [x - h, x, x + h].map(|x| formula(&sequence, t, x));
                let near = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-3 * (1.0 + expected.abs());
                prop_assert!(near(terms[t].loss, here), "{loss:?} {t}: {:?}, the formula says {here}", terms[t]);
                if ((above - here) - (here - below)).abs() < 1e-2 * h {
                    let slope = (above - below) / (2.0 * h);
                    prop_assert!(near(terms[t].d_logp, slope), "{loss:?} {t}: {:?}, the slope is {slope}", terms[t]);
                }
            }
        }
    }

    /// On policy every loss that a reward teaches has the policy gradient's derivative, to the bit. Catches a bound that cuts
    /// there, a ratio that is not 1, a mean that divides the gradient, and a lag that counts where nothing has moved.
    #[test]
    fn on_policy_all_teach_the_same(sequence in sequences()) {
        let sequence = Sequence { behavior: sequence.current.clone(), ..sequence };
        for loss in of_rewards() {
            let terms = sequence.terms(loss);
            for t in sequence.chosen() {
                let Term { d_logp, ratio, weight, clipped, .. } = terms[t];
                prop_assert_eq!((d_logp, ratio, weight, clipped), (-sequence.advantage[t], 1.0, 1.0, false), "{:?}", loss);
            }
        }
    }

    /// The weight is what multiplies the advantage: in the loss of the surrogates, in the derivative of the others and wherever
    /// nothing is cut. Catches a weight reported to ESS that is not the one that teaches.
    #[test]
    fn the_weight_is_what_multiplies_the_advantage(sequence in sequences()) {
        for loss in of_rewards() {
            for (t, term) in sequence.terms(loss).into_iter().enumerate().filter(|&(t, _)| sequence.mask[t]) {
                let product = -term.weight * sequence.advantage[t];
                let near = |x: f32| (x - product).abs() <= 1e-5 * (1.0 + product.abs());
                prop_assert!(near(term.loss) || near(term.d_logp), "{loss:?} {term:?}");
                prop_assert!(term.clipped || (near(term.d_logp) && near(-term.ratio * sequence.advantage[t])), "{loss:?} {term:?}");
            }
        }
    }

    /// A sequence of one token has its token's ratio. Catches sequence losses that differ from their token's by more than the
    /// ratio.
    #[test]
    fn of_one_token_sequence_losses_are_their_tokens(current in -6.0f32..-0.1, log_ratio in -3.0f32..3.0, a in -3.0f32..3.0) {
        let at = |loss| one(loss, current, current - log_ratio, a);
        let (clip_low, clip_high, cap) = (0.2, 0.28, 5.0);
        prop_assert_eq!(at(Loss::Gspo { clip_low, clip_high }), at(Loss::Ppo { clip_low, clip_high }));
        for ratio in [SequenceRatio::Product, SequenceRatio::GeometricMean] {
            prop_assert_eq!(at(Loss::SequenceTruncated { ratio, cap }), at(Loss::Reinforce { cap }));
            let (low, high) = (0.0, f32::INFINITY);
            prop_assert_eq!(at(Loss::SequenceMasked { ratio, low, high, cap }), at(Loss::Reinforce { cap }));
        }
    }

    /// The paper's GSPO, nothing detached and one advantage a sequence: averaged over the tokens, ours has its gradient.
    /// Catches a per-token form that counts the sequence's ratio once a token.
    #[test]
    fn gspo_is_the_papers_in_sum(sequence in sequences(), advantage in -3.0f32..3.0) {
        let sequence = Sequence { advantage: vec![advantage; sequence.mask.len()], ..sequence };
        let objective = |delta: f64| {
            let sum: f64 = sequence.chosen().map(|u| sequence.current(u) - sequence.behavior(u)).sum();
            let n = sequence.chosen().count() as f64;
            clipped(((sum + delta) / n).exp(), f64::from(advantage))
        };
        let terms = sequence.terms(Loss::Gspo { clip_low: 0.2, clip_high: 0.5 });
        for t in sequence.chosen() {
            let (h, n) = (1e-4, sequence.chosen().count() as f64);
            let [below, here, above] = [-h, 0.0, h].map(objective);
            if ((above - here) - (here - below)).abs() < 1e-2 * h {
                let (found, slope) = (f64::from(terms[t].d_logp) / n, (above - below) / (2.0 * h));
                prop_assert!((found - slope).abs() < 1e-3 * (1.0 + slope.abs()), "{t}: {found}, the slope is {slope}");
            }
        }
    }

    /// Catches the half that verl has, in the loss or in the derivative alone.
    #[test]
    fn value_derivative(value in -5.0f32..5.0, target in -5.0f32..5.0) {
        let (loss, d_value) = value_loss(value, target);
        prop_assert_eq!(loss, (target - value) * (target - value));
        let h = 1.0 / 128.0;
        let numeric = (value_loss(value + h, target).0 - value_loss(value - h, target).0) / (2.0 * h);
        prop_assert!((d_value - numeric).abs() < 1e-2, "{d_value} {numeric}");
    }
}
