//! Where a run's prompts come from, and how far it has come: the same two words, epoch and place, for both kinds of source.

use super::generated::Mix;
use super::item::Item;
use super::shuffle::Permutation;
use super::spec::{DataSpec, Order};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How far a source has been read. With the source and the seed it gives all that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Full passes before; 0 for generated tasks, which do not repeat.
    pub epoch: u32,
    /// Prompts taken of this pass.
    pub place: u64,
}

/// A source of training prompts.
#[derive(Clone, Debug)]
pub enum Source {
    /// Generated tasks, without end.
    Generated { mix: Mix, seed: u64 },
    /// The rows of a file. A shuffled order is another one each epoch and holds neither texts nor a list of indices.
    Rows {
        items: Arc<[Item]>,
        order: Order,
        seed: u64,
        /// Passes; 0 is without end.
        epochs: u32,
    },
}

/// The prompts of a source from a place on. Each comes with its epoch.
#[derive(Clone, Debug)]
pub struct Prompts {
    source: Source,
    cursor: Cursor,
}

impl Source {
    /// The rows of a data file, in the order and for the epochs that the spec asks for.
    ///
    /// # Errors
    /// A file without rows.
    pub fn rows(items: Vec<Item>, spec: &DataSpec, seed: u64) -> Result<Source> {
        if items.is_empty() {
            return Err(Error::file(&spec.file, "it has no rows; at least one prompt is needed"));
        }
        Ok(Source::Rows { items: items.into(), order: spec.order, seed, epochs: spec.epochs })
    }

    /// All prompts from `cursor` on; [`Cursor::default`] is the start.
    pub fn from_cursor(self, cursor: Cursor) -> Prompts {
        Prompts { source: self, cursor }
    }
}

impl Prompts {
    /// The `number`-th prompt of the source, from 0, and its epoch; None when there are no more.
    pub fn at(&mut self, number: u64) -> Option<(u32, Item)> {
        self.cursor = match &self.source {
            Source::Generated { .. } => Cursor { epoch: 0, place: number },
            Source::Rows { items, .. } => {
                let len = (items.len() as u64).max(1);
                Cursor { epoch: u32::try_from(number / len).unwrap_or(u32::MAX), place: number % len }
            }
        };
        self.next()
    }

    /// Where the next prompt stands: kept with a checkpoint, it makes [`Source::from_cursor`] go on from there.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }
}

impl Iterator for Prompts {
    type Item = (u32, Item);

    fn next(&mut self) -> Option<(u32, Item)> {
        let cursor = &mut self.cursor;
        let item = match &self.source {
            Source::Generated { mix, seed } => mix.training(*seed, cursor.place),
            Source::Rows { items, order, seed, epochs } => {
                let len = items.len() as u64;
                if len > 0 && cursor.place >= len {
                    *cursor = Cursor { epoch: cursor.epoch + 1, place: 0 };
                }
                if len == 0 || (*epochs > 0 && cursor.epoch >= *epochs) {
                    return None;
                }
                let row = match order {
                    Order::File => cursor.place,
                    Order::Shuffled => Permutation::new(len, *seed, cursor.epoch).at(cursor.place),
                };
                items[row as usize].clone()
            }
        };
        cursor.place += 1;
        Some((cursor.epoch, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::generated::Kind;
    use crate::tasks::spec::TaskSpec;
    use std::collections::BTreeSet;

    fn rows(count: u64, order: Order, epochs: u32) -> Source {
        // All texts alike: rows are told apart by their ids alone.
        let items = (0..count).map(|id| Item { id, text: "1+1=".into(), ..Item::default() }).collect();
        Source::Rows { items, order, seed: 9, epochs }
    }

    fn ids(source: Source, cursor: Cursor) -> Vec<(u32, u64)> {
        source.from_cursor(cursor).map(|(epoch, item)| (epoch, item.id)).collect()
    }

    #[test]
    fn each_epoch_has_every_row_once_in_its_own_order() {
        let found = ids(rows(20, Order::Shuffled, 3), Cursor::default());
        let epochs: Vec<&[(u32, u64)]> = found.chunks(20).collect();
        assert_eq!(epochs.len(), 3);
        for (epoch, rows) in epochs.iter().enumerate() {
            assert!(rows.iter().all(|row| row.0 == epoch as u32));
            assert_eq!(rows.iter().map(|row| row.1).collect::<BTreeSet<_>>().len(), 20);
        }
        let order = |epoch: usize| epochs[epoch].iter().map(|row| row.1).collect::<Vec<_>>();
        assert_ne!(order(0), order(1));
        assert_ne!(order(0), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn file_order_is_the_files() {
        assert_eq!(ids(rows(3, Order::File, 2), Cursor::default()), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_cursor_goes_on_where_it_was_taken() {
        for order in [Order::Shuffled, Order::File] {
            let whole = ids(rows(7, order, 3), Cursor::default());
            let mut prompts = rows(7, order, 3).from_cursor(Cursor::default());
            for taken in 0..=whole.len() {
                assert_eq!(ids(rows(7, order, 3), prompts.cursor()), whole[taken..]);
                prompts.next();
            }
        }
        let mix = Mix::new(&Kind::ALL.map(TaskSpec::new)).unwrap();
        let source = Source::Generated { mix, seed: 4 };
        let whole: Vec<(u32, Item)> = source.clone().from_cursor(Cursor::default()).take(12).collect();
        let mut prompts = source.clone().from_cursor(Cursor::default());
        prompts.nth(4);
        assert_eq!(source.from_cursor(prompts.cursor()).take(7).collect::<Vec<_>>(), whole[5..]);
        assert_eq!(whole[11].0, 0);
        assert_eq!(whole[11].1.id, 11);
    }

    #[test]
    fn a_file_without_rows_is_refused() {
        let spec = DataSpec { order: Order::File, epochs: 1, ..DataSpec::new("none.jsonl") };
        let message = Source::rows(Vec::new(), &spec, 0).map(|_| ()).unwrap_err().to_string();
        assert_eq!(message, "none.jsonl: it has no rows; at least one prompt is needed");
        let source = Source::rows(vec![Item::default(); 2], &spec, 0).unwrap();
        assert_eq!(ids(source, Cursor::default()).len(), 2);
    }

    #[test]
    fn ends_stay_ends() {
        let mut prompts = rows(2, Order::File, 1).from_cursor(Cursor::default());
        assert_eq!(prompts.by_ref().count(), 2);
        assert_eq!(prompts.next(), None);
        assert_eq!(ids(rows(0, Order::Shuffled, 0), Cursor::default()), []);
        assert_eq!(
            rows(2, Order::Shuffled, 0).from_cursor(Cursor::default()).take(9).last().map(|(epoch, _)| epoch),
            Some(4)
        );
    }
}
