//! Drawn rollouts that are like real ones where a log feels it: most log-probabilities near 0 and few far below, tokens as frequent
//! as words are, versions in runs, prompts shared by a group, and the statuses of a run that filters. The same for the same numbers.

use std::sync::Arc;
use tidegate_operators::record::{Group, Prompt, Reason, Rollout, Status, Stop};

const GROUP: u32 = 8;
const VOCABULARY: usize = 32_768;
const MAX_LAG: u64 = 4;
const START_NS: i64 = 1_790_000_000_000_000_000;
const STEP_NS: i64 = 2_000_000_000;

/// A source of rollouts of `tokens` tokens on average.
pub struct Drawn {
    state: u64,
    tokens: u64,
    group: u64,
    /// Sums of the words' frequencies, and the words.
    frequencies: Vec<f64>,
    words: Vec<String>,
}

impl Drawn {
    pub fn new(tokens: u64) -> Drawn {
        let mut drawn = Drawn { state: 1, tokens, group: 0, frequencies: Vec::new(), words: Vec::new() };
        let mut sum = 0.0;
        for rank in 0..VOCABULARY {
            sum += 1.0 / (rank as f64 + 2.7);
            drawn.frequencies.push(sum);
            let letters = 2 + (rank + 1).ilog2() as usize / 3;
            let word: String = (0..letters).map(|_| char::from(b'a' + (drawn.next() % 26) as u8)).collect();
            drawn.words.push(format!(" {word}"));
        }
        drawn
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.uniform() * bound as f64) as u64
    }

    fn token(&mut self) -> usize {
        let place = self.uniform() * self.frequencies[VOCABULARY - 1];
        self.frequencies.partition_point(|sum| *sum < place).min(VOCABULARY - 1)
    }

    fn text(&mut self, length: u64) -> (Vec<u32>, String) {
        let (mut tokens, mut text) = (Vec::with_capacity(length as usize), String::new());
        for _ in 0..length {
            let rank = self.token();
            // Ids are no ranks: the frequent ones lie anywhere.
            tokens.push((rank as u32).wrapping_mul(0x9e37) % VOCABULARY as u32);
            text.push_str(&self.words[rank]);
        }
        (tokens, text)
    }

    /// What step `step` seals: `rows` rollouts.
    pub fn step(&mut self, step: u64, rows: u64) -> Vec<Rollout> {
        let mut rollouts = Vec::with_capacity(rows as usize);
        while (rollouts.len() as u64) < rows {
            let size = GROUP.min((rows - rollouts.len() as u64) as u32);
            self.add_group(step, size, &mut rollouts);
        }
        rollouts
    }

    fn add_group(&mut self, step: u64, size: u32, rollouts: &mut Vec<Rollout>) {
        let oldest = step.saturating_sub(MAX_LAG + 1);
        let length = self.tokens / 8 + self.below(self.tokens / 4 + 1);
        let (tokens, text) = self.text(length);
        let id = self.group;
        let task = ["sums", "proofs", "stories"][(id % 3) as usize].to_owned();
        let answer = self.below(100_000).to_string();
        let prompt = Prompt { id, task, text, tokens, answer, ..Prompt::default() };
        let admitted_ns = START_NS + oldest as i64 * STEP_NS + self.below(STEP_NS as u64) as i64;
        let (number, due) = (self.group, oldest + MAX_LAG + 1);
        let header = Group { number, due, earlier: 64 * oldest, oldest, size, generator: 0, prompt, admitted_ns };
        self.group += 1;
        let group = Arc::new(header);
        // Four groups of ten teach nothing; one rollout of a hundred has no reward.
        let status = if self.below(10) < 4 { Status::Discarded(Reason::ZeroVariance) } else { Status::Trained };
        let solved = self.uniform();
        let easy = self.below(2) as f32;
        for sample in 0..size {
            let mut rollout = self.rollout(&group, sample, step);
            rollout.order = rollouts.len() as u32;
            rollout.status = status.clone();
            let reward = if status == Status::Trained { f32::from(u8::from(self.uniform() < solved)) } else { easy };
            rollout.reward = Some(reward);
            rollout.reward_parts = vec![("correct".to_owned(), reward), ("format".to_owned(), 1.0)];
            let advantage = if status == Status::Trained { reward - solved as f32 } else { 0.0 };
            rollout.advantage = vec![advantage; rollout.tokens.len()];
            if status != Status::Trained {
                (rollout.logp_current, rollout.trained_ns) = (Vec::new(), 0);
            } else if self.below(100) == 0 {
                rollout.status = Status::Discarded(Reason::NoReward);
                (rollout.reward, rollout.reward_error) = (None, Some("the program ended with status 1".to_owned()));
                (rollout.reward_parts, rollout.logp_current) = (Vec::new(), Vec::new());
            }
            rollouts.push(rollout);
        }
    }

    fn rollout(&mut self, group: &Arc<Group>, sample: u32, step: u64) -> Rollout {
        // From a quarter of the mean to two and a half of it, most below; the longest are cut.
        let drawn = self.tokens as f64 * (0.25 - 0.75 * (1.0 - self.uniform()).ln());
        let most = self.tokens * 5 / 2;
        let length = (drawn as u64).clamp(1, most);
        let stop = if length == most { Stop::Length } else { Stop::Eos };
        let (tokens, text) = self.text(length);
        let count = length as usize;
        let mut logp_behavior = Vec::with_capacity(count);
        let mut logp_current = Vec::with_capacity(count);
        for _ in 0..count {
            let logp = -6.0 * self.uniform().powi(if self.next().is_multiple_of(4) { 2 } else { 12 });
            let drift = 1.0 + 0.1 * (self.uniform() - 0.5);
            logp_behavior.push(logp as f32);
            logp_current.push((logp * drift) as f32);
        }
        // New weights come once a step, while it is sampled.
        let (newest, first) = (step - 1, group.oldest.max((step - 1).saturating_sub(self.below(MAX_LAG + 1))));
        let span = newest - first + 1;
        let pace = self.tokens.max(1);
        let shift = self.below(pace);
        let version = (0..length).map(|i| first + ((i + shift) / pace).min(span - 1)).collect();
        let started_ns = group.admitted_ns + self.below(STEP_NS as u64 / 8) as i64;
        let finished_ns = started_ns + length as i64 * 4_000_000;
        Rollout {
            group: Arc::clone(group),
            sample,
            mask: vec![true; count],
            tokens,
            text,
            logp_behavior,
            logp_current,
            version,
            stop,
            started_ns,
            finished_ns,
            worker: 0,
            step,
            trained_ns: START_NS + step as i64 * STEP_NS,
            ..Rollout::default()
        }
    }
}
