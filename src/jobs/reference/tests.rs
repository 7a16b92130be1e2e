//! The wrapper around a learner that only echoes, and whole steps of the toy.

use super::*;
use std::collections::VecDeque;
use tidegate_operators::record::{Group, Metrics, Reason, Status};

/// Gives a batch back as it took it; what it measures was given to it.
#[derive(Default)]
struct Echo {
    batch: Vec<Rollout>,
    measures: VecDeque<Metrics>,
    step: Step,
}

impl Learner for Echo {
    type Weights = u64;

    fn begin(&mut self, step: Step, batch: Vec<Rollout>) -> Result<(), Fault> {
        (self.step, self.batch) = (step, batch);
        if self.batch.iter().any(|rollout| rollout.sample == 66) {
            return Err(Fault::new("train", "planted"));
        }
        Ok(())
    }

    fn work(&mut self) -> Result<Option<Trained>, Fault> {
        let metrics = Metrics { step: self.step, tokens: 1, ..self.measures.pop_front().unwrap_or_default() };
        Ok(Some(Trained { batch: std::mem::take(&mut self.batch), metrics }))
    }

    fn abandon(&mut self) -> Vec<Rollout> {
        std::mem::take(&mut self.batch)
    }

    fn weights(&mut self) -> Result<u64, Fault> {
        Ok(100 + self.step)
    }
}

/// Finds each token at `-2`, and a nat less once other weights are loaded; a rollout a piece.
#[derive(Default)]
struct Ice {
    loaded: Vec<u64>,
    scored: u64,
}

impl Frozen for Ice {
    type Weights = u64;
    type Piece = usize;

    fn pieces(&self, _: &[Rollout], which: &[usize], most_tokens: usize) -> crate::error::Result<Vec<usize>> {
        assert_eq!(most_tokens, 8192);
        Ok(which.to_vec())
    }

    fn score(&mut self, batch: &mut [Rollout], piece: &usize) -> crate::error::Result<()> {
        if batch[*piece].sample == 77 {
            return Err(Error::engine("libtorch", "planted"));
        }
        self.scored += 1;
        batch[*piece].logp_reference = vec![-2.0 - self.loaded.len() as f32; batch[*piece].tokens.len()];
        Ok(())
    }

    fn load(&mut self, weights: &u64) -> crate::error::Result<()> {
        self.loaded.push(*weights);
        Ok(())
    }

    fn library_ns(&self) -> u64 {
        10 * self.scored
    }
}

fn spec(keys: &str, others: &[&str]) -> Spec {
    let text = "model.engine = \"toy\"\n[[task]]\nkind = \"sorting\"\n";
    let sets = [format!("learn.reference={{{keys}}}")].into_iter().chain(others.iter().map(|set| (*set).to_owned()));
    Spec::from_text(text, &sets.collect::<Vec<_>>()).unwrap()
}

fn referring(spec: &Spec, measures: &[Metrics]) -> Referring<Echo, Ice> {
    let echo = Echo { measures: measures.iter().cloned().collect(), ..Echo::default() };
    Referring::new(spec, Referee { frozen: Some(Ice::default()), ..Referee::default() }, echo)
}

fn rollout(number: u64, mask: &[bool]) -> Rollout {
    let n = mask.len();
    let group = Arc::new(Group { number, ..Group::default() });
    let (logp_behavior, advantage) = (vec![-1.0; n], vec![1.0; n]);
    Rollout { group, tokens: vec![5; n], mask: mask.to_vec(), logp_behavior, advantage, ..Rollout::default() }
}

/// Two that are trained, one that is masked, one that was refused.
fn batch() -> Vec<Rollout> {
    let refused = Rollout { status: Status::Discarded(Reason::NoReward), ..rollout(2, &[true]) };
    vec![rollout(0, &[true, true, false]), rollout(1, &[false]), refused, rollout(3, &[true])]
}

/// The finished step, and how many calls it took.
fn trained<L, F>(learner: &mut Referring<L, F>, step: Step, batch: Vec<Rollout>) -> (Trained, usize)
where
    L: Learner<Weights: Clone>,
    F: Frozen<Weights = L::Weights>,
{
    learner.begin(step, batch).unwrap();
    for calls in 1.. {
        if let Some(trained) = learner.work().unwrap() {
            return (trained, calls);
        }
    }
    unreachable!("it would have run out of numbers")
}

fn of<T>(trained: &Trained, list: impl Fn(&Rollout) -> T) -> Vec<T> {
    trained.batch.iter().map(list).collect()
}

/// Catches a batch that is scored at one go, tokens that are not trained and are scored, and time of the library that is not told.
#[test]
fn a_batch_is_scored_in_pieces_before_it_is_trained() {
    let mut learner = referring(&spec("kl_coef=0.1", &[]), &[]);
    let (found, calls) = trained(&mut learner, 1, batch());
    assert_eq!(calls, 2 + 1 + 1, "two rollouts, the way to the learner, the learner");
    assert_eq!(of(&found, |r| r.logp_reference.clone()), [vec![-2.0; 3], vec![], vec![], vec![-2.0]]);
    assert_eq!(of(&found, |r| r.advantage.clone()), of_batch(|r| r.advantage.clone()), "in the loss");
    assert_eq!((found.metrics.torch_ns, trained(&mut learner, 2, vec![]).0.metrics.torch_ns), (20, 0));
}

/// Every token masked. Catches a forward pass for tokens that nothing is made of, and penalties that reach them.
#[test]
fn a_batch_without_trained_tokens_is_not_scored() {
    for place in ["loss", "reward"] {
        let mut learner = referring(&spec(&format!("kl_coef=0.1,kl_in='{place}'"), &[]), &[]);
        let masked = vec![rollout(0, &[false, false]), rollout(1, &[false])];
        let (found, calls) = trained(&mut learner, 1, masked.clone());
        assert_eq!((calls, found.batch, found.metrics.torch_ns), (1, masked, 0));
    }
}

fn of_batch<T>(list: impl Fn(&Rollout) -> T) -> Vec<T> {
    batch().iter().map(list).collect()
}

/// Catches a reference that costs something where there is none, and numbers of one that was there then.
#[test]
fn without_a_coefficient_nothing_is_scored() {
    let mut learner = referring(&spec("kl_coef=0.0", &[]), &[]);
    let recorded = Rollout { logp_reference: vec![-3.0], ..rollout(0, &[true]) };
    let (found, calls) = trained(&mut learner, 1, vec![recorded]);
    assert_eq!((calls, of(&found, |r| r.logp_reference.len())), (1, vec![0]));
}

/// d is 1 at each token. Catches a penalty of masked tokens or of rollouts that are not trained, one that is not to come, a
/// discount that is not GAE's, and one that is taken before the batch is as the learner shall have it.
#[test]
fn in_the_reward_penalties_are_taken_from_advantages() {
    let found = trained(&mut referring(&spec("kl_coef=0.25,kl_in='reward'", &[]), &[]), 1, batch()).0;
    assert_eq!(of(&found, |r| r.advantage.clone()), [vec![0.5, 0.75, 1.0], vec![1.0], vec![1.0], vec![0.75]]);
    let critic = ["learn.value_coef=0.5", "estimate.advantage={gae={gamma=0.5,lambda=0.5}}"];
    let found = trained(&mut referring(&spec("kl_coef=0.25,kl_in='reward',kl_estimator='k2'", &critic), &[]), 1, batch()).0;
    assert_eq!(found.batch[0].advantage, [1.0 - 0.125 * 1.25, 0.875, 1.0]);
}

/// Catches a batch that goes to the log penalised or scored, and rows that are lost with a fault wherever it comes from.
#[test]
fn a_step_that_fails_gives_its_batch_back_as_it_was() {
    let spec = spec("kl_coef=0.25,kl_in='reward'", &[]);
    for (sample, says) in [(66, "train: planted"), (77, "reference: libtorch: planted")] {
        let mut learner = referring(&spec, &[]);
        let mut wrong = batch();
        wrong[3].sample = sample;
        learner.begin(1, wrong.clone()).unwrap();
        let fault = (0..9).find_map(|_| learner.work().err()).unwrap();
        assert_eq!(fault.to_string(), says);
        assert_eq!(learner.abandon(), wrong);
    }
    let mut learner = referring(&spec, &[]);
    let mut short = batch();
    short[3].advantage.clear();
    learner.begin(1, short.clone()).unwrap();
    let fault = (0..9).find_map(|_| learner.work().err()).unwrap();
    assert_eq!(fault.message, "group 3, sample 0: advantage has 0 entries and mask 1");
    assert_eq!(learner.abandon(), short);
    // And in the middle of the scoring.
    learner.begin(1, batch()).unwrap();
    assert!(learner.work().unwrap().is_none());
    assert_eq!(learner.abandon(), batch());
}

/// Catches a coefficient that does not follow the learner's measurements, or that follows them a step late.
#[test]
fn the_coefficient_is_that_of_the_last_step() {
    let measured = |kl_coef, kl_reference| Metrics { kl_coef, kl_reference, lr: 1e-3, ..Metrics::default() };
    let spec = spec("kl_coef=0.5,kl_in='reward',target_kl=0.1", &[]);
    let mut learner = referring(&spec, &[measured(0.5, 9.0), measured(0.51, 0.1), measured(0.51, 0.0)]);
    let taken =
        [1, 2, 3, 4].map(|step| 1.0 - trained(&mut learner, step, vec![rollout(0, &[true])]).0.batch[0].advantage[0]);
    for (taken, expected) in taken.into_iter().zip([0.5, 0.51, 0.51, 0.51 * 0.98]) {
        assert!((f64::from(taken) - expected).abs() < 1e-6, "{taken} {expected}");
    }
}

/// Catches a reference that is renewed a step early or late, is not told to whoever writes checkpoints, or that its own checkpoint
/// would have twice.
#[test]
fn the_reference_is_renewed_after_every_few_steps() {
    let mut learner = referring(&spec("kl_coef=0.1,refresh_steps=2", &[]), &[]);
    let refreshed = learner.referee.refreshed.clone();
    let step = |learner: &mut Referring<Echo, Ice>, step| {
        let (found, _) = trained(learner, step, vec![rollout(0, &[true])]);
        (found.batch[0].logp_reference[0], refreshed.get())
    };
    assert_eq!(step(&mut learner, 1), (-2.0, None));
    assert_eq!(step(&mut learner, 2), (-2.0, Some(102)));
    assert_eq!(step(&mut learner, 3), (-3.0, Some(102)));
    assert_eq!(step(&mut learner, 4), (-3.0, Some(104)));
    assert_eq!(step(&mut learner, 5).0, -4.0);
    assert_eq!(learner.referee.frozen.unwrap().loaded, [102, 104]);
}

/// Catches a replay that scores again what the log has, that cannot do without a reference, or that takes numbers of another one.
#[test]
fn what_is_recorded_is_not_scored_again() {
    let recorded = || vec![Rollout { logp_reference: vec![-7.0], ..rollout(0, &[true]) }];
    let spec = spec("kl_coef=0.1", &[]);
    let mut learner = referring(&spec, &[]);
    let found = trained(&mut learner, 1, recorded());
    assert_eq!((found.0.batch[0].logp_reference[0], found.1), (-7.0, 1));
    learner.referee.recorded = Recorded::Dropped;
    assert_eq!(trained(&mut learner, 2, recorded()).0.batch[0].logp_reference, [-2.0]);
    learner.referee = Referee::default();
    assert_eq!(trained(&mut learner, 3, recorded()).0.batch[0].logp_reference, [-7.0]);
    let fault = learner.begin(4, batch()).unwrap_err();
    assert_eq!(fault.message, "group 0, sample 0: the log has no logp_reference, and there is no reference");
    assert_eq!(learner.abandon(), batch());
}

#[test]
fn keys_that_change_are_followed() {
    let mut learner = referring(&spec("kl_coef=0.0", &[]), &[]).following(Box::new(|step| {
        let on = spec("kl_coef=0.25,kl_in='reward'", &[]).learn;
        Ok((step == 2).then_some(on))
    }));
    let taken = [1, 2, 3].map(|step| trained(&mut learner, step, vec![rollout(0, &[true])]).0.batch[0].advantage[0]);
    assert_eq!(taken, [1.0, 0.75, 0.75]);
}

mod toy {
    use super::*;
    use crate::engine::contract::Engine;
    use crate::engine::spec::{LrSchedule, Sampling};
    use crate::engine::toy::{ToyEngine, ToyFrozen, ToyLearner};
    use crate::jobs::whitening::Whitening;
    use tidegate_operators::record::Prompt;

    type Toy = Referring<Whitening<ToyLearner>, ToyFrozen>;

    fn learner(keys: &str) -> Toy {
        let (engine, mut spec) = (ToyEngine::new(3), spec(keys, &[]));
        spec.learn = Learning {
            lr: 0.05,
            warmup_steps: 0,
            lr_schedule: LrSchedule::Constant,
            grad_clip: 0.0,
            weight_decay: 0.0,
            ..spec.learn
        };
        let sampling = Sampling::default();
        let frozen = engine.frozen(&engine, &spec.learn, &sampling).unwrap();
        let learner = engine.learner(&spec.learn, &sampling, 100, 0).unwrap();
        Referring::new(&spec, Referee { frozen: Some(frozen), ..Referee::default() }, Whitening::new(&spec, learner))
    }

    /// On policy but for what the steps do.
    fn rollouts(seed: u32) -> Vec<Rollout> {
        let of = |i: u32| {
            let prompt = Prompt { tokens: vec![1 + i % 3, 4], ..Prompt::default() };
            let group = Arc::new(Group { number: i.into(), prompt, ..Group::default() });
            let (tokens, advantage) =
                (vec![(i + seed) % 9, (i * 7 + seed) % 9, 0], if i.is_multiple_of(2) { 1.0 } else { -0.5 });
            let n = tokens.len();
            Rollout {
                group,
                tokens,
                mask: vec![true; n],
                version: vec![0; n],
                logp_behavior: vec![-2.7; n],
                advantage: vec![advantage; n],
                reward: Some(advantage),
                ..Rollout::default()
            }
        };
        (0..8).map(of).collect()
    }

    /// The first step's policy is the reference: it is the step without one, to the bit. The next is not.
    #[test]
    fn at_the_reference_a_step_is_the_one_without() {
        for keys in ["kl_coef=9.0", "kl_coef=9.0,kl_estimator='k2'", "kl_coef=9.0,kl_estimator='k3'"] {
            let (mut with, mut without) = (learner(keys), learner("kl_coef=0.0"));
            let [first, other] = [&mut with, &mut without].map(|learner| trained(learner, 1, rollouts(1)).0);
            assert_eq!(first.batch[0].logp_reference, first.batch[0].logp_current);
            let Metrics { loss, weights, kl_reference, kl_coef, .. } = first.metrics;
            assert_eq!((loss.to_bits(), weights), (other.metrics.loss.to_bits(), other.metrics.weights));
            assert_eq!((kl_reference, kl_coef, other.metrics.kl_coef), (0.0, 9.0, 0.0));
            let [second, other] = [&mut with, &mut without].map(|learner| trained(learner, 2, rollouts(2)).0);
            assert!(second.metrics.weights != other.metrics.weights && second.metrics.kl_reference > 0.0);
        }
    }

    /// The same rollouts again and again pull the policy to them. Catches a sign, wherever the divergence enters.
    #[test]
    fn a_large_coefficient_keeps_the_policy_near() {
        let far = |keys: &str| {
            let mut learner = learner(keys);
            (1..=40).map(|step| trained(&mut learner, step, rollouts(1)).0).last().unwrap()
        };
        let kl = |trained: &Trained| {
            let pairs = trained.batch.iter().flat_map(|r| r.logp_current.iter().zip(&r.logp_reference));
            pairs.map(|(current, reference)| f64::from((current - reference).abs())).sum::<f64>() / 24.0
        };
        let without = kl(&far("kl_coef=1e-9"));
        for keys in ["kl_coef=3.0", "kl_coef=3.0,kl_estimator='k2'", "kl_coef=3.0,kl_estimator='k3'"] {
            let with = kl(&far(keys));
            assert!(with < 0.4 * without, "{keys}: {with}, without {without}");
        }
    }

    /// Catches a coefficient that goes the wrong way, from either side of its target, or too fast.
    #[test]
    fn the_coefficient_goes_towards_its_target() {
        for (kl_coef, more) in [(0.001, true), (5.0, false)] {
            let mut learner = learner(&format!("kl_coef={kl_coef},target_kl=0.01"));
            let coefs = (1..=60).map(|step| trained(&mut learner, step, rollouts(1)).0.metrics.kl_coef).collect::<Vec<_>>();
            assert_eq!(coefs[0], kl_coef);
            assert!((coefs[59] > coefs[5]) == more, "{coefs:?}");
            assert!(coefs.windows(2).all(|pair| (pair[1] / pair[0] - 1.0).abs() < 0.0200001));
        }
    }
}
