//! Smallest and largest value, of all samples or averaged over them.

use kvant_numeric::kernel::{self, group_ranges};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

use super::method::{Seen, Statistic};
use crate::quantization::Range;

/// Values seen by one thread at a time.
const CHUNK: usize = 1 << 16;
/// Weight of a new sample in the moving average.
const AVERAGING: f32 = 0.01;

/// Minimum and maximum so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinMax {
    seen: Option<Range>,
    averaging: Option<f32>,
}

impl MinMax {
    /// `v <- v + c (new - v)` per sample, c = 0.01, starting at the first sample's.
    pub fn moving_average() -> Self {
        Self { seen: None, averaging: Some(AVERAGING) }
    }
}

/// Infinities count as this: far beyond any activation, and still with room for the arithmetic of histograms.
pub(super) const LARGEST: f32 = 1e37;

/// Minimum and maximum of the values that are numbers, infinities cut to [`LARGEST`], `None` where there are none; and whether
/// some are not.
pub(super) fn bounds(values: &[f32]) -> (Option<Range>, bool) {
    let of = |values: &[f32]| {
        let mut range = [kernel::Range::EMPTY];
        group_ranges(Isa::best(), values, values.len().max(1), &mut range);
        range[0]
    };
    let found = match is_shared(values) {
        true => values.par_chunks(CHUNK).map(of).reduce(|| kernel::Range::EMPTY, join),
        false => values.chunks(CHUNK).map(of).fold(kernel::Range::EMPTY, join),
    };
    match found.min.is_nan() {
        true => (limited(numbers(values)), true),
        false => (limited(found), false),
    }
}

/// Whether all threads look at the values. Threads of their own, which run a sample each, look at them alone.
pub(super) fn is_shared(values: &[f32]) -> bool {
    values.len() > CHUNK && rayon::current_thread_index().is_some()
}

/// The range of both; NaN where one is.
fn join(a: kernel::Range, b: kernel::Range) -> kernel::Range {
    match a.min.is_nan() || b.min.is_nan() {
        true => kernel::Range { min: f32::NAN, max: f32::NAN },
        false => a.join(b),
    }
}

/// The range of what is not NaN.
fn numbers(values: &[f32]) -> kernel::Range {
    values.iter().fold(kernel::Range::EMPTY, |r, &v| kernel::Range { min: r.min.min(v), max: r.max.max(v) })
}

fn limited(range: kernel::Range) -> Option<Range> {
    let limited = |value: f32| value.clamp(-LARGEST, LARGEST);
    (range.min <= range.max).then(|| Range { low: limited(range.min), high: limited(range.max) })
}

impl Statistic for MinMax {
    fn observe(&mut self, seen: &Seen<'_>) {
        let Some(new) = seen.range() else { return };
        let mix = |old: f32, new: f32, c: f32| old + c * (new - old);
        self.seen = Some(match (self.seen, self.averaging) {
            (None, _) => new,
            (Some(old), None) => old.union(new),
            (Some(old), Some(c)) => Range { low: mix(old.low, new.low, c), high: mix(old.high, new.high, c) },
        });
    }

    fn range(&self) -> Range {
        self.seen.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_samples_count_equally_or_hardly() {
        let run = |mut statistic: MinMax| {
            statistic.observe(&Seen::new(&[-1.0, 2.0]));
            statistic.observe(&Seen::new(&[0.0, 12.0]));
            statistic.range()
        };
        assert_eq!(run(MinMax::default()), Range { low: -1.0, high: 12.0 });
        assert_eq!(run(MinMax::moving_average()), Range { low: -0.99, high: 2.1 });
    }

    #[test]
    fn infinities_are_cut_and_nan_is_nothing() {
        let range = |low, high| Some(Range { low, high });
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
