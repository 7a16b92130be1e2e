//! Arrow columns to rollouts.

use super::schema::{COLUMNS, Column, Kind, Missing, parse_status, parse_stop, part_fields};
use crate::error::{Error, Result};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Int64Type, Schema};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Group, Prompt, Rollout, Status, Stop};

/// Checks a file's columns and says which of them are the log's (as positions); notes those that are missing.
///
/// # Errors
/// A column that is missing and has no default, or has another type.
pub(super) fn check(path: &Path, schema: &Schema, notes: &mut Vec<String>) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for column in &COLUMNS {
        match schema.column_with_name(column.name) {
            Some((index, field)) if column.kind.accepts(field.data_type()) => found.push(index),
            Some((_, field)) if *field.data_type() != DataType::Null => {
                let reason = format!("is {}, expected {}", field.data_type(), column.kind.expected());
                return Err(Error::column(path, column.name, reason));
            }
            _ if column.missing == Missing::Refused => {
                let reason = format!("is missing, expected {}: this is no file of a rollout log", column.kind.expected());
                return Err(Error::column(path, column.name, reason));
            }
            _ => notes.push(format!("column {} is missing: its default is taken", column.name)),
        }
    }
    Ok(found)
}

/// Turns batches of one file into rollouts; those of one group share its header.
pub(super) struct Decoder<'a> {
    path: &'a Path,
    /// Row of the file that comes next.
    row: u64,
    groups: HashMap<u64, Arc<Group>>,
    pub(super) rollouts: Vec<Rollout>,
}

impl<'a> Decoder<'a> {
    /// Of rows from `row` on.
    pub(super) fn new(path: &'a Path, row: u64) -> Self {
        Decoder { path, row, groups: HashMap::new(), rollouts: Vec::new() }
    }

    /// Appends the rows of a batch of a file that passed [`check`].
    ///
    /// # Errors
    /// A value that its field cannot hold, by column and row.
    pub(super) fn decode(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = Columns::new(self.path, self.row, batch)?;
        self.row += batch.num_rows() as u64;
        let mut last: Option<Arc<Group>> = None;
        for row in 0..batch.num_rows() {
            // Rows of a group stand side by side.
            let group = match last.take() {
                Some(group) if columns.is_group(&group, row)? => group,
                _ => self.share(columns.group(row)?),
            };
            self.rollouts.push(columns.rollout(row, Arc::clone(&group))?);
            last = Some(group);
        }
        Ok(())
    }

    fn share(&mut self, group: Group) -> Arc<Group> {
        let known = self.groups.get(&group.number).filter(|known| ***known == group);
        known.cloned().unwrap_or_else(|| {
            let group = Arc::new(group);
            self.groups.insert(group.number, group.clone());
            group
        })
    }
}

/// Where among [`COLUMNS`] the one of this name is.
const fn place(name: &str) -> usize {
    let mut place = 0;
    while !equal(COLUMNS[place].name.as_bytes(), name.as_bytes()) {
        place += 1;
    }
    place
}

/// `==`, which is no constant function yet.
const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    a.len() == b.len() && i == a.len()
}

/// The columns of one batch, cast to the types that this reader works with.
struct Columns<'a> {
    path: &'a Path,
    /// Row of the file that the batch's first one is.
    first: u64,
    /// As [`COLUMNS`]; None where the file has none.
    arrays: [Option<ArrayRef>; COLUMNS.len()],
}

impl<'a> Columns<'a> {
    fn new(path: &'a Path, first: u64, batch: &RecordBatch) -> Result<Self> {
        let mut arrays = [const { None }; COLUMNS.len()];
        for (place, column) in arrays.iter_mut().zip(&COLUMNS) {
            if let Some(array) = batch.column_by_name(column.name) {
                *place = Some(normalised(column, array).map_err(|reason| Error::column(path, column.name, reason))?);
            }
        }
        Ok(Columns { path, first, arrays })
    }

    fn group(&self, row: usize) -> Result<Group> {
        Ok(Group {
            number: self.int(const { place("group") }, row)?,
            due: self.int(const { place("due") }, row)?,
            earlier: self.int(const { place("earlier") }, row)?,
            oldest: self.int(const { place("oldest") }, row)?,
            size: self.int(const { place("group_size") }, row)?,
            generator: self.int(const { place("generator") }, row)?,
            prompt: Prompt {
                id: self.int(const { place("prompt_id") }, row)?,
                epoch: self.int(const { place("epoch") }, row)?,
                task: self.text(const { place("task") }, row),
                text: self.text(const { place("prompt_text") }, row),
                tokens: self.ints(const { place("prompt_tokens") }, row)?,
                answer: self.text(const { place("answer") }, row),
                meta: self.text(const { place("meta") }, row),
                // Said by the tokens and by the status.
                max_tokens: None,
                refused: None,
                size: self.int(const { place("size") }, row)?,
                // Said by task and size, or by the id.
                bin: 0,
                drawn_success: self.float(const { place("drawn_success") }, row),
            },
            admitted_ns: self.int(const { place("admitted_ns") }, row)?,
        })
    }

    /// Whether the row's group is this one, found out without making it.
    fn is_group(&self, group: &Group, row: usize) -> Result<bool> {
        let Group { prompt, .. } = group;
        let text = |column, known: &str| self.str(column, row) == known;
        Ok(self.int::<u64>(const { place("group") }, row)? == group.number
            && self.int::<u64>(const { place("due") }, row)? == group.due
            && self.int::<u64>(const { place("earlier") }, row)? == group.earlier
            && self.int::<u64>(const { place("oldest") }, row)? == group.oldest
            && self.int::<u32>(const { place("group_size") }, row)? == group.size
            && self.int::<usize>(const { place("generator") }, row)? == group.generator
            && self.int::<u64>(const { place("prompt_id") }, row)? == prompt.id
            && self.int::<u32>(const { place("epoch") }, row)? == prompt.epoch
            && self.int::<u32>(const { place("size") }, row)? == prompt.size
            && self.float(const { place("drawn_success") }, row) == prompt.drawn_success
            && self.int::<i64>(const { place("admitted_ns") }, row)? == group.admitted_ns
            && text(const { place("task") }, &prompt.task)
            && text(const { place("prompt_text") }, &prompt.text)
            && text(const { place("answer") }, &prompt.answer)
            && text(const { place("meta") }, &prompt.meta)
            && self.ints::<u32>(const { place("prompt_tokens") }, row)? == prompt.tokens)
    }

    fn rollout(&self, row: usize, group: Arc<Group>) -> Result<Rollout> {
        Ok(Rollout {
            group,
            sample: self.int(const { place("sample") }, row)?,
            status: self.status(row)?,
            tokens: self.ints(const { place("tokens") }, row)?,
            text: self.text(const { place("completion_text") }, row),
            mask: self.bools(const { place("mask") }, row)?,
            logp_behavior: self.floats(const { place("logp_behavior") }, row)?,
            version: self.ints(const { place("version") }, row)?,
            value: self.floats(const { place("value") }, row)?,
            stop: self.stop(row)?,
            started_ns: self.int(const { place("started_ns") }, row)?,
            finished_ns: self.int(const { place("finished_ns") }, row)?,
            worker: self.int(const { place("worker") }, row)?,
            reward: self.float(const { place("reward") }, row),
            reward_shaped: self.float(const { place("reward_shaped") }, row),
            reward_parts: self.parts(row)?,
            reward_error: self
                .present(const { place("reward_error") }, row)
                .map(|array| array.as_string::<i32>().value(row).to_owned()),
            advantage: self.floats(const { place("advantage") }, row)?,
            logp_current: self.floats(const { place("logp_current") }, row)?,
            logp_reference: self.floats(const { place("logp_reference") }, row)?,
            step: self.int(const { place("step") }, row)?,
            order: self.int(const { place("order") }, row)?,
            trained_ns: self.int(const { place("trained_ns") }, row)?,
        })
    }

    fn refused(&self, column: usize, row: usize, reason: impl std::fmt::Display) -> Error {
        Error::column(self.path, COLUMNS[column].name, format!("row {}: {reason}", self.first + row as u64))
    }

    fn float(&self, column: usize, row: usize) -> Option<f32> {
        self.present(column, row).map(|array| array.as_primitive::<Float32Type>().value(row))
    }

    /// The column, if the file has it and it is not null in this row.
    fn present(&self, column: usize, row: usize) -> Option<&ArrayRef> {
        self.arrays[column].as_ref().filter(|array| array.is_valid(row))
    }

    /// An integer; 0 where the file lacks the column.
    fn int<T: TryFrom<i64>>(&self, column: usize, row: usize) -> Result<T> {
        let Some(array) = self.arrays[column].as_ref() else {
            return T::try_from(0).map_err(|_| self.refused(column, row, "has no default"));
        };
        if array.is_null(row) {
            return Err(self.refused(column, row, "null, expected an integer"));
        }
        let value = array.as_primitive::<Int64Type>().value(row);
        T::try_from(value).map_err(|_| self.refused(column, row, format!("{value} is out of range")))
    }

    fn text(&self, column: usize, row: usize) -> String {
        self.str(column, row).to_owned()
    }

    /// A text; empty where it is null or the file lacks the column.
    fn str(&self, column: usize, row: usize) -> &str {
        self.present(column, row).map_or("", |array| array.as_string::<i32>().value(row))
    }

    fn status(&self, row: usize) -> Result<Status> {
        let text = self.str(const { place("status") }, row);
        parse_status(text).ok_or_else(|| {
            let expected = "expected \"trained\", \"waiting\" or \"discarded: \" and a known reason";
            self.refused(const { place("status") }, row, format!("{text:?}, {expected}"))
        })
    }

    fn stop(&self, row: usize) -> Result<Stop> {
        let Some(array) = self.present(const { place("stop") }, row) else { return Ok(Stop::default()) };
        let text = array.as_string::<i32>().value(row);
        let expected = "expected eos, stop_string, length, time or refused";
        parse_stop(text).ok_or_else(|| self.refused(const { place("stop") }, row, format!("{text:?}, {expected}")))
    }

    /// A list's values and where this row's are; a missing or null list is empty.
    fn list(&self, column: usize, row: usize) -> Result<Option<(&ArrayRef, Range<usize>)>> {
        let Some(array) = self.present(column, row) else { return Ok(None) };
        let list: &ListArray = array.as_list();
        let range = list.value_offsets()[row] as usize..list.value_offsets()[row + 1] as usize;
        if list.values().null_count() > 0 && range.clone().any(|i| list.values().is_null(i)) {
            return Err(self.refused(column, row, "the list holds a null"));
        }
        Ok(Some((list.values(), range)))
    }

    fn ints<T: TryFrom<i64>>(&self, column: usize, row: usize) -> Result<Vec<T>> {
        let Some((values, range)) = self.list(column, row)? else { return Ok(Vec::new()) };
        let fit = |v: i64| T::try_from(v).map_err(|_| self.refused(column, row, format!("{v} is out of range")));
        match values.as_primitive_opt::<Int32Type>() {
            Some(narrow) => narrow.values()[range].iter().map(|v| fit((*v).into())).collect(),
            None => values.as_primitive::<Int64Type>().values()[range].iter().map(|v| fit(*v)).collect(),
        }
    }

    fn floats(&self, column: usize, row: usize) -> Result<Vec<f32>> {
        let Some((values, range)) = self.list(column, row)? else { return Ok(Vec::new()) };
        Ok(values.as_primitive::<Float32Type>().values()[range].to_vec())
    }

    fn bools(&self, column: usize, row: usize) -> Result<Vec<bool>> {
        let Some((values, range)) = self.list(column, row)? else { return Ok(Vec::new()) };
        let values: &BooleanArray = values.as_boolean();
        let bits = values.values().slice(range.start, range.len());
        // Nearly always all are true.
        Ok(if bits.count_set_bits() == bits.len() { vec![true; bits.len()] } else { bits.iter().collect() })
    }

    fn parts(&self, row: usize) -> Result<Vec<(String, f32)>> {
        let column = const { place("reward_parts") };
        let Some((values, range)) = self.list(column, row)? else { return Ok(Vec::new()) };
        let parts = values.as_struct();
        let (names, numbers) = (parts.column(0).as_string::<i32>(), parts.column(1).as_primitive::<Float32Type>());
        let part = |i| match names.is_valid(i) && numbers.is_valid(i) {
            true => Ok((names.value(i).to_owned(), numbers.value(i))),
            false => Err(self.refused(column, row, "a part without a name or a value")),
        };
        range.map(part).collect()
    }
}

/// The column in the one type that its kind is read as.
fn normalised(column: &Column, array: &ArrayRef) -> Result<ArrayRef, String> {
    let list = |element| DataType::List(Arc::new(Field::new("element", element, true)));
    let target = match column.kind {
        Kind::Int => DataType::Int64,
        Kind::Float => DataType::Float32,
        Kind::Text | Kind::OptionalText => DataType::Utf8,
        Kind::Ints => match array.data_type() {
            // As it is written: no wider copy is made of it.
            DataType::List(field) if *field.data_type() == DataType::Int32 => return Ok(array.clone()),
            _ => list(DataType::Int64),
        },
        Kind::Floats => list(DataType::Float32),
        Kind::Bools => return Ok(array.clone()),
        Kind::Parts => list(DataType::Struct(part_fields())),
    };
    let array = match array.as_map_opt() {
        Some(map) => Arc::new(ListArray::from(map.clone())),
        None => array.clone(),
    };
    as_type(&array, &target)
}

/// The values in another type; one that it cannot hold is an error.
pub(super) fn as_type(array: &ArrayRef, target: &DataType) -> Result<ArrayRef, String> {
    if array.data_type() == target {
        return Ok(array.clone());
    }
    cast_with_options(array, target, &CastOptions { safe: false, ..CastOptions::default() }).map_err(|e| e.to_string())
}
