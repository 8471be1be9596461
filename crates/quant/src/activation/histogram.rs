//! A histogram of activations beside the range that their scale covers, as reports show it.

use super::CoveredRange;
use crate::distribution::Distribution;
use kvant_numeric::kernel::Range;
use serde::Serialize;

/// Bins of a histogram.
const BINS: usize = 64;

/// The distribution of activations, and what their scale covers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActivationHistogram {
    /// The number of values.
    pub values: u64,
    /// The least value.
    pub min: f32,
    /// The greatest value.
    pub max: f32,
    /// The range that the bins divide evenly: it has all values and what the scale covers.
    pub bins: Ends,
    /// The number of values in each of 64 bins.
    pub counts: Vec<u64>,
    /// The range that the scale covers; `None` without one scale that is known in advance.
    pub range: Option<Ends>,
    /// The share of values that the scale clips.
    pub clipped: Option<f64>,
}

/// A range as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ends {
    /// The lower end.
    pub low: f32,
    /// The upper end.
    pub high: f32,
}

impl From<Range> for Ends {
    fn from(range: Range) -> Ends {
        Ends { low: range.min, high: range.max }
    }
}

impl ActivationHistogram {
    /// The histogram of a distribution; `None` without values.
    pub fn new(distribution: &Distribution, covered: Option<CoveredRange>) -> Option<ActivationHistogram> {
        let seen = distribution.range()?;
        let bins = covered.map_or(seen, |covered| covered.range.join(seen));
        Some(ActivationHistogram {
            values: distribution.values(),
            min: seen.min,
            max: seen.max,
            bins: bins.into(),
            counts: distribution.counts(bins, BINS),
            range: covered.map(|covered| covered.range.into()),
            clipped: covered.map(|covered| distribution.share_outside(covered.unclipped)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::simd::Isa;

    #[test]
    fn bins_have_all_values_and_the_range() {
        let mut distribution = Distribution::default();
        distribution.update(Isa::best(), &[-1.0, 0.0, 2.0, 9.0]);
        let range = Range { min: -4.0, max: 4.0 };
        let found = ActivationHistogram::new(&distribution, Some(CoveredRange { range, unclipped: range })).unwrap();
        assert_eq!((found.bins.low, found.bins.high, found.values), (-4.0, 9.0, 4));
        assert_eq!((found.counts.len(), found.counts.iter().sum::<u64>(), found.clipped), (BINS, 4, Some(0.25)));
        let found = ActivationHistogram::new(&distribution, None).unwrap();
        assert_eq!((found.bins.low, found.bins.high, found.range, found.clipped), (-1.0, 9.0, None, None));
        assert_eq!(ActivationHistogram::new(&Distribution::default(), None), None);
    }
}
