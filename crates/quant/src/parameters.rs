//! From ranges to scales and zero points: the formulas. Not the statistics, which are observers, and not the codes.

pub use crate::affine::Affine;
use crate::scheme::{FloatScale, FloatScheme, Granularity, IntScheme, ScaleType, ZeroPoint};
use kvant_numeric::ComputeDType;
use kvant_numeric::format::{Int, MiniFloat, shared_scale};
use kvant_numeric::kernel::Range;

/// The least scale of integers and the scale of zeros in floats: the machine epsilon of f32, as in PyTorch.
pub const EPSILON: f32 = f32::EPSILON;

impl IntScheme {
    /// Returns whether zero points are stored: the code of zero can differ from 0.
    pub fn has_zero_points(&self) -> bool {
        self.zero_point != ZeroPoint::Zero || !self.format.is_signed()
    }

    /// Scale and zero point for a range, in the model's `arithmetic` where the scheme's scale has the model's type.
    ///
    /// With `N` steps between the least code `qmin` and the greatest `qmax`, `min` and `max` extended to include zero:
    /// * symmetric: `scale = max(-min, max) / (N / 2)`; the zero point is 0, for unsigned integers the middle code,
    /// * asymmetric: `scale = (max - min) / N`, `zero_point = clamp(qmin - rne(min / scale), qmin, qmax)`,
    /// * float zero point: `scale = (max - min) / N` of the range as it is, `zero_point = qmin - min / scale`.
    ///
    /// Scales are at least [`EPSILON`]. The quotient for the zero point of a whole tensor is not rounded to the model's
    /// type: PyTorch keeps a scalar scale in f32.
    #[inline(always)]
    pub fn parameters(&self, range: Range, arithmetic: ComputeDType) -> Affine {
        let arithmetic = self.scale.arithmetic(arithmetic);
        let affine = match (self.scale, self.zero_point) {
            (ScaleType::PowerOfTwo, _) => return power_of_two(self.format, self.zero_point, range),
            (_, ZeroPoint::Zero) => symmetric(self.format, range, arithmetic),
            (_, ZeroPoint::Integer) => {
                let quotient = if self.granularity == Granularity::Tensor { ComputeDType::F32 } else { arithmetic };
                asymmetric(self.format, range, arithmetic, quotient)
            }
            (_, ZeroPoint::Float) => float_zero_point(self.format, range, arithmetic),
        };
        Affine { scale: self.scale.stored(affine.scale), ..affine }
    }

    /// The scale that is stored for a wanted one, which may be negative.
    pub(crate) fn stored_scale(&self, scale: f32, arithmetic: ComputeDType) -> f32 {
        let size = scale.abs().max(EPSILON);
        let stored = match self.scale {
            ScaleType::PowerOfTwo => nearest_power_of_two(size),
            kind => kind.stored(kind.arithmetic(arithmetic).round(size)),
        };
        stored.copysign(scale)
    }

    /// The parameters among exponents `-2..=2` about those of `range` that leave the least squared error, for scales of
    /// powers of two.
    pub fn best_power_of_two(&self, values: &[f32], range: Range) -> Affine {
        let start = power_of_two(self.format, self.zero_point, range);
        let candidates = [-2, -1, 0, 1, 2].map(|i: i32| Affine { scale: start.scale * (-i as f32).exp2(), ..start });
        let errors = candidates.map(|affine| self.squared_error(values, affine));
        let best = (1..5).fold(0, |best, i| if errors[i] < errors[best] { i } else { best });
        candidates[best]
    }

    /// The squared error that quantizing `values` leaves.
    pub fn squared_error(&self, values: &[f32], affine: Affine) -> f64 {
        let inverse = 1.0 / affine.scale;
        let restored = |v: f32| dequantize(quantize(self.format, v, inverse, affine.zero_point), affine);
        values.iter().map(|v| f64::from(restored(*v) - v).powi(2)).sum()
    }
}

impl ScaleType {
    /// The precision of scale arithmetic.
    #[inline(always)]
    pub(crate) fn arithmetic(self, model: ComputeDType) -> ComputeDType {
        if self == ScaleType::Model { model } else { ComputeDType::F32 }
    }

    /// The scale as it is stored, at least the smallest number of the type: one of zero could not be divided by. A scale that the
    /// type does not hold stays as it is, beyond [`largest`](Self::largest), for roundings to refuse.
    #[inline(always)]
    pub(crate) fn stored(self, scale: f32) -> f32 {
        match self {
            ScaleType::F16 => {
                let rounded = ComputeDType::F16.round(scale).max(5.960_464_5e-8);
                if rounded <= self.largest() { rounded } else { scale }
            }
            ScaleType::Bf16 => ComputeDType::Bf16.round(scale),
            ScaleType::Model | ScaleType::F32 | ScaleType::PowerOfTwo => scale,
        }
    }

    /// The largest scale that can be stored.
    #[inline(always)]
    pub fn largest(self) -> f32 {
        if self == ScaleType::F16 { 65_504.0 } else { f32::MAX }
    }
}

/// The code of one value: [`Int::quantize`] for whole zero points; a float zero point is added before rounding.
pub fn quantize(format: Int, value: f32, inverse_scale: f32, zero_point: f64) -> i64 {
    if zero_point.fract() == 0.0 {
        return format.quantize(value, inverse_scale, zero_point as i64);
    }
    let code = (value * inverse_scale + zero_point as f32).round_ties_even();
    (code as i64).clamp(format.min(), format.max())
}

/// `(code - zero_point) * scale` in f32.
pub fn dequantize(code: i64, affine: Affine) -> f32 {
    (code as f64 - affine.zero_point) as f32 * affine.scale
}

#[inline(always)]
fn including_zero(range: Range) -> Range {
    Range { min: range.min.min(0.0), max: range.max.max(0.0) }
}

#[inline(always)]
fn symmetric(format: Int, range: Range, arithmetic: ComputeDType) -> Affine {
    let amax = including_zero(range).abs_max();
    let scale = arithmetic.round(amax / (format.steps() as f32 / 2.0)).max(EPSILON);
    Affine { scale, zero_point: middle(format) }
}

/// The code of zero in a symmetric scheme.
#[inline(always)]
fn middle(format: Int) -> f64 {
    if format.is_signed() { 0.0 } else { (format.max() / 2 + 1) as f64 }
}

#[inline(always)]
fn asymmetric(format: Int, range: Range, arithmetic: ComputeDType, quotient: ComputeDType) -> Affine {
    let range = including_zero(range);
    let scale = step(format, range, arithmetic).max(EPSILON);
    let below_zero = quotient.round(range.min / scale).round_ties_even();
    let zero_point = (format.min() as f64 - f64::from(below_zero)).clamp(format.min() as f64, format.max() as f64);
    Affine { scale, zero_point }
}

/// `(max - min) / N`. A width that overflows the type is taken in f64: the step itself fits.
#[inline(always)]
fn step(format: Int, range: Range, arithmetic: ComputeDType) -> f32 {
    let width = arithmetic.round(range.max - range.min);
    if width.is_finite() {
        return arithmetic.round(width / format.steps() as f32);
    }
    let width = f64::from(range.max) - f64::from(range.min);
    arithmetic.round((width / format.steps() as f64) as f32)
}

#[inline(always)]
fn float_zero_point(format: Int, range: Range, arithmetic: ComputeDType) -> Affine {
    let scale = step(format, range, arithmetic);
    let scale = if scale <= EPSILON { 1.0 } else { scale };
    let below_zero = arithmetic.round(-range.min / scale);
    Affine { scale, zero_point: format.min() as f64 + f64::from(below_zero) }
}

/// The power of two nearest in the logarithm to the plain scale, and the zero point that goes with it.
fn power_of_two(format: Int, zero_point: ZeroPoint, range: Range) -> Affine {
    let range = including_zero(range);
    let amax = range.abs_max();
    let (min, max) = if zero_point == ZeroPoint::Zero { (-amax, amax) } else { (range.min, range.max) };
    let (qmin, steps) = (format.min() as f32, format.steps() as f32);
    let scale = (max - min) / steps;
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let rough_zero_point = (qmin - min / scale).trunc();
    let scale = nearest_power_of_two(scale);
    let rounded_min = ((qmin - rough_zero_point) * scale).min(0.0);
    let exact = f64::from((qmin - rounded_min / scale).round_ties_even());
    let zero_point = if zero_point == ZeroPoint::Zero { middle(format) } else { exact };
    Affine { scale, zero_point }
}

impl FloatScheme {
    /// The scale of elements whose largest magnitude is `amax`, as it is stored; `global_scale` is that of the whole
    /// tensor where the scheme has one ([`global_scale`](Self::global_scale)).
    ///
    /// * plain: `amax / max`, [`EPSILON`] for zeros,
    /// * e8m0: [`shared_scale`],
    /// * e5m3: `amax / max` rounded to e5m3,
    /// * of the tensor: `amax / (global_scale * max)` rounded to the block scale's format; 1 where that is zero.
    #[inline(always)]
    pub fn scale(&self, amax: f32, arithmetic: ComputeDType, global_scale: f32) -> f32 {
        match self.scale {
            FloatScale::Plain(scale) => {
                let exact = scale.arithmetic(arithmetic).round(amax / self.format.max());
                scale.stored(if exact == 0.0 { EPSILON } else { exact })
            }
            FloatScale::E8m0(rule) => shared_scale(rule, self.format, amax),
            FloatScale::E5m3 => rounded_to(MiniFloat::E5M3, arithmetic.round(amax / self.format.max())),
            FloatScale::E4m3WithGlobal => self.block_scale(MiniFloat::E4M3, amax, global_scale),
            FloatScale::E5m3WithGlobal => self.block_scale(MiniFloat::E5M3, amax, global_scale),
        }
    }

    /// The scale that is stored for a wanted one, next to that of the whole tensor.
    pub(crate) fn stored_scale(&self, scale: f32, arithmetic: ComputeDType, global_scale: f32) -> f32 {
        let block_scale = |format: MiniFloat| {
            let scale = rounded_to(format, scale / global_scale);
            if scale == 0.0 { 1.0 } else { scale }
        };
        match self.scale {
            FloatScale::Plain(kind) => kind.stored(kind.arithmetic(arithmetic).round(scale).max(EPSILON)),
            FloatScale::E8m0(_) => nearest_power_of_two(scale),
            FloatScale::E5m3 => rounded_to(MiniFloat::E5M3, arithmetic.round(scale)),
            FloatScale::E4m3WithGlobal => block_scale(MiniFloat::E4M3),
            FloatScale::E5m3WithGlobal => block_scale(MiniFloat::E5M3),
        }
    }

    #[inline(always)]
    fn block_scale(&self, format: MiniFloat, amax: f32, global_scale: f32) -> f32 {
        let scale = rounded_to(format, amax / (global_scale * self.format.max()));
        if scale == 0.0 { 1.0 } else { scale }
    }

    /// The f32 scale of the whole tensor, `amax / (max of block scales * max of elements)`, [`EPSILON`] for zeros; `None`
    /// where the scheme has no such level.
    pub fn global_scale(&self, amax: f32) -> Option<f32> {
        let block_max = match self.scale {
            FloatScale::E4m3WithGlobal => MiniFloat::E4M3.max(),
            FloatScale::E5m3WithGlobal => MiniFloat::E5M3.max(),
            _ => return None,
        };
        let scale = amax / (block_max * self.format.max());
        Some(if scale == 0.0 { EPSILON } else { scale })
    }
}

/// The power of two nearest in the logarithm.
fn nearest_power_of_two(scale: f32) -> f32 {
    scale.clamp(f32::MIN_POSITIVE, f32::MAX).log2().round_ties_even().clamp(-126.0, 127.0).exp2()
}

#[inline(always)]
fn rounded_to(format: MiniFloat, value: f32) -> f32 {
    format.round(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::TensorScheme;

    fn int(text: &str) -> IntScheme {
        match text.parse() {
            Ok(TensorScheme::Int(scheme)) => scheme,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn range(min: f32, max: f32) -> Range {
        Range { min, max }
    }

    #[test]
    fn symmetric_scale_divides_by_half_the_steps() {
        let affine = int("int4:tensor").parameters(range(-3.0, 7.5), ComputeDType::F32);
        assert_eq!((affine.scale, affine.zero_point), (1.0, 0.0));
    }

    #[test]
    fn unsigned_symmetric_keeps_negative_values() {
        let scheme = int("uint8:tensor");
        let affine = scheme.parameters(range(-1.0, 1.0), ComputeDType::F32);
        assert_eq!(affine.zero_point, 128.0);
        assert!(scheme.squared_error(&[-0.9, 0.9], affine) < 1e-4);
    }

    #[test]
    fn asymmetric_range_includes_zero() {
        let affine = int("uint4:tensor:zp").parameters(range(3.0, 15.0), ComputeDType::F32);
        assert_eq!((affine.scale, affine.zero_point), (1.0, 0.0));
        let affine = int("int8:tensor:zp").parameters(range(-1.0, 254.0), ComputeDType::F32);
        assert_eq!((affine.scale, affine.zero_point), (1.0, -127.0));
    }

    #[test]
    fn float_zero_points_work_for_signed_integers() {
        let scheme = int("int4:tensor:fzp");
        let values = [5.0, 5.5, 6.1, 7.0];
        let affine = scheme.parameters(range(5.0, 7.0), ComputeDType::F32);
        assert!(scheme.squared_error(&values, affine) < 0.02);
    }

    #[test]
    fn power_of_two_scales_are_exact_and_search_is_no_worse() {
        let scheme = int("int8:tensor:pow2");
        let values: Vec<f32> = (0..100).map(|i| (i as f32 * 0.9).sin() * 3.3).collect();
        let range = range(-3.3, 3.3);
        let (plain, best) = (scheme.parameters(range, ComputeDType::F32), scheme.best_power_of_two(&values, range));
        assert_eq!((plain.scale, plain.zero_point), (1.0 / 32.0, 0.0));
        assert!(scheme.squared_error(&values, best) <= scheme.squared_error(&values, plain));
    }

    #[test]
    fn zeros_have_positive_scales() {
        for text in ["int4:tensor", "uint8:tensor:zp", "int8:tensor:pow2", "uint4:tensor:fzp", "int8:tensor:f16"] {
            assert!(int(text).parameters(range(0.0, 0.0), ComputeDType::Bf16).scale > 0.0, "{text}");
        }
    }
}
