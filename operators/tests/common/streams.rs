//! One operator by itself: what its streams give, and records to send it.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; all of it is tests")]

use std::sync::{Arc, Mutex};
use tidegate_operators::fault::Fault;
use tidegate_operators::record::{Estimated, Group, Rollout, Step};
use tidegate_operators::seal::Sealed;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};

/// What a stream gave on this worker, with its times.
pub type Seen<D> = Arc<Mutex<Vec<(Step, D)>>>;

pub fn watch<D: Clone + 'static>(stream: StreamVec<'_, Step, D>, probe: &ProbeHandle<Step>) -> Seen<D> {
    let seen = Seen::default();
    let all = Arc::clone(&seen);
    let see = move |stamp: &_, data: &Vec<D>| {
        let stamp: &timely::progress::Stamp<Step> = stamp;
        let time = *stamp.least().expect("every record has a time");
        all.lock().unwrap().extend(data.iter().map(|datum| (time, datum.clone())));
    };
    stream
        .inspect_core(move |event| {
            if let Ok((stamp, data)) = event {
                see(stamp, data)
            }
        })
        .probe_with(probe);
    seen
}

/// Long enough that whatever can happen does.
pub fn idle(worker: &mut timely::worker::Worker) {
    for _ in 0..200 {
        worker.step();
    }
}

pub fn group(number: u64, due: Step, size: u32) -> Arc<Group> {
    Arc::new(Group { number, due, size, ..Group::default() })
}

pub fn rollout(group: &Arc<Group>, sample: u32) -> Rollout {
    let (tokens, mask, version) = (vec![7; 2], vec![true; 2], vec![group.oldest; 2]);
    Rollout { group: Arc::clone(group), sample, tokens, mask, version, ..Rollout::default() }
}

pub fn estimated(number: u64, due: Step, earlier: u64, oldest: u64) -> Estimated {
    let group = Arc::new(Group { number, due, earlier, oldest, size: 1, ..Group::default() });
    Estimated { rollouts: vec![rollout(&group, 0)], group, discarded: None }
}

pub fn durable(step: Step) -> Sealed {
    Sealed { step, metrics: None }
}

pub fn faults(seen: &Seen<Fault>) -> Vec<String> {
    seen.lock().unwrap().iter().map(|(_, fault)| fault.to_string()).collect()
}
