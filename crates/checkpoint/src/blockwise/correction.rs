//! Biases that make up for the mean error of the codes beside them. The formula is in [`kvant_quant::bias_correction`].

use super::error::BlockwiseError;
use super::report::LayerReport;
use super::rounding::SharedInputGroup;
use super::run::Blockwise;
use super::tuning::RoundedLayer;
use super::work::Work;
use crate::folding::ScaleFusionError;
use crate::plan::LayerId;
use kvant_quant::QuantTensor;
use kvant_weights::weight::WeightMatrix;
use std::sync::Arc;

impl<'a> Blockwise<'_, 'a> {
    /// A layer is rounded: lets the passes that follow see its codes, and writes them unless they are tuned first.
    pub(super) fn finish(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: LayerId,
        tensor: QuantTensor,
        report: LayerReport,
    ) -> Result<(), BlockwiseError> {
        if !self.is_tuned() {
            return self.write(work, readers, index, tensor, report);
        }
        let weight = WeightMatrix::quantized(Arc::new(tensor.clone()));
        work.rounded.set_weight(&self.plan.layer(index).module, weight);
        work.rounded_layers.push(RoundedLayer { readers: readers.clone(), index, tensor, report });
        Ok(())
    }

    /// Corrects the bias of a layer where that is asked for, writes its codes, and lets the passes that follow see both.
    pub(super) fn write(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: LayerId,
        tensor: QuantTensor,
        mut report: LayerReport,
    ) -> Result<(), BlockwiseError> {
        if let Some(note) = self.correct_bias(work, readers, index, &tensor)? {
            report.note = Some(report.note.map_or_else(|| note.to_owned(), |known| format!("{known}; {note}")));
        }
        Ok(work.finish(&self.engine, &self.jobs, index, tensor, report)?)
    }

    /// Corrects the bias of a layer; in words, why that was not done though it was asked for.
    ///
    /// The error is that of the layer alone, `(W - Q) x` with `x` what the layers before it leave, rounded and corrected.
    fn correct_bias(
        &self,
        work: &mut Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: LayerId,
        tensor: &QuantTensor,
    ) -> Result<Option<&'static str>, BlockwiseError> {
        let Some(correction) = self.plan.recipe().algorithms().correction else { return Ok(None) };
        let layer = self.plan.layer(index);
        let Some(bias) = work.foldings.bias(&layer.module) else { return Ok(Some("no bias to correct")) };
        let Some(mean) = work.means.get(&readers.module).filter(|mean| mean.rows() > 0) else {
            return Ok(Some("bias not corrected: no token reached the layer"));
        };
        let weight = self.values(&self.matrix(&work.float, work.block.index, layer)?);
        let corrected = correction.corrected(&bias, &mean.errors(&weight, &tensor.dequantize()), 1.0);
        let failed = |problem: ScaleFusionError| self.engine.weight_error(layer, problem.to_string());
        let stored = work.foldings.set_bias(&layer.module, &corrected).map_err(failed)?;
        work.rounded.set_bias(&layer.module, stored);
        Ok(None)
    }
}
