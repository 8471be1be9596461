//! F32, F16 and BF16: plain floats in little-endian order, blocks of one element. Not scaled formats.

use super::block::{Encode, Layout, Rows, encode_blocks};
use super::scale::f16_bits;
use crate::kernel::{FloatDType, narrow_to_bf16, widen};
use crate::simd::Isa;

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Layout for F32 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 4;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_blocks::<F32, 1, 4>(isa, rows.values, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        widen(isa, FloatDType::F32, bytes, out);
    }
}

/// Ties to even; values beyond 65504 saturate.
impl Layout for F16 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        let (values, out) = (rows.values, out.as_chunks_mut::<2>().0);
        #[cfg(target_arch = "aarch64")]
        let (values, out) = match isa.neon() {
            Some(neon) => {
                let done = neon.narrow_to_finite_f16(values, out);
                (&values[done..], &mut out[done..])
            }
            None => (values, out),
        };
        encode_blocks::<F16, 1, 2>(isa, values, out.as_flattened_mut());
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        widen(isa, FloatDType::F16, bytes, out);
    }
}

/// Ties to even.
impl Layout for Bf16 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        narrow_to_bf16(isa, rows.values, out.as_chunks_mut().0);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        widen(isa, FloatDType::Bf16, bytes, out);
    }
}

impl Encode<1, 4> for F32 {
    #[inline(always)]
    fn encode([value]: &[f32; 1], bytes: &mut [u8; 4]) {
        *bytes = value.to_le_bytes();
    }
}

impl Encode<1, 2> for F16 {
    #[inline(always)]
    fn encode([value]: &[f32; 1], bytes: &mut [u8; 2]) {
        *bytes = f16_bits(*value).to_le_bytes();
    }
}
