//! The values of a tensor of a graph in one sample.

use kvant_numeric::kernel::{Range, group_ranges};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Values seen by one thread at a time.
const CHUNK: usize = 1 << 16;

/// The values of a tensor of a graph in one sample, with what every observer asks of them: found in one pass. NaN counts as
/// nothing, infinities as very large.
#[derive(Debug, Clone, Copy)]
pub struct SampleView<'a> {
    values: &'a [f32],
    range: Option<Range>,
    has_nan: bool,
}

impl<'a> SampleView<'a> {
    /// Passes over the values once.
    pub fn new(values: &'a [f32]) -> Self {
        let (range, has_nan) = bounds(values);
        Self { values, range, has_nan }
    }

    /// The values.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// The smallest and the largest value, NaN left out and infinities cut to 1e37; `None` where there are no values.
    pub fn range(&self) -> Option<Range> {
        self.range
    }

    /// The largest magnitude; `None` where there are no values.
    pub fn magnitude(&self) -> Option<f32> {
        self.range.map(|range| range.min.abs().max(range.max.abs()))
    }

    /// Returns whether a value is NaN.
    pub fn has_nan(&self) -> bool {
        self.has_nan
    }
}

/// Infinities count as this: far beyond any activation, and still with room for the arithmetic of histograms.
pub(super) const LARGEST: f32 = 1e37;

/// Minimum and maximum of the values that are numbers, infinities cut to [`LARGEST`], `None` where there are none; and whether
/// some are not.
fn bounds(values: &[f32]) -> (Option<Range>, bool) {
    let of = |values: &[f32]| {
        let mut range = [Range::EMPTY];
        group_ranges(Isa::best(), values, values.len().max(1), &mut range);
        range[0]
    };
    let found = match is_shared(values) {
        true => values.par_chunks(CHUNK).map(of).reduce(|| Range::EMPTY, join),
        false => values.chunks(CHUNK).map(of).fold(Range::EMPTY, join),
    };
    match found.min.is_nan() {
        true => (limited(numbers(values)), true),
        false => (limited(found), false),
    }
}

/// Returns whether all threads look at the values. Threads of their own, which run a sample each, look at them alone.
pub(super) fn is_shared(values: &[f32]) -> bool {
    values.len() > CHUNK && rayon::current_thread_index().is_some()
}

/// The range of both; NaN where one is.
fn join(a: Range, b: Range) -> Range {
    match a.min.is_nan() || b.min.is_nan() {
        true => Range { min: f32::NAN, max: f32::NAN },
        false => a.join(b),
    }
}

/// The range of the values that are not NaN.
fn numbers(values: &[f32]) -> Range {
    values.iter().fold(Range::EMPTY, |r, &v| Range { min: r.min.min(v), max: r.max.max(v) })
}

fn limited(range: Range) -> Option<Range> {
    let limited = |value: f32| value.clamp(-LARGEST, LARGEST);
    (range.min <= range.max).then(|| Range { min: limited(range.min), max: limited(range.max) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_clamped_and_nan_is_ignored() {
        let range = |min, max| Some(Range { min, max });
        assert_eq!(bounds(&[f32::INFINITY, f32::NAN]), (range(LARGEST, LARGEST), true));
        assert_eq!(bounds(&[f32::NAN]), (None, true));
        assert_eq!(bounds(&[]), (None, false));
        assert_eq!(bounds(&[f32::NEG_INFINITY, 2.0]), (range(-LARGEST, 2.0), false));
        let mut many = vec![0.5; 3 * CHUNK];
        (many[CHUNK], many[2 * CHUNK + 1], many[7]) = (f32::NAN, -3.0, 4.0);
        let shared = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(|| bounds(&many));
        assert_eq!((bounds(&many), shared), ((range(-3.0, 4.0), true), (range(-3.0, 4.0), true)));
    }
}
