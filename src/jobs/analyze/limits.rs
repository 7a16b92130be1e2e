//! What a step's specification says of its tokens' lag, and so which of them were trained.

use crate::kernel::safeguard::Safeguard;
use crate::spec::ScheduleSpec;
use crate::store::Footer;
use crate::store::view::{Row, Versions};
use std::ops::Range;

/// From the text in a footer; of one that says nothing, or that is no specification, nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LagLimits {
    /// What the schedule bounds lag by, steps.
    pub(crate) bound: Option<u64>,
    /// How many steps the run was to take.
    pub(crate) steps: Option<u64>,
    /// `max_lag` alone is read: what a later version adds to the rest is no reason to know nothing.
    safeguard: Safeguard,
}

impl LagLimits {
    pub(crate) fn of(footer: &Footer) -> Self {
        Self::from_text(&footer.info.spec)
    }

    /// Of a specification.
    pub(crate) fn from_text(text: &str) -> Self {
        let Ok(mut spec) = text.parse::<toml::Table>() else { return Self::default() };
        let schedule = spec.remove("schedule").and_then(|schedule| schedule.try_into::<ScheduleSpec>().ok());
        let steps = spec.get("steps").and_then(toml::Value::as_integer);
        let max_lag = (|| {
            let value = spec.get("learn")?.get("safeguard")?.get("max_lag")?;
            value.as_float().or_else(|| value.as_integer().map(|lag| lag as f64))
        })();
        let usual = Safeguard::default();
        LagLimits {
            bound: schedule.map(|schedule| schedule.schedule().bound()),
            steps: steps.and_then(|steps| steps.try_into().ok()),
            safeguard: Safeguard { max_lag: max_lag.unwrap_or(usual.max_lag), ..usual },
        }
    }

    /// Tokens of a trained row that follow each other, have one version and were trained: where they are, and their lag in steps, which
    /// is below 0 in a file that is wrong. Where there is no mask (an older file) all were chosen.
    pub(crate) fn lags<'a>(self, row: &Row<'a>) -> impl Iterator<Item = (Range<usize>, i64)> + use<'a> {
        let Row { mask, version, step, .. } = *row;
        let runs = mask.ranges(version.len()).flat_map(move |range| self.runs(version, step, range));
        runs.filter_map(|(range, lag, kept)| kept.then_some((range, lag)))
    }

    /// Which of the first `length` tokens of a trained row were trained. A token without a recorded version has no lag, and is.
    pub(crate) fn trained<'a>(self, row: &Row<'a>, length: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let Row { mask, version, step, .. } = *row;
        let leaves_out = self.safeguard.leaves_out();
        let chosen = (!leaves_out).then(|| mask.ranges(length));
        let kept = leaves_out.then(|| {
            mask.ranges(length).flat_map(move |range| {
                let known = version.len();
                let unknown = range.start.max(known)..range.end;
                let runs = self.runs(version, step, range.start.min(known)..range.end.min(known));
                let young = runs.filter_map(|(range, _, kept)| kept.then_some(range));
                young.chain((!unknown.is_empty()).then_some(unknown))
            })
        });
        chosen.into_iter().flatten().chain(kept.into_iter().flatten())
    }

    /// How many tokens of a trained row were chosen, and left out for their lag.
    pub(crate) fn left_out(self, row: &Row<'_>) -> u64 {
        if !self.safeguard.leaves_out() {
            return 0;
        }
        let tokens = |ranges: &mut dyn Iterator<Item = Range<usize>>| ranges.map(|range| range.len() as u64).sum::<u64>();
        tokens(&mut row.mask.ranges(row.tokens)) - tokens(&mut self.trained(row, row.tokens))
    }

    /// Whether a token of this lag is trained.
    pub(crate) fn keeps(&self, lag: i64) -> bool {
        self.safeguard.keeps(lag.max(0) as u64)
    }

    /// Tokens of one version of a range, their lag, and whether they are kept.
    fn runs(
        self,
        version: Versions<'_>,
        step: u64,
        range: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, i64, bool)> + use<'_> {
        version.runs(range).map(move |(range, version)| {
            let lag = step as i64 - 1 - version as i64;
            (range, lag, self.keeps(lag))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::view::Mask;
    use tidegate_operators::record::Status;

    /// Step 6 trains version 5: lags 3, 2, 1, 0, and a token whose version nobody wrote down.
    const VERSIONS: [i32; 4] = [2, 3, 4, 5];

    fn row(mask: Mask<'static>) -> Row<'static> {
        Row { step: 6, status: &Status::Trained, tokens: 5, mask, version: Versions::Narrow(&VERSIONS), ..Row::blank() }
    }

    fn limits(max_lag: &str) -> LagLimits {
        let text = "steps = 9\n[schedule]\nmax_lag = 4\n[learn.safeguard]\nnew = 1\nmax_lag = ";
        LagLimits::from_text(&format!("{text}{max_lag}\n"))
    }

    /// As `engine::kept` does it. Catches a lag that counts from the step, a limit that is an integer, and a token that nobody knows
    /// the version of and that is lost.
    #[test]
    fn what_was_left_out_was_not_trained() {
        let row = row(Mask::All(5));
        let places = |max_lag: &str| limits(max_lag).trained(&row, 5).flatten().collect::<Vec<_>>();
        assert_eq!((places("1"), places("2.0"), places("inf")), (vec![2, 3, 4], vec![1, 2, 3, 4], vec![0, 1, 2, 3, 4]));
        assert_eq!(["0", "1", "9", "inf"].map(|max_lag| limits(max_lag).left_out(&row)), [3, 2, 0, 0]);
        assert_eq!(limits("1").lags(&row).collect::<Vec<_>>(), [(2..3, 1), (3..4, 0)]);
        assert_eq!(limits("inf").lags(&row).count(), 4);
        assert_eq!(limits("1").trained(&row, 3).flatten().collect::<Vec<_>>(), [2], "a list may be shorter");
    }

    #[test]
    fn what_a_text_does_not_say_is_not_known() {
        let found = limits("8");
        assert_eq!((found.bound, found.steps, found.safeguard.max_lag), (Some(4), Some(9), 8.0));
        for text in ["", "[schedule]\nkind = 7\n", "steps = -1", "]["] {
            let found = LagLimits::from_text(text);
            assert_eq!((found.bound, found.steps, found.safeguard.leaves_out()), (None, None, false), "{text}");
        }
    }
}
