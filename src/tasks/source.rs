//! Where a run's prompts come from: the n-th prompt is a function of n alone, for both kinds of source.

use super::generated::Mix;
use super::item::Item;
use super::prompts::Items;
use super::shuffle::shuffled;
use super::spec::Order;
use super::table::Unread;
use crate::error::{Error, Result};

/// A source of training prompts.
pub enum Source {
    /// Generated tasks, without end.
    Generated { mix: Mix, seed: u64 },
    /// The rows of a file. A shuffled order is another one each epoch and holds neither texts nor a list of indices.
    Rows { items: Box<Items>, seed: u64 },
}

/// What the bin of a logged prompt is.
#[derive(Clone, Debug)]
pub enum Bins {
    Generated(Mix),
    Rows,
}

impl Bins {
    /// By the prompt's task, size and id; None where the source has no such bin.
    pub fn of(&self, task: &str, size: u32, id: u64) -> Option<u64> {
        match self {
            Bins::Generated(mix) => mix.bin(task, size),
            Bins::Rows => Some(id),
        }
    }
}

/// The prompts of a source from a place on. Each comes with its epoch.
pub struct Prompts {
    source: Source,
    number: u64,
}

impl Source {
    /// The rows of a data file, in the order and for the epochs that its spec asks for.
    ///
    /// # Errors
    /// A file without rows.
    pub fn rows(items: Items, seed: u64) -> Result<Source> {
        if items.rows() == 0 {
            return Err(Error::file(&items.spec().file, "it has no rows; at least one prompt is needed"));
        }
        Ok(Source::Rows { items: Box::new(items), seed })
    }

    /// The prompt `number`, from 0, with its epoch; None where the last epoch has ended. A row that is not as it must be is an
    /// item that says why ([`Item::refused`]): it has its number like any other, so that none shifts.
    ///
    /// # Errors
    /// A file that cannot be read any more.
    pub fn at(&mut self, number: u64) -> Result<Option<(u32, Item)>> {
        let (items, seed) = match self {
            Source::Generated { mix, seed } => return Ok(Some((0, mix.training(*seed, number)))),
            Source::Rows { items, seed } => (items, *seed),
        };
        match place(items, seed, number) {
            Some((epoch, row)) => read(items, row).map(|item| Some((epoch, item))),
            None => Ok(None),
        }
    }

    /// The bin of the prompt `number`, without reading it; None where the last epoch has ended.
    pub fn bin(&self, number: u64) -> Option<u64> {
        match self {
            Source::Generated { mix, seed } => Some(mix.training(*seed, number).bin),
            Source::Rows { items, seed } => place(items, *seed, number).map(|(_, row)| row),
        }
    }

    /// A prompt of a bin for group `number`: the row, or one of the task and size, that of [`at`](Source::at) where it is of the bin.
    /// None where the last epoch has ended, or where there is no such bin.
    ///
    /// # Errors
    /// A file that cannot be read any more.
    pub fn of_bin(&mut self, number: u64, bin: u64) -> Result<Option<(u32, Item)>> {
        let (items, seed) = match self {
            Source::Generated { mix, seed } => return Ok(mix.training_of(*seed, number, bin).map(|item| (0, item))),
            Source::Rows { items, seed } => (items, *seed),
        };
        match place(items, seed, number).filter(|_| bin < items.rows()) {
            Some((epoch, _)) => read(items, bin).map(|item| Some((epoch, item))),
            None => Ok(None),
        }
    }

    /// How its bins are told from a log.
    pub fn bins(&self) -> Bins {
        match self {
            Source::Generated { mix, .. } => Bins::Generated(mix.clone()),
            Source::Rows { .. } => Bins::Rows,
        }
    }

    /// The share of a bin's prompts among all, in units of the source's own.
    pub fn share(&self, bin: u64) -> f64 {
        match self {
            Source::Generated { mix, .. } => {
                usize::try_from(bin).ok().and_then(|bin| mix.bins().get(bin)).map_or(0.0, |bin| bin.share)
            }
            Source::Rows { .. } => 1.0,
        }
    }

    /// All prompts from `number` on.
    pub fn from(self, number: u64) -> Prompts {
        Prompts { source: self, number }
    }
}

/// Epoch and row of the prompt `number`; None where the last epoch has ended.
fn place(items: &Items, seed: u64, number: u64) -> Option<(u32, u64)> {
    let (rows, spec) = (items.rows(), items.spec());
    let epoch = number.checked_div(rows).and_then(|epoch| u32::try_from(epoch).ok());
    let epoch = epoch.filter(|epoch| spec.epochs == 0 || *epoch < spec.epochs)?;
    let place = number % rows;
    let row = match spec.order {
        Order::File => place,
        Order::Shuffled => shuffled(rows, items.spread(), seed, epoch, place),
    };
    Some((epoch, row))
}

fn read(items: &mut Items, id: u64) -> Result<Item> {
    match items.item(id) {
        Ok(item) => Ok(item),
        Err(Unread::Row(why)) => Ok(Item { id, bin: id, refused: Some(why.to_string()), ..Item::default() }),
        Err(Unread::File(error)) => Err(error),
    }
}

impl Prompts {
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// As [`Source::of_bin`].
    ///
    /// # Errors
    /// As [`Source::of_bin`].
    pub fn of_bin(&mut self, number: u64, bin: u64) -> Result<Option<(u32, Item)>> {
        self.source.of_bin(number, bin)
    }

    /// As [`Source::at`]; where the iterator stands does not matter to it, nor changes.
    ///
    /// # Errors
    /// As [`Source::at`].
    pub fn at(&mut self, number: u64) -> Result<Option<(u32, Item)>> {
        self.source.at(number)
    }
}

impl Iterator for Prompts {
    type Item = Result<(u32, Item)>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.source.at(self.number).transpose();
        self.number += u64::from(next.is_some());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::generated::Kind;
    use crate::tasks::prompts::{Place, Row, Use};
    use crate::tasks::spec::{DataSpec, TaskSpec};
    use crate::tasks::table::{Spread, Table};
    use serde_json::{Map, Value};
    use std::collections::BTreeSet;

    /// All texts alike: rows are told apart by their ids alone. Row 5 has no prompt, and there is no row 1000.
    struct Alike(u64, Spread);

    impl Table for Alike {
        fn rows(&self) -> u64 {
            self.0
        }

        fn spread(&self) -> Spread {
            self.1
        }

        fn row(&mut self, index: u64) -> Result<Row, Unread> {
            if index == 1000 {
                return Err(Unread::File(Error::file("a.jsonl", "the disk is gone")));
            }
            let text = if index == 5 { Value::Null } else { "1+1=".into() };
            Ok(Row { place: Place::Line(index + 1), fields: Map::from_iter([("prompt".to_owned(), text)]), text: None })
        }
    }

    fn blocks(rows: u64, order: Order, epochs: u32, spread: Spread) -> Source {
        let spec = DataSpec { order, epochs, ..DataSpec::new("a.jsonl") };
        Source::rows(Items::new(Box::new(Alike(rows, spread)), spec, None, Use::Rollouts), 9).unwrap()
    }

    fn rows(rows: u64, order: Order, epochs: u32) -> Source {
        blocks(rows, order, epochs, Spread::Even)
    }

    fn ids(source: Source, number: u64) -> Vec<(u32, u64)> {
        source.from(number).map(|next| next.map(|(epoch, item)| (epoch, item.id)).unwrap()).collect()
    }

    #[test]
    fn each_epoch_has_every_row_once_in_its_own_order() {
        for spread in [Spread::Even, Spread::Blocks { rows: 4, kept: 2 }] {
            let found = ids(blocks(21, Order::Shuffled, 3, spread), 0);
            let epochs: Vec<&[(u32, u64)]> = found.chunks(21).collect();
            assert_eq!(epochs.len(), 3);
            for (epoch, rows) in epochs.iter().enumerate() {
                assert!(rows.iter().all(|row| row.0 == epoch as u32));
                assert_eq!(rows.iter().map(|row| row.1).collect::<BTreeSet<_>>().len(), 21);
            }
            let order = |epoch: usize| epochs[epoch].iter().map(|row| row.1).collect::<Vec<_>>();
            assert_ne!(order(0), order(1));
            assert_ne!(order(0), (0..21).collect::<Vec<_>>());
        }
    }

    #[test]
    fn file_order_is_the_files() {
        assert_eq!(ids(rows(3, Order::File, 2), 0), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_number_is_enough_to_go_on() {
        for order in [Order::Shuffled, Order::File] {
            let whole = ids(rows(7, order, 3), 0);
            for taken in 0..=whole.len() {
                assert_eq!(ids(rows(7, order, 3), taken as u64), whole[taken..]);
            }
        }
        let mix = Mix::new(&Kind::ALL.map(TaskSpec::new)).unwrap();
        let source = || Source::Generated { mix: mix.clone(), seed: 4 };
        let whole: Vec<(u32, Item)> = source().from(0).take(12).map(Result::unwrap).collect();
        assert_eq!(source().from(5).take(7).map(Result::unwrap).collect::<Vec<_>>(), whole[5..]);
        assert_eq!((whole[11].0, whole[11].1.id), (0, 11));
    }

    /// Catches a wrong row that ends the prompts, that shifts those behind it, or that does not say what is wrong.
    #[test]
    fn a_wrong_row_keeps_its_number_and_says_why() {
        let mut source = rows(8, Order::File, 1);
        let (epoch, item) = source.at(5).unwrap().unwrap();
        assert_eq!((epoch, item.id, item.text.as_str()), (0, 5, ""));
        let why = item.refused.unwrap();
        assert!(why.starts_with("a.jsonl: column prompt: line 6: found null, expected text"), "{why}");
        assert_eq!(source.at(6).unwrap().unwrap().1.refused, None);
        assert_eq!(ids(source, 0).len(), 8);
        let gone = rows(1001, Order::File, 1).at(1000).unwrap_err().to_string();
        assert_eq!(gone, "a.jsonl: the disk is gone");
    }

    /// Catches a row that is drawn in another's place and has the wrong epoch, text or number; one beyond the file or its epochs; and a
    /// bin that is not the prompt's own.
    #[test]
    fn rows_are_bins() {
        let mut source = rows(8, Order::Shuffled, 2);
        for number in 0..16 {
            let (epoch, item) = source.at(number).unwrap().unwrap();
            assert_eq!((source.bin(number), item.bin), (Some(item.id), item.id));
            let (other, row) = source.of_bin(number, 3).unwrap().unwrap();
            assert_eq!((other, row.id, row.bin, row.size), (epoch, 3, 3, 0));
        }
        assert_eq!((source.bin(16), source.of_bin(16, 3).unwrap()), (None, None));
        assert_eq!(source.of_bin(0, 8).unwrap(), None);
        assert!(source.of_bin(0, 5).unwrap().unwrap().1.refused.is_some());
        assert_eq!((source.share(5), source.bins().of("data", 0, 5)), (1.0, Some(5)));
        let mix = Mix::new(&[TaskSpec::new(Kind::Sorting)]).unwrap();
        let mut source = Source::Generated { mix, seed: 4 };
        let (epoch, item) = source.of_bin(7, 2).unwrap().unwrap();
        assert_eq!((epoch, item.id, item.size, source.bins().of(&item.task, item.size, 7)), (0, 7, 6, Some(2)));
        assert_eq!((source.share(2), source.share(5), source.of_bin(7, 5).unwrap()), (0.2, 0.0, None));
    }

    #[test]
    fn a_file_without_rows_is_refused() {
        let items = Items::new(Box::new(Alike(0, Spread::Even)), DataSpec::new("none.jsonl"), None, Use::Rollouts);
        let message = Source::rows(items, 0).err().unwrap().to_string();
        assert_eq!(message, "none.jsonl: it has no rows; at least one prompt is needed");
    }

    #[test]
    fn ends_stay_ends() {
        let mut prompts = rows(2, Order::File, 1).from(0);
        assert_eq!(prompts.by_ref().count(), 2);
        assert!(prompts.next().is_none());
        assert!(rows(2, Order::File, 1).at(u64::MAX).unwrap().is_none());
        let last = rows(2, Order::Shuffled, 0).from(0).take(9).last();
        assert_eq!(last.unwrap().unwrap().0, 4);
    }
}
