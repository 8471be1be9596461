//! The codes of one layer, chosen column by column; where few tokens have reached it, beside those of other settings.

use super::error::BlockwiseError;
use super::rounding::SharedInputGroup;
use super::run::Blockwise;
use super::work::Work;
use kvant_quant::QuantTensor;
use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{Feedback, Rounded};
use std::borrow::Cow;

/// What rounding by columns knows of the inputs.
pub(super) struct ByColumns<'h> {
    pub(super) hessian: &'h Hessian,
    /// What follows from it with the damping that was asked for, and with more where there are few tokens.
    pub(super) feedbacks: &'h [Feedback],
    /// Whether scales are found as columns are reached: then they are those of the weights as they come.
    pub(super) dynamic: bool,
    /// Whether there are fewer tokens than inputs.
    pub(super) is_scarce: bool,
}

/// Codes of a layer.
pub(super) struct Codes<'f> {
    pub(super) tensor: QuantTensor,
    /// Their loss over all calibration tokens.
    pub(super) loss: f64,
    /// What they follow from; nothing where they are rounded to nearest.
    pub(super) feedback: Option<&'f Feedback>,
    pub(super) treatment: &'static str,
}

impl<'a> Blockwise<'_, 'a> {
    /// The codes that the algorithm gives; where there are few tokens, those of them, of the same with more damping and of
    /// rounding to nearest that lose least on what is held out.
    pub(super) fn choose_codes<'f>(
        &self,
        work: &Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: usize,
        by: &ByColumns<'f>,
    ) -> Result<Codes<'f>, BlockwiseError> {
        let mut candidates = Vec::new();
        for (feedback, treatment) in by.feedbacks.iter().zip(["rounded as asked", "rounded with more damping"]) {
            let Rounded { tensor, loss } = self.codes(work, index, feedback, by.dynamic)?;
            candidates.push(Codes { tensor, loss, feedback: Some(feedback), treatment });
        }
        if by.is_scarce {
            let (matrix, context) = self.to_round(work, index)?;
            let tensor = self.nearest(&self.plan.layers[index], &matrix, context)?;
            let loss = self.loss_of_nearest(work, index, by.hessian)?;
            candidates.push(Codes { tensor, loss, feedback: None, treatment: "rounded to nearest" });
        }
        let first = candidates.remove(0);
        if candidates.is_empty() {
            return Ok(first);
        }
        let loss = |codes: &Codes<'_>| self.held_out_loss(work, &readers.module, index, &codes.tensor);
        let mut best = (loss(&first)?.unwrap_or(f64::INFINITY), first);
        for codes in candidates {
            let loss = loss(&codes)?.unwrap_or(f64::INFINITY);
            if loss < best.0 {
                best = (loss, codes);
            }
        }
        Ok(best.1)
    }

    /// The codes of a layer by these factors.
    fn codes(
        &self,
        work: &Work<'_, '_, 'a>,
        index: usize,
        feedback: &Feedback,
        dynamic: bool,
    ) -> Result<Rounded, BlockwiseError> {
        let layer = &self.plan.layers[index];
        let (matrix, context) = self.to_round(work, index)?;
        let values = self.values(&matrix);
        let weights = match work.foldings.folding(&layer.module).is_some_and(|folding| folding.limits.is_some()) {
            true => Cow::Owned(self.values(&self.matrix(&work.float, work.block.index, layer)?)),
            false => Cow::Borrowed(values.as_slice()),
        };
        let scheme = layer.scheme.weight;
        // Scales that are found as columns are reached are those of the weights as they come.
        let rounded = match dynamic {
            true => feedback.round(&values, layer.rows, scheme, context),
            false => feedback.round_to(&weights, &values, layer.rows, scheme, context),
        };
        Ok(rounded.map_err(|problem| self.engine.rounding_error(layer, &matrix, problem))?)
    }
}
