//! The operations on this machine's processors. Threads share rows or columns, never a sum: the result does not depend
//! on how many there are.

mod activation;
mod attention;
mod convolution;
mod delta_rule;
mod gate;
mod gated_norm;
mod linear;
mod recurrent_heads;
mod rotary;
mod selective_scan;
mod state_space;

use super::heads::{HeadLayout, Heads};
use super::ops::{
    Attention, Convolution, DeltaRule, Gate, GatedNorm, Hidden, NormWeights, Ops, SelectiveScan, StateSpace, Xielu,
};
use super::recurrent_state::RecurrentState;
use super::rope::Angles;
use kvant_model::family::{Activation, Pairing};
use kvant_numeric::linalg::{layer_norm, rms_norm};
use kvant_numeric::simd::{Isa, Loop, dispatch};
use kvant_weights::weight::WeightMatrix;
use rayon::prelude::*;

pub use kvant_numeric::linalg::Precision;

/// Elements of an activation that one thread works on at a time.
const CHUNK: usize = 16 << 10;

/// This machine's processors: the current rayon pool, an instruction set, and the precision of activations.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    isa: Isa,
    precision: Precision,
    by_rows: bool,
}

impl Cpu {
    /// With this instruction set, in `f32`.
    pub fn new(isa: Isa) -> Cpu {
        Cpu { isa, precision: Precision::F32, by_rows: false }
    }

    /// With the best instruction set, in this precision. In bfloat16 every operation rounds its result as torch and
    /// transformers do with a model of that type, so that what comes out is that model's.
    pub fn with_precision(precision: Precision) -> Cpu {
        Cpu { isa: Isa::best(), precision, by_rows: false }
    }

    /// The same, with linear layers row by row: rows do not depend on how many there are, and few are computed faster than as a product
    /// of matrices.
    #[must_use]
    pub fn by_rows(self) -> Cpu {
        Cpu { by_rows: true, ..self }
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new(Isa::best())
    }
}

impl Ops for Cpu {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn linear(&self, x: &[f32], weight: &WeightMatrix<'_>, bias: Option<&[f32]>, out: &mut Vec<f32>) {
        linear::linear(*self, x, weight, bias, out);
    }

    fn normalise(&self, norm: &NormWeights, data: &mut [f32], row_width: usize, layout: HeadLayout) {
        let Cpu { isa, precision, .. } = *self;
        let offset = norm.kind.offset();
        let per_head = norm.weight.len() > layout.width;
        let rounded = |values: &[f32]| -> Vec<f32> { values.iter().map(|value| precision.round(*value)).collect() };
        let (mut weight, bias) = (rounded(&norm.weight), rounded(&norm.bias));
        if weight.is_empty() && !norm.kind.subtracts_mean() {
            weight = vec![1.0 - offset; layout.width];
        }
        for_rows(data, row_width, |_, row| {
            for (index, head) in layout.of(row).enumerate() {
                let from = if per_head { index * layout.width } else { 0 };
                let (weight, bias) = (&weight[from..], bias.get(from..).unwrap_or(&[]));
                match norm.kind.subtracts_mean() {
                    true => layer_norm(isa, head, weight, offset, bias, norm.eps, precision),
                    false => rms_norm(isa, head, weight, offset, norm.eps, precision),
                }
            }
        });
    }

    fn rotate(&self, angles: &Angles, pairing: Pairing, data: &mut [f32], row_width: usize, layout: HeadLayout) {
        for_rows(data, row_width, |index, row| rotary::rotate(*self, angles, pairing, index, row, layout));
    }

    fn attend(&self, attention: &Attention<'_>, out: &mut Vec<f32>) {
        attention::attend(*self, attention, out);
    }

    fn convolve(&self, convolution: &Convolution<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
        convolution::convolve(*self, convolution, states, out);
    }

    fn delta_rule(&self, rule: &DeltaRule<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
        delta_rule::delta_rule(*self, rule, states, out);
    }

    fn state_space(&self, task: &StateSpace<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
        state_space::state_space(*self, task, states, out);
    }

    fn selective_scan(&self, scan: &SelectiveScan<'_>, states: &mut [RecurrentState], out: &mut Vec<f32>) {
        selective_scan::selective_scan(*self, scan, states, out);
    }

    fn gated_norm(&self, norm: &GatedNorm<'_>, data: &mut [f32]) {
        gated_norm::gated_norm(*self, norm, data);
    }

    fn gate(&self, gate: Gate, gates: &Heads<'_>, data: &mut [f32]) {
        gate::gate(*self, gate, gates, data);
    }

    fn xielu(&self, parameters: Xielu, x: &[f32], out: &mut Vec<f32>) {
        activation::xielu(*self, parameters, x, out);
    }

    fn activate(&self, activation: Activation, hidden: Hidden<'_>, out: &mut Vec<f32>) {
        activation::activate(*self, activation, hidden, out);
    }

    fn join(&self, x: &mut [f32], branch: &[f32], scale: f32) {
        let chunks = x.par_chunks_mut(CHUNK).zip(branch.par_chunks(CHUNK));
        chunks.for_each(|(x, branch)| dispatch(self.isa, Join { x, branch, scale, precision: self.precision }));
    }
}

struct Join<'a> {
    x: &'a mut [f32],
    branch: &'a [f32],
    scale: f32,
    precision: Precision,
}

impl Loop for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Join { x, branch, scale, precision } = self;
        for (x, branch) in x.iter_mut().zip(branch) {
            *x = precision.round(*x + precision.round(scale * branch));
        }
    }
}

/// Calls `work` on every row with its index, on all threads.
fn for_rows(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let width = width.max(1);
    let rows = (CHUNK / width).max(1);
    data.par_chunks_mut(rows * width).enumerate().for_each(|(index, chunk)| {
        chunk.chunks_mut(width).enumerate().for_each(|(row, values)| work(index * rows + row, values));
    });
}
