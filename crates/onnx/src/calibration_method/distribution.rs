//! The standard deviation of the values, mapped to that of all numbers of an 8-bit float.

use super::method::{Seen, Statistic};
use super::min_max::MinMax;
use crate::element::Element;
use crate::quantization::Range;
use kvant_numeric::format::MiniFloat;

/// Sums for the standard deviation, in f64.
#[derive(Debug, Clone, Copy)]
pub struct Distribution {
    element: Element,
    count: f64,
    sum: f64,
    squares: f64,
    bounds: MinMax,
}

impl Distribution {
    /// For an element type. Integers have no such distribution: their range is that of the values.
    pub fn new(element: Element) -> Self {
        Self { element, count: 0.0, sum: 0.0, squares: 0.0, bounds: MinMax::default() }
    }

    fn deviation(&self) -> f64 {
        let mean = self.sum / self.count;
        (self.squares / self.count - mean * mean).max(0.0).sqrt()
    }
}

/// Standard deviation of all finite numbers of a format, each once.
fn format_deviation(format: MiniFloat) -> f64 {
    let finite = || (0..=255u8).map(|code| f64::from(format.decode(code))).filter(|value| value.is_finite());
    let (count, mean) = (finite().count() as f64, finite().sum::<f64>() / finite().count() as f64);
    (finite().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

impl Statistic for Distribution {
    fn observe(&mut self, seen: &Seen<'_>) {
        self.bounds.observe(seen);
        for value in seen.values().iter().filter(|v| v.is_finite()).map(|&v| f64::from(v)) {
            (self.count, self.sum, self.squares) = (self.count + 1.0, self.sum + value, self.squares + value * value);
        }
    }

    /// The range whose scale, its end over the format's largest number, is the ratio of the deviations.
    fn range(&self) -> Range {
        let format = match self.element {
            Element::Float8E4M3 => MiniFloat::E4M3,
            Element::Float8E5M2 => MiniFloat::E5M2,
            _ => return self.bounds.range(),
        };
        let scale = self.deviation() / format_deviation(format);
        let max = self.element.float8_max().map_or(0.0, f64::from);
        let bound = (scale * max) as f32;
        if bound > 0.0 && bound.is_finite() { Range { low: -bound, high: bound } } else { self.bounds.range() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_like_those_of_the_format_have_scale_one() {
        let all: Vec<f32> = (0..=255u8).map(|code| MiniFloat::E4M3.decode(code)).filter(|v| v.is_finite()).collect();
        let mut statistic = Distribution::new(Element::Float8E4M3);
        statistic.observe(&Seen::new(&all));
        assert!((statistic.range().high / 448.0 - 1.0).abs() < 1e-6, "{:?}", statistic.range());
    }
}
