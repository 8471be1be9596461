//! Attention of one block: project, normalise, turn, attend, project back.

use super::blueprint::{
    AttentionLayer, HeadBiases, HeadGates, HeadNorms, IndexChoice, IndexerLayer, LatentProjections, NormLayer,
    Projections, QueryLatent, ScoreBiases, SharedProjections,
};
use super::compressed::EntryRows;
use super::heads::{HeadLayout, Heads};
use super::hook::{ActivationPoint, Rows};
use super::indexer::IndexRows;
use super::layout::ImageSpan;
use super::ops::{Attention, Gate, IndexRule, KeyIndex};
use super::options::{Flow, StopAt};
use super::quantizers::quantize_heads;
use super::run::Run;
use super::spans::Spans;
use super::step::Step;
use super::tensors::Projection;
use super::weighed;
use kvant_model::family::QueryKeyNorm;
use kvant_numeric::simd::Isa;
use std::ops::ControlFlow;
use std::sync::PoisonError;

/// A buffer with heads in its rows.
#[derive(Clone)]
struct Buffer {
    data: Vec<f32>,
    width: usize,
}

/// Queries, keys and values: each the number of a buffer, and where its heads stand.
struct Projected {
    buffers: Vec<Buffer>,
    heads: [(usize, HeadLayout); 3],
    /// How many of the three the block makes: all, or queries only.
    own: usize,
    /// What the block's indexer makes.
    index: Option<IndexRows>,
    /// The entries of the tokens of each sequence.
    entries: Option<EntryRows>,
}

impl Projected {
    fn view(&self, which: usize) -> Heads<'_> {
        let (buffer, layout) = self.heads[which];
        Heads { data: &self.buffers[buffer].data, row_width: self.buffers[buffer].width, layout }
    }
}

impl Run<'_, '_> {
    /// What the heads of attention give for normed rows `x`, side by side.
    pub(super) fn attention_heads(&self, block: usize, layer: &AttentionLayer, x: &[f32]) -> Flow<Vec<f32>> {
        // A run that ends where the inputs are shows them with the others, one that ends at a latent has shown them before.
        let gates = layer.gates.as_ref().filter(|_| self.with.until != Some(StopAt::AttentionInput));
        let own_gates = gates.and_then(|gates| self.gates_of_layer(gates, x));
        let mut projected = self.projected(block, layer, x)?;
        let sites = [ActivationPoint::Query(block), ActivationPoint::Key(block), ActivationPoint::Value(block)];
        sites
            .into_iter()
            .take(projected.own)
            .enumerate()
            .for_each(|(which, site)| self.show_heads(site, &projected.view(which)));
        self.quantize_heads(block, &mut projected);
        self.share_keys(&projected);
        let index = layer.indexer.as_ref().zip(projected.index.as_ref()).map(|(indexer, rows)| KeyIndex {
            queries: Heads {
                data: &rows.queries,
                row_width: indexer.query.rows,
                layout: HeadLayout::packed(indexer.heads, indexer.width),
            },
            keys: Heads { data: &rows.keys, row_width: indexer.width, layout: HeadLayout::row(indexer.width) },
            rule: match &indexer.choice {
                IndexChoice::Keys { most, .. } => IndexRule::Keys { weights: &rows.weights, most: *most },
                IndexChoice::Blocks(sizes) => {
                    IndexRule::Blocks { size: sizes.size, most: sizes.most, local: sizes.local }
                }
            },
        });
        let (sinks, ends) = (self.vector(layer.sinks.as_ref()), self.ends());
        let positions = self.step.map_or(self.length, Step::longest);
        let biases = self.head_biases(layer, positions);
        let attention = Attention {
            queries: projected.view(0),
            keys: projected.view(1),
            values: projected.view(2),
            length: self.length,
            past: 0,
            foreign: layer.attends_to_encoder().then(|| self.memory.map_or(0, |(_, length)| length)),
            scale: layer.scale,
            cap: layer.cap,
            window: layer.window,
            ahead: layer.ahead,
            ends: &ends,
            chunk: layer.chunk,
            sinks: &sinks,
            bias: biases.as_score_bias(),
            index,
            further: layer.compressor().zip(projected.entries.as_ref()).map(|(layer, rows)| rows.further(layer)),
        };
        let mut heads = match self.step {
            None => match &layer.distances {
                None if layer.in_windows => self.attend_in_windows(block, &attention),
                None => self.attend(block, &attention),
                Some(distances) => {
                    self.attend_with_distances(layer, distances, &attention, |attention| self.attend(block, attention))
                }
            },
            Some(step) => {
                step.attend((layer.key_block, projected.own > 1), &attention, |attention| self.attend(block, attention))
            }
        };
        if let (Projections::Shared(shared), Some(rotary)) = (&layer.projections, layer.rotary) {
            heads = self.grouped_outputs(rotary, shared, heads);
        }
        if let Some(norm) = &layer.heads_norm {
            self.norm(norm, &mut heads, layer.output.columns);
        }
        let gates = match (&layer.gates, &own_gates) {
            (Some(HeadGates::WithQueries(layout)), _) => Some(Heads { layout: *layout, ..projected.view(0) }),
            (_, Some(data)) => {
                let row_width = layer.output.columns;
                Some(Heads { data, row_width, layout: HeadLayout::row(row_width) })
            }
            _ => None,
        };
        if let Some(gates) = gates {
            let function = layer.gates.as_ref().map_or(Gate::Sigmoid, HeadGates::function);
            self.ops.gate(function, &gates, &mut heads);
        }
        let projected = projected.buffers.into_iter().map(|buffer| buffer.data);
        projected.chain(own_gates).for_each(|buffer| self.buffers.give(buffer));
        ControlFlow::Continue(heads)
    }

    /// Where what each token sees ends, in models whose tokens of an image see all of it; empty where that is behind the token.
    pub(super) fn ends(&self) -> Vec<usize> {
        if self.images.is_empty() || !self.decoder.sees_images_whole() {
            return Vec::new();
        }
        let mut ends: Vec<usize> = (1..=self.length).collect();
        for ImageSpan { rows, .. } in self.images {
            ends[rows.clone()].fill(rows.end);
        }
        ends
    }

    /// Gates of a layer of their own for rows `x`, one for each component.
    fn gates_of_layer(&self, gates: &HeadGates, x: &[f32]) -> Option<Vec<f32>> {
        let HeadGates::Layer { layer, shared, .. } = gates else { return None };
        let rows = self.linear(layer, x);
        match shared {
            1 => Some(rows),
            shared => Some(rows.into_iter().flat_map(|gate| std::iter::repeat_n(gate, *shared)).collect()),
        }
    }

    /// What is added to scores in sequences of so many positions.
    pub(super) fn head_biases(&self, layer: &AttentionLayer, positions: usize) -> HeadBiases {
        match &layer.biases {
            None => HeadBiases::default(),
            Some(ScoreBiases::Slopes(slopes)) => HeadBiases::OfKeys(slopes.of(positions)),
            Some(ScoreBiases::Distances(distances)) => {
                let mut table = Vec::new();
                (0..distances.table.rows).for_each(|row| self.read_row(&distances.table, row, &mut table));
                HeadBiases::OfDistances(distances.of(&table, positions))
            }
        }
    }

    /// Attention of the patches of an image, each within its window.
    fn attend_in_windows(&self, block: usize, attention: &Attention<'_>) -> Vec<f32> {
        let grid = self.images.first().and_then(|image| image.grid);
        let order = self.blueprint().grids.as_ref().map(|layers| layers.order);
        let lengths = grid.zip(order).map_or_else(Vec::new, |(grid, order)| order.window_lengths(grid));
        let (mut heads, mut first) = (Vec::new(), 0);
        // Windows of one length are sequences of that length.
        for alike in lengths.chunk_by(|a, b| a == b) {
            let rows = first..first + alike.iter().sum::<usize>();
            let windows = Attention {
                queries: attention.queries.of_rows(rows.clone()),
                keys: attention.keys.of_rows(rows.clone()),
                values: attention.values.of_rows(rows.clone()),
                length: alike[0],
                ..attention.clone()
            };
            heads.extend(self.attend(block, &windows));
            first = rows.end;
        }
        heads
    }

    /// Fused attention, unless somebody wants its weights.
    fn attend(&self, block: usize, attention: &Attention<'_>) -> Vec<f32> {
        let quantizer = self.decoder.quantizers.attention(block).and_then(|all| all.probabilities.as_ref());
        let site = ActivationPoint::Probabilities(block);
        let tap = self.with.tap.filter(|tap| tap.wants(site));
        let is_plain = attention.index.is_none() && attention.further.is_none();
        if quantizer.is_none() && tap.is_none() && is_plain {
            let mut heads = Vec::new();
            self.ops.attend(attention, &mut heads);
            return heads;
        }
        let (isa, arithmetic) = (Isa::best(), self.ops.arithmetic());
        weighed::attend((isa, self.ops.precision()), attention, &|data: &mut [f32], columns| {
            let spans = Spans::Even(data.len() / columns.max(1));
            if let Some(tap) = tap {
                tap.see(site, Rows { data, columns, spans });
            }
            if let Some(quantizer) = quantizer {
                quantizer.apply(isa, arithmetic, data, columns);
            }
        })
    }

    /// Shows heads as separate rows, also those of fused projections.
    fn show_heads(&self, site: ActivationPoint<'_>, heads: &Heads<'_>) {
        if self.with.tap.is_some_and(|tap| tap.wants(site)) {
            let HeadLayout { width, count, .. } = heads.layout;
            self.show(site, &heads.gather(), width * count, self.spans());
        }
    }

    fn quantize_heads(&self, block: usize, projected: &mut Projected) {
        let Some(quantizers) = self.decoder.quantizers.attention(block) else { return };
        let all = [&quantizers.query, &quantizers.key, &quantizers.value];
        for (which, quantizer) in all.into_iter().take(projected.own).enumerate() {
            let Some(quantizer) = quantizer else { continue };
            let (buffer, layout) = projected.heads[which];
            let Buffer { data, width } = &mut projected.buffers[buffer];
            let how = (Isa::best(), self.ops.arithmetic());
            quantize_heads(quantizer, how, (data, *width), layout, self.spans());
        }
    }

    fn projected(&self, block: usize, layer: &AttentionLayer, x: &[f32]) -> Flow<Projected> {
        let spans = self.spans();
        let mut projected = match &layer.projections {
            Projections::Separate { layers, heads } => {
                let index = layer.indexer.iter().flat_map(IndexerLayer::layers);
                let entered: Vec<&Projection> = layers.iter().chain(layer.gate_layer()).chain(index).collect();
                self.enter(StopAt::AttentionInput, &entered, x, spans)?;
                let buffers = layers.iter().map(|layer| Buffer { data: self.linear(layer, x), width: layer.rows });
                Projected {
                    buffers: buffers.collect(),
                    heads: [(0, heads[0]), (1, heads[1]), (2, heads[2])],
                    own: 3,
                    index: layer.indexer.as_ref().map(|indexer| {
                        let rows = self.index_inputs(indexer, x);
                        self.index_rows(layer, indexer, x, rows)
                    }),
                    entries: None,
                }
            }
            Projections::Fused { layer: fused, heads, grouped } => {
                let entered: Vec<&Projection> = std::iter::once(fused).chain(layer.gate_layer()).collect();
                self.enter(StopAt::AttentionInput, &entered, x, spans)?;
                let data = self.linear(fused, x);
                let data = if *grouped { stacked(&data, fused.rows, heads) } else { data };
                let buffer = Buffer { data, width: fused.rows };
                Projected {
                    buffers: vec![buffer],
                    heads: heads.map(|heads| (0, heads)),
                    own: 3,
                    index: None,
                    entries: None,
                }
            }
            Projections::KeysAsValues { layers, heads } => {
                let entered: Vec<&Projection> = layers.iter().chain(layer.gate_layer()).collect();
                self.enter(StopAt::AttentionInput, &entered, x, spans)?;
                let [queries, keys] = &**layers;
                let mut buffers =
                    [queries, keys].map(|layer| Buffer { data: self.linear(layer, x), width: layer.rows }).to_vec();
                buffers.push(Buffer { data: self.buffers.copy(&buffers[1].data), width: keys.rows });
                Projected {
                    buffers,
                    heads: [(0, heads[0]), (1, heads[1]), (2, heads[2])],
                    own: 3,
                    index: None,
                    entries: None,
                }
            }
            Projections::Queries { layer: queries, heads, unread } => {
                let entered: Vec<&Projection> =
                    std::iter::once(queries).chain(unread).chain(layer.gate_layer()).collect();
                self.enter(StopAt::AttentionInput, &entered, x, spans)?;
                for layer in unread {
                    self.show_input(layer, x, spans);
                }
                let data = self.linear(queries, x);
                let shared = self.shared_keys(data.len() / queries.rows.max(1), heads);
                let buffers = vec![Buffer { data, width: queries.rows }, shared];
                Projected {
                    buffers,
                    heads: [(0, heads[0]), (1, heads[1]), (1, heads[2])],
                    own: 1,
                    index: None,
                    entries: None,
                }
            }
            Projections::OfEncoder { layers, heads } => self.of_encoder(layers, heads, x)?,
            Projections::Latent(latent) => return self.latent(layer, latent, x),
            Projections::Shared(shared) => return self.shared_projections(block, (layer, shared), x),
        };
        if let Some(clip) = layer.clip {
            let values = projected.buffers.iter_mut().flat_map(|buffer| &mut buffer.data);
            values.for_each(|value| *value = value.clamp(-clip, clip));
        }
        if let Some(norm) = layer.value_norm.as_ref().filter(|_| projected.own == 3) {
            let (buffer, layout) = projected.heads[2];
            let Buffer { data, width } = &mut projected.buffers[buffer];
            self.normalise_heads(norm, data, *width, layout);
        }
        for (which, scale) in [(1, layer.key_scale), (2, layer.value_scale)] {
            if scale != 1.0 && projected.own == 3 {
                self.scale_heads(which, scale, &mut projected);
            }
        }
        let is_after = |norms: &&HeadNorms| {
            matches!(norms.rule, QueryKeyNorm::PerHeadAfterRotary | QueryKeyNorm::PlainAfterRotary)
        };
        self.norm_heads(layer.head_norms.as_ref().filter(|norms| !is_after(norms)), &mut projected);
        self.turn_heads(layer, &mut projected);
        self.norm_heads(layer.head_norms.as_ref().filter(is_after), &mut projected);
        self.grow_queries(layer, &mut projected);
        ControlFlow::Continue(projected)
    }

    /// Queries of rows `x`, keys and values of what an encoder gives.
    fn of_encoder(&self, layers: &[Projection; 3], heads: &[HeadLayout; 3], x: &[f32]) -> Flow<Projected> {
        let [queries, keys, values] = layers;
        let (memory, length) = self.memory.unwrap_or_default();
        let spans = Spans::Even(length.max(1));
        // Where the run ends before all of them, all that they read is known.
        let of_memory = self.enter(StopAt::AttentionInput, &[keys, values], memory, spans);
        self.enter(StopAt::AttentionInput, &[queries], x, self.spans())?;
        of_memory?;
        let of = |layer: &Projection| Buffer { data: self.linear_of(layer, memory, spans), width: layer.rows };
        let queries = Buffer { data: self.linear(queries, x), width: queries.rows };
        let buffers = vec![queries, of(keys), of(values)];
        ControlFlow::Continue(Projected {
            buffers,
            heads: [(0, heads[0]), (1, heads[1]), (2, heads[2])],
            own: 3,
            index: None,
            entries: None,
        })
    }

    /// Hands keys and values that the block makes on to others that attend to them.
    fn share_keys(&self, projected: &Projected) {
        let Some(shared) = self.shared_keys.filter(|_| projected.own == 3) else { return };
        let (keys, values) = (projected.view(1), projected.view(2));
        let width = |heads: &Heads<'_>| (heads.layout.count * heads.layout.width).max(1);
        let (key_rows, value_rows) = (keys.gather(), values.gather());
        let both = key_rows.chunks_exact(width(&keys)).zip(value_rows.chunks_exact(width(&values)));
        let rows = both.flat_map(|(key, value)| key.iter().chain(value)).copied().collect();
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// The keys and values of another block for `count` rows. A mixer that runs alone has none.
    fn shared_keys(&self, count: usize, [_, keys, values]: &[HeadLayout; 3]) -> Buffer {
        let width = keys.count * keys.width + values.count * values.width;
        let shared = self.shared_keys.map(|rows| rows.lock().unwrap_or_else(PoisonError::into_inner).clone());
        Buffer { data: shared.unwrap_or_else(|| vec![0.0; count * width]), width }
    }

    fn norm_heads(&self, norms: Option<&HeadNorms>, projected: &mut Projected) {
        let Some(norms) = norms else { return };
        for (which, norm) in [(0, Some(&norms.query)), (1, norms.key.as_ref())] {
            let Some(norm) = norm else { continue };
            let (buffer, layout) = projected.heads[which];
            let layout = match norms.rule {
                QueryKeyNorm::AllHeads => HeadLayout { width: layout.width * layout.count, count: 1, ..layout },
                QueryKeyNorm::PerHead | QueryKeyNorm::PerHeadAfterRotary | QueryKeyNorm::PlainAfterRotary => layout,
            };
            let step = HeadLayout { step: layout.step.max(layout.width), ..layout };
            let Buffer { data, width } = &mut projected.buffers[buffer];
            self.normalise_heads(norm, data, *width, step);
        }
    }

    fn scale_heads(&self, which: usize, scale: f32, projected: &mut Projected) {
        let (precision, (buffer, layout)) = (self.ops.precision(), projected.heads[which]);
        let Buffer { data, width } = &mut projected.buffers[buffer];
        for row in data.chunks_exact_mut(*width) {
            layout.of(row).flatten().for_each(|value| *value = precision.round(*value * scale));
        }
    }

    /// Multiplies queries by the factor of their position.
    fn grow_queries(&self, layer: &AttentionLayer, projected: &mut Projected) {
        let Some(growth) = layer.growth else { return };
        let (precision, (buffer, layout)) = (self.ops.precision(), projected.heads[0]);
        let Buffer { data, width } = &mut projected.buffers[buffer];
        let length = self.length;
        let positions: Box<dyn Iterator<Item = usize>> = match self.step {
            Some(step) => Box::new(step.positions()),
            None => Box::new((0..length).cycle()),
        };
        for (row, position) in data.chunks_exact_mut(*width).zip(positions) {
            let factor = precision.round(growth.at(position));
            layout.of(row).flatten().for_each(|value| *value = precision.round(*value * factor));
        }
    }

    fn turn_heads(&self, layer: &AttentionLayer, projected: &mut Projected) {
        let Some((rotary, pairing)) = layer.rotary else { return };
        for which in 0..projected.own.min(2) {
            let (buffer, layout) = projected.heads[which];
            let Buffer { data, width } = &mut projected.buffers[buffer];
            self.ops.rotate(&self.angles[rotary], pairing, data, *width, layout);
        }
    }

    fn latent(&self, layer: &AttentionLayer, latent: &LatentProjections, x: &[f32]) -> Flow<Projected> {
        let sizes = &latent.sizes;
        let (nope, rope, wide) = (sizes.nope_dim, sizes.rope_dim, sizes.value_dim);
        let width = nope + rope;
        let spans = self.spans();
        let index = layer.indexer.iter().flat_map(IndexerLayer::beside_latents);
        let entered: Vec<&Projection> =
            [latent.query.first(), &latent.down].into_iter().chain(index).chain(layer.gate_layer()).collect();
        self.enter(StopAt::AttentionInput, &entered, x, spans)?;
        let (queries, down) = (self.linear(latent.query.first(), x), self.linear(&latent.down, x));
        let index = layer.indexer.as_ref().map(|indexer| self.index_inputs(indexer, x));
        let (mut queries, index) = self.latent_queries(layer, &latent.query, queries, index)?;
        let (mut compressed, mut turning) = split(&down, sizes.key_value_rank, rope);
        self.norm(&latent.norm, &mut compressed, sizes.key_value_rank);
        self.scale(latent.factors[0], &mut queries);
        self.scale(latent.factors[1], &mut compressed);
        self.enter(StopAt::KeyValueLatent, &[&latent.up], &compressed, spans)?;
        let up = self.linear(&latent.up, &compressed);
        let all = HeadLayout::packed(latent.heads, width);
        if let Some((rotary, pairing)) = layer.rotary {
            let angles = &self.angles[rotary];
            self.ops.rotate(angles, pairing, &mut queries, all.count * width, all.part(nope, rope));
            self.ops.rotate(angles, pairing, &mut turning, rope, HeadLayout::row(rope));
        }
        let keys = join_keys(&up, &turning, latent.heads, (nope, wide, rope));
        let values = HeadLayout::packed(latent.heads, nope + wide).part(nope, wide);
        let buffers =
            [(queries, latent.heads * width), (keys, latent.heads * width), (up, latent.heads * (nope + wide))];
        let buffers = buffers.map(|(data, width)| Buffer { data, width }).into();
        let mut projected =
            Projected { buffers, heads: [(0, all), (1, all), (2, values)], own: 3, index, entries: None };
        self.grow_queries(layer, &mut projected);
        ControlFlow::Continue(projected)
    }

    /// Queries, keys that are values, and entries.
    fn shared_projections(
        &self,
        block: usize,
        (layer, shared): (&AttentionLayer, &SharedProjections),
        x: &[f32],
    ) -> Flow<Projected> {
        let [down, up] = &shared.query;
        self.enter(StopAt::AttentionInput, &shared.first(), x, self.spans())?;
        let [mut latents, mut keys] = [down, &shared.key].map(|layer| self.linear(layer, x));
        self.norm(&shared.latent_norm, &mut latents, down.rows);
        let chooses = layer.compressor().and_then(|compressor| compressor.index.as_ref());
        let entered: Vec<&Projection> = std::iter::once(up).chain(chooses.map(|index| &index.query)).collect();
        self.enter(StopAt::QueryLatent, &entered, &latents, self.spans())?;
        let entries = layer.compressor().map(|compressor| self.entry_rows(block, (layer, compressor), (x, &latents)));
        let mut queries = self.linear(up, &latents);
        let (heads, key) = (HeadLayout::packed(shared.heads, shared.width), HeadLayout::row(shared.width));
        self.normalise_heads(&shared.query_norm, &mut queries, up.rows, heads);
        self.norm(&shared.key_norm, &mut keys, shared.width);
        if let Some((rotary, pairing)) = layer.rotary {
            let turning = |heads: HeadLayout| heads.part(shared.width - shared.turning, shared.turning);
            self.ops.rotate(&self.angles[rotary], pairing, &mut queries, up.rows, turning(heads));
            self.ops.rotate(&self.angles[rotary], pairing, &mut keys, shared.width, turning(key));
        }
        self.buffers.give(latents);
        let buffers = [(queries, up.rows), (keys, shared.width)].map(|(data, width)| Buffer { data, width });
        ControlFlow::Continue(Projected {
            buffers: buffers.into(),
            heads: [(0, heads), (1, key), (1, key)],
            own: 3,
            index: None,
            entries,
        })
    }

    /// Queries, from what the first of their layers gave, and `index` with what the indexer makes of their latent.
    fn latent_queries(
        &self,
        layer: &AttentionLayer,
        query: &QueryLatent,
        mut first: Vec<f32>,
        index: Option<IndexRows>,
    ) -> Flow<(Vec<f32>, Option<IndexRows>)> {
        let QueryLatent::Latent(down, norm, up) = query else { return ControlFlow::Continue((first, None)) };
        self.norm(norm, &mut first, down.rows);
        let entered: Vec<&Projection> =
            std::iter::once(up).chain(layer.indexer.iter().map(|indexer| &indexer.query)).collect();
        self.enter(StopAt::QueryLatent, &entered, &first, self.spans())?;
        let both = layer.indexer.as_ref().zip(index);
        let index = both.map(|(indexer, index)| self.index_rows(layer, indexer, &first, index));
        ControlFlow::Continue((self.linear(up, &first), index))
    }

    /// What an indexer makes of normed rows `x` alone.
    fn index_inputs(&self, indexer: &IndexerLayer, x: &[f32]) -> IndexRows {
        let mut keys = self.linear(&indexer.key, x);
        self.norm(&indexer.norm, &mut keys, indexer.width);
        let weights = match &indexer.choice {
            IndexChoice::Keys { weights, .. } => self.linear(weights, x),
            IndexChoice::Blocks(_) => Vec::new(),
        };
        IndexRows { queries: Vec::new(), keys, weights }
    }

    /// The same with queries from their latents, or from the same rows, and turned.
    fn index_rows(
        &self,
        layer: &AttentionLayer,
        indexer: &IndexerLayer,
        latents: &[f32],
        index: IndexRows,
    ) -> IndexRows {
        let IndexRows { mut keys, weights, .. } = index;
        let mut queries = self.linear(&indexer.query, latents);
        if let Some(norm) = &indexer.query_norm {
            let heads = HeadLayout::packed(indexer.heads, indexer.width);
            self.normalise_heads(norm, &mut queries, indexer.query.rows, heads);
        }
        let turning = |count| HeadLayout::packed(count, indexer.width).part(0, indexer.turning);
        if let Some((rotary, _)) = layer.rotary {
            let angles = &self.angles[rotary];
            self.ops.rotate(angles, indexer.pairing, &mut queries, indexer.query.rows, turning(indexer.heads));
            self.ops.rotate(angles, indexer.pairing, &mut keys, indexer.width, turning(1));
        }
        IndexRows { queries, keys, weights }
    }

    fn normalise_heads(&self, norm: &NormLayer, data: &mut [f32], width: usize, layout: HeadLayout) {
        self.ops.normalise(&self.norm_weights(norm), data, width, layout);
    }
}

/// Rows with the queries of a key head, the key and the value, head after head, as rows with all queries, then keys, then values.
fn stacked(rows: &[f32], width: usize, [queries, keys, _]: &[HeadLayout; 3]) -> Vec<f32> {
    let (shared, head) = (queries.count / keys.count, queries.width);
    let part = |row: &'_ [f32], range: std::ops::Range<usize>| -> Vec<f32> {
        let groups = row.chunks_exact((shared + 2) * head);
        groups.flat_map(|group| &group[range.start * head..range.end * head]).copied().collect()
    };
    let ranges = [0..shared, shared..shared + 1, shared + 1..shared + 2];
    rows.chunks_exact(width).flat_map(|row| ranges.clone().map(|range| part(row, range)).concat()).collect()
}

/// Rows of `left + right` elements, cut in two.
fn split(rows: &[f32], left: usize, right: usize) -> (Vec<f32>, Vec<f32>) {
    let rows = || rows.chunks_exact(left + right);
    (rows().flat_map(|row| &row[..left]).copied().collect(), rows().flat_map(|row| &row[left..]).copied().collect())
}

/// Keys of all heads: each head's part without positions, then the part with positions that all share.
fn join_keys(up: &[f32], turning: &[f32], heads: usize, (nope, wide, rope): (usize, usize, usize)) -> Vec<f32> {
    let rows = up.chunks_exact(heads * (nope + wide)).zip(turning.chunks_exact(rope));
    let keys = rows.flat_map(|(row, turning)| {
        row.chunks_exact(nope + wide).flat_map(move |head| head[..nope].iter().chain(turning))
    });
    keys.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_groups_are_stacked() {
        let layout = |start, count| HeadLayout { start, step: 1, width: 1, count };
        // Two key heads with two queries each: `q q k v` twice.
        let rows: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let stacked = stacked(&rows, 8, &[layout(0, 4), layout(4, 2), layout(6, 2)]);
        assert_eq!(stacked[..8], [0.0, 1.0, 4.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
        assert_eq!(stacked[8..], [8.0, 9.0, 12.0, 13.0, 10.0, 14.0, 11.0, 15.0]);
    }
}
