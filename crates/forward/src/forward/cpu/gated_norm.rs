//! The norm of rows at a gate, in `f32` up to the result.

use super::gate::Gated;
use super::{Cpu, for_rows};
use crate::forward::ops::GatedNorm;
use kvant_numeric::linalg::{Precision, rms_norm};
use kvant_numeric::simd::dispatch;

/// See [`crate::forward::ops::Ops::gated_norm`].
pub(super) fn gated_norm(cpu: Cpu, norm: &GatedNorm<'_>, data: &mut [f32]) {
    let Cpu { isa, precision, .. } = cpu;
    let width = norm.gates.layout.width;
    for_rows(data, width, |index, row| {
        let gates = &norm.gates.from(index, 0)[..width];
        if !norm.gate_last {
            dispatch(isa, Gated { precision: Precision::F32, gate: norm.function, gates, values: row });
        }
        let part = (width / norm.parts.max(1)).max(1);
        for (values, weight) in row.chunks_mut(part).zip(norm.weight.chunks(part)) {
            rms_norm(isa, values, weight, 0.0, norm.eps, Precision::F32);
        }
        if norm.gate_last {
            dispatch(isa, Gated { precision: Precision::F32, gate: norm.function, gates, values: row });
        }
        row.iter_mut().for_each(|value| *value = precision.round(*value));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::ops::{Gate, Ops};
    use crate::forward::{HeadLayout, Heads};

    #[test]
    fn parts_of_rows_are_normalised_behind_their_gates() {
        // A gate of 30 is 30, one of -30 nothing.
        let gates = [7.0, 30.0, -30.0, 30.0, 30.0, 7.0];
        let heads = Heads { data: &gates, row_width: 6, layout: HeadLayout { start: 1, ..HeadLayout::row(4) } };
        let apply = |weight: &[f32], parts, gate_last| {
            let mut data = [2.0, 3.0, 0.1, 0.1];
            let norm = GatedNorm { gates: heads, function: Gate::Silu, weight, eps: 0.0, parts, gate_last };
            Cpu::default().gated_norm(&norm, &mut data);
            data
        };
        let close = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        let root = 2f32.sqrt();
        let norm = |parts| apply(&[1.0, 1.0, 2.0, 1.0], parts, false);
        assert!(close(norm(2), [root, 0.0, 2.0, 1.0]), "{:?}", norm(2));
        assert!(close(apply(&[], 2, false), [60.0, 0.0, 3.0, 3.0]));
        let root = 6.5f32.sqrt();
        assert!(close(apply(&[1.0; 4], 2, true), [60.0 / root, 0.0, 30.0, 30.0]));
        let whole = ((4.0 + 0.02) / 4.0f32).sqrt();
        assert!(close(norm(1), [2.0 / whole, 0.0, 0.2 / whole, 0.1 / whole]), "{:?}", norm(1));
    }
}
