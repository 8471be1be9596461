//! Linear layers: weights as they are stored go to the product as they are, others are read by it, some rows at a time.

use super::Cpu;
use kvant_numeric::linalg::{Matrix, MatrixMut, Weight, linear as product, linear_rows};
use kvant_weights::weight::{Band, WeightMatrix};
use std::ops::Range;

/// See [`crate::forward::ops::Ops::linear`].
pub(super) fn linear(cpu: Cpu, x: &[f32], weight: &WeightMatrix<'_>, bias: Option<&[f32]>, out: &mut Vec<f32>) {
    let (outputs, inputs) = (weight.rows, weight.columns);
    let tokens = x.len() / inputs;
    out.resize(tokens * outputs, 0.0);
    let x = Matrix::new(x, tokens, inputs, inputs);
    let bias: Option<Vec<f32>> = bias.map(|bias| bias.iter().map(|b| cpu.precision.round(*b)).collect());
    let read = |rows: Range<usize>, values: &mut Vec<f32>| {
        weight.read(cpu.isa, &Band { rows, columns: 0..inputs }, values);
    };
    let weight = match (weight.elements(), weight.coded()) {
        (Some(elements), _) => Weight::new(elements, outputs, inputs),
        (None, Some((matrix, first))) => Weight::coded(matrix, first, outputs),
        (None, None) => Weight::read(&read, outputs, inputs),
    };
    let product = if cpu.by_rows { linear_rows } else { product };
    product(MatrixMut::new(out, tokens, outputs, outputs), x, weight, bias.as_deref(), cpu.precision);
}
