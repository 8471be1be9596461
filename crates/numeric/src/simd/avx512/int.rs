//! Integer codes with AVX-512.

use super::{BLOCK, Runs, fetch_ahead, in_order, load, store};
use crate::element_loop::{AffineStep, Element, ElementLoop, IntCodes};
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn codes<E: Element>(body: IntCodes<'_>, elements: &[E::Stored]) {
    let runs = Runs::new(body.group, elements.len());
    let parts = elements.chunks(runs.elements).zip(body.codes.chunks_mut(runs.elements));
    for ((elements, codes), steps) in parts.zip(body.steps.chunks(runs.groups)) {
        let (blocks, tail) = elements.as_chunks();
        let (code_blocks, codes) = codes.as_chunks_mut();
        for (i, (block, codes)) in blocks.iter().zip(code_blocks).enumerate() {
            fetch_ahead(block);
            store(int_block::<E>(block, runs.four(steps, i), body.min, body.max), codes);
        }
        IntCodes { steps: runs.rest(steps, blocks.len()), codes, ..body }.run::<E>(tail);
    }
}

/// Zero points in 16 bits, packed lane by lane as the codes are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn zero_points(a: AffineStep, b: AffineStep) -> __m512i {
    _mm512_packs_epi32(_mm512_set1_epi32(a.zero_point), _mm512_set1_epi32(b.zero_point))
}

/// Rounds to integers, of which packing saturates to 16 bits; adds zero points, saturating; saturates to 8 bits, and to the
/// format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn int_block<E: Element>(block: &[E::Stored; BLOCK], steps: [AffineStep; 4], min: i32, max: i32) -> __m512i {
    let [a, b, c, d] = steps;
    let low = _mm512_packs_epi32(rounded(load::<E>(block, 0), a), rounded(load::<E>(block, 1), b));
    let high = _mm512_packs_epi32(rounded(load::<E>(block, 2), c), rounded(load::<E>(block, 3), d));
    let low = _mm512_adds_epi16(low, zero_points(a, b));
    let high = _mm512_adds_epi16(high, zero_points(c, d));
    if min < 0 {
        let packed = _mm512_min_epi8(_mm512_packs_epi16(low, high), _mm512_set1_epi8(max as i8));
        return in_order(_mm512_max_epi8(packed, _mm512_set1_epi8(min as i8)));
    }
    in_order(_mm512_min_epu8(_mm512_packus_epi16(low, high), _mm512_set1_epi8(max as i8)))
}

/// The product rounded half to even; what is too large for 32 bits stays large, what is too small becomes the least.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rounded(values: __m512, step: AffineStep) -> __m512i {
    let inverse_scale = _mm512_set1_ps(step.inverse_scale);
    let large = _mm512_set1_ps(32_767.0);
    _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(values, inverse_scale), large))
}
