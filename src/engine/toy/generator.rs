//! Sampling with the table policy: slots filled first come first served, one token a step for all that run.

use super::policy::{ToyWeights, divisor, log_softmax};
use super::task::{EOS, ToyTokenizer};
use crate::engine::observed::Drawn;
use crate::engine::sampler::{Choice, choose, uniform};
use crate::engine::spec::Sampling;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use tidegate_operators::fault::Fault;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Reason, Rollout, Status, Stop, Version, now_ns};

/// The toy engine's sampling half.
#[derive(Clone, Debug)]
pub struct ToyGenerator {
    draw: Draw,
    weights: Option<(Version, ToyWeights)>,
    queue: VecDeque<(Arc<Group>, u32)>,
    /// At most `slots`, in the order in which they entered.
    running: Vec<Rollout>,
    /// What tokens were drawn from, where somebody observes it.
    observed: Option<Vec<Drawn>>,
}

impl ToyGenerator {
    /// A generator without weights: [`load`](Generator::load) gives it the first.
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        let draw = Draw { sampling, seed };
        ToyGenerator { draw, weights: None, queue: VecDeque::new(), running: Vec::new(), observed: None }
    }

    /// Keeps what tokens are drawn from, from now on.
    pub(super) fn observe(&mut self) {
        self.observed.get_or_insert_default();
    }

    /// Takes what was kept.
    pub(super) fn drawn(&mut self) -> Vec<Drawn> {
        self.observed.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Rollouts that it samples at once.
    pub fn slots(&self) -> usize {
        self.draw.sampling.slots
    }

    /// Moves rollouts from the queue to free slots; gives back those whose prompt cannot be sampled.
    fn fill(&mut self, vocab: usize) -> Vec<Rollout> {
        let mut refused = Vec::new();
        while self.running.len() < self.draw.sampling.slots {
            let Some((group, sample)) = self.queue.pop_front() else { break };
            let refusal = group.prompt.refused.clone().or_else(|| refuse(&group.prompt.tokens, vocab));
            let (worker, started_ns) = (group.generator, now_ns());
            let mut rollout = Rollout { group, sample, worker, started_ns, ..Rollout::default() };
            match refusal {
                None => self.running.push(rollout),
                Some(why) => {
                    rollout.status = Status::Discarded(Reason::BadPrompt(why));
                    rollout.stop = Stop::Refused;
                    rollout.finished_ns = started_ns;
                    refused.push(rollout);
                }
            }
        }
        refused
    }
}

/// Why a prompt cannot be sampled.
fn refuse(prompt: &[u32], vocab: usize) -> Option<String> {
    if prompt.is_empty() {
        return Some("it has no tokens".to_owned());
    }
    let beyond = prompt.iter().find(|&&id| id as usize >= vocab);
    beyond.map(|id| format!("id {id} is not below the vocabulary's {vocab}"))
}

impl Generator for ToyGenerator {
    type Weights = ToyWeights;

    fn load(&mut self, version: Version, weights: ToyWeights) -> Result<(), Fault> {
        let misfit = self.weights.as_ref().and_then(|(_, mine)| weights.misfit(mine));
        if let Some(why) = misfit {
            return Err(Fault::new("generate", format!("weights of version {version} do not fit: {why}")));
        }
        self.weights = Some((version, weights));
        Ok(())
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        self.queue.extend((0..group.size).map(|sample| (group.clone(), sample)));
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        let Some((version, weights)) = self.weights.clone() else {
            return Err(Fault::new("generate", "a decode step before any weights were loaded"));
        };
        let mut ended = self.fill(weights.vocab);
        for mut rollout in mem::take(&mut self.running) {
            if let Some(observed) = &mut self.observed {
                let logps = self.draw.distribution(&rollout, &weights);
                observed.push(Drawn { group: rollout.group.number, sample: rollout.sample, logps });
            }
            match self.draw.token(&mut rollout, version, &weights) {
                None => self.running.push(rollout),
                Some(stop) => {
                    rollout.stop = stop;
                    rollout.finished_ns = now_ns();
                    ended.push(rollout);
                }
            }
        }
        Ok(ended)
    }

    fn running(&self) -> usize {
        self.queue.len() + self.running.len()
    }
}

/// How tokens are drawn: the same for sampling and for sampling again.
#[derive(Clone, Debug)]
struct Draw {
    sampling: Sampling,
    seed: u64,
}

impl Draw {
    /// `[V]` log-probabilities of its next token.
    fn distribution(&self, rollout: &Rollout, weights: &ToyWeights) -> Vec<f32> {
        let context = weights.context(&rollout.group.prompt.tokens, &rollout.tokens);
        log_softmax(weights.row(context), divisor(&self.sampling))
    }

    /// Samples one more token of `rollout`; why it ended, if it did.
    fn token(&self, rollout: &mut Rollout, version: Version, weights: &ToyWeights) -> Option<Stop> {
        let context = weights.context(&rollout.group.prompt.tokens, &rollout.tokens);
        let u = uniform(self.seed, rollout.group.number, rollout.sample, rollout.tokens.len() as u32);
        let mut logps = self.distribution(rollout, weights);
        let Choice { token, logp } = choose(&mut logps, &self.sampling, u);
        rollout.tokens.push(token);
        rollout.mask.push(true);
        rollout.logp_behavior.push(logp);
        rollout.version.push(version);
        rollout.value.extend(weights.value(context));
        rollout.text.push_str(&ToyTokenizer.decode(&[token]));
        let stop = self.stop(rollout, now_ns())?;
        if stop == Stop::Length && self.sampling.mask_truncated {
            rollout.mask.fill(false);
        }
        Some(stop)
    }

    fn stop(&self, rollout: &Rollout, now: i64) -> Option<Stop> {
        let limit_ns = self.sampling.time_limit_s * 1e9;
        if !self.sampling.ignore_eos && rollout.tokens.last() == Some(&EOS) {
            Some(Stop::Eos)
        } else if self.sampling.stop.iter().any(|s| rollout.text.ends_with(s.as_str())) {
            Some(Stop::StopString)
        } else if rollout.tokens.len() >= self.sampling.limit(&rollout.group.prompt) {
            Some(Stop::Length)
        } else if limit_ns > 0.0 && (now - rollout.started_ns) as f64 > limit_ns {
            Some(Stop::Time)
        } else {
            None
        }
    }
}

/// Samples a recorded rollout again, each token under the weights of its recorded version: what comes back equals
/// `rollout` bit for bit in `tokens`, `text`, `mask`, `logp_behavior`, `value` and `stop`, if it was sampled as it says.
///
/// The draws are those of (`seed`, group, sample, position). A rollout that ran out of time ends where it ended.
pub fn resample(weights: &impl Fn(Version) -> ToyWeights, rollout: &Rollout, sampling: &Sampling, seed: u64) -> Rollout {
    let draw = Draw { sampling: Sampling { time_limit_s: 0.0, ..sampling.clone() }, seed };
    let mut again = Rollout {
        tokens: Vec::new(),
        text: String::new(),
        mask: Vec::new(),
        logp_behavior: Vec::new(),
        version: Vec::new(),
        value: Vec::new(),
        stop: Stop::Time,
        ..rollout.clone()
    };
    for &version in &rollout.version {
        if let Some(stop) = draw.token(&mut again, version, &weights(version)) {
            again.stop = stop;
            break;
        }
    }
    if rollout.stop == Stop::Refused {
        again.stop = Stop::Refused;
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_operators::record::Prompt;

    fn group(number: u64, size: u32, tokens: &[u32]) -> Arc<Group> {
        let prompt = Prompt { tokens: tokens.to_vec(), ..Prompt::default() };
        Arc::new(Group { number, size, prompt, generator: 3, ..Group::default() })
    }

    fn sampling(slots: usize) -> Sampling {
        Sampling { slots, max_tokens: 9, ..Sampling::default() }
    }

    /// Weights after `version` imaginary steps.
    fn weights(version: Version) -> ToyWeights {
        ToyWeights::initial(16, 1000 + version).with_critic()
    }

    /// Runs to the end, loading version `v` after `v * every` steps.
    fn run(generator: &mut ToyGenerator, every: usize) -> Vec<Rollout> {
        let mut ended = Vec::new();
        let mut steps = 0;
        while generator.running() > 0 {
            if steps % every == 0 {
                let version = (steps / every) as Version;
                generator.load(version, weights(version)).unwrap();
            }
            ended.extend(generator.step().unwrap());
            steps += 1;
        }
        ended
    }

    /// Without the times, which differ from run to run.
    fn timeless(mut rollout: Rollout) -> Rollout {
        (rollout.started_ns, rollout.finished_ns) = (0, 0);
        rollout
    }

    #[test]
    fn no_weights_is_a_fault() {
        let fault = ToyGenerator::new(sampling(2), 5).step().unwrap_err();
        assert!(fault.to_string().contains("before any weights"), "{fault}");
    }

    #[test]
    fn weights_of_another_shape_are_refused() {
        let mut generator = ToyGenerator::new(sampling(2), 5);
        generator.load(0, weights(0)).unwrap();
        let fault = generator.load(1, ToyWeights::initial(16, 1)).unwrap_err().to_string();
        assert!(fault.contains("version 1") && fault.contains("(16, 4096, 0), not (16, 4096, 256)"), "{fault}");
    }

    #[test]
    fn rollouts_are_whole() {
        let mut generator = ToyGenerator::new(sampling(3), 5);
        (0..4).for_each(|n| generator.start(group(n, 4, &[1, 2])).unwrap());
        assert_eq!(generator.running(), 16);
        let ended = run(&mut generator, 2);
        assert_eq!(ended.len(), 16);
        for rollout in &ended {
            let n = rollout.tokens.len();
            assert!((1..=9).contains(&n));
            let lengths = [rollout.mask.len(), rollout.logp_behavior.len(), rollout.version.len(), rollout.value.len()];
            assert_eq!(lengths, [n; 4]);
            let eos = rollout.tokens.iter().position(|&t| t == EOS);
            assert_eq!(eos, (rollout.stop == Stop::Eos).then(|| n - 1), "EOS is the last token and is kept");
            assert!(rollout.stop == Stop::Eos || (rollout.stop == Stop::Length && n == 9));
            assert_eq!(rollout.worker, 3);
            assert!(rollout.version.is_sorted());
        }
        assert!(ended.iter().any(|r| r.version.first() != r.version.last()), "weights changed in flight");
    }

    /// First come first served: with one slot the order is that of the queue, and no two overlap.
    #[test]
    fn slots_fill_in_order() {
        let mut generator = ToyGenerator::new(sampling(1), 5);
        (0..2).for_each(|n| generator.start(group(n, 3, &[1])).unwrap());
        let order = run(&mut generator, 1).iter().map(|r| (r.group.number, r.sample)).collect::<Vec<_>>();
        assert_eq!(order, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    /// What a rollout draws does not depend on who shares the batch.
    #[test]
    fn draws_do_not_depend_on_company() {
        let alone = |slots| {
            let mut generator = ToyGenerator::new(sampling(slots), 5);
            (0..3).for_each(|n| generator.start(group(n, 4, &[1, 2])).unwrap());
            generator.load(0, weights(0)).unwrap();
            let mut ended = run(&mut generator, usize::MAX).into_iter().map(timeless).collect::<Vec<_>>();
            ended.sort_by_key(|r| (r.group.number, r.sample));
            ended
        };
        assert_eq!(alone(1), alone(5));
    }

    #[test]
    fn resamples_bit_for_bit() {
        for sampling in [sampling(3), Sampling { temperature: 0.7, mask_truncated: true, ..sampling(3) }] {
            let mut generator = ToyGenerator::new(sampling.clone(), 5);
            (0..4).for_each(|n| generator.start(group(n, 4, &[1, 2])).unwrap());
            for rollout in run(&mut generator, 2) {
                assert_eq!(resample(&weights, &rollout, &sampling, 5), rollout);
                assert_ne!(resample(&weights, &rollout, &sampling, 6).logp_behavior, rollout.logp_behavior, "seed");
                let other = |version| weights(version + 1);
                assert_ne!(resample(&other, &rollout, &sampling, 5).logp_behavior, rollout.logp_behavior, "weights");
            }
        }
    }

    #[test]
    fn stop_strings_and_truncation() {
        let sampling = Sampling { stop: vec!["c".to_owned()], mask_truncated: true, ..sampling(8) };
        let mut generator = ToyGenerator::new(sampling, 5);
        generator.start(group(0, 40, &[1])).unwrap();
        let ended = run(&mut generator, 1);
        for rollout in &ended {
            assert_eq!(rollout.text.find('c').is_some(), rollout.stop == Stop::StopString);
            assert!(rollout.mask.iter().all(|&m| m == (rollout.stop != Stop::Length)));
        }
        for stop in [Stop::Eos, Stop::StopString, Stop::Length] {
            assert!(ended.iter().any(|r| r.stop == stop), "no rollout ended by {stop:?}");
        }
    }

    #[test]
    fn bad_prompts_come_back_refused() {
        let mut generator = ToyGenerator::new(sampling(2), 5);
        generator.load(0, weights(0)).unwrap();
        generator.start(group(0, 1, &[])).unwrap();
        generator.start(group(1, 1, &[1, 16])).unwrap();
        let ended = generator.step().unwrap();
        let why = ended.iter().map(|r| (r.stop, r.status.to_string(), r.tokens.len())).collect::<Vec<_>>();
        let expected = ["it has no tokens", "id 16 is not below the vocabulary's 16"];
        assert_eq!(why, expected.map(|w| (Stop::Refused, format!("discarded: bad prompt: {w}"), 0)));
        assert_eq!(generator.running(), 0);
    }

    /// A time limit that is over after the first token; sampling again does not depend on the clock.
    #[test]
    fn time_limit_ends_a_rollout() {
        let sampling = Sampling { time_limit_s: 1e-9, ..sampling(1) };
        let mut generator = ToyGenerator::new(sampling.clone(), 5);
        generator.start(group(0, 1, &[1])).unwrap();
        let rollout = run(&mut generator, 1).remove(0);
        assert_eq!((rollout.stop, rollout.tokens.len()), (Stop::Time, 1));
        assert_eq!(resample(&weights, &rollout, &sampling, 5), rollout);
    }
}
