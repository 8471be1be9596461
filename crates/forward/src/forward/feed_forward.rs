//! The feed-forward network of one block, dense or a mixture of experts.

use super::blueprint::{FeedForward, FirstLayers, Mixture, Mlp, XieluLayer};
use super::ops::{Hidden, Xielu};
use super::options::{Flow, StopAt};
use super::routing::{Shares, shares_of};
use super::routing_rule::{Choice, RoutingRule};
use super::run::Run;
use super::spans::{Spans, spans_of};
use kvant_model::family::RowOrder;
use kvant_numeric::linalg::tanh;
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

impl Run<'_, '_> {
    /// The feed-forward branch of a block on normed rows `x`.
    pub(super) fn feed_forward(&self, block: usize, network: &FeedForward, x: &[f32]) -> Flow<Vec<f32>> {
        match network {
            FeedForward::Dense(mlp) => self.mlp(mlp, x, self.spans()),
            FeedForward::Mixture(mixture) => self.mixture(block, mixture, x, x),
            FeedForward::Absent => ControlFlow::Continue(Vec::new()),
        }
    }

    fn mlp(&self, mlp: &Mlp, x: &[f32], spans: Spans<'_>) -> Flow<Vec<f32>> {
        self.enter(StopAt::FeedForward, &mlp.first.layers(), x, spans)?;
        let mut hidden = self.activated(mlp, x, spans);
        if let Cow::Owned(rotated) = self.rotated(&mlp.down, &hidden) {
            self.buffers.give(std::mem::replace(&mut hidden, rotated));
        }
        let out = self.mlp_output(mlp, &hidden, spans);
        self.buffers.give(hidden);
        out
    }

    /// The down projection of hidden activations, which are rotated already where its inputs are.
    pub(super) fn mlp_output(&self, mlp: &Mlp, hidden: &[f32], spans: Spans<'_>) -> Flow<Vec<f32>> {
        self.enter_read(StopAt::Hidden, &mlp.down, hidden, spans)?;
        let mut out = self.linear_of_read(&mlp.down, hidden, spans);
        self.scale(mlp.factors[1], &mut out);
        ControlFlow::Continue(out)
    }

    /// The hidden activation.
    fn activated(&self, mlp: &Mlp, x: &[f32], spans: Spans<'_>) -> Vec<f32> {
        let linear = |layer| self.linear_of(layer, x, spans);
        let mut hidden = self.buffers.take(x.len() / mlp.first.layers()[0].columns.max(1) * mlp.down.columns);
        match &mlp.first {
            FirstLayers::Plain(up) => {
                let up = linear(up);
                match &mlp.xielu {
                    Some(layer) => self.ops.xielu(self.xielu(layer), &up, &mut hidden),
                    None => self.ops.activate(mlp.activation, Hidden::Plain(&up), &mut hidden),
                }
                self.buffers.give(up);
            }
            FirstLayers::Gated(gate, up) => {
                let (mut gate, up) = (linear(gate), linear(up));
                self.scale(mlp.factors[0], &mut gate);
                if let Some(cutoff) = mlp.cutoff {
                    self.cut(cutoff, &mut gate, mlp.down.columns);
                }
                self.ops.activate(mlp.activation, Hidden::Pair { gate: &gate, up: &up }, &mut hidden);
                [gate, up].into_iter().for_each(|rows| self.buffers.give(rows));
            }
            FirstLayers::Fused(both, order) => {
                let rows = linear(both);
                let form = match order {
                    RowOrder::Interleaved => Hidden::Alternating(&rows),
                    RowOrder::Stacked | RowOrder::PerHead | RowOrder::PerGroup => {
                        Hidden::Halves { rows: &rows, width: both.rows }
                    }
                };
                self.ops.activate(mlp.activation, form, &mut hidden);
                self.buffers.give(rows);
            }
        }
        if let Some(norm) = &mlp.hidden_norm {
            self.norm(norm, &mut hidden, mlp.down.columns);
        }
        hidden
    }

    /// Subtracts from the gates of every row their mean and so many deviations, and leaves nothing below 0.
    fn cut(&self, deviations: f32, gates: &mut [f32], width: usize) {
        let precision = self.ops.precision();
        gates.par_chunks_exact_mut(width.max(1)).for_each(|row| {
            let count = row.len() as f32;
            let mean = row.iter().sum::<f32>() / count;
            let variance = row.iter().map(|gate| (gate - mean) * (gate - mean)).sum::<f32>() / count;
            let cutoff = precision.round(
                precision.round(mean) + precision.round(precision.round(variance.sqrt()) * precision.round(deviations)),
            );
            row.iter_mut().for_each(|gate| *gate = precision.round(*gate - cutoff).max(0.0));
        });
    }

    pub(super) fn xielu(&self, layer: &XieluLayer) -> Xielu {
        let number = |vector| self.vector(Some(vector)).first().copied().unwrap_or(f32::NAN);
        Xielu {
            alpha_p: number(&layer.alpha_p),
            alpha_n: number(&layer.alpha_n),
            beta: number(&layer.beta),
            eps: number(&layer.eps),
        }
    }

    /// A mixture of experts on rows `x`, which the router chooses by rows `scored`.
    pub(super) fn mixture(&self, block: usize, mixture: &Mixture, x: &[f32], scored: &[f32]) -> Flow<Vec<f32>> {
        let width = mixture.router.columns;
        let shares = self.shares(block, mixture, scored);
        let parts =
            shares.par_iter().zip(&mixture.experts).map(|(share, expert)| self.routed(mixture, expert, share, x));
        // Where the run ends, it ends in all of them: each is seen.
        let parts: Vec<Flow<Vec<f32>>> = parts.collect();
        let mut out = self.shared(mixture, x)?.unwrap_or_else(|| vec![0.0; x.len()]);
        // One expert after the other, so that every row is summed in the same order.
        let mut add = |row: usize, weight: f32, values: &[f32]| {
            let out = &mut out[row * width..(row + 1) * width];
            out.iter_mut().zip(values).for_each(|(out, value)| *out += weight * value);
        };
        for (share, part) in shares.iter().zip(parts) {
            for ((row, weight), values) in share.iter().zip(part?.chunks_exact(width)) {
                add(*row, if mixture.weighs_inputs { 1.0 } else { *weight }, values);
            }
        }
        for (row, weight) in shares.iter().skip(mixture.experts.len()).flatten() {
            add(*row, *weight, &x[row * width..(row + 1) * width]);
        }
        if mixture.sum_scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= mixture.sum_scale);
        }
        ControlFlow::Continue(out)
    }

    /// The rows of every expert.
    pub(super) fn shares(&self, block: usize, mixture: &Mixture, x: &[f32]) -> Arc<Shares> {
        let mut logits = self.linear(&mixture.router, x);
        if let Some(cap) = mixture.score_cap {
            logits.iter_mut().for_each(|score| *score = cap * tanh(*score / cap));
        }
        let choose = || self.choose(mixture, &logits);
        match self.with.routing {
            Some(routing) => routing.shares(block, x.len() / mixture.router.columns, choose),
            None => Arc::new(choose()),
        }
    }

    fn choose(&self, mixture: &Mixture, logits: &[f32]) -> Shares {
        let correction = self.vector(mixture.correction.as_ref());
        let rule = RoutingRule {
            rule: mixture.rule,
            per_token: mixture.per_token,
            normalise: mixture.normalise,
            scale: mixture.scale,
            groups: mixture.groups,
            correction: &correction,
            least_sum: mixture.least_sum,
            norm_order: mixture.norm_order,
            jitter: mixture.jitter,
        };
        let experts = mixture.experts.len() + mixture.identities;
        if let (Some(table), Some(tokens)) = (&mixture.table, self.tokens) {
            let listed = tokens.iter().map(|token| self.decoder.tensors.integer_row(table, *token));
            let both = logits.chunks_exact(experts).zip(listed);
            return shares_of(both.map(|(logits, experts)| rule.weigh(logits, &experts)), experts);
        }
        let scales = self.vector(mixture.expert_scales.as_ref());
        let scaled = |(expert, weight): Choice| (expert, weight * scales.get(expert).copied().unwrap_or(1.0));
        let choose = |logits: &[f32]| -> Vec<Choice> { rule.choose(logits).into_iter().map(scaled).collect() };
        let choices: Vec<Vec<Choice>> = logits.par_chunks_exact(experts).map(choose).collect();
        shares_of(choices, experts)
    }

    fn routed(&self, mixture: &Mixture, expert: &Mlp, share: &[Choice], x: &[f32]) -> Flow<Vec<f32>> {
        let width = mixture.router.columns;
        let mut rows: Vec<f32> =
            share.iter().flat_map(|(row, _)| &x[row * width..(row + 1) * width]).copied().collect();
        if mixture.weighs_inputs {
            let precision = self.ops.precision();
            for (row, (_, weight)) in rows.chunks_exact_mut(width).zip(share) {
                row.iter_mut().for_each(|value| *value = precision.round(*value * precision.round(*weight)));
            }
        }
        let spans = spans_of(share.iter().map(|(row, _)| *row), |row| self.sequence_of(row));
        match rows.is_empty() {
            true => ControlFlow::Continue(rows),
            false => self.mlp(expert, &rows, Spans::Listed(&spans)),
        }
    }

    fn shared(&self, mixture: &Mixture, x: &[f32]) -> Flow<Option<Vec<f32>>> {
        let Some(shared) = &mixture.shared else { return ControlFlow::Continue(None) };
        let gates = mixture.shared_gate.as_ref().map(|gate| self.linear(gate, x));
        let mut out = self.mlp(shared, x, self.spans())?;
        let rows = out.chunks_exact_mut(mixture.router.columns);
        for (row, gate) in rows.zip(gates.unwrap_or_default()) {
            let factor = 1.0 / (1.0 + (-gate).exp());
            row.iter_mut().for_each(|value| *value *= factor);
        }
        ControlFlow::Continue(Some(out))
    }
}
