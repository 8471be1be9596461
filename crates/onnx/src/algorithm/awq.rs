//! AWQ: the inputs of products are scaled so that rounding the weights changes the outputs least.
//!
//! For each tensor that products with constants read, powers of its channels' mean magnitudes are tried as scales; the loss of one
//! is that of all outputs on the calibration data, `tr((W - W') H (W - W')^T)` with `W' = Q(W s) / s` as the recipe rounds it and
//! `H` the sum of the products of the inputs. The candidates are those of the other flow, [`kvant_quant::transform::Awq`].
//! Source: Lin et al., AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration, arXiv 2306.00978.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, ModelProto, Spill};
use kvant_quant::hessian::Hessian;
use kvant_quant::transform::{Awq, ChannelStatistic};

use super::data::Data;
use super::error::AlgorithmError;
use super::input_scaling::{Readers, ScaledInput, apply, readers, sorted};
use super::layer::Grid;
use super::option::{AlgorithmOption, COUNT, count, option};
use crate::calibration::{Watch, watch};
use crate::data::Array;
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::quantization::{WeightMethod, weight_parameters};
use crate::recipe::{Layout, Recipe};
use crate::shape::Types;
use crate::solution::values;
use crate::writing::{BlockMap, Blocks, block_parameters};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwqSettings {
    /// Exponents that are tried.
    pub ratios: u32,
}

impl AwqSettings {
    /// Twenty exponents.
    pub const USUAL: Self = Self { ratios: 20 };

    /// Scales the inputs of all products with constants whose loss that lowers.
    pub(super) fn run(
        &self,
        model: &mut ModelProto,
        recipe: &Recipe,
        types: &Types,
        data: &mut Data<'_>,
        spill: Option<&Spill>,
    ) -> Result<Vec<ScaledInput>, QuantizeError> {
        let readers = readers(&model.graph, types);
        // What is observed must not depend on how many Hessians there is memory for.
        let (float, mut done) = (model.clone(), Vec::new());
        for batch in batches(&readers, data.runtime.budget) {
            let seen = Seen::observed(&float, batch, data)?;
            for readers in batch {
                data.go_on()?;
                let Some((statistic, hessian)) = seen.0.get(&readers.tensor).filter(|(s, _)| s.tokens() > 0) else {
                    continue;
                };
                let weights = rows(&model.graph, readers)?;
                let rounding = RowRounding::of(recipe, readers.channels);
                if let Some(scales) = self.best(readers, &weights, statistic, hessian, rounding)? {
                    done.push(apply(model, readers, &scales, spill)?);
                }
            }
        }
        sorted(model)?;
        Ok(done)
    }

    /// The scales with the least loss; `None` where those are ones.
    fn best(
        &self,
        readers: &Readers,
        weights: &[Vec<f32>],
        statistic: &ChannelStatistic,
        hessian: &Hessian,
        rounding: RowRounding,
    ) -> Result<Option<Vec<f32>>, AlgorithmError> {
        let core = Awq { ratios: self.ratios, duo_scaling: false, clip: None };
        let means = statistic.abs_mean();
        let wrong = |error: kvant_quant::transform::TransformError| AlgorithmError::Layer {
            layer: readers.tensor.clone(),
            problem: error.to_string(),
        };
        let mut best: Option<(f64, f32, Vec<f32>)> = None;
        for candidate in core.candidates(&means, &[]).map_err(wrong)? {
            let loss = |weight: &Vec<f32>| hessian.loss(weight, &rounding.rounded(weight, &candidate.scales));
            let loss: f64 = weights.iter().map(loss).sum();
            if loss.is_finite() && best.as_ref().is_none_or(|(least, ..)| loss < *least) {
                best = Some((loss, candidate.ratio, candidate.scales));
            }
        }
        Ok(best.filter(|(_, ratio, _)| *ratio > 0.0).map(|(_, _, scales)| scales))
    }
}

/// As many readers at a time as there is memory for their Hessians, one at least.
fn batches(readers: &[Readers], budget: u64) -> impl Iterator<Item = &[Readers]> {
    let mut rest = readers;
    std::iter::from_fn(move || {
        let mut bytes = 0u64;
        let fits = |readers: &&Readers| {
            bytes = bytes.saturating_add(Hessian::bytes(readers.channels, false));
            bytes <= budget
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (batch, more) = rest.split_at(count);
        rest = more;
        (!batch.is_empty()).then_some(batch)
    })
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] =
    &[option!(Awq.ratios, "ratios", COUNT, "exponents that are tried", count)];

/// What was seen of the inputs of products.
struct Seen(BTreeMap<String, (ChannelStatistic, Hessian)>);

impl Seen {
    fn observed(model: &ModelProto, readers: &[Readers], data: &mut Data<'_>) -> Result<Self, AlgorithmError> {
        let empty = |r: &Readers| (ChannelStatistic::new(r.channels), Hessian::new(r.channels));
        let mut seen = Self(readers.iter().map(|r| (r.tensor.clone(), empty(r))).collect());
        let wanted: Vec<String> = seen.0.keys().cloned().collect();
        if !wanted.is_empty() {
            watch(model, &wanted, &mut seen, data.samples, &data.runtime, &mut |_, _| {}, data.cancelled)?;
        }
        Ok(seen)
    }
}

impl Watch for Seen {
    fn see(&mut self, tensor: &str, array: &Array<'_>) {
        let Some((statistic, hessian)) = self.0.get_mut(tensor) else { return };
        if array.shape().last() == Some(&statistic.channels()) {
            let rows = array.to_f32s();
            statistic.update(&rows);
            hessian.add(&rows);
        }
    }
}

/// The weights of the readers, a row for each output.
fn rows(graph: &GraphProto, readers: &Readers) -> Result<Vec<Vec<f32>>, QuantizeError> {
    let index = Index::new(graph);
    let mut all = Vec::with_capacity(readers.weights.len());
    for weight in &readers.weights {
        let Some(tensor) = index.constant(graph, &weight.name) else { continue };
        let source = values(tensor)?;
        let outputs = source.len() / readers.channels.max(1);
        let mut rows = vec![0f32; source.len()];
        let mut filled = vec![0usize; readers.channels];
        for (element, value) in source.into_iter().enumerate() {
            // Elements of a channel come in the order of the outputs, whichever way the weight lies.
            let channel = weight.map.channel(element);
            if filled[channel] < outputs {
                rows[filled[channel] * readers.channels + channel] = value;
                filled[channel] += 1;
            }
        }
        all.push(rows);
    }
    Ok(all)
}

/// How the recipe rounds a weight of rows of outputs.
#[derive(Clone, Copy)]
struct RowRounding {
    columns: usize,
    blocks: Option<Blocks>,
    method: WeightMethod,
    per_channel: bool,
}

impl RowRounding {
    fn of(recipe: &Recipe, columns: usize) -> Self {
        let blocks = match recipe.layout {
            Layout::MatMulNBits { bits, block, accuracy } => Some(Blocks::of(recipe, bits, block, accuracy)),
            _ => None,
        };
        let scheme = recipe.products.map_or(recipe.weight, |products| products.weight);
        let method = WeightMethod {
            element: scheme.element,
            symmetric: scheme.symmetric,
            scale: scheme.scale,
            method: scheme.method,
            reduce_range: scheme.reduce_range,
        };
        Self { columns, blocks, method, per_channel: scheme.per_channel }
    }

    /// `Q(W s) / s`.
    fn rounded(&self, weight: &[f32], scales: &[f32]) -> Vec<f32> {
        let scaled: Vec<f32> = weight.iter().zip(scales.iter().cycle()).map(|(w, s)| w * s).collect();
        let Some(grid) = self.grid(&scaled) else { return weight.to_vec() };
        let rounded = grid.values(&grid.nearest(&scaled));
        rounded.iter().zip(scales.iter().cycle()).map(|(w, s)| w / s).collect()
    }

    fn grid(&self, scaled: &[f32]) -> Option<Grid> {
        let (inputs, outputs) = (self.columns, scaled.len() / self.columns.max(1));
        if let Some(blocks) = self.blocks {
            let map = BlockMap { inputs, outputs, transposed: true, block: blocks.block };
            let element = blocks.element();
            return Some(Grid::in_blocks(element, element.full_range()?, map, block_parameters(scaled, map, blocks)));
        }
        let (shape, axis) = ([outputs, inputs], self.per_channel.then_some(0));
        let parameters = weight_parameters(scaled, &shape, axis, self.method);
        Some(Grid::new(self.method.element, self.method.used_codes()?, &shape, axis, parameters))
    }
}
