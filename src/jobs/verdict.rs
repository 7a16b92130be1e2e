//! What a replay came to: the same, bit for bit; or where it first differed; or what another loss would have made of it.

use crate::error::Result;
use crate::jobs::recording::RecordedStep;
use crate::jobs::{Output, print};
use crate::tasks::spec::Source;
use comfy_table::{Table, presets};
use serde::Serialize;
use std::path::Path;
use tidegate_operators::record::{Metrics, Rollout, SealedStep, Step};

/// The result of a replay, as it grows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Check(Check),
    WhatIf(WhatIf),
}

/// A comparison with the recorded run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Check {
    /// Steps whose rewards, advantages, log-probabilities, loss and weights are the recorded ones, bit for bit.
    pub same_steps: u64,
    pub tensors: usize,
    pub rollouts: u64,
    /// Rewards from outside are taken as recorded, so their being the same says nothing.
    pub rewards: Source,
    pub difference: Option<Difference>,
}

/// The first thing that is not as recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub step: Step,
    pub what: String,
    pub recorded: String,
    pub replayed: String,
}

/// Step by step, what training differently would have seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WhatIf {
    pub steps: Vec<WhatIfStep>,
}

/// One step of [`WhatIf`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIfStep {
    pub step: Step,
    pub loss: f64,
    /// `sum(reward * sum logp_current) / sum(reward * tokens)` over the batch, nats a token: how likely what earned reward is.
    /// None where nothing did.
    pub rewarded_logp: Option<f64>,
    /// Against the recorded behavior.
    pub ess: f64,
    pub kl_k1: f64,
    pub kl_k3: f64,
    /// From the reference, where there is one.
    pub kl_reference: f64,
    pub grad_norm: f64,
}

impl Default for Verdict {
    fn default() -> Self {
        Verdict::Check(Check::default())
    }
}

impl Verdict {
    /// Takes a replayed step in. Returns the difference from the recorded one, if that is asked and there is one.
    pub fn judge(&mut self, step: &SealedStep, metrics: &Metrics, recorded: Option<&RecordedStep>) -> Option<Difference> {
        match self {
            Verdict::Check(check) => {
                check.difference = match recorded {
                    Some(recorded) => difference(step, metrics, recorded),
                    None => Some(Difference::new(step.step, "step", &"nothing", &"a step")),
                };
                if check.difference.is_none() {
                    check.same_steps += 1;
                    check.tensors = metrics.weights.len();
                    check.rollouts += step.rollouts.len() as u64;
                }
                check.difference.clone()
            }
            Verdict::WhatIf(what_if) => {
                what_if.steps.push(WhatIfStep {
                    step: step.step,
                    loss: metrics.loss,
                    rewarded_logp: rewarded_logp(&step.rollouts),
                    ess: metrics.ess,
                    kl_k1: metrics.kl_k1,
                    kl_k3: metrics.kl_k3,
                    kl_reference: metrics.kl_reference,
                    grad_norm: metrics.grad_norm,
                });
                None
            }
        }
    }

    /// The first difference from the recorded run, in one sentence.
    pub fn difference(&self) -> Option<String> {
        let Verdict::Check(Check { difference: Some(d), .. }) = self else { return None };
        Some(format!("step {}: {} differs: recorded {}, replayed {}", d.step, d.what, d.recorded, d.replayed))
    }

    /// Prints what it came to on stdout.
    ///
    /// # Errors
    /// As [`print()`].
    pub fn print(&self, output: Output, run: &Path) -> Result<()> {
        match (output, self) {
            (Output::Json, verdict) => print(serde_json::to_string(verdict).unwrap_or_default()),
            (Output::Text, Verdict::Check(check)) => {
                print(format_args!("replayed  {}: {} steps, {} rollouts", run.display(), check.same_steps, check.rollouts))?;
                if check.difference.is_some() {
                    return Ok(());
                }
                let rewards = if check.rewards == Source::Rule { "rewards, " } else { "" };
                print(format_args!(
                    "same      {rewards}advantages, log-probabilities, loss and {} tensors of each step, bit for bit",
                    check.tensors
                ))
            }
            (Output::Text, Verdict::WhatIf(what_if)) => print(what_if.table()),
        }
    }
}

impl WhatIf {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["step", "loss", "rewarded logp", "ESS", "KL k1", "KL k3", "gradient"]);
        for s in &self.steps {
            let logp = s.rewarded_logp.map_or_else(String::new, |x| format!("{x:.4}"));
            let numbers = [s.ess, s.kl_k1, s.kl_k3, s.grad_norm].map(|x| format!("{x:.4}"));
            table.add_row([s.step.to_string(), format!("{:.5}", s.loss), logp].into_iter().chain(numbers));
        }
        table
    }
}

impl Difference {
    fn new(step: Step, what: impl Into<String>, recorded: &impl ToString, replayed: &impl ToString) -> Self {
        Difference { step, what: what.into(), recorded: recorded.to_string(), replayed: replayed.to_string() }
    }
}

/// In the order in which one thing follows from another: rewards, advantages, log-probabilities, loss, weights.
fn difference(step: &SealedStep, metrics: &Metrics, recorded: &RecordedStep) -> Option<Difference> {
    let k = step.step;
    if step.rollouts.len() != recorded.batch.len() {
        return Some(Difference::new(k, "number of rollouts", &recorded.batch.len(), &step.rollouts.len()));
    }
    for (now, then) in step.rollouts.iter().zip(&recorded.batch) {
        if let Some(Differing { what, recorded, replayed }) = row_difference(then, now) {
            let which = format!("{what} of group {}, sample {}", then.group.number, then.sample);
            return Some(Difference::new(k, which, &recorded, &replayed));
        }
    }
    if metrics.loss.to_bits() != recorded.metrics.loss.to_bits() {
        return Some(Difference::new(k, "loss", &recorded.metrics.loss, &metrics.loss));
    }
    let mut tensors = metrics.weights.iter().zip(&recorded.metrics.weights);
    if let Some((now, then)) = tensors.find(|(now, then)| now != then) {
        return Some(Difference::new(k, format!("tensor {}", then.0), &then.1, &now.1));
    }
    let (now, then) = (metrics.weights.len(), recorded.metrics.weights.len());
    (now != then).then(|| Difference::new(k, "number of tensors", &then, &now))
}

/// A value of a row that differs.
struct Differing {
    what: String,
    recorded: String,
    replayed: String,
}

fn row_difference(then: &Rollout, now: &Rollout) -> Option<Differing> {
    let differing = |what: String, recorded: String, replayed: String| Some(Differing { what, recorded, replayed });
    if (then.group.number, then.sample) != (now.group.number, now.sample) {
        let name = |r: &Rollout| format!("group {}, sample {}", r.group.number, r.sample);
        return differing("place".into(), name(then), name(now));
    }
    if then.reward.map(f32::to_bits) != now.reward.map(f32::to_bits) {
        return differing("reward".into(), format!("{:?}", then.reward), format!("{:?}", now.reward));
    }
    for (name, then, now) in [
        ("value", &then.value, &now.value),
        ("advantage", &then.advantage, &now.advantage),
        ("logp_current", &then.logp_current, &now.logp_current),
    ] {
        if then.len() != now.len() {
            return differing(format!("length of {name}"), then.len().to_string(), now.len().to_string());
        }
        let mut tokens = then.iter().zip(now).enumerate();
        if let Some((at, (then, now))) = tokens.find(|(_, (then, now))| then.to_bits() != now.to_bits()) {
            return differing(format!("{name}[{at}]"), then.to_string(), now.to_string());
        }
    }
    None
}

fn rewarded_logp(batch: &[Rollout]) -> Option<f64> {
    let (mut logp, mut tokens) = (0.0, 0.0);
    for rollout in batch {
        let Some(reward) = rollout.reward.filter(|r| r.is_finite()) else { continue };
        let reward = f64::from(reward);
        logp += reward * rollout.logp_current.iter().map(|x| f64::from(*x)).sum::<f64>();
        tokens += reward * rollout.logp_current.len() as f64;
    }
    (tokens != 0.0).then(|| logp / tokens)
}
