//! A generating accelerator: slots filled first come first served, a decode step of all that run is one sleep.

use super::device::Device;
use super::engine::EmulatedWeights;
use crate::engine::sampler::uniform;
use crate::engine::spec::Sampling;
use crate::engine::toy::ToyTokenizer;
use crate::engine::toy::task::{EOS, VOCAB};
use crate::kernel::lengths::Lengths;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tidegate_operators::fault::Fault;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Reason, Rollout, Status, Stop, Version, now_ns};

/// Natural logarithm of a token's probability: all ids are alike likely, whatever the weights.
pub(super) fn logp() -> f32 {
    -(VOCAB as f32).ln()
}

/// The position of the draw that says how long a rollout is: no token has it.
pub const LENGTH: u32 = u32::MAX;

/// The emulation's sampling half.
#[derive(Clone, Debug)]
pub struct EmulatedGenerator {
    device: Device,
    lengths: Arc<Lengths>,
    sampling: Sampling,
    seed: u64,
    loaded: Option<Version>,
    queue: VecDeque<(Arc<Group>, u32)>,
    /// At most `slots`, in the order in which they entered.
    running: Vec<Running>,
}

/// A rollout in progress, the length that it was drawn, and where it is cut.
#[derive(Clone, Debug)]
struct Running {
    rollout: Rollout,
    length: usize,
    limit: usize,
}

impl EmulatedGenerator {
    /// A generator without weights: [`load`](Generator::load) gives it the first.
    pub fn new(device: Device, lengths: Arc<Lengths>, sampling: Sampling, seed: u64) -> Self {
        EmulatedGenerator { device, lengths, sampling, seed, loaded: None, queue: VecDeque::new(), running: Vec::new() }
    }

    /// Rollouts that it samples at once.
    pub fn slots(&self) -> usize {
        self.sampling.slots
    }

    /// Moves rollouts from the queue to free slots; gives back those whose prompt cannot be sampled.
    fn fill(&mut self) -> Vec<Rollout> {
        let mut refused = Vec::new();
        while self.running.len() < self.sampling.slots {
            let Some((group, sample)) = self.queue.pop_front() else { break };
            let (worker, started_ns) = (group.generator, now_ns());
            let mut rollout = Rollout { group, sample, worker, started_ns, ..Rollout::default() };
            let prompt = &rollout.group.prompt;
            if let Some(why) = prompt.refused.clone() {
                rollout.status = Status::Discarded(Reason::BadPrompt(why));
                rollout.stop = Stop::Refused;
                rollout.finished_ns = started_ns;
                refused.push(rollout);
                continue;
            }
            let limit = self.sampling.limit(prompt);
            let length = self.lengths.draw(uniform(self.seed, rollout.group.number, sample, LENGTH));
            let tokens = length.min(limit);
            rollout.tokens.reserve_exact(tokens);
            rollout.version.reserve_exact(tokens);
            self.running.push(Running { rollout, length, limit });
        }
        refused
    }

    /// One more token; whether it was the last.
    fn sample(seed: u64, running: &mut Running, version: Version) -> bool {
        let Running { rollout, length, limit } = running;
        let position = rollout.tokens.len();
        let draw = uniform(seed, rollout.group.number, rollout.sample, position as u32);
        let ends = position + 1 == *length;
        // Every id but the one that ends a sequence, which comes where the length says.
        let token = if ends { EOS } else { 1 + (draw * (VOCAB - 1) as f64) as u32 };
        rollout.tokens.push(token);
        rollout.version.push(version);
        ends || position + 1 >= *limit
    }

    /// What is the same for all tokens is filled in when they are all there.
    fn finish(&self, running: Running) -> Rollout {
        let Running { mut rollout, .. } = running;
        let tokens = rollout.tokens.len();
        rollout.stop = if rollout.tokens.last() == Some(&EOS) { Stop::Eos } else { Stop::Length };
        let chosen = rollout.stop == Stop::Eos || !self.sampling.mask_truncated;
        rollout.mask = vec![chosen; tokens];
        rollout.logp_behavior = vec![logp(); tokens];
        rollout.text = ToyTokenizer.decode(&rollout.tokens);
        rollout.finished_ns = now_ns();
        rollout
    }
}

impl Generator for EmulatedGenerator {
    type Weights = EmulatedWeights;

    fn load(&mut self, version: Version, _: EmulatedWeights) -> Result<(), Fault> {
        let started = Instant::now();
        self.loaded = Some(version);
        if !self.running.is_empty() {
            self.device.transfer(started);
        }
        Ok(())
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        self.queue.extend((0..group.size).map(|sample| (Arc::clone(&group), sample)));
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        let started = Instant::now();
        let Some(version) = self.loaded else {
            return Err(Fault::new("generate", "a decode step before any weights were loaded"));
        };
        let mut ended = self.fill();
        let rollouts = self.running.len();
        let mut left = Vec::with_capacity(self.sampling.slots);
        let mut last = Vec::new();
        for mut running in self.running.drain(..) {
            let whole = Self::sample(self.seed, &mut running, version);
            if whole { last.push(running) } else { left.push(running) }
        }
        self.running = left;
        if rollouts > 0 {
            self.device.decode(rollouts, started);
        }
        ended.extend(last.into_iter().map(|running| self.finish(running)));
        Ok(ended)
    }

    fn running(&self) -> usize {
        self.queue.len() + self.running.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::capacity::Speed;
    use tidegate_operators::record::Prompt;

    fn generator(slots: usize, lengths: Lengths, max_tokens: usize) -> EmulatedGenerator {
        let sampling = Sampling { slots, max_tokens, ..Sampling::default() };
        EmulatedGenerator::new(Device::new(Speed::PAPER, 1, 0.0, 0.0), Arc::new(lengths), sampling, 7)
    }

    fn group(number: u64, size: u32) -> Arc<Group> {
        Arc::new(Group { number, size, generator: 3, ..Group::default() })
    }

    /// Runs to the end, loading version `v` before the decode step `3 v`.
    fn run(generator: &mut EmulatedGenerator) -> Vec<Rollout> {
        let (mut ended, mut steps) = (Vec::new(), 0);
        while generator.running() > 0 {
            if steps % 3 == 0 {
                generator.load(steps / 3, EmulatedWeights::initial(0)).unwrap();
            }
            ended.extend(generator.step().unwrap());
            steps += 1;
        }
        ended
    }

    /// Of lengths 1 to 8 cut at 6. Catches a list that is shorter than the tokens, an end inside, and a cut that looks like an end.
    #[test]
    fn rollouts_are_whole() {
        let mut generator = generator(5, Lengths::uniform(8).unwrap(), 6);
        (0..40).for_each(|number| generator.start(group(number, 2)).unwrap());
        let ended = run(&mut generator);
        assert_eq!(ended.len(), 80);
        for rollout in &ended {
            let n = rollout.tokens.len();
            assert_eq!([rollout.mask.len(), rollout.version.len(), rollout.logp_behavior.len()], [n; 3]);
            assert!(rollout.version.is_sorted() && rollout.tokens.iter().all(|&id| (id as usize) < VOCAB));
            let end = rollout.tokens.iter().position(|&id| id == EOS);
            let expected = if rollout.stop == Stop::Eos { (1..=6, Some(n - 1)) } else { (6..=6, None) };
            assert!(expected.0.contains(&n) && end == expected.1, "{rollout:?}");
            assert_eq!((rollout.worker, rollout.text.len()), (3, n - usize::from(rollout.stop == Stop::Eos)));
        }
        // A quarter of the lengths are above 6.
        let cut = ended.iter().filter(|rollout| rollout.stop == Stop::Length).count();
        assert!((10..=32).contains(&cut), "{cut} of 80 are cut");
        assert!(ended.iter().any(|rollout| rollout.version.first() != rollout.version.last()), "weights came in flight");
    }

    /// What a rollout draws does not depend on who shares the batch, and a slot that gets free is filled at once.
    #[test]
    fn draws_do_not_depend_on_company() {
        let alone = |slots| {
            let mut generator = generator(slots, Lengths::uniform(9).unwrap(), 9);
            (0..4).for_each(|number| generator.start(group(number, 3)).unwrap());
            let mut ended = run(&mut generator);
            ended.sort_by_key(|rollout| (rollout.group.number, rollout.sample));
            ended.into_iter().map(|rollout| (rollout.tokens, rollout.stop)).collect::<Vec<_>>()
        };
        assert_eq!(alone(1), alone(5));
        let mut generator = generator(2, Lengths::fixed(3).unwrap(), 9);
        generator.start(group(0, 5)).unwrap();
        generator.load(0, EmulatedWeights::initial(0)).unwrap();
        let counts: Vec<usize> = (0..9).map(|_| generator.step().unwrap().len()).collect();
        assert_eq!(counts, [0, 0, 2, 0, 0, 2, 0, 0, 1]);
    }

    #[test]
    fn what_cannot_be_sampled_comes_back() {
        let mut generator = generator(2, Lengths::fixed(3).unwrap(), 9);
        let prompt = Prompt { refused: Some("too long".to_owned()), ..Prompt::default() };
        assert!(generator.step().unwrap_err().to_string().contains("before any weights"));
        generator.load(0, EmulatedWeights::initial(0)).unwrap();
        generator.start(Arc::new(Group { size: 1, prompt, ..Group::default() })).unwrap();
        let ended = generator.step().unwrap();
        assert_eq!(
            (ended[0].stop, ended[0].status.to_string()),
            (Stop::Refused, "discarded: bad prompt: too long".to_owned())
        );
        assert_eq!(generator.running(), 0);
    }
}
