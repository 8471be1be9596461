//! Codes of floats of at most eight bits, for slices with one scale a group. Not how scales are found.

use super::elements::{Elements, dispatch_elements};
use crate::element_loop::FloatCodes;
pub use crate::element_loop::Scaling;
use crate::format::MiniFloat;
use crate::simd::Isa;

/// Codes of `values`, one byte each, with one scale for every `group` consecutive values: the value at its scale, rounded
/// half to even and saturated, as [`MiniFloat::encode`] says. Values must be finite, scales positive and finite.
pub fn encode_minifloat(
    isa: Isa,
    format: MiniFloat,
    scaling: Scaling,
    values: &[f32],
    group: usize,
    scales: &[f32],
    codes: &mut [u8],
) {
    encode_elements(isa, format, scaling, Elements::Values(values), group, scales, codes);
}

/// [`encode_minifloat`] of elements as they come.
pub fn encode_elements(
    isa: Isa,
    format: MiniFloat,
    scaling: Scaling,
    elements: Elements<'_>,
    group: usize,
    scales: &[f32],
    codes: &mut [u8],
) {
    let body = FloatCodes { format, scaling, group, scales, codes };
    #[cfg(target_arch = "x86_64")]
    if let Some(avx512) = isa.avx512().filter(|avx512| avx512.takes(group) && format.is_signed()) {
        return super::elements::visit_elements(elements, avx512.by_hand(body));
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(neon) = isa.neon().filter(|neon| neon.takes(group) && format.is_signed()) {
        return super::elements::visit_elements(elements, neon.by_hand(body));
    }
    dispatch_elements(isa, elements, body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ComputeDType;

    /// Every value, every midpoint and their float neighbours, of both signs, and what lies outside.
    fn probes(format: MiniFloat) -> Vec<f32> {
        let grid: Vec<f32> = (0..=format.max_code()).map(|c| format.decode(c)).collect();
        let middles = grid.windows(2).map(|w| w[0] + (w[1] - w[0]) / 2.0);
        let outside = [1e-45, 1e-38, 1e-20, 1e20, f32::MAX];
        let points: Vec<f32> = grid.iter().copied().chain(middles).chain(outside).collect();
        let near = points.iter().flat_map(|p| [p.next_down(), *p, p.next_up()]).filter(|p| p.is_finite());
        near.flat_map(|p| [p, -p]).collect()
    }

    #[test]
    fn minifloat_codes_match_the_specification_at_every_boundary() {
        for isa in Isa::available() {
            for format in MiniFloat::all() {
                let values = probes(format);
                let mut codes = vec![0; values.len()];
                encode_minifloat(isa, format, Scaling::PowerOfTwo, &values, values.len(), &[1.0], &mut codes);
                for (value, code) in values.iter().zip(&codes) {
                    assert_eq!(*code, format.encode(*value), "{format:?} {} {value:e}", isa.name());
                }
            }
        }
    }

    #[test]
    fn scales_apply_per_group_and_quotients_are_rounded() {
        let values: Vec<f32> = (0..203).map(|i| (i as f32 * 0.37).cos() * i as f32).collect();
        let scales: Vec<f32> = (0..7).map(|g| 0.3 + g as f32).collect();
        for isa in Isa::available() {
            for arithmetic in [ComputeDType::F32, ComputeDType::Bf16, ComputeDType::F16] {
                let mut codes = vec![0; values.len()];
                encode_minifloat(isa, MiniFloat::E4M3, Scaling::Divide(arithmetic), &values, 32, &scales, &mut codes);
                for (i, code) in codes.iter().enumerate() {
                    let scaled = arithmetic.round(values[i] / scales[i / 32]);
                    assert_eq!(*code, MiniFloat::E4M3.encode(scaled));
                }
            }
        }
    }
}
