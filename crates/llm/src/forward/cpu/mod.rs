//! The operations on this machine's processors. Threads share rows or columns, never a sum: the result does not depend
//! on how many there are.

mod activation;
mod attention;

use super::heads::HeadLayout;
use super::ops::{Attention, Hidden, NormWeights, Ops};
use super::rope::Angles;
use crate::family::{Activation, Pairing};
use crate::weight::{Band, WeightMatrix};
use kvant_numeric::Arithmetic;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, layer_norm, multiply, rms_norm};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Elements of a weight that are widened at a time: large enough to hide the cost of starting threads, small enough
/// that memory does not grow with the model.
const PANEL: usize = 4 << 20;
/// Elements of a weight that one thread widens at a time.
const STRIP: usize = 64 << 10;
/// Elements of an activation that one thread works on at a time.
const CHUNK: usize = 16 << 10;

/// This machine's processors: the current rayon pool, and an instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    isa: Isa,
}

impl Cpu {
    /// With this instruction set.
    pub fn new(isa: Isa) -> Cpu {
        Cpu { isa }
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new(Isa::best())
    }
}

impl Ops for Cpu {
    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::F32
    }

    fn linear(&self, x: &[f32], weight: &WeightMatrix<'_>, bias: Option<&[f32]>, out: &mut Vec<f32>) {
        let (outputs, inputs) = (weight.rows, weight.columns);
        let tokens = x.len() / inputs;
        out.resize(tokens * outputs, 0.0);
        let step = (PANEL / inputs).max(1);
        let mut panel = Vec::new();
        for start in (0..outputs).step_by(step) {
            let rows = start..(start + step).min(outputs);
            self.widen(weight, rows.clone(), &mut panel);
            let w = Matrix::new(&panel, rows.len(), inputs, inputs).transposed();
            let y = MatrixMut::new(&mut out[start..], tokens, rows.len(), outputs);
            multiply(y, Matrix::new(x, tokens, inputs, inputs), w, 1.0, Threads::Pool);
        }
        if let Some(bias) = bias {
            for_rows(out, outputs, |_, row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += *b));
        }
    }

    fn normalise(&self, norm: &NormWeights, data: &mut [f32], row_width: usize, layout: HeadLayout) {
        let offset = norm.kind.offset();
        let per_head = norm.weight.len() > layout.width;
        for_rows(data, row_width, |_, row| {
            for (index, head) in layout.of(row).enumerate() {
                let from = if per_head { index * layout.width } else { 0 };
                let (weight, bias) = (&norm.weight[from..], norm.bias.get(from..).unwrap_or(&[]));
                match norm.kind.subtracts_mean() {
                    true => layer_norm(self.isa, head, weight, offset, bias, norm.eps),
                    false => rms_norm(self.isa, head, weight, offset, norm.eps),
                }
            }
        });
    }

    fn rotate(&self, angles: &Angles, pairing: Pairing, data: &mut [f32], row_width: usize, layout: HeadLayout) {
        let half = angles.dim / 2;
        for_rows(data, row_width, |index, row| {
            let at = index % angles.length * half;
            let (cos, sin) = (&angles.cos[at..at + half], &angles.sin[at..at + half]);
            for head in layout.of(row) {
                match pairing {
                    Pairing::Halves => turn_halves(&mut head[..angles.dim], cos, sin),
                    Pairing::Neighbours => turn_neighbours(&mut head[..angles.dim], cos, sin),
                }
            }
        });
    }

    fn attend(&self, attention: &Attention<'_>, out: &mut Vec<f32>) {
        attention::attend(self.isa, attention, out);
    }

    fn activate(&self, activation: Activation, hidden: Hidden<'_>, out: &mut Vec<f32>) {
        activation::activate(self.isa, activation, hidden, out);
    }
}

impl Cpu {
    /// Some rows of a weight as `f32`.
    fn widen(&self, weight: &WeightMatrix<'_>, rows: std::ops::Range<usize>, panel: &mut Vec<f32>) {
        let columns = weight.columns;
        let strip = (STRIP / columns).max(1);
        panel.resize(rows.len() * columns, 0.0);
        panel.par_chunks_mut(strip * columns).enumerate().for_each_init(Vec::new, |values, (index, chunk)| {
            let start = rows.start + index * strip;
            let band = Band { rows: start..start + chunk.len() / columns, columns: 0..columns };
            values.clear();
            weight.read(self.isa, &band, values);
            chunk.copy_from_slice(values);
        });
    }
}

/// Calls `work` on every row with its index, on all threads.
fn for_rows(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = (CHUNK / width.max(1)).max(1);
    data.par_chunks_mut(rows * width.max(1)).enumerate().for_each(|(index, chunk)| {
        let rows = chunk.chunks_mut(width.max(1)).enumerate();
        rows.for_each(|(row, values)| work(index * (CHUNK / width.max(1)).max(1) + row, values));
    });
}

fn turn_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

fn turn_neighbours(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
    }
}
