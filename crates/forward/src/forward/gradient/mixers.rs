//! Token mixers on the tape but plain attention, and what they share: see the files of the same names beside this folder.

use super::super::blueprint::{
    AttentionLayer, ConvolutionLayer, DeltaInputs, GatedDeltaLayer, LatentOrNot, LatentProjections, LightningLayer,
    Mamba1Layer, Mamba2Layer, ParallelMixers, QueryLatent, ShortConvolutionLayer,
};
use super::super::heads::HeadLayout;
use super::super::ops::{Gate, Hidden};
use super::super::recurrent::softplus;
use super::super::recurrent_state::RecurrentState;
use super::activation::Form;
use super::block::InRows;
use super::delta_rule::DeltaStep;
use super::state_space::{ScanStep, StateSpaceStep};
use super::tape::{Step, Tape, Var};
use kvant_model::family::Activation;
use kvant_model::model_config::{DeltaConfig, Mamba1Config, MambaConfig};
use kvant_numeric::linalg::{exp, sigmoid};

/// What the first layers of a gated delta net give.
struct DeltaRows {
    mixed: Var,
    gates: Var,
    strengths: Var,
    steps: Var,
}

impl<'r> Tape<'r, '_> {
    /// Queries, keys and values of latent attention.
    pub(super) fn latent(&mut self, layer: &AttentionLayer, latent: &'r LatentProjections, x: Var) -> [InRows; 3] {
        let sizes = &latent.sizes;
        let (nope, rope, wide) = (sizes.nope_dim, sizes.rope_dim, sizes.value_dim);
        let (rank, heads) = (sizes.key_value_rank, latent.heads);
        let mut queries = self.linear(latent.query.first(), x);
        if let QueryLatent::Latent(down, norm, up) = &latent.query {
            let normed = self.norm(norm, (queries, down.rows, HeadLayout::row(down.rows)));
            queries = self.linear(up, normed);
        }
        let down = self.linear(&latent.down, x);
        let compressed = self.gathered(down, (0..rank).collect(), rank + rope);
        let mut turning = self.gathered(down, (rank..rank + rope).collect(), rank + rope);
        let compressed = self.norm(&latent.norm, (compressed, rank, HeadLayout::row(rank)));
        queries = self.scale(queries, latent.factors[0]);
        let compressed = self.scale(compressed, latent.factors[1]);
        let up = self.linear(&latent.up, compressed);
        let all = HeadLayout::packed(heads, nope + rope);
        if let Some(rotary) = layer.rotary {
            queries = self.turned(rotary, (queries, heads * (nope + rope), all.part(nope, rope)));
            turning = self.turned(rotary, (turning, rope, HeadLayout::row(rope)));
        }
        // Each head's part without positions, then the part with positions that all share.
        let up_width = heads * (nope + wide);
        let both = self.side_by_side(&[(up, up_width), (turning, rope)]);
        let of_head =
            |head: usize| (head * (nope + wide)..head * (nope + wide) + nope).chain(up_width..up_width + rope);
        let keys = self.gathered(both, (0..heads).flat_map(of_head).collect(), up_width + rope);
        let values = HeadLayout::packed(heads, nope + wide).part(nope, wide);
        [(queries, heads * (nope + rope), all), (keys, heads * (nope + rope), all), (up, up_width, values)]
    }

    /// Values side by side, each with elements of its rows.
    fn side_by_side(&mut self, parts: &[(Var, usize)]) -> Var {
        let rows = parts.first().map_or(0, |(x, width)| self.value(*x).len() / width);
        let mut out = Vec::new();
        for row in 0..rows {
            for (x, width) in parts {
                out.extend_from_slice(&self.value(*x)[row * width..(row + 1) * width]);
            }
        }
        self.record(Step::SideBySide { parts: parts.to_vec() }, out)
    }

    /// The convolution of `x`.
    fn convolved(&mut self, layer: &ConvolutionLayer, x: Var) -> Var {
        let weight: Vec<f32> = layer.weight.iter().flat_map(|weight| self.run.vector(Some(weight))).collect();
        let rows = self.value(x).len() / (weight.len() / layer.kernel);
        let lengths: Vec<usize> = self.run.spans().of(rows).collect();
        let mut states = vec![RecurrentState::default(); lengths.len()];
        let out = self.run.convolved(layer, self.value(x), &lengths, &mut states);
        self.record(Step::Convolve { x, weight, kernel: layer.kernel, lengths }, out)
    }

    /// `function(x)`, whose slopes there are `slopes`.
    pub(super) fn mapped(&mut self, x: Var, out: Vec<f32>, slopes: Vec<f32>) -> Var {
        self.record(Step::Multiply { x, factors: slopes }, out)
    }

    fn activated(&mut self, activation: Activation, x: Var) -> Var {
        let mut out = Vec::new();
        self.run.ops.activate(activation, Hidden::Plain(self.value(x)), &mut out);
        self.record(Step::Activate { activation, form: Form::Plain(x) }, out)
    }

    /// A short convolution, up to its output projection.
    pub(super) fn short_convolution(&mut self, layer: &'r ShortConvolutionLayer, x: Var) -> Var {
        let rows = self.linear(&layer.input, x);
        let width = layer.output.columns;
        let part = |which: usize| HeadLayout { start: which * width, ..HeadLayout::row(width) };
        let values = self.gathered(rows, (2 * width..3 * width).collect(), 3 * width);
        let gated = self.gate(Gate::Plain, values, (rows, 3 * width, part(0)));
        let convolved = self.convolved(&layer.convolution, gated);
        self.gate(Gate::Plain, convolved, (rows, 3 * width, part(1)))
    }

    /// Lightning attention, up to its output projection: a state-space layer whose inputs are values, which keys write and queries read.
    pub(super) fn lightning(&mut self, layer: &'r LightningLayer, x: Var) -> Var {
        let (rows, gates) = (self.linear(&layer.input, x), self.linear(&layer.gate, x));
        let activated = self.activated(layer.activation, rows);
        let (count, width) = (layer.heads, layer.width);
        let part = |which: usize| HeadLayout { start: which * width, step: 3 * width, width, count };
        let tokens = self.value(rows).len() / layer.input.rows;
        let decays: Vec<f32> = self.run.lightning_rates(layer).into_iter().map(|rate| exp(-rate)).collect();
        let step = StateSpaceStep {
            x: activated,
            row_width: layer.input.rows,
            heads: [part(2), part(1), part(0)],
            steps: self.put(vec![1.0; tokens * count]),
            decays: self.put(decays.repeat(tokens)),
            skips: vec![0.0; count],
            lengths: self.run.spans().of(tokens).collect(),
        };
        let out = self.state_space(step);
        let normed = self.norm(&layer.norm, (out, count * width, HeadLayout::row(count * width)));
        self.gate(Gate::Sigmoid, normed, (gates, count * width, HeadLayout::row(count * width)))
    }

    fn state_space(&mut self, step: StateSpaceStep) -> Var {
        let (mut out, mut states) = (Vec::new(), vec![RecurrentState::default(); step.lengths.len()]);
        self.run.ops.state_space(&step.space(|var| self.value(var)), &mut states, &mut out);
        self.record(Step::StateSpace(Box::new(step)), out)
    }

    /// A Mamba 2 mixer, up to its output projection.
    pub(super) fn mamba2(&mut self, layer: &'r Mamba2Layer, x: Var) -> Var {
        let MambaConfig { heads, head_dim, groups, state, least_step, largest_step, .. } = layer.sizes;
        let (inner, shared, width) = (heads * head_dim, groups * state, layer.input.rows);
        let channels = inner + 2 * shared;
        let mut rows = self.linear(&layer.input, x);
        if layer.factors != [1.0; 5] {
            let widths = [inner, inner, shared, shared, heads].into_iter().zip(layer.factors);
            let row: Vec<f32> = widths.flat_map(|(width, factor)| std::iter::repeat_n(factor, width)).collect();
            let count = self.value(rows).len() / width;
            rows = self.multiply(rows, row.repeat(count));
        }
        let mixed = self.gathered(rows, (inner..inner + channels).collect(), width);
        let convolved = self.convolved(&layer.convolution, mixed);
        let activated = self.activated(layer.activation, convolved);
        let steps = self.gathered(rows, (inner + channels..width).collect(), width);
        let (least, largest) = (least_step as f32, largest_step as f32);
        let biases = self.run.rounded(&layer.step_bias);
        let biased: Vec<f32> = self.value(steps).iter().zip(biases.iter().cycle()).map(|(s, bias)| s + bias).collect();
        let within = |s: f32| (least..=largest).contains(&softplus(s));
        let out = biased.iter().map(|s| softplus(*s).max(least).min(largest)).collect();
        let slopes = biased.iter().map(|s| if within(*s) { sigmoid(*s) } else { 0.0 }).collect();
        let steps = self.mapped(steps, out, slopes);
        let rates: Vec<f32> = self.run.rounded(&layer.decay_log).into_iter().map(exp).collect();
        let decays = self.value(steps).iter().zip(rates.iter().cycle());
        let decays: Vec<(f32, f32)> = decays.map(|(step, rate)| (exp(-rate * step), *rate)).collect();
        let slopes = decays.iter().map(|(decay, rate)| -rate * decay).collect();
        let decays = self.mapped(steps, decays.iter().map(|(decay, _)| *decay).collect(), slopes);
        let view = |start: usize, count: usize, width: usize| HeadLayout { start, ..HeadLayout::packed(count, width) };
        let step = StateSpaceStep {
            x: activated,
            row_width: channels,
            heads: [view(0, heads, head_dim), view(inner, groups, state), view(inner + shared, groups, state)],
            steps,
            decays,
            skips: self.run.rounded(&layer.skip),
            lengths: self.run.spans().of(self.value(steps).len() / heads).collect(),
        };
        let mut out = self.state_space(step);
        let gates = (rows, width, HeadLayout::row(inner));
        if !layer.gate_last {
            out = self.gate(Gate::Silu, out, gates);
        }
        if let Some(norm) = &layer.norm {
            out = self.norm(norm, (out, inner, HeadLayout::packed(layer.norm_parts, inner / layer.norm_parts)));
        }
        if layer.gate_last {
            out = self.gate(Gate::Silu, out, gates);
        }
        out
    }

    /// A Mamba mixer, up to its output projection.
    pub(super) fn mamba1(&mut self, layer: &'r Mamba1Layer, x: Var) -> Var {
        let Mamba1Config { inner, state, rank, .. } = layer.sizes;
        let rows = self.linear(&layer.input, x);
        let mixed = self.gathered(rows, (0..inner).collect(), 2 * inner);
        let convolved = self.convolved(&layer.convolution, mixed);
        let activated = self.activated(layer.activation, convolved);
        let mut chosen = self.linear(&layer.choice, activated);
        let width = rank + 2 * state;
        let places = [(0, rank), (rank, state), (rank + state, state)];
        let places = places.map(|(start, width)| HeadLayout { start, ..HeadLayout::row(width) });
        for (norm, place) in layer.norms.iter().flatten().zip(places) {
            chosen = self.norm(norm, (chosen, width, place));
        }
        let latents = self.gathered(chosen, (0..rank).collect(), width);
        let steps = self.linear(&layer.step, latents);
        let out: Vec<f32> = self.value(steps).iter().map(|step| softplus(*step)).collect();
        let slopes = self.value(steps).iter().map(|step| sigmoid(*step)).collect();
        let steps = self.mapped(steps, out, slopes);
        let step = ScanStep {
            x: activated,
            chosen,
            row_width: width,
            places: [places[1], places[2]],
            steps,
            rates: self.run.rounded(&layer.decay_log).into_iter().map(exp).collect(),
            skips: self.run.rounded(&layer.skip),
            lengths: self.run.spans().of(self.value(rows).len() / (2 * inner)).collect(),
        };
        let (mut out, mut states) = (Vec::new(), vec![RecurrentState::default(); step.lengths.len()]);
        self.run.ops.selective_scan(&step.scan(|var| self.value(var)), &mut states, &mut out);
        let out = self.record(Step::Scan(Box::new(step)), out);
        self.gate(Gate::Silu, out, (rows, 2 * inner, HeadLayout { start: inner, ..HeadLayout::row(inner) }))
    }

    /// Attention and a recurrent mixer side by side.
    pub(super) fn both_mixers(&mut self, both: &'r ParallelMixers, x: Var) -> Var {
        let own = self.scale(x, both.attention_factors[0]);
        let attention = self.attention(&both.attention, own);
        let attention = self.scale(attention, both.attention_factors[1]);
        let own = self.scale(x, both.recurrent_factors[0]);
        let heads = self.mamba2(&both.recurrent, own);
        let recurrent = self.linear(&both.recurrent.output, heads);
        let recurrent = self.scale(recurrent, both.recurrent_factors[1]);
        let mut out = self.value(attention).to_vec();
        self.run.ops.join(&mut out, self.value(recurrent), 1.0);
        self.record(Step::Join { x: attention, branch: recurrent, scale: 1.0 }, out)
    }

    /// A gated delta net, up to its output projection.
    pub(super) fn gated_delta(&mut self, layer: &'r GatedDeltaLayer, x: Var) -> Var {
        let DeltaConfig { key_heads, value_heads, key_dim, value_dim, .. } = layer.sizes;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let DeltaRows { mixed, gates, strengths, steps } = self.delta_rows(layer, x);
        let convolved = self.convolved(&layer.convolution, mixed);
        let activated = self.activated(layer.activation, convolved);
        let out = self.run.strengths(layer, self.value(strengths));
        let open = |b: &f32| layer.strength * sigmoid(*b) * (1.0 - sigmoid(*b));
        let slopes = self.value(strengths).iter().map(open).collect();
        let strengths = self.mapped(strengths, out, slopes);
        let out = self.run.decays(layer, self.value(steps));
        let slopes = self.run.decay_slopes(layer, self.value(steps), &out);
        let decays = self.mapped(steps, out, slopes);
        let rows = self.value(x).len() / layer.inputs.first()[0].columns;
        let heads = |start: usize, count: usize, width: usize| HeadLayout { start, ..HeadLayout::packed(count, width) };
        let step = DeltaStep {
            x: activated,
            row_width: 2 * keys + values,
            heads: [
                heads(0, key_heads, key_dim),
                heads(keys, key_heads, key_dim),
                heads(2 * keys, value_heads, value_dim),
            ],
            decays,
            by_channel: layer.inputs.by_channel(),
            strengths,
            lengths: self.run.spans().of(rows).collect(),
        };
        let (mut out, mut states) = (Vec::new(), vec![RecurrentState::default(); step.lengths.len()]);
        self.run.ops.delta_rule(&step.rule(|var| self.value(var)), &mut states, &mut out);
        let out = self.record(Step::Delta(Box::new(step)), out);
        let normed = self.norm(&layer.norm, (out, values, HeadLayout::packed(value_heads, value_dim)));
        let function = if layer.inputs.by_channel() { Gate::Sigmoid } else { Gate::Silu };
        self.gate(function, normed, (gates, values, HeadLayout::row(values)))
    }

    fn delta_rows(&mut self, layer: &'r GatedDeltaLayer, x: Var) -> DeltaRows {
        match &layer.inputs {
            DeltaInputs::Single(layers) => {
                let [query, key, value, gates, strengths, steps] = layers.each_ref();
                let parts = [query, key, value].map(|layer| (self.linear(layer, x), layer.rows));
                let mixed = self.side_by_side(&parts);
                let [gates, strengths, steps] = [gates, strengths, steps].map(|layer| self.linear(layer, x));
                DeltaRows { mixed, gates, strengths, steps }
            }
            DeltaInputs::Separate(layers) => {
                let [mixed, gates, strengths, steps] = layers.each_ref().map(|layer| self.linear(layer, x));
                DeltaRows { mixed, gates, strengths, steps }
            }
            DeltaInputs::ByKeyHead(layers) => {
                let [both, rates] = layers.each_ref().map(|layer| self.linear(layer, x));
                let [both_width, rates_width] = layers.each_ref().map(|layer| layer.rows);
                let DeltaConfig { key_heads, value_heads, key_dim, value_dim, .. } = layer.sizes;
                let (shared, values) = (value_heads / key_heads, value_heads / key_heads * value_dim);
                // Of the rows of each key head some elements, those of all heads side by side.
                let of_heads = |width: usize, start: usize, count: usize| -> Vec<usize> {
                    let step = width / key_heads;
                    (0..key_heads).flat_map(|head| head * step + start..head * step + start + count).collect()
                };
                let kinds = [(0, key_dim), (key_dim, key_dim), (2 * key_dim, values)];
                let mixed = kinds.into_iter().flat_map(|(start, count)| of_heads(both_width, start, count)).collect();
                let gates = of_heads(both_width, 2 * key_dim + values, values);
                DeltaRows {
                    mixed: self.gathered(both, mixed, both_width),
                    gates: self.gathered(both, gates, both_width),
                    strengths: self.gathered(rates, of_heads(rates_width, 0, shared), rates_width),
                    steps: self.gathered(rates, of_heads(rates_width, shared, shared), rates_width),
                }
            }
            DeltaInputs::ByChannel(layers) => {
                let parts = layers.mixed.each_ref().map(|layer| (self.linear(layer, x), layer.rows));
                DeltaRows {
                    mixed: self.side_by_side(&parts),
                    gates: self.behind_latent(&layers.gate, x),
                    strengths: self.linear(&layers.strength, x),
                    steps: self.behind_latent(&layers.decay, x),
                }
            }
        }
    }

    fn behind_latent(&mut self, layers: &'r LatentOrNot, x: Var) -> Var {
        let first = self.linear(&layers.first, x);
        layers.second.as_ref().map_or(first, |second| self.linear(second, first))
    }
}

/// The gradient of what a convolution has read, for that of its outputs: rows of `channels`, each an output's gradient times the weight of its
/// place, `weight` being `[channels, kernel]`.
pub(super) fn convolution_gradient(gradient: &[f32], weight: &[f32], kernel: usize, lengths: &[usize]) -> Vec<f32> {
    let channels = weight.len() / kernel;
    let mut out = vec![0.0; gradient.len()];
    let mut start = 0;
    for rows in lengths {
        for row in 0..*rows {
            // The last weight is that of the row itself.
            for back in 0..kernel.min(row + 1) {
                let (from, to) = ((start + row) * channels, (start + row - back) * channels);
                for channel in 0..channels {
                    out[to + channel] += gradient[from + channel] * weight[channel * kernel + kernel - 1 - back];
                }
            }
        }
        start += rows;
    }
    out
}
