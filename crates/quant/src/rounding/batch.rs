//! The formulas of [`crate::parameters`] for many groups at once, compiled per instruction set. Not the formulas.

use crate::parameters::{Affine, EPSILON};
use crate::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, ZeroPoint};
use kvant_numeric::Arithmetic;
use kvant_numeric::format::ScaleRule;
use kvant_numeric::kernel::{AffineStep, Range};
use kvant_numeric::simd::Loop;

/// Scales and zero points of ranges.
pub(crate) struct Affines<'a> {
    pub(crate) scheme: IntScheme,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) ranges: &'a [Range],
    pub(crate) affines: &'a mut [Affine],
}

impl Loop for Affines<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.scheme.scale.arithmetic(self.arithmetic) {
            Arithmetic::F32 => self.all(Arithmetic::F32),
            Arithmetic::F16 => self.all(Arithmetic::F16),
            Arithmetic::Bf16 => self.all(Arithmetic::Bf16),
        }
    }
}

impl Affines<'_> {
    /// With what is the same for all groups written out, the compiler makes a loop without branches of each.
    #[inline(always)]
    fn all(self, arithmetic: Arithmetic) {
        let scheme = self.scheme;
        match (scheme.scale, scheme.zero_point) {
            (ScaleType::Model, ZeroPoint::Zero) => {
                self.each(IntScheme { scale: ScaleType::Model, zero_point: ZeroPoint::Zero, ..scheme }, arithmetic);
            }
            (ScaleType::Model, ZeroPoint::Integer) => {
                self.each(IntScheme { scale: ScaleType::Model, zero_point: ZeroPoint::Integer, ..scheme }, arithmetic);
            }
            _ => self.each(scheme, arithmetic),
        }
    }

    #[inline(always)]
    fn each(self, scheme: IntScheme, arithmetic: Arithmetic) {
        for (affine, range) in self.affines.iter_mut().zip(self.ranges) {
            *affine = scheme.parameters(*range, arithmetic);
        }
    }
}

/// What the kernels need of scales and whole zero points.
pub(super) struct Steps<'a> {
    pub(super) affines: &'a [Affine],
    pub(super) steps: &'a mut [AffineStep],
}

impl Loop for Steps<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (step, affine) in self.steps.iter_mut().zip(self.affines) {
            *step = AffineStep { inverse_scale: 1.0 / affine.scale, zero_point: affine.zero_point as i32 };
        }
    }
}

/// Scales of largest magnitudes.
pub(crate) struct Scales<'a> {
    pub(crate) scheme: FloatScheme,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) tensor_scale: f32,
    pub(crate) amaxes: &'a [f32],
    pub(crate) scales: &'a mut [f32],
}

impl Loop for Scales<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // As in `Affines::all`.
        match self.scheme.scale {
            FloatScale::E8m0(ScaleRule::Even) => self.each(FloatScale::E8m0(ScaleRule::Even), Arithmetic::F32),
            FloatScale::E4m3OfTensor => self.each(FloatScale::E4m3OfTensor, Arithmetic::F32),
            FloatScale::E5m3OfTensor => self.each(FloatScale::E5m3OfTensor, Arithmetic::F32),
            FloatScale::E5m3 if self.arithmetic == Arithmetic::Bf16 => self.each(FloatScale::E5m3, Arithmetic::Bf16),
            scale => {
                let arithmetic = self.arithmetic;
                self.each(scale, arithmetic);
            }
        }
    }
}

impl Scales<'_> {
    #[inline(always)]
    fn each(self, scale: FloatScale, arithmetic: Arithmetic) {
        let scheme = FloatScheme { scale, ..self.scheme };
        for (scale, amax) in self.scales.iter_mut().zip(self.amaxes) {
            *scale = scheme.scale(*amax, arithmetic, self.tensor_scale);
        }
    }
}

/// What elements are divided by: the product of both scales. An e5m3 scale may be zero, where all codes are zero too.
pub(super) struct Divisors<'a> {
    pub(super) scales: &'a [f32],
    pub(super) tensor_scale: Option<f32>,
    pub(super) divisors: &'a mut [f32],
}

impl Loop for Divisors<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (divisor, scale) in self.divisors.iter_mut().zip(self.scales) {
            let product = self.tensor_scale.map_or(*scale, |tensor_scale| scale * tensor_scale);
            *divisor = if product > 0.0 { product } else { EPSILON };
        }
    }
}
