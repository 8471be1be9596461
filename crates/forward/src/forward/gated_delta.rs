//! The gated delta net of one block: project, convolve, update the state token by token, normalise, gate, project back.

use super::blueprint::{ChannelDeltaInputs, DeltaInputs, GatedDeltaLayer, LatentOrNot};
use super::heads::{HeadLayout, Heads};
use super::ops::{DeltaRule, Gate, GatedNorm, Hidden};
use super::options::{Flow, StopAt};
use super::recurrent::softplus;
use super::recurrent_state::RecurrentState;
use super::run::Run;
use super::tensors::Projection;
use kvant_model::model_config::DeltaConfig;
use kvant_numeric::linalg::{exp, sigmoid};
use std::ops::ControlFlow;

/// What the first layers give, a row per token.
struct DeltaRows {
    /// Queries, keys and values.
    mixed: Vec<f32>,
    /// Gates on the output.
    gates: Vec<f32>,
    /// Strengths before the sigmoid, one for each value head.
    strengths: Vec<f32>,
    /// Steps of the decay.
    steps: Vec<f32>,
}

impl Run<'_, '_> {
    /// The branch of a gated delta net on normed rows `x`, up to its output projection.
    pub(super) fn gated_delta_heads(&self, block: usize, layer: &GatedDeltaLayer, x: &[f32]) -> Flow<Vec<f32>> {
        let layers = layer.inputs.first();
        self.enter(StopAt::AttentionInput, &layers, x, self.spans())?;
        let rows = self.delta_rows(layer, x)?;
        let count = x.len() / layers[0].columns;
        ControlFlow::Continue(
            self.with_states(block, count, |lengths, states| self.delta(layer, rows, lengths, states)),
        )
    }

    fn delta_rows(&self, layer: &GatedDeltaLayer, x: &[f32]) -> Flow<DeltaRows> {
        ControlFlow::Continue(match &layer.inputs {
            DeltaInputs::Single(layers) => {
                let [query, key, value, gates, strengths, steps] = &**layers;
                let [gates, strengths, steps] = [gates, strengths, steps].map(|layer| self.linear(layer, x));
                DeltaRows { mixed: self.side_by_side([query, key, value], x), gates, strengths, steps }
            }
            DeltaInputs::Separate(layers) => {
                let [mixed, gates, strengths, steps] = layers.each_ref().map(|layer| self.linear(layer, x));
                DeltaRows { mixed, gates, strengths, steps }
            }
            DeltaInputs::ByKeyHead(layers) => {
                let [both, all] = layers.each_ref().map(|layer| self.linear(layer, x));
                let rows = by_kind(&layer.sizes, &both, &all);
                [both, all].into_iter().for_each(|buffer| self.buffers.give(buffer));
                rows
            }
            DeltaInputs::ByChannel(layers) => self.channel_delta_rows(layers, x)?,
        })
    }

    /// The rows of a net whose channels have a decay each.
    fn channel_delta_rows(&self, layers: &ChannelDeltaInputs, x: &[f32]) -> Flow<DeltaRows> {
        let mixed = self.side_by_side(layers.mixed.each_ref(), x);
        let first = [&layers.strength, &layers.decay.first, &layers.gate.first];
        let [strengths, decays, gates] = first.map(|layer| self.linear(layer, x));
        let steps = self.behind_latent(StopAt::DecayLatent, &layers.decay, decays)?;
        let gates = self.behind_latent(StopAt::GateLatent, &layers.gate, gates)?;
        ControlFlow::Continue(DeltaRows { mixed, gates, strengths, steps })
    }

    /// What the second of two layers gives for what the first gave, where there is a second.
    fn behind_latent(&self, depth: StopAt, layers: &LatentOrNot, first: Vec<f32>) -> Flow<Vec<f32>> {
        let Some(second) = &layers.second else { return ControlFlow::Continue(first) };
        self.enter(depth, &[second], &first, self.spans())?;
        let out = self.linear(second, &first);
        self.buffers.give(first);
        ControlFlow::Continue(out)
    }

    /// What layers give for rows `x`, side by side.
    fn side_by_side<const N: usize>(&self, layers: [&Projection; N], x: &[f32]) -> Vec<f32> {
        let width: usize = layers.iter().map(|layer| layer.rows).sum();
        let mut all = vec![0.0; x.len() / layers[0].columns.max(1) * width];
        let mut start = 0;
        for layer in layers {
            let rows = self.linear(layer, x);
            for (to, from) in all.chunks_exact_mut(width).zip(rows.chunks_exact(layer.rows)) {
                to[start..start + layer.rows].copy_from_slice(from);
            }
            start += layer.rows;
            self.buffers.give(rows);
        }
        all
    }

    /// The gated outputs of all value heads, side by side.
    fn delta(
        &self,
        layer: &GatedDeltaLayer,
        rows: DeltaRows,
        lengths: &[usize],
        states: &mut [RecurrentState],
    ) -> Vec<f32> {
        let DeltaConfig { key_heads, value_heads, key_dim, value_dim, .. } = layer.sizes;
        let DeltaRows { mixed, gates, strengths, steps } = rows;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let by_channel = layer.inputs.by_channel();
        let convolved = self.convolved(&layer.convolution, &mixed, lengths, states);
        let mut activated = mixed;
        self.ops.activate(layer.activation, Hidden::Plain(&convolved), &mut activated);
        let view = |start: usize, count: usize, width: usize| Heads {
            data: &activated,
            row_width: 2 * keys + values,
            layout: HeadLayout { start, ..HeadLayout::packed(count, width) },
        };
        let rule = DeltaRule {
            queries: view(0, key_heads, key_dim),
            keys: view(keys, key_heads, key_dim),
            values: view(2 * keys, value_heads, value_dim),
            decays: &self.decays(layer, &steps),
            by_channel,
            rounds_lengths: !by_channel,
            strengths: &self.strengths(layer, &strengths),
            lengths,
        };
        let mut heads = self.buffers.take(gates.len());
        self.ops.delta_rule(&rule, states, &mut heads);
        self.norm_and_gate(layer, &gates, &mut heads);
        [convolved, activated, gates, strengths, steps].into_iter().for_each(|buffer| self.buffers.give(buffer));
        heads
    }

    /// Normalises each head's output and multiplies it by its gates.
    fn norm_and_gate(&self, layer: &GatedDeltaLayer, gates: &[f32], heads: &mut [f32]) {
        let DeltaConfig { value_heads, value_dim, .. } = layer.sizes;
        let values = value_heads * value_dim;
        let (norm, packed) = (self.norm_weights(&layer.norm), HeadLayout::packed(value_heads, value_dim));
        if !layer.inputs.by_channel() {
            self.ops.normalise(&norm, heads, values, packed);
            self.ops.gate(Gate::Silu, &Heads { data: gates, row_width: values, layout: packed }, heads);
            return;
        }
        // Heads share the norm, and nothing is rounded between it and the gate.
        let norm = GatedNorm {
            gates: Heads { data: gates, row_width: values, layout: HeadLayout::row(values) },
            function: Gate::Sigmoid,
            weight: &norm.weight.repeat(value_heads),
            eps: norm.eps,
            parts: value_heads,
            gate_last: true,
        };
        self.ops.gated_norm(&norm, heads);
    }

    /// How strongly each value head writes, a row per token.
    pub(super) fn strengths(&self, layer: &GatedDeltaLayer, rows: &[f32]) -> Vec<f32> {
        let precision = self.ops.precision();
        rows.iter().map(|b| precision.round(layer.strength * precision.round(sigmoid(*b)))).collect()
    }

    /// The factor `exp(g)` on the state of each value head, or on that of each channel of its key, a row per token.
    pub(super) fn decays(&self, layer: &GatedDeltaLayer, steps: &[f32]) -> Vec<f32> {
        let precision = self.ops.precision();
        let decay = |step: f32, (rate, bias): (f32, f32)| match layer.bound {
            None => exp(-rate * softplus(step + bias)),
            Some(bound) => exp(precision.round(bound * sigmoid(rate * (step + bias)))),
        };
        let terms = self.decay_terms(layer);
        steps.iter().zip(terms.into_iter().cycle()).map(|(step, terms)| decay(*step, terms)).collect()
    }

    /// The slopes of `decays` along the steps that they are of.
    pub(super) fn decay_slopes(&self, layer: &GatedDeltaLayer, steps: &[f32], decays: &[f32]) -> Vec<f32> {
        let slope = |step: f32, (rate, bias): (f32, f32)| match layer.bound {
            None => -rate * sigmoid(step + bias),
            Some(bound) => {
                let share = sigmoid(rate * (step + bias));
                bound * rate * share * (1.0 - share)
            }
        };
        let terms = self.decay_terms(layer).into_iter().cycle();
        steps.iter().zip(terms).zip(decays).map(|((step, terms), decay)| slope(*step, terms) * decay).collect()
    }

    /// The rate and the bias of each decay of a token.
    fn decay_terms(&self, layer: &GatedDeltaLayer) -> Vec<(f32, f32)> {
        let precision = self.ops.precision();
        let rounded = |values: Vec<f32>| values.into_iter().map(|value| precision.round(value)).collect::<Vec<f32>>();
        let rates: Vec<f32> = rounded(self.vector(Some(&layer.decay_log))).into_iter().map(exp).collect();
        let biases = rounded(self.vector(Some(&layer.step_bias)));
        let shared = biases.len() / rates.len().max(1);
        rates.into_iter().flat_map(|rate| std::iter::repeat_n(rate, shared)).zip(biases).collect()
    }
}

/// Rows laid out by key heads, as queries, keys and values, gates and rates of all heads.
fn by_kind(sizes: &DeltaConfig, both: &[f32], rates: &[f32]) -> DeltaRows {
    let DeltaConfig { key_heads, value_heads, key_dim, value_dim, .. } = *sizes;
    let shared = value_heads / key_heads;
    let values = shared * value_dim;
    let width = 2 * key_dim + 2 * values;
    let gather = |data: &[f32], step: usize, parts: &[(usize, usize)]| -> Vec<f32> {
        let part = |row: &'_ [f32], (start, width): (usize, usize)| -> Vec<f32> {
            row.chunks_exact(step).flat_map(|head| &head[start..start + width]).copied().collect()
        };
        let rows = data.chunks_exact(key_heads * step);
        rows.flat_map(|row| parts.iter().flat_map(|which| part(row, *which)).collect::<Vec<f32>>()).collect()
    };
    DeltaRows {
        mixed: gather(both, width, &[(0, key_dim), (key_dim, key_dim), (2 * key_dim, values)]),
        gates: gather(both, width, &[(2 * key_dim + values, values)]),
        strengths: gather(rates, 2 * shared, &[(0, shared)]),
        steps: gather(rates, 2 * shared, &[(shared, shared)]),
    }
}
