//! The values of a tensor as an observer sees them: all of them where they are there at once, as those of a weight, else what
//! was [kept](super::Needs) of them.

use super::growing::Growing;
use super::{Grid, Histogram, Kept, Moments, Sample};
use kvant_numeric::kernel::Range;
use std::borrow::Cow;

/// The input of an observer.
#[derive(Clone, Copy, Debug)]
pub struct ObservedValues<'a> {
    range: Range,
    average: Option<Range>,
    source: Source<'a>,
    growing: Option<&'a Growing>,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Values(&'a [f32]),
    Kept(&'a Kept),
}

impl<'a> ObservedValues<'a> {
    /// Values that are all there.
    pub fn values(values: &'a [f32]) -> ObservedValues<'a> {
        let range = values.iter().fold(Range::EMPTY, |range, v| range.join(Range { min: *v, max: *v }));
        ObservedValues { range, average: None, source: Source::Values(values), growing: None }
    }

    /// Values of which the range is known and what was kept; `average` is that of the ranges of batches.
    pub(crate) fn kept(range: Range, average: Option<Range>, kept: &'a Kept) -> ObservedValues<'a> {
        ObservedValues { range, average, source: Source::Kept(kept), growing: None }
    }

    /// The same of a tensor of a graph.
    pub(super) fn growing(
        range: Range,
        average: Option<Range>,
        kept: &'a Kept,
        growing: &'a Growing,
    ) -> ObservedValues<'a> {
        ObservedValues { range, average, source: Source::Kept(kept), growing: Some(growing) }
    }

    /// The histograms of a tensor of a graph.
    pub(super) fn growing_histograms(&self) -> Option<&'a Growing> {
        self.growing
    }

    /// The least and the greatest value.
    pub fn range(&self) -> Range {
        self.range
    }

    /// The average of the ranges of batches that was among the needs; of one batch its range.
    pub fn average(&self) -> Range {
        self.average.unwrap_or(self.range)
    }

    /// All values, where they are there at once.
    pub fn all_values(&self) -> Option<&'a [f32]> {
        match self.source {
            Source::Values(values) => Some(values),
            Source::Kept(_) => None,
        }
    }

    /// The histogram; empty unless it was among the needs. That of values which are all there is made by every call.
    pub fn histogram(&self) -> Cow<'a, Histogram> {
        match self.source {
            Source::Values(values) => {
                let mut histogram = Histogram::new();
                histogram.update(values);
                Cow::Owned(histogram)
            }
            Source::Kept(kept) => kept.histogram.as_ref().map_or_else(|| Cow::Owned(Histogram::new()), Cow::Borrowed),
        }
    }

    /// Mean and standard deviation; those of no values unless they were among the needs.
    pub fn moments(&self) -> Moments {
        match self.source {
            Source::Values(values) => {
                let mut moments = Moments::default();
                moments.update(values);
                moments
            }
            Source::Kept(kept) => kept.moments.unwrap_or_default(),
        }
    }

    /// The sample; empty unless it was among the needs. That of values which are all there is made by every call.
    pub fn sample(&self) -> Cow<'a, Sample> {
        match self.source {
            Source::Values(values) => {
                let mut sample = Sample::default();
                sample.update(values);
                Cow::Owned(sample)
            }
            Source::Kept(kept) => kept.sample.as_ref().map_or_else(|| Cow::Owned(Sample::default()), Cow::Borrowed),
        }
    }

    /// The squared error that quantization under the scale of `range` leaves: of the values where they are all there, else of
    /// the bins of the histogram.
    pub fn squared_error(&self, grid: &dyn Grid, range: Range) -> f64 {
        match self.source {
            Source::Values(values) => grid.squared_error(values, range),
            Source::Kept(_) => {
                let restore = grid.restore(range);
                let error = |center: f32| f64::from(restore(center) - center).powi(2);
                self.histogram().bins().map(|bin| error(bin.center) * bin.count as f64).sum()
            }
        }
    }
}
