//! The codes of a tensor of an ONNX graph, and scale and zero point of a range, as ONNX Runtime and Quark's ONNX flow define
//! them: `value = scale * (code - zero_point)`. PyTorch's definition, which tensors of checkpoints follow, is in
//! [`crate::parameters`].
//!
//! With `lo <= 0 <= hi` the range, `min` and `max` the smallest and largest code:
//! `scale = (hi - lo) / (max - min)`, `zero_point = round(min - lo / scale)`, both in f64 from f32 bounds; the scale is
//! stored as f32. Symmetric ranges are widened to `[-t, t]` first.

mod scale_kind;

pub use scale_kind::{ScaleKind, nearest_int16_scale, position, power_of_two};

use crate::affine::Affine;
use kvant_numeric::DType;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::kernel::Range;

/// Consecutive codes of an integer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeRange {
    /// Smallest code.
    pub min: i64,
    /// Largest code.
    pub max: i64,
}

impl CodeRange {
    /// All codes.
    pub fn full(int: Int) -> CodeRange {
        CodeRange { min: int.min(), max: int.max() }
    }

    /// The code range of a scale: all, without the lowest code if a signed type is symmetric.
    pub fn of(int: Int, symmetric: bool) -> CodeRange {
        let full = CodeRange::full(int);
        if symmetric && int.is_signed() { CodeRange { min: -full.max, ..full } } else { full }
    }

    /// Half of the codes, for processors whose 8-bit products overflow 16 bits.
    pub fn reduced(int: Int) -> CodeRange {
        let full = CodeRange::full(int);
        match int.is_signed() {
            true => CodeRange { min: full.min / 2, max: -(full.min / 2) },
            false => CodeRange { min: 0, max: full.max / 2 },
        }
    }
}

/// To which numbers a tensor of a graph is quantized, once its range is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphGrid {
    /// The dtype of its codes; `None` where values have no codes under one scale.
    pub dtype: Option<DType>,
    /// Whether the codes are symmetric about zero.
    pub symmetric: bool,
    /// The allowed scales.
    pub scale: ScaleKind,
}

impl GraphGrid {
    /// The integers of its codes.
    pub fn int(&self) -> Option<Int> {
        match self.dtype {
            Some(DType::Int(int)) => Some(int),
            _ => None,
        }
    }

    /// The small floats of its codes.
    pub fn float(&self) -> Option<MiniFloat> {
        match self.dtype {
            Some(DType::MiniFloat(float)) => Some(float),
            _ => None,
        }
    }

    /// The codes that a scale is made for; `None` for floats.
    pub fn codes(&self) -> Option<CodeRange> {
        self.int().map(|int| CodeRange::of(int, self.symmetric))
    }

    /// Scale and zero point of a range. Floats of more than 8 bits have scale 1.
    pub fn affine(&self, range: Range) -> Affine<i64> {
        if let Some(float) = self.float() {
            let bound = range.min.abs().max(range.max.abs());
            let scale = if bound > 0.0 && bound.is_finite() { bound / float.max() } else { 1.0 };
            return Affine { scale, zero_point: 0 };
        }
        match self.codes() {
            Some(codes) => self.affine_of_codes(range, codes),
            None => Affine { scale: 1.0, zero_point: 0 },
        }
    }

    /// The same for given codes: those of a reduced range, say.
    pub fn affine_of_codes(&self, range: Range, codes: CodeRange) -> Affine<i64> {
        let range = self.widened(range);
        // The width is rounded to f32 as the bounds are; for a symmetric range that is exact.
        let scale = f64::from(range.max - range.min) / (codes.max - codes.min) as f64;
        let plain = match scale < f64::from(f32::MIN_POSITIVE) {
            true => Affine { scale: 1.0, zero_point: 0 },
            false => {
                let zero_point = (codes.min as f64 - f64::from(range.min) / scale).round_ties_even();
                Affine { scale: scale as f32, zero_point: zero_point as i64 }
            }
        };
        let made = match self.scale {
            ScaleKind::Float => plain,
            kind => rescaled(plain, codes, kind.apply(plain.scale)),
        };
        Affine { zero_point: self.centred(made.zero_point), ..made }
    }

    /// The range with zero in it, its ends finite, symmetric about zero if wanted.
    fn widened(&self, range: Range) -> Range {
        let limit = f32::MAX / 2.0;
        let (min, max) = (range.min.min(0.0).max(-limit), range.max.max(0.0).min(limit));
        let bound = min.abs().max(max);
        if self.symmetric { Range { min: -bound, max: bound } } else { Range { min, max } }
    }

    /// A symmetric unsigned byte has its zero at 128, as hardware wants it, not at 127.
    fn centred(&self, zero_point: i64) -> i64 {
        match (self.symmetric, self.int(), zero_point) {
            (true, Some(Int::UINT8), 127) => 128,
            _ => zero_point,
        }
    }
}

/// Another scale, with the zero point that keeps the lowest code where it was in codes.
fn rescaled(plain: Affine<i64>, codes: CodeRange, scale: f32) -> Affine<i64> {
    let low = ((codes.min - plain.zero_point) as f32 * scale).min(0.0);
    let zero_point = (codes.min as f64 - f64::from(low) / f64::from(scale)).round_ties_even() as i64;
    Affine { scale, zero_point }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO_TO_SIX: Range = Range { min: 0.0, max: 6.0 };

    fn affine(range: Range, dtype: &str, symmetric: bool, scale: ScaleKind) -> Affine<i64> {
        GraphGrid { dtype: Some(dtype.parse().unwrap()), symmetric, scale }.affine(range)
    }

    fn float(range: Range, dtype: &str, symmetric: bool) -> Affine<i64> {
        affine(range, dtype, symmetric, ScaleKind::Float)
    }

    #[test]
    fn zero_to_six_scales_match_quark() {
        assert_eq!(float(ZERO_TO_SIX, "int8", true), Affine { scale: 0.047_244_094, zero_point: 0 });
        assert_eq!(float(ZERO_TO_SIX, "uint8", false), Affine { scale: 0.023_529_412, zero_point: 0 });
        assert_eq!(float(ZERO_TO_SIX, "int8", false), Affine { scale: 0.023_529_412, zero_point: -128 });
        assert_eq!(float(ZERO_TO_SIX, "int16", true).scale, 12.0 / 65534.0);
        assert_eq!(float(ZERO_TO_SIX, "uint8", true).zero_point, 128);
    }

    #[test]
    fn power_of_two_scales_of_zero_to_six() {
        let made = affine(ZERO_TO_SIX, "int8", true, ScaleKind::PowerOfTwo);
        assert_eq!(made, Affine { scale: 0.0625, zero_point: 0 });
        assert_eq!(affine(ZERO_TO_SIX, "uint8", true, ScaleKind::PowerOfTwo).zero_point, 128);
    }

    #[test]
    fn degenerate_ranges_give_usable_scales() {
        assert_eq!(float(Range { min: 0.0, max: 0.0 }, "int8", true), Affine { scale: 1.0, zero_point: 0 });
        assert!(float(Range { min: f32::NEG_INFINITY, max: f32::INFINITY }, "int8", false).scale.is_finite());
        assert_eq!(float(Range { min: 2.0, max: 3.0 }, "uint8", false).zero_point, 0);
    }

    #[test]
    fn eight_bit_floats_scale_their_largest_value() {
        assert_eq!(float(Range { min: -896.0, max: 1.0 }, "e4m3", true).scale, 2.0);
    }
}
