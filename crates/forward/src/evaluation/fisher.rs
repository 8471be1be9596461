//! Divergences of small changes of a model, estimated by its Fisher information: one pass forward and one back, whatever the number of
//! changes.
//!
//! With labels drawn from the model's own predictions, the divergence of a model with other weights is
//! `KL ~ 1/2 E[(sum_t g_t . dW x_t)^2]` for each label, `x_t` being what a layer reads at token `t` and `g_t` the gradient of its output.
//! Errors of different tokens and layers are taken to be independent, so that products of different tokens vanish:
//! `KL ~ 1/2 sum_t E[(g_t . dW x_t)^2]`. What is left out is about the same for all changes of a kind, and measured mixes show how much.

use super::EvaluationError;
use super::predicted::{Predicted, predicted};
use super::windows::JoinedSequences;
use crate::forward::gradient::{BlockGradient, missing_in_head, missing_step, sampled_gradient};
use crate::forward::ops::Ops;
use crate::forward::{Chunk, Decoder, ForwardError, ForwardOptions, Runner, Streams, chunks};
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply};
use rayon::prelude::*;
use std::ops::ControlFlow;

/// A change of the weight of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightChange {
    /// The module.
    pub module: String,
    /// Output features.
    pub outputs: usize,
    /// Input features.
    pub inputs: usize,
    /// The difference from the model's weight, row-major, `[outputs, inputs]`.
    pub values: Vec<f32>,
}

/// The changes of a decoder's blocks, and what is found of them.
pub trait BlockChanges {
    /// The error of making them.
    type Error: From<EvaluationError>;

    /// The changes of a block, each of some of its layers. Called from the last block to the first.
    ///
    /// # Errors
    /// Weights that cannot be made.
    fn changes(&mut self, block: usize) -> Result<Vec<Vec<WeightChange>>, Self::Error>;

    /// Takes the estimated divergence of each of them, in nats.
    ///
    /// # Errors
    /// Whatever keeps it from being kept; the run ends with it.
    fn found(&mut self, block: usize, divergences: Vec<f64>) -> Result<(), Self::Error>;
}

/// The first step of a decoder that has no gradient here; `None` if all have one.
pub fn missing_gradient(decoder: &Decoder<'_>) -> Option<&'static str> {
    let blocks = 0..decoder.blueprint().blocks.len();
    missing_in_head(decoder).or_else(|| blocks.into_iter().find_map(|block| missing_step(decoder, block)))
}

/// Estimates the divergences of changes of the blocks from `first` on, on sequences that are windows of their own. `seed` decides the labels.
///
/// `watch` receives the tokens done and the tokens in all; a token in one block, forward or back, is one. If it breaks, the run stops.
///
/// # Errors
/// *Unsupported* for decoders with a [`missing_gradient`]; sequences that predict nothing, no room for streams; a `watch` that breaks; those
/// of `changes`.
pub fn fisher_divergences<C: BlockChanges>(
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    sequences: &[Vec<u32>],
    memory: u64,
    (seed, first): (u64, usize),
    all: &mut C,
    mut watch: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), C::Error> {
    if let Some(step) = missing_gradient(decoder) {
        return Err(EvaluationError::from(ForwardError::Unsupported { rule: format!("gradients of {step}") }).into());
    }
    let JoinedSequences { tokens, windows } = JoinedSequences::of(sequences).map_err(C::Error::from)?;
    let chunks = chunks(decoder, windows.iter().map(|window| &tokens[window.tokens.clone()]));
    let predicted = predicted(&chunks, &windows, decoder.vocabulary());
    let labels: usize = predicted.iter().map(|predicted| predicted.targets.len()).sum();
    let (blocks, mut done) = (decoder.blueprint().blocks.len(), 0);
    let passed: u64 = chunks.iter().map(|chunk| chunk.tokens.len() as u64).sum();
    let total = passed * (blocks + 1 + blocks - first) as u64;
    let mut step = |chunk: &Chunk| {
        done += chunk.tokens.len() as u64;
        match watch(done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EvaluationError::Cancelled),
        }
    };
    let runner = Runner::new(decoder, ops);
    let mut kept = inputs(&runner, &chunks, memory, &mut step)?;
    head_gradients(&runner, (&chunks, &predicted), &mut kept, seed, &mut step)?;
    for block in (first..blocks).rev() {
        let changes = all.changes(block)?;
        let mut sums = vec![0.0; changes.len()];
        let gradient = BlockGradient::new(&runner, block).map_err(EvaluationError::from)?;
        let weights = gradient.weights(&Default::default());
        for (index, chunk) in chunks.iter().enumerate() {
            let take = |kept: &mut Streams, stage: usize| {
                kept.take(stage * chunks.len() + index).map_err(EvaluationError::from)
            };
            let (x, out) = (take(&mut kept, block)?, take(&mut kept, block + 1)?);
            let recorded = gradient.forward(ForwardOptions::default(), &weights, &x, chunk);
            let back = recorded.backward_through(out, |module, out, x| {
                for (change, sum) in changes.iter().zip(&mut sums) {
                    let own = change.iter().filter(|change| change.module == module);
                    *sum += own.map(|change| squares(change, out, x)).sum::<f64>();
                }
            });
            kept.put(block * chunks.len() + index, back).map_err(EvaluationError::from)?;
            step(chunk)?;
        }
        let scale = 0.5 / labels.max(1) as f64;
        all.found(block, sums.into_iter().map(|sum| sum * scale).collect())?;
    }
    Ok(())
}

/// `sum_t (g_t . dW x_t)^2` for rows of gradients and inputs.
fn squares(change: &WeightChange, gradients: &[f32], x: &[f32]) -> f64 {
    let (outputs, inputs) = (change.outputs.max(1), change.inputs.max(1));
    let rows = x.len() / inputs;
    let mut moved = vec![0.0; rows * outputs];
    let weight = Matrix::new(&change.values, outputs, inputs, inputs).transposed();
    let read = Matrix::new(x, rows, inputs, inputs);
    multiply(MatrixMut::new(&mut moved, rows, outputs, outputs), read, weight, 1.0, Threads::Pool);
    let product = |(moved, gradient): (&[f32], &[f32])| {
        let sum: f64 = moved.iter().zip(gradient).map(|(moved, g)| f64::from(*moved) * f64::from(*g)).sum();
        sum * sum
    };
    moved.par_chunks_exact(outputs).zip(gradients.par_chunks_exact(outputs)).map(product).sum()
}

/// What every block reads, and behind them what the head does: the streams of all chunks, one stage after the other.
fn inputs(
    runner: &Runner<'_, '_>,
    chunks: &[Chunk],
    memory: u64,
    step: &mut dyn FnMut(&Chunk) -> Result<(), EvaluationError>,
) -> Result<Streams, EvaluationError> {
    let (decoder, options) = (runner.decoder(), ForwardOptions::default());
    let blocks = decoder.blueprint().blocks.len();
    let sizes = (0..=blocks).flat_map(|_| chunks).map(|chunk| chunk.tokens.len() * decoder.width());
    let mut kept = Streams::new(&sizes.collect::<Vec<_>>(), memory)?;
    for (index, chunk) in chunks.iter().enumerate() {
        kept.put(index, runner.embed(options, &chunk.tokens, chunk)?)?;
    }
    for block in 0..blocks {
        for (index, chunk) in chunks.iter().enumerate() {
            let x = kept.take(block * chunks.len() + index)?;
            let mut next = x.clone();
            kept.put(block * chunks.len() + index, x)?;
            let _ = runner.block(options, block, chunk, &mut next);
            kept.put((block + 1) * chunks.len() + index, next)?;
            step(chunk)?;
        }
    }
    Ok(kept)
}

/// Puts the gradients of the streams behind the last block in their place. Going back, those of every block take the place of what the next
/// one reads.
fn head_gradients(
    runner: &Runner<'_, '_>,
    (chunks, predicted): (&[Chunk], &[Predicted]),
    kept: &mut Streams,
    seed: u64,
    step: &mut dyn FnMut(&Chunk) -> Result<(), EvaluationError>,
) -> Result<(), EvaluationError> {
    let blocks = runner.decoder().blueprint().blocks.len();
    for (index, (chunk, predicted)) in chunks.iter().zip(predicted).enumerate() {
        let x = kept.take(blocks * chunks.len() + index)?;
        let seed = seed.wrapping_add((index as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9));
        let gradient = sampled_gradient(runner, chunk.length, &x, &predicted.rows, seed);
        kept.put(blocks * chunks.len() + index, gradient)?;
        step(chunk)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
