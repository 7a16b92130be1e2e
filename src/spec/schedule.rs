//! `[schedule]` as it is written out: a key that only other kinds read would mean nothing.

use super::{ScheduleKind, ScheduleSpec};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use toml::{Table, Value};

impl ScheduleKind {
    /// Whether it reads `schedule.steps`, and not `schedule.max_lag`.
    fn by_turns(self) -> bool {
        self != ScheduleKind::Pipeline
    }

    /// The keys that only other kinds read.
    fn foreign_keys(self) -> &'static [&'static str] {
        if self.by_turns() { &["max_lag", "weights_update"] } else { &["steps"] }
    }
}

impl Serialize for ScheduleSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ScheduleSpec { kind, max_lag, weights_update, steps, order, short_batch } = self;
        let mut keys = serializer.serialize_struct("ScheduleSpec", if kind.by_turns() { 4 } else { 5 })?;
        keys.serialize_field("kind", kind)?;
        if kind.by_turns() {
            keys.serialize_field("steps", steps)?;
        } else {
            keys.serialize_field("max_lag", max_lag)?;
            keys.serialize_field("weights_update", weights_update)?;
        }
        keys.serialize_field("order", order)?;
        keys.serialize_field("short_batch", short_batch)?;
        keys.end()
    }
}

/// Takes out of the text of a run the key that its schedule does not read, where it has its default: once both were written.
pub(super) fn leave_out_what_is_not_read(spec: &mut Table) {
    let Some(Value::Table(schedule)) = spec.get_mut("schedule") else { return };
    let default = ScheduleSpec::default();
    let kind = schedule.get("kind").map_or(Some(default.kind), |kind| kind.clone().try_into().ok());
    let Some(kind) = kind else { return };
    // `weights_update` was never written where it is not read.
    let (key, value) = if kind.by_turns() { ("max_lag", default.max_lag) } else { ("steps", default.steps) };
    if schedule.get(key).and_then(Value::as_integer) == i64::try_from(value).ok() {
        schedule.remove(key);
    }
}

/// Takes out of a file the key of its kind of schedule, where `--set` asks for another kind.
pub(super) fn give_way(spec: &mut Table, sets: &[String]) {
    let of = |set: &String| {
        let (key, kind) = set.split_once('=')?;
        (key.trim() == "schedule.kind").then(|| Value::String(kind.trim().trim_matches(['"', '\'']).to_owned()))
    };
    let kind: Option<ScheduleKind> = sets.iter().rev().find_map(of).and_then(|kind| kind.try_into().ok());
    if let (Some(kind), Some(Value::Table(schedule))) = (kind, spec.get_mut("schedule")) {
        kind.foreign_keys().iter().for_each(|key| drop(schedule.remove(*key)));
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    const START: &str = "model.path = \"m\"\n[[task]]\nkind = \"sorting\"\n";

    /// What an earlier version wrote of a run must be read, and what anybody asks for now must mean something.
    #[test]
    fn a_key_that_the_schedule_does_not_read_is_refused_where_it_is_asked_for() {
        for (kind, foreign, own) in [
            ("pipeline", "steps = 1", "max_lag = 4"),
            ("conventional", "max_lag = 4", "steps = 1"),
            ("one_step_off", "max_lag = 4", "steps = 1"),
        ] {
            let start = format!("{START}[schedule]\nkind = \"{kind}\"\n");
            let spec = Spec::from_text(&format!("{start}{foreign}\n{own}\n"), &[]).unwrap();
            let own = if kind == "pipeline" { format!("{own}\nweights_update = \"in_flight\"") } else { own.to_owned() };
            assert!(spec.to_text().contains(&format!("\nkind = \"{kind}\"\n{own}\norder = ")), "{}", spec.to_text());
            assert_eq!(Spec::from_text(&spec.to_text(), &[]).unwrap(), spec);
            let refused = Spec::from_text(&start, &[format!("schedule.{foreign}")]).unwrap_err();
            let why = format!("schedule.{foreign}: means nothing with schedule.kind = \"{kind}\"; allowed: kind, ");
            assert!(refused.to_string().starts_with(&why), "{refused}");
        }
        let other = format!("{START}[schedule]\nkind = \"conventional\"\nmax_lag = 5\n");
        assert!(Spec::from_text(&other, &[]).is_err());
    }
}
