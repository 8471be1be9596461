//! A block on the tape: the steps of [`Run::block`](super::super::run::Run::block), with nothing quantized but what layers read.

use super::super::blueprint::{
    AttentionLayer, BehindBranch, Block, FeedForward, FirstLayers, HeadGates, HeadNorms, Mixture, Mlp, NormLayer,
};
use super::super::blueprint::{Projections, TokenMixer};
use super::super::heads::HeadLayout;
use super::super::ops::{Gate, Hidden};
use super::super::tensors::Projection;
use super::activation::{Form, xielu_slopes};
use super::attention::AttentionStep;
use super::tape::{Step, Tape, Var};
use crate::forward::Heads;
use kvant_model::family::{Pairing, QueryKeyNorm, Residual, RowOrder};

/// A value with heads in its rows: the value, elements of a row, where the heads are.
pub(super) type InRows = (Var, usize, HeadLayout);

impl<'r> Tape<'r, '_> {
    /// Block `index` on the stream `x`.
    pub(super) fn block(&mut self, index: usize, x: Var) -> Var {
        let decoder = self.run.decoder;
        let block = &decoder.blueprint.blocks[index];
        let x = match block.residual {
            Residual::Parallel => self.parallel(index, block, x),
            Residual::PostNorm => self.post_norm(index, block, x),
            Residual::OfNorm => self.of_norm(index, block, x),
            _ => self.sequential(index, block, x),
        };
        self.with_further_rows(index, x)
    }

    /// The stream with what a tower for images gives behind the block, which does not depend on it.
    fn with_further_rows(&mut self, index: usize, x: Var) -> Var {
        let further = self.run.further_rows(index);
        if further.is_empty() {
            return x;
        }
        let (width, mut out) = (self.run.decoder.hidden(), self.copy(x));
        let mut all = vec![0.0; out.len()];
        further.into_iter().for_each(|(rows, added)| all[rows.start * width..rows.end * width].copy_from_slice(&added));
        self.run.ops.join(&mut out, &all, 1.0);
        let branch = self.put(all);
        self.record(Step::Join { x, branch, scale: 1.0 }, out)
    }

    fn sequential(&mut self, index: usize, block: &'r Block, mut x: Var) -> Var {
        if !matches!(block.mixer, TokenMixer::Absent) {
            let normed = self.normed(block.attention_input.as_ref(), x);
            let branch = self.mix(&block.mixer, normed);
            x = self.join(block, x, branch, block.after_attention());
        }
        if matches!(block.feed_forward, FeedForward::Absent) {
            return x;
        }
        let normed = self.normed(block.feed_forward_input.as_ref(), x);
        let branch = self.feed_forward(index, &block.feed_forward, normed);
        x = self.join(block, x, branch, block.after_feed_forward());
        match self.run.vector(block.scalar.as_ref()).first() {
            Some(scalar) => self.scale(x, *scalar),
            None => x,
        }
    }

    fn parallel(&mut self, index: usize, block: &'r Block, x: Var) -> Var {
        let normed = self.normed(block.attention_input.as_ref(), x);
        let second = match &block.feed_forward_input {
            Some(norm) => self.normed(Some(norm), x),
            None => normed,
        };
        let attention = self.mix(&block.mixer, normed);
        let feed_forward = self.feed_forward(index, &block.feed_forward, second);
        let x = self.join(block, x, attention, block.after_attention());
        self.join(block, x, feed_forward, block.after_feed_forward())
    }

    fn post_norm(&mut self, index: usize, block: &'r Block, x: Var) -> Var {
        let branch = self.mix(&block.mixer, x);
        let x = self.join(block, x, branch, (None, None));
        let x = self.normed(block.attention_input.as_ref(), x);
        if matches!(block.feed_forward, FeedForward::Absent) {
            return x;
        }
        let branch = self.feed_forward(index, &block.feed_forward, x);
        let x = self.join(block, x, branch, (None, None));
        self.normed(block.feed_forward_input.as_ref(), x)
    }

    fn of_norm(&mut self, index: usize, block: &'r Block, x: Var) -> Var {
        let read = self.normed(block.attention_input.as_ref(), x);
        let branch = self.mix(&block.mixer, read);
        let x = self.weighed_sum(block.shares[0], read, branch);
        let read = self.normed(block.feed_forward_input.as_ref(), x);
        let branch = self.feed_forward(index, &block.feed_forward, read);
        self.weighed_sum(block.shares[1], read, branch)
    }

    /// `a residual + b branch`.
    fn weighed_sum(&mut self, [a, b]: [f32; 2], residual: Var, branch: Var) -> Var {
        let (x, branch) = (self.scale(residual, a), self.scale(branch, b));
        let mut out = self.copy(x);
        self.run.ops.join(&mut out, self.value(branch), 1.0);
        self.record(Step::Join { x, branch, scale: 1.0 }, out)
    }

    fn join(&mut self, block: &'r Block, x: Var, branch: Var, (norm, scales): BehindBranch<'r>) -> Var {
        let mut branch = self.normed(norm, branch);
        if let Some(scales) = scales {
            let (scales, count) = (self.run.vector(Some(scales)), self.value(branch).len());
            branch = self.multiply(branch, scales.into_iter().cycle().take(count).collect());
        }
        let mut out = self.copy(x);
        self.run.ops.join(&mut out, self.value(branch), block.branch_scale);
        self.record(Step::Join { x, branch, scale: block.branch_scale }, out)
    }

    pub(super) fn normed(&mut self, norm: Option<&'r NormLayer>, x: Var) -> Var {
        let width = self.run.decoder.hidden();
        norm.map_or(x, |norm| self.norm(norm, (x, width, HeadLayout::row(width))))
    }

    pub(super) fn norm(&mut self, layer: &'r NormLayer, (x, width, layout): InRows) -> Var {
        let norm = self.run.norm_weights(layer);
        let mut out = self.copy(x);
        self.run.ops.normalise(&norm, &mut out, width, layout);
        self.record(Step::Norm { layer, norm, width, layout, x }, out)
    }

    /// Each element times a factor.
    pub(super) fn multiply(&mut self, x: Var, factors: Vec<f32>) -> Var {
        let out = self.value(x).iter().zip(&factors).map(|(value, factor)| value * factor).collect();
        self.record(Step::Multiply { x, factors }, out)
    }

    pub(super) fn scale(&mut self, x: Var, factor: f32) -> Var {
        if factor == 1.0 {
            return x;
        }
        let count = self.value(x).len();
        self.multiply(x, vec![factor; count])
    }

    /// Heads times the factor of their row.
    fn scale_heads(&mut self, (x, width, layout): InRows, factor: impl Fn(usize) -> f32) -> Var {
        let mut factors = vec![1.0; self.value(x).len()];
        for (index, row) in factors.chunks_exact_mut(width).enumerate() {
            layout.of(row).for_each(|head| head.fill(factor(index)));
        }
        self.multiply(x, factors)
    }

    fn mix(&mut self, mixer: &'r TokenMixer, x: Var) -> Var {
        match mixer {
            TokenMixer::Attention(layer) => self.attention(layer, x),
            TokenMixer::Both(both) => self.both_mixers(both, x),
            TokenMixer::Absent => x,
            TokenMixer::GatedDelta(layer) => {
                let heads = self.gated_delta(layer, x);
                self.linear(&layer.output, heads)
            }
            TokenMixer::ShortConvolution(layer) => {
                let heads = self.short_convolution(layer, x);
                self.linear(&layer.output, heads)
            }
            TokenMixer::Lightning(layer) => {
                let heads = self.lightning(layer, x);
                self.linear(&layer.output, heads)
            }
            TokenMixer::Mamba1(layer) => {
                let heads = self.mamba1(layer, x);
                self.linear(&layer.output, heads)
            }
            TokenMixer::Mamba2(layer) => {
                let heads = self.mamba2(layer, x);
                self.linear(&layer.output, heads)
            }
        }
    }

    pub(super) fn attention(&mut self, layer: &'r AttentionLayer, x: Var) -> Var {
        let heads = self.projected(layer, x);
        let length = self.run.length;
        let step = AttentionStep {
            heads,
            length,
            foreign: layer.attends_to_encoder().then(|| self.memory_or(x).1),
            scale: layer.scale,
            cap: layer.cap,
            window: layer.window,
            ahead: layer.ahead,
            ends: self.run.ends(),
            chunk: layer.chunk,
            sinks: self.run.vector(layer.sinks.as_ref()),
            biases: self.run.head_biases(layer, length),
        };
        let mut out = Vec::new();
        self.run.ops.attend(&step.attention(|var| self.value(var)), &mut out);
        let mut out = self.record(Step::Attend(Box::new(step)), out);
        let width = layer.output.columns;
        if let Some(norm) = &layer.heads_norm {
            out = self.norm(norm, (out, width, HeadLayout::row(width)));
        }
        out = match &layer.gates {
            None => out,
            Some(HeadGates::WithQueries(layout)) => self.gate(Gate::Sigmoid, out, (heads[0].0, heads[0].1, *layout)),
            Some(HeadGates::Layer { layer: gate, function, shared }) => {
                let mut gates = self.linear(gate, x);
                if *shared > 1 {
                    let from = (0..gate.rows).flat_map(|head| std::iter::repeat_n(head, *shared)).collect();
                    gates = self.gathered(gates, from, gate.rows);
                }
                self.gate(*function, out, (gates, width, HeadLayout::row(width)))
            }
        };
        self.linear(&layer.output, out)
    }

    pub(super) fn gate(&mut self, function: Gate, x: Var, (gate, width, layout): InRows) -> Var {
        let mut out = self.copy(x);
        let gates = Heads { data: self.value(gate), row_width: width, layout };
        self.run.ops.gate(function, &gates, &mut out);
        self.record(Step::Gate { function, x, gate, width, layout }, out)
    }

    /// Queries, keys and values.
    fn projected(&mut self, layer: &'r AttentionLayer, x: Var) -> [InRows; 3] {
        let mut all: [InRows; 3] = match &layer.projections {
            Projections::Separate { layers, heads } => {
                std::array::from_fn(|which| (self.linear(&layers[which], x), layers[which].rows, heads[which]))
            }
            Projections::OfEncoder { layers, heads } => {
                let [queries, keys, values] = &**layers;
                let memory = self.memory_or(x).0;
                let (q, k, v) = (self.linear(queries, x), self.linear(keys, memory), self.linear(values, memory));
                [(q, queries.rows, heads[0]), (k, keys.rows, heads[1]), (v, values.rows, heads[2])]
            }
            Projections::Fused { layer: fused, heads, grouped } => {
                let mut rows = self.linear(fused, x);
                if *grouped {
                    rows = self.gathered(rows, stacked_order(fused, heads), fused.rows);
                }
                heads.map(|heads| (rows, fused.rows, heads))
            }
            Projections::KeysAsValues { layers, heads } => {
                let [queries, keys] = &**layers;
                let (q, k) = (self.linear(queries, x), self.linear(keys, x));
                [(q, queries.rows, heads[0]), (k, keys.rows, heads[1]), (k, keys.rows, heads[2])]
            }
            Projections::Latent(latent) => {
                let mut all = self.latent(layer, latent, x);
                self.grow_queries(layer, &mut all);
                return all;
            }
            // Refused before.
            Projections::Shared(_) | Projections::Queries { .. } => [(x, 1, HeadLayout::row(1)); 3],
        };
        if let Some(limit) = layer.clip {
            all.iter_mut().for_each(|part| part.0 = self.clip(part.0, limit));
        }
        if let Some(norm) = &layer.value_norm {
            all[2].0 = self.norm(norm, all[2]);
        }
        for (which, scale) in [(1, layer.key_scale), (2, layer.value_scale)] {
            if scale != 1.0 {
                all[which].0 = self.scale_heads(all[which], |_| scale);
            }
        }
        let is_after = |norms: &&HeadNorms| {
            matches!(norms.rule, QueryKeyNorm::PerHeadAfterRotary | QueryKeyNorm::PlainAfterRotary)
        };
        self.norm_heads(layer.head_norms.as_ref().filter(|norms| !is_after(norms)), &mut all);
        if let Some((rotary, pairing)) = layer.rotary {
            for part in &mut all[..2] {
                part.0 = self.turned((rotary, pairing), *part);
            }
        }
        self.norm_heads(layer.head_norms.as_ref().filter(is_after), &mut all);
        self.grow_queries(layer, &mut all);
        all
    }

    fn grow_queries(&mut self, layer: &AttentionLayer, all: &mut [InRows; 3]) {
        if let Some(growth) = layer.growth {
            let length = self.run.length;
            all[0].0 = self.scale_heads(all[0], |row| growth.at(row % length));
        }
    }

    /// Heads turned by the angles of their positions.
    pub(super) fn turned(&mut self, (rotary, pairing): (usize, Pairing), (x, width, layout): InRows) -> Var {
        let mut out = self.copy(x);
        self.run.ops.rotate(&self.run.angles[rotary], pairing, &mut out, width, layout);
        self.record(Step::Turn { rotary, pairing, width, layout, x }, out)
    }

    fn norm_heads(&mut self, norms: Option<&'r HeadNorms>, all: &mut [InRows; 3]) {
        let Some(norms) = norms else { return };
        for (part, norm) in all.iter_mut().zip([Some(&norms.query), norms.key.as_ref()]) {
            let Some(norm) = norm else { continue };
            let (x, width, layout) = *part;
            let layout = match norms.rule {
                QueryKeyNorm::AllHeads => HeadLayout { width: layout.width * layout.count, count: 1, ..layout },
                _ => layout,
            };
            let layout = HeadLayout { step: layout.step.max(layout.width), ..layout };
            part.0 = self.norm(norm, (x, width, layout));
        }
    }

    fn clip(&mut self, x: Var, limit: f32) -> Var {
        let out = self.value(x).iter().map(|value| value.clamp(-limit, limit)).collect();
        let factors = self.value(x).iter().map(|value| if value.abs() < limit { 1.0 } else { 0.0 }).collect();
        self.record(Step::Multiply { x, factors }, out)
    }

    /// Of each row of `width` elements those at these places, one after the other.
    pub(super) fn gathered(&mut self, x: Var, from: Vec<usize>, width: usize) -> Var {
        let rows = self.value(x).chunks_exact(width);
        let out = rows.flat_map(|row| from.iter().map(|index| row[*index])).collect();
        self.record(Step::GatherColumns { x, from, width }, out)
    }

    fn feed_forward(&mut self, index: usize, network: &'r FeedForward, x: Var) -> Var {
        match network {
            FeedForward::Dense(mlp) => self.mlp(mlp, x),
            FeedForward::Mixture(mixture) => self.mixture(index, mixture, x),
            FeedForward::Absent => x,
        }
    }

    fn mlp(&mut self, mlp: &'r Mlp, x: Var) -> Var {
        let form = match &mlp.first {
            FirstLayers::Plain(up) => Form::Plain(self.linear(up, x)),
            FirstLayers::Gated(gate, up) => {
                let (gate, up) = (self.linear(gate, x), self.linear(up, x));
                Form::Pair(self.scale(gate, mlp.factors[0]), up)
            }
            FirstLayers::Fused(both, RowOrder::Interleaved) => Form::Alternating(self.linear(both, x)),
            FirstLayers::Fused(both, _) => Form::Halves(self.linear(both, x), both.rows),
        };
        let hidden = match form {
            Form::Plain(x) => Hidden::Plain(self.value(x)),
            Form::Pair(gate, up) => Hidden::Pair { gate: self.value(gate), up: self.value(up) },
            Form::Halves(rows, width) => Hidden::Halves { rows: self.value(rows), width },
            Form::Alternating(rows) => Hidden::Alternating(self.value(rows)),
        };
        let mut out = self.run.buffers.take(hidden.elements());
        let mut hidden = match (&mlp.xielu, form) {
            (Some(xielu), Form::Plain(x)) => {
                let parameters = self.run.xielu(xielu);
                self.run.ops.xielu(parameters, self.value(x), &mut out);
                let slopes = xielu_slopes(parameters, self.value(x));
                self.mapped(x, out, slopes)
            }
            (_, form) => {
                self.run.ops.activate(mlp.activation, hidden, &mut out);
                self.record(Step::Activate { activation: mlp.activation, form }, out)
            }
        };
        if let Some(norm) = &mlp.hidden_norm {
            hidden = self.norm(norm, (hidden, mlp.down.columns, HeadLayout::row(mlp.down.columns)));
        }
        let out = self.linear(&mlp.down, hidden);
        self.scale(out, mlp.factors[1])
    }

    fn mixture(&mut self, index: usize, mixture: &'r Mixture, x: Var) -> Var {
        let width = mixture.router.columns;
        let shares = self.run.shares(index, mixture, self.value(x));
        let mut out = match &mixture.shared {
            Some(shared) => self.shared(mixture, shared, x),
            None => {
                let zeros = vec![0.0; self.value(x).len()];
                self.put(zeros)
            }
        };
        for (share, expert) in shares.iter().zip(&mixture.experts).filter(|(share, _)| !share.is_empty()) {
            let rows: Vec<usize> = share.iter().map(|(row, _)| *row).collect();
            let own = rows.iter().flat_map(|row| &self.value(x)[row * width..(row + 1) * width]).copied().collect();
            let mut part = self.record(Step::Gather { x, rows, width }, own);
            if mixture.weighs_inputs {
                let factors = share.iter().flat_map(|(_, weight)| std::iter::repeat_n(*weight, width)).collect();
                part = self.multiply(part, factors);
            }
            part = self.mlp(expert, part);
            let weight = |weight: f32| if mixture.weighs_inputs { 1.0 } else { weight };
            let rows: Vec<(usize, f32)> = share.iter().map(|(row, share)| (*row, weight(*share))).collect();
            let mut sum = self.value(out).to_vec();
            for ((row, weight), values) in rows.iter().zip(self.value(part).chunks_exact(width)) {
                let place = sum[row * width..(row + 1) * width].iter_mut();
                place.zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            out = self.record(Step::Scatter { x: out, part, rows, width }, sum);
        }
        self.scale(out, mixture.sum_scale)
    }

    /// The network that all tokens pass, at its gate.
    fn shared(&mut self, mixture: &'r Mixture, shared: &'r Mlp, x: Var) -> Var {
        let out = self.mlp(shared, x);
        let Some(gate) = &mixture.shared_gate else { return out };
        let gates = self.run.linear(gate, self.value(x));
        let width = mixture.router.columns;
        let open = gates.into_iter().map(|gate| 1.0 / (1.0 + (-gate).exp()));
        let factors = open.flat_map(|open| std::iter::repeat_n(open, width)).collect();
        self.multiply(out, factors)
    }
}

/// From rows with the queries of a key head, the key and the value, head after head, to rows with all queries, then keys, then values.
fn stacked_order(fused: &Projection, [queries, keys, _]: &[HeadLayout; 3]) -> Vec<usize> {
    let (shared, head) = (queries.count / keys.count, queries.width);
    let group = (shared + 2) * head;
    let ranges = [0..shared, shared..shared + 1, shared + 1..shared + 2];
    let of = |range: std::ops::Range<usize>| {
        (0..fused.rows / group)
            .flat_map(move |index| index * group + range.start * head..index * group + range.end * head)
    };
    ranges.into_iter().flat_map(of).collect()
}
