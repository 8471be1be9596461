//! From the bytes of a checkpoint to `f32`. Exact for every source type. Not the types of whole checkpoints, which also
//! have integers that nobody quantizes.

use super::elements::{Elements, dispatch_elements};
use crate::arithmetic::ComputeDType;
use crate::element_loop::{Element, ElementLoop};
use crate::format::MiniFloat;
use crate::simd::Isa;

/// An element type that weights come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatDType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// fp8 e4m3fn; such weights have scales beside them.
    E4m3,
    /// fp8 e5m2; such weights have scales beside them.
    E5m2,
}

impl FloatDType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            FloatDType::F32 => 4,
            FloatDType::F16 | FloatDType::Bf16 => 2,
            FloatDType::E4m3 | FloatDType::E5m2 => 1,
        }
    }

    /// The precision in which tools that keep the model's type compute scales.
    pub fn arithmetic(self) -> ComputeDType {
        match self {
            FloatDType::F32 => ComputeDType::F32,
            FloatDType::F16 => ComputeDType::F16,
            FloatDType::Bf16 | FloatDType::E4m3 | FloatDType::E5m2 => ComputeDType::Bf16,
        }
    }

    /// The least positive normal number of the type.
    pub fn smallest_normal(self) -> f32 {
        match self {
            FloatDType::F16 => 6.103_515_6e-5,
            _ => f32::MIN_POSITIVE,
        }
    }
}

/// Widens little-endian elements to `f32`. `bytes` needs no alignment; elements beyond the shorter of the two are left.
pub fn widen(isa: Isa, source: FloatDType, bytes: &[u8], out: &mut [f32]) {
    match Elements::stored(source, bytes) {
        Some(elements) => widen_elements(isa, elements, out),
        None if source == FloatDType::E5m2 => widen_codes(isa, MiniFloat::E5M2, bytes, out),
        None => widen_codes(isa, MiniFloat::E4M3, bytes, out),
    }
}

/// [`widen`] of elements as they come.
pub fn widen_elements(isa: Isa, elements: Elements<'_>, out: &mut [f32]) {
    #[cfg(target_arch = "aarch64")]
    if let (Some(neon), Elements::F16(stored)) = (isa.neon(), elements) {
        return neon.widen_f16(stored, out);
    }
    dispatch_elements(isa, elements, Widen { out });
}

struct Widen<'a> {
    out: &'a mut [f32],
}

impl ElementLoop for Widen<'_> {
    #[inline(always)]
    fn run<E: Element>(self, elements: &[E::Stored]) {
        for (out, element) in self.out.iter_mut().zip(elements) {
            *out = E::widen(E::bits(*element));
        }
    }
}

#[cfg_attr(not(target_arch = "aarch64"), expect(unused_variables))]
fn widen_codes(isa: Isa, format: MiniFloat, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "aarch64")]
    if let Some(by_hand) = isa.neon().and_then(|neon| neon.decoder(format)) {
        let count = bytes.len().min(out.len());
        return by_hand.scaled(&bytes[..count], 1.0, &mut out[..count], |code| format.decode(code));
    }
    let table: [f32; 256] = std::array::from_fn(|code| format.decode(code as u8));
    for (out, code) in out.iter_mut().zip(bytes) {
        *out = table[usize::from(*code)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::{bf16_to_f32, f16_to_f32};

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn every_half_pattern_widens_on_every_isa_unaligned() {
        let bytes: Vec<u8> = std::iter::once(0).chain((0..=u16::MAX).flat_map(u16::to_le_bytes)).collect();
        for isa in Isa::available() {
            for (source, scalar) in [(FloatDType::F16, f16_to_f32 as fn(u16) -> f32), (FloatDType::Bf16, bf16_to_f32)] {
                let mut out = vec![0.0; 65_536];
                widen(isa, source, &bytes[1..], &mut out);
                let expected: Vec<f32> = (0..=u16::MAX).map(scalar).collect();
                assert_eq!(bits(&out), bits(&expected), "{source:?} on {}", isa.name());
            }
        }
    }

    #[test]
    fn f32_and_fp8_widen_and_keep_tails() {
        for isa in Isa::available() {
            for length in 0..40 {
                let values: Vec<f32> = (0..length).map(|i| i as f32 * -1.25).collect();
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                let mut out = vec![7.0; length + 1];
                widen(isa, FloatDType::F32, &bytes, &mut out);
                assert_eq!((&out[..length], out[length]), (values.as_slice(), 7.0));
            }
        }
        let mut out = [0.0; 2];
        widen(Isa::best(), FloatDType::E4m3, &[0x7E, 0x80], &mut out);
        assert_eq!(bits(&out), bits(&[448.0, -0.0]));
    }

    #[test]
    fn every_fp8_code_widens_as_specified_on_every_isa() {
        for (source, format) in [(FloatDType::E4m3, MiniFloat::E4M3), (FloatDType::E5m2, MiniFloat::E5M2)] {
            // Codes that are not finite beside such that are, and alone; and some left over.
            let codes: Vec<u8> = (0..=255).chain((0..=255).map(|code: u8| code.wrapping_mul(7))).chain(0..9).collect();
            let expected: Vec<f32> = codes.iter().map(|code| format.decode(*code)).collect();
            for isa in Isa::available() {
                let mut out = vec![0.0; codes.len()];
                widen(isa, source, &codes, &mut out);
                assert_eq!(bits(&out), bits(&expected), "{source:?} on {}", isa.name());
            }
        }
    }
}
