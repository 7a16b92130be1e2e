//! A sentence on what to change so that neither the learner nor the generators wait.

use crate::jobs::shares::Shares;
use crate::spec::{EngineKind, Spec};
use tidegate_operators::balance::Balance;

/// Which workers do what, and how many there could be.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    generators: Vec<usize>,
    learner: usize,
    generator_threads: usize,
    learner_threads: usize,
    balance: Balance,
    /// Sides take turns by the schedule.
    by_turns: bool,
    max_lag: u64,
    processors: usize,
    /// Its layout is the experiment itself.
    emulated: bool,
}

impl Layout {
    /// Of a run on a machine with so many processors.
    pub fn of(spec: &Spec, processors: usize) -> Self {
        let plan = spec.plan();
        let w = &spec.workers;
        Layout {
            learner: plan.learner,
            generators: plan.generators,
            generator_threads: usize::from(w.generator_threads),
            learner_threads: usize::from(w.learner_threads),
            balance: w.balance,
            by_turns: plan.schedule.phase().is_some(),
            max_lag: spec.schedule.max_lag,
            processors,
            emulated: spec.model.engine == EngineKind::Emulation,
        }
    }

    fn shared(&self) -> bool {
        self.generators.contains(&self.learner)
    }

    /// Whether `workers.balance = "auto"` would change something.
    fn could_be_balanced(&self) -> bool {
        let beside = self.shared() && self.generators.len() > 1;
        beside && self.balance == Balance::Fixed && !self.by_turns && self.max_lag > 0
    }

    /// Whether so many generators beside the learner's worker have a processor for each thread.
    fn fits(&self, generators: usize) -> bool {
        generators * self.generator_threads + self.learner_threads <= self.processors
    }
}

/// From which share on a wait is worth a word.
const WORTH: f64 = 0.1;

/// What to change so that neither side waits; None where nothing is to be gained, or where the log does not say enough.
pub fn advice(shares: &Shares, layout: &Layout) -> Option<String> {
    if layout.emulated {
        return None;
    }
    let (starved, held) = (shares.waited_any + shares.waited_forced, shares.idle?);
    let [of_learner, of_generators] = [starved, held].map(|share| format!("{:.0} % of the time", 100.0 * share));
    match (starved >= WORTH, held >= WORTH) {
        (false, false) => None,
        (_, true) if layout.could_be_balanced() => Some(format!(
            "generators were held back by the lag bound {of_generators}, and the learner's worker sampled what they had time for: \
             workers.balance = \"auto\" leaves it to them"
        )),
        (true, true) if layout.by_turns => Some(format!(
            "the learner starved {of_learner} and generators had nothing to do {of_generators}: by turns each side waits for the \
             other; with schedule.kind = \"pipeline\" both work at once"
        )),
        (true, true) => Some(format!(
            "the learner starved {of_learner} and generators were held back by the lag bound {of_generators}: neither can work ahead \
             of the other; a larger schedule.max_lag ({} now) lets them",
            layout.max_lag
        )),
        (true, false) => {
            generate_more(starved, held, layout).map(|what| format!("the learner starved {of_learner}: {what}"))
        }
        (false, true) => train_more(held, layout)
            .map(|what| format!("generators were held back by the lag bound {of_generators}: {what}")),
    }
}

/// Generation is short: how many generators would feed a learner that works all the time, or what else there is.
fn generate_more(starved: f64, held: f64, layout: &Layout) -> Option<String> {
    let now = layout.generators.len();
    // One that shares its worker with the learner has what the learner leaves.
    let apart = now - usize::from(layout.shared());
    let wanted = up(now as f64 * (1.0 - held) / (1.0 - starved).max(0.05));
    let most = (apart + 1..=wanted.max(apart + 1)).rev().find(|&generators| layout.fits(generators));
    if let Some(more) = most {
        let list: Vec<usize> = (0..more).collect();
        return Some(format!(
            "give generation {more} of {} workers (workers.generators = {list:?}, workers.learners = [{more}])",
            more + 1
        ));
    }
    if layout.shared() {
        return None;
    }
    let list: Vec<usize> = layout.generators.iter().copied().chain([layout.learner]).collect();
    Some(format!("let its worker generate in that time (workers.generators = {list:?}, workers.balance = \"auto\")"))
}

/// To a whole number, up; what is above one by less than can be measured is it.
fn up(count: f64) -> usize {
    (count - 1e-3).ceil() as usize
}

/// Training is short: who gives it threads, or what else there is.
fn train_more(held: f64, layout: &Layout) -> Option<String> {
    // One that shares its worker with the learner has no threads to give.
    let now = layout.generators.len() - usize::from(layout.shared() && layout.generators.len() > 1);
    let enough = up(now as f64 * (1.0 - held)).max(1);
    let threads = layout.learner_threads;
    if enough < now {
        return Some(format!(
            "{enough} of the {now} generators would do; training is what is short, so give it their threads (workers.learner_threads, \
             {threads} now)"
        ));
    }
    let taken = layout.generators.len() * layout.generator_threads + threads;
    if layout.fits(layout.generators.len()) && taken < layout.processors {
        return Some(format!("training is what is short, so give it more threads (workers.learner_threads, {threads} now)"));
    }
    // One worker with all of them is never idle.
    (!layout.shared()).then(|| {
        let all = layout.processors;
        format!(
            "training is what is short, and all {all} processors are taken; one worker that has them for both sides wastes none \
             (workers = {{ generators = [0], learners = [0], generator_threads = {all}, learner_threads = {all} }})"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(generators: &[usize], learner: usize, processors: usize) -> Layout {
        Layout {
            generators: generators.to_vec(),
            learner,
            generator_threads: 1,
            learner_threads: 1,
            balance: Balance::Fixed,
            by_turns: false,
            max_lag: 4,
            processors,
            emulated: false,
        }
    }

    fn shares(starved: f64, held: f64) -> Shares {
        Shares { waited_any: starved, idle: Some(held), ..Shares::default() }
    }

    /// Catches advice that needs processors that are not there, more generators than feed the learner, and advice where there is
    /// nothing to gain.
    #[test]
    fn a_learner_that_starves_gets_generators() {
        let says = |starved, held, layout: &Layout| advice(&shares(starved, held), layout).unwrap_or_default();
        assert_eq!(
            says(0.41, 0.02, &layout(&[0], 1, 4)),
            "the learner starved 41 % of the time: give generation 2 of 3 workers (workers.generators = [0, 1], workers.learners = [2])"
        );
        let shared = "let its worker generate in that time (workers.generators = [0, 1], workers.balance = \"auto\")";
        assert_eq!(says(0.41, 0.02, &layout(&[0], 1, 2)), format!("the learner starved 41 % of the time: {shared}"));
        assert!(says(0.8, 0.0, &layout(&[0], 1, 16)).contains("5 of 6 workers"));
        assert!(says(0.8, 0.0, &layout(&[0], 1, 4)).contains("3 of 4 workers"));
        assert!(
            says(0.3, 0.0, &layout(&[0, 1], 1, 3)).contains("2 of 3 workers"),
            "the learner's worker is a generator by half"
        );
        assert_eq!(says(0.3, 0.0, &layout(&[0, 1], 1, 2)), "", "every processor is busy");
        assert_eq!(says(0.09, 0.09, &layout(&[0], 1, 16)), "");
    }

    #[test]
    fn generators_that_are_held_back_give_way() {
        let says = |held, layout: &Layout| advice(&shares(0.02, held), layout).unwrap_or_default();
        let held = "generators were held back by the lag bound 38 % of the time: ";
        assert_eq!(
            says(0.38, &layout(&[0], 1, 4)),
            format!("{held}training is what is short, so give it more threads (workers.learner_threads, 1 now)")
        );
        // None are left: one worker that has all of them.
        assert!(says(0.38, &layout(&[0], 1, 2)).ends_with("generator_threads = 2, learner_threads = 2 })"));
        assert_eq!(says(0.38, &layout(&[0], 0, 1)), "", "that is what it is");
        assert_eq!(says(0.38, &Layout { emulated: true, ..layout(&[0], 1, 4) }), "");
        assert!(says(0.38, &layout(&[0, 1, 2], 3, 4)).starts_with(&format!("{held}2 of the 3 generators would do; ")));
        let shared = layout(&[0, 1], 1, 2);
        assert!(says(0.38, &shared).ends_with("workers.balance = \"auto\" leaves it to them"));
        let starves = advice(&shares(0.3, 0.38), &shared).unwrap();
        assert!(starves.contains("\"auto\""), "what is waited for is with the learner's worker: {starves}");
        for other in [Layout { balance: Balance::Auto, ..shared.clone() }, Layout { max_lag: 0, ..shared }] {
            assert!(!says(0.38, &other).contains("auto"));
        }
    }

    /// Catches advice on the split where the schedule is what both wait for.
    #[test]
    fn both_waiting_is_the_schedule() {
        let says = |layout: &Layout| advice(&shares(0.3, 0.4), layout).unwrap_or_default();
        assert!(says(&layout(&[0], 1, 4)).ends_with("a larger schedule.max_lag (4 now) lets them"));
        assert!(says(&Layout { by_turns: true, ..layout(&[0], 1, 4) }).contains("\"pipeline\""));
        assert_eq!(advice(&Shares { idle: None, ..shares(0.9, 0.0) }, &layout(&[0], 1, 4)), None, "an older log");
    }
}
