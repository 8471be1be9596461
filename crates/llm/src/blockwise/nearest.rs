//! Rounding layers of a block to nearest: where nothing else is asked for, where an algorithm has too little to go by, and to
//! say what an algorithm gains.

use super::error::BlockwiseError;
use super::report::{LayerReport, Starved};
use super::rounding::{Readers, STRIP};
use super::run::Blockwise;
use super::work::Work;
use crate::forward::{Overlay, Variation};
use crate::plan::PlannedLayer;
use crate::weight::{Band, BandAxis, Folding, WeightMatrix, bands};
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{RoundingError, Rtn, TensorContext};
use kvant_quant::transform::Loss;
use rayon::prelude::*;
use std::sync::Arc;

impl<'a> Blockwise<'_, 'a> {
    /// Rounds a layer to nearest; `starved` says why not otherwise.
    pub(super) fn to_nearest(
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

    /// The loss of rounding to nearest, as rows at even distances tell: of all of them it would take as long as all codes.
    pub(super) fn loss_of_nearest(
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
}

/// Rows, at least, whose losses stand for all, where a weight has as many.
const LOSS_ROWS: usize = 512;

fn nearest(
    isa: Isa,
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
