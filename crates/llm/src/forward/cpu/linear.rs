//! Linear layers: weights as they are stored go to the product as they are, others are widened piece by piece.

use super::Cpu;
use crate::weight::{Band, WeightMatrix};
use kvant_numeric::kernel::Elements;
use kvant_numeric::linalg::{Matrix, MatrixMut, Weight, linear as product};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of a weight that are widened at a time: large enough to hide the cost of starting threads, small enough
/// that memory does not grow with the model.
const PANEL: usize = 4 << 20;
/// Elements of a weight that one thread widens at a time.
const STRIP: usize = 64 << 10;

/// See [`crate::forward::ops::Ops::linear`].
pub(super) fn linear(cpu: Cpu, x: &[f32], weight: &WeightMatrix<'_>, bias: Option<&[f32]>, out: &mut Vec<f32>) {
    let (outputs, inputs) = (weight.rows, weight.columns);
    let tokens = x.len() / inputs;
    out.resize(tokens * outputs, 0.0);
    let x = Matrix::new(x, tokens, inputs, inputs);
    let bias: Option<Vec<f32>> = bias.map(|bias| bias.iter().map(|b| cpu.precision.round(*b)).collect());
    let mut multiply = |elements: Elements<'_>, rows: Range<usize>| {
        let y = MatrixMut::new(&mut out[rows.start..], tokens, rows.len(), outputs);
        let bias = bias.as_ref().map(|bias| &bias[rows.clone()]);
        product(y, x, Weight::new(elements, rows.len(), inputs), bias, cpu.precision);
    };
    if let Some(elements) = weight.elements() {
        return multiply(elements, 0..outputs);
    }
    let (step, mut panel) = ((PANEL / inputs).max(1), Vec::new());
    for start in (0..outputs).step_by(step) {
        let rows = start..(start + step).min(outputs);
        widen(cpu, weight, rows.clone(), &mut panel);
        multiply(Elements::Values(&panel), rows);
    }
}

/// Some rows of a weight as `f32`.
fn widen(cpu: Cpu, weight: &WeightMatrix<'_>, rows: Range<usize>, panel: &mut Vec<f32>) {
    let columns = weight.columns;
    let strip = (STRIP / columns).max(1);
    panel.resize(rows.len() * columns, 0.0);
    panel.par_chunks_mut(strip * columns).enumerate().for_each_init(Vec::new, |values, (index, chunk)| {
        let start = rows.start + index * strip;
        let band = Band { rows: start..start + chunk.len() / columns, columns: 0..columns };
        values.clear();
        weight.read(cpu.isa, &band, values);
        chunk.copy_from_slice(values);
    });
}
