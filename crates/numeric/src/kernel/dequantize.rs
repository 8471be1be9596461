//! From unpacked codes to values: the inverse of the codes' kernels. Not the unpacking: see [`crate::pack`].

use crate::format::MiniFloat;
use crate::simd::{Isa, Loop, dispatch};

/// The unscaled value of a code of at most eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeKind {
    /// An integer of this many bits, in two's complement where it is signed. Higher bits of the byte must be 0 or, where
    /// the code has eight bits, are its own.
    Integer {
        /// Bits of a code.
        bits: u32,
        /// Whether codes are in two's complement.
        signed: bool,
    },
    /// An integer of this many bits stored with `2^(bits - 1)` added.
    OffsetInteger {
        /// Bits of a code.
        bits: u32,
    },
    /// A float.
    Float(MiniFloat),
}

/// The scales and zero points of one row of codes.
#[derive(Clone, Copy, Debug)]
pub struct RowScales<'a> {
    /// One scale for every group that the row touches.
    pub scales: &'a [f32],
    /// As many zero points, which floats do not have; none where zero is 0.
    pub zero_points: &'a [f32],
    /// Codes of a group.
    pub group: usize,
    /// Codes of the row that belong to the first group: fewer than `group` where the row starts inside one.
    pub first: usize,
}

/// `(code - zero_point) * scale` of integers, `code * scale` of floats, one rounding each, for a row of codes.
pub fn dequantize_row(isa: Isa, kind: CodeKind, codes: &[u8], scales: RowScales<'_>, out: &mut [f32]) {
    match kind {
        CodeKind::Integer { .. } | CodeKind::OffsetInteger { .. } => {
            dispatch(isa, Groups { decoder: IntegerDecoder::new(kind), codes, scales, out });
        }
        CodeKind::Float(format) => {
            let decoder = FloatDecoder::new(format);
            #[cfg(target_arch = "aarch64")]
            if let Some(by_hand) = isa.neon().and_then(|neon| neon.decoder(format)) {
                let RowScales { scales, group, first, .. } = scales;
                let count = codes.len().min(out.len());
                let mut start = 0;
                for (index, scale) in scales.iter().enumerate() {
                    let end = count.min(if index == 0 { first } else { start + group });
                    let decode = |code| FloatDecoder::decode(decoder, code);
                    by_hand.scaled(&codes[start..end], *scale, &mut out[start..end], decode);
                    start = end;
                }
                return;
            }
            dispatch(isa, Groups { decoder, codes, scales, out });
        }
    }
}

/// [`dequantize_row`] where code `i` belongs to group `groups[i]`.
pub fn dequantize_gathered(
    kind: CodeKind,
    codes: &[u8],
    groups: &[u32],
    scales: &[f32],
    zero_points: &[f32],
    out: &mut [f32],
) {
    for ((code, group), out) in codes.iter().zip(groups).zip(out) {
        let group = *group as usize;
        *out = kind.value(*code, zero_points.get(group).copied().unwrap_or(0.0)) * scales[group];
    }
}

impl CodeKind {
    /// `code - zero_point` of integers, the value of floats: the specification of the loops.
    #[inline(always)]
    pub fn value(self, code: u8, zero_point: f32) -> f32 {
        match self {
            CodeKind::Integer { .. } | CodeKind::OffsetInteger { .. } => {
                IntegerDecoder::new(self).value(code, zero_point)
            }
            CodeKind::Float(format) => format.decode(code),
        }
    }
}

/// An integer is `(code ^ flip) - offset`.
#[derive(Clone, Copy)]
pub(crate) struct IntegerDecoder {
    flip: u8,
    offset: f32,
}

impl IntegerDecoder {
    /// Of an integer kind.
    pub(crate) fn new(kind: CodeKind) -> IntegerDecoder {
        let half = |bits: u32| 1u8 << (bits - 1);
        match kind {
            CodeKind::Integer { bits, signed: true } => {
                IntegerDecoder { flip: half(bits), offset: f32::from(half(bits)) }
            }
            CodeKind::OffsetInteger { bits } => IntegerDecoder { flip: 0, offset: f32::from(half(bits)) },
            _ => IntegerDecoder { flip: 0, offset: 0.0 },
        }
    }

    /// Exact except for non-integer zero points.
    #[inline(always)]
    fn value(self, code: u8, zero_point: f32) -> f32 {
        (f32::from(code ^ self.flip) - self.offset) - zero_point
    }
}

struct Groups<'a, D> {
    decoder: D,
    codes: &'a [u8],
    scales: RowScales<'a>,
    out: &'a mut [f32],
}

impl<D: CodeDecoder> Loop for Groups<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RowScales { scales, zero_points, group, first } = self.scales;
        let (mut codes, mut out, mut length) = (self.codes, self.out, first);
        for (index, scale) in scales.iter().enumerate() {
            let zero_point = zero_points.get(index).copied().unwrap_or(0.0);
            let (head, rest) = codes.split_at(length.min(codes.len()));
            let (values, others) = std::mem::take(&mut out).split_at_mut(head.len());
            for (code, value) in head.iter().zip(values) {
                *value = self.decoder.decode(*code, zero_point) * *scale;
            }
            (codes, out, length) = (rest, others, group);
        }
    }
}

/// [`MiniFloat::decode`] without branches or tables.
#[derive(Clone, Copy)]
pub(crate) struct FloatDecoder {
    /// Exponent and mantissa.
    fields: u32,
    /// Codes below are subnormal.
    normal_from: u32,
    /// Codes from here on are NaN, but for an infinity.
    special_from: u32,
    infinity: u32,
    /// The left shift of the fields of an `f32`.
    shift: u32,
    /// The offset of the exponent field.
    rebias: u32,
    /// The value of the least bit of a subnormal.
    step: f32,
    sign: u32,
    sign_shift: u32,
}

impl FloatDecoder {
    pub(crate) fn new(format: MiniFloat) -> FloatDecoder {
        let mantissa = format.mantissa_bits();
        let sign = if format.is_signed() { 1 << (format.bits() - 1) } else { 0 };
        let special_from = format.special_from().map_or(u32::MAX, u32::from);
        FloatDecoder {
            fields: (1 << (format.bits() - u32::from(format.is_signed()))) - 1,
            normal_from: 1 << mantissa,
            special_from,
            infinity: if format.has_infinity() { special_from } else { u32::MAX },
            shift: 23 - mantissa,
            rebias: ((127 - format.bias()) as u32) << 23,
            step: crate::format::pow2(1 - format.bias() - mantissa as i32),
            sign,
            sign_shift: 32 - format.bits(),
        }
    }

    #[inline(always)]
    fn decode(self, code: u8) -> f32 {
        let code = u32::from(code);
        let fields = code & self.fields;
        let normal = (fields << self.shift) + self.rebias;
        // Codes are small: through i32, which every instruction set converts.
        let subnormal = (fields as i32 as f32 * self.step).to_bits();
        let finite = if fields < self.normal_from { subnormal } else { normal };
        let special = if fields == self.infinity { f32::INFINITY.to_bits() } else { f32::NAN.to_bits() };
        let magnitude = if fields >= self.special_from { special } else { finite };
        f32::from_bits(magnitude | (code & self.sign) << self.sign_shift)
    }
}

/// From one code to its value, without its scale.
pub(crate) trait CodeDecoder: Copy {
    fn decode(self, code: u8, zero_point: f32) -> f32;
}

impl CodeDecoder for IntegerDecoder {
    #[inline(always)]
    fn decode(self, code: u8, zero_point: f32) -> f32 {
        self.value(code, zero_point)
    }
}

/// Floats have no zero point.
impl CodeDecoder for FloatDecoder {
    #[inline(always)]
    fn decode(self, code: u8, _: f32) -> f32 {
        FloatDecoder::decode(self, code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> Vec<CodeKind> {
        let integers = (2..=8).flat_map(|bits| {
            [false, true]
                .map(|signed| CodeKind::Integer { bits, signed })
                .into_iter()
                .chain([CodeKind::OffsetInteger { bits }])
        });
        integers.chain(MiniFloat::all().into_iter().map(CodeKind::Float)).collect()
    }

    fn bits_of(kind: CodeKind) -> u32 {
        match kind {
            CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => bits,
            CodeKind::Float(format) => format.bits(),
        }
    }

    #[test]
    fn float_codes_decode_as_specified_on_every_isa() {
        let codes: Vec<u8> = (0..=255).collect();
        for isa in Isa::available() {
            for format in MiniFloat::all() {
                let mut out = vec![0.0; 256];
                let scales = RowScales { scales: &[1.0], zero_points: &[], group: 256, first: 256 };
                dequantize_row(isa, CodeKind::Float(format), &codes, scales, &mut out);
                for (code, value) in codes.iter().zip(&out) {
                    let expected = format.decode(*code);
                    let same = value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan());
                    assert!(same, "{format:?} {code:#x} {value:e} {}", isa.name());
                }
            }
        }
    }

    #[test]
    fn integer_codes_decode_as_specified() {
        let value = |kind: CodeKind, code| kind.value(code, 3.0);
        assert_eq!(value(CodeKind::Integer { bits: 4, signed: true }, 0xF), -4.0);
        assert_eq!(value(CodeKind::Integer { bits: 4, signed: false }, 0xF), 12.0);
        assert_eq!(value(CodeKind::OffsetInteger { bits: 4 }, 0xF), 4.0);
        assert_eq!(value(CodeKind::Integer { bits: 8, signed: true }, 0x80), -131.0);
    }

    proptest! {
        #[test]
        fn dequantize_loops_match_the_specification(codes in prop::collection::vec(any::<u8>(), 1..300), group in 1usize..70, first in 1usize..70) {
            let first = first.min(group).min(codes.len());
            let count = 1 + (codes.len() - first).div_ceil(group);
            let scales: Vec<f32> = (0..count).map(|i| 0.37 + i as f32 * 0.11).collect();
            let zero_points: Vec<f32> = (0..count).map(|i| (i % 7) as f32).collect();
            for kind in kinds() {
                let codes: Vec<u8> = codes.iter().map(|c| c & ((1u16 << bits_of(kind)) - 1) as u8).collect();
                let groups: Vec<u32> = (0..codes.len()).map(|i| if i < first { 0 } else { 1 + ((i - first) / group) as u32 }).collect();
                let mut expected = vec![0.0; codes.len()];
                dequantize_gathered(kind, &codes, &groups, &scales, &zero_points, &mut expected);
                for isa in Isa::available() {
                    let mut out = vec![0.0; codes.len()];
                    let row = RowScales { scales: &scales, zero_points: &zero_points, group, first };
                    dequantize_row(isa, kind, &codes, row, &mut out);
                    let same = out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
                    prop_assert!(same, "{:?} {}", kind, isa.name());
                }
            }
        }
    }
}
