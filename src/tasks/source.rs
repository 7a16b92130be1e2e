//! Where a run's prompts come from, and how far it has come: the same two words, epoch and place, for both kinds of source.

use super::generated::Mix;
use super::item::Item;
use super::shuffle::Permutation;
use super::spec::Order;
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
    /// All prompts from `cursor` on; [`Cursor::default`] is the start.
    pub fn from_cursor(self, cursor: Cursor) -> Prompts {
        Prompts { source: self, cursor }
    }
}

impl Prompts {
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
