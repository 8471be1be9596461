//! Smallest and largest value, of all samples or averaged over them.

use rayon::prelude::*;

use super::method::Statistic;
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

/// Minimum and maximum of the values, infinities cut to [`LARGEST`]; `None` where there are none.
pub(super) fn bounds(values: &[f32]) -> Option<Range> {
    const NONE: Range = Range { low: f32::INFINITY, high: f32::NEG_INFINITY };
    let found = values.par_chunks(CHUNK).map(chunk_bounds).reduce(|| NONE, Range::union);
    let limited = |value: f32| value.clamp(-LARGEST, LARGEST);
    (found.low <= found.high).then_some(Range { low: limited(found.low), high: limited(found.high) })
}

/// Several minima and maxima side by side, so that the processor's vectors hold them. `<` and `>` pass over NaN.
fn chunk_bounds(values: &[f32]) -> Range {
    const LANES: usize = 16;
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut see = |lane: usize, value: f32| {
        low[lane] = if value < low[lane] { value } else { low[lane] };
        high[lane] = if value > high[lane] { value } else { high[lane] };
    };
    whole.iter().for_each(|lanes| lanes.iter().enumerate().for_each(|(lane, &value)| see(lane, value)));
    rest.iter().enumerate().for_each(|(lane, &value)| see(lane, value));
    Range {
        low: low.into_iter().fold(f32::INFINITY, f32::min),
        high: high.into_iter().fold(f32::NEG_INFINITY, f32::max),
    }
}

impl Statistic for MinMax {
    fn observe(&mut self, values: &[f32]) {
        let Some(new) = bounds(values) else { return };
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
            statistic.observe(&[-1.0, 2.0]);
            statistic.observe(&[0.0, 12.0]);
            statistic.range()
        };
        assert_eq!(run(MinMax::default()), Range { low: -1.0, high: 12.0 });
        assert_eq!(run(MinMax::moving_average()), Range { low: -0.99, high: 2.1 });
    }

    #[test]
    fn infinities_are_cut_and_nan_is_nothing() {
        assert_eq!(bounds(&[f32::INFINITY, f32::NAN]), Some(Range { low: LARGEST, high: LARGEST }));
        assert_eq!(bounds(&[f32::NAN]), None);
    }
}
