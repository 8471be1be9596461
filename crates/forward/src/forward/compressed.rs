//! Entries compressed from tokens, which attention reads beside the keys of tokens: how they are made as tokens come, and which of them a
//! token attends to.

use super::blueprint::{AttentionLayer, CompressorLayer, EntryLayers, SharedProjections};
use super::heads::{HeadLayout, Heads};
use super::ops::{EntryChoice, FurtherKeys};
use super::recurrent_state::RecurrentState;
use super::rope::Angles;
use super::run::Run;
use super::tensors::Projection;
use kvant_model::family::Pairing;

/// The entries of all sequences, and what chooses among them.
pub(super) struct EntryRows {
    /// For each sequence its entries, one after the other, with their keys for the choice.
    entries: Vec<Vec<f32>>,
    /// Heads of queries that choose, side by side, a row per token; none where tokens attend to all entries.
    queries: Vec<f32>,
    /// A weight for each of these heads, likewise.
    weights: Vec<f32>,
}

impl EntryRows {
    /// As attention takes them.
    pub(super) fn further<'e>(&'e self, layer: &CompressorLayer) -> FurtherKeys<'e> {
        FurtherKeys {
            entries: &self.entries,
            row_width: layer.entry(),
            rate: layer.rate,
            choice: layer.index.as_ref().map(|index| EntryChoice {
                queries: Heads {
                    data: &self.queries,
                    row_width: index.query.rows,
                    layout: HeadLayout::packed(index.heads, index.entries.width),
                },
                weights: &self.weights,
                start: layer.entries.width,
                most: index.most,
            }),
        }
    }
}

impl Run<'_, '_> {
    /// The entries that rows `x` of a block complete, behind those of earlier tokens. `latents` are those of queries.
    pub(super) fn entry_rows(
        &self,
        block: usize,
        (layer, compressor): (&AttentionLayer, &CompressorLayer),
        (x, latents): (&[f32], &[f32]),
    ) -> EntryRows {
        let rows = self.compressor_rows(compressor, x);
        let mut entries = Vec::new();
        self.with_states(block, x.len() / compressor.entries.value.columns.max(1), |lengths, states| {
            let mut start = 0;
            for (length, state) in lengths.iter().zip(states) {
                let end = start + length * compressor.row();
                state.tail.extend_from_slice(&rows[start..end]);
                self.compress(layer, compressor, state);
                entries.push(state.memory.clone());
                start = end;
            }
            Vec::new()
        });
        let (mut queries, mut weights) = (Vec::new(), Vec::new());
        if let Some(index) = &compressor.index {
            queries = self.linear(&index.query, latents);
            weights = self.linear(&index.weights, x);
            if let Some((rotary, pairing)) = layer.rotary {
                let heads = HeadLayout::packed(index.heads, index.entries.width);
                let turning = turning_part(heads, self.angles[rotary].dim);
                self.ops.rotate(&self.angles[rotary], pairing, &mut queries, index.query.rows, turning);
            }
        }
        EntryRows { entries, queries, weights }
    }

    /// Values and scores of all kinds of entries, side by side, a row per token.
    fn compressor_rows(&self, compressor: &CompressorLayer, x: &[f32]) -> Vec<f32> {
        let kinds = std::iter::once(&compressor.entries).chain(compressor.index.iter().map(|index| &index.entries));
        let layers: Vec<&Projection> = kinds.flat_map(|kind| [&kind.value, &kind.gate]).collect();
        let width = compressor.row();
        let mut all = vec![0.0; x.len() / compressor.entries.value.columns.max(1) * width];
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

    /// Makes entries of the windows that `tail` completes, and leaves in it what later windows need.
    fn compress(&self, layer: &AttentionLayer, compressor: &CompressorLayer, state: &mut RecurrentState) {
        let CompressorLayer { rate, overlaps, .. } = *compressor;
        let (row, entry) = (compressor.row(), compressor.entry());
        let known = state.memory.len() / entry.max(1);
        let window = rate * row;
        // The window before is still needed where windows overlap.
        let mut before = if overlaps && known > 0 { window } else { 0 };
        let mut made = 0;
        while state.tail.len() >= before + window {
            let (earlier, rest) = state.tail.split_at(before);
            let tokens = Window { earlier, own: &rest[..window], row, overlaps };
            state.memory.extend(self.entry(compressor, tokens));
            let consumed = if overlaps { before } else { window };
            state.tail.drain(..consumed);
            before = if overlaps { window } else { 0 };
            made += 1;
        }
        if made > 0 {
            self.finish_entries(layer, compressor, (known, &mut state.memory[known * entry..]));
        }
    }

    /// The entry of a window, its key for the choice behind it, before norms.
    fn entry(&self, compressor: &CompressorLayer, window: Window<'_>) -> Vec<f32> {
        let mut out = self.weighed_values(&compressor.entries, window, 0);
        if let Some(index) = &compressor.index {
            out.extend(self.weighed_values(&index.entries, window, 2 * compressor.entries.value.rows));
        }
        out
    }

    /// The values of a window, weighed channel by channel. Those of a token begin at `start` of its row, and its scores stand behind them.
    fn weighed_values(&self, layers: &EntryLayers, window: Window<'_>, start: usize) -> Vec<f32> {
        let (precision, bias) = (self.ops.precision(), self.vector(Some(&layers.bias)));
        let (rows, width) = (layers.value.rows, layers.width);
        let mut slots = Vec::new();
        let channel = |channel: usize| {
            slots.clear();
            let mut add = |tokens: &[f32], channel: usize| {
                for (place, token) in tokens.chunks_exact(window.row).enumerate() {
                    let score = precision.round(token[start + rows + channel] + bias[place * rows + channel]);
                    slots.push((token[start + channel], score));
                }
            };
            match window.overlaps {
                true => {
                    add(window.earlier, channel);
                    add(window.own, width + channel);
                }
                false => add(window.own, channel),
            }
            let largest = slots.iter().map(|(_, score)| *score).fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f32> = slots.iter().map(|(_, score)| (score - largest).exp()).collect();
            let sum: f32 = powers.iter().sum();
            let weighed = slots.iter().zip(&powers);
            weighed.map(|((value, _), power)| precision.round(value * precision.round(power / sum))).sum::<f32>()
        };
        (0..width).map(channel).map(|value| precision.round(value)).collect()
    }

    /// Normalises new entries, of which the first is number `first` of its sequence, and turns them by the positions of their windows.
    fn finish_entries(
        &self,
        layer: &AttentionLayer,
        compressor: &CompressorLayer,
        (first, entries): (usize, &mut [f32]),
    ) {
        let width = compressor.entry();
        let angles = layer.rotary.map(|(rotary, pairing)| {
            let (rule, count) = (&self.blueprint().rotaries[rotary], entries.len() / width.max(1));
            let mut angles = rule.no_angles();
            for position in (first..first + count).map(|entry| entry * compressor.rate) {
                rule.extend(&mut angles, position..position + 1, position + 1);
            }
            (angles, pairing)
        });
        let own = (&compressor.entries, 0);
        let index = compressor.index.as_ref().map(|index| (&index.entries, compressor.entries.width));
        for (layers, start) in std::iter::once(own).chain(index) {
            let place = HeadLayout { start, ..HeadLayout::row(layers.width) };
            self.ops.normalise(&self.norm_weights(&layers.norm), entries, width, place);
            if let Some((angles, pairing)) = &angles {
                self.ops.rotate(angles, *pairing, entries, width, turning_part(place, angles.dim));
            }
        }
    }

    /// What the block's last layer reads: the heads' outputs, turned back, through a layer for each group of them.
    pub(super) fn grouped_outputs(
        &self,
        (rotary, pairing): (usize, Pairing),
        shared: &SharedProjections,
        mut heads: Vec<f32>,
    ) -> Vec<f32> {
        let width = shared.heads * shared.width;
        let angles = &self.angles[rotary];
        let back = Angles { sin: angles.sin.iter().map(|sin| -sin).collect(), ..angles.clone() };
        let place = turning_part(HeadLayout::packed(shared.heads, shared.width), shared.turning);
        self.ops.rotate(&back, pairing, &mut heads, width, place);
        self.grouped_linear(&shared.output, shared.groups, &heads)
    }

    /// Block-diagonal layers: of as many parts of a row as there are groups, each passes equally many rows of the weight.
    fn grouped_linear(&self, layer: &Projection, groups: usize, x: &[f32]) -> Vec<f32> {
        let (rows, columns) = (layer.rows / groups.max(1), layer.columns);
        let parts = |group: usize| -> Vec<f32> {
            let layout = HeadLayout { start: group * columns, ..HeadLayout::row(columns) };
            Heads { data: x, row_width: groups * columns, layout }.gather()
        };
        let outputs: Vec<Vec<f32>> = (0..groups)
            .map(|group| self.part_of_linear(layer, &parts(group), group * rows..(group + 1) * rows))
            .collect();
        let tokens = x.len() / (groups * columns).max(1);
        let mut out = vec![0.0; tokens * layer.rows];
        for (token, row) in out.chunks_exact_mut(layer.rows).enumerate() {
            for (part, output) in row.chunks_exact_mut(rows).zip(&outputs) {
                part.copy_from_slice(&output[token * rows..(token + 1) * rows]);
            }
        }
        out
    }
}

/// The tokens that an entry is made of: those of the window before, where windows overlap and there is one, and those of its own.
#[derive(Clone, Copy)]
struct Window<'w> {
    earlier: &'w [f32],
    own: &'w [f32],
    /// Elements of a token.
    row: usize,
    overlaps: bool,
}

/// The last `turning` components of heads.
fn turning_part(heads: HeadLayout, turning: usize) -> HeadLayout {
    heads.part(heads.width - turning.min(heads.width), turning.min(heads.width))
}
