//! How each size of the generated tasks went, and how often it came: what a curriculum goes by.

use crate::jobs::analyze::report::Size;
use crate::kernel::mean::Mean;
use crate::store::view::Row;

/// Sizes that are told apart; those of a log from elsewhere beyond them are not counted.
const MAX_SIZES: usize = 256;

/// By task and size, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(super) struct Sizes(Vec<(String, u32, SizeSums)>);

#[derive(Debug, Default)]
struct SizeSums {
    groups: u64,
    success: Mean,
}

impl Sizes {
    /// A row that has a reward. Rows of files have no size.
    pub(super) fn add(&mut self, row: &Row<'_>, solved: u64) {
        if row.size > 0
            && let Some(sums) = self.of(row.task, row.size)
        {
            sums.groups += u64::from(row.sample == 0);
            sums.success.add(solved as f64);
        }
    }

    fn of(&mut self, task: &str, size: u32) -> Option<&mut SizeSums> {
        // Rows of a group stand side by side.
        let known = self.0.iter().rposition(|(name, of, _)| (name.as_str(), *of) == (task, size));
        let place = known.or_else(|| {
            let room = self.0.len() < MAX_SIZES;
            room.then(|| self.0.push((task.to_owned(), size, SizeSums::default())));
            room.then(|| self.0.len() - 1)
        })?;
        Some(&mut self.0[place].2)
    }

    /// Adds what comes after.
    pub(super) fn merge(&mut self, other: Sizes) {
        for (task, size, sums) in other.0 {
            if let Some(of) = self.of(&task, size) {
                of.groups += sums.groups;
                of.success.merge(sums.success);
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<Size> {
        self.0.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let size = |(task, size, sums): (String, u32, SizeSums)| Size {
            task,
            size,
            groups: sums.groups,
            success: sums.success.value(),
        };
        self.0.into_iter().map(size).collect()
    }
}
