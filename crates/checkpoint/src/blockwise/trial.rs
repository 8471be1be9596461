//! Tries scales on a smoothing pair: the outputs of its consumers with quantized weights, compared with those of the float model. Chooses
//! nothing.

use super::error::BlockwiseError;
use super::inputs::{Inputs, Keep, KeptSequence};
use super::run::Blockwise;
use super::target::{Inspected, ResolvedPair};
use super::work::Work;
use crate::engine::EngineError;
use crate::plan::LayerId;
use crate::plan::PlannedLayer;
use kvant_forward::forward::{ForwardOptions, SequenceLayout, WeightOverrides};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::{ActivationQuantizer, ActivationStatistic, StaticParameters};
use kvant_quant::transform::Measure;
use kvant_weights::weight::WeightMatrix;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens that pass together.
const TOGETHER: usize = 2048;

/// A link under trial.
pub(super) struct PairTrial<'t, 'r, 'a> {
    pub(super) blockwise: &'t Blockwise<'r, 'a>,
    pub(super) work: &'t Work<'t, 'r, 'a>,
    pub(super) target: &'t ResolvedPair<'t>,
    /// The layers that are quantized.
    pub(super) planned: &'t [LayerId],
    pub(super) inputs: &'t HashMap<String, Inputs>,
}

/// Outputs, site by site.
pub(super) type Outputs = Vec<Vec<f32>>;

impl<'a> PairTrial<'_, '_, 'a> {
    /// Tokens that a trial runs.
    pub(super) fn tokens(&self) -> usize {
        self.sites().map(|(_, inputs)| inputs.rows.len() / inputs.columns.max(1)).sum()
    }

    fn sites(&self) -> impl Iterator<Item = (&str, &Inputs)> {
        self.target.sites().iter().filter_map(|site| Some((site.as_str(), self.inputs.get(site)?)))
    }

    /// The outputs of the float model.
    pub(super) fn reference(&self) -> Outputs {
        self.outputs(&self.work.float, None)
    }

    /// The mean distance of the outputs with these scales from `reference`; an error says why they cannot be tried.
    pub(super) fn loss(
        &self,
        scales: &[f32],
        reference: &Outputs,
        measure: Measure,
    ) -> Result<Result<f64, String>, BlockwiseError> {
        let mut foldings = self.work.foldings.clone();
        let scales = match foldings.apply(self.target.link, scales) {
            Ok(applied) => applied,
            Err(problem) => return Ok(Err(problem.to_string())),
        };
        let mut overlay = WeightOverrides::default();
        foldings.add_to(&mut overlay);
        let block = self.work.block.index;
        let contexts = self.planned.iter().map(|index| self.blockwise.context(&overlay, block, *index));
        let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
        for (index, context) in self.planned.iter().zip(contexts) {
            let layer = self.blockwise.plan.layer(*index);
            let matrix = self.blockwise.matrix(&overlay, block, layer)?;
            let tensor = match self.blockwise.nearest(layer, &matrix, context) {
                Ok(tensor) => tensor,
                Err(BlockwiseError::Engine(problem @ EngineError::TooLarge { .. })) => {
                    return Ok(Err(problem.to_string()));
                }
                Err(problem) => return Err(problem),
            };
            overlay.set_weight(&layer.module, WeightMatrix::quantized(Arc::new(tensor)));
            if let (true, Some(input)) = (measure.with_inputs, self.input_quantizer(layer, &scales)) {
                overlay.set_input(&layer.module, input);
            }
        }
        let outputs = self.outputs(&overlay, Some(&scales));
        let sum: f64 =
            reference.iter().zip(&outputs).map(|(reference, output)| measure.loss.sum(reference, output)).sum();
        let elements: usize = reference.iter().map(Vec::len).sum();
        outputs.into_iter().for_each(|output| self.blockwise.runner.give(output));
        Ok(Ok(sum / elements.max(1) as f64))
    }

    /// The quantizer of a layer's inputs, static parameters being those of the sampled rows.
    fn input_quantizer(&self, layer: &PlannedLayer, scales: &[f32]) -> Option<ActivationQuantizer> {
        let scheme = layer.scheme.input?;
        if !scheme.needs_calibration() {
            return ActivationQuantizer::new(scheme, None).ok();
        }
        let mut statistic = ActivationStatistic::new(scheme).ok()?;
        for (_, inputs) in self.sites() {
            self.on_divided(&inputs.rows, Some(scales), |rows| statistic.update(Isa::best(), rows, inputs.columns));
        }
        let arithmetic = layer.source.dtype.arithmetic();
        let ranges = statistic.ranges(scheme.scheme, arithmetic)?;
        let parameters = StaticParameters::of_ranges(scheme.scheme, &ranges, arithmetic);
        ActivationQuantizer::new(scheme, Some(parameters)).ok()
    }

    /// The outputs of the inspected modules for inputs divided by `scales`.
    fn outputs(&self, overlay: &WeightOverrides<'a>, scales: Option<&[f32]>) -> Outputs {
        match self.target.inspected {
            Inspected::Layers => {
                let of_site = |(module, inputs): (&str, &Inputs)| {
                    self.on_divided(&inputs.rows, scales, |rows| self.layer(overlay, module, rows))
                };
                self.sites().map(of_site).collect()
            }
            Inspected::Branches { attention, feed_forward } => {
                let mut outputs = Vec::new();
                for (_, inputs) in self.sites() {
                    for (layout, rows) in together(inputs) {
                        self.on_divided(rows, scales, |rows| {
                            outputs.extend(attention.then(|| self.mix(overlay, layout, rows)));
                            outputs.extend(feed_forward.then(|| self.feed_forward(overlay, layout, rows)));
                        });
                    }
                }
                outputs
            }
        }
    }

    /// The result of `run` for rows divided by `scales`, if there are any.
    fn on_divided<R>(&self, rows: &[f32], scales: Option<&[f32]>, run: impl FnOnce(&[f32]) -> R) -> R {
        let Some(scales) = scales else { return run(rows) };
        let runner = &self.blockwise.runner;
        let mut divided = runner.copy(rows);
        divide(&mut divided, scales);
        let result = run(&divided);
        runner.give(divided);
        result
    }

    fn variation<'v>(overlay: &'v WeightOverrides<'a>) -> ForwardOptions<'v, 'a> {
        ForwardOptions { overlay: Some(overlay), ..ForwardOptions::default() }
    }

    fn layer(&self, overlay: &WeightOverrides<'a>, module: &str, rows: &[f32]) -> Vec<f32> {
        let layer = self.blockwise.decoder.layer(self.work.block.index, module);
        layer.map(|layer| self.blockwise.runner.linear(Self::variation(overlay), layer, rows)).unwrap_or_default()
    }

    fn mix(&self, overlay: &WeightOverrides<'a>, layout: SequenceLayout<'_>, rows: &[f32]) -> Vec<f32> {
        self.blockwise.runner.mix(Self::variation(overlay), self.work.block.index, layout, rows)
    }

    fn feed_forward(&self, overlay: &WeightOverrides<'a>, layout: SequenceLayout<'_>, rows: &[f32]) -> Vec<f32> {
        self.blockwise.runner.feed_forward(Self::variation(overlay), self.work.block.index, layout, rows)
    }
}

fn divide(rows: &mut [f32], scales: &[f32]) {
    rows.par_chunks_mut(scales.len().max(1))
        .for_each(|row| row.iter_mut().zip(scales).for_each(|(x, scale)| *x /= scale));
}

/// Sequences that pass together, with their rows: those of one length, and one with images alone; rows that belong to none as one sequence.
fn together(inputs: &Inputs) -> Vec<(SequenceLayout<'_>, &[f32])> {
    if let Keep::Rows(_) = inputs.keep {
        return vec![((inputs.rows.len() / inputs.columns.max(1)).into(), &inputs.rows)];
    }
    let (mut parts, mut start, mut at): (Vec<(SequenceLayout<'_>, &[f32])>, usize, usize) = (Vec::new(), 0, 0);
    for (index, KeptSequence { length, images }) in inputs.sequences.iter().enumerate() {
        at += length * inputs.columns;
        let next = inputs.sequences.get(index + 1);
        let full = (at - start) / inputs.columns.max(1) + length > TOGETHER;
        let joins = |next: &KeptSequence| images.is_empty() && next.images.is_empty() && next.length == *length;
        if full || !next.is_some_and(joins) {
            parts.push((SequenceLayout { images, ..(*length).into() }, &inputs.rows[start..at]));
            start = at;
        }
    }
    parts
}
