//! A divergence from a reference in the loss, against autograd.

use super::*;
use crate::kernel::reference::KlEstimator;

#[test]
fn a_reference_back_propagates_to_autograds_gradient() {
    let mut batch = batch(6);
    for (number, rollout) in batch.iter_mut().enumerate() {
        let of = |t| draw(number, 9000 + t, -6.0, -1.0) as f32;
        rollout.logp_reference = (0..rollout.tokens.len()).map(of).collect();
    }
    for (kl_estimator, loss) in [(KlEstimator::K1, PPO), (KlEstimator::K2, Loss::default()), (KlEstimator::K3, PPO)] {
        let mut learning = Learning { value_coef: 0.3, entropy_coef: 0.1, ..learning(loss) };
        (learning.reference.kl_coef, learning.reference.kl_estimator) = (0.2, kl_estimator);
        let (expected, expected_loss) = by_autograd(Family::Llama, &learning, 0.7, &batch);
        let mut learner = learner(Family::Llama, &learning, 0.7);
        assert_near(&gradient(&mut learner, batch.clone()), &expected, 1e-5);
        let loss = learner.work().unwrap().unwrap().metrics.loss;
        assert!((loss - expected_loss).abs() < 1e-5 * (1.0 + expected_loss.abs()), "{loss} {expected_loss}");
    }
}
