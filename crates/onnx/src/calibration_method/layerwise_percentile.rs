//! Per tensor the best of several percentiles.

use super::method::{Seen, Statistic};
use super::percentile::Percentile;
use crate::element::Element;
use crate::quantization::{Range, ScaleKind, affine};

/// The percentiles tried.
const CANDIDATES: [f64; 3] = [99.99, 99.999, 99.999_99];

/// The percentile whose codes have the least mean absolute error on the histogram's bin centres.
#[derive(Debug, Clone)]
pub struct LayerwisePercentile {
    element: Element,
    values: Percentile,
}

impl LayerwisePercentile {
    /// For an element type; the ranges are symmetric or not as the codes will be.
    pub fn new(element: Element, symmetric: bool) -> Self {
        Self { element, values: Percentile::new(CANDIDATES[0], symmetric) }
    }

    /// `sum count |c - dq(c)|` over bin centres c, with the scale of all codes of the type.
    fn error(&self, range: Range) -> f64 {
        let Some(codes) = self.element.full_range() else { return 0.0 };
        let affine = affine(range, self.element, false, ScaleKind::Float);
        let (scale, zero_point) = (f64::from(affine.scale), affine.zero_point as f64);
        let dequantized = |value: f64| {
            let code = ((value / scale).round_ties_even() + zero_point).clamp(codes.min as f64, codes.max as f64);
            (code - zero_point) * scale
        };
        let histogram = self.values.histogram();
        let errors = histogram.centres().zip(&histogram.counts).map(|(c, &n)| n as f64 * (c - dequantized(c)).abs());
        errors.sum()
    }
}

impl Statistic for LayerwisePercentile {
    fn observe(&mut self, seen: &Seen<'_>) {
        self.values.observe(seen);
    }

    fn range(&self) -> Range {
        let ranges = CANDIDATES.map(|percent| self.values.range_of(percent));
        let errors = ranges.map(|range| self.error(range));
        // The first of equals.
        let best = (1..ranges.len()).fold(0, |best, i| if errors[i] < errors[best] { i } else { best });
        ranges[best]
    }
}
