//! What a run's specification must hold beyond its types: each error names the key, the value and what would be right.

use super::{
    BatchSpec, EngineKind, EstimateSpec, ScheduleKind, ScheduleSpec, Spec, ZeroVariance, balance, critic, curriculum,
    reference, safeguard,
};
use crate::engine::spec::{Dtype, KvAfterUpdate, Learning, Sampling};
use crate::error::{Error, Result};
use crate::kernel::advantage::Advantage;
use crate::kernel::aggregation::Aggregation;
use crate::kernel::gae::Gae;
use crate::kernel::loss::Loss;
use crate::tasks::generated::Mix;
use std::collections::BTreeSet;

/// Beyond these a count is a slip of the keyboard, and sums of them might overflow.
pub(super) const MOST: usize = 1 << 24;
const MOST_STEPS: u64 = 1 << 40;
const MOST_THREADS: u16 = 128;

impl Spec {
    pub(super) fn validate(&self) -> Result<()> {
        self.validate_emulation()?;
        self.validate_batch()?;
        self.validate_schedule()?;
        self.validate_workers()?;
        balance::check(self)?;
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
        if self.model.engine == EngineKind::Toy {
            self.validate_toy()?;
        }
        if self.checkpoint.keep == 0 {
            return Err(Error::config("checkpoint.keep", 0, "at least 1: the newest is what the run goes on from"));
        }
        not_negative("checkpoint.every_minutes", self.checkpoint.every_minutes)?;
        check_sampling(g)?;
        check_learning(&self.learn)?;
        if self.learn.loss == Loss::Supervised {
            let why =
                "is for `tidegate sft` and reads no reward; allowed: any other, for example { reinforce = { cap = 5.0 } }";
            return Err(Error::config("learn.loss", "supervised", why));
        }
        if self.eval.prompts > MOST {
            return Err(Error::config("eval.prompts", self.eval.prompts, format!("at most {MOST}")));
        }
        self.validate_critic()?;
        self.validate_estimate()?;
        curriculum::check(&self.curriculum)?;
        self.validate_data()
    }

    /// The toy engine would take these and do nothing with them.
    pub(super) fn validate_toy(&self) -> Result<()> {
        for (key, dtype) in [("generate.dtype", self.generate.dtype), ("learn.dtype", self.learn.dtype)] {
            if dtype != Dtype::Fp32 {
                return Err(Error::config(key, "bf16", "the toy engine computes in fp32"));
            }
        }
        if self.generate.kv_after_update == KvAfterUpdate::Recompute {
            let why = "the toy engine has no keys and values; allowed: keep";
            return Err(Error::config("generate.kv_after_update", "recompute", why));
        }
        if self.learn.activation_checkpointing {
            let why = "the toy engine has no layers to compute again; allowed: false";
            return Err(Error::config("learn.activation_checkpointing", true, why));
        }
        if self.model.device != "cpu" {
            return Err(Error::config("model.device", &self.model.device, "the toy engine is on the cpu; allowed: cpu"));
        }
        Ok(())
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
        for (key, bound, none) in
            [("reward_min", e.reward_min, f64::NEG_INFINITY), ("reward_max", e.reward_max, f64::INFINITY)]
        {
            if bound != none && !(bound as f32).is_finite() {
                let why = format!("a number of at most {:e}, or {none} for no bound", f32::MAX);
                return Err(Error::config(format!("estimate.{key}"), bound, why));
            }
        }
        if e.reward_min as f32 >= e.reward_max as f32 {
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
        not_negative_single("estimate.overlong_penalty", e.overlong_penalty)?;
        if e.overlong_buffer == 0 && e.overlong_penalty.to_bits() != EstimateSpec::default().overlong_penalty.to_bits() {
            let why = "needs an estimate.overlong_buffer above 0";
            return Err(Error::config("estimate.overlong_penalty", e.overlong_penalty, why));
        }
        if self.batch.group_size == 1 && e.zero_variance == ZeroVariance::Discard && !self.has_critic() {
            let why = "the reward of a group of one (batch.group_size = 1) equals all others in it: every group would be \
                       discarded; allowed: keep, or larger groups";
            return Err(Error::config("estimate.zero_variance", "discard", why));
        }
        Ok(())
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

    fn validate_schedule(&self) -> Result<()> {
        let ScheduleSpec { kind, steps, .. } = self.schedule;
        if kind != ScheduleKind::Pipeline && !(1..=MOST_STEPS).contains(&steps) {
            let why = format!("a phase has at least 1 step, at most {MOST_STEPS}");
            return Err(Error::config("schedule.steps", steps, why));
        }
        Ok(())
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
        let mut seen = BTreeSet::new();
        if let Some(twice) = w.generators.iter().find(|worker| !seen.insert(**worker)) {
            let why = format!("worker {twice} is listed twice; each generates once, so list it once");
            return Err(Error::config("workers.generators", format!("{:?}", w.generators), why));
        }
        for key in [("workers.generator_threads", w.generator_threads), ("workers.learner_threads", w.learner_threads)] {
            check_threads(key.0, key.1)?;
        }
        let roles = |worker: &usize| w.generators.contains(worker) || w.learners.contains(worker);
        // Of emulated accelerators that train one stands for all.
        let idle = (0..self.worker_count()).find(|worker| !roles(worker)).filter(|_| self.emulated().is_none());
        if let Some(idle) = idle {
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
    if !(learn.entropy_coef as f32).is_finite() {
        return Err(Error::config("learn.entropy_coef", learn.entropy_coef, "a number"));
    }
    if learn.micro_batch_tokens == 0 {
        return Err(Error::config("learn.micro_batch_tokens", 0, "at least 1 token"));
    }
    check_loss(learn.loss)?;
    safeguard::check(&learn.safeguard)?;
    reference::check(&learn.reference)?;
    if let Aggregation::SeqMeanTokenSumNorm(norm) = learn.aggregation {
        positive("learn.aggregation.seq_mean_token_sum_norm", f64::from(norm))?;
    }
    for (key, value) in [("learn.weight_decay", learn.weight_decay), ("learn.grad_clip", learn.grad_clip)] {
        not_negative(key, value)?;
    }
    not_negative_single("learn.value_coef", learn.value_coef)?;
    critic::check(learn)?;
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

/// Keys of losses, whichever has them: whether a number is right, and what is.
type Rule = (&'static str, fn(f32) -> bool, &'static str);

const LOSS_KEYS: [Rule; 6] = [
    ("cap", |x| x > 0.0 && x.is_finite(), "a number above 0"),
    ("cap_negative", |x| x >= 1.0 && x.is_finite(), "a number from 1 up"),
    ("clip_low", |x| (0.0..=1.0).contains(&x), "a number from 0 to 1"),
    ("clip_high", |x| x >= 0.0 && x.is_finite(), "a number from 0 up"),
    ("low", |x| (0.0..=1.0).contains(&x), "a number from 0 to 1: a sequence on policy has the ratio 1"),
    ("high", |x| x >= 1.0 && x.is_finite(), "a number from 1 up: a sequence on policy has the ratio 1"),
];

/// By the names of its keys, which mean the same in every loss.
fn check_loss(loss: Loss) -> Result<()> {
    let written =
        toml::Value::try_from(loss).map_err(|e| Error::config("learn.loss", format!("{loss:?}"), e.to_string()))?;
    for (name, keys) in written.as_table().into_iter().flatten() {
        for (key, value) in keys.as_table().into_iter().flatten() {
            let rule = LOSS_KEYS.iter().find(|(named, ..)| named == key);
            if let (Some((_, right, what)), Some(number)) = (rule, value.as_float())
                && !right(number as f32)
            {
                return Err(Error::config(format!("learn.loss.{name}.{key}"), number as f32, *what));
            }
        }
    }
    Ok(())
}

pub(super) fn not_negative(key: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() { Ok(()) } else { Err(Error::config(key, value, "a number from 0 up")) }
}

/// Of a number that is computed with in single precision.
fn not_negative_single(key: &str, value: f64) -> Result<()> {
    let right = value >= 0.0 && (value as f32).is_finite();
    if right { Ok(()) } else { Err(Error::config(key, value, format!("a number from 0 up, at most {:e}", f32::MAX))) }
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
            (
                "workers.generators=[0,0]",
                "workers.generators = [0, 0]: worker 0 is listed twice; each generates once, so list it once",
            ),
            (
                "workers={generators=[1,0,2,1],learners=[0]}",
                "workers.generators = [1, 0, 2, 1]: worker 1 is listed twice; each generates once, so list it once",
            ),
            ("generate.temperature=0", "generate.temperature = 0: a number above 0"),
            ("learn.lr=-1", "learn.lr = -1: a number above 0"),
            ("learn.beta1=1.0", "learn.beta1 = 1: a number from 0 to below 1"),
            (
                "learn.loss=supervised",
                "learn.loss = supervised: is for `tidegate sft` and reads no reward; allowed: any other, for example { reinforce = { cap = 5.0 } }",
            ),
            ("learn.loss={reinforce={cap=0}}", "learn.loss.reinforce.cap = 0: a number above 0"),
            ("learn.loss={ppo={clip_low=1.5}}", "learn.loss.ppo.clip_low = 1.5: a number from 0 to 1"),
            ("learn.loss={gspo={clip_high=-0.1}}", "learn.loss.gspo.clip_high = -0.1: a number from 0 up"),
            ("learn.loss={dual_clip={cap_negative=0.5}}", "learn.loss.dual_clip.cap_negative = 0.5: a number from 1 up"),
            (
                "learn.loss={sequence_masked={low=1.1}}",
                "learn.loss.sequence_masked.low = 1.1: a number from 0 to 1: a sequence on policy has the ratio 1",
            ),
            (
                "learn.loss={sequence_masked={high=nan}}",
                "learn.loss.sequence_masked.high = NaN: a number from 1 up: a sequence on policy has the ratio 1",
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
            ("estimate.length_coef=1e99", &format!("estimate.length_coef = {}: a number", 1e99)),
            ("estimate.overlong_buffer=257", "estimate.overlong_buffer = 257: at most generate.max_tokens = 256"),
            ("estimate.overlong_penalty=0.5", "estimate.overlong_penalty = 0.5: needs an estimate.overlong_buffer above 0"),
            ("estimate.overlong_penalty=-1.0", "estimate.overlong_penalty = -1: a number from 0 up, at most 3.4028235e38"),
            ("model.path=''", "model.path = \"\": name a model's folder: config.json, model.safetensors, tokenizer.json"),
            ("generate.stop=['']", "generate.stop = [\"\"]: an empty string would end every rollout"),
            ("steps=0", "steps = 0: at least 1 step"),
            (
                "schedule.steps=2",
                "schedule.steps = 2: means nothing with schedule.kind = \"pipeline\"; allowed: kind, max_lag, order, short_batch, weights_update",
            ),
            (
                "schedule={kind='conventional',weights_update='drain'}",
                "schedule.weights_update = \"drain\": means nothing with schedule.kind = \"conventional\"; allowed: kind, order, short_batch, steps",
            ),
            (
                "schedule={kind='conventional',max_lag=4}",
                "schedule.max_lag = 4: means nothing with schedule.kind = \"conventional\"; allowed: kind, order, short_batch, steps",
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

    /// Catches a key that only the other engine reads and that a user believes to have an effect.
    #[test]
    fn the_toy_engine_refuses_what_it_does_not_do() {
        let toy = |set: &str| Spec::from_text(START, &["model.engine=toy".to_owned(), set.to_owned()]);
        for (set, message) in [
            ("generate.dtype=bf16", "generate.dtype = bf16: the toy engine computes in fp32"),
            ("learn.dtype=bf16", "learn.dtype = bf16: the toy engine computes in fp32"),
            (
                "learn.activation_checkpointing=true",
                "learn.activation_checkpointing = true: the toy engine has no layers to compute again; allowed: false",
            ),
            ("model.device=cuda:0", "model.device = cuda:0: the toy engine is on the cpu; allowed: cpu"),
        ] {
            assert_eq!(toy(set).unwrap_err().to_string(), message);
            Spec::from_text(START, &[set.to_owned()]).unwrap();
        }
        toy("learn.activation_checkpointing=false").unwrap();
    }

    /// Catches a typo that is silently left without effect, and one that names no way out.
    #[test]
    fn unknown_keys_name_the_nearest() {
        assert!(refused("learn.lrr=1").starts_with("learn.lrr = 1: no such key; did you mean learn.lr? allowed: "));
        assert!(refused("seeed=1").contains("did you mean seed?"));
        assert!(refused("schedule.order=newest").contains("`arrival`"), "{}", refused("schedule.order=newest"));
        assert!(refused("seed=minus").starts_with("seed = \"minus\": "), "{}", refused("seed=minus"));
        assert!(refused("learn.loss=gspo").starts_with("learn.loss = \"gspo\": gspo has keys: write { gspo = {} }"));
        let mean = refused("learn.loss={sequence_truncated={ratio='mean'}}");
        assert!(mean.starts_with("learn.loss.sequence_truncated.ratio = \"mean\": `mean` is not allowed"), "{mean}");
        assert!(refused("nonsense").starts_with("--set = nonsense: expected key=value"));
        assert_eq!(Spec::from_text(START, &["steps=x".into()]).unwrap_err().exit_code(), 2);
    }

    /// Catches a default that is written out as something that cannot be read again.
    #[test]
    fn what_is_written_out_is_read_again() {
        for loss in ["{ppo={clip_low=0.2,clip_high=0.3}}", "{gspo={}}", "{sequence_masked={ratio='product',cap=2}}"] {
            let spec = Spec::from_text(START, &[format!("learn.loss={loss}")]).unwrap();
            assert_eq!(Spec::from_text(&spec.to_text(), &[]).map_err(|e: Error| e.to_string()), Ok(spec));
        }
    }

    /// Catches a loss with a number that nothing checks.
    #[test]
    fn every_number_of_a_loss_has_its_rule() {
        for (loss, _) in crate::kernel::loss::tests::LOSSES {
            let written = toml::Value::try_from(loss).unwrap();
            for (key, value) in written.as_table().into_iter().flatten().filter_map(|(_, keys)| keys.as_table()).flatten() {
                assert!(value.is_str() || super::LOSS_KEYS.iter().any(|(named, ..)| named == key), "{loss:?}: {key}");
            }
        }
    }
}
