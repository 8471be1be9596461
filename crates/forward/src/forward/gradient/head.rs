//! The gradient of the stream behind the last block: for labels that are drawn from the model's own predictions, so that its products with
//! changes of the model have the model's Fisher information as their covariance; or for the predictions of the float model.

use super::super::heads::HeadLayout;
use super::super::options::ForwardOptions;
use super::super::run::Run;
use super::super::runner::Runner;
use super::norm::norm_gradient;
use crate::forward::Decoder;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, multiply_add};
use kvant_numeric::simd::Isa;
use kvant_quant::random::SplitMix64;
use rayon::prelude::*;
use std::ops::Range;

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
    before_head(&run, x, gradient)
}

/// From the gradient of what the head reads, of every row, to that of the stream behind the last block.
fn before_head(run: &Run<'_, '_>, x: &[f32], mut gradient: Vec<f32>) -> Vec<f32> {
    let (decoder, blueprint) = (run.decoder, run.blueprint());
    if blueprint.head_scale != 1.0 {
        gradient.iter_mut().for_each(|value| *value *= blueprint.head_scale);
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

/// A stream's divergence from the float model, with its gradient.
pub struct HeadDivergence {
    /// The sum over rows of the Kullback-Leibler divergence from the float model's distribution, in nats.
    pub sum: f64,
    /// Its gradient by the stream behind the last block.
    pub gradient: Vec<f32>,
}

/// The divergence of the predictions of the stream `x` behind the last block from those of the float model, `sum p ln(p / q)` over all rows,
/// of sequences of `length` tokens. `target` is what the head reads in the float model ([`Runner::hidden`]). The gradient of logits is
/// `q - p`.
pub fn divergence_gradient(runner: &Runner<'_, '_>, length: usize, x: &[f32], target: &[f32]) -> HeadDivergence {
    let run = runner.run(ForwardOptions::default(), length.into());
    let (blueprint, head) = (run.blueprint(), &run.blueprint().head);
    let width = head.columns;
    let read = run.finish(x);
    let count = read.len() / width.max(1);
    let pieces = || (0..head.rows).step_by(PIECE).map(|start| start..(start + PIECE).min(head.rows));
    let logits = |piece: &Range<usize>| [&read[..], target].map(|rows| run.logits(rows, piece.clone()));
    let mut sums = vec![[LogSum::default(); 2]; count];
    for piece in pieces() {
        let [logits, targets] = logits(&piece);
        let both = logits.par_chunks_exact(piece.len()).zip(targets.par_chunks_exact(piece.len()));
        sums.par_iter_mut().zip(both).for_each(|([sum, of_target], (logits, targets))| {
            sum.add(logits);
            of_target.add(targets);
        });
    }
    let (mut sum, mut back) = (0.0, vec![0.0; count * width]);
    let (scale, cap) = (blueprint.logit_scale, blueprint.logit_cap);
    for piece in pieces() {
        let [mut logits, targets] = logits(&piece);
        let both = logits.par_chunks_exact_mut(piece.len()).zip(targets.par_chunks_exact(piece.len()));
        let of_row = |((logits, targets), [of_model, of_target]): ((&mut [f32], &[f32]), &[LogSum; 2])| {
            let mut sum = 0.0;
            for (logit, target) in logits.iter_mut().zip(targets) {
                let (ln_q, ln_p) = (of_model.ln_share(*logit), of_target.ln_share(*target));
                let (q, p) = (ln_q.exp(), ln_p.exp());
                sum += if p > 0.0 { p * (ln_p - ln_q) } else { 0.0 };
                *logit = ((q - p) * slope_of_logit(*logit, scale, cap)) as f32;
            }
            sum
        };
        let of_rows: Vec<f64> = both.zip(&sums).map(of_row).collect();
        sum += of_rows.iter().sum::<f64>();
        let weight = run.decoder.weight(head).slice_rows(piece.clone()).all_values(Isa::best());
        let weight = Matrix::new(&weight, piece.len(), width, width);
        let out = Matrix::new(&logits, count, piece.len(), piece.len());
        multiply_add(MatrixMut::new(&mut back, count, width, width), out, weight, 1.0, Threads::Pool);
    }
    HeadDivergence { sum, gradient: before_head(&run, x, back) }
}

/// The logarithm of a sum of exponentials, taken in piece by piece.
#[derive(Clone, Copy)]
struct LogSum {
    largest: f64,
    sum: f64,
}

impl Default for LogSum {
    fn default() -> LogSum {
        LogSum { largest: f64::NEG_INFINITY, sum: 0.0 }
    }
}

impl LogSum {
    fn add(&mut self, logits: &[f32]) {
        let largest = logits.iter().fold(self.largest, |largest, logit| largest.max(f64::from(*logit)));
        // All that was seen has no weight at all.
        if largest == f64::NEG_INFINITY {
            return;
        }
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
        self.sum = self.sum * (self.largest - largest).exp() + sum;
        self.largest = largest;
    }

    /// The logarithm of the share of a logit.
    fn ln_share(&self, logit: f32) -> f64 {
        f64::from(logit) - self.largest - self.sum.ln()
    }
}

/// The slope of a logit in what the head gives: of `c tanh(s y / c)` in `y`, by its value.
fn slope_of_logit(logit: f32, scale: f32, cap: Option<f32>) -> f64 {
    f64::from(scale) * cap.map_or(1.0, |cap| 1.0 - (f64::from(logit) / f64::from(cap)).powi(2))
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
            *logit = ((share - label) * slope_of_logit(*logit, scale, cap)) as f32;
        }
    }
}
