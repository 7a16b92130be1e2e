//! When the generator and the learner of a run worked, from its log alone.

use std::error::Error;
use std::path::Path;
use tidegate::spec::Spec;
use tidegate::store::{RunFolder, steps};
use tidegate_operators::record::{Metrics, Status};

/// Columns of a drawing, and steps in it.
const COLUMNS: i64 = 60;
const DRAWN_STEPS: usize = 4;

/// From, to: nanoseconds since the Unix epoch.
type Span = (i64, i64);

/// A time of which a share was work.
#[derive(Clone, Copy, Debug)]
struct Piece {
    span: Span,
    share: f64,
}

/// What each half did between the ends of two steps: not while the first rollouts come, nor when no more are admitted.
pub struct Timeline {
    window: Span,
    generator: Vec<Piece>,
    learner: Vec<Piece>,
    /// Seconds in which both worked.
    pub both: f64,
    /// Rollouts that were trained.
    rollouts: u64,
    steps: Vec<i64>,
}

impl Timeline {
    /// # Errors
    /// A log that cannot be read; fewer steps than it takes.
    pub fn read(run: &Path) -> Result<Timeline, Box<dyn Error>> {
        let folder = RunFolder::view(run)?;
        let spec = Spec::load(&folder.spec(), &[])?;
        let (mut metrics, mut trained, mut sampled): (Vec<Metrics>, Vec<u64>, Vec<Span>) = Default::default();
        for step in steps(&folder)? {
            let step = step?;
            metrics.push(step.footer.metrics.ok_or("a step without metrics")?);
            trained.push(step.rollouts.iter().filter(|rollout| rollout.status == Status::Trained).count() as u64);
            sampled.extend(step.rollouts.iter().map(|rollout| (rollout.started_ns, rollout.finished_ns)));
        }
        let last = metrics.len().checked_sub(spec.schedule.max_lag as usize + 2).filter(|last| *last > 0);
        let last = last.ok_or("it takes more than max_lag + 2 steps")?;
        let ends: Vec<i64> = metrics[..=last].iter().map(|step| step.finished_ns).collect();
        let (window, sampling) = ((ends[0], ends[last]), union(sampled));
        let shared = spec.workers.generators == spec.workers.learners;
        let (mut generator, mut learner) = (Vec::new(), Vec::new());
        for (step, end) in metrics[..=last].iter().zip(&ends).skip(1) {
            let started = ends[learner.len()];
            let waited = step.wait_any_ns + step.wait_forced_ns + step.wait_log_ns;
            let begun = (started + waited as i64).min(*end);
            // One worker takes turns: what is not the learner's of a step is the generator's.
            let share = if shared { (step.train_ns as f64 / (end - begun).max(1) as f64).min(1.0) } else { 1.0 };
            learner.push(Piece { span: (begun, *end), share });
            let left = if shared { 1.0 - share } else { 1.0 };
            let within = |part: Span, share| {
                sampling.iter().filter_map(move |&span| cut(span, part)).map(move |span| Piece { span, share })
            };
            generator.extend(within((started, begun), 1.0).chain(within((begun, *end), left)));
        }
        let both = if shared { 0.0 } else { overlap(&generator, &learner) };
        Ok(Timeline { window, generator, learner, both, rollouts: trained[1..=last].iter().sum(), steps: ends })
    }

    /// Seconds between the ends of the two steps.
    pub fn seconds(&self) -> f64 {
        (self.window.1 - self.window.0) as f64 * 1e-9
    }

    /// Seconds in which the generator worked, and the learner.
    pub fn worked(&self) -> (f64, f64) {
        (work(&self.generator, self.window), work(&self.learner, self.window))
    }

    /// Trained a second.
    pub fn rollouts_a_second(&self) -> f64 {
        self.rollouts as f64 / self.seconds()
    }

    /// Two lines, and over them how much time they are: some steps in the middle.
    pub fn draw(&self) -> String {
        let first = (self.steps.len() - 1).saturating_sub(DRAWN_STEPS) / 2;
        let to = self.steps[(first + DRAWN_STEPS).min(self.steps.len() - 1)];
        let from = self.steps[first];
        let at = |column: i64| from + (to - from) * column / COLUMNS;
        let line = |pieces: &[Piece]| -> String {
            let columns = (0..COLUMNS).map(|column| (at(column), at(column + 1)));
            columns.map(|span| glyph(work(pieces, span) / ((span.1 - span.0).max(1) as f64 * 1e-9))).collect()
        };
        let ends = self.steps.iter().filter(|end| (from..=to).contains(end)).count() - 1;
        let (seconds, generator, learner) = ((to - from) as f64 * 1e-9, line(&self.generator), line(&self.learner));
        format!(
            "{ends} steps, {seconds:.2} s; # works, = partly, - hardly, . not\ngenerator {generator}\nlearner   {learner}"
        )
    }
}

fn glyph(share: f64) -> char {
    match share {
        share if share >= 0.75 => '#',
        share if share >= 0.25 => '=',
        share if share >= 0.01 => '-',
        _ => '.',
    }
}

/// What of `span` lies in `part`.
fn cut(span: Span, part: Span) -> Option<Span> {
    let cut = (span.0.max(part.0), span.1.min(part.1));
    (cut.0 < cut.1).then_some(cut)
}

/// The times in which any of them was, in order, without overlaps.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut union: Vec<Span> = Vec::new();
    for span in spans {
        match union.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => union.push(span),
        }
    }
    union
}

/// Seconds of work in `part`.
fn work(pieces: &[Piece], part: Span) -> f64 {
    let cut = pieces.iter().filter_map(|piece| Some((cut(piece.span, part)?, piece.share)));
    cut.map(|((from, to), share)| (to - from) as f64 * 1e-9 * share).sum()
}

/// Seconds that are in both, of pieces that are work throughout.
fn overlap(a: &[Piece], b: &[Piece]) -> f64 {
    a.iter().map(|piece| work(b, piece.span)).sum()
}
