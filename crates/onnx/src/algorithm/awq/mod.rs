//! AWQ: the inputs of products are scaled so that rounding the weights changes the outputs least, then weights are limited.
//!
//! For each tensor that products with constants read, powers of its channels' mean magnitudes are tried as scales; the loss of one
//! is that of all outputs on the calibration data, `tr((W - W') H (W - W')^T)` with `W' = Q(W s) / s` as the recipe rounds it and
//! `H` the sum of the products of the inputs. The candidates are those of the other flow, [`kvant_quant::transform::Awq`], as are the
//! [limits](limits) that are searched for the scaled weights.
//! Source: Lin et al., AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration, arXiv 2306.00978.

mod found;
mod limits;
mod row_rounding;
mod seen;
mod weight_rows;

use kvant_container::onnx::{ModelProto, Spill};
use kvant_quant::transform::{Awq, TransformError, WeightStatistic};

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
use row_rounding::RowRounding;
use seen::{Inputs, SampledInputs, batches};
use weight_rows::all_rows;

/// The changes that AWQ made to the float model.
#[derive(Debug, Default)]
pub(crate) struct Weighted {
    /// The tensors whose channels were scaled.
    pub scaled: Vec<ScaledInput>,
    /// The weights that were limited.
    pub limited: Vec<LimitedWeight>,
    /// These weights without their limits.
    pub unlimited: Unlimited,
}

/// The inputs of AWQ.
pub(super) struct Subject<'a> {
    pub recipe: &'a Recipe,
    pub types: &'a Types,
    /// The quantized weights: only these get thresholds.
    pub placement: &'a Placement,
}

/// Scales the inputs of all products with constants if that lowers their loss, and clips quantized weights.
pub(super) fn run(
    awq: Awq,
    model: &mut ModelProto,
    subject: &Subject<'_>,
    data: &mut Data<'_>,
    spill: Option<&Spill>,
) -> Result<Weighted, QuantizeError> {
    let readers = readers(&model.graph, subject.types);
    let search = awq.clip.map(|clip| Search { clip, subject, scored: scored(&model.graph) });
    // Observations must not depend on the number of Hessians that fit in memory.
    let (float, mut done, mut shares) = (model.clone(), Weighted::default(), Vec::new());
    let mut number = 0;
    for batch in batches(&readers, awq.clip, data.runtime.budget) {
        let names: Vec<String> = (number..number + batch.len()).map(|number| format!("awq.{number}")).collect();
        number += batch.len();
        let kept: Vec<Option<Found>> = names.iter().zip(batch).map(|(name, r)| Found::kept(name, r, data)).collect();
        // All of a batch are seen in one pass, or none.
        let is_kept = kept.iter().all(Option::is_some);
        let mut seen = if is_kept { None } else { Some(SampledInputs::observed(&float, batch, awq.clip, data)?) };
        for ((readers, kept), name) in batch.iter().zip(kept).zip(&names) {
            data.check_cancelled()?;
            if let Some(found) = kept {
                if let Some(scales) = &found.scales {
                    done.scaled.push(apply(model, readers, scales, spill)?);
                }
                shares.extend(found.shares);
                continue;
            }
            let mut found = Found::default();
            if let Some(inputs) = seen.as_mut().and_then(|seen| seen.take(readers)) {
                found.scales = best(awq, readers, model, &inputs, subject.recipe)?;
                if let Some(scales) = &found.scales {
                    done.scaled.push(apply(model, readers, scales, spill)?);
                }
                if let Some(search) = &search {
                    found.shares = search.shares(model, readers, inputs.rows(found.scales.as_deref()))?;
                }
            }
            found.keep(name, readers, data)?;
            shares.extend(found.shares);
        }
    }
    // Scales of later tensors go into weights before them.
    shares.iter().try_for_each(|shares: &Shares| shares.apply(model, &mut done, spill))?;
    sorted(model)?;
    Ok(done)
}

/// The scales with the least loss; `None` where those are ones.
fn best(
    awq: Awq,
    readers: &SharedInputGroup,
    model: &ModelProto,
    inputs: &Inputs,
    recipe: &Recipe,
) -> Result<Option<Vec<f32>>, QuantizeError> {
    let weights = all_rows(&model.graph, readers)?;
    let rounding = RowRounding::of(recipe, readers.channels);
    let (means, relative) = (inputs.statistic.abs_mean(), relative_mean(&weights, rounding, readers.channels));
    let mut best: Option<(f64, Vec<f32>)> = None;
    for candidate in awq.candidates(&means, &relative).map_err(|error| failed(&readers.tensor, &error))? {
        let loss = |weight: &Vec<f32>| inputs.hessian.loss(weight, &rounding.rounded(weight, &candidate.scales));
        let loss: f64 = weights.iter().map(loss).sum();
        if loss.is_finite() && best.as_ref().is_none_or(|(least, _)| loss < *least) {
            best = Some((loss, candidate.scales));
        }
    }
    Ok(best.map(|(_, scales)| scales).filter(|scales| scales.iter().any(|scale| *scale != 1.0)))
}

/// The mean size of each column of weights, relative to what shares a scale with it.
fn relative_mean(weights: &[Vec<f32>], rounding: RowRounding, columns: usize) -> Vec<f32> {
    let mut statistic = WeightStatistic::new(columns, rounding.group());
    weights.iter().for_each(|rows| statistic.update(rows));
    statistic.relative_mean()
}

/// The core's error with the layer's name.
fn failed(layer: &str, error: &TransformError) -> AlgorithmError {
    AlgorithmError::Layer { layer: layer.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests;
