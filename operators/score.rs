//! `score`: gives each rollout its reward, on the worker that sampled it.

use crate::alarm::{Alarm, QUANTUM, Wake, output, to};
use crate::fault::{Fault, Halt, guarded};
use crate::record::{Rollout, Step};
use std::collections::VecDeque;
use std::time::Instant;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// A reward function.
pub trait Scorer {
    /// Fills `reward` and `reward_parts`, or `reward_error`.
    ///
    /// # Errors
    /// Only what ends the run; a rollout that cannot be scored is no fault.
    fn score(&mut self, rollout: &mut Rollout) -> Result<(), Fault>;
}

/// Outputs of [`score`].
pub struct Scored<'scope> {
    pub rollouts: StreamVec<'scope, Step, Rollout>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Scores the rollouts that can be trained, for one quantum an activation. After a halt what is here is still scored, so
/// that complete groups are kept; after a fault of its own, dropped.
///
/// ```
/// use tidegate_operators::fault::{Fault, Halt};
/// use tidegate_operators::record::Rollout;
/// use tidegate_operators::score::{Scorer, score};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// struct Length;
///
/// impl Scorer for Length {
///     fn score(&mut self, rollout: &mut Rollout) -> Result<(), Fault> {
///         rollout.reward = Some(rollout.tokens.len() as f32);
///         Ok(())
///     }
/// }
///
/// timely::example(|scope| {
///     let rollouts = [Rollout { tokens: vec![1, 2], ..Rollout::default() }].to_stream(scope);
///     let scored = score(rollouts, Some(Length), &Halt::default());
///     scored.rollouts.inspect(|rollout| assert_eq!(rollout.reward, Some(2.0)));
/// });
/// ```
pub fn score<'scope, S: Scorer + 'static>(
    rollouts: StreamVec<'scope, Step, Rollout>,
    mut scorer: Option<S>,
    halt: &Halt,
) -> Scored<'scope> {
    let scope = rollouts.scope();
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("score".to_owned(), scope);
    let (mut scored_out, scored) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut rollouts = builder.new_input_connection(rollouts, Pipeline, to(0));

    let wake = Wake::new(scope, builder.operator_info().address);
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(1));
        capabilities.clear();
        let mut queue: VecDeque<(Capability<Step>, Rollout)> = VecDeque::new();
        let mut broken = false;
        move |frontiers| {
            rollouts.for_each(|capability, data| {
                queue.extend(data.drain(..).filter_map(|rollout| Some((capability.retain_least(0)?, rollout))));
            });
            let mut scored = scored_out.activate();
            let start = Instant::now();
            while !broken
                && start.elapsed() < QUANTUM
                && let Some((capability, mut rollout)) = queue.pop_front()
            {
                match alarm.check(score_one(scorer.as_mut(), &mut rollout, worker)) {
                    Some(()) => scored.session(&capability).give(rollout),
                    None => broken = true,
                }
            }
            if broken {
                queue.clear();
            }
            if !queue.is_empty() {
                wake.now();
            } else if frontiers[0].is_empty() {
                alarm.rest();
            }
        }
    });
    Scored { rollouts: scored, faults }
}

fn score_one<S: Scorer>(scorer: Option<&mut S>, rollout: &mut Rollout, worker: usize) -> Result<(), Fault> {
    let missing = || Fault::new("score", format!("worker {worker} generates, but was given no scorer"));
    let scorer = scorer.ok_or_else(missing)?;
    if rollout.trainable() { guarded("score", || scorer.score(rollout)) } else { Ok(()) }
}
