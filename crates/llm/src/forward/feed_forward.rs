//! The feed-forward network of one block, dense or a mixture of experts.

use super::blueprint::{FeedForward, FirstLayers, Mixture, Mlp};
use super::ops::Hidden;
use super::routing::{Choice, RoutingRule};
use super::run::Run;
use super::spans::{Spans, spans_of};
use crate::family::RowOrder;
use rayon::prelude::*;

/// The rows that an expert gets, with their weights.
type Share = Vec<(usize, f32)>;

impl Run<'_, '_> {
    /// The feed-forward branch on normed rows `x`.
    pub(super) fn feed_forward(&self, network: &FeedForward, x: &[f32]) -> Vec<f32> {
        match network {
            FeedForward::Dense(mlp) => self.mlp(mlp, x, Spans::Even(self.length)),
            FeedForward::Mixture(mixture) => self.mixture(mixture, x),
        }
    }

    fn mlp(&self, mlp: &Mlp, x: &[f32], spans: Spans<'_>) -> Vec<f32> {
        let linear = |layer, x: &[f32]| self.linear_of(layer, x, spans);
        let mut hidden = Vec::new();
        match &mlp.first {
            FirstLayers::Plain(up) => {
                self.ops.activate(mlp.activation, Hidden::Plain(&linear(up, x)), &mut hidden);
            }
            FirstLayers::Gated(gate, up) => {
                let (gate, up) = (linear(gate, x), linear(up, x));
                self.ops.activate(mlp.activation, Hidden::Pair { gate: &gate, up: &up }, &mut hidden);
            }
            FirstLayers::Fused(both, order) => {
                let rows = linear(both, x);
                let form = match order {
                    RowOrder::Interleaved => Hidden::Alternating(&rows),
                    RowOrder::Stacked | RowOrder::PerHead => Hidden::Halves { rows: &rows, width: both.rows },
                };
                self.ops.activate(mlp.activation, form, &mut hidden);
            }
        }
        linear(&mlp.down, &hidden)
    }

    fn mixture(&self, mixture: &Mixture, x: &[f32]) -> Vec<f32> {
        let width = mixture.router.columns;
        let shares = self.shares(mixture, x);
        let parts = shares.par_iter().zip(&mixture.experts).map(|(share, expert)| self.routed(expert, share, x, width));
        let parts: Vec<Vec<f32>> = parts.collect();
        let mut out = self.shared(mixture, x).unwrap_or_else(|| vec![0.0; x.len()]);
        // One expert after the other, so that every row is summed in the same order.
        for (share, part) in shares.iter().zip(&parts) {
            for ((row, weight), values) in share.iter().zip(part.chunks_exact(width)) {
                let out = &mut out[row * width..(row + 1) * width];
                out.iter_mut().zip(values).for_each(|(out, value)| *out += weight * value);
            }
        }
        out
    }

    /// The rows of every expert.
    fn shares(&self, mixture: &Mixture, x: &[f32]) -> Vec<Share> {
        let correction = mixture.correction.as_ref().map(|c| self.tensors().values(c)).unwrap_or_default();
        let rule = RoutingRule {
            rule: mixture.rule,
            per_token: mixture.per_token,
            normalise: mixture.normalise,
            scale: mixture.scale,
            groups: mixture.groups,
            correction: &correction,
            jitter: mixture.jitter,
        };
        let logits = self.linear(&mixture.router, x);
        let choices: Vec<Vec<Choice>> =
            logits.par_chunks_exact(mixture.experts.len()).map(|logits| rule.choose(logits)).collect();
        let mut shares = vec![Share::new(); mixture.experts.len()];
        for (row, chosen) in choices.into_iter().enumerate() {
            chosen.into_iter().for_each(|(expert, weight)| shares[expert].push((row, weight)));
        }
        shares
    }

    fn routed(&self, expert: &Mlp, share: &Share, x: &[f32], width: usize) -> Vec<f32> {
        let rows: Vec<f32> = share.iter().flat_map(|(row, _)| &x[row * width..(row + 1) * width]).copied().collect();
        let spans = spans_of(share.iter().map(|(row, _)| *row), self.length);
        if rows.is_empty() { rows } else { self.mlp(expert, &rows, Spans::Listed(&spans)) }
    }

    fn shared(&self, mixture: &Mixture, x: &[f32]) -> Option<Vec<f32>> {
        let mut out = self.mlp(mixture.shared.as_ref()?, x, Spans::Even(self.length));
        if let Some(gate) = &mixture.shared_gate {
            let gates = self.linear(gate, x);
            let width = mixture.router.columns;
            for (row, gate) in out.chunks_exact_mut(width).zip(gates) {
                let factor = 1.0 / (1.0 + (-gate).exp());
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
        Some(out)
    }
}
