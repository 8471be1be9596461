//! The gradient of the stream behind the last block, for labels that are drawn from the model's own predictions: its products with changes
//! of the model have the model's Fisher information as their covariance.

use super::super::heads::HeadLayout;
use super::super::runner::Runner;
use super::norm::norm_gradient;
use crate::forward::Decoder;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, multiply_add};
use kvant_numeric::simd::Isa;
use kvant_quant::random::SplitMix64;
use rayon::prelude::*;

/// Tokens of the vocabulary whose logits exist at a time.
const PIECE: usize = 4096;

/// The first step behind the last block that has no gradient here; `None` if all have one.
pub fn missing_in_head(decoder: &Decoder<'_>) -> Option<&'static str> {
    let blueprint = decoder.blueprint();
    let is_plain = blueprint.stream.is_plain() && blueprint.lanes.is_none();
    match () {
        () if blueprint.encoder.is_some() => Some("encoders"),
        () if blueprint.stacks.is_some() => Some("encoder-decoders"),
        () if !is_plain => Some("several streams"),
        () if decoder.quantizers().layer(&blueprint.head.module).is_some() => Some("a head with quantized inputs"),
        () => None,
    }
}

/// The gradient of `sum ln p(label)` by the stream `x` behind the last block, for a label drawn by the model's own distribution at each of
/// `predicted` rows: `softmax - label` back through the head, its norm and its projection, with the sign of the loss. Rows are those of
/// sequences of `length` tokens; `seed` decides the labels.
pub fn sampled_gradient(runner: &Runner<'_, '_>, length: usize, x: &[f32], predicted: &[usize], seed: u64) -> Vec<f32> {
    let run = runner.run(Default::default(), length.into());
    let (decoder, blueprint) = (runner.decoder(), run.blueprint());
    let (hidden, head) = (run.finish(x), &blueprint.head);
    let width = head.columns;
    let read: Vec<f32> = predicted.iter().flat_map(|row| &hidden[row * width..(row + 1) * width]).copied().collect();
    let mut rows: Vec<Drawn> = (0..predicted.len())
        .map(|row| Drawn::new(SplitMix64::new(seed ^ (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).draw()))
        .collect();
    let pieces = || (0..head.rows).step_by(PIECE).map(|start| start..(start + PIECE).min(head.rows));
    for piece in pieces() {
        let logits = run.logits(&read, piece.clone());
        let logits = logits.par_chunks_exact(piece.len());
        rows.par_iter_mut().zip(logits).for_each(|(row, logits)| row.add(logits, piece.start));
    }
    let mut back = vec![0.0; predicted.len() * width];
    let (scale, cap) = (blueprint.logit_scale, blueprint.logit_cap);
    for piece in pieces() {
        let mut logits = run.logits(&read, piece.clone());
        logits.par_chunks_exact_mut(piece.len()).zip(&rows).for_each(|(logits, row)| {
            row.gradient(logits, piece.start, scale, cap);
        });
        let weight = decoder.weight(head).slice_rows(piece.clone()).all_values(Isa::best());
        let out = Matrix::new(&logits, predicted.len(), piece.len(), piece.len());
        let weight = Matrix::new(&weight, piece.len(), width, width);
        multiply_add(MatrixMut::new(&mut back, predicted.len(), width, width), out, weight, 1.0, Threads::Pool);
    }
    let mut gradient = vec![0.0; hidden.len()];
    for (row, back) in predicted.iter().zip(back.chunks_exact(width.max(1))) {
        gradient[row * width..(row + 1) * width].copy_from_slice(back);
    }
    if let Some(layer) = &blueprint.project_out {
        let rows = gradient.len() / layer.rows.max(1);
        let weight = decoder.weight(layer).all_values(Isa::best());
        let weight = Matrix::new(&weight, layer.rows, layer.columns, layer.columns);
        let mut input = vec![0.0; rows * layer.columns];
        let out = Matrix::new(&gradient, rows, layer.rows, layer.rows);
        multiply(MatrixMut::new(&mut input, rows, layer.columns, layer.columns), out, weight, 1.0, Threads::Pool);
        gradient = input;
    }
    if let Some(norm) = &blueprint.final_norm {
        let width = decoder.hidden();
        norm_gradient(&run.norm_weights(norm), x, &mut gradient, width, HeadLayout::row(width));
    }
    gradient
}

/// The distribution of a row, and a label drawn from it: the largest of the logits with Gumbel noise.
struct Drawn {
    random: SplitMix64,
    largest: f64,
    sum: f64,
    best: f64,
    label: usize,
}

impl Drawn {
    fn new(seed: u64) -> Drawn {
        let (largest, best) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        Drawn { random: SplitMix64::new(seed), largest, sum: 0.0, best, label: 0 }
    }

    /// Takes in the logits of the tokens from `start` on.
    fn add(&mut self, logits: &[f32], start: usize) {
        for (index, logit) in logits.iter().enumerate() {
            let logit = f64::from(*logit);
            let joint = self.largest.max(logit);
            self.sum = self.sum * (self.largest - joint).exp() + (logit - joint).exp();
            self.largest = joint;
            let noisy = logit - (-(self.random.uniform().max(f64::MIN_POSITIVE)).ln()).ln();
            if noisy > self.best {
                (self.best, self.label) = (noisy, start + index);
            }
        }
    }

    /// From logits to the gradient of the head's outputs: through the softmax, a soft-cap and a factor.
    fn gradient(&self, logits: &mut [f32], start: usize, scale: f32, cap: Option<f32>) {
        for (index, logit) in logits.iter_mut().enumerate() {
            let z = f64::from(*logit);
            let share = (z - self.largest).exp() / self.sum;
            let label = if start + index == self.label { 1.0 } else { 0.0 };
            // The slope of `c tanh(z / c)`, by its value.
            let slope = cap.map_or(1.0, |cap| 1.0 - (z / f64::from(cap)).powi(2));
            *logit = ((share - label) * slope * f64::from(scale)) as f32;
        }
    }
}
