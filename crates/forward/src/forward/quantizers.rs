//! Fake quantization of activations during a pass, as the deployed model computes it: which quantizer stands where.

use super::blueprint::{Block, Blueprint, ReadoutLayers};
use super::error::ForwardError;
use super::heads::{HeadLayout, Heads};
use super::spans::Spans;
use super::tensors::Projection;
use kvant_formats::import::{Import, StoredActivation};
use kvant_numeric::ComputeDType;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::counts::number;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};

/// Elements that one thread quantizes at a time where rows do not depend on each other.
const STRIP: usize = 64 << 10;

/// The places where activations are quantized, of layers and of blocks, in the order of summaries.
const KINDS: [&str; 6] = ["inputs", "outputs", "queries", "keys", "values", "attention probabilities"];

/// The quantizers of a model's activations.
#[derive(Clone, Debug, Default)]
pub struct Quantizers {
    layers: HashMap<String, LayerQuantizers>,
    blocks: HashMap<usize, AttentionQuantizers>,
}

/// The quantizers of a linear layer.
#[derive(Clone, Debug, Default)]
pub struct LayerQuantizers {
    /// The quantizer of its input.
    pub input: Option<ActivationQuantizer>,
    /// The quantizer of its output. For layers that compute keys and values, that of the KV cache before the rotary embedding.
    pub output: Option<ActivationQuantizer>,
}

/// The quantizers of a block's attention.
#[derive(Clone, Debug, Default)]
pub struct AttentionQuantizers {
    /// Of queries as they meet the keys.
    pub query: Option<ActivationQuantizer>,
    /// The quantizer of cached keys, after the rotary embedding.
    pub key: Option<ActivationQuantizer>,
    /// Of values as they are cached.
    pub value: Option<ActivationQuantizer>,
    /// Of the weights of attention.
    pub probabilities: Option<ActivationQuantizer>,
}

impl Quantizers {
    /// The quantizers of a checkpoint.
    ///
    /// # Errors
    ///
    /// Schemes that activations cannot be quantized with, parameters that do not fit them.
    pub fn of(import: &Import<'_>, blueprint: &Blueprint) -> Result<Quantizers, ForwardError> {
        let mut quantizers = Quantizers::of_layers(import, layers_of(blueprint))?;
        for (block, layer) in blueprint.blocks.iter().enumerate() {
            let Some(stored) = import.attention(block) else { continue };
            let Some(attention) = layer.mixer.attention() else { continue };
            let [queries, keys, values] = attention.head_widths();
            let of = |what: &str, stored: &Option<StoredActivation>, features: usize| {
                quantizer(&format!("block {block}"), what, stored.as_ref(), features)
            };
            let attention = AttentionQuantizers {
                query: of("query", &stored.query, queries)?,
                key: of("key", &stored.key, keys)?,
                value: of("value", &stored.value, values)?,
                probabilities: of("probabilities", &stored.probabilities, 0)?,
            };
            quantizers.blocks.insert(block, attention);
        }
        Ok(quantizers)
    }

    /// Those of some layers.
    ///
    /// # Errors
    ///
    /// As [`Quantizers::of`].
    pub fn of_layers<'p>(
        import: &Import<'_>,
        layers: impl IntoIterator<Item = &'p Projection>,
    ) -> Result<Quantizers, ForwardError> {
        Quantizers::of_modules(import, layers, "")
    }

    /// Those of the layers of a tower, whose names stand behind `prefix` in the checkpoint.
    pub(super) fn of_tower(
        import: &Import<'_>,
        blueprint: &Blueprint,
        prefix: &str,
    ) -> Result<Quantizers, ForwardError> {
        Quantizers::of_modules(import, layers_of(blueprint), prefix)
    }

    fn of_modules<'p>(
        import: &Import<'_>,
        layers: impl IntoIterator<Item = &'p Projection>,
        prefix: &str,
    ) -> Result<Quantizers, ForwardError> {
        let mut quantizers = Quantizers::default();
        for layer in layers {
            let module = format!("{prefix}{}", layer.module);
            let Some(stored) = import.activations(&module) else { continue };
            let input = quantizer(&module, "input", stored.input.as_ref(), layer.columns)?;
            let output = quantizer(&module, "output", stored.output.as_ref(), layer.rows)?;
            quantizers.layers.insert(layer.module.clone(), LayerQuantizers { input, output });
        }
        Ok(quantizers)
    }

    /// Adds those of other layers.
    pub(super) fn extend(&mut self, others: Quantizers) {
        self.layers.extend(others.layers);
    }

    /// The quantizers of the layer of this name.
    pub fn layer(&self, module: &str) -> Option<&LayerQuantizers> {
        self.layers.get(module)
    }

    /// The quantizers of a block's attention.
    pub fn attention(&self, block: usize) -> Option<&AttentionQuantizers> {
        self.blocks.get(&block)
    }

    /// The quantized activations, a line for each kind of point and scheme: `inputs of 28 layers: int8:tensor!static`.
    pub fn summary(&self) -> Vec<String> {
        let mut counts: BTreeMap<(usize, String), usize> = BTreeMap::new();
        let mut count = |kind: usize, quantizer: &Option<ActivationQuantizer>| {
            if let Some(quantizer) = quantizer {
                *counts.entry((kind, quantizer.scheme().to_string())).or_default() += 1;
            }
        };
        for layer in self.layers.values() {
            count(0, &layer.input);
            count(1, &layer.output);
        }
        for block in self.blocks.values() {
            count(2, &block.query);
            count(3, &block.key);
            count(4, &block.value);
            count(5, &block.probabilities);
        }
        let line = |((kind, scheme), count): ((usize, String), usize)| {
            let place = if kind < 2 { "layer" } else { "block" };
            format!("{} of {}: {scheme}", KINDS[kind], number(count, place))
        };
        counts.into_iter().map(line).collect()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.blocks.is_empty()
    }
}

/// All linear layers of a model.
fn layers_of(blueprint: &Blueprint) -> Vec<&Projection> {
    let inner = blueprint.blocks.iter().flat_map(Block::layers);
    let readouts = blueprint.encoder.iter().flat_map(|encoder| &encoder.readouts).flat_map(ReadoutLayers::layers);
    let outer = blueprint.project_in.iter().chain(&blueprint.project_out).chain([&blueprint.head]).chain(readouts);
    inner.chain(outer).collect()
}

/// The quantizer of a place that has `features` elements a row.
fn quantizer(
    place: &str,
    what: &str,
    stored: Option<&StoredActivation>,
    features: usize,
) -> Result<Option<ActivationQuantizer>, ForwardError> {
    let Some(StoredActivation { scheme, parameters }) = stored else { return Ok(None) };
    let wrong = |cause| ForwardError::Activation { place: format!("{place}: {what}"), cause };
    let quantizer = ActivationQuantizer::new(*scheme, parameters.clone()).map_err(wrong)?;
    match quantizer.parameters().scales.len() {
        0 | 1 => Ok(Some(quantizer)),
        found if found == features => Ok(Some(quantizer)),
        found => Err(ForwardError::Shape {
            tensor: format!("{place}: scales of the {what}"),
            found: vec![found],
            expected: format!("{features} features"),
        }),
    }
}

/// Quantizes rows in place; per-tensor parameters are found per sequence.
pub(super) fn quantize(
    quantizer: &ActivationQuantizer,
    isa: Isa,
    arithmetic: ComputeDType,
    data: &mut [f32],
    columns: usize,
    spans: Spans<'_>,
) {
    let columns = columns.max(1);
    if quantizer.is_row_wise() {
        let strip = (STRIP / columns).max(1) * columns;
        return data.par_chunks_mut(strip).for_each(|rows| quantizer.apply(isa, arithmetic, rows, columns));
    }
    let mut sequences = Vec::new();
    let mut rest = &mut *data;
    for rows in spans.of(rest.len() / columns) {
        let (first, others) = rest.split_at_mut(rows * columns);
        sequences.push(first);
        rest = others;
    }
    sequences.into_par_iter().for_each(|rows| quantizer.apply(isa, arithmetic, rows, columns));
}

/// Puts what [`Heads::gather`] gave back in its place.
pub(super) fn scatter(gathered: &[f32], layout: HeadLayout, data: &mut [f32], row_width: usize) {
    let HeadLayout { width, count, .. } = layout;
    let rows = data.chunks_exact_mut(row_width).zip(gathered.chunks_exact((width * count).max(1)));
    for (row, gathered) in rows {
        layout.of(row).zip(gathered.chunks_exact(width)).for_each(|(head, values)| head.copy_from_slice(values));
    }
}

/// Quantizes heads in place, each row's side by side.
pub(super) fn quantize_heads(
    quantizer: &ActivationQuantizer,
    (isa, arithmetic): (Isa, ComputeDType),
    (data, row_width): (&mut [f32], usize),
    layout: HeadLayout,
    spans: Spans<'_>,
) {
    let mut gathered = Heads { data, row_width, layout }.gather();
    quantize(quantizer, isa, arithmetic, &mut gathered, layout.width * layout.count, spans);
    scatter(&gathered, layout, data, row_width);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_heads_are_scattered_back() {
        let layout = HeadLayout { start: 1, step: 4, width: 2, count: 2 };
        let data: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let heads = Heads { data: &data, row_width: 10, layout };
        let gathered = heads.gather();
        assert_eq!(gathered, [1.0, 2.0, 5.0, 6.0, 11.0, 12.0, 15.0, 16.0]);
        let mut changed = data.clone();
        scatter(&gathered.iter().map(|x| -x).collect::<Vec<_>>(), layout, &mut changed, 10);
        let negated: Vec<usize> = (0..20).filter(|i| changed[*i] != data[*i]).collect();
        assert_eq!(negated, [1, 2, 5, 6, 11, 12, 15, 16]);
    }
}
