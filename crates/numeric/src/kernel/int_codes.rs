//! Integer codes of slices, for formats of at most eight bits. Wider formats have too few users to need more than the
//! scalar [`Int::quantize`].

use super::elements::{Elements, dispatch_elements};
pub use crate::element_loop::AffineStep;
use crate::element_loop::IntCodes;
use crate::format::Int;
use crate::simd::Isa;

/// Codes of `values`, one byte each (two's complement for signed formats), with one step for every `group` consecutive
/// values. Values must be finite. `format` has at most eight bits.
pub fn quantize_int(isa: Isa, format: Int, values: &[f32], group: usize, steps: &[AffineStep], codes: &mut [u8]) {
    element_codes(isa, format, Elements::Values(values), group, steps, codes);
}

/// [`quantize_int`] of elements as they come.
pub fn element_codes(
    isa: Isa,
    format: Int,
    elements: Elements<'_>,
    group: usize,
    steps: &[AffineStep],
    codes: &mut [u8],
) {
    let (min, max) = (format.min() as i32, format.max() as i32);
    let body = IntCodes { group, steps, min, max, codes };
    #[cfg(target_arch = "x86_64")]
    if let Some(avx512) = isa.avx512().filter(|avx512| avx512.takes(group)) {
        return super::elements::visit_elements(elements, avx512.by_hand(body));
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(neon) = isa.neon().filter(|neon| neon.takes(group)) {
        return super::elements::visit_elements(elements, neon.by_hand(body));
    }
    dispatch_elements(isa, elements, body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int_codes_match_the_specification_on_every_isa() {
        let formats = [Int::INT2, Int::INT3, Int::INT4, Int::INT5, Int::INT8, Int::UINT2, Int::UINT4, Int::UINT8];
        let values: Vec<f32> = (0..531).map(|i| ((i as f32) * 1.7).sin() * 0.5 * i as f32 / 8.0).collect();
        for isa in Isa::available() {
            for format in formats {
                for group in [1, 16, 32, 100, 128, 531] {
                    let steps: Vec<AffineStep> = (0..531usize.div_ceil(group))
                        .map(|g| AffineStep {
                            inverse_scale: 0.5 + g as f32 % 3.0,
                            zero_point: (format.min() + g as i64 % 3) as i32,
                        })
                        .collect();
                    let mut codes = vec![0; values.len()];
                    quantize_int(isa, format, &values, group, &steps, &mut codes);
                    for (i, code) in codes.iter().enumerate() {
                        let step = steps[i / group];
                        let expected = format.quantize(values[i], step.inverse_scale, i64::from(step.zero_point));
                        assert_eq!(*code, expected as u8, "{format:?} {} at {i}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn int_code_ties_and_extremes() {
        let values = [0.5, 1.5, 2.5, -0.5, -2.5, 3e38, -3e38, 1e-40, -0.0];
        for isa in Isa::available() {
            let mut codes = [0; 9];
            quantize_int(isa, Int::INT8, &values, 9, &[AffineStep { inverse_scale: 1.0, zero_point: 0 }], &mut codes);
            assert_eq!(codes.map(|c| c as i8), [0, 2, 2, 0, -2, 127, -128, 0, 0]);
            quantize_int(isa, Int::INT8, &values, 9, &[AffineStep { inverse_scale: 1e38, zero_point: 0 }], &mut codes);
            assert_eq!(codes.map(|c| c as i8), [127, 127, 127, -128, -128, 127, -128, 0, 0]);
        }
    }
}
