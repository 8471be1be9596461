//! The formulas of [`crate::parameters`] for many groups at once, compiled per instruction set. Not the formulas.

use crate::parameters::{Affine, EPSILON};
use crate::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, ZeroPoint};
use kvant_numeric::ComputeDType;
use kvant_numeric::format::ScaleRule;
use kvant_numeric::kernel::{AffineStep, Range};
use kvant_numeric::simd::Loop;

/// Scales and zero points of ranges.
pub(crate) struct Affines<'a> {
    pub(crate) scheme: IntScheme,
    pub(crate) arithmetic: ComputeDType,
    pub(crate) ranges: &'a [Range],
    pub(crate) affines: &'a mut [Affine],
}

impl Loop for Affines<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.scheme.scale.arithmetic(self.arithmetic) {
            ComputeDType::F32 => self.all(ComputeDType::F32),
            ComputeDType::F16 => self.all(ComputeDType::F16),
            ComputeDType::Bf16 => self.all(ComputeDType::Bf16),
        }
    }
}

impl Affines<'_> {
    /// With what is the same for all groups written out, the compiler makes a loop without branches of each.
    #[inline(always)]
    fn all(self, arithmetic: ComputeDType) {
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
    fn each(self, scheme: IntScheme, arithmetic: ComputeDType) {
        for (affine, range) in self.affines.iter_mut().zip(self.ranges) {
            *affine = scheme.parameters(*range, arithmetic);
        }
    }
}

/// Scales and integer zero points as the kernels need them.
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
    pub(crate) arithmetic: ComputeDType,
    pub(crate) global_scale: f32,
    pub(crate) amaxes: &'a [f32],
    pub(crate) scales: &'a mut [f32],
}

impl Loop for Scales<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // As in `Affines::all`.
        match self.scheme.scale {
            FloatScale::E8m0(ScaleRule::Even) => self.each(FloatScale::E8m0(ScaleRule::Even), ComputeDType::F32),
            FloatScale::E4m3WithGlobal => self.each(FloatScale::E4m3WithGlobal, ComputeDType::F32),
            FloatScale::E5m3WithGlobal => self.each(FloatScale::E5m3WithGlobal, ComputeDType::F32),
            FloatScale::E5m3 if self.arithmetic == ComputeDType::Bf16 => {
                self.each(FloatScale::E5m3, ComputeDType::Bf16)
            }
            scale => {
                let arithmetic = self.arithmetic;
                self.each(scale, arithmetic);
            }
        }
    }
}

impl Scales<'_> {
    #[inline(always)]
    fn each(self, scale: FloatScale, arithmetic: ComputeDType) {
        let scheme = FloatScheme { scale, ..self.scheme };
        for (scale, amax) in self.scales.iter_mut().zip(self.amaxes) {
            *scale = scheme.scale(*amax, arithmetic, self.global_scale);
        }
    }
}

/// The divisor of elements: the product of both scales. An e5m3 scale may be zero, where all codes are zero too.
pub(super) struct Divisors<'a> {
    pub(super) scales: &'a [f32],
    pub(super) global_scale: Option<f32>,
    pub(super) divisors: &'a mut [f32],
}

impl Loop for Divisors<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (divisor, scale) in self.divisors.iter_mut().zip(self.scales) {
            let product = self.global_scale.map_or(*scale, |global_scale| scale * global_scale);
            *divisor = if product > 0.0 { product } else { EPSILON };
        }
    }
}
