//! Elements as they come: numbers in memory, or the bytes of a checkpoint. Kernels take them without a pass that widens.
//! Not fp8, which comes with scales and is widened first.

use super::FloatDType;
use crate::element_loop::{Brain, Element, ElementLoop, Half, Single, Value};
use crate::simd::{Isa, Loop, dispatch, prefetch};
use std::ops;

/// A slice of elements of one type. Bytes are little-endian and need no alignment.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Numbers in memory.
    Values(&'a [f32]),
    /// Bytes of IEEE binary32.
    F32(&'a [[u8; 4]]),
    /// Bytes of IEEE binary16.
    F16(&'a [[u8; 2]]),
    /// Bytes of bfloat16.
    Bf16(&'a [[u8; 2]]),
}

impl<'a> Elements<'a> {
    /// The elements in bytes of a checkpoint, bytes of an unfinished last one left out; `None` for fp8.
    pub fn stored(source: FloatDType, bytes: &'a [u8]) -> Option<Elements<'a>> {
        match source {
            FloatDType::F32 => Some(Elements::F32(bytes.as_chunks().0)),
            FloatDType::F16 => Some(Elements::F16(bytes.as_chunks().0)),
            FloatDType::Bf16 => Some(Elements::Bf16(bytes.as_chunks().0)),
            FloatDType::E4m3 | FloatDType::E5m2 => None,
        }
    }

    /// The number of elements.
    pub fn len(self) -> usize {
        match self {
            Elements::Values(values) => values.len(),
            Elements::F32(stored) => stored.len(),
            Elements::F16(stored) | Elements::Bf16(stored) => stored.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Asks for elements that will be read soon, where the processor cannot guess it.
    pub fn prefetch(self) {
        match self {
            Elements::Values(values) => prefetch(values),
            Elements::F32(stored) => prefetch(stored),
            Elements::F16(stored) | Elements::Bf16(stored) => prefetch(stored),
        }
    }

    /// Some of the elements, which must exist.
    pub fn slice(self, range: ops::Range<usize>) -> Elements<'a> {
        match self {
            Elements::Values(values) => Elements::Values(&values[range]),
            Elements::F32(stored) => Elements::F32(&stored[range]),
            Elements::F16(stored) => Elements::F16(&stored[range]),
            Elements::Bf16(stored) => Elements::Bf16(&stored[range]),
        }
    }
}

/// Runs `body` on the elements.
pub(crate) fn visit_elements(elements: Elements<'_>, body: impl ElementLoop) {
    match elements {
        Elements::Values(elements) => body.run::<Value>(elements),
        Elements::F32(elements) => body.run::<Single>(elements),
        Elements::F16(elements) => body.run::<Half>(elements),
        Elements::Bf16(elements) => body.run::<Brain>(elements),
    }
}

/// Runs `body` on the elements in its variant for `isa`. All that it calls must be `#[inline(always)]`.
pub(crate) fn dispatch_elements(isa: Isa, elements: Elements<'_>, body: impl ElementLoop) {
    visit_elements(elements, Dispatched { isa, body });
}

struct Dispatched<L> {
    isa: Isa,
    body: L,
}

impl<L: ElementLoop> ElementLoop for Dispatched<L> {
    fn run<E: Element>(self, elements: &[E::Stored]) {
        dispatch(self.isa, Typed::<E, L> { elements, body: self.body });
    }
}

/// A loop whose elements have a known type.
struct Typed<'a, E: Element, L> {
    elements: &'a [E::Stored],
    body: L,
}

impl<E: Element, L: ElementLoop> Loop for Typed<'_, E, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.body.run::<E>(self.elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ComputeDType;
    use crate::format::{Int, MiniFloat};
    use crate::kernel::{
        AffineStep, Range, Scaling, element_abs_max, element_codes, element_ranges, encode_elements, widen_elements,
    };

    const GROUPS: [usize; 8] = [1, 16, 32, 48, 64, 100, 128, 333];

    /// Finite values of all exponents, subnormals and zeros among them, as bytes of a type, after one byte too many.
    fn bytes(source: FloatDType, count: usize) -> Vec<u8> {
        let mut state = 7u32;
        let mut word = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        // Every seventh is small, every eleventh a zero: the sign alone.
        let mut bits = |i: usize, exponent: u32, sign: u32| match i {
            i if i.is_multiple_of(11) => word() & sign,
            i if i.is_multiple_of(7) => word() & !exponent,
            _ => word() & !(exponent & exponent.wrapping_neg()),
        };
        let unaligned = std::iter::once(0);
        match source {
            FloatDType::F32 => {
                unaligned.chain((0..count).flat_map(|i| bits(i, 0x7F80_0000, 1 << 31).to_le_bytes())).collect()
            }
            FloatDType::F16 => {
                unaligned.chain((0..count).flat_map(|i| (bits(i, 0x7C00, 1 << 15) as u16).to_le_bytes())).collect()
            }
            _ => unaligned.chain((0..count).flat_map(|i| (bits(i, 0x7F80, 1 << 15) as u16).to_le_bytes())).collect(),
        }
    }

    /// Every instruction set with elements of every type, and their values.
    fn each_kind(mut check: impl FnMut(Isa, Elements<'_>, &[f32])) {
        for isa in Isa::available() {
            for source in [FloatDType::F32, FloatDType::F16, FloatDType::Bf16] {
                for count in [0, 1, 31, 64, 96, 333, 1024, 1111] {
                    let bytes = bytes(source, count);
                    let elements = Elements::stored(source, &bytes[1..]).unwrap();
                    let mut values = vec![0.0; count];
                    widen_elements(Isa::BASELINE, elements, &mut values);
                    check(isa, elements, &values);
                    check(isa, Elements::Values(&values), &values);
                }
            }
        }
    }

    #[test]
    fn element_ranges_match_their_values() {
        each_kind(|isa, elements, values| {
            for group in GROUPS {
                let count = values.len().div_ceil(group);
                let (mut amaxes, mut ranges) = (vec![0.0; count], vec![Range::EMPTY; count]);
                element_abs_max(isa, elements, group, &mut amaxes);
                element_ranges(isa, elements, group, &mut ranges);
                for ((values, amax), range) in values.chunks(group).zip(amaxes).zip(ranges) {
                    assert_eq!(amax, values.iter().fold(0.0f32, |max, v| max.max(v.abs())));
                    let each = values.iter().map(|v| Range { min: *v, max: *v });
                    assert_eq!(range, each.fold(Range::EMPTY, Range::join));
                }
            }
        });
    }

    #[test]
    fn non_finite_elements_are_seen_at_every_position() {
        for isa in Isa::available() {
            for (bad, group) in [(0x7F80u16, 16), (0xFF80, 32), (0x7FC1, 128), (0xFFC1, 16)] {
                for position in 0..640 {
                    let mut bytes: Vec<u8> = [0x80, 0x3F].repeat(640);
                    bytes[2 * position..][..2].copy_from_slice(&bad.to_le_bytes());
                    let elements = Elements::stored(FloatDType::Bf16, &bytes).unwrap();
                    let (mut amaxes, mut ranges) = (vec![0.0; 640 / group], vec![Range::EMPTY; 640 / group]);
                    element_abs_max(isa, elements, group, &mut amaxes);
                    element_ranges(isa, elements, group, &mut ranges);
                    let Range { min, max } = ranges[position / group];
                    assert!(!amaxes[position / group].is_finite());
                    assert!(!min.is_finite() || !max.is_finite());
                }
            }
        }
    }

    #[test]
    fn integer_codes_match_the_specification() {
        each_kind(|isa, elements, values| {
            for (format, group) in
                [Int::INT4, Int::UINT4, Int::INT8, Int::UINT8, Int::INT3].into_iter().zip(GROUPS.repeat(2))
            {
                let step = |g: usize| AffineStep {
                    inverse_scale: [1.0, 3e-30, 7.3e20, 0.37][g % 4],
                    zero_point: (format.min() + (g as i64 * 5) % (format.steps() + 1)) as i32,
                };
                let steps: Vec<AffineStep> = (0..values.len().div_ceil(group)).map(step).collect();
                let mut codes = vec![0xAA; values.len()];
                element_codes(isa, format, elements, group, &steps, &mut codes);
                for (i, (code, value)) in codes.iter().zip(values).enumerate() {
                    let AffineStep { inverse_scale, zero_point } = steps[i / group];
                    let expected = format.quantize(*value, inverse_scale, i64::from(zero_point));
                    assert_eq!(*code, expected as u8, "{format:?} g{group} {value:e} {}", isa.name());
                }
            }
        });
    }

    fn scaled(scaling: Scaling, value: f32, scale: f32) -> f32 {
        match scaling {
            Scaling::PowerOfTwo => value * (1.0 / scale),
            Scaling::Divide(arithmetic) => arithmetic.round(value / scale),
        }
    }

    #[test]
    fn float_codes_match_the_specification() {
        let formats = MiniFloat::all();
        let divisions = [ComputeDType::F32, ComputeDType::Bf16, ComputeDType::F16].map(Scaling::Divide);
        each_kind(|isa, elements, values| {
            for (i, group) in GROUPS.into_iter().enumerate() {
                for scaling in [Scaling::PowerOfTwo, divisions[0], divisions[1], divisions[2]] {
                    let format = formats[(i + values.len()) % formats.len()];
                    let plain = [0.37, 1e-12, 3.3e15, 1.0];
                    // 2^-127 is a subnormal.
                    let powers = [1.0, f32::from_bits(0x0040_0000), 2.0f32.powi(-110), 2.0f32.powi(100)];
                    let scales = if scaling == Scaling::PowerOfTwo { powers } else { plain };
                    let scales: Vec<f32> = scales.into_iter().cycle().take(values.len().div_ceil(group)).collect();
                    let mut codes = vec![0xAA; values.len()];
                    encode_elements(isa, format, scaling, elements, group, &scales, &mut codes);
                    for (i, (code, value)) in codes.iter().zip(values).enumerate() {
                        let expected = format.encode(scaled(scaling, *value, scales[i / group]));
                        assert_eq!(*code, expected, "{format:?} g{group} {scaling:?} {value:e} {}", isa.name());
                    }
                }
            }
        });
    }

    #[test]
    fn every_bf16_has_its_mxfp4_code_at_every_scale() {
        let bytes: Vec<u8> = (0..=u16::MAX).filter(|w| w & 0x7F80 != 0x7F80).flat_map(u16::to_le_bytes).collect();
        let elements = Elements::stored(FloatDType::Bf16, &bytes).unwrap();
        let mut values = vec![0.0; elements.len()];
        widen_elements(Isa::BASELINE, elements, &mut values);
        for isa in Isa::available() {
            for byte in 0..=254 {
                let scale = crate::format::e8m0_decode(byte);
                let mut codes = vec![0; values.len()];
                let scales = vec![scale; values.len() / 32];
                encode_elements(isa, MiniFloat::E2M1, Scaling::PowerOfTwo, elements, 32, &scales, &mut codes);
                let wrong =
                    values.iter().zip(&codes).find(|(v, code)| **code != MiniFloat::E2M1.encode(**v * (1.0 / scale)));
                assert_eq!(wrong, None, "scale {scale:e} {}", isa.name());
            }
        }
    }
}
