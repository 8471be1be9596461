//! Detects blocks whose scale would have to be larger than its type allows.

use super::GgmlType;
use super::scale::F16_MAX;

/// The parts of a block that may saturate.
enum Limit {
    /// Nothing.
    None,
    /// A value itself, from this magnitude on.
    Value(f32),
    /// Numbers of binary16 at these bytes of a block.
    Halves(&'static [usize]),
}

impl GgmlType {
    fn limit(self) -> Limit {
        match self {
            // MXFP4 reaches beyond all numbers of f32.
            GgmlType::F32 | GgmlType::Mxfp4 => Limit::None,
            // From half a step beyond the largest number on.
            GgmlType::F16 => Limit::Value(65_520.0),
            GgmlType::Bf16 => Limit::Value(3.396_177_5e38),
            // The largest scale, 448, times what would be rounded to the level after 6.
            GgmlType::Nvfp4 => Limit::Value(448.0 * 7.0),
            GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::Iq4Nl | GgmlType::Iq4Xs => Limit::Halves(&[0]),
            GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => Limit::Halves(&[0, 2]),
            GgmlType::Q2K => Limit::Halves(&[80, 82]),
            GgmlType::Q3K => Limit::Halves(&[108]),
            GgmlType::Q6K => Limit::Halves(&[208]),
            GgmlType::Tq1_0 => Limit::Halves(&[52]),
            GgmlType::Tq2_0 => Limit::Halves(&[64]),
        }
    }

    /// A magnitude below which all values have blocks that hold them.
    pub fn safe_magnitude(self) -> f32 {
        match self.limit() {
            Limit::None => f32::INFINITY,
            Limit::Value(limit) => limit,
            // No scale and no minimum is larger than the largest value.
            Limit::Halves(_) => F16_MAX,
        }
    }
}

/// The first block of `bytes` that does not hold its `values` because a scale, a minimum or a value is beyond the largest
/// that can be stored: the index of its largest value.
pub fn first_saturated(kind: GgmlType, values: &[f32], bytes: &[u8]) -> Option<usize> {
    let elements = kind.block_elements();
    let offsets = match kind.limit() {
        Limit::None => return None,
        Limit::Value(limit) => return values.iter().position(|value| value.abs() >= limit),
        Limit::Halves(offsets) => offsets,
    };
    let is_saturated = |block: &[u8]| {
        let half = |at: &usize| u16::from_le_bytes([block[*at], block[at + 1]]) & 0x7FFF;
        offsets.iter().map(half).any(|half| half >= 0x7BFF)
    };
    let block = bytes.chunks_exact(kind.block_bytes()).position(is_saturated)?;
    let values = values.get(block * elements..(block + 1) * elements)?;
    let largest = values.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    Some(block * elements + largest.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ggml::tests::{blocks_of, values};
    use crate::simd::Isa;

    #[test]
    fn only_saturated_blocks_are_found() {
        let isa = Isa::best();
        for kind in GgmlType::ALL.iter().map(|row| row.kind) {
            let mut data = values(2048, 7);
            let importance = vec![1.0; 1024];
            for importance in [None, Some(importance.as_slice())] {
                assert_eq!(first_saturated(kind, &data, &blocks_of(isa, kind, &data, importance)), None, "{kind}");
            }
            let safe = kind.safe_magnitude().min(1e30) * 0.999;
            for value in [safe, -safe] {
                data[1500] = value;
                assert_eq!(first_saturated(kind, &data, &blocks_of(isa, kind, &data, None)), None, "{kind} {value}");
            }
            for importance in [None, Some(importance.as_slice())] {
                for value in [3e38, -3e38] {
                    data[1500] = value;
                    let found = first_saturated(kind, &data, &blocks_of(isa, kind, &data, importance));
                    let held = matches!(kind, GgmlType::F32 | GgmlType::Bf16 | GgmlType::Mxfp4);
                    assert_eq!(found, (!held).then_some(1500), "{kind} {value}");
                }
            }
        }
        assert_eq!(first_saturated(GgmlType::Bf16, &[0.0, 3.4e38], &[0; 4]), Some(1));
    }
}
