//! The best checkpoint by held-out success, kept apart: `checkpoints/best`, a link to it, and `evaluation.json` in it.

use crate::durable::{remove, sync_parent, temporary, write_sealed};
use crate::engine::contract::Engine;
use crate::error::{Error, Result};
use crate::jobs::eval::{Evaluation, Evaluator};
use crate::jobs::say;
use crate::store::RunFolder;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{fs, io};
use tidegate_operators::fault::Halt;
use tidegate_operators::record::Step;

const EVALUATION: &str = "evaluation.json";

/// Evaluates checkpoints, on the thread that writes them.
pub struct Best<E: Engine> {
    folder: RunFolder,
    evaluator: Evaluator<E>,
    halt: Halt,
    best: Option<(Step, f64)>,
}

/// The step of the best checkpoint of a run, if one is kept apart.
pub fn step(folder: &RunFolder) -> Option<Step> {
    let link = fs::read_link(link(folder)).ok()?;
    link.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

fn link(folder: &RunFolder) -> PathBuf {
    folder.checkpoints().join("best")
}

impl<E: Engine> Best<E> {
    /// Goes on from the best that the run has, if it has one.
    pub fn new(folder: &RunFolder, evaluator: Evaluator<E>, halt: &Halt) -> Self {
        let success = |step| {
            let text = fs::read_to_string(folder.checkpoint(step).join(EVALUATION)).ok()?;
            serde_json::from_str::<Evaluation>(&text).ok()?.total().rate()
        };
        let best = step(folder).and_then(|step| Some((step, success(step)?)));
        Best { folder: folder.clone(), evaluator, halt: halt.clone(), best }
    }

    /// Evaluates the weights of a checkpoint that is sealed; the best so far gets the link. A halt ends it without a result.
    ///
    /// # Errors
    /// Rewards that fail; a disk that refuses.
    pub fn judge(&mut self, step: Step, weights: E::Weights) -> Result<()> {
        let evaluation = self.evaluator.evaluate(step, weights, &self.halt)?;
        let Some(success) = evaluation.total().rate().filter(|_| !self.halt.is_set()) else { return Ok(()) };
        let path = self.folder.checkpoint(step).join(EVALUATION);
        let text = serde_json::to_string_pretty(&evaluation).map_err(|e| Error::file(&path, e))?;
        write_sealed(&path, |file| writeln!(file, "{text}"))?;
        let better = self.best.is_none_or(|(_, best)| success > best);
        if better {
            self.point(step).map_err(|e| Error::file(link(&self.folder), e))?;
            self.best = Some((step, success));
        }
        let (best_step, best) = self.best.unwrap_or((step, success));
        say(format_args!(
            "held out  after step {step}: {:.1} % sampled; the best is {:.1} %, after step {best_step}",
            100.0 * success,
            100.0 * best
        ));
        Ok(())
    }

    /// The link is replaced at one instant.
    fn point(&self, step: Step) -> io::Result<()> {
        let (link, name) = (link(&self.folder), self.folder.checkpoint(step));
        let new = temporary(&link);
        remove(&new).map_err(io::Error::other)?;
        symlink(name.file_name().unwrap_or_default(), &new)?;
        fs::rename(&new, &link)?;
        sync_parent(&link).map_err(io::Error::other)
    }
}
