//! The lag rule in a model of a run: the right reading never fails, and every wrong one does.

mod model;

use model::reference::Reading;
use model::{Failure, Instance, run};
use proptest::prelude::*;
use tidegate_operators::lag::Admission;
use tidegate_operators::plan::Order;
use tidegate_operators::schedule::Schedule;
use tidegate_operators::select::{Breach, Choice, Selector, Wait};
use tidegate_operators::start::Start;

proptest! {
    #![proptest_config(ProptestConfig { cases: 40_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Catches a selector or an admission that differs from the definitions in any choice, and any break of invariants I1 to
    /// I6, of the bound, or of progress, in small instances.
    #[test]
    fn small_instances_never_fail(seed in any::<u64>()) {
        prop_assert!(run(Instance::small(seed), Reading::Right).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same in larger ones, where a wrong count has room to grow.
    #[test]
    fn larger_instances_never_fail(seed in any::<u64>(), batch in 1..7_u64, max_lag in 0..17_u64, steps in 1..31_u64) {
        let instance = Instance { batch, max_lag, steps: Instance::small(seed).start + steps, ..Instance::small(seed) };
        let instance = Instance { room: 1 + seed % (2 * batch * (max_lag + 1)), ..instance };
        let lag = run(instance, Reading::Right);
        prop_assert!(lag.is_ok_and(|lag| lag <= max_lag));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same by turns: one phase at a time, and the next one while this one is trained.
    #[test]
    fn small_instances_by_turns_never_fail(seed in any::<u64>()) {
        let instance = Instance::small(seed).by_turns();
        let lag = run(instance, Reading::Right);
        prop_assert!(lag.is_ok_and(|lag| lag <= instance.max_lag), "{instance:?}: {lag:?}");
    }
}

/// Catches a schedule by turns that is stricter than it says, or whose largest lag is not that of its formula.
#[test]
fn the_bound_by_turns_is_reached() {
    let reached = |ahead: u64| {
        let instances = (0..4000).map(|seed| Instance::small(seed).by_turns());
        let of_kind = instances.filter(|i| i.phase.is_some_and(|phase| i.max_lag + 1 == ahead * phase));
        of_kind.filter(|instance| run(*instance, Reading::Right) == Ok(instance.max_lag)).count()
    };
    let [conventional, one_step_off] = [1, 2].map(reached);
    assert!(conventional > 500 && one_step_off > 100, "{conventional} {one_step_off} of about 2000");
}

/// Nothing passes the frontier before the phase is trained: the capability waits at its end for what may be returned.
#[test]
fn a_phase_that_is_whole_when_the_frontier_passes_is_caught() {
    let one = |i: Instance| Instance { batch: 1, start: 0, phase: Some(1), max_lag: 0, prompts: 100, ..i };
    assert_eq!(failure(Reading::WholeWhenPassed, |i| one(i.by_turns())), Failure::Stuck);
}

/// A discarded group has arrived too, and another takes its place.
#[test]
fn a_phase_that_is_whole_when_as_many_arrived_is_caught() {
    let few = |i: Instance| Instance { batch: 1, start: 0, phase: Some(2), max_lag: 1, prompts: 100, discards: 50, ..i };
    let failed = failure(Reading::WholeWhenFull, |i| few(i.by_turns()));
    assert!(matches!(failed, Failure::Stuck | Failure::Bound | Failure::NotWhole), "{failed:?}");
}

/// Catches a rule that is stricter than it says: the largest lag is reached in many instances, and never passed.
#[test]
fn the_bound_is_reached() {
    let reached =
        (0..2000).map(Instance::small).filter(|instance| run(*instance, Reading::Right) == Ok(instance.max_lag)).count();
    assert!(reached > 500, "{reached} of 2000");
}

/// The first failure of a reading among small instances; with a given size if the reading needs it.
fn failure(reading: Reading, size: impl Fn(Instance) -> Instance) -> Failure {
    let found = (0..20_000).find_map(|seed| run(size(Instance::small(seed)), reading).err());
    found.unwrap_or_else(|| panic!("{reading:?} was not caught"))
}

/// After a discard no place is left below the capability.
#[test]
fn lowering_the_capability_once_the_budget_is_used_is_caught() {
    let one = |instance| Instance { batch: 1, max_lag: 0, start: 0, prompts: 100, discards: 50, ..instance };
    assert_eq!(failure(Reading::CapabilityLowered, one), Failure::Stuck);
}

/// After a discard a step is missing, and prompts are left.
#[test]
fn dropping_the_capability_at_the_budget_is_caught() {
    let one = |instance| Instance { batch: 1, max_lag: 0, start: 0, prompts: 100, discards: 50, ..instance };
    assert_eq!(failure(Reading::DroppedAtBudget, one), Failure::EndsEarly);
}

/// Guard 4 left out: a token of step 2's group is sampled under version 0.
#[test]
fn sampling_before_the_weights_are_loaded_is_caught() {
    let one = |instance| Instance { batch: 1, max_lag: 0, start: 0, steps: 2, ..instance };
    assert_eq!(failure(Reading::EarlySampling, one), Failure::Lag);
}

/// What may still come is not waited for, and comes too late.
#[test]
fn a_bound_from_arrivals_alone_is_caught() {
    assert_eq!(failure(Reading::ArrivedOnly, |i| Instance { order: Order::Arrival, ..i }), Failure::Lag);
}

/// Two groups are due at step k+1 and only one fits: one should have trained at k.
#[test]
fn looking_at_the_next_step_alone_is_caught() {
    let failed = failure(Reading::NoLookAhead, |i| Instance { order: Order::Arrival, ..i });
    assert!(matches!(failed, Failure::Lag | Failure::ForcedTooMany | Failure::Stuck), "{failed:?}");
}

/// One group waits, and the other that the step needs is never admitted.
#[test]
fn room_that_waiting_groups_use_is_caught() {
    let tight = |instance| Instance { batch: 2, room: 1, start: 0, prompts: 100, ..instance };
    assert_eq!(failure(Reading::RoomCountsWaiting, tight), Failure::Stuck);
}

/// bound(d) rises again, and more than B groups are forced at once.
#[test]
fn forgotten_stamps_are_caught() {
    assert_eq!(failure(Reading::StampsForgotten, |i| Instance { order: Order::Arrival, ..i }), Failure::ForcedTooMany);
}

/// More than B groups are forced at once.
#[test]
fn an_uncapped_bound_is_caught() {
    assert_eq!(failure(Reading::Uncapped, |i| Instance { order: Order::Arrival, ..i }), Failure::ForcedTooMany);
}

/// The step waits for a group that is gone.
#[test]
fn silent_discards_are_caught_in_admission_order() {
    let one = |i| Instance { batch: 1, max_lag: 0, prompts: 100, discards: 50, order: Order::Admission, ..i };
    assert_eq!(failure(Reading::SilentDiscards, one), Failure::Stuck);
}

/// One learner's share is discarded, and the other gets the replacement.
#[test]
fn two_selectors_are_caught() {
    let two = |i| Instance { batch: 2, max_lag: 0, start: 0, prompts: 100, discards: 50, ..i };
    assert_eq!(failure(Reading::TwoSelectors, two), Failure::Stuck);
}

/// More groups are admitted than the steps left before their due can train.
#[test]
fn counters_from_zero_on_a_resume_are_caught() {
    let failed = failure(Reading::CountersFromZero, |i| Instance { start: 2, steps: 6, prompts: 100, ..i });
    assert!(matches!(failed, Failure::Lag | Failure::ForcedTooMany), "{failed:?}");
}

/// The readings that are caught are wrong by what they misread, not by the model: the sizes they fail at pass when read right.
#[test]
fn the_model_itself_passes_at_those_sizes() {
    for seed in 0..500 {
        for order in [Order::Arrival, Order::Admission] {
            let one =
                Instance { batch: 1, max_lag: 0, start: 0, prompts: 100, discards: 50, order, ..Instance::small(seed) };
            assert!(run(one, Reading::Right).is_ok());
            assert!(run(Instance { batch: 2, room: 1, ..one }, Reading::Right).is_ok());
            assert!(run(Instance { start: 2, steps: 6, ..one }, Reading::Right).is_ok());
        }
    }
}

/// By hand: B = 2, M = 1. Groups 0..4 are due at 2, group 4 at 3. With 2 due at 2 still out, step 1 must take both that came.
#[test]
fn selection_by_hand() {
    let mut selector = Selector::new(Start::default(), 9, 2, Order::Arrival);
    selector.arrive(3, 4, 4, "due at 3").unwrap();
    assert_eq!(selector.choose(), Choice::Wait(Wait::Any));
    selector.arrive(2, 0, 3, "due at 2").unwrap();
    assert_eq!(selector.choose(), Choice::Wait(Wait::Forced), "4 are due at 2, and step 2 can train 2 of them");
    selector.arrive(2, 0, 0, "due at 2, second").unwrap();
    assert_eq!(selector.choose(), Choice::Step(vec!["due at 2", "due at 2, second"]));
    selector.discard(2, 0, 1).unwrap();
    selector.arrive(2, 0, 2, "due at 2, last").unwrap();
    assert_eq!(selector.choose(), Choice::Step(vec!["due at 2, last", "due at 3"]), "a discard leaves one place free");
    assert_eq!(selector.arrive(2, 0, 9, "late"), Err(Breach::Late { number: 9, due: 2, next: 3 }));
    assert_eq!(selector.discard(3, 5, 9), Err(Breach::Stamp { number: 9, due: 3, earlier: 5, seen: 4 }));
}

/// By hand: a phase's groups are due at its end, and so is the one that takes a returned place.
#[test]
fn admission_by_turns_by_hand() {
    let dues = |admission: &mut Admission| {
        std::iter::from_fn(|| admission.admit()).map(|h| (h.due, h.earlier, h.oldest)).collect::<Vec<_>>()
    };
    // Phases of two steps, one group a step.
    let mut turns = Admission::new(Schedule::Conventional { steps: 2 }, Start::default(), 9, 1);
    assert_eq!((dues(&mut turns), turns.cap()), (vec![(2, 0, 0); 2], Some(2)));
    turns.see(1);
    assert!(turns.admit().is_none(), "in the middle of a phase");
    turns.returned();
    assert_eq!(dues(&mut turns), [(2, 0, 0)], "another takes the place of a discarded one");
    turns.see(2);
    assert_eq!((dues(&mut turns), turns.cap()), (vec![(4, 3, 2); 2], Some(4)));
    let mut off = Admission::new(Schedule::OneStepOff { steps: 2 }, Start::default(), 9, 1);
    assert_eq!((dues(&mut off), off.cap()), (vec![(2, 0, 0), (2, 0, 0), (4, 2, 0), (4, 2, 0)], Some(4)));
    off.see(2);
    assert_eq!(dues(&mut off), [(6, 4, 2), (6, 4, 2)]);
}

/// By hand, by turns: nothing is trained before all of the phase is there, and then not in the order of arrival.
#[test]
fn selection_by_turns_by_hand() {
    let mut selector = Selector::new(Start::default(), 8, 1, Order::Shuffled).by_turns();
    for number in [3, 0, 1] {
        selector.arrive(4, 0, number, number).unwrap();
        assert_eq!(selector.choose(), Choice::Wait(Wait::Forced));
    }
    selector.discard(4, 0, 2).unwrap();
    assert_eq!(selector.choose(), Choice::Wait(Wait::Forced), "another is to come in its place");
    selector.arrive(4, 0, 4, 4).unwrap();
    let batches: Vec<_> = (0..4).map(|_| selector.choose()).collect();
    let Choice::Step(first) = &batches[0] else { panic!("{batches:?}") };
    assert!(batches.iter().all(|batch| matches!(batch, Choice::Step(_))) && *first != [3], "{batches:?}");
    assert_eq!(selector.choose(), Choice::Wait(Wait::Any));
}

/// By hand: the capability stays while the budget is used up, and a returned place is used at the current due.
#[test]
fn admission_by_hand() {
    let mut admission = Admission::new(Schedule::Pipeline { max_lag: 1 }, Start::at(0, 7), 3, 1);
    let dues = |admission: &mut Admission| {
        std::iter::from_fn(|| admission.admit()).map(|h| (h.number, h.due, h.earlier)).collect::<Vec<_>>()
    };
    assert_eq!(dues(&mut admission), [(7, 2, 0), (8, 2, 0)]);
    assert_eq!(admission.cap(), Some(2));
    admission.returned();
    assert_eq!(dues(&mut admission), [(9, 2, 0)]);
    admission.see(2);
    admission.see(1);
    assert_eq!(
        (admission.cap(), dues(&mut admission)),
        (Some(4), vec![(10, 4, 3)]),
        "three steps, and no more than three live"
    );
    admission.see(3);
    assert_eq!((admission.cap(), admission.next(), admission.groups()), (None, 11, 4));
}
