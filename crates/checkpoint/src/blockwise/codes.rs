//! The codes of one layer, chosen by the recipe's rounding; if few tokens reached it, compared with safer settings. Converts
//! a layer of a decoder to a [`LayerProblem`].

use super::error::BlockwiseError;
use super::rounding::SharedInputGroup;
use super::run::Blockwise;
use super::work::Work;
use crate::plan::LayerId;
use kvant_quant::reconstruction::{ActivationFunction, Shape};
use kvant_quant::rounding::{AnyRounding, Grid, LayerProblem, RoundedLayer, SharedInputs};
use std::borrow::Cow;

/// Data shared by layers with the same input.
pub(super) struct Known<'h> {
    /// Sums over their inputs, where the rounding needs any.
    pub(super) inputs: Option<&'h SharedInputs>,
    /// The requested rounding, and with few tokens a safer one.
    pub(super) roundings: &'h [AnyRounding],
    /// Whether there are fewer tokens than inputs.
    pub(super) is_scarce: bool,
}

/// The codes that were chosen for a layer.
pub(super) struct ChosenCodes {
    pub(super) layer: RoundedLayer,
    /// The rounding that they are of.
    pub(super) algorithm: String,
    pub(super) treatment: &'static str,
}

impl<'a> Blockwise<'_, 'a> {
    /// The codes of the rounding; with few tokens, the best of its codes, those of a safer one and of rounding to nearest
    /// on held-out data.
    pub(super) fn choose_codes(
        &self,
        work: &Work<'_, '_, 'a>,
        readers: &SharedInputGroup,
        index: LayerId,
        known: &Known<'_>,
    ) -> Result<ChosenCodes, BlockwiseError> {
        let mut candidates = Vec::new();
        for (rounding, treatment) in known.roundings.iter().zip(["rounded as asked", "rounded with more damping"]) {
            let layer = self.codes(work, index, rounding, known.inputs)?;
            candidates.push(ChosenCodes { layer, algorithm: rounding.name().to_owned(), treatment });
        }
        if let Some(inputs) = known.inputs.filter(|_| known.is_scarce) {
            let (matrix, context) = self.to_round(work, index)?;
            let tensor = self.nearest(self.plan.layer(index), &matrix, context)?;
            let loss = Some(self.loss_of_nearest(work, index, &inputs.hessian)?);
            let layer = RoundedLayer { loss, ..RoundedLayer::new(tensor) };
            candidates.push(ChosenCodes { layer, algorithm: "rtn".to_owned(), treatment: "rounded to nearest" });
        }
        let first = candidates.remove(0);
        if candidates.is_empty() {
            return Ok(first);
        }
        let loss = |codes: &ChosenCodes| self.held_out_loss(work, &readers.module, index, &codes.layer.tensor);
        let mut best = (loss(&first)?.unwrap_or(f64::INFINITY), first);
        for codes in candidates {
            let loss = loss(&codes)?.unwrap_or(f64::INFINITY);
            if loss < best.0 {
                best = (loss, codes);
            }
        }
        Ok(best.1)
    }

    /// The codes of a layer by a rounding.
    fn codes(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
        rounding: &AnyRounding,
        inputs: Option<&SharedInputs>,
    ) -> Result<RoundedLayer, BlockwiseError> {
        let layer = self.plan.layer(index);
        let (matrix, context) = self.to_round(work, index)?;
        let from = self.values(&matrix);
        let weight = match work.foldings.folding(&layer.module).is_some_and(|folding| folding.limits.is_some()) {
            true => Cow::Owned(self.values(&self.matrix(&work.float, work.block.index, layer)?)),
            false => Cow::Borrowed(from.as_slice()),
        };
        let mut problem = LayerProblem {
            layer: &layer.name,
            shape: Shape { groups: 1, outputs: layer.rows, features: layer.columns },
            weight: &weight,
            grid: Grid::Scheme { scheme: layer.scheme.weight, context, from: &from },
            bias: None,
            function: &ActivationFunction::None,
            inputs,
            samples: None,
            cancelled: self.cancelled,
        };
        let rounded = rounding.round(&mut problem);
        Ok(rounded.map_err(|problem| self.engine.layer_error(layer, &matrix, rounding.name(), problem))?)
    }
}
