//! `admit`: turns prompts into groups, each with the last step that may train it.
//!
//! It runs on one worker. Neither of its inputs is connected to its outputs: it holds its own capability, at the due of the
//! groups it would admit now ([`Admission::cap`]), so its output's frontier says which dues can still come.

use crate::alarm::{Alarm, QUANTUM, UNCONNECTED, Wake, output};
use crate::balance::{Share, Spent};
use crate::fault::{Fault, Halt, guarded};
use crate::lag::Admission;
use crate::plan::Plan;
use crate::record::{Group, Prompt, Step, Version, now_ns};
use crate::success::Rate;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Where prompts come from.
pub trait Prompts {
    /// The prompt of group `number`, or None when there are no more: the same whenever it is asked (and the same is
    /// [known](Prompts::learned)), so that a run that goes on has the prompts that it would have had.
    ///
    /// # Errors
    /// A prompt that cannot be read.
    fn prompt(&mut self, number: u64) -> Result<Option<Prompt>, Fault>;

    /// From now on this is the success rate of a bin ([`Prompt::bin`]), and what `prompt` gives may depend on it. Told where the plan
    /// has a [window](Plan::window).
    ///
    /// # Errors
    /// Only what ends the run.
    fn learned(&mut self, _bin: u64, _rate: Rate) -> Result<(), Fault> {
        Ok(())
    }
}

/// What the operators after `admit` tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Feedback {
    /// A generator has this many rollouts less in progress.
    Finished { generator: usize, rollouts: usize },
    /// A group was discarded: its place in the budget is free.
    Returned,
    /// The success rate of a bin of prompts is another now.
    Rate { bin: u64, rate: Rate },
    /// A step was done, and this is where the learner's worker spent its time.
    Stepped(Spent),
}

/// The end of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// How many groups there are since the run's start: those that waited then, and those admitted.
    pub groups: u64,
}

/// Outputs of [`admit`].
pub struct Admitted<'scope> {
    /// At their due.
    pub groups: StreamVec<'scope, Step, Arc<Group>>,
    /// One record, once all groups were sent. A run that was halted has none.
    pub end: StreamVec<'scope, Step, End>,
    pub faults: StreamVec<'scope, Step, Fault>,
}

/// Of the time since it last came by, the share that one activation takes at most, where that is more than [`QUANTUM`]: on a worker whose decode
/// steps are long it must give all generators something to do between two of them.
const SHARE: u32 = 16;

/// Admits prompts while the lag rule allows and a generator has room; the one with the fewest rollouts in progress, for the room that
/// it has, gets the group. That of a worker that also trains has the room that its [`Share`] gives it. `prompts` is read on the plan's [`admitter`](Plan::admitter).
pub fn admit<'scope, P: Prompts + 'static>(
    versions: StreamVec<'scope, Step, Version>,
    feedback: StreamVec<'scope, Step, Feedback>,
    plan: &Plan,
    prompts: Option<P>,
    halt: &Halt,
) -> Admitted<'scope> {
    let scope = versions.scope();
    let admitter = plan.admitter() as u64;
    let mut builder = OperatorBuilder::new("admit".to_owned(), scope);
    let (mut groups_out, groups) = output(&mut builder);
    let (mut end_out, end) = output(&mut builder);
    let (faults_out, faults) = output(&mut builder);
    let mut versions = builder.new_input_connection(versions, Pipeline, UNCONNECTED);
    let mut feedback = builder.new_input_connection(feedback, Exchange::new(move |_: &Feedback| admitter), UNCONNECTED);

    let mut wake = Wake::new(scope, builder.operator_info().address);
    let here = plan.admitter() == scope.index();
    let plan = plan.clone();
    let halt = halt.clone();
    builder.build(move |mut capabilities| {
        let mut alarm = Alarm::new(&halt, faults_out, capabilities.remove(2));
        let missing = || Fault::new("admit", format!("worker {admitter} admits, but was given no prompts"));
        let mut missing = (here && prompts.is_none()).then(missing);
        let mut admit = prompts.filter(|_| here).map(|prompts| Admit::new(prompts, &plan));
        let mut last = Instant::now();
        move |_frontiers| {
            missing.take().into_iter().for_each(|fault| alarm.raise(fault));
            let state = &mut admit;
            state.iter_mut().for_each(Admit::clock);
            versions.for_each(|_, data| data.drain(..).for_each(|version| see(state, version)));
            feedback.for_each(|_, data| {
                data.drain(..).for_each(|event| alarm.check(hear(state, event)).unwrap_or_default());
            });
            let mut groups = groups_out.activate();
            let started = Instant::now();
            let quantum = QUANTUM.max((started - last) / SHARE);
            while started.elapsed() < quantum {
                let Some(state) = admit.as_mut().filter(|_| !alarm.halted()) else { break };
                let Some(cap) = state.admission.cap() else { break };
                capabilities[0].downgrade(&cap);
                match alarm.check(state.next()) {
                    Some(Some(group)) => {
                        capabilities[0].downgrade(&group.due);
                        groups.session(&capabilities[0]).give(Arc::new(group));
                    }
                    Some(None) => break,
                    None => admit = None,
                }
            }
            last = Instant::now();
            match admit.as_ref().filter(|_| !alarm.halted()) {
                Some(state) if state.admission.cap().is_some() => {
                    if state.room() {
                        wake.now()
                    } else {
                        wake.soon()
                    }
                }
                over => {
                    if let Some(state) = over
                        && let Some(capability) = capabilities.get(1)
                    {
                        end_out.activate().session(capability).give(End { groups: state.admission.groups() });
                    }
                    admit = None;
                    capabilities.clear();
                    alarm.rest();
                }
            }
        }
    });
    Admitted { groups, end, faults }
}

fn see<P: Prompts>(state: &mut Option<Admit<P>>, version: Version) {
    if let Some(state) = state {
        state.admission.see(version);
    }
}

fn hear<P: Prompts>(state: &mut Option<Admit<P>>, event: Feedback) -> Result<(), Fault> {
    match (state, event) {
        (Some(state), Feedback::Returned) => state.admission.returned(),
        (Some(state), Feedback::Finished { generator, rollouts }) => {
            let entry = state.generating.iter_mut().find(|of| of.worker == generator);
            entry.into_iter().for_each(|of| of.running = of.running.saturating_sub(rollouts));
        }
        (Some(state), Feedback::Rate { bin, rate }) => return guarded("admit", || state.prompts.learned(bin, rate)),
        (Some(state), Feedback::Stepped(spent)) => state.stepped(spent),
        (None, _) => {}
    }
    Ok(())
}

struct Admit<P> {
    prompts: P,
    admission: Admission,
    generating: Vec<Generating>,
    size: u32,
    balanced: Option<Balanced>,
}

/// What a generator has to do.
struct Generating {
    worker: usize,
    /// Rollouts in progress or queued, and how many it may have before it gets no more.
    running: usize,
    slots: usize,
}

impl Generating {
    fn has_room(&self) -> bool {
        self.running < self.slots
    }
}

/// A generator whose room is found as the run goes on.
struct Balanced {
    worker: usize,
    share: Share,
    /// When the others were looked at last, and for how long they had nothing in progress since the last step, all added up.
    seen: Instant,
    idle_ns: u64,
}

impl<P: Prompts> Admit<P> {
    fn new(prompts: P, plan: &Plan) -> Self {
        let generating = |worker: &usize| Generating { worker: *worker, running: 0, slots: plan.slots };
        let balanced = plan.balanced().map(|worker| {
            let share = Share::new(plan.slots, plan.group_size as usize);
            Balanced { worker, share, seen: Instant::now(), idle_ns: 0 }
        });
        Admit {
            prompts,
            admission: Admission::new(plan.schedule, plan.start.clone(), plan.steps, plan.batch_groups),
            generating: plan.generators.iter().map(generating).collect(),
            size: plan.group_size,
            balanced,
        }
    }

    /// Counts the time in which others than the balanced generator were idle.
    fn clock(&mut self) {
        let Some(balanced) = &mut self.balanced else { return };
        let idle = self.generating.iter().filter(|of| of.worker != balanced.worker && of.running == 0).count();
        let now = Instant::now();
        let since = u64::try_from((now - balanced.seen).as_nanos()).unwrap_or(u64::MAX);
        balanced.idle_ns = balanced.idle_ns.saturating_add(since.saturating_mul(idle as u64));
        balanced.seen = now;
    }

    fn stepped(&mut self, spent: Spent) {
        let Some(Balanced { worker, share, idle_ns, .. }) = &mut self.balanced else { return };
        let others = self.generating.iter().filter(|of| of.worker != *worker).count();
        share.step(spent, std::mem::take(idle_ns) / others.max(1) as u64);
        let shared = self.generating.iter_mut().find(|of| of.worker == *worker);
        shared.into_iter().for_each(|of| of.slots = share.rollouts());
    }

    /// Whether one more group can be admitted now, if there is a prompt.
    fn room(&self) -> bool {
        self.admission.open() && self.generating.iter().any(Generating::has_room)
    }

    /// The next group; None if there is no room now, or no prompt any more.
    fn next(&mut self) -> Result<Option<Group>, Fault> {
        let with_room = self.generating.iter_mut().filter(|of| of.has_room());
        // The smallest share of its room in use.
        let freest = with_room.min_by(|a, b| (a.running * b.slots).cmp(&(b.running * a.slots)));
        let Some(freest) = freest.filter(|_| self.admission.open()) else { return Ok(None) };
        let Some(prompt) = guarded("admit", || self.prompts.prompt(self.admission.next()))? else {
            self.admission.end();
            return Ok(None);
        };
        let Some(header) = self.admission.admit() else { return Ok(None) };
        freest.running += self.size as usize;
        Ok(Some(Group {
            number: header.number,
            due: header.due,
            earlier: header.earlier,
            oldest: header.oldest,
            size: self.size,
            generator: freest.worker,
            prompt,
            admitted_ns: now_ns(),
        }))
    }
}
