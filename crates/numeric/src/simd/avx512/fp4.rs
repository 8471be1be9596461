//! MXFP4 codes of bfloat16 with AVX-512: with a scale that is a power of two, an element's code follows from its sixteen
//! bits, so that twice as many fit a vector. Not other formats, whose tables would not fit two vectors.

use super::{BLOCK, Runs, fetch_ahead, store};
use crate::element_loop::{Element, ElementLoop, FloatCodes, Scaling, StoredFloat};
use crate::format::{Encoder, MiniFloat};
use std::arch::x86_64::*;

/// Bits of a bfloat16 below those that look a code up; whether one of them is set is looked up, too.
const BELOW: u32 = 5;
/// Entries of the table for elements with none of the bits below; as many follow for those with some.
const ENTRIES: usize = 32;
/// The exponent at which the table begins, biased as in a bfloat16: that of 1/8, which is code 0 as all below it.
const FIRST: i16 = 127 - 3;

/// Whether the loop is one for this file: bfloat16 in groups of whole vectors at scales that are powers of two, none so
/// small that an element without an implicit one could have a code other than 0.
pub(super) fn takes<E: Element>(body: &FloatCodes<'_>) -> bool {
    let format =
        E::FLOAT == StoredFloat::Brain && body.format == MiniFloat::E2M1 && body.scaling == Scaling::PowerOfTwo;
    let fits =
        |scale: &f32| scale.to_bits() & 0x007F_FFFF == 0 && (2.0f32.powi(-123)..=2.0f32.powi(127)).contains(scale);
    format && body.group >= ENTRIES && body.scales.iter().all(fits)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn codes<E: Element>(body: FloatCodes<'_>, elements: &[E::Stored]) {
    let tables = tables(body.format);
    let runs = Runs::new(body.group, elements.len());
    let parts = elements.chunks(runs.elements).zip(body.codes.chunks_mut(runs.elements));
    for ((elements, codes), scales) in parts.zip(body.scales.chunks(runs.groups)) {
        let (blocks, tail) = elements.as_chunks();
        let (code_blocks, codes) = codes.as_chunks_mut();
        for (i, (block, codes)) in blocks.iter().zip(code_blocks).enumerate() {
            fetch_ahead(block);
            let [low, _, high, _] = runs.four(scales, i);
            let low = look_up(words::<E>(block, 0), low, tables);
            let high = look_up(words::<E>(block, 1), high, tables);
            let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            store(_mm512_permutexvar_epi64(order, _mm512_packus_epi16(low, high)), codes);
        }
        FloatCodes { scales: runs.rest(scales, blocks.len()), codes, ..body }.run::<E>(tail);
    }
}

/// The bit patterns of half a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn words<E: Element>(block: &[E::Stored; BLOCK], half: usize) -> __m512i {
    let mut words = [0u16; BLOCK / 2];
    for (word, element) in words.iter_mut().zip(&block[half * (BLOCK / 2)..]) {
        *word = (E::widen(E::bits(*element)).to_bits() >> 16) as u16;
    }
    super::load_words(&words)
}

/// The codes of magnitudes by the upper bits of their bfloat16, without and with bits below.
fn tables(format: MiniFloat) -> [[u16; ENTRIES]; 2] {
    let encoder = Encoder::new(format);
    [0, 1].map(|below| {
        std::array::from_fn(|entry| {
            let word = ((FIRST as u32) << 7) + ((entry as u32) << BELOW) + below;
            u16::from(encoder.encode(f32::from_bits(word << 16)))
        })
    })
}

/// The codes of 32 elements at one scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up(words: __m512i, scale: f32, tables: [[u16; ENTRIES]; 2]) -> __m512i {
    // The exponent of the scale and that of the table's beginning go off at once; what is below it becomes its beginning.
    let exponent = (scale.to_bits() >> 23) as i16 - 127;
    let begin = _mm512_set1_epi16((FIRST + exponent) << 7);
    let last = _mm512_set1_epi16(((ENTRIES as i16) << BELOW) - 1);
    let magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7FFF));
    let magnitude = _mm512_min_epu16(_mm512_subs_epu16(magnitude, begin), last);
    let below = _mm512_test_epi16_mask(magnitude, _mm512_set1_epi16((1 << BELOW) - 1));
    let entry = _mm512_srli_epi16::<BELOW>(magnitude);
    let entry = _mm512_mask_add_epi16(entry, below, entry, _mm512_set1_epi16(ENTRIES as i16));
    let [without, with] = tables;
    let codes = _mm512_permutex2var_epi16(super::load_words(&without), entry, super::load_words(&with));
    // fp4 loses the sign of a zero.
    let negative = _mm512_movepi16_mask(words) & _mm512_test_epi16_mask(codes, codes);
    _mm512_mask_add_epi16(codes, negative, codes, _mm512_set1_epi16(8))
}
