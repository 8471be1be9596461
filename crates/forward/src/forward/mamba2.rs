//! The Mamba 2 mixer of one block: project, convolve, update the state token by token, gate, normalise, project back.

use super::blueprint::Mamba2Layer;
use super::heads::{HeadLayout, Heads};
use super::ops::{Gate, GatedNorm, Hidden, StateSpace};
use super::options::{Flow, StopAt};
use super::recurrent::softplus;
use super::recurrent_state::RecurrentState;
use super::run::Run;
use kvant_model::model_config::MambaConfig;
use kvant_numeric::linalg::exp;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The branch of a Mamba 2 mixer on normed rows `x`, up to its output projection.
    pub(super) fn mamba2_heads(&self, block: usize, layer: &Mamba2Layer, x: &[f32]) -> Flow<Vec<f32>> {
        self.enter(StopAt::AttentionInput, &[&layer.input], x, self.spans())?;
        let mut rows = self.linear(&layer.input, x);
        self.scale_inputs(layer, &mut rows);
        let count = rows.len() / layer.input.rows;
        let heads = self.with_states(block, count, |lengths, states| self.state_space(layer, &rows, lengths, states));
        self.buffers.give(rows);
        ControlFlow::Continue(heads)
    }

    /// The gated and normalised outputs of all heads, side by side. `rows` are those of the first layer.
    fn state_space(
        &self,
        layer: &Mamba2Layer,
        rows: &[f32],
        lengths: &[usize],
        states: &mut [RecurrentState],
    ) -> Vec<f32> {
        let MambaConfig { heads, head_dim, groups, state, .. } = layer.sizes;
        let (inner, shared) = (heads * head_dim, groups * state);
        let channels = inner + 2 * shared;
        let part = |start: usize, width: usize| Heads {
            data: rows,
            row_width: layer.input.rows,
            layout: HeadLayout { start, ..HeadLayout::row(width) },
        };
        let mixed = part(inner, channels).gather();
        let convolved = self.convolved(&layer.convolution, &mixed, lengths, states);
        let mut activated = mixed;
        self.ops.activate(layer.activation, Hidden::Plain(&convolved), &mut activated);
        let view = |start: usize, count: usize, width: usize| Heads {
            data: &activated,
            row_width: channels,
            layout: HeadLayout { start, ..HeadLayout::packed(count, width) },
        };
        let steps = self.steps(layer, part(inner + channels, heads).gather());
        let rates: Vec<f32> = self.rounded(&layer.decay_log).into_iter().map(exp).collect();
        let decays: Vec<f32> = steps.iter().zip(rates.iter().cycle()).map(|(step, rate)| exp(-rate * step)).collect();
        let task = StateSpace {
            inputs: view(0, heads, head_dim),
            writes: view(inner, groups, state),
            reads: view(inner + shared, groups, state),
            steps: &steps,
            decays: &decays,
            skips: &self.rounded(&layer.skip),
            lengths,
        };
        let mut out = self.buffers.take(steps.len() * head_dim);
        self.ops.state_space(&task, states, &mut out);
        let weights = layer.norm.iter().flat_map(|norm| &norm.weight);
        let weight: Vec<f32> = weights.flat_map(|weight| self.rounded(weight)).collect();
        let norm = GatedNorm {
            gates: part(0, inner),
            function: Gate::Silu,
            weight: &weight,
            eps: layer.norm.as_ref().map_or(0.0, |norm| norm.eps),
            parts: layer.norm_parts,
            gate_last: layer.gate_last,
        };
        self.ops.gated_norm(&norm, &mut out);
        [convolved, activated].into_iter().for_each(|buffer| self.buffers.give(buffer));
        out
    }

    /// Multiplies the parts of what the first layer gives by their factors.
    fn scale_inputs(&self, layer: &Mamba2Layer, rows: &mut [f32]) {
        if layer.factors == [1.0; 5] {
            return;
        }
        let MambaConfig { heads, head_dim, groups, state, .. } = layer.sizes;
        let (inner, shared) = (heads * head_dim, groups * state);
        for row in rows.chunks_exact_mut(layer.input.rows) {
            let mut rest = row;
            for (width, factor) in [inner, inner, shared, shared, heads].into_iter().zip(layer.factors) {
                let (part, others) = std::mem::take(&mut rest).split_at_mut(width);
                self.scale(factor, part);
                rest = others;
            }
        }
    }

    /// The steps of all rows and heads, of what the first layer gives.
    fn steps(&self, layer: &Mamba2Layer, mut steps: Vec<f32>) -> Vec<f32> {
        let precision = self.ops.precision();
        let biases = self.rounded(&layer.step_bias);
        let (least, largest) = (layer.sizes.least_step as f32, layer.sizes.largest_step as f32);
        for (step, bias) in steps.iter_mut().zip(biases.iter().cycle()) {
            *step = precision.round(softplus(precision.round(*step + bias))).max(least).min(largest);
        }
        steps
    }

    /// The elements of a vector in the precision of activations.
    pub(super) fn rounded(&self, vector: &super::tensors::Vector) -> Vec<f32> {
        let precision = self.ops.precision();
        self.vector(Some(vector)).into_iter().map(|value| precision.round(value)).collect()
    }
}
