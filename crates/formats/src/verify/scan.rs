//! Passes over the bytes of tensors, in pieces, and what they count. Not what of it is good or bad.

use kvant_container::{Dtype, TensorView};
use kvant_numeric::simd::Isa;
use kvant_weights::parts::ScaleEncoding;
use kvant_weights::weight::decode_scales;

/// Bytes that are looked at before their pages are given back.
const PIECE: usize = 8 << 20;

/// The counts of scales.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scales {
    pub count: usize,
    pub not_finite: usize,
    pub negative: usize,
    pub zero: usize,
    /// Too small for a full mantissa.
    pub subnormal: usize,
    pub largest: f32,
    /// How many there are with each exponent of an f32.
    exponents: Vec<u32>,
}

impl Scales {
    /// How many powers of two the largest is above the median.
    pub fn spread(&self) -> u32 {
        let total: u32 = self.exponents.iter().sum();
        let mut below = 0;
        let median = self.exponents.iter().position(|count| {
            below += count;
            below * 2 > total
        });
        let largest = self.exponents.iter().rposition(|count| *count > 0);
        largest.zip(median).map_or(0, |(largest, median)| (largest - median) as u32)
    }
}

/// Counts scales.
pub(crate) fn scales(view: TensorView<'_>, encoding: ScaleEncoding) -> Scales {
    let mut found = Scales { exponents: vec![0; 256], ..Scales::default() };
    let smallest = smallest_normal(encoding);
    let mut values = Vec::new();
    for piece in view.pieces(PIECE) {
        values.resize(piece.len() / encoding.size(), 0.0);
        decode_scales(Isa::best(), encoding, piece, &mut values);
        values.iter().for_each(|value| found.add(*value, smallest));
    }
    view.release();
    found
}

impl Scales {
    fn add(&mut self, value: f32, smallest: f32) {
        self.count += 1;
        match value {
            _ if !value.is_finite() => self.not_finite += 1,
            _ if value < 0.0 => self.negative += 1,
            0.0 => self.zero += 1,
            _ => {
                self.subnormal += usize::from(value < smallest);
                self.largest = self.largest.max(value);
                self.exponents[(value.to_bits() >> 23) as usize & 0xFF] += 1;
            }
        }
    }
}

/// The least number with a full mantissa. Of types with few exponents, subnormal numbers are as good as others.
fn smallest_normal(encoding: ScaleEncoding) -> f32 {
    match encoding {
        ScaleEncoding::F16 => 2.0f32.powi(-14),
        ScaleEncoding::F32 | ScaleEncoding::Bf16 => f32::MIN_POSITIVE,
        ScaleEncoding::E4m3 | ScaleEncoding::E5m3 | ScaleEncoding::E8m0 => 0.0,
    }
}

/// The findings among floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floats {
    /// Some of them are not finite.
    NotFinite(usize),
    /// All are 0.
    Zero,
    /// Neither.
    Finite,
}

/// Looks at floats; `None` for other types.
pub(crate) fn floats(view: TensorView<'_>) -> Option<Floats> {
    // The exponent's bits, all of which are set in what is not finite; all bits but the sign.
    let found = match view.dtype() {
        Dtype::BF16 => pieces(view, |piece| count16(piece, 0x7F80)),
        Dtype::F16 => pieces(view, |piece| count16(piece, 0x7C00)),
        Dtype::F32 => pieces(view, count32),
        _ => return None,
    };
    Some(match found {
        (0, true) if view.byte_len() > 0 => Floats::Zero,
        (0, _) => Floats::Finite,
        (not_finite, _) => Floats::NotFinite(not_finite),
    })
}

/// Runs over all pieces: the sum of what is counted, and whether all are 0.
fn pieces(view: TensorView<'_>, count: impl Fn(&[u8]) -> (usize, bool)) -> (usize, bool) {
    let (mut sum, mut zero) = (0, true);
    for piece in view.pieces(PIECE) {
        let (found, is_zero) = count(piece);
        (sum, zero) = (sum + found, zero && is_zero);
    }
    view.release();
    (sum, zero)
}

fn count16(piece: &[u8], exponent: u16) -> (usize, bool) {
    let (mut found, mut bits) = (0u32, 0u16);
    for word in piece.as_chunks::<2>().0 {
        let word = u16::from_le_bytes(*word);
        found += u32::from(word & exponent == exponent);
        bits |= word & 0x7FFF;
    }
    (found as usize, bits == 0)
}

fn count32(piece: &[u8]) -> (usize, bool) {
    let (mut found, mut bits) = (0u32, 0u32);
    for word in piece.as_chunks::<4>().0 {
        let word = u32::from_le_bytes(*word);
        found += u32::from(word & 0x7F80_0000 == 0x7F80_0000);
        bits |= word & 0x7FFF_FFFF;
    }
    (found as usize, bits == 0)
}

/// How many bytes of a tensor are fp8 codes of no number: magnitudes from `least` on.
pub(crate) fn codes_of_no_number(view: TensorView<'_>, least: u8) -> usize {
    let count = |piece: &[u8]| {
        // Short sums stay in bytes, which is what makes this as fast as memory.
        let short =
            piece.chunks(255).map(|part| part.iter().fold(0u8, |sum, code| sum + u8::from(code & 0x7F >= least)));
        (short.map(usize::from).sum(), true)
    };
    pieces(view, count).0
}

/// Returns whether all bytes of a tensor are the same; stops at the first that is not.
pub(crate) fn is_constant(view: TensorView<'_>) -> bool {
    view.bytes().first().is_some_and(|first| is_all(view, *first))
}

/// Returns whether all bytes are this; stops at the first that is not.
pub(crate) fn is_all(view: TensorView<'_>, byte: u8) -> bool {
    let all = view.pieces(PIECE).all(|piece| piece.iter().all(|found| *found == byte));
    view.release();
    all
}

/// Returns whether two tensors have the same bytes; stops at the first that differ.
pub(crate) fn are_same(one: TensorView<'_>, other: TensorView<'_>) -> bool {
    let same = one.byte_len() == other.byte_len() && one.pieces(PIECE).eq(other.pieces(PIECE));
    one.release();
    other.release();
    same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_values_are_counted() {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(count32(&bytes(&[0.0, -0.0])), (0, true));
        assert_eq!(count32(&bytes(&[1.0, f32::NAN, f32::INFINITY])), (2, false));
        let halves =
            |values: &[f32]| values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(count16(&halves(&[3.0e38, f32::NEG_INFINITY]), 0x7F80), (1, false));
    }

    #[test]
    fn scale_spread_is_measured_above_the_median() {
        let mut found = Scales { exponents: vec![0; 256], ..Scales::default() };
        [1.0, 1.5, 1.25, 0.001, 4096.0, 0.0, -1.0, f32::NAN].iter().for_each(|value| found.add(*value, 0.01));
        assert_eq!((found.spread(), found.largest), (12, 4096.0));
        assert_eq!((found.count, found.not_finite, found.negative, found.zero, found.subnormal), (8, 1, 1, 1, 1));
    }
}
