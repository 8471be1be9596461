//! Gates on rows of heads.

use super::activation::silu;
use super::{Cpu, for_rows};
use crate::forward::heads::Heads;
use crate::forward::ops::Gate;
use crate::forward::recurrent::softplus;
use kvant_numeric::linalg::{Precision, sigmoid};
use kvant_numeric::simd::{Loop, dispatch};

/// See [`crate::forward::ops::Ops::gate`].
pub(super) fn gate(cpu: Cpu, gate: Gate, gates: &Heads<'_>, data: &mut [f32]) {
    let (count, width) = (gates.layout.count, gates.layout.width);
    for_rows(data, count * width, |row, values| {
        for (head, values) in values.chunks_exact_mut(width).enumerate() {
            let gates = &gates.from(row, head)[..width];
            dispatch(cpu.isa, Gated { precision: cpu.precision, gate, gates, values });
        }
    });
}

/// Multiplies values by what their gates give.
pub(super) struct Gated<'a> {
    pub precision: Precision,
    pub gate: Gate,
    pub gates: &'a [f32],
    pub values: &'a mut [f32],
}

impl Loop for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Gated { precision, gate, gates, values } = self;
        let round = |x| precision.round(x);
        match gate {
            Gate::Sigmoid => values.iter_mut().zip(gates).for_each(|(x, g)| *x = round(*x * round(sigmoid(*g)))),
            Gate::Softplus => values.iter_mut().zip(gates).for_each(|(x, g)| *x = round(*x * round(softplus(*g)))),
            Gate::Plain => values.iter_mut().zip(gates).for_each(|(x, g)| *x = round(*x * g)),
            Gate::Silu => values.iter_mut().zip(gates).for_each(|(x, g)| *x = round(*x * silu(*g))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::HeadLayout;

    #[test]
    fn gates_multiply_the_heads_that_they_belong_to() {
        let gates = [9.0, 0.0, 9.0, 30.0, 9.0, -30.0, 9.0, 0.0];
        let heads = Heads { data: &gates, row_width: 4, layout: HeadLayout { start: 1, step: 2, width: 1, count: 2 } };
        let apply = |kind| {
            let mut data = [2.0, 3.0, 4.0, 5.0];
            gate(Cpu::default(), kind, &heads, &mut data);
            data
        };
        let close = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close(apply(Gate::Sigmoid), [1.0, 3.0, 0.0, 2.5]));
        assert!(close(apply(Gate::Silu), [0.0, 90.0, 0.0, 0.0]));
        let ln2 = std::f32::consts::LN_2;
        assert!(close(apply(Gate::Softplus), [2.0 * ln2, 90.0, 0.0, 5.0 * ln2]));
    }
}
