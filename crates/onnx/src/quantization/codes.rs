//! Values to codes, and codes to bytes.

use half::{bf16, f16};
use kvant_numeric::format::MiniFloat;
use kvant_numeric::pack::packed_bits;
use kvant_numeric::simd::{Isa, Loop, dispatch};

use super::{Affine, CodeRange};
use crate::element::Element;

/// The code of a value: `clamp(round(value / scale) + zero_point)`, half to even, in f32. NaN becomes the zero point.
pub fn quantize_value(value: f32, affine: Affine, codes: CodeRange) -> i64 {
    let code = (value / affine.scale).round_ties_even() + affine.zero_point as f32;
    if code.is_nan() {
        return affine.zero_point;
    }
    (code as i64).clamp(codes.min, codes.max)
}

/// [`quantize_value`] of many values, on the best instruction set.
pub fn quantize_values(values: &[f32], affine: Affine, codes: CodeRange, made: &mut [i32]) {
    dispatch(Isa::best(), CodeLoop { values, affine, codes, made });
}

struct CodeLoop<'a> {
    values: &'a [f32],
    affine: Affine,
    codes: CodeRange,
    made: &'a mut [i32],
}

impl Loop for CodeLoop<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Affine { scale, zero_point } = self.affine;
        let bound = |code: i64| code.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        let (low, high, of_nan) = (bound(self.codes.min), bound(self.codes.max), bound(zero_point));
        for (made, &value) in self.made.iter_mut().zip(self.values) {
            let code = (value / scale).round_ties_even() + zero_point as f32;
            *made = if code.is_nan() { of_nan } else { (code as i32).clamp(low, high) };
        }
    }
}

/// The stored number of a value in an element type other than an integer: the bits of its float.
pub fn encode(value: f32, element: Element, scale: f32) -> i64 {
    match element {
        Element::Float16 => i64::from(f16::from_f32(value / scale).to_bits()),
        Element::BFloat16 => i64::from(bf16::from_f32(value / scale).to_bits()),
        Element::Float8E4M3 => i64::from(MiniFloat::E4M3.encode(value / scale)),
        Element::Float8E5M2 => i64::from(MiniFloat::E5M2.encode(value / scale)),
        _ => i64::from((value / scale).to_bits()),
    }
}

/// Codes as the raw data of a tensor: little-endian, two 4-bit codes to a byte, the first in the low half.
pub fn pack(codes: &[i64], element: Element) -> Vec<u8> {
    use Element::*;
    match element {
        Int4 | UInt4 => packed_bits(&codes.iter().map(|&code| code as u8).collect::<Vec<_>>(), 4),
        Int8 | UInt8 | Float8E4M3 | Float8E5M2 => codes.iter().map(|&code| code as u8).collect(),
        Int16 | UInt16 | Float16 | BFloat16 => codes.iter().flat_map(|&code| (code as u16).to_le_bytes()).collect(),
        Int32 | UInt32 | Block(_) => codes.iter().flat_map(|&code| (code as u32).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_to_even_and_stay_in_range() {
        let codes = Element::Int8.range(true).unwrap();
        let affine = Affine { scale: 0.5, zero_point: 0 };
        let code = |value| quantize_value(value, affine, codes);
        assert_eq!([code(0.25), code(0.75), code(1e9), code(-1e9), code(f32::NAN)], [0, 2, 127, -127, 0]);
    }

    #[test]
    fn vectorized_codes_equal_single_codes() {
        let mut values: Vec<f32> = (-300..300).map(|i| i as f32 * 0.37).collect();
        values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e-40]);
        for element in [Element::Int4, Element::UInt8, Element::Int16, Element::Int32] {
            let codes = element.full_range().unwrap();
            let affine = Affine { scale: 0.3, zero_point: 3 };
            let mut made = vec![0; values.len()];
            quantize_values(&values, affine, codes, &mut made);
            let expected: Vec<i64> = values.iter().map(|&v| quantize_value(v, affine, codes)).collect();
            assert_eq!(made.iter().map(|&code| i64::from(code)).collect::<Vec<_>>(), expected, "{element}");
        }
    }

    #[test]
    fn codes_are_packed_by_dtype() {
        assert_eq!(pack(&[-1, 2, 7], Element::Int4), [0x2f, 0x07]);
        assert_eq!(pack(&[-2, 3], Element::Int8), [254, 3]);
        assert_eq!(pack(&[-2], Element::Int16), [254, 255]);
        assert_eq!(pack(&[-2], Element::Int32), [254, 255, 255, 255]);
    }

    #[test]
    fn floats_are_stored_as_their_bits() {
        assert_eq!(encode(1.0, Element::BFloat16, 1.0), 0x3f80);
        assert_eq!(encode(1.0, Element::Float16, 1.0), 0x3c00);
        assert_eq!(encode(448.0, Element::Float8E4M3, 1.0), 0x7e);
    }
}
