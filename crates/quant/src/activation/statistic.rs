//! Statistics of the activations at one point: enough for the range of an observer, in bounded memory for any amount
//! of data. Not the ranges of weights, whose values are all available: see [`crate::observer`].

use super::grid::ActivationGrid;
use super::spread::Spread;
use super::{ActivationError, StaticParameters};
use crate::observer::{Averaging, Kept, MovingRange, Needs, ObservedValues, ObserverRef};
use crate::scheme::{ActivationScheme, TensorScheme, Timing};
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::{Range, group_ranges};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use serde::{Deserialize, Serialize};

/// The statistic of one place, updated batch by batch. Statistics of parts of the data merge to that of the whole.
///
/// Values that are NaN or infinite are left out and counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationStatistic {
    observer: ObserverRef,
    /// Whether every feature has its own ranges.
    by_feature: bool,
    tokens: u64,
    not_finite: u64,
    /// The range of all batches: one, or one per feature; empty before the first finite value.
    ranges: Vec<Option<Ends>>,
    /// Data that the observer keeps in addition.
    kept: Kept,
    /// The averages of the ranges of batches, where the observer asks for them.
    averages: Option<Averages>,
}

/// A [`Range`] as it is stored: in `f64`, so that text holds it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Ends(f64, f64);

/// Averages: one, or one per feature; empty before the first finite value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Averages {
    averaging: Averaging,
    ranges: Vec<Option<MovingRange>>,
}

impl Averages {
    /// Takes in the ranges of a batch.
    fn update(&mut self, ranges: &[Range]) {
        self.ranges.resize(ranges.len(), None);
        for (average, range) in self.ranges.iter_mut().zip(ranges).filter(|(_, range)| range.min <= range.max) {
            match average {
                Some(average) => average.update(self.averaging, *range),
                None => *average = Some(MovingRange::new(*range)),
            }
        }
    }

    /// Adds the averages of the batches that come after.
    fn merge(&mut self, later: &Averages) {
        self.ranges.resize(self.ranges.len().max(later.ranges.len()), None);
        for (own, later) in self.ranges.iter_mut().zip(&later.ranges) {
            match (own.as_mut(), later) {
                (Some(own), Some(later)) => own.merge(self.averaging, later),
                (None, later) => *own = *later,
                (Some(_), None) => {}
            }
        }
    }
}

impl Ends {
    /// The range of at least one number.
    fn some(range: Range) -> Option<Ends> {
        (range.min <= range.max).then(|| Ends::from(range))
    }
}

impl From<Range> for Ends {
    fn from(range: Range) -> Ends {
        Ends(f64::from(range.min), f64::from(range.max))
    }
}

impl From<Ends> for Range {
    fn from(ends: Ends) -> Range {
        Range { min: ends.0 as f32, max: ends.1 as f32 }
    }
}

impl ActivationStatistic {
    /// An empty statistic of the kind that the scheme's parameters need.
    ///
    /// # Errors
    /// [`ActivationError::Scheme`] for schemes that store nothing, and for observers that need a histogram per feature.
    pub fn new(scheme: ActivationScheme) -> Result<ActivationStatistic, ActivationError> {
        let refuse = |reason| Err(ActivationError::Scheme { scheme: scheme.to_string(), reason });
        let by_feature = Spread::of(scheme)? == Spread::Features;
        let observer = scheme.scheme.observer();
        if scheme.timing == Timing::Dynamic {
            return refuse("it is not found in advance");
        }
        let needs = observer.needs(&ActivationGrid { scheme: scheme.scheme, arithmetic: ComputeDType::F32 });
        if by_feature && !needs.is_range_of_batches() {
            return refuse("features have no histograms of their own: use min-max, `ema` or `mean`");
        }
        let averages = needs.average.map(|averaging| Averages { averaging, ranges: Vec::new() });
        let kept = Kept::new(needs);
        Ok(ActivationStatistic { observer, by_feature, tokens: 0, not_finite: 0, ranges: Vec::new(), kept, averages })
    }

    /// The statistic of values that were seen elsewhere, of which the ranges are known: one, or one a feature. Those of features are joined
    /// where the scheme has one scale.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and observers that need more than the range.
    pub fn of_ranges(scheme: ActivationScheme, ranges: &[Range]) -> Result<ActivationStatistic, ActivationError> {
        let mut statistic = ActivationStatistic::new(scheme)?;
        let observer = scheme.scheme.observer();
        let grid = ActivationGrid { scheme: scheme.scheme, arithmetic: ComputeDType::F32 };
        let refuse = |reason| Err(ActivationError::Observer { observer, scheme: scheme.to_string(), reason });
        if observer.needs(&grid) != Needs::RANGE {
            return refuse("it needs the values, and only their range is given");
        }
        let joined = ranges.iter().copied().reduce(Range::join);
        statistic.ranges = match statistic.by_feature {
            true => ranges.iter().map(|range| Ends::some(*range)).collect(),
            false => joined.map(Ends::some).into_iter().collect(),
        };
        Ok(statistic)
    }

    /// Takes in a batch: rows of `columns` features, one a token.
    pub fn update(&mut self, isa: Isa, rows: &[f32], columns: usize) {
        if rows.is_empty() || columns == 0 {
            return;
        }
        let mut whole = [Range::EMPTY];
        group_ranges(isa, rows, rows.len(), &mut whole);
        let finite = whole[0].min.is_finite() && whole[0].max.is_finite();
        let ranges = match (finite, self.by_feature) {
            (true, false) => whole.to_vec(),
            (true, true) => feature_ranges(isa, rows, columns),
            (false, _) => self.finite_ranges(rows, columns),
        };
        self.tokens += (rows.len() / columns) as u64;
        self.kept.update(rows);
        if let Some(averages) = &mut self.averages {
            averages.update(&ranges);
        }
        join_all(&mut self.ranges, ranges.iter().map(|range| Ends::some(*range)));
    }

    /// The ranges without NaN, which is counted.
    fn finite_ranges(&mut self, rows: &[f32], columns: usize) -> Vec<Range> {
        let mut ranges = vec![Range::EMPTY; if self.by_feature { columns } else { 1 }];
        for (i, value) in rows.iter().enumerate() {
            if value.is_finite() {
                let place = i % columns % ranges.len();
                ranges[place] = ranges[place].join(Range { min: *value, max: *value });
            } else {
                self.not_finite += 1;
            }
        }
        ranges
    }

    /// Adds the statistic of the data that comes after, of the same place and scheme.
    pub fn merge(&mut self, later: &ActivationStatistic) {
        self.tokens += later.tokens;
        self.not_finite += later.not_finite;
        join_all(&mut self.ranges, later.ranges.iter().copied());
        self.kept.merge(&later.kept);
        if let (Some(own), Some(later)) = (&mut self.averages, &later.averages) {
            own.merge(later);
        }
    }

    /// Tokens that were seen.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Values that were NaN or infinite.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// The range of everything that was seen; `None` where that is nothing.
    pub fn range(&self) -> Option<Range> {
        self.ranges.iter().flatten().map(|ends| Range::from(*ends)).reduce(Range::join)
    }

    /// The ranges that the observer wants covered with `scheme`: one, or one a feature. `None` where nothing was seen.
    pub fn ranges(&self, scheme: TensorScheme, arithmetic: ComputeDType) -> Option<Vec<Range>> {
        // Unobserved features have the range of zeros, unless no feature was observed.
        self.range()?;
        let grid = ActivationGrid { scheme, arithmetic };
        let average = |feature: usize| Some(self.averages.as_ref()?.ranges.get(feature)?.as_ref()?.range());
        let range = |(feature, ends): (usize, &Option<Ends>)| {
            let Some(ends) = ends else { return ZERO };
            self.observer.range(&ObservedValues::kept((*ends).into(), average(feature), &self.kept), &grid)
        };
        Some(self.ranges.iter().enumerate().map(range).collect())
    }

    /// The parameters with which `scheme` covers those ranges. `None` where nothing was seen.
    pub fn parameters(&self, scheme: TensorScheme, arithmetic: ComputeDType) -> Option<StaticParameters> {
        self.ranges(scheme, arithmetic).map(|ranges| StaticParameters::of_ranges(scheme, &ranges, arithmetic))
    }
}

/// The range of nothing but zeros.
const ZERO: Range = Range { min: 0.0, max: 0.0 };

fn join_all(own: &mut Vec<Option<Ends>>, other: impl ExactSizeIterator<Item = Option<Ends>>) {
    own.resize(own.len().max(other.len()), None);
    for (own, other) in own.iter_mut().zip(other) {
        let both = own.iter().chain(other.iter()).map(|ends| Range::from(*ends)).reduce(Range::join);
        *own = both.map(Ends::from);
    }
}

/// The range of every feature, of finite values.
fn feature_ranges(isa: Isa, rows: &[f32], columns: usize) -> Vec<Range> {
    let (mut least, mut greatest) = (vec![f32::INFINITY; columns], vec![f32::NEG_INFINITY; columns]);
    dispatch(isa, FeatureRanges { rows, least: &mut least, greatest: &mut greatest });
    least.into_iter().zip(greatest).map(|(min, max)| Range { min, max }).collect()
}

struct FeatureRanges<'a> {
    rows: &'a [f32],
    least: &'a mut [f32],
    greatest: &'a mut [f32],
}

impl Loop for FeatureRanges<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.rows.chunks(self.least.len()) {
            for ((value, least), greatest) in row.iter().zip(self.least.iter_mut()).zip(self.greatest.iter_mut()) {
                *least = if *value < *least { *value } else { *least };
                *greatest = if *value > *greatest { *value } else { *greatest };
            }
        }
    }
}
