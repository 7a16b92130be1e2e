//! Importance ratios as a histogram of a fixed size: fine where ratios are near 1, coarse where they are far from it.

/// The smallest difference of log-probabilities that is told from 0, and the first that is told from no larger one: powers of two.
const LEAST: i32 = -14;
const MOST: i32 = 5;
/// Bins for each power of two.
const PARTS: i32 = 4;
const SIDE: usize = ((MOST - LEAST) * PARTS) as usize + 1;

/// Counts of `logp_current - logp_behavior`, nats, by size on either side of 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ratios {
    /// From the most negative on: `SIDE` bins, one about 0, `SIDE` bins.
    bins: Box<[u64; 2 * SIDE + 1]>,
    count: u64,
}

impl Default for Ratios {
    fn default() -> Self {
        Ratios { bins: Box::new([0; 2 * SIDE + 1]), count: 0 }
    }
}

impl Ratios {
    /// Adds a token; a NaN is not counted.
    pub(super) fn add(&mut self, difference: f32) {
        if difference.is_nan() {
            return;
        }
        let size = size_bin(difference.abs());
        let bin = if difference < 0.0 { SIDE - size } else { SIDE + size };
        self.bins[bin] += 1;
        self.count += 1;
    }

    pub(super) fn merge(&mut self, other: &Ratios) {
        self.bins.iter_mut().zip(other.bins.iter()).for_each(|(sum, n)| *sum += n);
        self.count += other.count;
    }

    /// The ratio below or at which this share of the tokens has theirs, to within an eighth of its logarithm; None where there are none.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = ((share * self.count as f64).ceil() as u64).max(1);
        let mut before = 0;
        let bin = self.bins.iter().position(|n| {
            before += n;
            before >= wanted
        })?;
        let difference = if bin < SIDE { -middle(SIDE - bin) } else { middle(bin - SIDE) };
        Some(difference.exp())
    }
}

/// 0 about 0, then four to each power of two, the last for all that is larger.
fn size_bin(size: f32) -> usize {
    let bits = size.to_bits();
    let (power, part) = ((bits >> 23) as i32 - 127, (bits >> 21 & 3) as i32);
    // What is below the least power, 0 among it, is about 0.
    usize::try_from((power - LEAST) * PARTS + part + 1).unwrap_or(0).min(SIDE)
}

fn middle(bin: usize) -> f64 {
    if bin == 0 {
        return 0.0;
    }
    let place = bin as i32 - 1;
    let (power, part) = (LEAST + place / PARTS, place % PARTS);
    f64::from(power).exp2() * (1.0 + (f64::from(part) + 0.5) / f64::from(PARTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(differences: &[f32]) -> Ratios {
        let mut ratios = Ratios::default();
        differences.iter().for_each(|d| ratios.add(*d));
        ratios
    }

    /// Catches a bin that takes its neighbour's, a sign that is lost, and a NaN that counts.
    #[test]
    fn a_quantile_is_within_an_eighth_of_the_difference() {
        for d in [1e-4, 0.003, 0.01, 0.4999, 0.5, 0.74, 1.0, 3.9, 20.0f32] {
            for sign in [1.0, -1.0] {
                let found = of(&[sign * d, f32::NAN]).quantile(0.5).unwrap().ln();
                assert!((found / f64::from(sign * d) - 1.0).abs() <= 0.125 + 1e-6, "{d}: {found}");
            }
        }
        assert_eq!((of(&[0.0]).quantile(0.5), of(&[f32::NAN]).quantile(0.5)), (Some(1.0), None));
        assert_eq!(of(&[f32::INFINITY]).quantile(0.5), of(&[1e9]).quantile(0.5), "all that is very large is one");
    }

    #[test]
    fn quantiles_are_in_order_and_merge() {
        let mut all = of(&[-0.5, -0.1, 0.0, 0.0, 0.0]);
        all.merge(&of(&[0.0, 0.1, 0.2, 0.3, 2.0]));
        let found: Vec<f64> = [0.0, 0.1, 0.2, 0.5, 0.9, 1.0].map(|share| all.quantile(share).unwrap()).into();
        assert!(found.is_sorted() && found[0] == found[1] && found[3] == 1.0, "{found:?}");
        assert!((found[1].ln() + 0.5).abs() < 0.07 && (found[5].ln() - 2.0).abs() < 0.3, "{found:?}");
        assert_eq!(all.count, 10);
    }
}
