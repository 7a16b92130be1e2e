//! Rollouts to Arrow columns.

use super::schema::{self, part_fields, stop_text};
use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::Field;
use std::sync::Arc;
use tidegate_operators::record::{Group, Rollout};

/// A number that its column cannot hold.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncodeError {
    #[error("column {column}: group {group}, sample {sample}: {value} does not fit into a signed {bits}-bit integer")]
    Range { column: &'static str, group: u64, sample: u32, value: u64, bits: u32 },
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
}

/// The columns of [`schema::schema`] for these rollouts, in their order.
///
/// # Errors
/// A counter above `i64::MAX`, a token id or version above `i32::MAX`.
pub(super) fn encode(rollouts: &[Rollout]) -> Result<RecordBatch, EncodeError> {
    let rows = Rows(rollouts);
    let columns = vec![
        rows.ints("step", |r| r.step)?,
        rows.ints("order", |r| r.order.into())?,
        rows.texts(|r| r.status.to_string()),
        rows.ints("group", |r| r.group.number)?,
        rows.ints("sample", |r| r.sample.into())?,
        rows.ints("prompt_id", |r| r.group.prompt.id)?,
        rows.ints("epoch", |r| r.group.prompt.epoch.into())?,
        rows.texts(|r| &r.group.prompt.task),
        rows.ints("size", |r| r.group.prompt.size.into())?,
        Arc::new(rollouts.iter().map(|r| r.group.prompt.drawn_success).collect::<Float32Array>()),
        rows.ints("due", |r| r.group.due)?,
        rows.ints("oldest", |r| r.group.oldest)?,
        rows.ints("earlier", |r| r.group.earlier)?,
        rows.ints("group_size", |r| r.group.size.into())?,
        rows.ints("generator", |r| r.group.generator as u64)?,
        rows.texts(|r| &r.group.prompt.text),
        rows.texts(|r| &r.group.prompt.answer),
        rows.texts(|r| &r.group.prompt.meta),
        rows.texts(|r| &r.text),
        rows.int_lists("prompt_tokens", |r| &r.group.prompt.tokens)?,
        rows.int_lists("tokens", |r| &r.tokens)?,
        rows.bool_lists(|r| &r.mask)?,
        rows.float_lists(|r| &r.logp_behavior)?,
        rows.float_lists(|r| &r.logp_current)?,
        rows.float_lists(|r| &r.logp_reference)?,
        rows.int_lists("version", |r| &r.version)?,
        rows.float_lists(|r| &r.value)?,
        rows.float_lists(|r| &r.advantage)?,
        Arc::new(rollouts.iter().map(|r| r.reward).collect::<Float32Array>()),
        rows.parts()?,
        Arc::new(rollouts.iter().map(|r| r.reward_error.as_deref()).collect::<StringArray>()),
        Arc::new(rollouts.iter().map(|r| r.reward_shaped).collect::<Float32Array>()),
        rows.texts(|r| stop_text(r.stop)),
        rows.times(|r| r.group.admitted_ns),
        rows.times(|r| r.started_ns),
        rows.times(|r| r.finished_ns),
        rows.times(|r| r.trained_ns),
        rows.ints("worker", |r| r.worker as u64)?,
    ];
    Ok(RecordBatch::try_new(schema::schema(), columns)?)
}

struct Rows<'a>(&'a [Rollout]);

impl<'a> Rows<'a> {
    fn range(row: &Rollout, column: &'static str, value: u64, bits: u32) -> EncodeError {
        let Group { number: group, .. } = *row.group;
        EncodeError::Range { column, group, sample: row.sample, value, bits }
    }

    fn ints(&self, column: &'static str, get: impl Fn(&Rollout) -> u64) -> Result<ArrayRef, EncodeError> {
        let fit = |row| {
            let value = get(row);
            i64::try_from(value).map_err(|_| Self::range(row, column, value, 64))
        };
        Ok(Arc::new(Int64Array::from(self.0.iter().map(fit).collect::<Result<Vec<_>, _>>()?)))
    }

    fn times(&self, get: impl Fn(&Rollout) -> i64) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(self.0.iter().map(get)))
    }

    fn texts<T: AsRef<str>>(&self, get: impl Fn(&'a Rollout) -> T) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(self.0.iter().map(get)))
    }

    fn int_lists<T>(&self, column: &'static str, get: impl Fn(&'a Rollout) -> &'a [T]) -> Result<ArrayRef, EncodeError>
    where
        T: Copy + Ord + Into<u64> + 'a,
    {
        let mut values = Vec::with_capacity(self.total(|row| get(row).len()));
        for row in self.0 {
            let list = get(row);
            // Of the whole list at one go: the greatest is the first that would not fit.
            if let Some(most) = list.iter().max().map(|most| (*most).into()).filter(|most| i32::try_from(*most).is_err()) {
                return Err(Self::range(row, column, most, 32));
            }
            values.extend(list.iter().map(|value| (*value).into() as i32));
        }
        lists(Arc::new(Int32Array::from(values)), self.0.iter().map(|row| get(row).len()))
    }

    fn float_lists(&self, get: impl Fn(&'a Rollout) -> &'a Vec<f32>) -> Result<ArrayRef, EncodeError> {
        let mut values = Vec::with_capacity(self.total(|row| get(row).len()));
        self.0.iter().for_each(|row| values.extend_from_slice(get(row)));
        lists(Arc::new(Float32Array::from(values)), self.0.iter().map(|row| get(row).len()))
    }

    fn bool_lists(&self, get: impl Fn(&'a Rollout) -> &'a Vec<bool>) -> Result<ArrayRef, EncodeError> {
        let mut values = Vec::with_capacity(self.total(|row| get(row).len()));
        self.0.iter().for_each(|row| values.extend_from_slice(get(row)));
        lists(Arc::new(BooleanArray::from(values)), self.0.iter().map(|row| get(row).len()))
    }

    fn total(&self, length: impl Fn(&'a Rollout) -> usize) -> usize {
        self.0.iter().map(length).sum()
    }

    fn parts(&self) -> Result<ArrayRef, EncodeError> {
        let all = || self.0.iter().flat_map(|row| &row.reward_parts);
        let names = StringArray::from_iter_values(all().map(|(name, _)| name));
        let values = Float32Array::from_iter_values(all().map(|(_, value)| *value));
        let structs = StructArray::try_new(part_fields(), vec![Arc::new(names), Arc::new(values)], None)?;
        lists(Arc::new(structs), self.0.iter().map(|row| row.reward_parts.len()))
    }
}

fn lists(values: ArrayRef, lengths: impl IntoIterator<Item = usize>) -> Result<ArrayRef, EncodeError> {
    let element = Arc::new(Field::new("element", values.data_type().clone(), false));
    Ok(Arc::new(ListArray::try_new(element, OffsetBuffer::from_lengths(lengths), values, None)?))
}
