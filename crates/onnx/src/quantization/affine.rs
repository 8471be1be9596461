//! Scale and zero point of a range: `value = scale * (code - zero_point)`.
//!
//! With `lo <= 0 <= hi` the range, `min` and `max` the smallest and largest code:
//! `scale = (hi - lo) / (max - min)`, `zero_point = round(min - lo / scale)`, both in f64 from f32 bounds; the scale is
//! stored as f32. Symmetric ranges are widened to `[-t, t]` first.

use super::scale_kind::ScaleKind;
use crate::element::{CodeRange, Element};

/// The values a tensor takes.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Range {
    /// Smallest.
    pub low: f32,
    /// Largest.
    pub high: f32,
}

impl Range {
    /// The range with zero in it, its ends finite, symmetric about zero if wanted.
    fn for_codes(self, symmetric: bool) -> Range {
        let limit = f32::MAX / 2.0;
        let (low, high) = (self.low.min(0.0).max(-limit), self.high.max(0.0).min(limit));
        let bound = low.abs().max(high);
        if symmetric { Range { low: -bound, high: bound } } else { Range { low, high } }
    }

    /// The smallest range that holds both.
    pub fn union(self, other: Range) -> Range {
        Range { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// How values map to codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    /// The step.
    pub scale: f32,
    /// The code of zero.
    pub zero_point: i64,
}

/// Scale and zero point of a range in an element type. Floats other than the 8-bit ones have scale 1.
pub fn affine(range: Range, element: Element, symmetric: bool, kind: ScaleKind) -> Affine {
    if let Some(max) = element.float8_max() {
        let bound = range.low.abs().max(range.high.abs());
        let scale = if bound > 0.0 && bound.is_finite() { bound / max } else { 1.0 };
        return Affine { scale, zero_point: 0 };
    }
    match element.range(symmetric) {
        Some(codes) => of_codes(range, codes, element, symmetric, kind),
        None => Affine { scale: 1.0, zero_point: 0 },
    }
}

/// The same for given codes: those of a reduced range, say.
pub(crate) fn of_codes(range: Range, codes: CodeRange, element: Element, symmetric: bool, kind: ScaleKind) -> Affine {
    let range = range.for_codes(symmetric);
    // The width is rounded to f32 as the bounds are; for a symmetric range that is exact.
    let scale = f64::from(range.high - range.low) / (codes.max - codes.min) as f64;
    let plain = match scale < f64::from(f32::MIN_POSITIVE) {
        true => Affine { scale: 1.0, zero_point: 0 },
        false => {
            let zero_point = (codes.min as f64 - f64::from(range.low) / scale).round_ties_even();
            Affine { scale: scale as f32, zero_point: zero_point as i64 }
        }
    };
    let made = match kind {
        ScaleKind::Float => plain,
        _ => rescaled(plain, codes, kind.apply(plain.scale)),
    };
    Affine { zero_point: centred(made.zero_point, element, symmetric), ..made }
}

/// Another scale, with the zero point that keeps the lowest code where it was in codes.
fn rescaled(plain: Affine, codes: CodeRange, scale: f32) -> Affine {
    let low = ((codes.min - plain.zero_point) as f32 * scale).min(0.0);
    let zero_point = (codes.min as f64 - f64::from(low) / f64::from(scale)).round_ties_even() as i64;
    Affine { scale, zero_point }
}

/// A symmetric unsigned byte has its zero at 128, as hardware wants it, not at 127.
fn centred(zero_point: i64, element: Element, symmetric: bool) -> i64 {
    match (symmetric, element, zero_point) {
        (true, Element::UInt8, 127) => 128,
        _ => zero_point,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO_TO_SIX: Range = Range { low: 0.0, high: 6.0 };

    fn float(range: Range, element: Element, symmetric: bool) -> Affine {
        affine(range, element, symmetric, ScaleKind::Float)
    }

    #[test]
    fn the_incumbents_values_of_zero_to_six() {
        assert_eq!(float(ZERO_TO_SIX, Element::Int8, true), Affine { scale: 0.047_244_094, zero_point: 0 });
        assert_eq!(float(ZERO_TO_SIX, Element::UInt8, false), Affine { scale: 0.023_529_412, zero_point: 0 });
        assert_eq!(float(ZERO_TO_SIX, Element::Int8, false), Affine { scale: 0.023_529_412, zero_point: -128 });
        assert_eq!(float(ZERO_TO_SIX, Element::Int16, true).scale, 12.0 / 65534.0);
        assert_eq!(float(ZERO_TO_SIX, Element::UInt8, true).zero_point, 128);
    }

    #[test]
    fn power_of_two_scales() {
        let made = affine(ZERO_TO_SIX, Element::Int8, true, ScaleKind::PowerOfTwo);
        assert_eq!(made, Affine { scale: 0.0625, zero_point: 0 });
        assert_eq!(affine(ZERO_TO_SIX, Element::UInt8, true, ScaleKind::PowerOfTwo).zero_point, 128);
    }

    #[test]
    fn odd_ranges_give_usable_scales() {
        assert_eq!(float(Range::default(), Element::Int8, true), Affine { scale: 1.0, zero_point: 0 });
        assert!(float(Range { low: f32::NEG_INFINITY, high: f32::INFINITY }, Element::Int8, false).scale.is_finite());
        assert_eq!(float(Range { low: 2.0, high: 3.0 }, Element::UInt8, false).zero_point, 0);
    }

    #[test]
    fn eight_bit_floats_scale_their_largest_value() {
        assert_eq!(float(Range { low: -896.0, high: 1.0 }, Element::Float8E4M3, true).scale, 2.0);
    }
}
