//! The generator: samples rollouts, one token of all running ones a decode step.
//!
//! A sequence enters the lowest free slot, stays there and leaves when it ends; nobody waits for anybody. Weights change
//! between two decode steps: sequences go on with the keys and values they have, and each token records its version.
//!
//! A group's prompt runs once, without its last token; every sample gets a copy of those keys and values, and its first
//! decode step takes the prompt's last token in. So every sampled token, the first one too, has its logits from a decode step
//! under the newest weights, whenever its sample enters and whatever was loaded since the prompt ran.

use crate::clock::thread_ns;
use crate::engine::sampler::{choose, uniform};
use crate::engine::spec::Sampling;
use crate::engine::torch::cache::Cache;
use crate::engine::torch::config::Config;
use crate::engine::torch::layout::Layout;
use crate::engine::torch::memory;
use crate::engine::torch::model::Model;
use crate::engine::torch::weights::Snapshot;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};
use tidegate_operators::fault::Fault;
use tidegate_operators::generate::Generator;
use tidegate_operators::record::{Group, Prompt, Reason, Rollout, Status, Stop, Version, now_ns};

/// Ids to lossy text, special tokens left out.
pub type Decode = Box<dyn Fn(&[u32]) -> String + Send>;

/// What a generator is made of.
pub struct Settings {
    pub device: Device,
    pub sampling: Sampling,
    /// The run's seed.
    pub seed: u64,
    /// Ids that end a rollout.
    pub eos: Vec<u32>,
    pub decode: Decode,
    /// Longest sequence, prompt and completion together.
    pub max_len: usize,
    /// The timely worker it runs on.
    pub worker: usize,
}

/// Samples with libtorch, over fixed slots.
pub struct TorchGenerator {
    config: Config,
    layout: Layout,
    settings: Settings,
    cache: Cache,
    /// None until weights are loaded.
    model: Option<(Version, Model)>,
    waiting: VecDeque<Waiting>,
    refused: Vec<Rollout>,
    slots: Vec<Option<Sequence>>,
    /// `[2, rows]`, written anew each step: what goes in, and where.
    inputs: Vec<i64>,
    /// `[rows, V]` and `[rows]`, written anew each step.
    logps: Vec<f32>,
    values: Vec<f32>,
    torch_ns: u64,
}

/// A group of which some samples have no slot yet.
struct Waiting {
    group: Arc<Group>,
    /// The next sample to enter, and the one after the last.
    next: u32,
    end: u32,
    /// Keys and values of the prompt without its last token; None before its first sample enters, or if it has no other.
    prefix: Option<Vec<(Tensor, Tensor)>>,
}

/// A rollout in a slot.
struct Sequence {
    rollout: Rollout,
    /// The token to take in, and its position.
    input: u32,
    position: usize,
}

impl TorchGenerator {
    /// A generator without weights.
    ///
    /// # Errors
    /// No slots, no tokens, a longest sequence that the model does not have, or not enough memory.
    pub fn new(config: Config, layout: Layout, settings: Settings) -> Result<TorchGenerator> {
        let most = config.max_position_embeddings as usize;
        if !(2..=most).contains(&settings.max_len) {
            return Err(Error::config("max_len", settings.max_len, format!("the model takes 2..={most} tokens")));
        }
        for (key, value) in [("slots", settings.sampling.slots), ("max_tokens", settings.sampling.max_tokens)] {
            if value == 0 {
                return Err(Error::config(format!("generate.{key}"), value, "it must be at least 1"));
            }
        }
        let slots = settings.sampling.slots;
        let cache = Cache::new(&config, slots as i64, settings.max_len as i64, settings.device)?;
        Ok(TorchGenerator {
            cache,
            model: None,
            waiting: VecDeque::new(),
            refused: Vec::new(),
            slots: (0..slots).map(|_| None).collect(),
            inputs: Vec::new(),
            logps: Vec::new(),
            values: Vec::new(),
            torch_ns: 0,
            config,
            layout,
            settings,
        })
    }

    /// Rollouts that it samples at once: as many as it was told, or as memory allowed.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Nanoseconds that its thread spent in libtorch so far, on the processor.
    pub fn torch_ns(&self) -> u64 {
        self.torch_ns
    }

    /// Why a prompt cannot be sampled, if so.
    fn bad_prompt(&self, prompt: &Prompt) -> Option<String> {
        if prompt.refused.is_some() {
            return prompt.refused.clone();
        }
        let (prompt, vocabulary) = (&prompt.tokens, self.config.vocab_size);
        if prompt.is_empty() {
            return Some("it is empty".to_owned());
        }
        if prompt.len() >= self.settings.max_len {
            let most = self.settings.max_len;
            return Some(format!("{} tokens leave no room for an answer in {most}", prompt.len()));
        }
        let outside = prompt.iter().find(|&&id| i64::from(id) >= vocabulary)?;
        Some(format!("token {outside} is outside the vocabulary of {vocabulary}"))
    }

    /// Gives free slots, lowest first, to the samples that wait, first come first served.
    fn fill_slots(&mut self, model: &Model) -> Result<()> {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let Some(waiting) = self.waiting.front_mut() else { return Ok(()) };
            let prompt = &waiting.group.prompt.tokens;
            let (&last, before) = prompt.split_last().ok_or_else(|| Error::engine("prompt", "it is empty"))?;
            if waiting.prefix.is_none() && !before.is_empty() {
                let ids: Vec<i64> = before.iter().map(|&id| i64::from(id)).collect();
                let ids = Tensor::f_from_slice(&ids)?.f_unsqueeze(0)?.f_to_device(self.settings.device)?;
                waiting.prefix = Some(model.prefill(&ids)?);
            }
            if let Some(prefix) = &waiting.prefix {
                self.cache.fill(slot as i64, prefix)?;
            }
            let rollout = Rollout {
                group: waiting.group.clone(),
                sample: waiting.next,
                started_ns: now_ns(),
                worker: self.settings.worker,
                ..Rollout::default()
            };
            self.slots[slot] = Some(Sequence { rollout, input: last, position: before.len() });
            waiting.next += 1;
            if waiting.next == waiting.end {
                self.waiting.pop_front();
            }
        }
        Ok(())
    }

    /// Runs the model on one token of each slot, up to the highest used one; `logps` (and `values`) take the results. Slots
    /// between that are free compute along, on nothing anybody reads.
    fn decode(&mut self, model: &Model) -> Result<()> {
        let rows = self.slots.iter().rposition(Option::is_some).map_or(0, |highest| highest + 1);
        let used = || self.slots[..rows].iter().map(Option::as_ref);
        self.inputs.clear();
        self.inputs.extend(used().map(|slot| slot.map_or(0, |sequence| i64::from(sequence.input))));
        self.inputs.extend(used().map(|slot| slot.map_or(0, |sequence| sequence.position as i64)));
        let longest = self.inputs[rows..].iter().copied().max().unwrap_or(0);
        let inputs = Tensor::f_from_slice(&self.inputs)?.f_view([2, rows as i64])?.f_to_device(self.settings.device)?;
        let (tokens, positions) = (inputs.f_get(0)?, inputs.f_get(1)?);
        self.cache.open(&positions, longest)?;
        let hidden = model.decode(&tokens, &positions, &mut self.cache)?;
        let mut logits = model.logits(&hidden)?;
        let temperature = self.settings.sampling.temperature;
        if temperature != 0.0 && temperature != 1.0 {
            logits = logits.f_div_scalar(temperature)?;
        }
        let numbers = rows * self.config.vocab_size as usize;
        self.logps.resize(numbers, 0.0);
        logits.f_log_softmax(-1, Kind::Float)?.f_copy_data(&mut self.logps, numbers)?;
        self.values.clear();
        if let Some(values) = model.value(&hidden)? {
            self.values.resize(rows, 0.0);
            values.f_to_kind(Kind::Float)?.f_copy_data(&mut self.values, rows)?;
        }
        Ok(())
    }

    /// Chooses the next token of `slot`, and returns the rollout if that ends it.
    fn sample(&mut self, slot: usize, version: Version) -> Result<Option<Rollout>> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(None) };
        let rollout = &mut sequence.rollout;
        let vocabulary = self.config.vocab_size as usize;
        let logps = &mut self.logps[slot * vocabulary..(slot + 1) * vocabulary];
        let u = uniform(self.settings.seed, rollout.group.number, rollout.sample, rollout.tokens.len() as u32);
        let choice = choose(logps, &self.settings.sampling, u);
        if !choice.logp.is_finite() {
            let what = format!("group {} sample {}", rollout.group.number, rollout.sample);
            return Err(Error::engine(what, format!("the logits under version {version} are not finite")));
        }
        rollout.tokens.push(choice.token);
        rollout.logp_behavior.push(choice.logp);
        rollout.version.push(version);
        rollout.value.extend(self.values.get(slot));
        (sequence.input, sequence.position) = (choice.token, sequence.position + 1);
        let Some(stop) = stop(sequence, &self.settings) else { return Ok(None) };
        Ok(self.slots[slot].take().map(|sequence| finish(sequence.rollout, stop, &self.settings)))
    }

    /// Goes on with half the slots, where memory ran out. The youngest rollouts start again later: every draw is a function of
    /// its place alone, so they are as if they had entered then.
    fn halve(&mut self) -> Result<()> {
        let left = self.slots.len() / 2;
        let mut running: Vec<(i64, Sequence)> =
            (0..).zip(&mut self.slots).filter_map(|(slot, sequence)| Some((slot, sequence.take()?))).collect();
        running.sort_by_key(|(slot, sequence)| (sequence.rollout.started_ns, *slot));
        for (_, sequence) in running.drain(left.min(running.len())..).rev() {
            let (group, next) = (sequence.rollout.group, sequence.rollout.sample);
            self.waiting.push_front(Waiting { group, next, end: next + 1, prefix: None });
        }
        // A slot that nobody is in has keys of nobody.
        let mut kept: Vec<i64> = running.iter().map(|(slot, _)| *slot).collect();
        kept.resize(left, 0);
        self.slots = running.into_iter().map(|(_, sequence)| Some(sequence)).collect();
        self.slots.resize_with(left, || None);
        self.cache.keep(&kept)
    }

    fn try_step(&mut self) -> Result<Vec<Rollout>> {
        let mut done = std::mem::take(&mut self.refused);
        if self.running() == 0 {
            return Ok(done);
        }
        let (version, model) = self.model.take().ok_or_else(|| Error::engine("generator", "no weights were loaded"))?;
        let started = thread_ns();
        let decoded = self.fill_slots(&model).and_then(|()| self.decode(&model));
        self.torch_ns += thread_ns() - started;
        self.model = Some((version, model));
        match decoded {
            // Nothing was sampled: the next call does the same step with what is left.
            Err(error) if memory::ran_out(&error) && self.slots.len() > 1 => return self.halve().map(|()| done),
            decoded => decoded?,
        }
        for slot in 0..self.slots.len() {
            done.extend(self.sample(slot, version)?);
        }
        Ok(done)
    }
}

/// Whether the token just sampled is the last one, and why.
fn stop(sequence: &Sequence, settings: &Settings) -> Option<Stop> {
    let (rollout, sampling) = (&sequence.rollout, &settings.sampling);
    if !sampling.ignore_eos && settings.eos.contains(&sequence.input) {
        return Some(Stop::Eos);
    }
    if ends_with_stop_string(&rollout.tokens, sampling, &settings.decode) {
        return Some(Stop::StopString);
    }
    // The sampled token's own position is free as long as it is below max_len.
    if rollout.tokens.len() >= sampling.limit(&rollout.group.prompt) || sequence.position + 1 >= settings.max_len {
        return Some(Stop::Length);
    }
    let limit_ns = sampling.time_limit_s * 1e9;
    (limit_ns > 0.0 && (now_ns() - rollout.started_ns) as f64 >= limit_ns).then_some(Stop::Time)
}

/// Whether a stop string is in the text of the last tokens. Only those are decoded: a token is at least one byte of text,
/// so a string of n bytes lies in the last n tokens; a few more are there for decoders that treat the first token differently
/// and for tokens without text. What lay before was looked at when it was new.
fn ends_with_stop_string(tokens: &[u32], sampling: &Sampling, decode: &Decode) -> bool {
    let Some(longest) = sampling.stop.iter().map(String::len).max() else { return false };
    let text = decode(&tokens[tokens.len().saturating_sub(longest + 8)..]);
    sampling.stop.iter().any(|stop| text.contains(stop.as_str()))
}

fn finish(mut rollout: Rollout, stop: Stop, settings: &Settings) -> Rollout {
    let shown = rollout.tokens.len() - usize::from(stop == Stop::Eos);
    rollout.text = (settings.decode)(&rollout.tokens[..shown]);
    let trained = !(stop == Stop::Length && settings.sampling.mask_truncated);
    rollout.mask = vec![trained; rollout.tokens.len()];
    rollout.stop = stop;
    rollout.finished_ns = now_ns();
    rollout
}

/// The rollouts of a group whose prompt cannot be sampled.
fn refuse(group: &Arc<Group>, why: &str, worker: usize) -> impl Iterator<Item = Rollout> {
    let now = now_ns();
    let one = Rollout {
        group: group.clone(),
        status: Status::Discarded(Reason::BadPrompt(why.to_owned())),
        stop: Stop::Refused,
        started_ns: now,
        finished_ns: now,
        worker,
        ..Rollout::default()
    };
    (0..group.size).map(move |sample| Rollout { sample, ..one.clone() })
}

fn fault(error: Error) -> Fault {
    Fault::new("generate", error)
}

impl Generator for TorchGenerator {
    type Weights = Snapshot;

    fn load(&mut self, version: Version, weights: Snapshot) -> Result<(), Fault> {
        let mut load = || {
            let views = self.layout.views(&weights.flat().f_to_device(self.settings.device)?)?;
            let model = match &self.model {
                Some((_, model)) => model.with_weights(&self.layout, views)?,
                None => Model::new(&self.config, &self.layout, views)?,
            };
            self.model = Some((version, model));
            Ok(())
        };
        tch::no_grad(&mut load).map_err(fault)
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        match self.bad_prompt(&group.prompt) {
            Some(why) => self.refused.extend(refuse(&group, &why, self.settings.worker)),
            None if group.size > 0 => self.waiting.push_back(Waiting { next: 0, end: group.size, group, prefix: None }),
            None => {}
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Rollout>, Fault> {
        tch::no_grad(|| self.try_step()).map_err(fault)
    }

    fn running(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|waiting| (waiting.end - waiting.next) as usize).sum();
        waiting + self.refused.len() + self.slots.iter().flatten().count()
    }
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
