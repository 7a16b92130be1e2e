//! How many tokens a second a layout of accelerators trains, and at what lag: the closed forms of PipelineRL's appendix
//! (Piché et al., arXiv 2509.19128).
//!
//! N accelerators, of which I generate with up to H sequences in progress each and T = N - I train; B rollouts a step; L the longest
//! response, Lbar the mean, tokens. Time is in any one unit: the paper's is a *flash*, one token's forward pass at peak arithmetic.

use super::lengths::Lengths;

/// What one accelerator takes, in units of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// A decode step of h sequences: the larger of `step + token * h` and `least * h`. The share of peak that the paper calls U(h)
    /// is h over that.
    pub step: f64,
    pub token: f64,
    pub least: f64,
    /// tau: training one token.
    pub train: f64,
    /// The most sequences in progress.
    pub slots: usize,
}

impl Speed {
    /// The paper's case study, in flashes: `U(h) = min(h / (452 + 0.249 h), 0.5)` up to 1024 sequences, tau = 4.92. The two numbers
    /// of U and tau are fitted to its table; the cap of 0.5 matters only where the lag is above 133.
    pub const PAPER: Speed = Speed { step: 452.0, token: 0.249, least: 2.0, train: 4.92, slots: 1024 };

    /// Time of one token for each of `sequences`, which may be a mean over accelerators.
    pub fn decode(&self, sequences: f64) -> f64 {
        (self.step + self.token * sequences).max(self.least * sequences)
    }
}

/// What is to be laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub accelerators: usize,
    /// Rollouts a step.
    pub batch_size: usize,
    pub lengths: Lengths,
    pub speed: Speed,
}

/// What keeps a pipeline from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Generators and learners are about as fast as each other.
    Neither,
    /// How many sequences a generator holds.
    Slots,
    /// The largest lag that is allowed: with more in progress it would be larger.
    Lag,
}

/// What a layout comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Completion tokens that are generated and trained, a unit of time.
    pub tokens: f64,
    /// Of a trained token, steps.
    pub max_lag: u64,
    pub mean_lag: f64,
}

/// A pipeline's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub generators: usize,
    pub learners: usize,
    /// Sequences in progress on each generator.
    pub slots: usize,
}

impl Job {
    /// All accelerators generate the rollouts of `steps` steps, then all train these steps. The batch of an accelerator shrinks as
    /// its short sequences end.
    pub fn conventional(&self, steps: u64) -> Rate {
        let rollouts = self.batch_size as f64 * steps as f64;
        let tokens = rollouts * self.lengths.mean();
        let n = self.accelerators as f64;
        let generate: f64 = self.lengths.longer().iter().map(|longer| self.speed.decode(rollouts * longer / n)).sum();
        let train = tokens * self.speed.train / n;
        let max_lag = steps.saturating_sub(1);
        Rate { tokens: tokens / (generate + train), max_lag, mean_lag: max_lag as f64 / 2.0 }
    }

    /// Generators and learners work at once, each on accelerators of their own, in the steady state.
    pub fn pipeline(&self, split: Split) -> Rate {
        let (h, i) = (split.slots as f64, split.generators as f64);
        let (mean, batch) = (self.lengths.mean(), self.batch_size as f64);
        let max_lag = (h * i * self.lengths.longest() as f64 / (mean * batch)).ceil() as u64;
        let mean_lag = h * i / batch * self.lengths.second_moment() / (2.0 * mean * mean);
        Rate { tokens: self.generated(split).min(self.trained(split)), max_lag, mean_lag }
    }

    /// Tokens that a split's generators sample a unit of time, if nothing holds them up.
    fn generated(&self, split: Split) -> f64 {
        let (h, i) = (split.slots as f64, split.generators as f64);
        h * i / self.speed.decode(h)
    }

    /// Tokens that its learners train, if they never wait.
    fn trained(&self, split: Split) -> f64 {
        split.learners as f64 / self.speed.train
    }

    /// What keeps the best split from being faster.
    pub fn limit(&self, split: Split) -> Limit {
        if self.trained(split) <= 1.05 * self.generated(split) {
            Limit::Neither
        } else if split.slots >= self.speed.slots {
            Limit::Slots
        } else {
            Limit::Lag
        }
    }

    /// The fastest split whose largest lag is at most `max_lag`; of equally fast ones that of the least lag, then of the fewest
    /// generators. None where one sequence on one generator is too many.
    pub fn best_split(&self, max_lag: u64) -> Option<(Split, Rate)> {
        let split = |generators: usize, slots| Split { generators, learners: self.accelerators - generators, slots };
        let mut best: Option<(Split, Rate)> = None;
        for generators in 1..self.accelerators {
            let rate = |slots| self.pipeline(split(generators, slots));
            // With more slots a generator is never slower, and what it samples never younger.
            let most = last(self.speed.slots, |slots| rate(slots).max_lag <= max_lag);
            if most == 0 {
                break;
            }
            // Where more sequences would only wait, for the learners or for the device, fewer are as fast. A rounding is no gain.
            let enough = rate(most).tokens * (1.0 - 1e-12);
            let slots = last(most, |slots| rate(slots).tokens < enough) + 1;
            let (split, rate) = (split(generators, slots), rate(slots));
            let better = |(_, old): &(Split, Rate)| (rate.tokens, old.max_lag) > (old.tokens, rate.max_lag);
            if best.as_ref().is_none_or(better) {
                best = Some((split, rate));
            }
        }
        best
    }

    /// The conventional schedule of the largest phase whose mean lag is at most `mean_lag`: more steps are never slower.
    pub fn conventional_at_mean(&self, mean_lag: f64) -> Rate {
        self.conventional((2.0 * mean_lag.max(0.0)).floor() as u64 + 1)
    }
}

/// The largest n up to `most` of which `holds` is true, where it is true up to some n and false from there; 0 where it never is.
fn last(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case_study(accelerators: usize, batch_size: usize) -> Job {
        Job { accelerators, batch_size, lengths: Lengths::uniform(1000).unwrap(), speed: Speed::PAPER }
    }

    fn near(found: f64, expected: f64, share: f64) {
        assert!((found / expected - 1.0).abs() <= share, "{found}, expected {expected}");
    }

    /// The paper's table 3, at 128 accelerators and 128 rollouts a step: 16.9 against 10.7, which is 1.57.
    #[test]
    fn the_papers_case_study() {
        let job = case_study(128, 128);
        let papers = job.pipeline(Split { generators: 44, learners: 84, slots: 192 });
        near(papers.tokens, 16.9, 0.02);
        assert_eq!(papers.max_lag, 132);
        let conventional = job.conventional(134);
        near(conventional.tokens, 10.7, 0.02);
        assert_eq!((conventional.max_lag, conventional.mean_lag), (133, 66.5));
        let (split, best) = job.best_split(133).unwrap();
        near(best.tokens / conventional.tokens, 1.57, 0.02);
        assert!((42..=45).contains(&split.generators) && (185..=205).contains(&split.slots), "{split:?}");
        // With larger batches the same layout is 16 times younger.
        assert_eq!(case_study(128, 2048).pipeline(split).max_lag, 9);
    }

    /// Catches a plan that blames the lag where a generator is full, and one that blames anything where both sides are as fast.
    #[test]
    fn what_limits_a_split_is_known() {
        let limit = |job: &Job, max_lag| job.limit(job.best_split(max_lag).unwrap().0);
        let job = case_study(128, 128);
        assert_eq!((limit(&job, 133), limit(&job, 400)), (Limit::Neither, Limit::Neither));
        // With a lag of 1 at most 64 sequences are in progress, on all generators together.
        assert_eq!(limit(&case_study(128, 128), 1), Limit::Lag);
        let few = Job { accelerators: 2, speed: Speed { slots: 4, ..Speed::PAPER }, ..case_study(2, 128) };
        assert_eq!(limit(&few, 400), Limit::Slots);
    }

    /// Speed-up at equal largest lag; below about 16 there is none to speak of.
    #[test]
    fn speed_up_by_lag() {
        let job = case_study(128, 128);
        for (max_lag, expected) in [(16, 1.03), (32, 1.14), (64, 1.31), (100, 1.48), (133, 1.58), (200, 1.40), (400, 1.10)] {
            let (_, pipeline) = job.best_split(max_lag).unwrap();
            near(pipeline.tokens / job.conventional(max_lag + 1).tokens, expected, 0.02);
        }
        assert_eq!(job.best_split(0), None);
    }

    /// The cap on U above lag 133: 0.45 and 0.65 in place of 0.5.
    #[test]
    fn speed_up_by_the_cap() {
        for (cap, at) in [(0.45, [(200, 1.35), (400, 1.09)]), (0.65, [(200, 1.49), (400, 1.15)])] {
            let speed = Speed { least: 1.0 / cap, ..Speed::PAPER };
            let job = Job { speed, ..case_study(128, 128) };
            for (max_lag, expected) in at {
                let (_, pipeline) = job.best_split(max_lag).unwrap();
                near(pipeline.tokens / job.conventional(max_lag + 1).tokens, expected, 0.02);
            }
        }
    }

    /// Twice the accelerators are twice the lag; equal lengths leave a constant batch nothing to gain but the overlap.
    #[test]
    fn what_lag_and_gain_are_a_matter_of() {
        let split = Split { generators: 44, learners: 84, slots: 192 };
        let double = Split { generators: 88, learners: 168, slots: 192 };
        let (one, two) = (case_study(128, 128).pipeline(split), case_study(256, 128).pipeline(double));
        near(two.tokens, 2.0 * one.tokens, 1e-9);
        near(two.mean_lag, 2.0 * one.mean_lag, 1e-9);
        near(one.mean_lag, 44.0, 0.01);

        let speed = Speed { step: 452.0, token: 0.0, least: 0.0, ..Speed::PAPER };
        let job = Job { lengths: Lengths::fixed(500).unwrap(), speed, ..case_study(128, 128) };
        let (split, pipeline) = job.best_split(64).unwrap();
        let conventional = job.conventional(65);
        let generated = job.conventional(65).tokens;
        let alone = 1.0 / (1.0 / generated - speed.train / 128.0);
        let overlap = 1.0 + alone * speed.train / 128.0;
        let most = overlap.min(2.0 - split.generators as f64 / 128.0);
        assert!(
            pipeline.tokens / conventional.tokens <= most * 1.001,
            "{} of {most}",
            pipeline.tokens / conventional.tokens
        );
    }

    /// Catches a plateau whose beginning is missed, a bound that is one off, and layouts that are passed over.
    #[test]
    fn the_best_split_is_that_of_trying_all() {
        for (accelerators, batch_size, max_lag) in [(8, 16, 4), (8, 16, 0), (16, 8, 60), (5, 200, 9), (24, 24, 400)] {
            for least in [0.0, 2.0, 20.0] {
                let speed = Speed { least, slots: 300, ..Speed::PAPER };
                let job = Job { accelerators, batch_size, lengths: Lengths::uniform(100).unwrap(), speed };
                let all = (1..accelerators).flat_map(|generators| {
                    (1..=300).map(move |slots| Split { generators, learners: accelerators - generators, slots })
                });
                let allowed = all.map(|split| job.pipeline(split)).filter(|rate| rate.max_lag <= max_lag);
                let best = allowed.max_by(|a, b| a.tokens.total_cmp(&b.tokens));
                let found = job.best_split(max_lag).map(|(_, rate)| rate);
                assert_eq!(found.is_some(), best.is_some(), "{accelerators} {batch_size} {max_lag}");
                if let Some((found, best)) = found.zip(best) {
                    near(found.tokens / best.tokens, 1.0, 1e-9);
                    assert!(found.max_lag <= max_lag, "{found:?}");
                }
            }
        }
    }
}
