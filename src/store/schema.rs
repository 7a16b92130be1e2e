//! The columns of the rollout log: one row a rollout, trained or not.
//!
//! Types are the plainest that DuckDB, Polars, pandas and pyarrow read with no help: signed 64-bit integers for counters and
//! times, 32-bit ones inside lists (token ids, versions), 32-bit floats, UTF-8. Token columns are lists of equal length, or
//! empty where nothing filled them. `reward_parts` is a list of structs and not a map, since maps read differently everywhere.

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use std::sync::Arc;
use tidegate_operators::record::{Reason, Status, Stop};

/// Version of the columns' meaning, in the footer. A column that is only added does not raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Float,
    Text,
    OptionalText,
    Ints,
    Floats,
    Bools,
    /// `list<struct<name: utf8, value: f32>>`.
    Parts,
}

impl Kind {
    /// The type that the writer writes.
    fn written(self) -> DataType {
        let list = |element| DataType::List(Arc::new(Field::new("element", element, false)));
        match self {
            Kind::Int => DataType::Int64,
            Kind::Float => DataType::Float32,
            Kind::Text | Kind::OptionalText => DataType::Utf8,
            Kind::Ints => list(DataType::Int32),
            Kind::Floats => list(DataType::Float32),
            Kind::Bools => list(DataType::Boolean),
            Kind::Parts => list(DataType::Struct(part_fields())),
        }
    }

    /// Whether a column of this type can be read as this kind without losing what it says.
    pub(super) fn accepts(self, found: &DataType) -> bool {
        match (self, found) {
            (Kind::Int, t) => t.is_integer(),
            (Kind::Float, t) => t.is_floating(),
            (Kind::Text | Kind::OptionalText, t) => t.is_string(),
            (Kind::Ints, DataType::List(f)) => Kind::Int.accepts(f.data_type()),
            (Kind::Floats, DataType::List(f)) => Kind::Float.accepts(f.data_type()),
            (Kind::Bools, DataType::List(f)) => *f.data_type() == DataType::Boolean,
            (Kind::Parts, DataType::List(f) | DataType::Map(f, _)) => is_part(f.data_type()),
            _ => false,
        }
    }

    /// What is accepted, in words.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Kind::Int => "an integer",
            Kind::Float => "a float",
            Kind::Text | Kind::OptionalText => "text",
            Kind::Ints => "a list of integers",
            Kind::Floats => "a list of floats",
            Kind::Bools => "a list of booleans",
            Kind::Parts => "a list of structs of a name (text) and a value (float), or a map of them",
        }
    }
}

/// Whether a row can be read without the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The file is no rollout log.
    Refused,
    /// An older writer did not have it: its default is taken, and noted.
    Default,
}

/// One column of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) missing: Missing,
}

const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, missing: Missing::Default }
}

const fn required(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, missing: Missing::Refused }
}

/// All columns, in the order of the file.
pub(super) const COLUMNS: [Column; 38] = [
    column("step", Kind::Int),
    column("order", Kind::Int),
    required("status", Kind::Text),
    required("group", Kind::Int),
    required("sample", Kind::Int),
    column("prompt_id", Kind::Int),
    column("epoch", Kind::Int),
    column("task", Kind::Text),
    column("size", Kind::Int),
    column("drawn_success", Kind::Float),
    column("due", Kind::Int),
    column("oldest", Kind::Int),
    column("earlier", Kind::Int),
    column("group_size", Kind::Int),
    column("generator", Kind::Int),
    column("prompt_text", Kind::Text),
    column("answer", Kind::Text),
    column("meta", Kind::Text),
    column("completion_text", Kind::Text),
    column("prompt_tokens", Kind::Ints),
    required("tokens", Kind::Ints),
    column("mask", Kind::Bools),
    column("logp_behavior", Kind::Floats),
    column("logp_current", Kind::Floats),
    column("logp_reference", Kind::Floats),
    column("version", Kind::Ints),
    column("value", Kind::Floats),
    column("advantage", Kind::Floats),
    column("reward", Kind::Float),
    column("reward_parts", Kind::Parts),
    column("reward_error", Kind::OptionalText),
    column("reward_shaped", Kind::Float),
    column("stop", Kind::Text),
    column("admitted_ns", Kind::Int),
    column("started_ns", Kind::Int),
    column("finished_ns", Kind::Int),
    column("trained_ns", Kind::Int),
    column("worker", Kind::Int),
];

/// The Arrow schema of a file of the log.
pub fn schema() -> SchemaRef {
    let nullable = |kind| matches!(kind, Kind::Float | Kind::OptionalText);
    let field = |c: &Column| Field::new(c.name, c.kind.written(), nullable(c.kind));
    Arc::new(Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>()))
}

/// Fields of one part of a reward.
pub(super) fn part_fields() -> Fields {
    Fields::from(vec![Field::new("name", DataType::Utf8, false), Field::new("value", DataType::Float32, false)])
}

fn is_part(found: &DataType) -> bool {
    match found {
        DataType::Struct(fields) => {
            matches!(&fields[..], [a, b] if a.data_type().is_string() && b.data_type().is_floating())
        }
        _ => false,
    }
}

/// The status that a text of the `status` column means; the inverse of its `Display`.
pub fn parse_status(text: &str) -> Option<Status> {
    let reason = match text {
        "waiting" => return Some(Status::Waiting),
        "trained" => return Some(Status::Trained),
        other => other.strip_prefix("discarded: ")?,
    };
    let reason = match reason {
        "no reward" => Reason::NoReward,
        "unscorable" => Reason::Unscorable,
        "zero variance" => Reason::ZeroVariance,
        "data ended" => Reason::DataEnded,
        other => match other.split_once(": ")? {
            ("bad tokens", why) => Reason::BadTokens(why.to_owned()),
            ("bad prompt", why) => Reason::BadPrompt(why.to_owned()),
            _ => return None,
        },
    };
    Some(Status::Discarded(reason))
}

/// The text of the `stop` column.
pub fn stop_text(stop: Stop) -> &'static str {
    match stop {
        Stop::Eos => "eos",
        Stop::StopString => "stop_string",
        Stop::Length => "length",
        Stop::Time => "time",
        Stop::Refused => "refused",
    }
}

/// The inverse of [`stop_text`].
pub fn parse_stop(text: &str) -> Option<Stop> {
    [Stop::Eos, Stop::StopString, Stop::Length, Stop::Time, Stop::Refused].into_iter().find(|s| stop_text(*s) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_stops_come_back() {
        let why = "logp_behavior[3] = 0.3: above 0\n\0".to_owned();
        let reasons = [
            Reason::NoReward,
            Reason::Unscorable,
            Reason::ZeroVariance,
            Reason::BadTokens(why.clone()),
            Reason::BadTokens(String::new()),
            Reason::BadPrompt(why),
            Reason::DataEnded,
        ];
        let statuses = reasons.into_iter().map(Status::Discarded).chain([Status::Waiting, Status::Trained]);
        for status in statuses {
            assert_eq!(parse_status(&status.to_string()), Some(status));
        }
        for text in ["", "discarded", "discarded: ", "discarded: bad luck: x", "Trained"] {
            assert_eq!(parse_status(text), None, "{text}");
        }
        for stop in ["eos", "stop_string", "length", "time", "refused"] {
            assert_eq!(parse_stop(stop).map(stop_text), Some(stop));
        }
        assert_eq!(parse_stop("EOS"), None);
    }

    #[test]
    fn narrower_and_wider_numbers_are_accepted_and_other_types_are_not() {
        assert!(Kind::Int.accepts(&DataType::Int32) && Kind::Int.accepts(&DataType::UInt64));
        assert!(!Kind::Int.accepts(&DataType::Float64) && !Kind::Int.accepts(&DataType::Utf8));
        let list = |t| DataType::List(Arc::new(Field::new("item", t, true)));
        assert!(Kind::Ints.accepts(&list(DataType::Int64)) && !Kind::Ints.accepts(&DataType::Int64));
        assert!(Kind::Floats.accepts(&list(DataType::Float64)) && !Kind::Floats.accepts(&list(DataType::Utf8)));
        assert!(Kind::Parts.accepts(&list(DataType::Struct(part_fields()))) && !Kind::Parts.accepts(&list(DataType::Utf8)));
    }
}
