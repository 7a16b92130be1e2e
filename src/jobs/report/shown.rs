//! The rollouts of a page as it shows them: token by token, as far as there is room.

use crate::engine::tokenizer::Tokenizer;
use crate::engine::toy::task::ToyTokenizer;
use crate::error::Result;
use crate::jobs::report::picks::{Kind, Pick};
use crate::jobs::report::series::short;
use crate::spec::{EngineKind, Spec};
use crate::store::schema::stop_text;
use crate::store::{LogReader, RunFolder};
use serde::Serialize;
use std::path::{Path, PathBuf};
use tidegate_operators::record::{Rollout, Status, Version};

/// Tokens of all rollouts of a page: a few megabytes.
pub(super) const TOKENS: usize = 100_000;
/// Characters of a text that is shown whole.
const CHARACTERS: usize = 2000;

/// What a page shows of a run's rollouts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rollouts {
    /// How many there are in the log.
    pub of: u64,
    /// Why tokens have no text, where they have none.
    pub without_text: Option<String>,
    pub shown: Vec<Shown>,
}

/// One rollout.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Why it is shown.
    pub why: Vec<&'static str>,
    pub step: u64,
    pub group: u64,
    pub sample: u32,
    pub prompt_id: u64,
    pub task: String,
    pub status: String,
    pub stop: &'static str,
    pub worker: usize,
    pub reward: Option<f64>,
    pub reward_parts: Vec<(String, f32)>,
    pub reward_error: Option<String>,
    pub answer: String,
    /// Texts, cut in the middle.
    pub prompt: String,
    pub completion: String,
    /// How many it has, and how many of them are left out in the middle, behind so many.
    pub tokens: usize,
    pub left_out: usize,
    pub left_out_behind: usize,
    /// Of trained tokens.
    pub lag_mean: Option<f64>,
    pub lag_max: Option<i64>,
    /// Seconds: a slot awaited, generation, a step awaited.
    pub queued_s: Option<f64>,
    pub generating_s: Option<f64>,
    pub ready_s: Option<f64>,
    /// Of the tokens that are not left out: ids, texts (empty where there are none), and log-probabilities when sampled and trained.
    pub ids: Vec<u32>,
    pub pieces: Vec<String>,
    pub logp_behavior: Vec<Option<f64>>,
    pub logp_current: Vec<Option<f64>>,
    /// How many tokens in a row have the same.
    pub versions: Vec<(usize, Version)>,
    pub advantages: Vec<(usize, Option<f64>)>,
    pub uses: Vec<(usize, Use)>,
}

/// What a step has of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    Chosen,
    /// The policy did not choose it.
    Masked,
    /// `learn.safeguard.max_lag` left it out.
    TooOld,
}

/// What gives tokens their text.
enum Reading {
    Tokenizer(Box<Tokenizer>),
    Toy,
    None(String),
}

/// Reads the rollouts to show; they share `room` tokens.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn rollouts(log: &mut LogReader, picks: &[Pick], of: u64, room: usize, texts: &Texts<'_>) -> Result<Rollouts> {
    let reading = texts.reading();
    let most = most_of_one(picks.iter().map(|pick| pick.tokens).collect(), room);
    let mut shown = Vec::new();
    for picks in picks.chunk_by(|a, b| a.part == b.part) {
        let rollouts = log.read(picks[0].part)?.rollouts;
        let found = picks.iter().filter_map(|pick| Some((pick, rollouts.get(pick.at)?)));
        shown.extend(found.map(|(pick, rollout)| Shown::of(rollout, pick, most, &reading)));
    }
    let without_text = match reading {
        Reading::None(why) => Some(why),
        Reading::Tokenizer(_) | Reading::Toy => None,
    };
    Ok(Rollouts { of, without_text, shown })
}

/// Where the tokenizer of a run may be.
pub(super) struct Texts<'a> {
    pub(super) run: &'a Path,
    pub(super) spec: Option<&'a Spec>,
    /// Its hash in the log.
    pub(super) hash: &'a str,
}

impl Texts<'_> {
    fn reading(&self) -> Reading {
        if self.spec.is_some_and(|spec| matches!(spec.model.engine, EngineKind::Toy | EngineKind::Emulation)) {
            return Reading::Toy;
        }
        let places = self.places();
        let right = |folder: &PathBuf| Tokenizer::load(folder).ok().filter(|found| found.hash() == self.hash);
        match places.iter().find_map(right) {
            Some(tokenizer) => Reading::Tokenizer(Box::new(tokenizer)),
            None => {
                let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
                let searched = if places.is_empty() { "no folder is known".to_owned() } else { places.join(", ") };
                Reading::None(format!("the tokenizer of the log ({}) was not found: {searched}", self.hash))
            }
        }
    }

    /// The newest checkpoint, and what the run started from.
    fn places(&self) -> Vec<PathBuf> {
        let folder = RunFolder::view(self.run).ok();
        let newest = folder.as_ref().and_then(|folder| folder.checkpointed_steps().ok()?.into_iter().max());
        let checkpoint = folder.zip(newest).map(|(folder, step)| folder.checkpoint(step));
        let start = self.spec.map(|spec| spec.model.path.clone()).filter(|path| !path.as_os_str().is_empty());
        checkpoint.into_iter().chain(start).collect()
    }
}

impl Reading {
    fn pieces(&self, ids: &[u32]) -> Vec<String> {
        match self {
            Reading::Tokenizer(tokenizer) => tokenizer.pieces(ids),
            Reading::Toy => {
                let piece = |id: &u32| Some(ToyTokenizer.decode(&[*id])).filter(|text| !text.is_empty());
                ids.iter().map(|id| piece(id).unwrap_or_else(|| "<eos>".to_owned())).collect()
            }
            Reading::None(_) => Vec::new(),
        }
    }
}

impl Shown {
    fn of(rollout: &Rollout, pick: &Pick, most: usize, reading: &Reading) -> Shown {
        let n = rollout.tokens.len();
        let (head, tail) = if n <= most { (n, n) } else { (most.div_ceil(2), n - most / 2) };
        let newest = rollout.step as i64 - 1;
        let trained = rollout.status == Status::Trained;
        let lag = |t: usize| rollout.version.get(t).map(|version| newest - *version as i64);
        let use_of = |t: usize| match lag(t) {
            _ if !rollout.mask[t] => Use::Masked,
            Some(lag) if trained && !pick.limits.keeps(lag) => Use::TooOld,
            _ => Use::Chosen,
        };
        let uses: Vec<Use> = (0..rollout.mask.len()).map(use_of).collect();
        let counted = (0..uses.len()).filter(|t| trained && uses[*t] == Use::Chosen);
        let lags: Vec<i64> = counted.filter_map(lag).collect();
        let seconds = |from: i64, to: i64| (from > 0 && to > 0).then(|| (to - from) as f64 / 1e9).and_then(short);
        let pieces = reading.pieces(&rollout.tokens);
        Shown {
            why: pick.kinds.iter().map(|kind: &Kind| kind.name()).collect(),
            step: rollout.step,
            group: rollout.group.number,
            sample: rollout.sample,
            prompt_id: rollout.group.prompt.id,
            task: rollout.group.prompt.task.clone(),
            status: rollout.status.to_string(),
            stop: stop_text(rollout.stop),
            worker: rollout.worker,
            reward: rollout.reward.and_then(|reward| short(reward.into())),
            reward_parts: rollout.reward_parts.clone(),
            reward_error: rollout.reward_error.clone(),
            answer: cut(&rollout.group.prompt.answer),
            prompt: cut(&rollout.group.prompt.text),
            completion: cut(&rollout.text),
            tokens: n,
            left_out: tail - head,
            left_out_behind: head,
            lag_mean: (!lags.is_empty()).then(|| lags.iter().sum::<i64>() as f64 / lags.len() as f64).and_then(short),
            lag_max: lags.iter().copied().max(),
            queued_s: seconds(rollout.group.admitted_ns, rollout.started_ns),
            generating_s: seconds(rollout.started_ns, rollout.finished_ns),
            ready_s: seconds(rollout.finished_ns, rollout.trained_ns),
            ids: ends(&rollout.tokens, head, tail),
            pieces: ends(&pieces, head, tail),
            logp_behavior: ends(&rollout.logp_behavior, head, tail).into_iter().map(rounded).collect(),
            logp_current: ends(&rollout.logp_current, head, tail).into_iter().map(rounded).collect(),
            versions: runs(&ends(&rollout.version, head, tail), |version| *version),
            advantages: runs(&ends(&rollout.advantage, head, tail), |advantage| short(f64::from(*advantage))),
            uses: runs(&ends(&uses, head, tail), |used| *used),
        }
    }
}

/// What is before `head`, and from `tail` on. A list that is shorter is one that nothing filled.
fn ends<T: Clone>(all: &[T], head: usize, tail: usize) -> Vec<T> {
    [&all[..head.min(all.len())], &all[tail.min(all.len())..]].concat()
}

fn runs<T: PartialEq, U>(all: &[T], told: impl Fn(&T) -> U) -> Vec<(usize, U)> {
    all.chunk_by(|a, b| a == b).map(|run| (run.len(), told(&run[0]))).collect()
}

/// To four decimals; None of what is no number.
fn rounded(logp: f32) -> Option<f64> {
    logp.is_finite().then(|| (f64::from(logp) * 1e4).round() / 1e4)
}

/// A text without its middle.
fn cut(text: &str) -> String {
    let characters = text.chars().count();
    if characters <= CHARACTERS {
        return text.to_owned();
    }
    let head: String = text.chars().take(CHARACTERS / 2).collect();
    let tail: String = text.chars().skip(characters - CHARACTERS / 2).collect();
    format!("{head} [{} characters left out] {tail}", characters - CHARACTERS / 2 * 2)
}

/// The most tokens of one rollout so that all together have no more than `room`: short ones leave theirs to long ones.
fn most_of_one(mut tokens: Vec<usize>, room: usize) -> usize {
    tokens.sort_unstable();
    let mut left = room;
    for (i, n) in tokens.iter().enumerate() {
        let share = left / (tokens.len() - i);
        if *n > share {
            return share;
        }
        left -= n;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::analyze::LagLimits;
    use crate::store::Part;

    #[test]
    fn short_rollouts_leave_their_room_to_long_ones() {
        assert_eq!(most_of_one(vec![10, 100, 1000], 2000), usize::MAX);
        assert_eq!(most_of_one(vec![1000, 10, 1000], 410), 200);
        assert_eq!(most_of_one(vec![50; 10], 100), 10);
        assert_eq!(most_of_one(vec![], 100), usize::MAX);
    }

    /// Catches a middle that is shown, ends that are swapped, and lists that nothing filled.
    #[test]
    fn long_rollouts_lose_their_middle() {
        let rollout = Rollout {
            tokens: (0..10).collect(),
            mask: vec![true; 10],
            version: vec![4, 4, 4, 4, 5, 5, 5, 5, 5, 7],
            logp_behavior: (0..10).map(|i| -0.123_456 * i as f32).collect(),
            advantage: vec![0.5; 10],
            status: Status::Trained,
            step: 9,
            ..Rollout::default()
        };
        let kinds = vec![Kind::First, Kind::MostLag];
        let pick = Pick { part: Part::Step(9), at: 0, tokens: 10, limits: LagLimits::default(), kinds };
        let shown = Shown::of(&rollout, &pick, 5, &Reading::None(String::new()));
        assert_eq!((shown.ids, shown.left_out, shown.left_out_behind), (vec![0, 1, 2, 8, 9], 5, 3));
        assert_eq!((shown.versions, shown.advantages), (vec![(3, 4), (1, 5), (1, 7)], vec![(5, Some(0.5))]));
        assert_eq!((shown.lag_mean, shown.lag_max), (Some(3.2), Some(4)));
        assert_eq!(shown.logp_behavior, [0.0, -0.1235, -0.2469, -0.9876, -1.1111].map(Some));
        assert!(shown.logp_current.is_empty() && shown.pieces.is_empty());
        assert_eq!(shown.why, ["first", "most lag"]);
        assert_eq!(Shown::of(&rollout, &pick, 10, &Reading::None(String::new())).left_out, 0);
    }

    /// Lags 4, 3 and 1 under a limit of 3, the second token not chosen. Catches a token that was left out and is shown as trained.
    #[test]
    fn what_was_too_old_is_said() {
        let rollout = Rollout {
            tokens: vec![1; 3],
            mask: vec![true, false, true],
            version: vec![4, 5, 7],
            status: Status::Trained,
            step: 9,
            ..Rollout::default()
        };
        let limits = LagLimits::from_text("[learn.safeguard]\nmax_lag = 3\n");
        let pick = Pick { part: Part::Step(9), at: 0, tokens: 3, limits, kinds: Vec::new() };
        let shown = |rollout: &Rollout| Shown::of(rollout, &pick, 9, &Reading::None(String::new()));
        let found = shown(&rollout);
        assert_eq!((found.uses, found.lag_mean), (vec![(1, Use::TooOld), (1, Use::Masked), (1, Use::Chosen)], Some(1.0)));
        let found = shown(&Rollout { status: Status::Waiting, ..rollout });
        assert_eq!((found.uses, found.lag_mean), (vec![(1, Use::Chosen), (1, Use::Masked), (1, Use::Chosen)], None));
    }

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(cut("é"), "é");
        let long = "a".repeat(1500) + &"z".repeat(1500);
        let found = cut(&long);
        assert!(found.starts_with("aaa") && found.ends_with("zzz") && found.contains("[1000 characters left out]"));
        assert_eq!(found.len(), 2000 + " [1000 characters left out] ".len());
    }
}
