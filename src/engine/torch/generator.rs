//! The generator: samples rollouts, one token of all running ones a step.
//!
//! A sequence enters the lowest free slot, stays there and leaves when it ends; nobody waits for anybody. Weights change
//! between two steps: sequences go on with the keys and values they have, or enter anew (`generate.kv_after_update`), and each token
//! records its version.
//!
//! A group's prompt runs once, without its last token, some of it in each step beside the tokens that are sampled there; its other
//! samples get a copy of those keys and values. The prompt's last token is taken in by the step that samples the first one. So
//! every sampled token, the first one too, has its logits under the newest weights, whenever its sample enters and whatever was
//! loaded since the prompt ran.

use crate::clock::thread_ns;
use crate::engine::observed::Drawn;
use crate::engine::sampler::{Choice, choose, uniform};
use crate::engine::spec::{KvAfterUpdate, Sampling};
use crate::engine::torch::cache::{Cache, Prefix};
use crate::engine::torch::config::Config;
use crate::engine::torch::device;
use crate::engine::torch::ffi;
use crate::engine::torch::layout::Layout;
use crate::engine::torch::memory;
use crate::engine::torch::model::{Form, Model};
use crate::engine::torch::observed::log_probabilities;
use crate::engine::torch::rows::{Rows, Sequence};
use crate::engine::torch::weights::Snapshot;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use tch::{Device, Tensor};
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
    torch_ns: u64,
    /// What tokens were drawn from, where somebody observes it.
    observed: Option<Vec<Drawn>>,
}

/// A group of which some samples have no slot yet.
struct Waiting {
    group: Arc<Group>,
    /// The next sample to enter, and the one after the last.
    next: u32,
    end: u32,
    prompt: Shared,
}

/// Where keys and values of a prompt without its last token are.
enum Shared {
    Nowhere,
    /// On their way into this slot, of the group's first sample.
    Coming(usize),
    There(Prefix),
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
        let kind = device::kind(settings.sampling.dtype);
        let cache = Cache::new(&config, slots as i64, settings.max_len as i64, kind, settings.device)?;
        Ok(TorchGenerator {
            cache,
            model: None,
            waiting: VecDeque::new(),
            refused: Vec::new(),
            slots: (0..slots).map(|_| None).collect(),
            torch_ns: 0,
            observed: None,
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

    /// Keeps what tokens are drawn from, from now on.
    pub(super) fn observe(&mut self) {
        self.observed.get_or_insert_default();
    }

    /// Takes what was kept.
    pub(super) fn drawn(&mut self) -> Vec<Drawn> {
        self.observed.as_mut().map(std::mem::take).unwrap_or_default()
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

    /// Gives free slots, lowest first, to the samples that wait, first come first served; those whose prompt is on its way let others
    /// pass.
    fn fill_slots(&mut self) -> Result<()> {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let ready = |waiting: &Waiting| !matches!(waiting.prompt, Shared::Coming(_));
            let Some(at) = self.waiting.iter().position(ready) else { return Ok(()) };
            let waiting = &mut self.waiting[at];
            let before = waiting.group.prompt.tokens.len() - 1;
            let mut entered = 0;
            match &waiting.prompt {
                Shared::There(prefix) => {
                    self.cache.fill(slot as i64, prefix)?;
                    entered = before;
                }
                Shared::Nowhere if before > 0 => waiting.prompt = Shared::Coming(slot),
                Shared::Nowhere | Shared::Coming(_) => {}
            }
            let rollout = Rollout {
                group: waiting.group.clone(),
                sample: waiting.next,
                started_ns: now_ns(),
                worker: self.settings.worker,
                ..Rollout::default()
            };
            self.slots[slot] = Some(Sequence { rollout, entered });
            waiting.next += 1;
            if waiting.next == waiting.end {
                self.waiting.remove(at);
            }
        }
        Ok(())
    }

    /// Runs the model on `rows` and chooses a token for each that samples one, with the critic's estimate where there is a critic.
    fn sample(&mut self, model: &Model, rows: &Rows) -> Result<Vec<(Choice, Option<f32>)>> {
        self.cache.grow(rows.longest())?;
        let tokens = rows.tokens()?.f_to_device(self.settings.device)?;
        let hidden = model.decode_step(&tokens, &rows.places()?, &self.cache)?;
        let sampled = rows.sampled();
        if sampled.is_empty() {
            return Ok(Vec::new());
        }
        let hidden = hidden.f_narrow(0, 0, sampled.len() as i64)?;
        let values = match model.value(&hidden)? {
            Some(values) => Vec::<f32>::try_from(values)?.into_iter().map(Some).collect(),
            None => vec![None; sampled.len()],
        };
        let sampling = &self.settings.sampling;
        let draw = |&slot: &usize| {
            let rollout = self.slots[slot].as_ref().map(|sequence| &sequence.rollout);
            rollout.map_or(0.0, |r| uniform(self.settings.seed, r.group.number, r.sample, r.tokens.len() as u32))
        };
        let draws: Vec<f64> = sampled.iter().map(draw).collect();
        let logits = model.logits(&hidden)?;
        let choices = if sampling.cuts() {
            cut(&logits, sampling, &draws)?
        } else {
            let chosen = ffi::choose(&logits, &draws, sampling.temperature)?;
            chosen.into_iter().map(|(token, logp)| Choice { token, logp }).collect()
        };
        if let Some(observed) = &mut self.observed {
            let logps = log_probabilities(&logits, sampling.temperature)?;
            let of = |slot: &usize| self.slots[*slot].as_ref().map(|sequence| &sequence.rollout);
            let rows = sampled.iter().filter_map(of).zip(logps.chunks_exact(logits.size2()?.1 as usize));
            observed.extend(rows.map(|(r, row)| Drawn { group: r.group.number, sample: r.sample, logps: row.to_vec() }));
        }
        Ok(choices.into_iter().zip(values).collect())
    }

    /// Takes the token in that was chosen for `slot`, and returns the rollout if that ends it.
    fn take(&mut self, slot: usize, version: Version, choice: Choice, value: Option<f32>) -> Result<Option<Rollout>> {
        let Some(sequence) = &mut self.slots[slot] else { return Ok(None) };
        let rollout = &mut sequence.rollout;
        if !choice.logp.is_finite() {
            let what = format!("group {} sample {}", rollout.group.number, rollout.sample);
            return Err(Error::engine(what, format!("the logits under version {version} are not finite")));
        }
        rollout.tokens.push(choice.token);
        rollout.logp_behavior.push(choice.logp);
        rollout.version.push(version);
        rollout.value.extend(value);
        let Some(stop) = stop(rollout, &self.settings) else { return Ok(None) };
        Ok(self.slots[slot].take().map(|sequence| finish(sequence.rollout, stop, &self.settings)))
    }

    /// Keeps the prompts that have just come in for the samples that wait for them.
    fn share_prompts(&mut self) -> Result<()> {
        for waiting in &mut self.waiting {
            let Shared::Coming(slot) = waiting.prompt else { continue };
            let before = waiting.group.prompt.tokens.len() - 1;
            if self.slots[slot].as_ref().is_some_and(|sequence| sequence.entered >= before) {
                waiting.prompt = Shared::There(self.cache.prefix(slot as i64, before as i64)?);
            }
        }
        Ok(())
    }

    /// Forgets keys and values of other weights: all that runs enters again, and prompts that wait to be shared come anew.
    fn enter_anew(&mut self) {
        self.slots.iter_mut().flatten().for_each(|sequence| sequence.entered = 0);
        for waiting in &mut self.waiting {
            // One that is on its way starts again where it is.
            if matches!(waiting.prompt, Shared::There(_)) {
                waiting.prompt = Shared::Nowhere;
            }
        }
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
            self.waiting.push_front(Waiting { group, next, end: next + 1, prompt: Shared::Nowhere });
        }
        // Slots get other numbers, or are lost: a prompt that was coming comes anew.
        for waiting in &mut self.waiting {
            if matches!(waiting.prompt, Shared::Coming(_)) {
                waiting.prompt = Shared::Nowhere;
            }
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
        let sampled = self.fill_slots().and_then(|()| {
            let rows = Rows::plan(&self.slots);
            let choices = self.sample(&model, &rows)?;
            rows.enter(&mut self.slots);
            self.share_prompts()?;
            Ok((rows, choices))
        });
        self.torch_ns += thread_ns() - started;
        self.model = Some((version, model));
        let (rows, choices) = match sampled {
            // Nothing was sampled: the next call does the same step with what is left.
            Err(error) if memory::ran_out(&error) && self.slots.len() > 1 => return self.halve().map(|()| done),
            sampled => sampled?,
        };
        for (&slot, (choice, value)) in rows.sampled().iter().zip(choices) {
            done.extend(self.take(slot, version, choice, value)?);
        }
        Ok(done)
    }
}

/// Choices of distributions that are cut (`top_k`, `top_p`): on the host, a row after the other.
fn cut(logits: &Tensor, sampling: &Sampling, draws: &[f64]) -> Result<Vec<Choice>> {
    let mut logps = log_probabilities(logits, sampling.temperature)?;
    let vocabulary = logits.size2()?.1 as usize;
    Ok(logps.chunks_exact_mut(vocabulary).zip(draws).map(|(row, &draw)| choose(row, sampling, draw)).collect())
}

/// Whether the token just sampled is the last one, and why.
fn stop(rollout: &Rollout, settings: &Settings) -> Option<Stop> {
    let sampling = &settings.sampling;
    if !sampling.ignore_eos && rollout.tokens.last().is_some_and(|last| settings.eos.contains(last)) {
        return Some(Stop::Eos);
    }
    if ends_with_stop_string(&rollout.tokens, sampling, &settings.decode) {
        return Some(Stop::StopString);
    }
    // The sampled token's own position is free as long as it is below max_len.
    if rollout.tokens.len() >= sampling.limit(&rollout.group.prompt)
        || rollout.group.prompt.tokens.len() + rollout.tokens.len() >= settings.max_len
    {
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
        let mut load = || -> Result<()> {
            let flat = weights.flat().f_to_device(self.settings.device)?;
            let form = Form::Packed(device::kind(self.settings.sampling.dtype));
            // What fails in between is neither the one model nor the other.
            let model = match self.model.take() {
                Some((_, mut model)) => model.reload(&self.layout, &flat, form).map(|()| model),
                None => Model::new(&self.config, &self.layout, &flat, form),
            };
            self.model = Some((version, model?));
            Ok(())
        };
        tch::no_grad(&mut load).map_err(fault)?;
        if self.settings.sampling.kv_after_update == KvAfterUpdate::Recompute {
            self.enter_anew();
        }
        Ok(())
    }

    fn start(&mut self, group: Arc<Group>) -> Result<(), Fault> {
        match self.bad_prompt(&group.prompt) {
            Some(why) => self.refused.extend(refuse(&group, &why, self.settings.worker)),
            None if group.size > 0 => {
                self.waiting.push_back(Waiting { next: 0, end: group.size, group, prompt: Shared::Nowhere });
            }
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
