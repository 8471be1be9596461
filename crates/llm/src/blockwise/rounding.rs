//! Rounding the layers of a block, stage by stage: what a stage reads is computed from the stages that are rounded already.

use super::capture::{HessianTap, RowsTap};
use super::error::BlockwiseError;
use super::report::{LayerReport, Starved};
use super::run::Blockwise;
use super::work::Work;
use crate::engine::EngineError;
use crate::family::Role;
use crate::forward::{Depth, Overlay, Routing, Variation};
use crate::plan::{PlannedLayer, PlannedStage};
use crate::weight::{Band, BandAxis, Folding, WeightMatrix, bands};
use kvant_numeric::kernel::Range;
use kvant_quant::QuantTensor;
use kvant_quant::hessian::{Hessian, HessianError};
use kvant_quant::rounding::{Feedback, Gptq, Groups, Needs, Rounded, Rounding, RoundingError, Rtn, TensorContext};
use kvant_quant::transform::Loss;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Layers that read the same rows: they share a Hessian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readers {
    /// The module whose input is looked at.
    pub(super) module: String,
    /// Input features.
    pub(super) features: usize,
    /// Indices into the plan's layers.
    pub(super) layers: Vec<usize>,
}

impl<'a> Blockwise<'_, 'a> {
    /// Rounds the layers of a block.
    pub(super) fn round(&self, work: &mut Work<'_, '_, 'a>) -> Result<(), BlockwiseError> {
        let block = work.block;
        for stages in block.stages.chunk_by(|a, b| a.depth == b.depth) {
            let readers: Vec<Readers> = stages.iter().flat_map(|stage| self.readers(stage)).collect();
            match self.plan.recipe.algorithms().rounding {
                Rounding::Rtn => readers.iter().try_for_each(|readers| {
                    readers.layers.iter().try_for_each(|layer| self.to_nearest(work, readers, *layer, None))
                })?,
                Rounding::ByColumns(gptq) => self.round_at(work, stages[0].depth, readers, &gptq)?,
            }
        }
        Ok(())
    }

    /// Those of a stage: one group, or one for each expert.
    pub(super) fn readers(&self, stage: &PlannedStage) -> Vec<Readers> {
        let mut groups: BTreeMap<Option<usize>, Readers> = BTreeMap::new();
        for index in &stage.layers {
            let layer = &self.plan.layers[*index];
            let readers = groups.entry(layer.source.expert).or_insert_with(|| Readers {
                module: layer.module.clone(),
                features: layer.columns,
                layers: Vec::new(),
            });
            readers.layers.push(*index);
        }
        groups.into_values().collect()
    }

    /// Rounds column by column, as many groups of readers at a time as there is memory for their Hessians.
    fn round_at(
        &self,
        work: &mut Work<'_, '_, 'a>,
        depth: Depth,
        readers: Vec<Readers>,
        gptq: &Gptq,
    ) -> Result<(), BlockwiseError> {
        let drift = gptq.needs() == Needs::Drift;
        let readers = self.routers_last(readers);
        for batch in batches(readers, self.memory, drift) {
            let mut hessians = match drift {
                true => self.drifted_hessians(work, depth, &batch)?,
                false => self.hessians(work, depth, &batch)?,
            };
            for readers in batch {
                let hessian = hessians.remove(&readers.module);
                self.round_readers(work, &readers, hessian, gptq)?;
            }
        }
        Ok(())
    }

    /// Rounded routers would send tokens elsewhere in the passes of later batches, so that memory decided on codes.
    fn routers_last(&self, mut readers: Vec<Readers>) -> Vec<Readers> {
        readers.sort_by_key(|readers| {
            let is_router = |layer: &usize| self.plan.layers[*layer].role == Role::Router.name();
            readers.layers.iter().any(is_router)
        });
        readers
    }

    fn hessians(
        &self,
        work: &mut Work<'_, '_, 'a>,
        depth: Depth,
        batch: &[Readers],
    ) -> Result<HashMap<String, Hessian>, BlockwiseError> {
        let modules = batch.iter().map(|readers| (readers.module.as_str(), readers.features));
        let tap = HessianTap::new(modules, self.precision());
        let (until, next) = (Some(depth), self.room(work, depth)?);
        let variation = Variation { overlay: Some(&work.rounded), tap: Some(&tap), until, ..Variation::default() };
        for chunk in 0..self.chunks.len() {
            self.runner.give(self.go_on(work, variation, (0, chunk), next.as_ref())?);
        }
        self.runner.rest();
        work.reach(next);
        Ok(tap.into_hessians())
    }

    /// Hessians and how far the inputs are from those of the float model. Experts see the same rows in both.
    fn drifted_hessians(
        &self,
        work: &mut Work<'_, '_, 'a>,
        depth: Depth,
        batch: &[Readers],
    ) -> Result<HashMap<String, Hessian>, BlockwiseError> {
        let modules = || batch.iter().map(|readers| readers.module.as_str());
        let (tap, float_tap) = (RowsTap::new(modules()), RowsTap::new(modules()));
        let empty = |readers: &Readers| Hessian::with_drift_in(readers.features, self.precision());
        let mut hessians: HashMap<String, Hessian> =
            batch.iter().map(|readers| (readers.module.clone(), empty(readers))).collect();
        let (until, next) = (Some(depth), self.room(work, depth)?);
        for chunk in 0..self.chunks.len() {
            let (routing, overlay) = (Routing::record(), Some(&work.rounded));
            let variation =
                Variation { overlay, tap: Some(&tap), until, routing: Some(&routing), ..Variation::default() };
            self.runner.give(self.go_on(work, variation, (0, chunk), next.as_ref())?);
            let (routing, overlay) = (routing.replay(), Some(&work.float));
            let variation =
                Variation { overlay, tap: Some(&float_tap), until, routing: Some(&routing), ..Variation::default() };
            self.runner.give(self.go_on(work, variation, (1, chunk), next.as_ref())?);
            for (module, hessian) in &mut hessians {
                hessian.add_drifted(&tap.take(module), &mut float_tap.take(module));
            }
        }
        self.runner.rest();
        work.reach(next);
        Ok(hessians)
    }

    fn round_readers(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &Readers,
        hessian: Option<Hessian>,
        gptq: &Gptq,
    ) -> Result<(), BlockwiseError> {
        let hessian = hessian.unwrap_or_else(|| Hessian::new(readers.features));
        match gptq.prepare(&hessian) {
            Ok(feedback) => {
                let by_columns = ByColumns {
                    hessian: &hessian,
                    feedback: &feedback,
                    dynamic: gptq.order.groups() == Groups::Dynamic,
                };
                readers.layers.iter().try_for_each(|layer| self.by_columns(work, *layer, &by_columns))
            }
            Err(HessianError::NotFinite) => Err(self.not_finite(work.block.index, &readers.module)),
            Err(problem) => {
                let starved = (hessian.tokens(), problem.to_string());
                readers.layers.iter().try_for_each(|layer| self.to_nearest(work, readers, *layer, Some(&starved)))
            }
        }
    }

    fn by_columns(&self, work: &mut Work<'_, '_, 'a>, index: usize, by: &ByColumns<'_>) -> Result<(), BlockwiseError> {
        self.engine.check_cancelled()?;
        let layer = &self.plan.layers[index];
        let (matrix, context) = self.to_round(work, index)?;
        let values = self.values(&matrix);
        let weights = match work.foldings.folding(&layer.module).is_some_and(|folding| folding.limits.is_some()) {
            true => Cow::Owned(self.values(&self.matrix(&work.float, work.block.index, layer)?)),
            false => Cow::Borrowed(values.as_slice()),
        };
        let scheme = layer.scheme.weight;
        // Scales that are found as columns are reached are those of the weights as they come.
        let rounded = match by.dynamic {
            true => by.feedback.round(&values, layer.rows, scheme, context),
            false => by.feedback.round_to(&weights, &values, layer.rows, scheme, context),
        };
        let Rounded { tensor, loss } =
            rounded.map_err(|problem| self.engine.rounding_error(layer, &matrix, problem))?;
        let loss_rtn = self.loss_of_nearest(work, index, by.hessian, &weights)?;
        let report = LayerReport {
            layer: layer.name.clone(),
            algorithm: self.rounding_name().to_owned(),
            tokens: by.hessian.tokens(),
            loss_rtn: Some(loss_rtn),
            loss: Some(loss),
            damping: Some(by.feedback.damping()),
            dead_columns: by.feedback.dead_columns(),
            note: scarce(by.hessian),
        };
        drop(weights);
        Ok(work.finish(&self.engine, &self.jobs, index, tensor, report)?)
    }

    /// The loss of rounding to nearest, as rows at even distances tell: of all of them it would take as long as all codes.
    fn loss_of_nearest(
        &self,
        work: &Work<'_, '_, 'a>,
        index: usize,
        hessian: &Hessian,
        weights: &[f32],
    ) -> Result<f64, BlockwiseError> {
        let nearest = self.unchanged(work, index)?;
        let (rows, columns) = (nearest.rows, nearest.columns);
        let chosen = (0..rows).step_by((rows / LOSS_ROWS).max(1));
        let (mut of_weights, mut of_nearest) = (Vec::new(), Vec::new());
        for row in chosen.clone() {
            of_weights.extend_from_slice(&weights[row * columns..][..columns]);
            nearest.read(self.engine.isa, &Band { rows: row..row + 1, columns: 0..columns }, &mut of_nearest);
        }
        Ok(hessian.loss(&of_weights, &of_nearest) * rows as f64 / chosen.len() as f64)
    }

    /// The weight that a rounding finds its scales from, and what it must know of the tensor.
    fn to_round(
        &self,
        work: &Work<'_, '_, 'a>,
        index: usize,
    ) -> Result<(WeightMatrix<'a>, TensorContext), BlockwiseError> {
        let block = work.block.index;
        let matrix = self.matrix(&work.clipped, block, &self.plan.layers[index])?;
        Ok((matrix, self.context(&work.clipped, block, index)?))
    }

    /// The source's weight rounded to nearest, with the scales that were moved since: what there would be without any
    /// algorithm, for the same outputs.
    fn unchanged(&self, work: &Work<'_, '_, 'a>, index: usize) -> Result<WeightMatrix<'a>, BlockwiseError> {
        let (layer, block, none) = (&self.plan.layers[index], work.block.index, Overlay::default());
        let context = self.context(&none, block, index)?;
        let nearest = self.nearest(layer, &self.matrix(&none, block, layer)?, context)?;
        let nearest = WeightMatrix::quantized(Arc::new(nearest));
        Ok(match work.foldings.folding(&layer.module) {
            Some(folding) => nearest.folded(Arc::new(Folding { limits: None, ..folding })),
            None => nearest,
        })
    }

    /// Rounds a layer to nearest; `starved` says why not otherwise.
    fn to_nearest(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &Readers,
        index: usize,
        starved: Option<&(u64, String)>,
    ) -> Result<(), BlockwiseError> {
        self.engine.check_cancelled()?;
        let layer = &self.plan.layers[index];
        let (matrix, context) = self.to_round(work, index)?;
        let tensor = self.nearest(layer, &matrix, context)?;
        if let Some((tokens, _)) = starved {
            let treatment = "rounded to nearest".to_owned();
            work.report.starved.push(Starved { layer: layer.name.clone(), tokens: *tokens, treatment });
        }
        let seen = work.inputs.get(&readers.module).map(|inputs| inputs.statistic.tokens());
        let losses = self.sampled_losses(work, readers, index, &tensor)?;
        let report = LayerReport {
            layer: layer.name.clone(),
            algorithm: "rtn".to_owned(),
            tokens: starved.map(|(tokens, _)| *tokens).or(seen).unwrap_or(self.tokens),
            loss_rtn: losses.map(|(unchanged, _)| unchanged),
            loss: losses.map(|(_, loss)| loss),
            damping: None,
            dead_columns: 0,
            note: starved.map(|(_, problem)| format!("rounded to nearest: {problem}")),
        };
        Ok(work.finish(&self.engine, &self.jobs, index, tensor, report)?)
    }

    /// The squared errors of a layer's outputs over all tokens, as some of its inputs tell: without any algorithm, and with
    /// these codes.
    fn sampled_losses(
        &self,
        work: &Work<'_, '_, 'a>,
        readers: &Readers,
        index: usize,
        tensor: &QuantTensor,
    ) -> Result<Option<(f64, f64)>, BlockwiseError> {
        let layer = &self.plan.layers[index];
        let inputs = work.inputs.get(&readers.module).filter(|inputs| !inputs.rows.is_empty());
        let (Some(inputs), Some(projection)) = (inputs, self.decoder.layer(work.block.index, &layer.module)) else {
            return Ok(None);
        };
        let outputs = |weight: WeightMatrix<'a>| {
            let mut overlay = Overlay::default();
            overlay.set_weight(&layer.module, weight);
            let variation = Variation { overlay: Some(&overlay), ..Variation::default() };
            self.runner.linear(variation, projection, &inputs.rows)
        };
        let float = outputs(self.matrix(&work.float, work.block.index, layer)?);
        let share = inputs.rows.len() as f64 / layer.columns as f64 / inputs.statistic.tokens() as f64;
        let loss = |weight: WeightMatrix<'a>| Loss::Mse.sum(&float, &outputs(weight)) / share;
        let unchanged = loss(self.unchanged(work, index)?);
        Ok(Some((unchanged, loss(WeightMatrix::quantized(Arc::new(tensor.clone()))))))
    }

    /// The weight as transforms have left it.
    pub(super) fn matrix(
        &self,
        float: &Overlay<'a>,
        block: usize,
        layer: &PlannedLayer,
    ) -> Result<WeightMatrix<'a>, BlockwiseError> {
        if let Some(matrix) = float.weight(&layer.module) {
            return Ok(matrix.clone());
        }
        let projection = self.decoder.layer(block, &layer.module);
        let vanished = || EngineError::Vanished(layer.source.tensor.clone());
        Ok(projection.map(|projection| self.decoder.weight(projection)).ok_or_else(vanished)?)
    }

    /// All elements of a weight.
    pub(super) fn values(&self, matrix: &WeightMatrix<'_>) -> Vec<f32> {
        let (rows, columns, isa) = (matrix.rows, matrix.columns, self.engine.isa);
        let mut values = vec![0.0; rows * columns];
        let step = (STRIP / columns.max(1)).max(1);
        values.par_chunks_mut((step * columns).max(1)).enumerate().for_each_init(Vec::new, |part, (index, out)| {
            let start = index * step;
            let band = Band { rows: start..start + out.len() / columns, columns: 0..columns };
            part.clear();
            matrix.read(isa, &band, part);
            out.copy_from_slice(part);
        });
        values
    }

    /// What a rounding must know of the tensor, and of those that share its scale.
    pub(super) fn context(
        &self,
        float: &Overlay<'a>,
        block: usize,
        index: usize,
    ) -> Result<TensorContext, BlockwiseError> {
        let layer = &self.plan.layers[index];
        let arithmetic = layer.source.dtype.arithmetic();
        if !layer.scheme.weight.needs_tensor_range() {
            return Ok(TensorContext { arithmetic, range: None });
        }
        let mut range = Range::EMPTY;
        for other in self.jobs.together(index) {
            let other = &self.plan.layers[*other];
            range = range.join(self.engine.tensor_range(other, &self.matrix(float, block, other)?)?);
        }
        Ok(TensorContext { arithmetic, range: Some(range) })
    }

    /// The weight rounded to nearest, band by band.
    pub(super) fn nearest(
        &self,
        layer: &PlannedLayer,
        matrix: &WeightMatrix<'_>,
        context: TensorContext,
    ) -> Result<QuantTensor, BlockwiseError> {
        let rounded = nearest(self.engine.isa, layer, matrix, context);
        Ok(rounded.map_err(|problem| self.engine.rounding_error(layer, matrix, problem))?)
    }
}

/// What rounding by columns knows of the inputs.
struct ByColumns<'h> {
    hessian: &'h Hessian,
    feedback: &'h Feedback,
    /// Whether scales are found as columns are reached: then they are those of the weights as they come.
    dynamic: bool,
}

/// What is to be said where the damping decides as much as the data.
fn scarce(hessian: &Hessian) -> Option<String> {
    let (tokens, inputs) = (hessian.tokens(), hessian.features());
    (tokens < inputs as u64).then(|| format!("few calibration tokens: {tokens} for {inputs} inputs"))
}

/// Rows, at least, whose losses stand for all, where a weight has as many.
const LOSS_ROWS: usize = 512;

/// Elements that one thread reads at a time.
const STRIP: usize = 256 << 10;

fn nearest(
    isa: kvant_numeric::simd::Isa,
    layer: &PlannedLayer,
    matrix: &WeightMatrix<'_>,
    context: TensorContext,
) -> Result<QuantTensor, RoundingError> {
    let rtn = Rtn::new(layer.scheme.weight, context)?.on(isa);
    let axis = if layer.is_searched_whole() { BandAxis::Whole } else { BandAxis::Rows };
    let bands = bands(matrix.rows, matrix.columns, axis, layer.tile_rows(), STRIP);
    let round = |values: &mut Vec<f32>, band: &Band| {
        values.clear();
        matrix.read(isa, band, values);
        rtn.round(values, band.rows.len(), band.columns.len())
    };
    let parts: Vec<_> = bands.par_iter().map_init(Vec::new, round).collect::<Result<_, _>>()?;
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_else(|| rtn.empty(matrix.columns));
    parts.try_for_each(|part| whole.append_rows(part))?;
    Ok(whole)
}

/// Groups in their order, as many at a time as `memory` bytes hold Hessians of; at least one.
fn batches(groups: Vec<Readers>, memory: u64, drift: bool) -> Vec<Vec<Readers>> {
    let mut batches: Vec<(u64, Vec<Readers>)> = Vec::new();
    for readers in groups {
        let bytes = Hessian::bytes(readers.features, drift);
        match batches.last_mut() {
            Some((held, batch)) if *held + bytes <= memory => {
                *held += bytes;
                batch.push(readers);
            }
            _ => batches.push((bytes, vec![readers])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_hessians_are_summed_at_a_time_as_fit() {
        let readers = |features| Readers { module: String::new(), features, layers: vec![] };
        let sizes = |memory| {
            let groups = [64, 64, 128, 64].map(readers).to_vec();
            batches(groups, memory, false).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(u64::MAX), [4]);
        assert_eq!(sizes(2 * Hessian::bytes(64, false)), [2, 1, 1]);
        assert_eq!(sizes(0), [1, 1, 1, 1]);
    }
}
