//! What a run's specification must hold beyond its types: each error names the key, the value and what would be right.

use super::{BatchSpec, EngineKind, ScheduleKind, ScheduleSpec, Spec};
use crate::engine::spec::{Dtype, Learning, Sampling};
use crate::error::{Error, Result};
use crate::kernel::advantage::Advantage;
use crate::kernel::aggregation::Aggregation;
use crate::kernel::gae::Gae;
use crate::kernel::loss::Loss;
use crate::tasks::generated::Mix;
use std::cmp::Ordering;

/// Beyond these a count is a slip of the keyboard, and sums of them might overflow.
const MOST: usize = 1 << 24;
const MOST_STEPS: u64 = 1 << 40;
const MOST_THREADS: u16 = 128;

impl Spec {
    pub(super) fn validate(&self) -> Result<()> {
        self.validate_batch()?;
        self.validate_schedule()?;
        self.validate_workers()?;
        let g = &self.generate;
        if g.top_k != 0 {
            let why = "training needs 0: the set of tokens that top_k keeps is not recorded, so ratios would be wrong";
            return Err(Error::config("generate.top_k", g.top_k, why));
        }
        if g.top_p != 1.0 {
            let why = "training needs 1.0: the set of tokens that top_p keeps is not recorded, so ratios would be wrong";
            return Err(Error::config("generate.top_p", g.top_p, why));
        }
        if self.model.engine == EngineKind::Torch && self.model.path.as_os_str().is_empty() {
            let why = "name a model's folder: config.json, model.safetensors, tokenizer.json";
            return Err(Error::config("model.path", "\"\"", why));
        }
        for (key, dtype) in [("generate.dtype", g.dtype), ("learn.dtype", self.learn.dtype)] {
            if self.model.engine == EngineKind::Toy && dtype != Dtype::Fp32 {
                return Err(Error::config(key, "bf16", "the toy engine computes in fp32"));
            }
        }
        if self.checkpoint.keep == 0 {
            return Err(Error::config("checkpoint.keep", 0, "at least 1: the newest is what the run goes on from"));
        }
        not_negative("checkpoint.every_minutes", self.checkpoint.every_minutes)?;
        check_sampling(g)?;
        check_learning(&self.learn)?;
        if self.learn.loss == Loss::Supervised {
            let why = "is for `tidegate sft` and reads no reward; allowed: reinforce, ppo";
            return Err(Error::config("learn.loss", "supervised", why));
        }
        if self.eval.prompts > MOST {
            return Err(Error::config("eval.prompts", self.eval.prompts, format!("at most {MOST}")));
        }
        self.validate_estimate()?;
        self.validate_data()
    }

    fn validate_estimate(&self) -> Result<()> {
        let e = &self.estimate;
        let shrinks = if e.overlong_buffer > 0 { "overlong_buffer" } else { "length_coef" };
        match e.advantage {
            Advantage::Gae(_) if !self.has_critic() => {
                let why = "reads a critic's values: learn.value_coef above 0 gives the run a critic";
                return Err(Error::config("estimate.advantage", "gae", why));
            }
            Advantage::Gae(Gae { gamma, lambda }) => {
                for (key, value) in [("gamma", gamma), ("lambda", lambda)] {
                    if !(0.0..=1.0).contains(&value) {
                        let key = format!("estimate.advantage.gae.{key}");
                        return Err(Error::config(key, value, "a number from 0 to 1"));
                    }
                }
            }
            Advantage::MaxRl if !self.has_critic() && (e.overlong_buffer > 0 || e.length_coef < 0.0) => {
                let why = format!("divides by the mean reward of a group, which estimate.{shrinks} takes below 0");
                return Err(Error::config("estimate.advantage", "max_rl", why));
            }
            _ => {}
        }
        if !matches!(e.reward_min.partial_cmp(&e.reward_max), Some(Ordering::Less)) {
            let why = format!("a number below estimate.reward_max = {}", e.reward_max);
            return Err(Error::config("estimate.reward_min", e.reward_min, why));
        }
        if !(e.length_coef as f32).is_finite() {
            return Err(Error::config("estimate.length_coef", e.length_coef, "a number"));
        }
        if e.overlong_buffer > self.generate.max_tokens {
            let why = format!("at most generate.max_tokens = {}", self.generate.max_tokens);
            return Err(Error::config("estimate.overlong_buffer", e.overlong_buffer, why));
        }
        not_negative("estimate.overlong_penalty", e.overlong_penalty)
    }

    fn validate_data(&self) -> Result<()> {
        match &self.data {
            Some(data) => data.check()?,
            None if self.task.is_empty() => {
                let why = "no prompts: name a JSONL or Parquet file as data.file, or list generated tasks as [[task]]";
                return Err(Error::config("data", "\"\"", why));
            }
            None => drop(Mix::new(&self.task)?),
        }
        self.reward.check()
    }

    fn validate_batch(&self) -> Result<()> {
        let BatchSpec { batch_size, group_size } = self.batch;
        check_counts(batch_size, self.generate.slots, self.steps)?;
        if group_size == 0 {
            return Err(Error::config("batch.group_size", 0, "at least 1 rollout a group"));
        }
        if batch_size == 0 || batch_size % group_size != 0 {
            let below = batch_size / group_size * group_size;
            let near = if below == 0 { group_size.to_string() } else { format!("{below} or {}", below + group_size) };
            let why = format!("not a multiple of batch.group_size = {group_size}; the nearest are {near}");
            return Err(Error::config("batch.batch_size", batch_size, why));
        }
        if self.steps == 0 {
            return Err(Error::config("steps", 0, "at least 1 step"));
        }
        if self.generate.slots < group_size {
            let why = format!("fewer slots than batch.group_size = {group_size}; a generator holds at least one group");
            return Err(Error::config("generate.slots", self.generate.slots, why));
        }
        Ok(())
    }

    /// A key of the schedule of another kind would be without effect.
    fn validate_schedule(&self) -> Result<()> {
        let (given, default) = (&self.schedule, ScheduleSpec::default());
        match given.kind {
            ScheduleKind::Pipeline if given.steps != default.steps => {
                let why = "is of `conventional` and `one_step_off`; a pipeline is bounded by schedule.max_lag";
                Err(Error::config("schedule.steps", given.steps, why))
            }
            ScheduleKind::Conventional | ScheduleKind::OneStepOff if given.max_lag != default.max_lag => {
                let why = "is of a pipeline; by turns schedule.steps bounds the lag";
                Err(Error::config("schedule.max_lag", given.max_lag, why))
            }
            ScheduleKind::Conventional | ScheduleKind::OneStepOff if !(1..=MOST_STEPS).contains(&given.steps) => {
                let why = format!("a phase has at least 1 step, at most {MOST_STEPS}");
                Err(Error::config("schedule.steps", given.steps, why))
            }
            _ => Ok(()),
        }
    }

    fn validate_workers(&self) -> Result<()> {
        let w = &self.workers;
        if w.processes != 1 {
            let why = "more than one process does not exist yet; allowed: 1";
            return Err(Error::config("workers.processes", w.processes, why));
        }
        if w.learners.len() != 1 {
            let why = "more or fewer than one learner worker does not exist yet; allowed: a list of one index";
            return Err(Error::config("workers.learners", format!("{:?}", w.learners), why));
        }
        if w.generators.is_empty() {
            return Err(Error::config("workers.generators", "[]", "at least one worker must generate"));
        }
        for key in [("workers.generator_threads", w.generator_threads), ("workers.learner_threads", w.learner_threads)] {
            check_threads(key.0, key.1)?;
        }
        let roles = |worker: &usize| w.generators.contains(worker) || w.learners.contains(worker);
        if let Some(idle) = (0..self.worker_count()).find(|worker| !roles(worker)) {
            let why = format!("worker {idle} has nothing to do: indices count from 0 without gaps");
            return Err(Error::config("workers.generators", format!("{:?}", w.generators), why));
        }
        let wrong = self.plan().validate(self.worker_count());
        wrong.map_err(|e| Error::config(format!("workers.{}", e.key), e.value, e.reason))
    }
}

/// What `[generate]` must hold, of a run and of a warm start.
///
/// # Errors
/// Names the first key that is wrong.
pub fn check_sampling(g: &Sampling) -> Result<()> {
    positive("generate.temperature", g.temperature)?;
    not_negative("generate.time_limit_s", g.time_limit_s)?;
    if g.stop.iter().any(String::is_empty) {
        return Err(Error::config("generate.stop", format!("{:?}", g.stop), "an empty string would end every rollout"));
    }
    if g.max_tokens == 0 {
        return Err(Error::config("generate.max_tokens", 0, "at least 1 token"));
    }
    Ok(())
}

/// libtorch threads of one worker, or of a warm start.
///
/// # Errors
/// None, or more than machines have.
pub fn check_threads(key: &str, threads: u16) -> Result<()> {
    let right = format!("at least 1 thread, at most {MOST_THREADS}");
    if (1..=MOST_THREADS).contains(&threads) { Ok(()) } else { Err(Error::config(key, threads, right)) }
}

/// Counts that are no slip of the keyboard.
///
/// # Errors
/// Names all three, and their limits.
pub fn check_counts(batch_size: usize, slots: usize, steps: u64) -> Result<()> {
    if batch_size <= MOST && slots <= MOST && steps <= MOST_STEPS {
        return Ok(());
    }
    let why = format!("at most {MOST}, {MOST} and {MOST_STEPS}");
    Err(Error::config("batch_size, generate.slots, steps", format!("{batch_size}, {slots}, {steps}"), why))
}

/// What `[learn]` must hold, of a run and of a warm start.
///
/// # Errors
/// Names the first key that is wrong.
pub fn check_learning(learn: &Learning) -> Result<()> {
    positive("learn.lr", learn.lr)?;
    positive("learn.eps", learn.eps)?;
    if !learn.entropy_coef.is_finite() {
        return Err(Error::config("learn.entropy_coef", learn.entropy_coef, "a number"));
    }
    if learn.micro_batch_tokens == 0 {
        return Err(Error::config("learn.micro_batch_tokens", 0, "at least 1 token"));
    }
    match learn.loss {
        Loss::Reinforce { cap } => positive("learn.loss.reinforce.cap", f64::from(cap))?,
        Loss::Ppo { clip_low, .. } if !(0.0..=1.0).contains(&clip_low) => {
            return Err(Error::config("learn.loss.ppo.clip_low", clip_low, "a number from 0 to 1"));
        }
        Loss::Ppo { clip_high, .. } => not_negative("learn.loss.ppo.clip_high", f64::from(clip_high))?,
        Loss::Supervised => {}
    }
    if let Aggregation::SeqMeanTokenSumNorm(norm) = learn.aggregation {
        positive("learn.aggregation.seq_mean_token_sum_norm", f64::from(norm))?;
    }
    for (key, value) in [
        ("learn.value_coef", learn.value_coef),
        ("learn.weight_decay", learn.weight_decay),
        ("learn.grad_clip", learn.grad_clip),
    ] {
        not_negative(key, value)?;
    }
    if !(0.0..=1.0).contains(&learn.lr_min_ratio) {
        return Err(Error::config("learn.lr_min_ratio", learn.lr_min_ratio, "a number from 0 to 1"));
    }
    for (key, value) in [("learn.beta1", learn.beta1), ("learn.beta2", learn.beta2)] {
        if !(0.0..1.0).contains(&value) {
            return Err(Error::config(key, value, "a number from 0 to below 1"));
        }
    }
    Ok(())
}

fn not_negative(key: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() { Ok(()) } else { Err(Error::config(key, value, "a number from 0 up")) }
}

fn positive(key: &str, value: f64) -> Result<()> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { Err(Error::config(key, value, "a number above 0")) }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::spec::Spec;

    const START: &str = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";

    fn refused(set: &str) -> String {
        Spec::from_text(START, &[set.to_owned()]).unwrap_err().to_string()
    }

    /// Catches a wrong value being accepted, or refused without its key, the value and what would be right.
    #[test]
    fn errors_name_key_value_and_what_is_right() {
        for (set, message) in [
            (
                "batch={batch_size=10,group_size=4}",
                "batch.batch_size = 10: not a multiple of batch.group_size = 4; the nearest are 8 or 12",
            ),
            (
                "batch={batch_size=2,group_size=4}",
                "batch.batch_size = 2: not a multiple of batch.group_size = 4; the nearest are 4",
            ),
            (
                "generate.slots=4",
                "generate.slots = 4: fewer slots than batch.group_size = 8; a generator holds at least one group",
            ),
            ("workers.processes=2", "workers.processes = 2: more than one process does not exist yet; allowed: 1"),
            (
                "workers.learners=[1,2]",
                "workers.learners = [1, 2]: more or fewer than one learner worker does not exist yet; allowed: a list of one index",
            ),
            (
                "workers.generators=[0,3]",
                "workers.generators = [0, 3]: worker 2 has nothing to do: indices count from 0 without gaps",
            ),
            ("workers.generators=[0,0]", "workers.generators = 0: a worker can be listed once"),
            ("generate.temperature=0", "generate.temperature = 0: a number above 0"),
            ("learn.lr=-1", "learn.lr = -1: a number above 0"),
            ("learn.beta1=1.0", "learn.beta1 = 1: a number from 0 to below 1"),
            (
                "learn.loss=supervised",
                "learn.loss = supervised: is for `tidegate sft` and reads no reward; allowed: reinforce, ppo",
            ),
            (
                "estimate.advantage={gae={gamma=1.0,lambda=0.9}}",
                "estimate.advantage = gae: reads a critic's values: learn.value_coef above 0 gives the run a critic",
            ),
            (
                "estimate={advantage='max_rl',length_coef=-0.1}",
                "estimate.advantage = max_rl: divides by the mean reward of a group, which estimate.length_coef takes below 0",
            ),
            ("estimate={reward_min=1.0,reward_max=1.0}", "estimate.reward_min = 1: a number below estimate.reward_max = 1"),
            ("estimate.reward_min=nan", "estimate.reward_min = NaN: a number below estimate.reward_max = inf"),
            ("estimate.length_coef=1e99", &format!("estimate.length_coef = {}: a number", 1e99)),
            ("estimate.overlong_buffer=257", "estimate.overlong_buffer = 257: at most generate.max_tokens = 256"),
            ("estimate.overlong_penalty=-1.0", "estimate.overlong_penalty = -1: a number from 0 up"),
            ("model.path=''", "model.path = \"\": name a model's folder: config.json, model.safetensors, tokenizer.json"),
            ("generate.stop=['']", "generate.stop = [\"\"]: an empty string would end every rollout"),
            ("steps=0", "steps = 0: at least 1 step"),
            (
                "schedule.steps=2",
                "schedule.steps = 2: is of `conventional` and `one_step_off`; a pipeline is bounded by schedule.max_lag",
            ),
            (
                "schedule={kind='conventional',max_lag=2}",
                "schedule.max_lag = 2: is of a pipeline; by turns schedule.steps bounds the lag",
            ),
            (
                "schedule={kind='one_step_off',steps=0}",
                "schedule.steps = 0: a phase has at least 1 step, at most 1099511627776",
            ),
        ] {
            assert_eq!(refused(set), message);
        }
        for set in ["generate.top_p=0.9", "generate.top_k=5"] {
            assert!(refused(set).contains("is not recorded"), "{}", refused(set));
        }
    }

    /// Catches a typo that is silently left without effect, and one that names no way out.
    #[test]
    fn unknown_keys_name_the_nearest() {
        assert!(refused("learn.lrr=1").starts_with("learn.lrr = 1: no such key; did you mean learn.lr? allowed: "));
        assert!(refused("seeed=1").contains("did you mean seed?"));
        assert!(refused("schedule.order=newest").contains("`arrival`"), "{}", refused("schedule.order=newest"));
        assert!(refused("seed=minus").starts_with("seed = \"minus\": "), "{}", refused("seed=minus"));
        assert!(refused("nonsense").starts_with("--set = nonsense: expected key=value"));
        assert_eq!(Spec::from_text(START, &["steps=x".into()]).unwrap_err().exit_code(), 2);
    }

    /// Catches a default that is written out as something that cannot be read again.
    #[test]
    fn what_is_written_out_is_read_again() {
        let spec = Spec::from_text(START, &["learn.loss={ppo={clip_low=0.2,clip_high=0.3}}".into()]).unwrap();
        assert_eq!(Spec::from_text(&spec.to_text(), &[]).map_err(|e: Error| e.to_string()), Ok(spec));
    }
}
