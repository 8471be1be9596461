//! The statistic of one tensor of a graph, sample by sample. Its parts follow ONNX Runtime's definitions where these differ
//! from those that [`ActivationStatistic`](crate::activation::ActivationStatistic) follows: infinities count as very large
//! values, bins have equal widths, averages are taken in f32.

use super::growing::Growing;
use super::kept::Kept;
use super::{Averaging, Found, ObservedValues, ObserverRef, SampleView};
use crate::graph_grid::GraphGrid;
use kvant_numeric::kernel::Range;
use std::sync::OnceLock;

/// The statistics of a tensor, and its observer.
#[derive(Clone, Debug)]
pub struct GraphStatistic {
    observer: ObserverRef,
    grid: GraphGrid,
    range: Option<Range>,
    average: Option<Average>,
    kept: Kept,
    growing: Growing,
    /// The cached range of the samples so far: computing it may take a search.
    found: OnceLock<Found>,
}

/// The average of the ranges of samples.
#[derive(Clone, Copy, Debug)]
struct Average {
    averaging: Averaging,
    /// The moving average, or the sum.
    range: Option<[f64; 2]>,
    samples: u32,
}

impl Average {
    fn new(averaging: Averaging) -> Average {
        Average { averaging, range: None, samples: 0 }
    }

    /// Decaying, it is `v <- v + c (new - v)` in f32 for each sample, starting with the range of the first.
    fn update(&mut self, new: Range) {
        self.samples = self.samples.saturating_add(1);
        let new = [f64::from(new.min), f64::from(new.max)];
        let Some(range) = &mut self.range else {
            self.range = Some(new);
            return;
        };
        for (old, new) in range.iter_mut().zip(new) {
            *old = match self.averaging {
                Averaging::Decaying(decay) => {
                    let (old, new) = (*old as f32, new as f32);
                    f64::from(old + decay.weight_of_new() * (new - old))
                }
                Averaging::Equal => *old + new,
            };
        }
    }

    fn range(&self) -> Option<Range> {
        let samples = if self.averaging == Averaging::Equal { f64::from(self.samples) } else { 1.0 };
        self.range.map(|[min, max]| Range { min: (min / samples) as f32, max: (max / samples) as f32 })
    }
}

impl GraphStatistic {
    /// Nothing seen yet.
    pub fn new(observer: ObserverRef, grid: GraphGrid) -> GraphStatistic {
        let needs = observer.needs(&grid);
        let average = needs.average.map(Average::new);
        let (kept, growing) = (Kept::new(needs), Growing::new(needs.growing));
        GraphStatistic { observer, grid, range: None, average, kept, growing, found: OnceLock::new() }
    }

    /// Takes in the values of one sample.
    pub fn observe(&mut self, sample: &SampleView<'_>) {
        self.found = OnceLock::new();
        if let Some(range) = sample.range() {
            self.range = Some(self.range.map_or(range, |own| own.join(range)));
            if let Some(average) = &mut self.average {
                average.update(range);
            }
        }
        self.kept.update(sample.values());
        self.growing.observe(sample);
    }

    /// The least and the greatest value of all samples; `None` before the first that has values.
    pub fn full_range(&self) -> Option<Range> {
        self.range
    }

    /// The range to quantize; zero and zero before any sample.
    pub fn range(&self) -> Range {
        self.found().range
    }

    /// The name of the observer that was found to lose least, where that was searched for.
    pub fn chosen(&self) -> Option<&'static str> {
        self.found().chosen
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            let range = self.range.unwrap_or(Range { min: 0.0, max: 0.0 });
            let average = self.average.and_then(|average| average.range());
            self.observer.find(&ObservedValues::growing(range, average, &self.kept, &self.growing), &self.grid)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph_grid::ScaleKind;
    use crate::observer::OBSERVERS;

    fn range_of(observer: &str, samples: &[&[f32]]) -> Range {
        let grid = GraphGrid { dtype: Some("int8".parse().unwrap()), symmetric: false, scale: ScaleKind::Float };
        let mut statistic = GraphStatistic::new(observer.parse().unwrap(), grid);
        samples.iter().for_each(|sample| statistic.observe(&SampleView::new(sample)));
        statistic.range()
    }

    #[test]
    fn ranges_of_samples_are_joined_or_averaged() {
        let samples: [&[f32]; 2] = [&[-1.0, 2.0], &[0.0, 12.0]];
        assert_eq!(range_of("minmax", &samples), Range { min: -1.0, max: 12.0 });
        assert_eq!(range_of("moving-average", &samples), Range { min: -0.99, max: 2.1 });
        assert_eq!(range_of("ema0.5", &samples), Range { min: -0.5, max: 7.0 });
        let three: [&[f32]; 3] = [samples[0], samples[1], &[-0.5, 4.0]];
        assert_eq!(range_of("mean", &three), Range { min: -0.5, max: 6.0 });
    }

    #[test]
    fn magnitude_percentile_cuts_large_values_only() {
        let values: Vec<f32> = (0..1000).map(|index| index as f32 / 1000.0).chain([-0.25, 20.0]).collect();
        let range = range_of("magnitude-percentile90", &[&values]);
        assert_eq!(range.min, -0.25, "both ends of percentile90 are cut: {:?}", range_of("percentile90", &[&values]));
        assert!(range.max > 0.5 && range.max < 1.0, "{range:?}");
        let narrow = range_of("percentile90", &[&values]);
        assert!(narrow.min > range.min, "{narrow:?}");
    }

    #[test]
    fn every_observer_accepts_any_values() {
        let odd: [&[f32]; 6] = [
            &[],
            &[0.0; 4],
            &[f32::NAN, 1.0, f32::INFINITY, -2.0],
            &[f32::NAN; 3],
            &[-5.0, 1e30, 3.0],
            &[f32::MIN_POSITIVE / 4.0, 0.0],
        ];
        for row in OBSERVERS {
            for symmetric in [true, false] {
                let grid = GraphGrid { dtype: Some("int8".parse().unwrap()), symmetric, scale: ScaleKind::Float };
                let mut statistic = GraphStatistic::new(row.example.parse().unwrap(), grid);
                for values in odd {
                    statistic.observe(&SampleView::new(values));
                    let range = statistic.range();
                    assert!(range.min.is_finite() && range.max.is_finite(), "{}: {range:?}", row.name);
                    assert!(range.min <= range.max, "{}: {range:?}", row.name);
                }
            }
        }
    }
}
