//! Codes of small floats with NEON.

use super::{BLOCK, Groups, low_bytes, sign_bytes, store, widened};
use crate::arithmetic::ComputeDType;
use crate::element_loop::{Element, ElementLoop, FloatCodes, Scaling};
use crate::format::Encoder;
use std::arch::aarch64::*;

/// The codes, in the variant of the loop for their scaling.
#[target_feature(enable = "neon")]
pub(super) fn codes_of_scaling<E: Element>(body: FloatCodes<'_>, elements: &[E::Stored]) {
    match body.scaling {
        Scaling::PowerOfTwo => codes::<E, Product>(body, elements),
        Scaling::Divide(ComputeDType::F32) => codes::<E, Quotient>(body, elements),
        Scaling::Divide(ComputeDType::Bf16) => codes::<E, Bf16Quotient>(body, elements),
        Scaling::Divide(ComputeDType::F16) => codes::<E, F16Quotient>(body, elements),
    }
}

#[target_feature(enable = "neon")]
fn codes<E: Element, S: Scaled>(body: FloatCodes<'_>, elements: &[E::Stored]) {
    let FloatCodes { format, scaling, group, scales, codes } = body;
    let encoder = VectorEncoder::new(Encoder::new(format));
    let blocks = |index: usize, elements: &[[E::Stored; BLOCK]], codes: &mut [[u8; BLOCK]]| {
        let factor = vdupq_n_f32(S::factor(scales[index]));
        for (block, codes) in elements.iter().zip(codes) {
            // SAFETY: NEON is part of the architecture.
            let scaled = unsafe { S::at(widened::<E>(block), factor) };
            // Scales are positive: a code has the sign of its element.
            store(encoder.encode(scaled, sign_bytes::<E>(block)), codes);
        }
    };
    let rest = |index: usize, elements: &[E::Stored], codes: &mut [u8]| {
        FloatCodes { format, scaling, group, scales: &scales[index..=index], codes }.run::<E>(elements);
    };
    Groups::<E> { elements, codes, group }.each(blocks, rest);
}

/// How values are brought to their scale: [`Scaling`] as a type.
trait Scaled {
    /// What they are multiplied with or divided by.
    #[inline(always)]
    fn factor(scale: f32) -> f32 {
        scale
    }

    /// # Safety
    /// The CPU has NEON.
    unsafe fn at(values: [float32x4_t; 4], factor: float32x4_t) -> [float32x4_t; 4];
}

struct Product;
struct Quotient;
struct Bf16Quotient;
struct F16Quotient;

impl Scaled for Product {
    #[inline(always)]
    fn factor(scale: f32) -> f32 {
        1.0 / scale
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn at(values: [float32x4_t; 4], factor: float32x4_t) -> [float32x4_t; 4] {
        values.map(|values| vmulq_f32(values, factor))
    }
}

impl Scaled for Quotient {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn at(values: [float32x4_t; 4], factor: float32x4_t) -> [float32x4_t; 4] {
        values.map(|values| vdivq_f32(values, factor))
    }
}

impl Scaled for Bf16Quotient {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn at(values: [float32x4_t; 4], factor: float32x4_t) -> [float32x4_t; 4] {
        values.map(|values| round_to_bf16(vdivq_f32(values, factor)))
    }
}

impl Scaled for F16Quotient {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn at(values: [float32x4_t; 4], factor: float32x4_t) -> [float32x4_t; 4] {
        values.map(|values| vcvt_f32_f16(vcvt_f16_f32(vdivq_f32(values, factor))))
    }
}

/// [`crate::arithmetic::round_to_bf16`] of numbers that are not NaN.
#[inline]
#[target_feature(enable = "neon")]
fn round_to_bf16(values: float32x4_t) -> float32x4_t {
    let bits = vreinterpretq_u32_f32(values);
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    let up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
    vreinterpretq_f32_u32(vandq_u32(up, vdupq_n_u32(0xFFFF_0000)))
}

/// An [`Encoder`] of a signed format, in vectors.
struct VectorEncoder {
    drop: int32x4_t,
    drop_in_exponent: uint32x4_t,
    least_normal: uint32x4_t,
    largest: float32x4_t,
    rebias: uint8x16_t,
    sign_shift: int8x16_t,
    sign: uint8x16_t,
    /// The code of a negative zero where that becomes zero, else the code 0.
    dropped_zero: uint8x16_t,
}

impl VectorEncoder {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(encoder: Encoder) -> VectorEncoder {
        let dropped_zero = if encoder.negative_zero == 0 { encoder.sign } else { 0 };
        VectorEncoder {
            drop: vdupq_n_s32(-(encoder.drop as i32)),
            drop_in_exponent: vdupq_n_u32(encoder.drop << 23),
            least_normal: vdupq_n_u32(encoder.least_normal),
            largest: vdupq_n_f32(f32::from_bits(encoder.largest)),
            rebias: vdupq_n_u8(encoder.rebias as u8),
            sign_shift: vdupq_n_s8(24 - encoder.sign_shift as i8),
            sign: vdupq_n_u8(encoder.sign as u8),
            dropped_zero: vdupq_n_u8(dropped_zero as u8),
        }
    }

    /// [`Encoder::encode`]. Only the lowest bytes of its sums count: those of what is added to them, too.
    #[inline]
    #[target_feature(enable = "neon")]
    fn encode(&self, values: [float32x4_t; 4], signs: uint8x16_t) -> uint8x16_t {
        let sums = values.map(|values| {
            let magnitude = vminnmq_f32(vabsq_f32(values), self.largest);
            let exponent = vandq_u32(vreinterpretq_u32_f32(magnitude), vdupq_n_u32(0x7F80_0000));
            let shift = vaddq_u32(vmaxq_u32(exponent, self.least_normal), self.drop_in_exponent);
            let rounded = vreinterpretq_u32_f32(vaddq_f32(magnitude, vreinterpretq_f32_u32(shift)));
            // The mantissa of the shift is zero.
            vaddq_u32(rounded, vshlq_u32(shift, self.drop))
        });
        let code = vsubq_u8(low_bytes(sums), self.rebias);
        let code = vbslq_u8(self.sign, vshlq_u8(signs, self.sign_shift), code);
        vbicq_u8(code, vceqq_u8(code, self.dropped_zero))
    }
}
