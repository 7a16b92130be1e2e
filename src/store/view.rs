//! Rows of the log as they lie in their columns: for whoever looks at many and keeps few. Nothing is copied for a row.

use super::decode::as_type;
use super::schema::{parse_status, parse_stop};
use crate::error::{Error, Result};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float32Array, Int64Array, ListArray, PrimitiveArray, RecordBatch,
    StringViewArray,
};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float32Type, Int32Type, Int64Type};
use arrow::util::bit_iterator::BitSliceIterator;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tidegate_operators::record::{Status, Step, Stop, Version};

/// The columns that a [`Row`] is made of.
pub(super) const VIEWED: [&str; 23] = [
    "step",
    "status",
    "group",
    "sample",
    "prompt_id",
    "task",
    "size",
    "prompt_text",
    "tokens",
    "mask",
    "logp_behavior",
    "logp_current",
    "logp_reference",
    "version",
    "value",
    "advantage",
    "reward",
    "reward_shaped",
    "stop",
    "admitted_ns",
    "started_ns",
    "finished_ns",
    "trained_ns",
];

/// One row, as in [`Rollout`](tidegate_operators::record::Rollout).
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub step: Step,
    pub status: &'a Status,
    pub group: u64,
    pub sample: u32,
    pub prompt_id: u64,
    pub task: &'a str,
    pub size: u32,
    pub prompt: &'a str,
    /// How many completion tokens it has.
    pub tokens: usize,
    pub mask: Mask<'a>,
    pub logp_behavior: &'a [f32],
    pub logp_current: &'a [f32],
    pub logp_reference: &'a [f32],
    pub version: Versions<'a>,
    /// Empty where no critic made any.
    pub value: &'a [f32],
    pub advantage: &'a [f32],
    pub reward: Option<f32>,
    pub reward_shaped: Option<f32>,
    pub stop: Stop,
    pub admitted_ns: i64,
    pub started_ns: i64,
    pub finished_ns: i64,
    pub trained_ns: i64,
}

#[cfg(test)]
impl Row<'static> {
    /// A row that waits, of nothing.
    pub fn blank() -> Self {
        Row {
            step: 1,
            status: &Status::Waiting,
            group: 0,
            sample: 0,
            prompt_id: 0,
            task: "",
            size: 0,
            prompt: "",
            tokens: 0,
            mask: Mask::None,
            logp_behavior: &[],
            logp_current: &[],
            logp_reference: &[],
            version: Versions::Narrow(&[]),
            value: &[],
            advantage: &[],
            reward: None,
            reward_shaped: None,
            stop: Stop::Eos,
            admitted_ns: 0,
            started_ns: 0,
            finished_ns: 0,
            trained_ns: 0,
        }
    }
}

/// Which tokens of a rollout the policy chose.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Where the file has no mask: all of them.
    None,
    /// So many of them, and none behind.
    All(usize),
    Some {
        bits: &'a BooleanBuffer,
        from: usize,
        length: usize,
    },
}

impl<'a> Mask<'a> {
    /// The chosen ones of the first `length` tokens, in order, those that follow each other at once.
    pub fn ranges(self, length: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (whole, bits) = match self {
            Mask::None => (Some(0..length), None),
            Mask::All(all) => (Some(0..length.min(all)), None),
            Mask::Some { bits, from, length: all } => {
                (None, Some(BitSliceIterator::new(bits.values(), bits.offset() + from, length.min(all))))
            }
        };
        let parts = bits.into_iter().flatten().map(|(from, to)| from..to);
        whole.into_iter().filter(|range| !range.is_empty()).chain(parts)
    }
}

/// The version of each token.
#[derive(Clone, Copy, Debug)]
pub enum Versions<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl<'a> Versions<'a> {
    #[expect(clippy::len_without_is_empty, reason = "it is a number of tokens")]
    pub fn len(self) -> usize {
        match self {
            Versions::Narrow(all) => all.len(),
            Versions::Wide(all) => all.len(),
        }
    }

    /// Tokens that follow each other and have the same version, in order, of the tokens of a range.
    pub fn runs(self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Version)> + use<'a> {
        let mut left = range;
        std::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let (version, length) = match self {
                Versions::Narrow(all) => run(&all[left.clone()]),
                Versions::Wide(all) => run(&all[left.clone()]),
            };
            let run = left.start..left.start + length;
            left.start = run.end;
            Some((run, version))
        })
    }
}

/// The first of them, which is not below 0, and how many are like it.
fn run<T: Copy + PartialEq + Into<i64>>(all: &[T]) -> (Version, usize) {
    let first: i64 = all[0].into();
    (first as Version, all.iter().position(|v| *v != all[0]).unwrap_or(all.len()))
}

/// The columns of a few rows of a file, checked.
pub(super) struct View {
    rows: usize,
    step: Ints,
    group: Ints,
    sample: Ints,
    prompt_id: Ints,
    size: Ints,
    statuses: Vec<Status>,
    /// Of each row, its place in `statuses`.
    status: Vec<usize>,
    stop: Vec<Stop>,
    task: Option<StringViewArray>,
    prompt: Option<StringViewArray>,
    tokens: Option<ListArray>,
    mask: Option<(ListArray, bool)>,
    version: Option<ListArray>,
    floats: [Option<ListArray>; 5],
    /// As given, and as shaped.
    rewards: [Option<Float32Array>; 2],
    times: [Ints; 4],
}

/// Numbers, or 0 for each row where the file has none.
struct Ints(Option<Int64Array>);

impl Ints {
    fn at(&self, row: usize) -> i64 {
        self.0.as_ref().map_or(0, |array| array.value(row))
    }
}

impl View {
    /// Of rows from `first` on of a file that passed [`check`](super::decode::check).
    ///
    /// # Errors
    /// A value that its field cannot hold, by column and row.
    pub(super) fn new(path: &Path, first: u64, batch: &RecordBatch) -> Result<Self> {
        let from = Columns { path, first, batch };
        let (statuses, status) = from.statuses()?;
        let mask = from.list("mask", DataType::Boolean)?.map(|list| {
            let all = {
                let bits: &BooleanArray = list.values().as_boolean();
                bits.values().count_set_bits() == bits.len()
            };
            (list, all)
        });
        let floats = |name| from.list(name, DataType::Float32);
        let number = |name| -> Result<Option<Float32Array>> {
            Ok(from.column(name, &DataType::Float32)?.map(|array| array.as_primitive().clone()))
        };
        Ok(View {
            rows: batch.num_rows(),
            step: from.ints("step", 0..=i64::MAX)?,
            group: from.ints("group", 0..=i64::MAX)?,
            sample: from.ints("sample", 0..=u32::MAX.into())?,
            prompt_id: from.ints("prompt_id", 0..=i64::MAX)?,
            size: from.ints("size", 0..=u32::MAX.into())?,
            statuses,
            status,
            stop: from.stops()?,
            task: from.text("task")?,
            prompt: from.text("prompt_text")?,
            tokens: from.int_list("tokens", u32::MAX.into())?,
            mask,
            version: from.int_list("version", i64::MAX)?,
            floats: [
                floats("logp_behavior")?,
                floats("logp_current")?,
                floats("logp_reference")?,
                floats("value")?,
                floats("advantage")?,
            ],
            rewards: [number("reward")?, number("reward_shaped")?],
            times: [
                from.ints("admitted_ns", i64::MIN..=i64::MAX)?,
                from.ints("started_ns", i64::MIN..=i64::MAX)?,
                from.ints("finished_ns", i64::MIN..=i64::MAX)?,
                from.ints("trained_ns", i64::MIN..=i64::MAX)?,
            ],
        })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.rows).map(|row| self.row(row))
    }

    fn row(&self, row: usize) -> Row<'_> {
        let [logp_behavior, logp_current, logp_reference, value, advantage] =
            self.floats.each_ref().map(|list| floats(list.as_ref(), row));
        let number = |array: &Float32Array| array.is_valid(row).then(|| array.value(row));
        let [reward, reward_shaped] = self.rewards.each_ref().map(|array| array.as_ref().and_then(number));
        let [admitted_ns, started_ns, finished_ns, trained_ns] = self.times.each_ref().map(|times| times.at(row));
        Row {
            step: self.step.at(row) as Step,
            status: &self.statuses[self.status[row]],
            group: self.group.at(row) as u64,
            sample: self.sample.at(row) as u32,
            prompt_id: self.prompt_id.at(row) as u64,
            task: text(self.task.as_ref(), row),
            size: self.size.at(row) as u32,
            prompt: text(self.prompt.as_ref(), row),
            tokens: self.tokens.as_ref().map_or(0, |list| range(list, row).len()),
            mask: self.mask_of(row),
            logp_behavior,
            logp_current,
            logp_reference,
            version: self.versions(row),
            value,
            advantage,
            reward,
            reward_shaped,
            stop: self.stop[row],
            admitted_ns,
            started_ns,
            finished_ns,
            trained_ns,
        }
    }

    fn mask_of(&self, row: usize) -> Mask<'_> {
        let Some((list, all)) = &self.mask else { return Mask::None };
        let range = range(list, row);
        match (range.is_empty(), all) {
            (true, _) => Mask::None,
            (false, true) => Mask::All(range.len()),
            (false, false) => {
                let bits: &BooleanArray = list.values().as_boolean();
                Mask::Some { bits: bits.values(), from: range.start, length: range.len() }
            }
        }
    }

    fn versions(&self, row: usize) -> Versions<'_> {
        let Some(list) = &self.version else { return Versions::Narrow(&[]) };
        let range = range(list, row);
        match list.values().as_primitive_opt::<Int32Type>() {
            Some(narrow) => Versions::Narrow(&narrow.values()[range]),
            None => Versions::Wide(&list.values().as_primitive::<Int64Type>().values()[range]),
        }
    }
}

/// Where a row's values are; a list that is null is empty.
fn range(list: &ListArray, row: usize) -> Range<usize> {
    if list.is_null(row) {
        return 0..0;
    }
    list.value_offsets()[row] as usize..list.value_offsets()[row + 1] as usize
}

fn floats(list: Option<&ListArray>, row: usize) -> &[f32] {
    list.map_or(&[], |list| &list.values().as_primitive::<Float32Type>().values()[range(list, row)])
}

fn text(array: Option<&StringViewArray>, row: usize) -> &str {
    array.filter(|array| array.is_valid(row)).map_or("", |array| array.value(row))
}

/// The columns of a batch as a file has them.
struct Columns<'a> {
    path: &'a Path,
    /// Row of the file that the batch's first one is.
    first: u64,
    batch: &'a RecordBatch,
}

impl Columns<'_> {
    fn refused(&self, column: &str, row: usize, reason: impl std::fmt::Display) -> Error {
        Error::column(self.path, column, format!("row {}: {reason}", self.first + row as u64))
    }

    /// The column in this type, if the file has it.
    fn column(&self, name: &str, target: &DataType) -> Result<Option<ArrayRef>> {
        let array = self.batch.column_by_name(name).map(|array| as_type(array, target)).transpose();
        array.map_err(|reason| Error::column(self.path, name, reason))
    }

    fn ints(&self, name: &str, allowed: std::ops::RangeInclusive<i64>) -> Result<Ints> {
        let Some(array) = self.column(name, &DataType::Int64)? else { return Ok(Ints(None)) };
        let array: Int64Array = array.as_primitive().clone();
        if let Some(row) = (0..array.len()).find(|row| array.is_null(*row) || !allowed.contains(&array.value(*row))) {
            let found =
                if array.is_null(row) { "null, expected an integer".to_owned() } else { out_of_range(array.value(row)) };
            return Err(self.refused(name, row, found));
        }
        Ok(Ints(Some(array)))
    }

    fn text(&self, name: &str) -> Result<Option<StringViewArray>> {
        Ok(self.column(name, &DataType::Utf8View)?.map(|array| array.as_string_view().clone()))
    }

    fn statuses(&self) -> Result<(Vec<Status>, Vec<usize>)> {
        let texts = self.text("status")?;
        let (mut known, mut statuses, mut places): (Vec<&str>, _, _) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..self.batch.num_rows() {
            let found = text(texts.as_ref(), row);
            let place = known.iter().position(|text| *text == found).unwrap_or(known.len());
            if place == known.len() {
                let expected = "expected \"trained\", \"waiting\" or \"discarded: \" and a known reason";
                let status = parse_status(found);
                statuses.push(status.ok_or_else(|| self.refused("status", row, format!("{found:?}, {expected}")))?);
                known.push(found);
            }
            places.push(place);
        }
        Ok((statuses, places))
    }

    fn stops(&self) -> Result<Vec<Stop>> {
        let texts = self.text("stop")?;
        let stop = |row| {
            let Some(array) = texts.as_ref().filter(|array| array.is_valid(row)) else { return Ok(Stop::default()) };
            let expected = "expected eos, stop_string, length, time or refused";
            let found = array.value(row);
            parse_stop(found).ok_or_else(|| self.refused("stop", row, format!("{found:?}, {expected}")))
        };
        (0..self.batch.num_rows()).map(stop).collect()
    }

    /// Lists of the type, without nulls in them.
    fn list(&self, name: &str, element: DataType) -> Result<Option<ListArray>> {
        let nullable = match self.batch.column_by_name(name).map(|array| array.data_type()) {
            Some(DataType::List(field)) => field.is_nullable(),
            _ => true,
        };
        let target = DataType::List(Arc::new(Field::new("element", element, nullable)));
        let Some(array) = self.column(name, &target)? else { return Ok(None) };
        let list: ListArray = array.as_list().clone();
        if list.values().null_count() > 0 {
            let null = |row: &usize| range(&list, *row).any(|i| list.values().is_null(i));
            if let Some(row) = (0..list.len()).find(null) {
                return Err(self.refused(name, row, "the list holds a null"));
            }
        }
        Ok(Some(list))
    }

    /// Lists of numbers from 0 to `most`, in the width of the file.
    fn int_list(&self, name: &str, most: i64) -> Result<Option<ListArray>> {
        let found = self.batch.column_by_name(name).map(|array| array.data_type());
        let narrow = matches!(found, Some(DataType::List(field)) if *field.data_type() == DataType::Int32);
        let list = self.list(name, if narrow { DataType::Int32 } else { DataType::Int64 })?;
        if let Some(list) = &list {
            match narrow {
                true => self.within::<Int32Type>(name, list, most)?,
                false => self.within::<Int64Type>(name, list, most)?,
            }
        }
        Ok(list)
    }

    fn within<T: ArrowPrimitiveType>(&self, name: &str, list: &ListArray, most: i64) -> Result<()>
    where
        T::Native: Into<i64>,
    {
        let all: &PrimitiveArray<T> = list.values().as_primitive();
        let wrong = |v: &T::Native| !(0..=most).contains(&(*v).into());
        // Of all that are there, at one go; then which it is.
        if !all.values().iter().fold(false, |any, v| any | wrong(v)) {
            return Ok(());
        }
        for row in 0..list.len() {
            if let Some(value) = all.values()[range(list, row)].iter().find(|v| wrong(v)) {
                return Err(self.refused(name, row, out_of_range((*value).into())));
            }
        }
        Ok(())
    }
}

fn out_of_range(value: i64) -> String {
    format!("{value} is out of range")
}
