//! Transforms of [`kvant_quant::transform`] on graphs: the inputs of products are scaled as the transform finds, then weights are
//! limited if it asks for that.
//!
//! A smoothing pair of a graph is a tensor and all products with constants that read it. What is observed of the tensor follows from
//! what the transform [needs](Needs): its largest magnitudes, sampled rows, or the sum of the products of its rows.

mod found;
mod limits;
mod pair;
mod row_rounding;
mod seen;
mod weight_rows;

use std::sync::atomic::AtomicBool;

use kvant_container::onnx::{ModelProto, Spill};
use kvant_quant::transform::{Clip, Needs, PairError, Transform, TransformError};
use serde::Serialize;

use super::attention_scores::scored;
use super::data::Data;
use super::input_scaling::{ScaledInput, SharedInputGroup, apply, readers, sorted};
use crate::error::AlgorithmError;
use crate::error::QuantizeError;
use crate::placement::Placement;
use crate::recipe::Recipe;
use crate::shape::Types;
use found::Found;
pub use limits::LimitedWeight;
pub(crate) use limits::Unlimited;
use limits::{Search, Shares};
use pair::ReaderPair;
use seen::{Inputs, Observation, SampledInputs, batches};

/// The changes that transforms made to the float model.
#[derive(Debug, Default)]
pub(crate) struct TransformedByData {
    /// The tensors whose channels were scaled.
    pub scaled_inputs: Vec<ScaledInput>,
    /// Those whose channels a transform left as they are, and why.
    pub not_scaled: Vec<LeftInput>,
    /// The weights that were limited.
    pub limited_weights: Vec<LimitedWeight>,
    /// These weights without their limits.
    pub unlimited: Unlimited,
}

/// A tensor whose channels a transform left as they are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftInput {
    /// The tensor.
    pub tensor: String,
    /// The transform.
    pub algorithm: String,
    /// What kept it from scaling them.
    pub reason: String,
}

/// What a transform is asked to change, and how that will be quantized.
pub(super) struct Subject<'a> {
    pub recipe: &'a Recipe,
    pub types: &'a Types,
    /// The quantized weights: only these get thresholds.
    pub placement: &'a Placement,
}

/// Scales the inputs of all products with constants as a transform finds, then clips quantized weights where `clip` is given.
pub(super) fn run(
    transform: &dyn Transform,
    clip: Option<Clip>,
    model: &mut ModelProto,
    subject: &Subject<'_>,
    data: &mut Data<'_>,
    spill: Option<&Spill>,
) -> Result<TransformedByData, QuantizeError> {
    let readers = readers(&model.graph, subject.types);
    let search = clip.map(|clip| Search { clip, subject, scored: scored(&model.graph) });
    let wanted = Observation::of(transform, subject.recipe, clip);
    // Observations must not depend on how many fit in memory.
    let (float, mut done, mut shares) = (model.clone(), TransformedByData::default(), Vec::new());
    let mut number = 0;
    for batch in batches(&readers, wanted, data.runtime.budget) {
        let names: Vec<String> =
            (number..number + batch.len()).map(|number| format!("{}.{number}", transform.name())).collect();
        number += batch.len();
        let kept: Vec<Option<Found>> = names.iter().zip(batch).map(|(name, r)| Found::kept(name, r, data)).collect();
        // All of a batch are seen in one pass, or none.
        let is_kept = kept.iter().all(Option::is_some);
        let mut seen = if is_kept { None } else { Some(SampledInputs::observed(&float, batch, wanted, data)?) };
        for ((readers, kept), name) in batch.iter().zip(kept).zip(&names) {
            data.check_cancelled()?;
            let is_new = kept.is_none();
            let mut found = kept.unwrap_or_default();
            let inputs = seen.as_mut().and_then(|seen| seen.take(readers)).filter(|_| is_new);
            if let Some(inputs) = &inputs {
                match scales(transform, readers, model, inputs, subject.recipe, data.cancelled)? {
                    Ok(scales) => found.scales = scales,
                    Err(reason) => found.reason = Some(reason),
                }
            }
            if let Some(scales) = &found.scales {
                done.scaled_inputs.push(apply(model, readers, scales, spill)?);
            }
            if let (Some(inputs), Some(search)) = (inputs, &search) {
                found.shares = search.shares(model, readers, inputs.rows(found.scales.as_deref()))?;
            }
            if is_new {
                found.keep(name, readers, data)?;
            }
            if let Some(reason) = found.reason {
                let (tensor, algorithm) = (readers.tensor.clone(), transform.name().to_owned());
                done.not_scaled.push(LeftInput { tensor, algorithm, reason });
            }
            shares.extend(found.shares);
        }
    }
    // Scales of later tensors go into weights before them.
    shares.iter().try_for_each(|shares: &Shares| shares.apply(model, &mut done, spill))?;
    sorted(model)?;
    Ok(done)
}

/// The scales that a transform finds, none where they are ones; or why the tensor stays as it is.
fn scales(
    transform: &dyn Transform,
    readers: &SharedInputGroup,
    model: &ModelProto,
    inputs: &Inputs,
    recipe: &Recipe,
    cancelled: &AtomicBool,
) -> Result<Result<Option<Vec<f32>>, String>, QuantizeError> {
    let mut pair = ReaderPair::new(readers, model, inputs, recipe, cancelled)?;
    let found = transform.find(&mut pair).and_then(|found| {
        pair.check(&found.scales)?;
        Ok(Some(found.scales).filter(|scales| scales.iter().any(|scale| *scale != 1.0)))
    });
    match found {
        Ok(scales) => Ok(Ok(scales)),
        Err(PairError::Unscaled(reason)) => Ok(Err(reason)),
        Err(PairError::Stopped) => Err(AlgorithmError::Cancelled.into()),
    }
}

/// Whether a transform judges scales by what rounded weights make of the inputs, or limits weights: then weights need codes.
pub(super) fn reckons_with_codes(transform: &dyn Transform) -> bool {
    transform.needs() != Needs::Maxima || transform.clip().is_some()
}

/// The core's error with the layer's name.
fn failed(layer: &str, error: &TransformError) -> AlgorithmError {
    AlgorithmError::Layer { layer: layer.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests;
