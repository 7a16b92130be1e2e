//! The losses as formulas in libtorch, for autograd to differentiate: `detach` stands where the paper stops the gradient.

use crate::kernel::loss::Loss;
use crate::kernel::ratio::SequenceRatio;
use crate::kernel::reference::KlEstimator;
use tch::{Kind, Tensor};
use tidegate_operators::record::Rollout;

/// Bounds that some of the test's tokens, and of its sequences, are beyond.
pub(super) const LOSSES: [Loss; 9] = [
    Loss::Reinforce { cap: 1.5 },
    Loss::Cispo { clip_low: 0.2, clip_high: 0.28 },
    Loss::Ppo { clip_low: 0.2, clip_high: 0.28 },
    Loss::DualClip { clip_low: 0.2, clip_high: 0.28, cap_negative: 1.5 },
    Loss::Gspo { clip_low: 0.2, clip_high: 0.28 },
    Loss::DecoupledPpo { clip_low: 0.1, clip_high: 0.1, cap: 1.5 },
    Loss::SequenceTruncated { ratio: SequenceRatio::Product, cap: 1.5 },
    Loss::SequenceMasked { ratio: SequenceRatio::GeometricMean, low: 0.5, high: 2.0, cap: 1.5 },
    Loss::Supervised,
];

/// `[T]` loss of each token; what masked tokens have is not looked at.
pub(super) fn loss(loss: Loss, rollout: &Rollout, logp: &Tensor) -> Tensor {
    let advantage = &Tensor::from_slice(&rollout.advantage);
    let behavior = &Tensor::from_slice(&rollout.logp_behavior);
    let ratio = (logp - behavior).exp();
    match loss {
        Loss::Reinforce { cap } => -ratio.clamp_max(f64::from(cap)).detach() * advantage * logp,
        Loss::Cispo { clip_low, clip_high } => -within(&ratio, [clip_low, clip_high]).detach() * advantage * logp,
        Loss::Ppo { clip_low, clip_high } => surrogate(&ratio, advantage, [clip_low, clip_high]),
        Loss::DualClip { clip_low, clip_high, cap_negative } => {
            let ppo = surrogate(&ratio, advantage, [clip_low, clip_high]);
            let most = -advantage * f64::from(cap_negative);
            ppo.minimum(&most).where_self(&advantage.lt(0.0), &ppo)
        }
        Loss::Gspo { clip_low, clip_high } => {
            let whole = sequence(SequenceRatio::GeometricMean, rollout, logp);
            surrogate(&(whole * (logp - logp.detach()).exp()), advantage, [clip_low, clip_high])
        }
        Loss::DecoupledPpo { clip_low, clip_high, cap } => {
            let lag: Vec<f32> = rollout.version.iter().map(|version| (rollout.step - 1 - version).max(1) as f32).collect();
            let behind = Tensor::from_slice(&lag).reciprocal();
            let ahead: Tensor = 1.0 - &behind;
            let proximal = (behavior * &behind + logp * ahead).detach();
            let weight = (&proximal - behavior).exp().clamp_max(f64::from(cap));
            weight * surrogate(&(logp - proximal).exp(), advantage, [clip_low, clip_high])
        }
        Loss::SequenceTruncated { ratio, cap } => {
            -sequence(ratio, rollout, logp).clamp_max(f64::from(cap)) * advantage * logp
        }
        Loss::SequenceMasked { ratio: kind, low, high, cap } => {
            let whole = sequence(kind, rollout, logp);
            let inside = whole.ge(f64::from(low)).logical_and(&whole.le(f64::from(high)));
            -ratio.clamp_max(f64::from(cap)).detach() * advantage * logp * inside
        }
        Loss::Supervised => -logp,
    }
}

/// `[T]` what each token costs for leaving the reference. k1 has the gradient of k2.
pub(super) fn reference(estimator: KlEstimator, rollout: &Rollout, logp: &Tensor) -> Tensor {
    let d = logp - Tensor::from_slice(&rollout.logp_reference);
    let weight = (logp - Tensor::from_slice(&rollout.logp_behavior)).exp().clamp_max(5.0).detach();
    let k2 = d.square() * 0.5;
    weight
        * match estimator {
            KlEstimator::K1 => d.detach() + &k2 - k2.detach(),
            KlEstimator::K2 => k2,
            KlEstimator::K3 => (-&d).exp() - 1.0 + d,
        }
}

fn within(ratio: &Tensor, [clip_low, clip_high]: [f32; 2]) -> Tensor {
    ratio.clamp(f64::from(1.0 - clip_low), f64::from(1.0 + clip_high))
}

fn surrogate(ratio: &Tensor, advantage: &Tensor, clip: [f32; 2]) -> Tensor {
    -(ratio * advantage).minimum(&(within(ratio, clip) * advantage))
}

/// The ratio of all tokens that are trained, detached.
fn sequence(kind: SequenceRatio, rollout: &Rollout, logp: &Tensor) -> Tensor {
    let chosen = (logp - Tensor::from_slice(&rollout.logp_behavior)).masked_select(&Tensor::from_slice(&rollout.mask));
    let log = match kind {
        SequenceRatio::Product => chosen.sum(Kind::Float),
        SequenceRatio::GeometricMean => chosen.mean(Kind::Float),
    };
    log.exp().detach()
}
