//! Which prompt comes next: drawn by how well the policy answers prompts like it.
//!
//! Groups that are always or never solved teach nothing: of a prompt with success rate p, a group's rewards have the variance
//! p (1 - p). So bins of prompts are drawn most whose rate is near a target, and how fast the weight falls off is one number:
//!
//! ```text
//! weight(p) = exp(-((p - target) / width)^2 / 2)
//! ```
//!
//! It is p (1 - p) made movable: it has its largest value at the target, is never 0, so that there is always something to draw and
//! nothing is lost for good, and an infinite width draws without regard to success. A rate over n rollouts errs by about
//! sqrt(p (1 - p) / n): a width far below that follows noise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How prompts are drawn (`[curriculum]`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Curriculum {
    /// `off`: the source's prompts as they come. `success`: by their success rate.
    pub kind: Draws,
    /// The success rate that is drawn most.
    pub target: f64,
    /// How far from it the weight has fallen to 0.61 of the largest; infinite: it falls nowhere.
    pub width: f64,
    /// How many groups of a bin count for its rate, the last ones.
    pub window: usize,
    /// Share of the groups that get the source's own prompt, without regard to success.
    pub explore: f64,
}

/// What prompts are drawn by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Draws {
    #[default]
    Off,
    Success,
}

impl Default for Curriculum {
    fn default() -> Self {
        Curriculum { kind: Draws::Off, target: 0.5, width: 0.25, window: 8, explore: 0.1 }
    }
}

impl Curriculum {
    /// How many groups of a bin count; 0 where no rates are kept.
    pub fn kept(&self) -> usize {
        match self.kind {
            Draws::Off => 0,
            Draws::Success => self.window,
        }
    }

    /// Weight of a bin with this success rate, in 0..=1.
    ///
    /// ```
    /// use tidegate::kernel::curriculum::Curriculum;
    ///
    /// let curriculum = Curriculum { target: 0.5, width: 0.25, ..Curriculum::default() };
    /// assert_eq!(curriculum.weight(0.5), 1.0);
    /// assert!((curriculum.weight(0.75) - (-0.5_f64).exp()).abs() < 1e-15);
    /// ```
    pub fn weight(&self, rate: f64) -> f64 {
        let off = (rate - self.target) / self.width;
        (-0.5 * off * off).exp()
    }

    /// The bin that a group gets whose own prompt is of the bin `natural`: that one where it was never tried, or where `coin` is below
    /// `explore`; else one of those that were, with a probability in proportion to its weight. `coin` and `pick` are uniform in
    /// 0.0..1.0.
    ///
    /// Where all bins were tried, each comes with the probability `explore * share + (1 - explore) * share * weight / sum`, share
    /// being that of the source.
    pub fn choose(&self, natural: u64, tried: &Tried, coin: f64, pick: f64) -> u64 {
        match tried.rate(natural) {
            Some(_) if coin >= self.explore => tried.pick(pick).unwrap_or(natural),
            _ => natural,
        }
    }
}

/// A weight of 1, in whole numbers: sums of them do not depend on the order in which they came about.
const UNIT: f64 = (1_u64 << 32) as f64;

/// Bins of one block are summed up: a pick goes through the blocks, then through one.
const BLOCK: u64 = 1024;

/// The bins that were tried: rate and weight of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    blocks: BTreeMap<u64, Block>,
    total: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Block {
    bins: BTreeMap<u64, (f64, u64)>,
    total: u64,
}

impl Tried {
    /// A bin has this rate now, and this weight, from 0 up.
    pub fn set(&mut self, bin: u64, rate: f64, weight: f64) {
        // Never 0: what was tried can be drawn.
        let weight = ((weight * UNIT).round() as u64).max(1);
        let block = self.blocks.entry(bin / BLOCK).or_default();
        let before = block.bins.insert(bin, (rate, weight)).map_or(0, |(_, before)| before);
        block.total = block.total - before + weight;
        self.total = self.total - before + weight;
    }

    /// The rate of a bin; None where it was never tried.
    pub fn rate(&self, bin: u64) -> Option<f64> {
        self.blocks.get(&(bin / BLOCK))?.bins.get(&bin).map(|(rate, _)| *rate)
    }

    /// The bin at `at`, in 0.0..1.0, of all their weights side by side in the order of bins; None without any.
    pub fn pick(&self, at: f64) -> Option<u64> {
        let mut left = ((at * self.total as f64) as u64).min(self.total.checked_sub(1)?);
        for block in self.blocks.values() {
            if left >= block.total {
                left -= block.total;
                continue;
            }
            for (bin, (_, weight)) in &block.bins {
                if left < *weight {
                    return Some(*bin);
                }
                left -= weight;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(weights: &[(u64, f64)]) -> Tried {
        let mut tried = Tried::default();
        weights.iter().for_each(|(bin, weight)| tried.set(*bin, 0.5, *weight));
        tried
    }

    /// exp(-2), exp(-1/2), exp(-8/9): Python's math.exp.
    #[test]
    fn weights_by_hand() {
        let curriculum = Curriculum::default();
        let expected = [
            (0.0, 0.135_335_283_236_612_7),
            (0.25, 0.606_530_659_712_633_4),
            (0.5, 1.0),
            (0.75, 0.606_530_659_712_633_4),
            (1.0, 0.135_335_283_236_612_7),
        ];
        for (rate, weight) in expected {
            assert!((curriculum.weight(rate) - weight).abs() < 1e-15, "{rate}");
        }
        let harder = Curriculum { target: 0.2, width: 0.6, ..curriculum };
        assert!((harder.weight(1.0) - 0.411_112_290_507_187_4).abs() < 1e-15);
        assert_eq!(Curriculum { width: f64::INFINITY, ..curriculum }.weight(0.0), 1.0, "no regard to success");
    }

    /// Weights 1, 2 and 5 side by side, whatever order they came in, one of them twice, and over a block's end. Catches a bin that
    /// keeps its old weight, ends that are off by one, and a pick beyond the last.
    #[test]
    fn picks_lie_side_by_side() {
        let bins = [3, 700, 5000];
        let mut all = tried(&[(5000, 0.5), (3, 0.9), (700, 0.2), (3, 0.1)]);
        let picks = [0.0, 0.124, 0.126, 0.374, 0.376, 0.999_999].map(|at| all.pick(at).unwrap());
        assert_eq!(picks, [3, 3, 700, 700, 5000, 5000]);
        assert_eq!(all, tried(&[(3, 0.1), (700, 0.2), (5000, 0.5)]), "history is without effect");
        assert_eq!(all.pick(1.0), Some(5000));
        assert_eq!(tried(&[]).pick(0.5), None);
        bins.iter().for_each(|bin| all.set(*bin, 0.0, 0.0));
        assert_eq!([0.1, 0.5, 0.9].map(|at| all.pick(at).unwrap()), bins, "a weight of 0 is the least there is");
    }

    /// Catches a bin that was never tried and is not taken, an `explore` that is its opposite, and one that is not the source's own.
    #[test]
    fn choices_by_hand() {
        let curriculum = Curriculum { explore: 0.25, ..Curriculum::default() };
        let all = tried(&[(1, 0.5), (2, 0.5)]);
        let choose = |natural, coin, pick| curriculum.choose(natural, &all, coin, pick);
        assert_eq!([choose(9, 0.9, 0.1), choose(9, 0.0, 0.1)], [9, 9], "never tried");
        assert_eq!([choose(2, 0.24, 0.1), choose(2, 0.25, 0.1), choose(2, 0.9, 0.7)], [2, 1, 2]);
        assert_eq!(all.rate(1), Some(0.5));
        assert_eq!(all.rate(9), None);
    }

    /// Four bins with shares 1/2, 1/4, 1/8, 1/8 and rates 0, 1/2, 3/4, 1: over an even grid of coins and picks the proportions are
    /// those of the formula.
    #[test]
    fn proportions_are_those_of_the_formula() {
        let curriculum = Curriculum { explore: 0.2, ..Curriculum::default() };
        let (shares, rates) = ([0.5, 0.25, 0.125, 0.125], [0.0, 0.5, 0.75, 1.0]);
        let mut all = Tried::default();
        let weights: Vec<f64> = shares.iter().zip(rates).map(|(share, rate)| share * curriculum.weight(rate)).collect();
        (0..4).for_each(|bin| all.set(bin as u64, rates[bin], weights[bin]));
        let mut counts = [0_u32; 4];
        let grid = 100;
        for (coin, pick, natural) in (0..grid).flat_map(|c| (0..grid).flat_map(move |p| (0..8).map(move |n| (c, p, n)))) {
            let natural = [0, 0, 0, 0, 1, 1, 2, 3][natural];
            let [coin, pick] = [coin, pick].map(|at| (f64::from(at) + 0.5) / f64::from(grid));
            counts[curriculum.choose(natural, &all, coin, pick) as usize] += 1;
        }
        let total: f64 = weights.iter().sum();
        for bin in 0..4 {
            let expected = 0.2 * shares[bin] + 0.8 * weights[bin] / total;
            let found = f64::from(counts[bin]) / f64::from(grid * grid * 8);
            assert!((found - expected).abs() < 0.011, "bin {bin}: {found}, not {expected}");
        }
    }
}
