//! NaN and infinite values among the floats of a tensor, and where they are.

use kvant_numeric::kernel::{FloatDType, widen};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Bytes that one thread looks at at a time.
const PIECE: usize = 1 << 20;

/// Bytes that are looked at before it is known whether one is broken.
const STRIP: usize = 16 << 10;

/// The first element that is NaN or infinite, and its value.
pub fn first_not_finite(bytes: &[u8], source: FloatDType) -> Option<(usize, f32)> {
    let size = source.size();
    let exponent = match source {
        FloatDType::F32 | FloatDType::Bf16 => 0x7f80,
        FloatDType::F16 => 0x7c00,
        // Codes, which the reader of their scales looks at.
        FloatDType::E4m3 | FloatDType::E5m2 => return None,
    };
    let is_in = if size == 2 { any_not_finite::<2> } else { any_not_finite::<4> };
    let first_in = |piece: &[u8]| {
        let (strip, bytes) = piece.chunks(STRIP).enumerate().find(|(_, bytes)| is_in(bytes, exponent))?;
        let at = bytes.chunks_exact(size).position(|element| is_in(element, exponent))?;
        Some(strip * (STRIP / size) + at)
    };
    let pieces = bytes.par_chunks(PIECE).enumerate();
    let (piece, at) = pieces.filter_map(|(piece, bytes)| Some((piece, first_in(bytes)?))).min()?;
    let index = piece * (PIECE / size) + at;
    let mut value = [0.0];
    widen(Isa::best(), source, &bytes[index * size..(index + 1) * size], &mut value);
    Some((index, value[0]))
}

/// Whether any element of `SIZE` bytes has all bits of the exponent, which are in its upper half. It looks at all of them, which takes less
/// than half of the time for 16 bits: without an end at the first one it is vectorized.
fn any_not_finite<const SIZE: usize>(bytes: &[u8], exponent: u16) -> bool {
    bytes.chunks_exact(SIZE).fold(false, |found, element| {
        found | (u16::from_le_bytes([element[SIZE - 2], element[SIZE - 1]]) & exponent == exponent)
    })
}

/// An element's indices, outermost first.
pub fn place(index: usize, shape: &[usize]) -> Vec<usize> {
    let (mut rest, mut place) = (index, Vec::with_capacity(shape.len()));
    for size in shape.iter().rev() {
        place.push(rest % size.max(&1));
        rest /= size.max(&1);
    }
    place.reverse();
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_non_finite_value_is_found_in_every_dtype() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.5_f32; PIECE];
            (values[PIECE / 2 + 7], values[PIECE - 1]) = (broken, f32::NAN);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let (index, value) = first_not_finite(&bytes, FloatDType::F32).unwrap();
            assert_eq!((index, value.to_bits()), (PIECE / 2 + 7, broken.to_bits()));
        }
        // 1, the largest number, infinity.
        let [f16, bf16] = [[0x3c00_u16, 0x7bff, 0xfc00], [0x3f80, 0x7f7f, 0xff80]];
        for (source, values) in [(FloatDType::F16, f16), (FloatDType::Bf16, bf16)] {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(first_not_finite(&bytes, source), Some((2, f32::NEG_INFINITY)));
            assert_eq!(first_not_finite(&bytes[..4], source), None);
        }
    }

    #[test]
    fn flat_index_becomes_a_position_in_the_shape() {
        assert_eq!((place(17, &[4, 5]), place(3, &[9]), place(0, &[])), (vec![3, 2], vec![3], vec![]));
    }
}
