//! The end of a run, on one screen: what was learned, at what lag, where the time went, what to type next.

use crate::jobs::advice::{Layout, advice};
use crate::jobs::emulation::Emulation;
use crate::jobs::eval::{self, Evaluation};
use crate::jobs::pace::Pacing;
use crate::jobs::program;
use crate::jobs::shares::Shares;
use crate::jobs::training::Outcome;
use crate::jobs::waits::GeneratorShares;
use crate::spec::Spec;
use crate::tasks::outside::meter::Stats;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Held-out success, sampled and greedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluations {
    pub sampled: Evaluation,
    pub greedy: Evaluation,
}

/// What ended a run that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All its steps are done.
    Steps,
    /// There are no more prompts: going on would find none either.
    Prompts,
    /// A signal.
    Signal,
}

/// What a run was like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub run: PathBuf,
    pub steps: u64,
    /// The last sealed step: its weights are the saved model.
    pub last_step: u64,
    /// What the specification asked for.
    pub steps_planned: u64,
    pub ending: Ending,
    /// From the first admission to the last seal, without evaluation.
    pub training_s: f64,
    pub trained_rollouts: u64,
    pub trained_tokens: u64,
    pub generated_tokens: u64,
    /// Rollouts that were not trained, by status.
    pub not_trained: BTreeMap<String, u64>,
    /// Mean reward of the first and of the last tenth of the steps. This and the means below: None where nothing was trained.
    pub reward_first: Option<f64>,
    pub reward_last: Option<f64>,
    /// The critic's explained variance likewise; None without a critic.
    pub explained_first: Option<f64>,
    pub explained_last: Option<f64>,
    /// Tokens that `learn.safeguard.max_lag` left out, steps whose gradient was held for a later one, and steps without an update.
    pub left_out_tokens: u64,
    pub held_steps: u64,
    pub skipped_steps: u64,
    /// Of the tokens of trained rollouts that the policy chose, those that were left out among them; steps.
    pub lag_mean: Option<f64>,
    pub lag_max: Option<u64>,
    pub lag_bound: u64,
    pub ess_mean: Option<f64>,
    pub ess_min: Option<f64>,
    /// Shares of the learner's time that it waited: for groups that the lag rule forces, for any groups, for the log.
    pub waited_forced: f64,
    pub waited_any: f64,
    pub waited_log: f64,
    /// Shares of the learner's and the generators' wall time spent on the processor outside libtorch (dataflow, kernel, store).
    pub learner_outside: Option<f64>,
    pub generators_outside: Option<f64>,
    /// Where the time of the learner and of the generators went in the steps between a run's start and its end; of each generator, in all
    /// of it; and what to change, where something is to be gained.
    pub balance: Option<Shares>,
    pub generators: Vec<GeneratorShares>,
    pub advice: Option<String>,
    /// The generators' decode steps, and what new weights cost them.
    pub generating: Pacing,
    /// Where rewards came from outside.
    pub rewards: Option<Stats>,
    /// Of accelerators that are emulated.
    pub emulation: Option<Emulation>,
    pub before: Option<Evaluations>,
    pub after: Option<Evaluations>,
}

impl Summary {
    /// `evaluated` before and after.
    pub fn new<W>(spec: &Spec, outcome: &Outcome<W>, ending: Ending, evaluated: [Option<Evaluations>; 2]) -> Self {
        let [before, after] = evaluated;
        let sealed = &outcome.sealed;
        let a_token = |sum: f64| (sealed.trained_tokens > 0).then(|| sum / sealed.trained_tokens as f64);
        let (steps, tenth) = (sealed.rewards.len(), sealed.rewards.len().div_ceil(10));
        let reward = |part: &[f64]| mean(part.iter().copied().filter(|reward| reward.is_finite()));
        let explained = |part: &[f64]| mean(part.iter().copied().filter(|share| spec.has_critic() && share.is_finite()));
        let wall = outcome.seconds.max(1e-9) * 1e9;
        let balance = sealed.steady.shares();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let advice = balance.and_then(|shares| advice(&shares, &Layout::of(spec, processors)));
        let chosen = sealed.trained_tokens + sealed.left_out;
        Summary {
            run: spec.output.clone(),
            steps: steps as u64,
            last_step: outcome.version,
            steps_planned: spec.steps,
            ending,
            training_s: outcome.seconds,
            trained_rollouts: sealed.trained_rollouts,
            trained_tokens: sealed.trained_tokens,
            generated_tokens: outcome.generated_tokens,
            not_trained: sealed.not_trained.clone(),
            reward_first: reward(&sealed.rewards[..tenth]),
            reward_last: reward(&sealed.rewards[steps - tenth..]),
            explained_first: explained(&sealed.explained[..tenth]),
            explained_last: explained(&sealed.explained[steps - tenth..]),
            left_out_tokens: sealed.left_out,
            held_steps: sealed.held,
            skipped_steps: sealed.skipped,
            lag_mean: (chosen > 0).then(|| sealed.lag / chosen as f64),
            lag_max: sealed.lag_max,
            lag_bound: spec.schedule.schedule().bound(),
            ess_mean: a_token(sealed.ess),
            ess_min: sealed.ess_min,
            waited_forced: sealed.wait_forced_ns as f64 / wall,
            waited_any: sealed.wait_any_ns as f64 / wall,
            waited_log: sealed.wait_log_ns as f64 / wall,
            learner_outside: outcome.learner_outside,
            generators_outside: outcome.generators_outside,
            balance,
            generators: outcome.generators.clone(),
            advice,
            generating: outcome.pacing.clone(),
            rewards: outcome.rewards.clone(),
            emulation: None,
            before,
            after,
        }
    }
}

/// None of nothing.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Generators that are told one by one.
const FEW: usize = 4;

fn generators(all: &[GeneratorShares]) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    if all.len() <= FEW {
        let each = |of: &GeneratorShares| {
            format!("generator {} sampled {} and was idle {} of its time", of.worker, percent(of.sampled), percent(of.idle))
        };
        return all.iter().map(each).collect::<Vec<_>>().join("; ");
    }
    let range = |of: fn(&GeneratorShares) -> f64| {
        let (least, most) = all.iter().map(of).fold((f64::INFINITY, 0.0), |(low, high), x| (x.min(low), x.max(high)));
        format!("{} to {}", percent(least), percent(most))
    };
    format!(
        "{} generators sampled {} and were idle {} of their time",
        all.len(),
        range(|of| of.sampled),
        range(|of| of.idle)
    )
}

/// A dash where there is none.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self;
        let rate = |tokens: u64| tokens as f64 / s.training_s.max(1e-9);
        writeln!(f, "run       {}", s.run.display())?;
        let part = match s.steps {
            0 => String::new(),
            steps if steps == s.last_step => String::new(),
            steps => format!(" ({} to {})", s.last_step + 1 - steps, s.last_step),
        };
        write!(f, "trained   {} steps{part} in {:.1} s: {} rollouts, ", s.steps, s.training_s, s.trained_rollouts)?;
        writeln!(f, "{} tokens", s.trained_tokens)?;
        match s.ending {
            Ending::Steps => {}
            Ending::Prompts => writeln!(f, "          of {} planned: the prompts ended", s.steps_planned)?,
            Ending::Signal => writeln!(f, "          of {} planned: the run was stopped", s.steps_planned)?,
        }
        for (status, n) in &s.not_trained {
            writeln!(f, "          {n} rollouts {status}")?;
        }
        if s.left_out_tokens > 0 {
            let share = 100.0 * s.left_out_tokens as f64 / (s.trained_tokens + s.left_out_tokens) as f64;
            writeln!(f, "          {} tokens ({share:.0} %) left out by learn.safeguard.max_lag", s.left_out_tokens)?;
        }
        if s.held_steps > 0 {
            let updates = s.steps.saturating_sub(s.held_steps + s.skipped_steps);
            writeln!(f, "          {updates} updates: {} steps held their gradient for a later one", s.held_steps)?;
        }
        if s.skipped_steps > 0 {
            writeln!(
                f,
                "          {} steps without an update: skipped by a safeguard, or nothing in them to train",
                s.skipped_steps
            )?;
        }
        let (first, last) = (number(s.reward_first, 3), number(s.reward_last, 3));
        writeln!(f, "reward    {first} in the first tenth of the steps, {last} in the last")?;
        if s.explained_first.or(s.explained_last).is_some() {
            let (first, last) = (number(s.explained_first, 2), number(s.explained_last, 2));
            writeln!(f, "critic    explained variance {first} in the first tenth of the steps, {last} in the last")?;
        }
        if let (Some(before), Some(after)) = (&s.before, &s.after) {
            let columns = [
                ("sampled before", &before.sampled),
                ("after", &after.sampled),
                ("greedy before", &before.greedy),
                ("after", &after.greedy),
            ];
            writeln!(f, "{}", eval::table(&columns))?;
        }
        let lag_max = s.lag_max.map_or_else(|| "-".to_owned(), |lag| lag.to_string());
        writeln!(f, "lag       mean {}, max {lag_max}, bound {} steps", number(s.lag_mean, 2), s.lag_bound)?;
        writeln!(f, "ESS       mean {}, least {}", number(s.ess_mean, 3), number(s.ess_min, 3))?;
        write!(f, "speed     generated {:.0}, trained {:.0} tokens/s; ", rate(s.generated_tokens), rate(s.trained_tokens))?;
        let [any, forced, log] = [s.waited_any, s.waited_forced, s.waited_log].map(|share| 100.0 * share);
        writeln!(f, "the learner waited {any:.1} % for rollouts, {forced:.1} % for forced ones, {log:.1} % for the log")?;
        writeln!(f, "balance   {}", generators(&s.generators))?;
        if let Some(advice) = &s.advice {
            writeln!(f, "advice    {advice}")?;
        }
        if let (Some(learner), Some(generators)) = (s.learner_outside, s.generators_outside) {
            let (learner, generators) = (100.0 * learner, 100.0 * generators);
            write!(f, "overhead  {learner:.1} % of the learner's and {generators:.1} % of the generators' ")?;
            writeln!(f, "time went outside libtorch")?;
        }
        let g = &s.generating;
        if let (Some(step), Some(median), Some(p99)) = (g.decode_median_s, g.stall_median_s, g.stall_p99_s) {
            let [step, median, p99] = [step, median, p99].map(|seconds| 1e3 * seconds);
            write!(
                f,
                "updates   new weights held a generator up {} times, for {median:.1} ms, p99 {p99:.1} ms; ",
                g.stalls
            )?;
            writeln!(f, "a decode step takes {step:.1} ms")?;
        }
        if let Some(r) = &s.rewards {
            write!(f, "rewards   {} requests, {} failed; ", r.requests, r.failures)?;
            write!(f, "{} programs started again, {} requests sent again; ", r.restarts, r.retries)?;
            let ms = |seconds: Option<f64>| number(seconds.map(|s| 1e3 * s), 1);
            writeln!(f, "latency mean {} ms, p99 {} ms", ms(r.latency_mean_s), ms(r.latency_p99_s))?;
        }
        s.emulation.iter().try_for_each(|emulation| writeln!(f, "{emulation}"))?;
        let (run, tidegate) = (s.run.display(), program());
        writeln!(f, "model     {run}/checkpoints/step-{:08}", s.last_step)?;
        match s.ending {
            Ending::Signal => write!(f, "next      {tidegate} resume {run}    or    {tidegate} analyze {run}"),
            Ending::Steps | Ending::Prompts => {
                // There are held-out prompts to look at more closely.
                let eval =
                    s.after.as_ref().map_or_else(String::new, |_| format!("{tidegate} eval {run} --samples 8    or    "));
                write!(f, "next      {eval}{tidegate} analyze {run}    or    {tidegate} replay {run}")
            }
        }
    }
}
