//! Codes of small floats with AVX-512.
#![allow(unsafe_code)]

use super::{BLOCK, Runs, fetch_ahead, in_order, load, store};
use crate::arithmetic::ComputeDType;
use crate::element_loop::{Element, ElementLoop, FloatCodes, Scaling};
use crate::format::Encoder;
use std::arch::x86_64::*;

/// The codes, in the variant of the loop for their scaling.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn codes_of_scaling<E: Element>(body: FloatCodes<'_>, elements: &[E::Stored]) {
    match body.scaling {
        Scaling::PowerOfTwo => codes::<E, Product>(body, elements),
        Scaling::Divide(ComputeDType::F32) => codes::<E, Quotient>(body, elements),
        Scaling::Divide(ComputeDType::Bf16) => codes::<E, Bf16Quotient>(body, elements),
        Scaling::Divide(ComputeDType::F16) => codes::<E, F16Quotient>(body, elements),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn codes<E: Element, S: Scaled>(body: FloatCodes<'_>, elements: &[E::Stored]) {
    let encoder = VectorEncoder::new(Encoder::new(body.format));
    let runs = Runs::new(body.group, elements.len());
    let parts = elements.chunks(runs.elements).zip(body.codes.chunks_mut(runs.elements));
    for ((elements, codes), scales) in parts.zip(body.scales.chunks(runs.groups)) {
        let (blocks, tail) = elements.as_chunks();
        let (code_blocks, codes) = codes.as_chunks_mut();
        for (i, (block, codes)) in blocks.iter().zip(code_blocks).enumerate() {
            fetch_ahead(block);
            store(float_block::<E, S>(block, runs.four(scales, i), &encoder), codes);
        }
        FloatCodes { scales: runs.rest(scales, blocks.len()), codes, ..body }.run::<E>(tail);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn float_block<E: Element, S: Scaled>(
    block: &[E::Stored; BLOCK],
    scales: [f32; 4],
    encoder: &VectorEncoder,
) -> __m512i {
    // SAFETY: this function has the features that `Scaled` requires.
    let scaled: [__m512; 4] = unsafe {
        [
            S::at(load::<E>(block, 0), scales[0]),
            S::at(load::<E>(block, 1), scales[1]),
            S::at(load::<E>(block, 2), scales[2]),
            S::at(load::<E>(block, 3), scales[3]),
        ]
    };
    let low = _mm512_packs_epi32(encoder.encode(scaled[0]), encoder.encode(scaled[1]));
    let high = _mm512_packs_epi32(encoder.encode(scaled[2]), encoder.encode(scaled[3]));
    let codes = in_order(_mm512_packus_epi16(low, high));
    // A negative zero that is not kept.
    let kept = _mm512_cmpneq_epi8_mask(codes, encoder.dropped_zero);
    _mm512_maskz_mov_epi8(kept, codes)
}

/// How values are brought to their scale: [`Scaling`] as a type.
trait Scaled {
    /// # Safety
    /// The CPU has AVX-512 (F, BW, DQ and VL).
    unsafe fn at(values: __m512, scale: f32) -> __m512;
}

struct Product;
struct Quotient;
struct Bf16Quotient;
struct F16Quotient;

impl Scaled for Product {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn at(values: __m512, scale: f32) -> __m512 {
        _mm512_mul_ps(values, _mm512_set1_ps(1.0 / scale))
    }
}

impl Scaled for Quotient {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn at(values: __m512, scale: f32) -> __m512 {
        _mm512_div_ps(values, _mm512_set1_ps(scale))
    }
}

impl Scaled for Bf16Quotient {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn at(values: __m512, scale: f32) -> __m512 {
        round_to_bf16(_mm512_div_ps(values, _mm512_set1_ps(scale)))
    }
}

impl Scaled for F16Quotient {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn at(values: __m512, scale: f32) -> __m512 {
        let quotient = _mm512_div_ps(values, _mm512_set1_ps(scale));
        _mm512_cvtph_ps(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(quotient))
    }
}

/// [`crate::arithmetic::round_to_bf16`] of numbers that are not NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_to_bf16(values: __m512) -> __m512 {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
    let up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
    let up = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
    _mm512_castsi512_ps(_mm512_and_epi32(up, _mm512_set1_epi32(0xFFFF_0000u32 as i32)))
}

/// An [`Encoder`] of a signed format, in vectors.
struct VectorEncoder {
    drop: __m512i,
    drop_in_exponent: __m512i,
    least_normal: __m512i,
    largest: __m512,
    rebias: __m512i,
    sign_shift: __m512i,
    sign: __m512i,
    /// The code of a negative zero where that becomes zero, else the code 0.
    dropped_zero: __m512i,
}

impl VectorEncoder {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn new(encoder: Encoder) -> VectorEncoder {
        let dropped_zero = if encoder.negative_zero == 0 { encoder.sign } else { 0 };
        VectorEncoder {
            drop: _mm512_set1_epi32(encoder.drop as i32),
            drop_in_exponent: _mm512_set1_epi32((encoder.drop << 23) as i32),
            least_normal: _mm512_set1_epi32(encoder.least_normal as i32),
            largest: _mm512_set1_ps(f32::from_bits(encoder.largest)),
            rebias: _mm512_set1_epi32(encoder.rebias as i32),
            sign_shift: _mm512_set1_epi32(encoder.sign_shift as i32),
            sign: _mm512_set1_epi32(encoder.sign as i32),
            dropped_zero: _mm512_set1_epi8(dropped_zero as i8),
        }
    }

    /// [`Encoder::encode`], in 32-bit lanes, with all negative zeros kept.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn encode(&self, values: __m512) -> __m512i {
        // The smaller of the magnitudes.
        let magnitude = _mm512_range_ps::<0b1010>(values, self.largest);
        let exponent = _mm512_and_epi32(_mm512_castps_si512(magnitude), _mm512_set1_epi32(0x7F80_0000));
        let shift = _mm512_add_epi32(_mm512_max_epu32(exponent, self.least_normal), self.drop_in_exponent);
        let rounded = _mm512_castps_si512(_mm512_add_ps(magnitude, _mm512_castsi512_ps(shift)));
        let mantissa = _mm512_sub_epi32(rounded, shift);
        let exponent = _mm512_sub_epi32(_mm512_srlv_epi32(shift, self.drop), self.rebias);
        let code = _mm512_add_epi32(mantissa, exponent);
        let sign = _mm512_srlv_epi32(_mm512_castps_si512(values), self.sign_shift);
        // code | (sign & self.sign)
        _mm512_ternarylogic_epi32::<0b1111_1000>(code, sign, self.sign)
    }
}
