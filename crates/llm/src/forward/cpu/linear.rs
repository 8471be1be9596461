//! Linear layers: weights as they are stored go to the product as they are, others are widened piece by piece.

use super::Cpu;
use crate::weight::{Band, WeightMatrix};
use kvant_numeric::kernel::{Elements, narrow_to_bf16};
use kvant_numeric::linalg::{Matrix, MatrixMut, Precision, Weight, linear as product};
use rayon::prelude::*;
use std::ops::Range;

/// Elements of a weight that are widened at a time: large enough to hide the cost of starting threads, small enough
/// that memory does not grow with the model.
const PANEL: usize = 4 << 20;
/// The same of one that is rounded to bfloat16: large enough for most layers, since the inputs are packed for each panel.
const BF16_PANEL: usize = 12 << 20;
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
    let (mut values, mut rounded) = (Vec::new(), Vec::new());
    for rows in panels(cpu, weight) {
        match cpu.precision {
            Precision::F32 => {
                read(cpu, weight, rows.clone(), &mut values, |values, out| out.copy_from_slice(values));
                multiply(Elements::Values(&values), rows);
            }
            Precision::Bf16 => {
                read(cpu, weight, rows.clone(), &mut rounded, |values, out| narrow_to_bf16(cpu.isa, values, out));
                multiply(Elements::Bf16(&rounded), rows);
            }
        }
    }
}

/// The rows of a weight that are read at a time.
fn panels(cpu: Cpu, weight: &WeightMatrix<'_>) -> impl Iterator<Item = Range<usize>> + use<> {
    let panel = match cpu.precision {
        Precision::F32 => PANEL,
        Precision::Bf16 => BF16_PANEL,
    };
    let (rows, step) = (weight.rows, (panel / weight.columns.max(1)).max(1));
    (0..rows).step_by(step).map(move |start| start..(start + step).min(rows))
}

/// Some rows of a weight, in the form that `keep` gives their values.
fn read<T: Copy + Default + Send>(
    cpu: Cpu,
    weight: &WeightMatrix<'_>,
    rows: Range<usize>,
    panel: &mut Vec<T>,
    keep: impl Fn(&[f32], &mut [T]) + Sync,
) {
    let columns = weight.columns;
    let strip = (STRIP / columns).max(1);
    panel.resize(rows.len() * columns, T::default());
    panel.par_chunks_mut(strip * columns).enumerate().for_each_init(Vec::new, |values, (index, chunk)| {
        let start = rows.start + index * strip;
        let band = Band { rows: start..start + chunk.len() / columns, columns: 0..columns };
        values.clear();
        weight.read(cpu.isa, &band, values);
        keep(values, chunk);
    });
}
