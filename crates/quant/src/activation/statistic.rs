//! What is kept of the activations that passed a place: enough for the range that an observer asks for, whatever the amount
//! of data. Not the ranges of weights, which are there at once: see [`crate::observer`].

use super::histogram::{Bin, Histogram};
use super::spread::Spread;
use super::{ActivationError, StaticParameters};
use crate::observer::{Decay, MovingRange, Observer, mse};
use crate::parameters::{Affine, dequantize, quantize};
use crate::scheme::{ActivationScheme, TensorScheme, Timing, ZeroPoint};
use kvant_numeric::Arithmetic;
use kvant_numeric::kernel::{Range, group_ranges};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use serde::{Deserialize, Serialize};

/// The statistic of one place, updated batch by batch. Statistics of parts of the data merge to that of the whole.
///
/// Values that are NaN or infinite are left out and counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationStatistic {
    observer: Observer,
    /// Whether every feature has ranges of its own.
    by_feature: bool,
    tokens: u64,
    not_finite: u64,
    /// The range of all batches: one, or one a feature; none where there was no number yet.
    ranges: Vec<Option<Ends>>,
    /// What the observer keeps beside it.
    kept: Kept,
}

/// A [`Range`] as it is stored: in `f64`, so that text holds it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Ends(f64, f64);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kept {
    Nothing,
    Histogram(Histogram),
    Average(Vec<Option<MovingRange>>),
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
    /// A statistic that has seen nothing, of the kind that the scheme's parameters are made from.
    ///
    /// # Errors
    /// [`ActivationError::Scheme`] for schemes that store nothing, and for what is searched in a histogram of every feature.
    pub fn new(scheme: ActivationScheme) -> Result<ActivationStatistic, ActivationError> {
        let refuse = |reason| Err(ActivationError::Scheme { scheme: scheme.to_string(), reason });
        let by_feature = Spread::of(scheme)? == Spread::Features;
        let observer = scheme.scheme.observer();
        if scheme.timing == Timing::Dynamic {
            return refuse("nothing of it is found in advance");
        }
        let kept = match observer {
            Observer::MinMax => Kept::Nothing,
            Observer::MovingAverage(_) => Kept::Average(Vec::new()),
            _ if by_feature => return refuse("features have no histograms of their own: use min-max or `ema`"),
            Observer::Percentile(_) | Observer::Mse => Kept::Histogram(Histogram::new()),
        };
        Ok(ActivationStatistic { observer, by_feature, tokens: 0, not_finite: 0, ranges: Vec::new(), kept })
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
        self.keep(rows, &ranges);
        join_all(&mut self.ranges, ranges.iter().map(|range| Ends::some(*range)));
    }

    /// The ranges without what is no number, which is counted.
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

    fn keep(&mut self, rows: &[f32], ranges: &[Range]) {
        match (&mut self.kept, self.observer) {
            (Kept::Histogram(histogram), _) => histogram.update(rows),
            (Kept::Average(averages), Observer::MovingAverage(decay)) => {
                averages.resize(ranges.len(), None);
                for (average, range) in averages.iter_mut().zip(ranges).filter(|(_, range)| range.min <= range.max) {
                    match average {
                        Some(average) => average.update(decay, *range),
                        None => *average = Some(MovingRange::new(*range)),
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds the statistic of the data that comes after, of the same place and scheme.
    pub fn merge(&mut self, later: &ActivationStatistic) {
        self.tokens += later.tokens;
        self.not_finite += later.not_finite;
        join_all(&mut self.ranges, later.ranges.iter().copied());
        match (&mut self.kept, &later.kept, self.observer) {
            (Kept::Histogram(own), Kept::Histogram(other), _) => own.merge(other),
            (Kept::Average(own), Kept::Average(other), Observer::MovingAverage(decay)) => merge_all(decay, own, other),
            _ => {}
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
    pub fn ranges(&self, scheme: TensorScheme, arithmetic: Arithmetic) -> Option<Vec<Range>> {
        let full = self.range()?;
        let ranges = match &self.kept {
            Kept::Nothing => self.ranges.iter().map(|ends| ends.map_or(ZERO, Range::from)).collect(),
            Kept::Average(averages) => averages.iter().map(|a| a.map_or(ZERO, |average| average.range())).collect(),
            Kept::Histogram(histogram) => vec![self.histogram_range(histogram, full, scheme, arithmetic)],
        };
        Some(ranges)
    }

    fn histogram_range(
        &self,
        histogram: &Histogram,
        full: Range,
        scheme: TensorScheme,
        arithmetic: Arithmetic,
    ) -> Range {
        match self.observer {
            Observer::Percentile(percentile) => histogram.percentile(percentile, full, is_symmetric(scheme)),
            _ => mse::search(full, |range| squared_error(histogram, scheme, range, arithmetic)),
        }
    }

    /// The parameters with which `scheme` covers those ranges. `None` where nothing was seen.
    pub fn parameters(&self, scheme: TensorScheme, arithmetic: Arithmetic) -> Option<StaticParameters> {
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

fn merge_all(decay: Decay, own: &mut Vec<Option<MovingRange>>, later: &[Option<MovingRange>]) {
    own.resize(own.len().max(later.len()), None);
    for (own, later) in own.iter_mut().zip(later) {
        match (own.as_mut(), later) {
            (Some(own), Some(later)) => own.merge(decay, later),
            (None, later) => *own = *later,
            (Some(_), None) => {}
        }
    }
}

fn is_symmetric(scheme: TensorScheme) -> bool {
    !matches!(scheme, TensorScheme::Int(int) if int.zero_point != ZeroPoint::Zero)
}

/// The squared error that quantizing what was counted to a range leaves.
fn squared_error(histogram: &Histogram, scheme: TensorScheme, range: Range, arithmetic: Arithmetic) -> f64 {
    let parameters = StaticParameters::of_ranges(scheme, &[range], arithmetic);
    let scale = parameters.scales.first().copied().unwrap_or(1.0);
    let affine = Affine { scale, zero_point: f64::from(parameters.zero_points.first().copied().unwrap_or(0.0)) };
    let restored = |value: f32| match scheme {
        TensorScheme::Int(int) => dequantize(quantize(int.format, value, 1.0 / scale, affine.zero_point), affine),
        TensorScheme::Float(float) => float.format.round(value / scale) * scale,
        _ => value,
    };
    let error = |bin: Bin| f64::from(restored(bin.center) - bin.center).powi(2) * bin.count as f64;
    histogram.bins().map(error).sum()
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
