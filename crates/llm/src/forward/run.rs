//! One run of a decoder over some sequences: embeddings, blocks, head. Holds the activations of one block at a time.

use super::blueprint::{Block, Blueprint, NormLayer};
use super::error::ForwardError;
use super::heads::HeadLayout;
use super::ops::{NormWeights, Ops};
use super::rope::Angles;
use super::tensors::{Projection, Tensors};
use crate::family::Residual;
use kvant_numeric::linalg::{sum_of_exponentials, tanh};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Elements of logits that exist at a time.
const LOGITS: usize = 8 << 20;

/// A decoder over sequences of one length.
pub(super) struct Run<'r, 'a> {
    pub(super) tensors: &'r Tensors<'a>,
    pub(super) blueprint: &'r Blueprint,
    pub(super) ops: &'r dyn Ops,
    /// Tokens of a sequence.
    pub(super) length: usize,
    /// Those of the blueprint's rotary embeddings.
    pub(super) angles: Vec<Angles>,
}

impl Run<'_, '_> {
    /// The layer on rows `x`.
    pub(super) fn linear(&self, layer: &Projection, x: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        self.ops.linear(x, &self.tensors.weight(layer), self.tensors.bias(layer).as_deref(), &mut out);
        self.tensors.release(layer);
        out
    }

    pub(super) fn norm_weights(&self, norm: &NormLayer) -> NormWeights {
        let values = |vector: &Option<_>| vector.as_ref().map(|v| self.tensors.values(v)).unwrap_or_default();
        NormWeights { kind: norm.kind, weight: values(&norm.weight), bias: values(&norm.bias), eps: norm.eps }
    }

    /// Normalises rows of `width` elements.
    pub(super) fn norm(&self, norm: &NormLayer, data: &mut [f32], width: usize) {
        self.ops.normalise(&self.norm_weights(norm), data, width, HeadLayout::row(width));
    }

    fn normed(&self, norm: Option<&NormLayer>, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        if let Some(norm) = norm {
            self.norm(norm, &mut out, x.len() / self.rows_of(x));
        }
        out
    }

    fn rows_of(&self, x: &[f32]) -> usize {
        (x.len() / self.width()).max(1)
    }

    /// The width of the residual stream.
    fn width(&self) -> usize {
        let embedding = self.blueprint.embedding.columns;
        self.blueprint.project_in.as_ref().map_or(embedding, |layer| layer.rows)
    }

    /// Embeddings of tokens, positions included.
    pub(super) fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        let table = &self.blueprint.embedding;
        let vocabulary = table.rows.min(self.blueprint.head.rows);
        let mut x = Vec::with_capacity(tokens.len() * table.columns);
        for token in tokens {
            let row = usize::try_from(*token).ok().filter(|row| *row < vocabulary);
            let row = row.ok_or(ForwardError::Token { token: *token, vocabulary })?;
            self.tensors.read_row(table, row, &mut x);
        }
        x.iter_mut().for_each(|x| *x *= self.blueprint.embedding_scale);
        if let Some(layer) = &self.blueprint.project_in {
            x = self.linear(layer, &x);
        }
        self.add_positions(&mut x)?;
        Ok(self.normed(self.blueprint.embedding_norm.as_ref(), &x))
    }

    fn add_positions(&self, x: &mut [f32]) -> Result<(), ForwardError> {
        let Some((table, offset)) = &self.blueprint.positions else { return Ok(()) };
        let longest = table.rows.saturating_sub(*offset);
        if self.length > longest {
            return Err(ForwardError::TooLong { length: self.length, longest });
        }
        let mut rows = Vec::new();
        (0..self.length).for_each(|position| self.tensors.read_row(table, position + offset, &mut rows));
        for sequence in x.chunks_mut(self.length * table.columns) {
            sequence.iter_mut().zip(&rows).for_each(|(x, row)| *x += *row);
        }
        Ok(())
    }

    /// One block, on the residual stream `x`.
    pub(super) fn block(&self, block: &Block, x: &mut [f32]) {
        match block.residual {
            Residual::Parallel => self.parallel(block, x),
            Residual::PostNorm => self.post_norm(block, x),
            _ => self.sequential(block, x),
        }
    }

    fn sequential(&self, block: &Block, x: &mut [f32]) {
        let normed = self.normed(block.attention_input.as_ref(), x);
        let branch = self.attention(&block.attention, &normed);
        self.join(block, x, branch, block.attention_output.as_ref());
        let normed = self.normed(block.feed_forward_input.as_ref(), x);
        let branch = self.feed_forward(&block.feed_forward, &normed);
        self.join(block, x, branch, block.feed_forward_output.as_ref());
    }

    fn parallel(&self, block: &Block, x: &mut [f32]) {
        let normed = self.normed(block.attention_input.as_ref(), x);
        let second = block.feed_forward_input.as_ref().map(|norm| self.normed(Some(norm), x));
        let attention = self.attention(&block.attention, &normed);
        let feed_forward = self.feed_forward(&block.feed_forward, second.as_ref().unwrap_or(&normed));
        self.join(block, x, attention, block.attention_output.as_ref());
        self.join(block, x, feed_forward, block.feed_forward_output.as_ref());
    }

    fn post_norm(&self, block: &Block, x: &mut [f32]) {
        let branch = self.attention(&block.attention, x);
        self.join(block, x, branch, None);
        x.copy_from_slice(&self.normed(block.attention_input.as_ref(), x));
        let branch = self.feed_forward(&block.feed_forward, x);
        self.join(block, x, branch, None);
        x.copy_from_slice(&self.normed(block.feed_forward_input.as_ref(), x));
    }

    /// `x += scale * norm(branch)`.
    fn join(&self, block: &Block, x: &mut [f32], mut branch: Vec<f32>, norm: Option<&NormLayer>) {
        if let Some(norm) = norm {
            self.norm(norm, &mut branch, self.width());
        }
        let scale = block.branch_scale;
        x.iter_mut().zip(&branch).for_each(|(x, branch)| *x += scale * branch);
    }

    /// What the head reads: the stream after the last norm.
    pub(super) fn finish(&self, x: &[f32]) -> Vec<f32> {
        let x = self.normed(self.blueprint.final_norm.as_ref(), x);
        match &self.blueprint.project_out {
            Some(layer) => self.linear(layer, &x),
            None => x,
        }
    }

    /// Logits of every row.
    pub(super) fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        let mut logits = self.linear(&self.blueprint.head, hidden);
        self.shape_logits(&mut logits);
        logits
    }

    fn shape_logits(&self, logits: &mut [f32]) {
        let (scale, cap) = (self.blueprint.logit_scale, self.blueprint.logit_cap);
        logits.par_chunks_mut(16 << 10).for_each(|logits| {
            logits.iter_mut().for_each(|z| *z *= scale);
            if let Some(cap) = cap {
                logits.iter_mut().for_each(|z| *z = cap * tanh(*z / cap));
            }
        });
    }

    /// `ln p(target)` for every row: the vocabulary passes in pieces, so that all logits never exist at once.
    pub(super) fn log_likelihoods(&self, hidden: &[f32], targets: &[u32]) -> Vec<f64> {
        let head = &self.blueprint.head;
        let step = (LOGITS / targets.len().max(1)).clamp(1, head.rows);
        let mut scores = vec![Score::default(); targets.len()];
        let mut logits = Vec::new();
        for start in (0..head.rows).step_by(step) {
            let piece = self.tensors.weight_rows(head, start..(start + step).min(head.rows));
            let bias = self.tensors.bias(head).map(|bias| bias[start..start + piece.rows].to_vec());
            self.ops.linear(hidden, &piece, bias.as_deref(), &mut logits);
            self.shape_logits(&mut logits);
            let rows = scores.par_iter_mut().zip(targets).zip(logits.par_chunks_exact(piece.rows));
            rows.for_each(|((score, target), row)| score.add(row, start, *target as usize));
        }
        self.tensors.release(head);
        scores.iter().map(Score::log_likelihood).collect()
    }
}

/// A softmax in the making.
#[derive(Clone, Copy, Debug)]
struct Score {
    largest: f64,
    /// Of `e^(z - largest)`.
    sum: f64,
    target: f64,
}

impl Default for Score {
    fn default() -> Score {
        Score { largest: f64::NEG_INFINITY, sum: 0.0, target: f64::NAN }
    }
}

impl Score {
    fn add(&mut self, logits: &[f32], start: usize, target: usize) {
        let (largest, sum) = sum_of_exponentials(Isa::best(), logits);
        let (largest, sum) = (f64::from(largest), f64::from(sum));
        let joint = self.largest.max(largest);
        self.sum = self.sum * (self.largest - joint).exp() + sum * (largest - joint).exp();
        self.largest = joint;
        if let Some(logit) = target.checked_sub(start).and_then(|at| logits.get(at)) {
            self.target = f64::from(*logit);
        }
    }

    fn log_likelihood(&self) -> f64 {
        self.target - self.largest - self.sum.ln()
    }
}
